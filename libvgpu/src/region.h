/* The usage region's file: descriptors that no fork inherits, locks on its pages, slots whose owners have died. */
#ifndef EGPU_REGION_H
#define EGPU_REGION_H

#include "egpu_abi.h"

/* A short-lived descriptor of its own open file, -1 when there is none to be had. One at a time in a process. */
int egpu_region_open(void);
void egpu_region_close(void);

/* Lock or unlock (F_WRLCK, F_UNLCK) a slot's page at once; EGPU_SWEEP_PAGE is the header's. 0: somebody else holds it. */
#define EGPU_SWEEP_PAGE UINT32_MAX
int egpu_region_lock(int file, uint32_t index, short type);

/* The slot's former owner is dead and its lock is ours. Gives 1 once everything it held is given back; else `ready_at`
 * says when that may happen. */
int egpu_slot_recover(struct egpu_usage_header *header, uint32_t slots, uint32_t index, uint64_t now,
                      uint64_t *ready_at);

#endif
