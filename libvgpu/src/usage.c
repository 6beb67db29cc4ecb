#include "usage.h"

#include "ledger.h"
#include "region.h"

#include <errno.h>
#include <fcntl.h>

#define RETRY_NS 1000000ull /* for another sweep to end */
#define WAIT_NS 20000000ull /* between looks at memory that is not reusable yet */

int egpu_usage_try(struct egpu_seat *seat, uint32_t card, uint64_t bytes, uint64_t limit) {
    int ok = 0;
    egpu_lock_take(&seat->cards[card].lock);
    uint64_t held = seat->cards[card].held, sequence = seat->cards[card].sequence + 1;
    if (bytes <= UINT64_MAX - held)
        ok = egpu_ledger_exchange(seat->header, seat->slots, seat->index, card, sequence, held, held + bytes, limit);
    if (ok) {
        seat->cards[card].sequence = sequence;
        seat->cards[card].held = held + bytes;
    }
    egpu_lock_give(&seat->cards[card].lock);
    return ok;
}

static int would_fit(const struct egpu_seat *seat, uint32_t card, uint64_t bytes, uint64_t limit, uint64_t pending) {
    uint64_t total = egpu_usage_total(seat, card);
    total = total > pending ? total - pending : 0;
    return total <= limit && bytes <= limit - total;
}

enum egpu_reason egpu_usage_charge(struct egpu_seat *seat, uint32_t card, uint64_t bytes, uint64_t limit) {
    uint64_t end = 0;
    while (!egpu_usage_try(seat, card, bytes, limit)) {
        uint64_t now = egpu_now();
        end = end ? end : now + 2 * EGPU_REUSE_DELAY_NS;
        if (bytes > limit || now >= end)
            return EGPU_REASON_OVER_LIMIT;
        struct egpu_sweep sweep = egpu_usage_sweep(seat, card);
        if (!sweep.busy && !would_fit(seat, card, bytes, limit, sweep.pending))
            return EGPU_REASON_OVER_LIMIT;
        uint64_t wait = sweep.ready_at > now ? sweep.ready_at - now : 0;
        if (sweep.busy || (sweep.freed == 0 && sweep.pending != 0))
            egpu_sleep(sweep.busy || wait < RETRY_NS ? RETRY_NS : wait < WAIT_NS ? wait : WAIT_NS);
    }
    return EGPU_REASON_NONE;
}

void egpu_usage_release(struct egpu_seat *seat, uint32_t card, uint64_t bytes) {
    egpu_lock_take(&seat->cards[card].lock);
    uint64_t held = seat->cards[card].held, sequence = seat->cards[card].sequence + 1;
    uint64_t next = held > bytes ? held - bytes : 0;
    if (next != held) {
        egpu_ledger_exchange(seat->header, seat->slots, seat->index, card, sequence, held, next, 0);
        seat->cards[card].sequence = sequence;
        seat->cards[card].held = next;
    }
    egpu_lock_give(&seat->cards[card].lock);
}

uint64_t egpu_usage_total(const struct egpu_seat *seat, uint32_t card) {
    return load_relaxed(&seat->header->cards[card].bytes);
}

uint64_t egpu_usage_living(struct egpu_seat *seat, uint32_t card) {
    uint64_t total = egpu_usage_total(seat, card);
    if (total == load_relaxed(&seat->cards[card].held))
        return total;
    struct egpu_sweep sweep = egpu_usage_sweep(seat, card);
    total = egpu_usage_total(seat, card);
    return total > sweep.pending ? total - sweep.pending : 0;
}

static void wait_for(struct egpu_sweep *sweep, uint64_t held, uint64_t at) {
    sweep->pending += held;
    if (held != 0 && (sweep->ready_at == 0 || at < sweep->ready_at))
        sweep->ready_at = at;
}

/* One slot of another process: nothing if it is alive, else what it holds on `card` is freed or waited for. */
static void visit(struct egpu_seat *seat, int file, uint32_t index, uint32_t card, struct egpu_sweep *sweep) {
    uint64_t sequence, at = 0;
    int locked = egpu_region_lock(file, index, F_WRLCK);
    if (!locked && load_relaxed(&egpu_slots(seat->header)[index].dead_since) == 0)
        return;
    uint64_t held = egpu_ledger_held(seat->header, index, card, &sequence);
    if (!locked) {
        wait_for(sweep, held, egpu_now() + RETRY_NS); /* dead, and somebody takes the slot just now */
        return;
    }
    if (egpu_slot_recover(seat->header, seat->slots, index, egpu_now(), &at))
        sweep->freed += held;
    else
        wait_for(sweep, held, at);
    egpu_region_lock(file, index, F_UNLCK);
}

struct egpu_sweep egpu_usage_sweep(struct egpu_seat *seat, uint32_t card) {
    int saved = errno;
    struct egpu_sweep sweep = {0, 0, 0, 0};
    int file = egpu_region_open();
    if (file >= 0) {
        sweep.busy = !egpu_region_lock(file, EGPU_SWEEP_PAGE, F_WRLCK);
        uint32_t top = sweep.busy ? 0 : load_acquire(&seat->header->high_water);
        for (uint32_t i = 0; i < top && i < seat->slots; i++)
            if (i != seat->index && load_acquire(&egpu_slots(seat->header)[i].state) != EGPU_SLOT_FREE)
                visit(seat, file, i, card, &sweep);
        egpu_region_close();
    }
    errno = saved;
    return sweep;
}

int egpu_usage_process(const struct egpu_seat *seat, uint32_t index, uint32_t card, uint64_t namespace,
                       unsigned int *pid, unsigned long long *bytes) {
    const struct egpu_slot *slot = &egpu_slots(seat->header)[index];
    uint64_t sequence;
    if (load_acquire(&slot->state) != EGPU_SLOT_USED || load_relaxed(&slot->pid_namespace) != namespace ||
        load_relaxed(&slot->dead_since) != 0)
        return 0;
    *pid = (unsigned int)load_relaxed(&slot->pid);
    *bytes = egpu_ledger_held(seat->header, index, card, &sequence);
    return *bytes != 0;
}

void egpu_usage_kind(struct egpu_seat *seat, uint32_t card, enum egpu_kind kind, int64_t delta) {
    uint64_t *counter = &seat->slot->kinds[card][kind];
    if (delta >= 0) {
        __atomic_fetch_add(counter, (uint64_t)delta, __ATOMIC_RELAXED);
        return;
    }
    uint64_t was = load_relaxed(counter), less = (uint64_t)-delta;
    while (!__atomic_compare_exchange_n(counter, &was, was > less ? was - less : 0, 0, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
        ;
}
