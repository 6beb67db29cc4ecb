/* The part both libraries share: the mapped state and the connection to the daemon. */
#ifndef GPUSIM_CLIENT_H
#define GPUSIM_CLIENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpusim_state.h"

/* Node directory: GPUSIM_DIR, else /dev/gpusim. */
const char *gs_dir(void);

/* Maps the state; NULL when there is no node. */
struct gpusim_state *gs_map(bool writable);
void gs_unmap(struct gpusim_state *state);

/* Registers this process with the daemon. Returns the descriptor that keeps it alive, or -1. */
int gs_attach(uint32_t *slot, uint32_t *generation);

/* A container sees the cards whose file is in its own node directory. */
bool gs_card_visible(const struct gpusim_state *state, uint32_t card);

/* Cards visible here, in bus order; at most GPUSIM_MAX_CARDS. */
uint32_t gs_visible_cards(const struct gpusim_state *state, uint32_t cards[GPUSIM_MAX_CARDS]);

void gs_lock_card(struct gpusim_state *state, uint32_t card);
void gs_unlock_card(struct gpusim_state *state, uint32_t card);

/* For the daemon: takes a card's lock, from the hands of a dead process if need be. */
void gs_daemon_lock(struct gpusim_state *state, uint32_t card, uint32_t dead_slot);

/* For the daemon: lets everybody who waits for an event look again. */
void gs_daemon_wake(struct gpusim_state *state);

/* Sum over the live slots. */
uint64_t gs_card_used(const struct gpusim_state *state, uint32_t card);

/* Busy device time of a slot that has already happened. */
uint64_t gs_busy_ns(const struct gpusim_usage *usage, uint64_t now);

uint64_t gs_now_ns(void);

#endif
