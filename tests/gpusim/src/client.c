#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_DIR "/dev/gpusim"
#define ATTACH_REQUEST "{\"op\": \"attach\", \"layout\": 1}\n"

_Static_assert(GPUSIM_LAYOUT == 1, "ATTACH_REQUEST names the layout");

static uint32_t lock_owner;

uint64_t gs_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

const char *gs_dir(void)
{
    const char *dir = getenv("GPUSIM_DIR");
    return dir && *dir ? dir : DEFAULT_DIR;
}

static bool node_path(char *out, size_t size, const char *name)
{
    int n = snprintf(out, size, "%s/%s", gs_dir(), name);
    return n > 0 && (size_t)n < size;
}

struct gpusim_state *gs_map(bool writable)
{
    char path[512];
    struct stat st;
    if (!node_path(path, sizeof path, "state"))
        return NULL;
    int fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    void *p = MAP_FAILED;
    if (fstat(fd, &st) == 0 && (size_t)st.st_size == sizeof(struct gpusim_state))
        p = mmap(NULL, sizeof(struct gpusim_state), writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        return NULL;
    struct gpusim_state *state = p;
    if (__atomic_load_n(&state->magic, __ATOMIC_ACQUIRE) == GPUSIM_MAGIC && state->layout == GPUSIM_LAYOUT)
        return state;
    gs_unmap(state);
    return NULL;
}

void gs_unmap(struct gpusim_state *state)
{
    munmap(state, sizeof *state);
}

static int daemon_connect(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!node_path(address.sun_path, sizeof address.sun_path, "ctl.sock"))
        return -1;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    int rc;
    do
        rc = connect(fd, (struct sockaddr *)&address, sizeof address);
    while (rc < 0 && errno == EINTR);
    if (rc == 0)
        return fd;
    close(fd);
    return -1;
}

static bool send_all(int fd, const char *text, size_t size)
{
    while (size > 0) {
        ssize_t n = send(fd, text, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        text += n;
        size -= (size_t)n;
    }
    return true;
}

static bool receive_line(int fd, char *line, size_t size)
{
    size_t have = 0;
    while (have + 1 < size) {
        ssize_t n = recv(fd, line + have, 1, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        if (line[have++] == '\n') {
            line[have] = 0;
            return true;
        }
    }
    return false;
}

int gs_attach(uint32_t *slot, uint32_t *generation)
{
    char line[128];
    int fd = daemon_connect();
    if (fd < 0)
        return -1;
    if (send_all(fd, ATTACH_REQUEST, sizeof ATTACH_REQUEST - 1) && receive_line(fd, line, sizeof line) &&
        sscanf(line, "OK %u %u", slot, generation) == 2 && *slot < GPUSIM_MAX_SLOTS) {
        lock_owner = *slot + 1;
        return fd;
    }
    close(fd);
    return -1;
}

bool gs_card_visible(const struct gpusim_state *state, uint32_t card)
{
    char name[GPUSIM_UUID_LEN + 16], path[512];
    snprintf(name, sizeof name, "cards/%s", state->cards[card].uuid);
    return node_path(path, sizeof path, name) && access(path, F_OK) == 0;
}

uint32_t gs_visible_cards(const struct gpusim_state *state, uint32_t cards[GPUSIM_MAX_CARDS])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < state->card_count && i < GPUSIM_MAX_CARDS; i++)
        if (gs_card_visible(state, i))
            cards[n++] = i;
    return n;
}

uint64_t gs_card_used(const struct gpusim_state *state, uint32_t card)
{
    uint64_t sum = 0;
    uint32_t high = __atomic_load_n(&state->slots_high, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < high && i < GPUSIM_MAX_SLOTS; i++) {
        const struct gpusim_usage *u = &state->slots[i].card[card];
        if (__atomic_load_n(&state->slots[i].live, __ATOMIC_ACQUIRE))
            sum += u->context + u->module + u->data;
    }
    return sum;
}

static void lock_wait(uint32_t *lock)
{
    uint32_t seen = __atomic_load_n(lock, __ATOMIC_RELAXED);
    if (!seen)
        return;
    uint32_t marked = seen | GPUSIM_LOCK_WAITERS;
    if (seen == marked || __atomic_compare_exchange_n(lock, &seen, marked, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        syscall(SYS_futex, lock, FUTEX_WAIT, marked, NULL, NULL, 0);
}

static void lock_take(uint32_t *lock, uint32_t owner)
{
    uint32_t free_lock = 0;
    while (!__atomic_compare_exchange_n(lock, &free_lock, owner, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        lock_wait(lock);
        owner |= GPUSIM_LOCK_WAITERS; /* others may still be waiting */
        free_lock = 0;
    }
}

void gs_lock_card(struct gpusim_state *state, uint32_t card)
{
    lock_take(&state->cards[card].lock, lock_owner);
}

void gs_unlock_card(struct gpusim_state *state, uint32_t card)
{
    uint32_t *lock = &state->cards[card].lock;
    if (__atomic_exchange_n(lock, 0, __ATOMIC_RELEASE) & GPUSIM_LOCK_WAITERS)
        syscall(SYS_futex, lock, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void gs_daemon_lock(struct gpusim_state *state, uint32_t card, uint32_t dead_slot)
{
    uint32_t *lock = &state->cards[card].lock;
    uint32_t seen = __atomic_load_n(lock, __ATOMIC_ACQUIRE);
    while ((seen & ~GPUSIM_LOCK_WAITERS) == dead_slot + 1)
        if (__atomic_compare_exchange_n(lock, &seen, GPUSIM_LOCK_DAEMON | GPUSIM_LOCK_WAITERS, false, __ATOMIC_ACQUIRE,
                                        __ATOMIC_ACQUIRE)) {
            state->cards[card].used = gs_card_used(state, card);
            return;
        }
    lock_take(lock, GPUSIM_LOCK_DAEMON);
}

void gs_daemon_wake(struct gpusim_state *state)
{
    __atomic_add_fetch(&state->events, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &state->events, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

uint64_t gs_busy_ns(const struct gpusim_usage *usage, uint64_t now)
{
    uint64_t busy = __atomic_load_n(&usage->busy_ns, __ATOMIC_RELAXED);
    uint64_t until = __atomic_load_n(&usage->busy_until_ns, __ATOMIC_RELAXED);
    uint64_t ahead = until > now ? until - now : 0;
    return busy > ahead ? busy - ahead : 0;
}
