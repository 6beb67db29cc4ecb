/* libgpusim-node.so: what the daemon cannot do in Python, atomically. */
#include "client.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT void gpusim_lock(struct gpusim_state *state, uint32_t card, uint32_t dead_slot);
EXPORT void gpusim_unlock(struct gpusim_state *state, uint32_t card);
EXPORT void gpusim_wake(struct gpusim_state *state);

void gpusim_lock(struct gpusim_state *state, uint32_t card, uint32_t dead_slot)
{
    gs_daemon_lock(state, card, dead_slot);
}

void gpusim_unlock(struct gpusim_state *state, uint32_t card)
{
    gs_unlock_card(state, card);
}

void gpusim_wake(struct gpusim_state *state)
{
    gs_daemon_wake(state);
}
