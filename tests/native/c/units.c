/* The library's own parts without a driver, for the sanitizers: the map against a plain model, and threads and processes
 * on one account.
 *
 * units PART SEED, PART one of map, threads, processes: prints "ok", or what was wrong. */
#include "ledger.h"
#include "map.h"
#include "usage.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEYS 4096
#define THREADS 8
#define LIMIT 1000u

static uint64_t state = 1;

static uint32_t any(uint32_t below)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(state >> 33) % below;
}

static int bad(const char *what)
{
    printf("%s\n", what);
    exit(1);
}

/* ---- the map ---- */

static struct egpu_map map;
static uint64_t large[KEYS];             /* size by key, 0: not there */
static uint16_t small[KEYS][4];          /* in units, at each quarter of a block */

static uint64_t small_address(uint32_t block, uint32_t quarter)
{
    return (block + 1000000ull) * EGPU_BLOCK_BYTES + quarter * EGPU_BLOCK_BYTES / 4;
}

static void step_large(uint32_t key)
{
    struct egpu_entry entry = {(key + 1) * EGPU_BLOCK_BYTES, key + 1, 0, EGPU_SPACE_ADDRESS, 0, 0, 0, 1}, out;
    if (large[key]) {
        if (egpu_map_remove(&map, entry.key, &out) != EGPU_REMOVED_LARGE || out.size != large[key])
            bad("a large entry was lost");
        large[key] = 0;
    } else {
        if (egpu_map_remove(&map, entry.key, &out) != EGPU_REMOVED_NOT || !egpu_map_put(&map, &entry))
            bad("a large entry came from nowhere");
        large[key] = entry.size;
    }
}

static void step_small(uint32_t block, uint32_t quarter)
{
    struct egpu_entry entry = {block + 1000000ull, 0, 0, EGPU_SPACE_BLOCK, 0, 0, 0, 0}, out;
    uint32_t there = 0;
    for (int i = 0; i < 4; i++)
        there += small[block][i] != 0;
    uint64_t address = small_address(block, quarter);
    if (small[block][quarter]) {
        if (egpu_map_remove(&map, address, &out) != EGPU_REMOVED_SMALL || out.count != there - 1 ||
            out.size != small[block][quarter] * EGPU_UNIT_BYTES)
            bad("a small entry was lost");
        small[block][quarter] = 0;
    } else {
        uint16_t units = (uint16_t)(any(EGPU_UNITS / 4) + 1);
        enum egpu_placed placed = egpu_map_place(&map, &entry, address, units * EGPU_UNIT_BYTES);
        if (placed != (there ? EGPU_PLACED : EGPU_PLACED_NEW))
            bad("a block is new that is not");
        small[block][quarter] = units;
        if (egpu_map_has_room(&map, entry.key, EGPU_BLOCK_BYTES / 4) != (there < 3))
            bad("room is seen where there is none, or not where there is");
    }
}

static int test_map(void)
{
    for (int i = 0; i < 200000; i++)
        if (any(2))
            step_large(any(KEYS));
        else
            step_small(any(KEYS), any(4));
    return 0;
}

/* ---- accounts ---- */

static struct egpu_seat seat;
static struct egpu_limits_copy limits;

static void *work(void *argument)
{
    struct egpu_seat *own = argument;
    for (int i = 0; i < 20000; i++)
        if (egpu_usage_try(own, 0, 1 + (uint32_t)i % 7, LIMIT)) {
            if (egpu_usage_total(own, 0) > LIMIT)
                bad("the ledger is above the limit");
            egpu_usage_release(own, 0, 1 + (uint32_t)i % 7);
        }
    return NULL;
}

static int threads(void)
{
    pthread_t started[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&started[i], NULL, work, &seat);
    for (int i = 0; i < THREADS; i++)
        pthread_join(started[i], NULL);
    egpu_usage_release(&seat, 0, 1);
    return egpu_usage_total(&seat, 0) == 0 ? 0 : bad("threads left something behind");
}

static int processes(void)
{
    for (int i = 0; i < THREADS; i++)
        if (fork() == 0) {
            static struct egpu_seat own;
            if (egpu_usage_join(&own, &limits) != EGPU_REASON_NONE)
                _exit(1);
            work(&own);
            _exit(0);
        }
    for (int status = 0; wait(&status) > 0;)
        if (status != 0)
            bad("a process failed");
    return egpu_usage_total(&seat, 0) == 0 ? 0 : bad("processes left something behind");
}

int main(int argc, char **argv)
{
    int result = 1;
    if (argc != 3)
        return 64;
    strcpy(limits.slice_uid, "units");
    if (strcmp(argv[1], "map") == 0) {
        state = strtoull(argv[2], NULL, 0) + 1;
        result = test_map();
    } else if (egpu_usage_join(&seat, &limits) != EGPU_REASON_NONE) {
        bad("cannot join");
    } else {
        result = strcmp(argv[1], "threads") == 0 ? threads() : processes();
    }
    printf("ok\n");
    return result;
}
