#include "map.h"

#include <string.h>

#define FIRST_CAPACITY 64u

static uint64_t hash(enum egpu_space space, uint64_t key) {
    uint64_t x = (key ^ (uint64_t)space << 58) * 0x9e3779b97f4a7c15ull;
    x ^= x >> 32;
    return x * 0xd6e8feb86659fd93ull;
}

/* Addresses lie in the shard of their block, so that one lock serves both. */
static struct egpu_shard *shard_of(struct egpu_map *map, enum egpu_space space, uint64_t key) {
    int address = space == EGPU_SPACE_ADDRESS;
    return &map->shards[hash(address ? EGPU_SPACE_BLOCK : space, address ? key / EGPU_BLOCK_BYTES : key) >> 58];
}

static int is(const struct egpu_entry *entry, enum egpu_space space, uint64_t key) {
    return entry->key == key && entry->space == (uint8_t)space;
}

/* Index of the entry, or of the empty place where it belongs. */
static uint64_t place(const struct egpu_shard *shard, enum egpu_space space, uint64_t key, uint64_t h) {
    uint64_t i = (h >> 8) & shard->mask;
    while (shard->entries[i].key != 0 && !is(&shard->entries[i], space, key))
        i = (i + 1) & shard->mask;
    return i;
}

static int grow(struct egpu_shard *shard) {
    uint64_t old_capacity = shard->entries ? shard->mask + 1 : 0;
    uint64_t capacity = old_capacity ? old_capacity * 2 : FIRST_CAPACITY;
    struct egpu_entry *old = shard->entries;
    struct egpu_entry *fresh = egpu_pages(capacity * sizeof *fresh);
    if (fresh == NULL)
        return 0;
    shard->entries = fresh;
    shard->mask = capacity - 1;
    for (uint64_t i = 0; i < old_capacity; i++)
        if (old[i].key != 0)
            fresh[place(shard, old[i].space, old[i].key, hash(old[i].space, old[i].key))] = old[i];
    if (old)
        egpu_pages_free(old, old_capacity * sizeof *old);
    return 1;
}

/* Empty one place and move up what had been pushed past it, so that no tombstones pile up. */
static void erase(struct egpu_shard *shard, uint64_t i) {
    struct egpu_entry *entries = shard->entries;
    uint64_t hole = i;
    for (uint64_t next = (i + 1) & shard->mask; entries[next].key != 0; next = (next + 1) & shard->mask) {
        uint64_t home = (hash(entries[next].space, entries[next].key) >> 8) & shard->mask;
        if (((next - home) & shard->mask) >= ((next - hole) & shard->mask)) {
            entries[hole] = entries[next];
            hole = next;
        }
    }
    memset(&entries[hole], 0, sizeof entries[hole]);
    shard->count--;
}

/* The entry of that key, or an empty one for it: its key is 0. NULL when there is no memory for another. */
static struct egpu_entry *room(struct egpu_shard *shard, const struct egpu_entry *entry, uint64_t h) {
    if ((shard->entries == NULL || (uint64_t)shard->count * 4 >= (shard->mask + 1) * 3) && !grow(shard))
        return NULL;
    struct egpu_entry *at = &shard->entries[place(shard, entry->space, entry->key, h)];
    shard->count += at->key == 0;
    return at;
}

int egpu_map_put(struct egpu_map *map, const struct egpu_entry *entry) {
    uint64_t h = hash(entry->space, entry->key);
    struct egpu_shard *shard = shard_of(map, entry->space, entry->key);
    egpu_lock_take(&shard->lock);
    struct egpu_entry *at = room(shard, entry, h);
    if (at != NULL)
        *at = *entry;
    egpu_lock_give(&shard->lock);
    return at != NULL;
}

uint32_t egpu_map_join(struct egpu_map *map, const struct egpu_entry *entry) {
    uint64_t h = hash(entry->space, entry->key);
    struct egpu_shard *shard = shard_of(map, entry->space, entry->key);
    uint32_t count = 0;
    egpu_lock_take(&shard->lock);
    struct egpu_entry *at = room(shard, entry, h);
    if (at != NULL && at->key == 0) {
        *at = *entry;
        count = at->count = 1;
    } else if (at != NULL) {
        count = ++at->count;
    }
    egpu_lock_give(&shard->lock);
    return count;
}

static struct egpu_entry *lookup(struct egpu_shard *shard, enum egpu_space space, uint64_t key, uint64_t h) {
    if (shard->entries == NULL)
        return NULL;
    struct egpu_entry *at = &shard->entries[place(shard, space, key, h)];
    return at->key == 0 ? NULL : at;
}

int egpu_map_take(struct egpu_map *map, enum egpu_space space, uint64_t key, struct egpu_entry *out) {
    if (key == 0)
        return 0;
    uint64_t h = hash(space, key);
    struct egpu_shard *shard = shard_of(map, space, key);
    egpu_lock_take(&shard->lock);
    struct egpu_entry *at = lookup(shard, space, key, h);
    if (at != NULL) {
        *out = *at;
        erase(shard, (uint64_t)(at - shard->entries));
    }
    egpu_lock_give(&shard->lock);
    return at != NULL;
}

int egpu_map_find(struct egpu_map *map, enum egpu_space space, uint64_t key, struct egpu_entry *out) {
    if (key == 0)
        return 0;
    uint64_t h = hash(space, key);
    struct egpu_shard *shard = shard_of(map, space, key);
    egpu_lock_take(&shard->lock);
    struct egpu_entry *at = lookup(shard, space, key, h);
    if (at != NULL)
        *out = *at;
    egpu_lock_give(&shard->lock);
    return at != NULL;
}

int egpu_map_leave(struct egpu_map *map, enum egpu_space space, uint64_t key, struct egpu_entry *out) {
    uint64_t h = hash(space, key);
    struct egpu_shard *shard = shard_of(map, space, key);
    egpu_lock_take(&shard->lock);
    struct egpu_entry *at = key ? lookup(shard, space, key, h) : NULL;
    if (at != NULL) {
        at->count -= at->count > 0;
        *out = *at;
        if (at->count == 0)
            erase(shard, (uint64_t)(at - shard->entries));
    }
    egpu_lock_give(&shard->lock);
    return at != NULL;
}

int egpu_map_resize(struct egpu_map *map, enum egpu_space space, uint64_t key, uint64_t size, struct egpu_entry *out) {
    if (key == 0)
        return 0;
    uint64_t h = hash(space, key);
    struct egpu_shard *shard = shard_of(map, space, key);
    egpu_lock_take(&shard->lock);
    struct egpu_entry *at = lookup(shard, space, key, h);
    if (at != NULL) {
        *out = *at;
        at->size = size;
    }
    egpu_lock_give(&shard->lock);
    return at != NULL;
}

/* ---- blocks -------------------------------------------------------------------------------------------------- */

static struct egpu_units *units_of(const struct egpu_entry *block) {
    return (struct egpu_units *)(uintptr_t)block->size;
}

static void units_give(struct egpu_shard *shard, struct egpu_units *units) {
    units->next = shard->unused;
    shard->unused = units;
}

static struct egpu_units *units_take(struct egpu_shard *shard) {
    struct egpu_units *units = shard->unused;
    if (units == NULL)
        return egpu_pages(sizeof *units);
    shard->unused = units->next;
    units->next = NULL;
    return units;
}

static uint64_t unit_of(uint64_t address) {
    return address % EGPU_BLOCK_BYTES / EGPU_UNIT_BYTES;
}

static uint16_t units_for(uint64_t bytes) {
    return (uint16_t)((bytes + EGPU_UNIT_BYTES - 1) / EGPU_UNIT_BYTES);
}

enum egpu_placed egpu_map_place(struct egpu_map *map, const struct egpu_entry *block, uint64_t address,
                                uint64_t bytes) {
    struct egpu_shard *shard = shard_of(map, EGPU_SPACE_BLOCK, block->key);
    enum egpu_placed placed = EGPU_PLACED_NOT;
    egpu_lock_take(&shard->lock);
    struct egpu_entry *at = room(shard, block, hash(EGPU_SPACE_BLOCK, block->key));
    if (at != NULL && at->key == 0) {
        struct egpu_units *units = units_take(shard);
        *at = *block;
        at->size = (uintptr_t)units;
        at->count = 0;
        placed = EGPU_PLACED_NEW;
        if (units == NULL) {
            erase(shard, (uint64_t)(at - shard->entries));
            at = NULL;
            placed = EGPU_PLACED_NOT;
        }
    } else if (at != NULL) {
        placed = EGPU_PLACED;
    }
    if (at != NULL) {
        units_of(at)->units[unit_of(address)] = units_for(bytes);
        at->count++;
    }
    egpu_lock_give(&shard->lock);
    return placed;
}

/* Under the lock: take a small allocation out of its block, and the block with its last one. */
static int remove_small(struct egpu_shard *shard, struct egpu_entry *block, uint64_t address, struct egpu_entry *out) {
    struct egpu_units *units = units_of(block);
    uint64_t count = units->units[unit_of(address)];
    if (count == 0 || address % EGPU_UNIT_BYTES != 0)
        return 0;
    units->units[unit_of(address)] = 0;
    block->count--;
    *out = *block;
    out->size = count * EGPU_UNIT_BYTES;
    if (block->count == 0) {
        units_give(shard, units);
        erase(shard, (uint64_t)(block - shard->entries));
    }
    return 1;
}

enum egpu_removed egpu_map_remove(struct egpu_map *map, uint64_t address, struct egpu_entry *out) {
    uint64_t block = address / EGPU_BLOCK_BYTES;
    enum egpu_removed removed = EGPU_REMOVED_NOT;
    if (block == 0)
        return removed;
    uint64_t h = hash(EGPU_SPACE_BLOCK, block);
    struct egpu_shard *shard = &map->shards[h >> 58];
    egpu_lock_take(&shard->lock);
    struct egpu_entry *at = lookup(shard, EGPU_SPACE_BLOCK, block, h);
    if (at != NULL && remove_small(shard, at, address, out)) {
        removed = EGPU_REMOVED_SMALL;
    } else {
        at = lookup(shard, EGPU_SPACE_ADDRESS, address, hash(EGPU_SPACE_ADDRESS, address));
        if (at != NULL) {
            *out = *at;
            erase(shard, (uint64_t)(at - shard->entries));
            removed = EGPU_REMOVED_LARGE;
        }
    }
    egpu_lock_give(&shard->lock);
    return removed;
}

/* The driver hands out halves of halves of a block, each aligned to its size. */
static int has_gap(const struct egpu_units *units, uint64_t wanted) {
    uint64_t next_used = 0, used_until = 0;
    for (uint64_t start = 0; start < EGPU_UNITS; start += wanted) {
        for (next_used = start; next_used < start + wanted; next_used++)
            if (units->units[next_used] != 0)
                used_until = next_used + (1ull << (64 - __builtin_clzll(units->units[next_used] * 2ull - 1)) >> 1);
        if (used_until <= start)
            return 1;
    }
    return 0;
}

int egpu_map_has_room(struct egpu_map *map, uint64_t block, uint64_t bytes) {
    uint64_t h = hash(EGPU_SPACE_BLOCK, block), wanted = 2;
    struct egpu_shard *shard = &map->shards[h >> 58];
    int gap = 0;
    while (wanted * EGPU_UNIT_BYTES < bytes)
        wanted *= 2;
    egpu_lock_take(&shard->lock);
    struct egpu_entry *at = block ? lookup(shard, EGPU_SPACE_BLOCK, block, h) : NULL;
    if (at != NULL)
        gap = has_gap(units_of(at), wanted);
    egpu_lock_give(&shard->lock);
    return gap;
}

/* ---- all of it ----------------------------------------------------------------------------------------------- */

void egpu_map_drain(struct egpu_map *map, int (*match)(const struct egpu_entry *, const void *), const void *argument,
                    void (*take)(const struct egpu_entry *, void *), void *receiver) {
    for (int s = 0; s < EGPU_SHARDS; s++) {
        struct egpu_shard *shard = &map->shards[s];
        egpu_lock_take(&shard->lock);
        for (uint64_t i = 0; shard->entries != NULL && i <= shard->mask;) {
            struct egpu_entry entry = shard->entries[i];
            if (entry.key == 0 || !match(&entry, argument)) {
                i++;
                continue;
            }
            if (entry.space == EGPU_SPACE_BLOCK) {
                memset(units_of(&entry), 0, sizeof(struct egpu_units));
                units_give(shard, units_of(&entry));
            }
            erase(shard, i); /* may move another entry here */
            take(&entry, receiver);
        }
        egpu_lock_give(&shard->lock);
    }
}

void egpu_map_each(struct egpu_map *map, enum egpu_space space, void (*visit)(const struct egpu_entry *, void *),
                   void *argument) {
    for (int s = 0; s < EGPU_SHARDS; s++) {
        struct egpu_shard *shard = &map->shards[s];
        egpu_lock_take(&shard->lock);
        for (uint64_t i = 0; shard->entries != NULL && i <= shard->mask; i++)
            if (shard->entries[i].key != 0 && shard->entries[i].space == (uint8_t)space)
                visit(&shard->entries[i], argument);
        egpu_lock_give(&shard->lock);
    }
}
