#include "region.h"

#include "ledger.h"
#include "usage.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif

#define LOCK_WAIT_NS 100000000ull
#define PROBES 4

/* Descriptors exist only while this lock is held, so that a fork inherits none: one would keep a dead slot alive. */
static egpu_lock files;
static int open_file = -1;
static __thread int held_for_fork;

int egpu_region_lock(int file, uint32_t index, short type) {
    struct flock lock;
    memset(&lock, 0, sizeof lock);
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = index == EGPU_SWEEP_PAGE ? 0 : (off_t)EGPU_PAGE * (1 + (off_t)index);
    lock.l_len = EGPU_PAGE;
    return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

int egpu_region_open(void) {
    if (!egpu_lock_try(&files, LOCK_WAIT_NS))
        return -1;
    open_file = open(EGPU_USAGE_PATH, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (open_file < 0)
        egpu_lock_give(&files);
    return open_file;
}

void egpu_region_close(void) {
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

int egpu_slot_recover(struct egpu_usage_header *header, uint32_t slots, uint32_t index, uint64_t now, uint64_t *ready_at) {
    struct egpu_slot *slot = &egpu_slots(header)[index];
    uint64_t sequence, total = 0;
    for (uint32_t card = 0; card < EGPU_MAX_CARDS; card++)
        total |= egpu_ledger_held(header, index, card, &sequence);
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
        uint64_t held = egpu_ledger_held(header, index, card, &sequence);
        if (held != 0)
            egpu_ledger_exchange(header, slots, index, card, sequence + 1, held, 0, 0);
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
    memset(slot->comm, 0, sizeof slot->comm);
    prctl(PR_GET_NAME, slot->comm);
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
    if (!egpu_region_lock(file, index, F_WRLCK))
        return 0;
    raise_high_water(header, index + 1);
    if (egpu_slot_recover(header, slots, index, egpu_now(), &ready_at)) {
        introduce(&egpu_slots(header)[index]);
        return 1;
    }
    egpu_region_lock(file, index, F_UNLCK);
    return 0;
}

/* Of many that start at once only one goes on to lock a free slot. A slot marked by somebody who dies now is a dead one. */
static int mark(struct egpu_slot *slot) {
    uint32_t free = EGPU_SLOT_FREE;
    return __atomic_compare_exchange_n(&slot->state, &free, EGPU_SLOT_USED, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* The first slot in [from, to) that is free, or used by somebody dead; `tries` bounds the probes of used ones. */
static int find_between(struct egpu_usage_header *header, int file, uint32_t from, uint32_t to, int used,
                        uint32_t tries) {
    uint32_t slots = header->slot_count;
    for (uint32_t i = from; i < to && i < slots && tries > 0; i++) {
        uint32_t state = load_acquire(&egpu_slots(header)[i].state);
        if ((state != EGPU_SLOT_FREE) != used || (!used && !mark(&egpu_slots(header)[i])))
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
        seat->cards[card].held = egpu_ledger_held(header, index, card, &seat->cards[card].sequence);
        seat->cards[card].lock = 0;
    }
    seat->slots = slots;
    seat->index = index;
    seat->slot = &egpu_slots(header)[index];
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
    int file = egpu_region_open();
    if (file >= 0) {
        reason = map_and_take(seat, file, limits);
        egpu_region_close();
    }
    errno = saved;
    return reason;
}
