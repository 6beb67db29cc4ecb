#include "usage.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif

#define LOCK_WAIT_NS 100000000ull
#define PROBES 8
#define RETRY_NS 1000000ull
#define SEQUENCE_MASK 0xffffffffffffull

/* Descriptors exist only while this lock is held, so that a fork inherits none: one would keep a dead slot alive. */
static egpu_lock files;
static int open_file = -1;
static __thread int held_for_fork;

/* ---- one account --------------------------------------------------------------------------------------------- */

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

static struct egpu_slot *slots_of(struct egpu_usage_header *header) {
    return (struct egpu_slot *)((char *)header + EGPU_PAGE);
}

/* What a slot holds on a card, and the last operation that took place. Only for the slot's owner or locker. */
static uint64_t settled(struct egpu_usage_header *header, uint32_t index, uint32_t card, uint64_t *sequence) {
    struct egpu_account *account = &slots_of(header)[index].accounts[card];
    uint64_t latest = load_acquire(&account->sequence) & SEQUENCE_MASK;
    const struct egpu_charge *charge = &account->charges[latest & 1];
    if (done(&header->cards[card], index, account, latest)) {
        *sequence = latest;
        return load_relaxed(&charge->after);
    }
    *sequence = latest - 1;
    return load_relaxed(&charge->before);
}

/* Change what a slot holds from `held` to `next`, and the card's total with it, unless that passes `limit`. Whoever is
 * killed in here leaves either all of it or nothing: see struct egpu_account. */
static int exchange(struct egpu_usage_header *header, uint32_t slots, uint32_t index, uint32_t card, uint64_t sequence,
                    uint64_t held, uint64_t next, uint64_t limit) {
    struct egpu_ledger *ledger = &header->cards[card];
    struct egpu_account *account = &slots_of(header)[index].accounts[card];
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
            acknowledge(slots_of(header), slots, card, was.high);
        if (egpu_cas_pair(ledger, &was, now))
            break;
    }
    store_release(&account->applied, sequence);
    return 1;
}

/* ---- the region's file --------------------------------------------------------------------------------------- */

static int lock_at(int file, off_t start, short type) {
    struct flock lock;
    memset(&lock, 0, sizeof lock);
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = start;
    lock.l_len = EGPU_PAGE;
    return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

static int lock_page(int file, uint32_t index, short type) {
    return lock_at(file, (off_t)EGPU_PAGE * (1 + (off_t)index), type);
}

static int open_region(void) {
    if (!egpu_lock_try(&files, LOCK_WAIT_NS))
        return -1;
    open_file = open(EGPU_USAGE_PATH, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (open_file < 0)
        egpu_lock_give(&files);
    return open_file;
}

static void close_region(void) {
    close(open_file);
    open_file = -1;
    egpu_lock_give(&files);
}

void egpu_usage_before_fork(void) {
    held_for_fork = egpu_lock_try(&files, LOCK_WAIT_NS);
}

void egpu_usage_after_fork(void) {
    if (held_for_fork)
        egpu_lock_give(&files);
}

void egpu_usage_forked(void) {
    if (open_file >= 0) {
        int saved = errno;
        close(open_file);
        errno = saved;
    }
    open_file = -1;
    store_release(&files, 0);
}

static enum egpu_reason check(const struct egpu_usage_header *header, uint64_t file_size,
                              const struct egpu_limits_copy *limits) {
    if (header->magic != EGPU_USAGE_MAGIC || header->version != EGPU_ABI_VERSION || header->size != sizeof *header ||
        header->slot_size != sizeof(struct egpu_slot) || header->slot_count == 0 ||
        header->slot_count > EGPU_MAX_SLOTS || file_size < (uint64_t)EGPU_PAGE * (1 + (uint64_t)header->slot_count))
        return EGPU_REASON_USAGE_BROKEN;
    if (strncmp(header->slice_uid, limits->slice_uid, EGPU_UID_LEN) != 0)
        return EGPU_REASON_USAGE_OTHER_SLICE;
    return EGPU_REASON_NONE;
}

/* ---- taking a slot ------------------------------------------------------------------------------------------- */

/* The slot's former owner is dead and its lock is ours. Gives 1 once everything it held is given back; else `ready_at`
 * says when that may happen. */
static int recover(struct egpu_usage_header *header, uint32_t slots, uint32_t index, uint64_t now, uint64_t *ready_at) {
    struct egpu_slot *slot = &slots_of(header)[index];
    uint64_t sequence, total = 0;
    for (uint32_t card = 0; card < EGPU_MAX_CARDS; card++)
        total |= settled(header, index, card, &sequence);
    uint64_t since = load_relaxed(&slot->dead_since);
    if (total != 0 && (since == 0 || since > now)) {
        store_relaxed(&slot->dead_since, now);
        since = now;
    }
    if (total != 0 && now - since < EGPU_REUSE_DELAY_NS) {
        *ready_at = since + EGPU_REUSE_DELAY_NS;
        return 0;
    }
    for (uint32_t card = 0; card < EGPU_MAX_CARDS; card++) {
        uint64_t held = settled(header, index, card, &sequence);
        if (held != 0)
            exchange(header, slots, index, card, sequence + 1, held, 0, 0);
    }
    memset(slot->kinds, 0, sizeof slot->kinds);
    store_relaxed(&slot->dead_since, 0);
    store_release(&slot->state, EGPU_SLOT_FREE);
    return 1;
}

static uint64_t start_time(void) {
    char text[512];
    uint64_t value = 0;
    int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    if (size <= 0)
        return 0;
    text[size] = 0;
    const char *at = strrchr(text, ')'); /* ends field 2, the only one that may hold blanks */
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    for (at = at ? at + 1 : ""; *at >= '0' && *at <= '9'; at++)
        value = value * 10 + (uint64_t)(*at - '0');
    return value;
}

static void introduce(struct egpu_slot *slot) {
    struct stat info;
    int file = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
    memset(slot->comm, 0, sizeof slot->comm);
    if (file >= 0) {
        ssize_t size = read(file, slot->comm, sizeof slot->comm - 1);
        if (size > 0 && slot->comm[size - 1] == '\n')
            slot->comm[size - 1] = 0;
        close(file);
    }
    slot->pid = getpid();
    slot->pid_namespace = stat("/proc/self/ns/pid", &info) == 0 ? (uint64_t)info.st_ino : 0;
    slot->start_time = start_time();
    slot->reason = EGPU_REASON_NONE;
    slot->launches = 0;
    memset(slot->kinds, 0, sizeof slot->kinds);
    store_release(&slot->state, EGPU_SLOT_USED);
}

static void raise_high_water(struct egpu_usage_header *header, uint32_t to) {
    uint32_t was = load_relaxed(&header->high_water);
    while (was < to &&
           !__atomic_compare_exchange_n(&header->high_water, &was, to, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        ;
}

static int try_slot(struct egpu_usage_header *header, uint32_t slots, int file, uint32_t index) {
    uint64_t ready_at;
    if (!lock_page(file, index, F_WRLCK))
        return 0;
    raise_high_water(header, index + 1);
    if (recover(header, slots, index, egpu_now(), &ready_at)) {
        introduce(&slots_of(header)[index]);
        return 1;
    }
    lock_page(file, index, F_UNLCK);
    return 0;
}

/* The first slot in [from, to) that is free, or used by somebody dead; `tries` bounds the probes of used ones. */
static int find_between(struct egpu_usage_header *header, int file, uint32_t from, uint32_t to, int used,
                        uint32_t tries) {
    uint32_t slots = header->slot_count;
    for (uint32_t i = from; i < to && i < slots && tries > 0; i++) {
        if ((load_acquire(&slots_of(header)[i].state) != EGPU_SLOT_FREE) != used)
            continue;
        tries -= (uint32_t)used;
        if (try_slot(header, slots, file, i))
            return (int)i;
    }
    return -1;
}

/* Low slots first, so that the part of the region in use stays small; but a start among many live processes probes
 * only a few of them, before it takes a slot that was never used. */
static int find_slot(struct egpu_usage_header *header, uint32_t slots, int file) {
    uint32_t top = load_acquire(&header->high_water);
    uint32_t some = top ? (uint32_t)getpid() * 2654435761u % top : 0;
    int index = find_between(header, file, 0, top, 0, 1);
    if (index < 0)
        index = find_between(header, file, some, top, 1, PROBES);
    if (index < 0)
        index = find_between(header, file, top, slots, 0, 1);
    if (index < 0)
        index = find_between(header, file, 0, slots, 1, slots);
    return index;
}

static enum egpu_reason take(struct egpu_seat *seat, struct egpu_usage_header *header, size_t size, int file,
                             const struct egpu_limits_copy *limits) {
    enum egpu_reason reason = check(header, size, limits);
    if (reason != EGPU_REASON_NONE)
        return reason;
    uint32_t slots = header->slot_count;
    int found = find_slot(header, slots, file);
    if (found < 0)
        return EGPU_REASON_NO_SLOT;
    uint32_t index = (uint32_t)found;
    for (uint32_t card = 0; card < EGPU_MAX_CARDS; card++) {
        seat->cards[card].held = settled(header, index, card, &seat->cards[card].sequence);
        seat->cards[card].lock = 0;
    }
    seat->slots = slots;
    seat->index = index;
    seat->slot = &slots_of(header)[index];
    store_release(&seat->header, header);
    return EGPU_REASON_NONE;
}

/* The mapping holds the file open, and with it the lock, until this process ends or execs; a child has no mapping. */
static enum egpu_reason map_and_take(struct egpu_seat *seat, int file, const struct egpu_limits_copy *limits) {
    struct stat info;
    if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size < 2 * (off_t)EGPU_PAGE)
        return EGPU_REASON_USAGE_BROKEN;
    size_t size = (size_t)info.st_size;
    void *region = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (region == MAP_FAILED)
        return EGPU_REASON_NO_MEMORY;
    enum egpu_reason reason = EGPU_REASON_NO_MEMORY;
    if (madvise(region, size, MADV_DONTFORK) == 0)
        reason = take(seat, region, size, file, limits);
    if (reason != EGPU_REASON_NONE)
        munmap(region, size);
    return reason;
}

enum egpu_reason egpu_usage_join(struct egpu_seat *seat, const struct egpu_limits_copy *limits) {
    int saved = errno;
    enum egpu_reason reason = EGPU_REASON_USAGE_MISSING;
    int file = open_region();
    if (file >= 0) {
        reason = map_and_take(seat, file, limits);
        close_region();
    }
    errno = saved;
    return reason;
}

/* ---- charging ------------------------------------------------------------------------------------------------ */

int egpu_usage_try(struct egpu_seat *seat, uint32_t card, uint64_t bytes, uint64_t limit) {
    int ok = 0;
    egpu_lock_take(&seat->cards[card].lock);
    uint64_t held = seat->cards[card].held, sequence = seat->cards[card].sequence + 1;
    if (bytes <= UINT64_MAX - held)
        ok = exchange(seat->header, seat->slots, seat->index, card, sequence, held, held + bytes, limit);
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
        uint64_t freed = 0, ready_at = 0, now = egpu_now();
        end = end ? end : now + 2 * EGPU_REUSE_DELAY_NS;
        uint64_t pending = egpu_usage_sweep(seat, card, &freed, &ready_at);
        if (now >= end || (freed == 0 && pending == 0) || !would_fit(seat, card, bytes, limit, pending))
            return EGPU_REASON_OVER_LIMIT;
        if (freed == 0 && ready_at > now)
            egpu_sleep(ready_at - now < 20000000 ? ready_at - now : 20000000);
    }
    return EGPU_REASON_NONE;
}

void egpu_usage_release(struct egpu_seat *seat, uint32_t card, uint64_t bytes) {
    egpu_lock_take(&seat->cards[card].lock);
    uint64_t held = seat->cards[card].held, sequence = seat->cards[card].sequence + 1;
    uint64_t next = held > bytes ? held - bytes : 0;
    if (next != held) {
        exchange(seat->header, seat->slots, seat->index, card, sequence, held, next, 0);
        seat->cards[card].sequence = sequence;
        seat->cards[card].held = next;
    }
    egpu_lock_give(&seat->cards[card].lock);
}

uint64_t egpu_usage_total(const struct egpu_seat *seat, uint32_t card) {
    return load_relaxed(&seat->header->cards[card].bytes);
}

/* One slot of another process: nothing if it is alive. Gives what it holds on `card` and cannot give back yet. */
static uint64_t visit(struct egpu_seat *seat, int file, uint32_t index, uint32_t card, uint64_t *freed,
                      uint64_t *ready_at) {
    uint64_t sequence, at = 0, pending = 0;
    int locked = lock_page(file, index, F_WRLCK);
    if (!locked && load_relaxed(&slots_of(seat->header)[index].dead_since) == 0)
        return 0;
    uint64_t held = settled(seat->header, index, card, &sequence);
    if (!locked) { /* dead, and somebody else is looking at it just now */
        *ready_at = egpu_now() + RETRY_NS;
        return held;
    }
    if (recover(seat->header, seat->slots, index, egpu_now(), &at)) {
        *freed += held;
    } else {
        pending = held;
        if (held != 0 && (*ready_at == 0 || at < *ready_at))
            *ready_at = at;
    }
    lock_page(file, index, F_UNLCK);
    return pending;
}

uint64_t egpu_usage_sweep(struct egpu_seat *seat, uint32_t card, uint64_t *freed, uint64_t *ready_at) {
    int saved = errno;
    uint64_t pending = 0;
    int file = open_region();
    if (file >= 0 && !lock_at(file, 0, F_WRLCK)) { /* one sweep at a time: it may be freeing what we are short of */
        *ready_at = egpu_now() + RETRY_NS;
        pending = egpu_usage_total(seat, card);
        close_region();
    } else if (file >= 0) {
        uint32_t top = load_acquire(&seat->header->high_water);
        for (uint32_t i = 0; i < top && i < seat->slots; i++)
            if (i != seat->index && load_acquire(&slots_of(seat->header)[i].state) != EGPU_SLOT_FREE)
                pending += visit(seat, file, i, card, freed, ready_at);
        close_region();
    }
    errno = saved;
    return pending;
}

int egpu_usage_process(const struct egpu_seat *seat, uint32_t index, uint32_t card, uint64_t namespace,
                       unsigned int *pid, unsigned long long *bytes) {
    const struct egpu_slot *slot = &slots_of(seat->header)[index];
    uint64_t sequence;
    if (load_acquire(&slot->state) != EGPU_SLOT_USED || load_relaxed(&slot->pid_namespace) != namespace ||
        load_relaxed(&slot->dead_since) != 0)
        return 0;
    *pid = (unsigned int)load_relaxed(&slot->pid);
    *bytes = settled(seat->header, index, card, &sequence);
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
