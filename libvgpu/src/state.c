#include "state.h"

#include <errno.h>
#include <sys/mman.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

#define JOIN_WAIT_NS 5000000000ull

/* In libc since 2.3.2; pthread_atfork itself lies in libpthread before 2.34. */
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *dso);
extern void *__dso_handle;

static struct egpu_state *shared;
static uint32_t last_reason;

static const char *const texts[] = {
    [EGPU_REASON_NONE] = "",
    [EGPU_REASON_LIMITS_MISSING] = "the limits page " EGPU_LIMITS_PATH " is missing",
    [EGPU_REASON_LIMITS_BROKEN] = "the limits page " EGPU_LIMITS_PATH " is broken",
    [EGPU_REASON_USAGE_MISSING] = "the usage region " EGPU_USAGE_PATH " is missing or not writable",
    [EGPU_REASON_USAGE_BROKEN] = "the usage region " EGPU_USAGE_PATH " is broken",
    [EGPU_REASON_USAGE_OTHER_SLICE] = "the usage region " EGPU_USAGE_PATH " belongs to another slice",
    [EGPU_REASON_NO_SLOT] = "the usage region has no free slot for another process",
    [EGPU_REASON_CARD_NOT_IN_SLICE] = "the card is not part of the slice",
    [EGPU_REASON_OVER_LIMIT] = "the slice's memory limit is reached",
    [EGPU_REASON_NO_MEMORY] = "the process has no memory left for the books",
    [EGPU_REASON_NOT_COVERED] = "the call would take device memory that cannot be counted",
};

EGPU_EXPORT const char *egpu_vgpu_reason(void) {
    uint32_t reason = load_relaxed(&last_reason);
    return reason < sizeof texts / sizeof *texts ? texts[reason] : "";
}

void egpu_refuse(enum egpu_reason reason) {
    struct egpu_state *state = load_acquire(&shared);
    store_relaxed(&last_reason, (uint32_t)reason);
    if (state != NULL && load_acquire(&state->seat.header) != NULL)
        store_relaxed(&state->seat.slot->reason, (uint32_t)reason);
}

static void child(void) {
    struct egpu_state *state = load_acquire(&shared);
    egpu_usage_forked();
    egpu_limits_forked();
    if (state != NULL)
        *state = (struct egpu_state){0}; /* for kernels before 4.14, which cannot wipe */
}

struct egpu_state *egpu_state(void) {
    struct egpu_state *state = load_acquire(&shared), *none = NULL;
    if (EGPU_LIKELY(state != NULL))
        return state;
    int saved = errno;
    struct egpu_state *fresh = egpu_pages(sizeof *fresh);
    if (fresh != NULL) {
        madvise(fresh, sizeof *fresh, MADV_WIPEONFORK);
        if (__atomic_compare_exchange_n(&shared, &none, fresh, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            __register_atfork(egpu_usage_before_fork, egpu_usage_after_fork, child, &__dso_handle);
        else
            egpu_pages_free(fresh, sizeof *fresh);
    }
    errno = saved;
    return load_acquire(&shared);
}

static enum egpu_reason join(struct egpu_state *state, const struct egpu_limits_copy *limits) {
    enum egpu_reason reason = EGPU_REASON_NONE;
    if (!egpu_lock_try(&state->joining, JOIN_WAIT_NS))
        return EGPU_REASON_USAGE_MISSING;
    if (state->seat.header == NULL)
        reason = egpu_usage_join(&state->seat, limits);
    egpu_lock_give(&state->joining);
    return reason;
}

struct egpu_state *egpu_ready(const struct egpu_limits_copy **limits) {
    enum egpu_reason reason;
    struct egpu_state *state = egpu_state();
    *limits = egpu_limits_now(&reason);
    if (state == NULL)
        reason = EGPU_REASON_NO_MEMORY;
    else if (*limits != NULL && EGPU_UNLIKELY(load_acquire(&state->seat.header) == NULL))
        reason = join(state, *limits);
    if (EGPU_LIKELY(reason == EGPU_REASON_NONE && state != NULL && *limits != NULL))
        return state;
    egpu_refuse(reason);
    return NULL;
}
