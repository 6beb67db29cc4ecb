#include "ledger.h"

#include "sys.h"

#define SEQUENCE_MASK 0xffffffffffffull

static int done(const struct egpu_ledger *ledger, uint32_t index, const struct egpu_account *account, uint64_t sequence) {
    if (load_acquire(&account->applied) >= sequence)
        return 1;
    if (load_acquire(&ledger->op) == EGPU_OP(index, sequence))
        return 1;
    /* Overtaken between the two looks: whoever overwrites the ledger's op marks it first. */
    return load_acquire(&account->applied) >= sequence;
}

/* Put down in its owner's account that the operation in the ledger took place, before it is overwritten. */
static void acknowledge(struct egpu_slot *slots, uint32_t count, uint32_t card, uint64_t op) {
    uint32_t owner = EGPU_OP_SLOT(op);
    if (owner >= count)
        return;
    uint64_t sequence = EGPU_OP_SEQUENCE(op);
    uint64_t *applied = &slots[owner].accounts[card].applied;
    uint64_t was = load_relaxed(applied);
    while (was < sequence &&
           !__atomic_compare_exchange_n(applied, &was, sequence, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        ;
}

uint64_t egpu_ledger_held(struct egpu_usage_header *header, uint32_t index, uint32_t card, uint64_t *sequence) {
    struct egpu_account *account = &egpu_slots(header)[index].accounts[card];
    uint64_t latest = load_acquire(&account->sequence) & SEQUENCE_MASK;
    const struct egpu_charge *charge = &account->charges[latest & 1];
    if (done(&header->cards[card], index, account, latest)) {
        *sequence = latest;
        return load_relaxed(&charge->after);
    }
    *sequence = latest - 1;
    return load_relaxed(&charge->before);
}

int egpu_ledger_exchange(struct egpu_usage_header *header, uint32_t slots, uint32_t index, uint32_t card, uint64_t sequence,
                    uint64_t held, uint64_t next, uint64_t limit) {
    struct egpu_ledger *ledger = &header->cards[card];
    struct egpu_account *account = &egpu_slots(header)[index].accounts[card];
    struct egpu_charge *charge = &account->charges[sequence & 1];
    uint64_t op = EGPU_OP(index, sequence);
    store_relaxed(&charge->before, held);
    store_relaxed(&charge->after, next);
    store_release(&account->sequence, sequence);
    struct egpu_pair was = {load_relaxed(&ledger->bytes), load_acquire(&ledger->op)};
    for (;;) {
        struct egpu_pair now = {0, op};
        if (next >= held) {
            uint64_t grow = next - held;
            int over = was.low > limit || grow > limit - was.low;
            if (over) {
                struct egpu_pair again = {load_relaxed(&ledger->bytes), load_acquire(&ledger->op)};
                if (again.low == was.low && again.high == was.high)
                    return 0;
                was = again; /* the two words were not read together */
                continue;
            }
            now.low = was.low + grow;
        } else {
            now.low = was.low > held - next ? was.low - (held - next) : 0;
        }
        if (EGPU_OP_SLOT(was.high) != index)
            acknowledge(egpu_slots(header), slots, card, was.high);
        if (egpu_cas_pair(ledger, &was, now))
            break;
    }
    store_release(&account->applied, sequence);
    return 1;
}
