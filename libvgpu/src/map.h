/* What this process holds on the device: address or handle to size, in constant time. */
#ifndef EGPU_MAP_H
#define EGPU_MAP_H

#include "sys.h"

/* Addresses and the several kinds of handle share one map; the space keeps their numbers apart. */
enum egpu_space {
    EGPU_SPACE_ADDRESS = 0,
    EGPU_SPACE_CONTEXT = 1,
    EGPU_SPACE_ARRAY = 2,
    EGPU_SPACE_POOL = 3,
    EGPU_SPACE_PHYSICAL = 4,
    EGPU_SPACE_MODULE = 5,
    EGPU_SPACE_IMPORT = 6,
    EGPU_SPACE_MAPPING = 7,
    EGPU_SPACE_BLOCK = 8
};

struct egpu_entry {
    uint64_t key; /* 0: empty */
    uint64_t size; /* of a block: where its struct egpu_units is */
    uint64_t owner; /* the context that it ends with; 0: none */
    uint8_t space;
    uint8_t card;
    uint8_t kind; /* enum egpu_kind */
    uint8_t flags;
    uint32_t count; /* references */
};

#define EGPU_SHARDS 64

/* A block of device memory that small allocations share: at the unit where one starts, how many units it has. */
#define EGPU_BLOCK_BYTES 2097152ull
#define EGPU_UNIT_BYTES 256ull
#define EGPU_UNITS (EGPU_BLOCK_BYTES / EGPU_UNIT_BYTES)

struct egpu_units {
    union {
        uint16_t units[EGPU_UNITS];
        struct egpu_units *next; /* while not in use */
    };
};

struct egpu_shard {
    egpu_lock lock;
    uint32_t count;
    uint64_t mask; /* capacity less one; meaningless while entries is NULL */
    struct egpu_entry *entries;
    struct egpu_units *unused;
    uint64_t pad[4];
};

struct egpu_map {
    struct egpu_shard shards[EGPU_SHARDS];
};

/* Gives 0 when there is no memory for the entry. An entry of the same key is replaced. */
int egpu_map_put(struct egpu_map *map, const struct egpu_entry *entry);
/* Remove and give the entry; 0 when there is none. */
int egpu_map_take(struct egpu_map *map, enum egpu_space space, uint64_t key, struct egpu_entry *out);
int egpu_map_find(struct egpu_map *map, enum egpu_space space, uint64_t key, struct egpu_entry *out);
/* Add one reference to the entry of that key, or put `entry` if there is none. Gives the references that it has then;
 * 0 when there is no memory. */
uint32_t egpu_map_join(struct egpu_map *map, const struct egpu_entry *entry);
/* Take one reference away; without references left the entry is removed. Gives 0 when there is none, else the entry as
 * it is then. */
int egpu_map_leave(struct egpu_map *map, enum egpu_space space, uint64_t key, struct egpu_entry *out);

/* Enter a small allocation in its block; `block` describes the block should it be a new one. */
enum egpu_placed { EGPU_PLACED_NOT = 0, EGPU_PLACED = 1, EGPU_PLACED_NEW = 2 };
enum egpu_placed egpu_map_place(struct egpu_map *map, const struct egpu_entry *block, uint64_t address, uint64_t bytes);

/* Remove what is at an address: its own entry, or a small allocation from its block. Of a block, `out` is the block's
 * entry with the allocation's size and the references that are left. */
enum egpu_removed { EGPU_REMOVED_NOT = 0, EGPU_REMOVED_LARGE = 1, EGPU_REMOVED_SMALL = 2 };
enum egpu_removed egpu_map_remove(struct egpu_map *map, uint64_t address, struct egpu_entry *out);

/* Whether a block has a free and aligned stretch for `bytes`, so that the driver need not take another block. */
int egpu_map_has_room(struct egpu_map *map, uint64_t block, uint64_t bytes);
/* Change an entry's size and give the former one; 0 when there is none. */
int egpu_map_resize(struct egpu_map *map, enum egpu_space space, uint64_t key, uint64_t size, struct egpu_entry *out);
/* Remove every entry for which `match` answers yes and hand it to `take`, which must not use this map. */
void egpu_map_drain(struct egpu_map *map, int (*match)(const struct egpu_entry *, const void *), const void *argument,
                    void (*take)(const struct egpu_entry *, void *), void *receiver);
/* Visit every entry of one space; the visitor must not call the driver or this map. */
void egpu_map_each(struct egpu_map *map, enum egpu_space space, void (*visit)(const struct egpu_entry *, void *),
                   void *argument);

#endif
