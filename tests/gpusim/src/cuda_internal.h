/* What the files of libcuda.so.1 share. */
#ifndef GPUSIM_CUDA_INTERNAL_H
#define GPUSIM_CUDA_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>

#include "client.h"
#include "cuda_types.h"

#define EXPORT __attribute__((visibility("default")))
#define CUDA_FN(ret, name, params, version) EXPORT ret name params;
#include "cuda_api.def"
#undef CUDA_FN

#define BLOCK_BYTES ((uint64_t)2 << 20)
#define MIN_UNIT 512
#define LAUNCH_QUEUE 1024
#define DEFAULT_KERNEL_NS 10000
#define COPY_BYTES_PER_NS 16
#define DEVICE_BYTES_PER_NS 800
#define STREAM_LEGACY ((CUstream)0x1)
#define STREAM_PER_THREAD ((CUstream)0x2)

#define MAGIC_CONTEXT 0x43545831u
#define MAGIC_STREAM 0x53545231u
#define MAGIC_EVENT 0x45565431u
#define MAGIC_MODULE 0x4d4f4431u
#define MAGIC_FUNCTION 0x46554e31u
#define MAGIC_GRAPH 0x47525031u
#define MAGIC_EXEC 0x47455831u
#define MAGIC_NODE 0x474e4431u
#define MAGIC_ARRAY 0x41525231u
#define MAGIC_POOL 0x504f4f31u
#define MAGIC_DEAD 0x44454144u

#define TRY(expression)                  \
    do {                                 \
        CUresult try_rc = (expression);  \
        if (try_rc != CUDA_SUCCESS)      \
            return try_rc;               \
    } while (0)
#define REQUIRE(condition, error) \
    do {                          \
        if (!(condition))         \
            return (error);       \
    } while (0)

#define STREAM(handle) \
    CUstream stream;   \
    TRY(gs_stream(handle, &stream))
#define MAX_THREADS 1024 /* of a block */

enum charge_kind { CHARGE_CONTEXT, CHARGE_MODULE, CHARGE_DATA };
enum memory_kind { MEMORY_DEVICE, MEMORY_MANAGED, MEMORY_MAPPED, MEMORY_HOST, MEMORY_IPC };

struct arena;
struct device;

struct CUctx_st {
    uint32_t magic;
    int device;
    bool primary;
    unsigned flags;
    unsigned refs; /* primary only */
    uint64_t id;
    pthread_mutex_t lock; /* streams, modules, sticky */
    struct CUstream_st *streams; /* all but the legacy one */
    struct CUstream_st *legacy;
    struct CUmod_st *modules;
    uint64_t max_tail;      /* end of the last operation of any stream */
    uint64_t blocking_tail; /* end of the last operation of any stream that waits for the legacy one */
    size_t limits[8];
    int cache_config;
};

struct CUstream_st {
    uint32_t magic;
    CUcontext ctx;
    unsigned flags;
    int priority;
    uint64_t id;
    bool per_thread;
    pthread_mutex_t lock;
    uint64_t tail;
    uint64_t pushed;
    uint64_t ends[LAUNCH_QUEUE];
    uint64_t callbacks; /* host functions not finished */
    CUgraph capture;
    CUgraphNode capture_last;
    bool capture_origin;
    bool capture_invalid;
    int capture_mode;
    CUstream next;
};

struct CUevent_st {
    uint32_t magic;
    unsigned flags;
    CUcontext ctx;
    bool recorded;
    uint64_t stamp;
    CUgraph capture;
    CUgraphNode capture_node;
};

struct CUfunc_st {
    uint32_t magic;
    CUmodule module;
    char *name;
    uint64_t duration_ns;
    uint64_t wave_ns; /* per wave of resident threads; 0: duration_ns whatever the grid */
    int builtin;      /* index + 1 of a kernel that really computes */
    int attributes[32];
    unsigned shape[3]; /* block of the old launches */
    CUfunction next;
};

struct CUmod_st {
    uint32_t magic;
    CUcontext ctx;
    char *text;   /* PTX, else NULL: any name is a function */
    uint64_t charged;
    CUfunction functions;
    struct module_global *globals;
    unsigned refs;
    CUmodule next;
};

/* One allocation as seen from an address. */
struct range {
    CUdeviceptr base;
    uint64_t size;
    enum memory_kind kind;
    int device;
    CUcontext ctx;
    unsigned flags;
    void *owner;
};

struct device {
    uint32_t card;
    pthread_mutex_t lock; /* arena and primary context */
    struct arena *arena;
    struct CUctx_st primary;
    pthread_mutex_t busy_lock;
    CUmemoryPool default_pool;
    CUmemoryPool current_pool;
};

struct process {
    struct gpusim_state *state;
    struct gpusim_slot *slot;
    uint32_t generation;
    int device_count;
    struct device devices[GPUSIM_MAX_CARDS];
};

extern struct process gs;
extern __thread unsigned gs_per_thread_default;

/* init */
CUresult gs_ready(void);
bool gs_device_ok(CUdevice device);
struct gpusim_card *gs_card(int device);
CUresult gs_charge(int device, enum charge_kind kind, uint64_t bytes);
void gs_uncharge(int device, enum charge_kind kind, uint64_t bytes);
struct gpusim_usage *gs_usage(int device);
uint64_t gs_next_id(void);

/* contexts */
CUresult gs_current(CUcontext *ctx);
CUresult gs_context_check(CUcontext ctx);

/* device memory */
CUresult gs_alloc(int device, CUcontext ctx, uint64_t bytes, enum memory_kind kind, CUdeviceptr *out);
CUresult gs_free(CUdeviceptr ptr);
void gs_free_context(CUcontext ctx);
bool gs_find(CUdeviceptr ptr, struct range *out);
CUresult gs_region_add(const struct range *range);
bool gs_region_remove(CUdeviceptr base, enum memory_kind kind, struct range *out);
uint64_t gs_round(uint64_t bytes, uint64_t granule);

/* arena: addresses of one card; not locked */
struct arena *arena_new(uint64_t capacity);
void arena_drop(struct arena *arena);
void arena_bounds(const struct arena *arena, CUdeviceptr *low, CUdeviceptr *high);
uint64_t arena_used(const struct arena *arena);
bool arena_holds(const struct arena *arena, CUdeviceptr ptr);
bool arena_small_room(const struct arena *arena, uint64_t bytes);
CUdeviceptr arena_alloc(struct arena *arena, uint64_t bytes, CUcontext ctx, enum memory_kind kind, uint64_t charged,
                        bool *new_block);
bool arena_free(struct arena *arena, CUdeviceptr ptr, uint64_t *charged, bool *block_empty);
bool arena_find(const struct arena *arena, CUdeviceptr ptr, struct range *out);
CUdeviceptr arena_first_of(struct arena *arena, CUcontext ctx, CUdeviceptr after);

/* pools */
bool gs_pool_find(CUdeviceptr ptr, struct range *out);
CUresult gs_pool_free(CUdeviceptr ptr);
void gs_pools_trim(int device, bool below_threshold);

/* streams and time */
CUresult gs_stream(CUstream handle, CUstream *out);
CUstream gs_stream_new(CUcontext ctx, unsigned flags, int priority);
void gs_stream_free(CUstream stream);
uint64_t gs_push(CUstream stream, uint64_t duration_ns, bool device_work);
void gs_sleep_until(uint64_t when);
void gs_stream_wait(CUstream stream);
void gs_context_wait(CUcontext ctx);
void gs_raise_to(uint64_t *word, uint64_t value);
void gs_callbacks_done(CUstream stream);
CUresult gs_not_capturing(CUstream stream);
void gs_callback(CUstream stream, uint64_t when, CUhostFn fn, CUstreamCallback callback, void *user);

/* kernels */
CUresult gs_module_check(CUmodule m);
CUresult gs_function_check(CUfunction f);
void gs_kernel_describe(CUfunction f);
char *gs_read_file(const char *path);
uint64_t gs_kernel_ns(CUfunction f, int device, uint64_t blocks, uint64_t threads);
void gs_kernel_run(CUfunction f, const unsigned grid[3], const unsigned block[3], void **params);
void gs_modules_free(CUcontext ctx);

/* graphs */
CUgraphNode gs_capture_node(CUstream stream, CUgraphNodeType type, uint64_t duration_ns);
void gs_node_host(CUgraphNode node, CUhostFn fn, void *user);

/* cuGetProcAddress */
void *gs_proc(const char *symbol, int version, uint64_t flags, int *status);

#endif
