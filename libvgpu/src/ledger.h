/* One slot's account on one card and the slice's ledger of that card: two words that change together or not at all,
 * whoever is killed where. See struct egpu_account. */
#ifndef EGPU_LEDGER_H
#define EGPU_LEDGER_H

#include "egpu_abi.h"

static inline struct egpu_slot *egpu_slots(struct egpu_usage_header *header) {
    return (struct egpu_slot *)((char *)header + EGPU_PAGE);
}

/* What a slot holds on a card, and the last operation that took place. Exact for the slot's owner or locker alone. */
uint64_t egpu_ledger_held(struct egpu_usage_header *header, uint32_t index, uint32_t card, uint64_t *sequence);

/* Operation `sequence` of a slot: change what it holds from `held` to `next`, and the card's total with it, unless that
 * grows past `limit`; gives 0 then. Whoever is killed in here leaves all of it or nothing. */
int egpu_ledger_exchange(struct egpu_usage_header *header, uint32_t slots, uint32_t index, uint32_t card,
                         uint64_t sequence, uint64_t held, uint64_t next, uint64_t limit);

#endif
