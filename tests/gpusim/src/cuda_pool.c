/* Memory pools. A pool has addresses of its own and pays the card for what it reserves, in steps of 32 MiB; what is
 * freed stays reserved until a synchronisation finds it above the release threshold, or somebody needs the room. */
#include <stdlib.h>
#include <string.h>

#include "cuda_internal.h"

#define STEP_BYTES ((uint64_t)32 << 20)
#define HANDLE_NONE 0
#define LOCATION_DEVICE 1
#define ACCESS_READ_WRITE 3
#define NODE_ALLOC 10
#define NODE_FREE 11

struct CUmemPoolHandle_st {
    uint32_t magic;
    int device;
    pthread_mutex_t lock;
    struct arena *arena;    /* under the lock; given up when a destroyed pool is empty */
    CUdeviceptr low, high;  /* its addresses */
    uint64_t threshold;
    uint64_t most; /* bytes; 0: no limit of its own */
    uint64_t reserved, reserved_high;
    uint64_t used, used_high;
    int reuse[3];
    CUmemoryPool next;
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static CUmemoryPool pools; /* destroyed ones too: a search may be on its way through them */

static CUmemoryPool pool_new(int device, uint64_t most)
{
    CUmemoryPool pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    *pool = (struct CUmemPoolHandle_st){.magic = MAGIC_POOL, .device = device, .most = most, .reuse = {1, 1, 1}};
    pthread_mutex_init(&pool->lock, NULL);
    pthread_mutex_lock(&list_lock);
    pool->next = pools;
    __atomic_store_n(&pools, pool, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&list_lock);
    return pool;
}

static CUresult pool_check(CUmemoryPool pool)
{
    TRY(gs_ready());
    return pool && pool->magic == MAGIC_POOL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Pays for what the pool will use: a step ahead where the card has the room, else the blocks alone. */
static CUresult reserve(CUmemoryPool pool, uint64_t needed)
{
    if (needed <= pool->reserved)
        return CUDA_SUCCESS;
    REQUIRE(!pool->most || needed <= pool->most, CUDA_ERROR_OUT_OF_MEMORY);
    uint64_t least = needed - pool->reserved;
    uint64_t step = gs_round(least, STEP_BYTES);
    if (pool->most && pool->reserved + step > pool->most)
        step = least;
    CUresult rc = gs_charge(pool->device, CHARGE_DATA, step);
    if (rc == CUDA_ERROR_OUT_OF_MEMORY && step > least)
        rc = gs_charge(pool->device, CHARGE_DATA, step = least);
    if (rc == CUDA_SUCCESS) {
        pool->reserved += step;
        pool->reserved_high = larger(pool->reserved_high, pool->reserved);
    }
    return rc;
}

static void trim_locked(CUmemoryPool pool, uint64_t keep)
{
    uint64_t used = pool->arena ? arena_used(pool->arena) : 0;
    uint64_t target = larger(used, keep);
    if (pool->reserved <= target)
        return;
    gs_uncharge(pool->device, CHARGE_DATA, pool->reserved - target);
    pool->reserved = target;
}

/* A destroyed pool gives back what nobody uses, and its addresses with the last allocation. */
static void wind_up(CUmemoryPool pool)
{
    trim_locked(pool, 0);
    if (pool->used || !pool->arena)
        return;
    __atomic_store_n(&pool->high, 0, __ATOMIC_RELEASE);
    arena_drop(pool->arena);
    pool->arena = NULL;
}

void gs_pools_trim(int device, bool below_threshold)
{
    for (CUmemoryPool p = __atomic_load_n(&pools, __ATOMIC_ACQUIRE); p; p = p->next) {
        if (p->device != device || !__atomic_load_n(&p->reserved, __ATOMIC_RELAXED))
            continue;
        pthread_mutex_lock(&p->lock);
        trim_locked(p, below_threshold || p->magic != MAGIC_POOL ? 0 : p->threshold);
        pthread_mutex_unlock(&p->lock);
    }
}

static CUresult pool_take(CUmemoryPool pool, uint64_t bytes, CUcontext ctx, CUdeviceptr *out)
{
    bool new_block;
    REQUIRE(pool->magic == MAGIC_POOL, CUDA_ERROR_INVALID_VALUE);
    if (!pool->arena && (pool->arena = arena_new(gs_card(pool->device)->memory))) {
        CUdeviceptr high;
        arena_bounds(pool->arena, &pool->low, &high);
        __atomic_store_n(&pool->high, high, __ATOMIC_RELEASE);
    }
    REQUIRE(pool->arena, CUDA_ERROR_OUT_OF_MEMORY);
    uint64_t blocks = bytes > BLOCK_BYTES / 2                   ? gs_round(bytes, BLOCK_BYTES)
                      : arena_small_room(pool->arena, bytes) ? 0
                                                             : BLOCK_BYTES;
    TRY(reserve(pool, arena_used(pool->arena) + blocks));
    *out = arena_alloc(pool->arena, bytes, ctx, MEMORY_DEVICE, bytes, &new_block);
    REQUIRE(*out, CUDA_ERROR_OUT_OF_MEMORY);
    pool->used += gs_round(bytes, MIN_UNIT);
    pool->used_high = larger(pool->used_high, pool->used);
    return CUDA_SUCCESS;
}

static CUresult pool_alloc(CUmemoryPool pool, uint64_t bytes, CUcontext ctx, CUdeviceptr *out)
{
    REQUIRE(bytes <= gs_card(pool->device)->memory, CUDA_ERROR_OUT_OF_MEMORY);
    pthread_mutex_lock(&pool->lock);
    CUresult rc = pool_take(pool, bytes, ctx, out);
    pthread_mutex_unlock(&pool->lock);
    if (rc != CUDA_ERROR_OUT_OF_MEMORY)
        return rc;
    gs_pools_trim(pool->device, true);
    pthread_mutex_lock(&pool->lock);
    rc = pool_take(pool, bytes, ctx, out);
    pthread_mutex_unlock(&pool->lock);
    return rc;
}

static CUmemoryPool pool_of(CUdeviceptr ptr)
{
    for (CUmemoryPool p = __atomic_load_n(&pools, __ATOMIC_ACQUIRE); p; p = p->next)
        if (ptr < __atomic_load_n(&p->high, __ATOMIC_ACQUIRE) && ptr >= p->low)
            return p;
    return NULL;
}

bool gs_pool_find(CUdeviceptr ptr, struct range *out)
{
    CUmemoryPool pool = pool_of(ptr);
    if (!pool)
        return false;
    pthread_mutex_lock(&pool->lock);
    bool found = pool->arena && arena_find(pool->arena, ptr, out);
    pthread_mutex_unlock(&pool->lock);
    out->device = pool->device;
    out->owner = pool;
    return found;
}

CUresult gs_pool_free(CUdeviceptr ptr)
{
    uint64_t bytes;
    bool block_empty;
    CUmemoryPool pool = pool_of(ptr);
    REQUIRE(pool, CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&pool->lock);
    bool freed = pool->arena && arena_free(pool->arena, ptr, &bytes, &block_empty);
    if (freed)
        pool->used -= gs_round(bytes, MIN_UNIT);
    if (freed && pool->magic != MAGIC_POOL)
        wind_up(pool);
    pthread_mutex_unlock(&pool->lock);
    return freed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    TRY(gs_ready());
    REQUIRE(gs_device_ok(dev), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(pool_out, CUDA_ERROR_INVALID_VALUE);
    struct device *d = &gs.devices[dev];
    pthread_mutex_lock(&d->lock);
    if (!d->default_pool)
        d->default_pool = pool_new(dev, 0);
    *pool_out = d->default_pool;
    pthread_mutex_unlock(&d->lock);
    return *pool_out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    TRY(cuDeviceGetDefaultMemPool(pool, dev));
    if (gs.devices[dev].current_pool)
        *pool = gs.devices[dev].current_pool;
    return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    TRY(pool_check(pool));
    REQUIRE(gs_device_ok(dev) && pool->device == dev, CUDA_ERROR_INVALID_VALUE);
    gs.devices[dev].current_pool = pool;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    TRY(gs_ready());
    REQUIRE(pool && poolProps && poolProps->location.type == LOCATION_DEVICE, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(poolProps->handleTypes == HANDLE_NONE, CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(gs_device_ok(poolProps->location.id), CUDA_ERROR_INVALID_DEVICE);
    *pool = pool_new(poolProps->location.id, poolProps->maxSize);
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* What it has handed out stays valid; its memory goes back as that is freed. */
CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    TRY(pool_check(pool));
    struct device *d = &gs.devices[pool->device];
    REQUIRE(pool != d->default_pool, CUDA_ERROR_INVALID_VALUE);
    if (d->current_pool == pool)
        d->current_pool = NULL;
    pthread_mutex_lock(&pool->lock);
    pool->magic = MAGIC_DEAD;
    wind_up(pool);
    pthread_mutex_unlock(&pool->lock);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    TRY(pool_check(pool));
    pthread_mutex_lock(&pool->lock);
    trim_locked(pool, minBytesToKeep);
    pthread_mutex_unlock(&pool->lock);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    TRY(pool_check(pool));
    REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
    switch (attr) {
    case 1: case 2: case 3: pool->reuse[attr - 1] = *(int *)value; break;
    case 4: pool->threshold = *(cuuint64_t *)value; break;
    case 6: pool->reserved_high = pool->reserved; break;
    case 8: pool->used_high = pool->used; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    TRY(pool_check(pool));
    REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
    switch (attr) {
    case 1: case 2: case 3: *(int *)value = pool->reuse[attr - 1]; break;
    case 4: *(cuuint64_t *)value = pool->threshold; break;
    case 5: *(cuuint64_t *)value = pool->reserved; break;
    case 6: *(cuuint64_t *)value = pool->reserved_high; break;
    case 7: *(cuuint64_t *)value = pool->used; break;
    case 8: *(cuuint64_t *)value = pool->used_high; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    TRY(pool_check(pool));
    return map || !count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location)
{
    TRY(pool_check(memPool));
    REQUIRE(flags && location, CUDA_ERROR_INVALID_VALUE);
    *flags = location->id == memPool->device ? ACCESS_READ_WRITE : 0;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream)
{
    CUstream stream;
    TRY(gs_stream(hStream, &stream));
    TRY(pool_check(pool));
    REQUIRE(dptr && bytesize, CUDA_ERROR_INVALID_VALUE);
    TRY(pool_alloc(pool, bytesize, stream->ctx, dptr));
    gs_capture_node(stream, NODE_ALLOC, 0);
    return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    CUstream stream;
    CUmemoryPool pool;
    TRY(gs_stream(hStream, &stream));
    TRY(cuDeviceGetMemPool(&pool, stream->ctx->device));
    return cuMemAllocFromPoolAsync(dptr, bytesize, pool, hStream);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    CUstream stream;
    struct range r;
    TRY(gs_stream(hStream, &stream));
    REQUIRE(gs_find(dptr, &r) && r.base == dptr, CUDA_ERROR_INVALID_VALUE);
    TRY(gs_free(dptr));
    gs_capture_node(stream, NODE_FREE, 0);
    return CUDA_SUCCESS;
}
