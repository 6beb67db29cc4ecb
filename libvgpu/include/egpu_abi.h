/* Binary contracts between the node agent and libvgpu.so. See docs/architecture.md, "Binary contracts".
 *
 * Two files, both little endian and made of fixed-width fields:
 *   limits page   written by the agent, mapped read-only into the container
 *   usage region  created by the agent, written by the tenant's processes: advice to the agent, never truth
 *
 * The part between the two cffi marks is what the Python module compiles too; it holds plain C declarations only.
 */
#ifndef EGPU_ABI_H
#define EGPU_ABI_H

#include <stddef.h>
#include <stdint.h>

/* Compiled in: nothing in a process can change where its limits are. */
#ifndef EGPU_LIMITS_PATH
#define EGPU_LIMITS_PATH "/etc/elasticgpu/limits"
#endif
#ifndef EGPU_USAGE_PATH
#define EGPU_USAGE_PATH "/etc/elasticgpu/usage"
#endif

#define EGPU_LIMITS_MAGIC 0x4c504745u /* "EGPL" */
#define EGPU_USAGE_MAGIC 0x55504745u  /* "EGPU" */
#define EGPU_ABI_VERSION 1u
#define EGPU_PAGE 4096
#define EGPU_COPIES 2
#define EGPU_MAX_CARDS 16
#define EGPU_UID_LEN 64  /* a UID and its terminating zero */
#define EGPU_UUID_LEN 48 /* "GPU-" or "MIG-", 36 characters, a terminating zero */
#define EGPU_COMM_LEN 16
#define EGPU_DEFAULT_SLOTS 1024
#define EGPU_MAX_SLOTS 65535

/* Memory limit of a card that has none. Zero is a limit: it allows nothing. */
#define EGPU_MEMORY_UNLIMITED 0xffffffffffffffffull

/* A dead process's memory may be used again after so long: the kernel drops its lock before the driver frees. */
#ifndef EGPU_REUSE_DELAY_NS
#define EGPU_REUSE_DELAY_NS 500000000ull
#endif

/* cffi: begin */

enum egpu_sharing { EGPU_SHARING_TIME_SLICE = 0, EGPU_SHARING_MPS = 1, EGPU_SHARING_MIG = 2 };

enum egpu_burst { EGPU_BURST_HARD = 0, EGPU_BURST_ALLOWED = 1 };

enum egpu_slot_state { EGPU_SLOT_FREE = 0, EGPU_SLOT_USED = 1 };

enum egpu_kind { EGPU_KIND_DATA = 0, EGPU_KIND_CONTEXT = 1, EGPU_KIND_MODULE = 2, EGPU_KIND_RESERVED = 3, EGPU_KINDS = 4 };

/* Why the library last refused something. The texts are in src/reason.c and in egpu_vgpu.usage. */
enum egpu_reason {
    EGPU_REASON_NONE = 0,
    EGPU_REASON_LIMITS_MISSING = 1,
    EGPU_REASON_LIMITS_BROKEN = 2,
    EGPU_REASON_USAGE_MISSING = 3,
    EGPU_REASON_USAGE_BROKEN = 4,
    EGPU_REASON_USAGE_OTHER_SLICE = 5,
    EGPU_REASON_NO_SLOT = 6,
    EGPU_REASON_CARD_NOT_IN_SLICE = 7,
    EGPU_REASON_OVER_LIMIT = 8,
    EGPU_REASON_NO_MEMORY = 9,
    EGPU_REASON_NOT_COVERED = 10
};

struct egpu_limits_card {
    char uuid[EGPU_UUID_LEN];
    uint64_t memory;  /* bytes */
    uint32_t core;    /* percent of the card's device time, 1 to 100 */
    uint32_t sharing; /* enum egpu_sharing */
    uint64_t context; /* bytes a context is known to take; 0: unknown, the library measures */
    uint64_t reserved[7];
};

/* One of the two copies on the limits page. The valid copy with the higher generation holds. */
struct egpu_limits_copy {
    uint32_t magic;
    uint32_t version;
    uint32_t size; /* of this structure */
    uint32_t card_count;
    uint64_t generation; /* from 1; 0 is never valid */
    char slice_uid[EGPU_UID_LEN];
    uint32_t burst; /* enum egpu_burst */
    uint32_t flags; /* none yet: written 0, ignored */
    struct egpu_limits_card cards[EGPU_MAX_CARDS];
    uint8_t reserved[1944];
    uint64_t checksum; /* egpu_checksum of every byte before it */
};

/* What all the processes of the slice together hold on one card. The two words change together (16-byte exchange). */
struct egpu_ledger {
    uint64_t bytes;
    uint64_t op; /* the operation that made `bytes`: slot << 48 | sequence */
    uint64_t context; /* bytes a context was measured to take: a hint; 0: not measured yet */
    uint64_t turn;    /* CLOCK_MONOTONIC ns until which one process may be alone in measuring the first context */
    uint64_t reserved[4];
};

struct egpu_usage_header {
    uint32_t magic;
    uint32_t version;
    uint32_t size;      /* of this structure */
    uint32_t slot_size; /* of struct egpu_slot */
    uint32_t slot_count;
    uint32_t card_count;
    char slice_uid[EGPU_UID_LEN];
    uint32_t high_water; /* no slot from this index on was ever used */
    uint32_t flags;
    uint64_t reserved0[4];
    struct egpu_ledger cards[EGPU_MAX_CARDS];
    char uuids[EGPU_MAX_CARDS][EGPU_UUID_LEN];
    uint8_t reserved[2176];
};

struct egpu_charge {
    uint64_t before;
    uint64_t after;
};

/* What one process holds on one card. Operation `sequence` is described by charges[sequence & 1]; it has taken place when
 * `applied` has reached it or when the ledger's `op` names it. The process holds `after` then, else `before`. */
struct egpu_account {
    uint64_t sequence;
    uint64_t applied;
    struct egpu_charge charges[2];
    uint64_t reserved[2];
};

/* One process. It is alive while somebody holds an OFD lock on this page of the file. */
struct egpu_slot {
    uint32_t state;  /* enum egpu_slot_state */
    uint32_t reason; /* enum egpu_reason: the last refusal */
    int32_t pid;     /* as the process sees itself */
    uint32_t generation_low; /* low half of the limits generation in force */
    uint64_t pid_namespace; /* inode of /proc/self/ns/pid */
    uint64_t start_time;    /* clock ticks since boot, field 22 of /proc/self/stat */
    uint64_t dead_since;    /* CLOCK_MONOTONIC ns at which somebody first found it dead; 0: not found dead */
    uint64_t launches;      /* kernel launches let through, brought up to date in batches */
    char comm[EGPU_COMM_LEN];
    struct egpu_account accounts[EGPU_MAX_CARDS];
    uint64_t kinds[EGPU_MAX_CARDS][4]; /* bytes by enum egpu_kind: advice beside the accounts */
    uint8_t reserved[2496];
};

/* cffi: end */

/* FNV-1a, 64 bits. */
static inline uint64_t egpu_checksum(const void *data, size_t size) {
    const unsigned char *byte = (const unsigned char *)data;
    uint64_t sum = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < size; i++)
        sum = (sum ^ byte[i]) * 0x100000001b3ull;
    return sum;
}

#define EGPU_OP(slot, sequence) ((uint64_t)(slot) << 48 | ((sequence)&0xffffffffffffull))
#define EGPU_OP_SLOT(op) ((uint32_t)((op) >> 48))
#define EGPU_OP_SEQUENCE(op) ((op)&0xffffffffffffull)

#define EGPU_AT(type, field, offset) _Static_assert(offsetof(struct type, field) == (offset), #type "." #field)
_Static_assert(sizeof(struct egpu_limits_card) == 128, "egpu_limits_card");
_Static_assert(sizeof(struct egpu_limits_copy) == EGPU_PAGE, "egpu_limits_copy");
_Static_assert(sizeof(struct egpu_ledger) == 64, "egpu_ledger");
_Static_assert(sizeof(struct egpu_usage_header) == EGPU_PAGE, "egpu_usage_header");
_Static_assert(sizeof(struct egpu_account) == 64, "egpu_account");
_Static_assert(sizeof(struct egpu_slot) == EGPU_PAGE, "egpu_slot");
EGPU_AT(egpu_limits_card, memory, 48);
EGPU_AT(egpu_limits_card, core, 56);
EGPU_AT(egpu_limits_card, sharing, 60);
EGPU_AT(egpu_limits_card, context, 64);
EGPU_AT(egpu_limits_copy, generation, 16);
EGPU_AT(egpu_limits_copy, slice_uid, 24);
EGPU_AT(egpu_limits_copy, burst, 88);
EGPU_AT(egpu_limits_copy, cards, 96);
EGPU_AT(egpu_limits_copy, checksum, 4088);
EGPU_AT(egpu_usage_header, slot_count, 16);
EGPU_AT(egpu_usage_header, slice_uid, 24);
EGPU_AT(egpu_usage_header, high_water, 88);
EGPU_AT(egpu_usage_header, cards, 128);
EGPU_AT(egpu_usage_header, uuids, 1152);
EGPU_AT(egpu_slot, pid, 8);
EGPU_AT(egpu_slot, pid_namespace, 16);
EGPU_AT(egpu_slot, start_time, 24);
EGPU_AT(egpu_slot, dead_since, 32);
EGPU_AT(egpu_slot, launches, 40);
EGPU_AT(egpu_slot, comm, 48);
EGPU_AT(egpu_slot, accounts, 64);
EGPU_AT(egpu_slot, kinds, 1088);

#endif
