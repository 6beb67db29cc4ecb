/* Shared state of one simulated node: the file `state` in the node directory, mapped by every process.
 *
 * The Python side parses this file with cffi: keep to plain structs, fixed-width types and numeric #define lines.
 *
 * Truth is in the process slots. A card's `used` is a cache of the sum over live slots, kept under the card's lock.
 * The lock names its owner by slot, because thread ids repeat between the pid namespaces of containers; when a process
 * dies with a lock in hand, the daemon takes the lock over and adds the slots up again.
 */
#ifndef GPUSIM_STATE_H
#define GPUSIM_STATE_H

#include <stdint.h>

#define GPUSIM_MAGIC 0x4750553153494d31
#define GPUSIM_LAYOUT 1
#define GPUSIM_MAX_CARDS 16
#define GPUSIM_MAX_SLOTS 4096
#define GPUSIM_SAMPLES 1024
#define GPUSIM_XIDS 64
#define GPUSIM_UUID_LEN 48
#define GPUSIM_LOCK_WAITERS 0x80000000
#define GPUSIM_LOCK_DAEMON 0x7fffffff

/* What one process holds on one card. Bytes change only under the card's lock. */
struct gpusim_usage {
    uint64_t context;
    uint64_t module;
    uint64_t data;
    uint64_t peak;          /* highest context + module + data */
    uint64_t busy_ns;       /* simulated device time queued so far, as a union over the process's streams */
    uint64_t busy_until_ns; /* CLOCK_MONOTONIC; the part of busy_ns after now has not happened yet */
    uint64_t launches;
    uint32_t contexts;
    uint32_t reserved;
};

struct gpusim_slot {
    uint32_t live; /* 0 free, 1 in use; written by the daemon */
    uint32_t generation;
    uint32_t pid; /* node-wide */
    uint32_t slots_reserved;
    uint64_t start_ns;
    char comm[32];
    char cgroup[256];
    struct gpusim_usage card[GPUSIM_MAX_CARDS];
};

struct gpusim_sample {
    uint64_t time_us; /* CLOCK_REALTIME */
    uint32_t pid;
    uint32_t sm;
    uint32_t mem;
    uint32_t reserved;
};

struct gpusim_card {
    uint32_t lock; /* 0, or the owner: its slot + 1, or GPUSIM_LOCK_DAEMON; and GPUSIM_LOCK_WAITERS */
    uint32_t lock_reserved[15];
    char uuid[GPUSIM_UUID_LEN];
    char name[96];
    char serial[32];
    uint64_t memory;       /* bytes a process can use at most */
    uint64_t reserved;     /* bytes the driver keeps, part of NVML's total */
    uint64_t used;         /* cache of the sum over live slots */
    uint64_t context_bytes;
    uint64_t module_bytes;
    uint64_t fp32_gflops;
    uint32_t sm_count;
    uint32_t threads_per_sm;
    uint32_t cc_major;
    uint32_t cc_minor;
    uint32_t architecture; /* nvmlDeviceArchitecture_t */
    uint32_t brand;        /* nvmlBrandType_t */
    uint32_t clock_mhz;
    uint32_t memory_clock_mhz;
    uint32_t bus_width;
    uint32_t l2_bytes;
    uint32_t shared_per_sm;
    uint32_t power_limit_mw;
    uint32_t pci_domain;
    uint32_t pci_bus;
    uint32_t pci_device;
    uint32_t pci_device_id;
    uint32_t minor;
    uint32_t nvlinks; /* links to each other card that has them too */
    uint32_t numa_node;
    uint32_t lost;
    uint32_t util_sm; /* percent over the last sample period */
    uint32_t util_mem;
    uint64_t ecc_corrected;
    uint64_t ecc_uncorrected;
    uint64_t xid_seq; /* count of XIDs ever raised; the last GPUSIM_XIDS are kept */
    uint64_t xids[GPUSIM_XIDS];
    uint64_t ecc_seq;
    uint64_t sample_seq;
    struct gpusim_sample samples[GPUSIM_SAMPLES];
};

struct gpusim_state {
    uint64_t magic; /* written last */
    uint32_t layout;
    uint32_t size;
    uint32_t card_count;
    uint32_t slots_high; /* slots at and above were never used */
    uint32_t cuda_version;
    uint32_t events; /* futex word: raised with every XID, ECC error or change of a card's life */
    uint64_t granule;
    char driver_version[32];
    char node[64];
    struct gpusim_card cards[GPUSIM_MAX_CARDS];
    struct gpusim_slot slots[GPUSIM_MAX_SLOTS];
};

#endif
