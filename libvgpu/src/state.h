/* Everything this process knows that must not outlive a fork. */
#ifndef EGPU_STATE_H
#define EGPU_STATE_H

#include "cuda_types.h"
#include "limits.h"
#include "map.h"
#include "usage.h"

#define EGPU_DEVICES 64
#define EGPU_CONTEXTS 64

/* The kernel zeroes it in a child (MADV_WIPEONFORK), so a child starts anew even where no fork handler ran. */
struct egpu_state {
    struct egpu_seat seat;
    egpu_lock joining;
    uint8_t card_of_device[EGPU_DEVICES]; /* index on the limits page plus one; 0: not asked yet */
    uint64_t contexts[EGPU_CONTEXTS]; /* a cache: address << 8 | card plus one */
    struct {
        uint32_t spare;  /* granules charged for small allocations to come: 0 or 1 */
        uint32_t blocks; /* granules in use by small allocations */
        uint64_t latest; /* number of the block that last had room */
    } small[EGPU_MAX_CARDS];
    uint64_t primaries[EGPU_DEVICES]; /* each device's primary context, once retained */
    uint16_t epoch;                   /* raised before a context may end */
    uint32_t pools;                   /* how many are in the map */
    uint64_t physical;                /* last number given to a piece of physical memory */
    egpu_lock pools_lock;
    struct egpu_map map;
};

/* This process's state; NULL only when there is no memory for it. Safe before any constructor ran. */
struct egpu_state *egpu_state(void);

/* The state with a slot taken, and the limits in force; else NULL and the reason, which is also left for people. */
struct egpu_state *egpu_ready(const struct egpu_limits_copy **limits);

/* Leave a reason where people find it: egpu_vgpu_reason() and the slot. */
void egpu_refuse(enum egpu_reason reason);

/* One line that says why the library last refused something; empty if it never did. */
const char *egpu_vgpu_reason(void);

#endif
