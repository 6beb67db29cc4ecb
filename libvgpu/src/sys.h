/* What the library needs of the system, without libpthread and without touching the guest's signals or environment. */
#ifndef EGPU_SYS_H
#define EGPU_SYS_H

#include <stddef.h>
#include <stdint.h>

#define EGPU_LIKELY(x) __builtin_expect(!!(x), 1)
#define EGPU_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define EGPU_EXPORT __attribute__((visibility("default")))

#define load_relaxed(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define store_relaxed(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)

/* A lock within one process: 0 free, 1 held, 2 held and waited for. Zeroed memory is an open lock. */
typedef uint32_t egpu_lock;

void egpu_lock_slow(egpu_lock *lock);
void egpu_unlock_slow(egpu_lock *lock);

static inline void egpu_lock_take(egpu_lock *lock) {
    uint32_t open = 0;
    if (!__atomic_compare_exchange_n(lock, &open, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        egpu_lock_slow(lock);
}

static inline void egpu_lock_give(egpu_lock *lock) {
    if (__atomic_exchange_n(lock, 0, __ATOMIC_RELEASE) == 2)
        egpu_unlock_slow(lock);
}

/* Take the lock unless that needs more than `ns`; gives 0 when it could not. */
int egpu_lock_try(egpu_lock *lock, uint64_t ns);

uint64_t egpu_now(void); /* CLOCK_MONOTONIC in ns */
void egpu_sleep(uint64_t ns);
void *egpu_pages(size_t size);           /* zeroed private memory, NULL when there is none */
void egpu_pages_free(void *p, size_t size);

/* Exchange two words at once; `*expected` is brought up to date on failure. */
struct egpu_pair {
    uint64_t low, high;
};

static inline int egpu_cas_pair(volatile void *at, struct egpu_pair *expected, struct egpu_pair desired) {
    unsigned char ok;
    __asm__ __volatile__("lock cmpxchg16b %1"
                         : "=@ccz"(ok), "+m"(*(volatile struct egpu_pair *)at), "+a"(expected->low),
                           "+d"(expected->high)
                         : "b"(desired.low), "c"(desired.high)
                         : "memory");
    return ok;
}

#endif
