/* The usage region and this process's slot in it: reserve, settle, give back, and recover what the dead held. */
#ifndef EGPU_USAGE_H
#define EGPU_USAGE_H

#include "egpu_abi.h"
#include "sys.h"

/* This process's own words about its slot. Zeroed memory means: no slot yet, as after a fork. */
struct egpu_seat {
    struct egpu_usage_header *header; /* NULL until joined */
    struct egpu_slot *slot;
    uint32_t index;
    uint32_t slots;
    struct {
        egpu_lock lock;
        uint64_t sequence; /* last operation that took place */
        uint64_t held;     /* what it left */
    } cards[EGPU_MAX_CARDS];
};

/* Take a slot of the slice's region. */
enum egpu_reason egpu_usage_join(struct egpu_seat *seat, const struct egpu_limits_copy *limits);

/* Charge `bytes` if the card's total then stays within `limit`. Waits up to EGPU_REUSE_DELAY_NS for the memory of dead
 * processes when that would suffice, else answers at once. */
enum egpu_reason egpu_usage_charge(struct egpu_seat *seat, uint32_t card, uint64_t bytes, uint64_t limit);

/* The same at once, without a look at the dead. */
int egpu_usage_try(struct egpu_seat *seat, uint32_t card, uint64_t bytes, uint64_t limit);

/* Give back; more than is held gives back what is held. */
void egpu_usage_release(struct egpu_seat *seat, uint32_t card, uint64_t bytes);

/* Bytes charged to a card by the whole slice. */
uint64_t egpu_usage_total(const struct egpu_seat *seat, uint32_t card);
/* The same less what dead processes held: what a charge that waits for it would find. */
uint64_t egpu_usage_living(struct egpu_seat *seat, uint32_t card);

struct egpu_sweep {
    uint64_t freed;    /* bytes given back */
    uint64_t pending;  /* bytes of dead processes that may not be used again yet */
    uint64_t ready_at; /* when the first of them may */
    int busy;          /* another process is at it */
};

/* Recover what dead processes held on a card. */
struct egpu_sweep egpu_usage_sweep(struct egpu_seat *seat, uint32_t card);

/* Whether slot `index` belongs to a process of that pid namespace that holds something on the card, and what. */
int egpu_usage_process(const struct egpu_seat *seat, uint32_t index, uint32_t card, uint64_t namespace,
                       unsigned int *pid, unsigned long long *bytes);

/* Add to a kind's counter, which is advice: saturates at zero. */
void egpu_usage_kind(struct egpu_seat *seat, uint32_t card, enum egpu_kind kind, int64_t delta);

/* In a child after fork: the region is not mapped here and its descriptors are not ours. */
void egpu_usage_forked(void);
/* Around fork: no descriptor of ours is open in between. */
void egpu_usage_before_fork(void);
void egpu_usage_after_fork(void);

#endif
