#include "limits.h"

#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE_SIZE ((size_t)EGPU_PAGE * EGPU_COPIES)
#define LOCK_WAIT_NS 100000000ull

/* Enough stamps to see that either copy was written. A writer that is midway leaves a stamp that is not valid. */
struct stamp {
    uint64_t generation[EGPU_COPIES];
    uint64_t checksum[EGPU_COPIES];
};

static const struct egpu_limits_copy *mapped; /* never unmapped: readers hold no reference */
static struct stamp seen;
static uint32_t torn; /* reads since a page that was not valid, so that a broken one is not summed at every call */
static struct egpu_limits books[2]; /* current and next; a reader of an old one sees a page that was in force */
static struct egpu_limits *current;
static egpu_lock lock;

const char *egpu_limits_defect(const struct egpu_limits_copy *copy) {
    if (copy->magic != EGPU_LIMITS_MAGIC)
        return "magic";
    if (copy->version != EGPU_ABI_VERSION)
        return "version";
    if (copy->size != sizeof *copy)
        return "size";
    if (copy->checksum != egpu_checksum(copy, offsetof(struct egpu_limits_copy, checksum)))
        return "checksum";
    if (copy->generation == 0 || copy->card_count > EGPU_MAX_CARDS)
        return "range";
    return NULL;
}

static int same(const struct egpu_limits_copy *page, const struct stamp *stamp) {
    for (int i = 0; i < EGPU_COPIES; i++)
        if (load_relaxed(&page[i].generation) != load_relaxed(&stamp->generation[i]) ||
            load_relaxed(&page[i].checksum) != load_relaxed(&stamp->checksum[i]))
            return 0;
    return 1;
}

static enum egpu_reason map_page(void) {
    struct stat info;
    int saved = errno;
    int file = open(EGPU_LIMITS_PATH, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    enum egpu_reason reason = EGPU_REASON_LIMITS_MISSING;
    if (file >= 0) {
        reason = EGPU_REASON_LIMITS_BROKEN;
        if (fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size >= (off_t)PAGE_SIZE) {
            void *page = mmap(NULL, PAGE_SIZE, PROT_READ, MAP_SHARED, file, 0);
            if (page != MAP_FAILED) {
                store_release(&mapped, (const struct egpu_limits_copy *)page);
                reason = EGPU_REASON_NONE;
            }
        }
        close(file);
    }
    errno = saved;
    return reason;
}

/* Copy the newest valid copy out of the page; under the lock. */
static void read_page(void) {
    struct egpu_limits *next = current == &books[0] ? &books[1] : &books[0];
    uint64_t best = current ? current->generation : 0;
    int found = 0;
    struct stamp before;
    struct egpu_limits_copy copy;
    for (int i = 0; i < EGPU_COPIES; i++) {
        before.generation[i] = load_relaxed(&mapped[i].generation);
        before.checksum[i] = load_relaxed(&mapped[i].checksum);
    }
    int valid = 0;
    for (int i = 0; i < EGPU_COPIES; i++) {
        memcpy(&copy, &mapped[i], sizeof copy);
        if (egpu_limits_defect(&copy) != NULL)
            continue;
        valid |= copy.generation >= before.generation[1 - i];
        if (copy.generation > best) {
            best = next->generation = copy.generation;
            next->page = copy;
            found = 1;
        }
    }
    if (found)
        store_release(&current, next);
    for (int i = 0; valid && i < EGPU_COPIES; i++) {
        store_relaxed(&seen.generation[i], before.generation[i]);
        store_relaxed(&seen.checksum[i], before.checksum[i]);
    }
    store_relaxed(&torn, valid ? 0 : 1);
}

void egpu_limits_forked(void) {
    store_relaxed(&lock, 0);
}

const struct egpu_limits_copy *egpu_limits_now(enum egpu_reason *reason) {
    const struct egpu_limits_copy *page = load_acquire(&mapped);
    const struct egpu_limits *limits = load_acquire(&current);
    *reason = EGPU_REASON_NONE;
    if (EGPU_LIKELY(page != NULL && limits != NULL && same(page, &seen)))
        return &limits->page;
    if (limits != NULL && load_relaxed(&torn) > 0 && (__atomic_add_fetch(&torn, 1, __ATOMIC_RELAXED) & 63) != 0)
        return &limits->page;
    if (egpu_lock_try(&lock, LOCK_WAIT_NS)) {
        if (mapped == NULL)
            *reason = map_page();
        if (mapped != NULL)
            read_page();
        egpu_lock_give(&lock);
    }
    limits = load_acquire(&current);
    if (limits != NULL)
        return &limits->page;
    if (*reason == EGPU_REASON_NONE)
        *reason = EGPU_REASON_LIMITS_BROKEN;
    return NULL;
}
