#include "sys.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void futex(egpu_lock *lock, int op, uint32_t value, const struct timespec *timeout) {
    int saved = errno;
    syscall(SYS_futex, lock, op | FUTEX_PRIVATE_FLAG, value, timeout, NULL, 0);
    errno = saved;
}

void egpu_lock_slow(egpu_lock *lock) {
    while (__atomic_exchange_n(lock, 2, __ATOMIC_ACQUIRE) != 0)
        futex(lock, FUTEX_WAIT, 2, NULL);
}

void egpu_unlock_slow(egpu_lock *lock) {
    futex(lock, FUTEX_WAKE, 1, NULL);
}

int egpu_lock_try(egpu_lock *lock, uint64_t ns) {
    uint64_t end = egpu_now() + ns;
    for (;;) {
        uint32_t open = 0;
        if (__atomic_compare_exchange_n(lock, &open, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return 1;
        if (egpu_now() >= end)
            return 0;
        egpu_sleep(100000);
    }
}

uint64_t egpu_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void egpu_sleep(uint64_t ns) {
    int saved = errno;
    struct timespec wait = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&wait, NULL);
    errno = saved;
}

void *egpu_pages(size_t size) {
    int saved = errno;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = saved;
    return p == MAP_FAILED ? NULL : p;
}

void egpu_pages_free(void *p, size_t size) {
    int saved = errno;
    munmap(p, size);
    errno = saved;
}
