/* Addresses of one card. Real memory of this process, reserved without being committed, so that a device pointer can
 * be copied to and from and an untouched allocation of 100 GiB costs nothing.
 *
 * Runs of 2 MiB blocks with boundary tags and power-of-two bins; a block of small allocations is a buddy system of 512-byte units.
 * All bookkeeping is outside of the memory, which belongs to the guest.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda_internal.h"

#define UNITS (BLOCK_BYTES / MIN_UNIT)
#define ORDERS 13 /* 512 B ... 2 MiB */
#define BINS 24
#define NONE UINT32_MAX
#define NO_UNIT UINT16_MAX
#define ROOM_FACTOR 2

enum { RUN_INTERIOR, RUN_FREE, RUN_LARGE, RUN_SMALL };
enum { UNIT_INTERIOR, UNIT_FREE, UNIT_USED };

struct unit {
    uint8_t state;
    uint8_t order;
    uint8_t kind;
    uint16_t next, prev;
    uint32_t size;
    uint64_t charged;
    CUcontext ctx;
};

struct small {
    uint32_t live;
    uint32_t bin; /* largest free order, ORDERS when full */
    uint32_t next, prev; /* blocks of the same bin */
    uint16_t free[ORDERS];
    struct unit units[UNITS];
};

struct run {
    uint8_t state;
    uint8_t kind;
    uint32_t head; /* first block of the run; kept for all blocks of a used run and the last of a free one */
    uint32_t length;
    uint32_t next, prev;
    uint64_t size;
    uint64_t charged;
    CUcontext ctx;
    struct small *small;
};

struct arena {
    uint8_t *base;
    uint32_t blocks;
    uint32_t used;
    struct run *runs;
    uint32_t bins[BINS];
    uint32_t small_bins[ORDERS];
};

static uint32_t log2_floor(uint32_t n)
{
    return 31u - (uint32_t)__builtin_clz(n);
}

static void run_unlink(struct arena *a, uint32_t i)
{
    struct run *r = &a->runs[i];
    if (r->prev == NONE)
        a->bins[log2_floor(r->length)] = r->next;
    else
        a->runs[r->prev].next = r->next;
    if (r->next != NONE)
        a->runs[r->next].prev = r->prev;
}

static void run_free_link(struct arena *a, uint32_t i, uint32_t length)
{
    struct run *r = &a->runs[i];
    uint32_t *bin = &a->bins[log2_floor(length)];
    *r = (struct run){.state = RUN_FREE, .head = i, .length = length, .prev = NONE, .next = *bin};
    if (*bin != NONE)
        a->runs[*bin].prev = i;
    *bin = i;
    a->runs[i + length - 1].head = i;
}

struct arena *arena_new(uint64_t capacity)
{
    struct arena *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    uint64_t bytes = gs_round(capacity, BLOCK_BYTES) * ROOM_FACTOR + BLOCK_BYTES;
    void *p = mmap(NULL, bytes + BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    a->blocks = (uint32_t)(bytes / BLOCK_BYTES);
    a->runs = calloc(a->blocks, sizeof *a->runs);
    if (p == MAP_FAILED || !a->runs) {
        if (p != MAP_FAILED)
            munmap(p, bytes + BLOCK_BYTES);
        free(a->runs);
        free(a);
        return NULL;
    }
    madvise(p, bytes + BLOCK_BYTES, MADV_DONTFORK);
    madvise(p, bytes + BLOCK_BYTES, MADV_DONTDUMP);
    madvise(p, bytes + BLOCK_BYTES, MADV_NOHUGEPAGE);
    a->base = (uint8_t *)gs_round((uint64_t)(uintptr_t)p, BLOCK_BYTES);
    memset(a->bins, 0xff, sizeof a->bins);
    memset(a->small_bins, 0xff, sizeof a->small_bins);
    run_free_link(a, 0, a->blocks);
    return a;
}

/* Gives the addresses back; nothing of the arena may be in use. */
void arena_drop(struct arena *a)
{
    munmap(a->base, a->blocks * BLOCK_BYTES); /* the unaligned rest stays reserved */
    free(a->runs);
    free(a);
}

void arena_bounds(const struct arena *a, CUdeviceptr *low, CUdeviceptr *high)
{
    *low = (uintptr_t)a->base;
    *high = *low + a->blocks * BLOCK_BYTES;
}

/* Bytes of blocks in use. */
uint64_t arena_used(const struct arena *a)
{
    return a->used * BLOCK_BYTES;
}

bool arena_holds(const struct arena *a, CUdeviceptr ptr)
{
    return a && ptr >= (uintptr_t)a->base && ptr < (uintptr_t)a->base + a->blocks * BLOCK_BYTES;
}

static uint32_t run_take(struct arena *a, uint32_t length)
{
    uint32_t found = NONE;
    uint32_t bin = log2_floor(length);
    for (uint32_t i = a->bins[bin], tries = 0; i != NONE && tries < 64; i = a->runs[i].next, tries++)
        if (a->runs[i].length >= length) {
            found = i;
            break;
        }
    for (bin++; found == NONE && bin < BINS; bin++)
        found = a->bins[bin];
    if (found == NONE)
        return NONE;
    uint32_t rest = a->runs[found].length - length;
    a->used += length;
    run_unlink(a, found);
    if (rest)
        run_free_link(a, found + length, rest);
    a->runs[found] = (struct run){.state = RUN_LARGE, .head = found, .length = length};
    for (uint32_t i = 1; i < length; i++) {
        a->runs[found + i].state = RUN_INTERIOR;
        a->runs[found + i].head = found;
    }
    return found;
}

static void run_give(struct arena *a, uint32_t i)
{
    uint32_t length = a->runs[i].length;
    a->used -= length;
    madvise(a->base + i * BLOCK_BYTES, length * BLOCK_BYTES, MADV_DONTNEED);
    for (uint32_t k = 0; k < length; k++)
        a->runs[i + k].state = RUN_INTERIOR;
    uint32_t after = i + length;
    if (after < a->blocks && a->runs[after].state == RUN_FREE) {
        run_unlink(a, after);
        length += a->runs[after].length;
        a->runs[after].state = RUN_INTERIOR;
    }
    if (i > 0) {
        uint32_t before = a->runs[i - 1].head;
        if (a->runs[before].state == RUN_FREE && before + a->runs[before].length == i) {
            run_unlink(a, before);
            length += a->runs[before].length;
            i = before;
        }
    }
    run_free_link(a, i, length);
}

static void small_link(struct arena *a, uint32_t block, uint32_t bin)
{
    struct small *s = a->runs[block].small;
    s->bin = bin;
    s->prev = s->next = NONE;
    if (bin == ORDERS)
        return;
    s->next = a->small_bins[bin];
    if (s->next != NONE)
        a->runs[s->next].small->prev = block;
    a->small_bins[bin] = block;
}

static void small_unlink(struct arena *a, uint32_t block)
{
    struct small *s = a->runs[block].small;
    if (s->bin == ORDERS)
        return;
    if (s->prev == NONE)
        a->small_bins[s->bin] = s->next;
    else
        a->runs[s->prev].small->next = s->next;
    if (s->next != NONE)
        a->runs[s->next].small->prev = s->prev;
}

static void small_rebin(struct arena *a, uint32_t block)
{
    struct small *s = a->runs[block].small;
    uint32_t bin = ORDERS;
    for (uint32_t k = ORDERS; k-- > 0 && bin == ORDERS;)
        if (s->free[k] != NO_UNIT)
            bin = k;
    if (bin == s->bin)
        return;
    small_unlink(a, block);
    small_link(a, block, bin);
}

static void unit_push(struct small *s, uint16_t u, uint8_t order)
{
    s->units[u] = (struct unit){.state = UNIT_FREE, .order = order, .prev = NO_UNIT, .next = s->free[order]};
    if (s->free[order] != NO_UNIT)
        s->units[s->free[order]].prev = u;
    s->free[order] = u;
}

static void unit_pull(struct small *s, uint16_t u)
{
    struct unit *unit = &s->units[u];
    if (unit->prev == NO_UNIT)
        s->free[unit->order] = unit->next;
    else
        s->units[unit->prev].next = unit->next;
    if (unit->next != NO_UNIT)
        s->units[unit->next].prev = unit->prev;
    unit->state = UNIT_INTERIOR;
}

static uint8_t order_of(uint64_t bytes)
{
    uint8_t order = 0;
    while (((uint64_t)MIN_UNIT << order) < bytes)
        order++;
    return order;
}

static uint32_t small_block_for(const struct arena *a, uint8_t order)
{
    for (uint32_t k = order; k < ORDERS; k++)
        if (a->small_bins[k] != NONE)
            return a->small_bins[k];
    return NONE;
}

/* Whether a small allocation fits without another block. */
bool arena_small_room(const struct arena *a, uint64_t bytes)
{
    return bytes <= BLOCK_BYTES / 2 && small_block_for(a, order_of(bytes)) != NONE;
}

static uint32_t small_block_new(struct arena *a)
{
    struct small *s = calloc(1, sizeof *s);
    uint32_t block = s ? run_take(a, 1) : NONE;
    if (block == NONE) {
        free(s);
        return NONE;
    }
    memset(s->free, 0xff, sizeof s->free);
    unit_push(s, 0, ORDERS - 1);
    a->runs[block].state = RUN_SMALL;
    a->runs[block].small = s;
    small_link(a, block, ORDERS - 1);
    return block;
}

static uint16_t unit_take(struct small *s, uint8_t order)
{
    uint8_t k = order;
    while (s->free[k] == NO_UNIT)
        k++;
    uint16_t u = s->free[k];
    unit_pull(s, u);
    while (k > order) {
        k--;
        unit_push(s, (uint16_t)(u + (1u << k)), k);
    }
    return u;
}

static CUdeviceptr small_alloc(struct arena *a, uint64_t bytes, CUcontext ctx, enum memory_kind kind, uint64_t charged,
                               bool *new_block)
{
    uint8_t order = order_of(bytes);
    uint32_t block = small_block_for(a, order);
    *new_block = block == NONE;
    if (block == NONE)
        block = small_block_new(a);
    if (block == NONE)
        return 0;
    struct small *s = a->runs[block].small;
    uint16_t u = unit_take(s, order);
    s->units[u] = (struct unit){.state = UNIT_USED, .order = order, .kind = (uint8_t)kind, .size = (uint32_t)bytes,
                                .charged = charged, .ctx = ctx};
    s->live++;
    small_rebin(a, block);
    return (uintptr_t)a->base + block * BLOCK_BYTES + (uint64_t)u * MIN_UNIT;
}

/* Address of a new allocation, 0 when there is no room for it. */
CUdeviceptr arena_alloc(struct arena *a, uint64_t bytes, CUcontext ctx, enum memory_kind kind, uint64_t charged,
                        bool *new_block)
{
    if (bytes <= BLOCK_BYTES / 2)
        return small_alloc(a, bytes, ctx, kind, charged, new_block);
    *new_block = true;
    uint64_t length = gs_round(bytes, BLOCK_BYTES) / BLOCK_BYTES;
    uint32_t i = length <= a->blocks ? run_take(a, (uint32_t)length) : NONE;
    if (i == NONE)
        return 0;
    struct run *r = &a->runs[i];
    r->kind = (uint8_t)kind;
    r->size = bytes;
    r->charged = charged;
    r->ctx = ctx;
    return (uintptr_t)a->base + i * BLOCK_BYTES;
}

static uint16_t unit_of(const struct small *s, uint32_t u)
{
    for (uint32_t k = 0; k < ORDERS; k++) {
        uint32_t first = u & ~((1u << k) - 1);
        if (s->units[first].state == UNIT_USED && s->units[first].order >= k)
            return first + (1u << s->units[first].order) > u ? (uint16_t)first : NO_UNIT;
    }
    return NO_UNIT;
}

bool arena_find(const struct arena *a, CUdeviceptr ptr, struct range *out)
{
    if (!arena_holds(a, ptr))
        return false;
    uint64_t offset = ptr - (uintptr_t)a->base;
    const struct run *r = &a->runs[offset / BLOCK_BYTES];
    if (r->state == RUN_SMALL) {
        uint16_t u = unit_of(r->small, (uint32_t)(offset % BLOCK_BYTES / MIN_UNIT));
        if (u == NO_UNIT)
            return false;
        const struct unit *unit = &r->small->units[u];
        *out = (struct range){.base = ptr - offset % BLOCK_BYTES + (uint64_t)u * MIN_UNIT, .size = unit->size,
                              .kind = unit->kind, .ctx = unit->ctx};
        return true;
    }
    if (r->state == RUN_INTERIOR)
        r = &a->runs[r->head];
    uint64_t base = (uintptr_t)a->base + (uint64_t)(r - a->runs) * BLOCK_BYTES;
    if (r->state != RUN_LARGE || ptr >= base + r->length * BLOCK_BYTES)
        return false;
    *out = (struct range){.base = base, .size = r->size, .kind = r->kind, .ctx = r->ctx};
    return true;
}

static void unit_merge(struct small *s, uint16_t u, uint8_t order)
{
    while (order + 1 < ORDERS) {
        uint16_t buddy = (uint16_t)(u ^ (1u << order));
        if (s->units[buddy].state != UNIT_FREE || s->units[buddy].order != order)
            break;
        unit_pull(s, buddy);
        u = u < buddy ? u : buddy;
        order++;
    }
    unit_push(s, u, order);
}

static bool small_free(struct arena *a, uint32_t block, uint32_t u, uint64_t *charged, bool *block_empty)
{
    struct small *s = a->runs[block].small;
    if (s->units[u].state != UNIT_USED)
        return false;
    *charged = s->units[u].charged;
    s->units[u].state = UNIT_INTERIOR;
    unit_merge(s, (uint16_t)u, s->units[u].order);
    s->live--;
    *block_empty = s->live == 0;
    if (s->live) {
        small_rebin(a, block);
        return true;
    }
    small_unlink(a, block);
    free(s);
    a->runs[block].small = NULL;
    run_give(a, block);
    return true;
}

/* Frees the allocation that begins at `ptr`; false when none does. */
bool arena_free(struct arena *a, CUdeviceptr ptr, uint64_t *charged, bool *block_empty)
{
    if (!arena_holds(a, ptr))
        return false;
    uint64_t offset = ptr - (uintptr_t)a->base;
    uint32_t block = (uint32_t)(offset / BLOCK_BYTES);
    struct run *r = &a->runs[block];
    if (r->state == RUN_SMALL && offset % MIN_UNIT == 0)
        return small_free(a, block, (uint32_t)(offset % BLOCK_BYTES / MIN_UNIT), charged, block_empty);
    if (r->state != RUN_LARGE || offset % BLOCK_BYTES)
        return false;
    *charged = r->charged;
    *block_empty = true;
    run_give(a, block);
    return true;
}

static CUdeviceptr small_first_of(const struct small *s, CUcontext ctx, CUdeviceptr base, CUdeviceptr after)
{
    for (uint32_t u = 0; u < UNITS; u++)
        if (s->units[u].state == UNIT_USED && s->units[u].ctx == ctx && base + u * MIN_UNIT > after)
            return base + u * MIN_UNIT;
    return 0;
}

/* The lowest allocation of a context above an address; 0 when there is none. */
CUdeviceptr arena_first_of(struct arena *a, CUcontext ctx, CUdeviceptr after)
{
    uint64_t start = arena_holds(a, after) ? (after - (uintptr_t)a->base) / BLOCK_BYTES : 0;
    for (uint64_t i = start; i < a->blocks; i++) {
        struct run *r = &a->runs[i];
        CUdeviceptr base = (uintptr_t)a->base + i * BLOCK_BYTES;
        CUdeviceptr found = 0;
        if (r->state == RUN_SMALL)
            found = small_first_of(r->small, ctx, base, after);
        else if (r->state == RUN_LARGE && r->ctx == ctx && base > after)
            found = base;
        if (found)
            return found;
        if ((r->state == RUN_LARGE || r->state == RUN_FREE) && r->head == i)
            i += r->length - 1;
    }
    return 0;
}
