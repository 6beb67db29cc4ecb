/* Stream-ordered memory: a pool is charged by what the driver reserves for it, not by what is in use. */
#include "grant.h"

#include <string.h>

/* The driver lets pools grow in steps of at most this much (for small requests). */
#define CHUNK (32ull << 20)
#define MAX_POOLS 256

/* ---- what a pool has ----------------------------------------------------------------------------------------- */

static uint64_t attribute(CUmemoryPool pool, int which, uint64_t otherwise) {
    uint64_t value = otherwise;
    egpu_inside++;
    if (EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemPoolGetAttribute, pool, which, &value) != CUDA_SUCCESS)
        value = otherwise;
    egpu_inside--;
    return value;
}

static uint64_t reserved(CUmemoryPool pool, uint64_t otherwise) {
    return attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, otherwise);
}

/* Enter a pool with nothing charged, unless it is known. */
static int meet(struct egpu_state *state, CUmemoryPool pool, uint32_t card) {
    struct egpu_entry entry = {(uintptr_t)pool, 0, 0, EGPU_SPACE_POOL, (uint8_t)card, EGPU_KIND_RESERVED, 0, 1};
    struct egpu_entry known;
    int ok = 1;
    if (egpu_map_find(&state->map, EGPU_SPACE_POOL, entry.key, &known))
        return 1;
    egpu_lock_take(&state->pools_lock);
    if (!egpu_map_find(&state->map, EGPU_SPACE_POOL, entry.key, &known)) {
        ok = egpu_map_put(&state->map, &entry);
        __atomic_fetch_add(&state->pools, (uint32_t)ok, __ATOMIC_RELAXED);
    }
    egpu_lock_give(&state->pools_lock);
    return ok;
}

/* Move what is charged for a pool towards `size`, paid for by the grant; gives what the grant could not pay. */
static uint64_t move(struct egpu_grant *grant, CUmemoryPool pool, uint64_t size) {
    struct egpu_entry entry;
    struct egpu_state *state = grant->state;
    uint64_t missing = 0, surplus = 0;
    egpu_lock_take(&state->pools_lock);
    if (egpu_map_find(&state->map, EGPU_SPACE_POOL, (uintptr_t)pool, &entry)) {
        uint64_t target = size;
        if (size > entry.size && size - entry.size > grant->bytes) {
            missing = size - entry.size - grant->bytes;
            target = size - missing;
        }
        if (target >= entry.size)
            grant->bytes -= target - entry.size;
        else
            surplus = entry.size - target;
        egpu_map_resize(&state->map, EGPU_SPACE_POOL, (uintptr_t)pool, target, &entry);
    }
    egpu_lock_give(&state->pools_lock);
    struct egpu_grant excess = {state, 0, surplus, 0, entry.card, EGPU_KIND_RESERVED};
    egpu_grant_drop(&excess);
    return missing;
}

/* The driver has it already: the books follow, whatever the limit. */
static void charge_anyway(struct egpu_grant *grant, uint64_t bytes) {
    if (bytes == 0 || !egpu_usage_try(&grant->state->seat, grant->card, bytes, UINT64_MAX))
        return;
    grant->bytes += bytes;
    egpu_usage_kind(&grant->state->seat, grant->card, grant->kind, (int64_t)bytes);
}

struct known_pools {
    uint32_t count;
    struct egpu_entry pools[MAX_POOLS];
};

static void collect(const struct egpu_entry *entry, void *argument) {
    struct known_pools *known = argument;
    if (known->count < MAX_POOLS)
        known->pools[known->count++] = *entry;
}

static void refresh(struct egpu_state *state, const struct egpu_entry *pool) {
    CUmemoryPool handle = (CUmemoryPool)(uintptr_t)pool->key;
    struct egpu_grant grant = {state, 0, 0, 0, pool->card, EGPU_KIND_RESERVED};
    uint64_t now = reserved(handle, pool->size);
    uint64_t missing = move(&grant, handle, now);
    if (missing != 0) {
        charge_anyway(&grant, missing);
        move(&grant, handle, now);
    }
    egpu_grant_drop(&grant);
}

void egpu_pools_refresh(struct egpu_state *state) {
    if (EGPU_LIKELY(load_relaxed(&state->pools) == 0) || egpu_inside > 1)
        return;
    struct known_pools *known = egpu_pages(sizeof *known);
    if (known == NULL)
        return;
    egpu_map_each(&state->map, EGPU_SPACE_POOL, collect, known);
    for (uint32_t i = 0; i < known->count; i++)
        refresh(state, &known->pools[i]);
    egpu_pages_free(known, sizeof *known);
}

/* ---- allocate ------------------------------------------------------------------------------------------------ */

static uint64_t chunks(uint64_t bytes) {
    return bytes > UINT64_MAX - CHUNK ? UINT64_MAX : (bytes + CHUNK - 1) / CHUNK * CHUNK;
}

/* Charge for the most that the pool may grow by. Where that does not fit, what the pool has left over is enough if there
 * is so much of it; else the pool is asked to give up what it does not use. */
static CUresult open_async(struct egpu_grant *grant, CUmemoryPool pool, uint64_t bytes) {
    if (egpu_grant_charge(grant, chunks(bytes)) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    uint64_t has = reserved(pool, 0), used = attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, has);
    if (egpu_granules(used) <= has && has - egpu_granules(used) >= egpu_granules(bytes))
        return CUDA_SUCCESS;
    EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemPoolTrimTo, pool, 0);
    return egpu_grant_charge(grant, chunks(bytes));
}

/* Settle after the driver's answer; what it took beyond the grant must fit too, else the allocation goes back. */
static CUresult close_async(struct egpu_grant *grant, CUmemoryPool pool, CUresult result, CUdeviceptr address,
                            CUstream stream) {
    uint64_t now = reserved(pool, 0), missing = move(grant, pool, now);
    if (result == CUDA_SUCCESS && missing != 0 && egpu_grant_charge(grant, missing) != CUDA_SUCCESS) {
        EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemFreeAsync, address, stream);
        EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemPoolTrimTo, pool, 0);
        now = reserved(pool, now);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    missing = move(grant, pool, now);
    charge_anyway(grant, missing);
    move(grant, pool, now);
    egpu_grant_drop(grant);
    return result;
}

static CUresult device_pool(CUmemoryPool *pool) {
    CUdevice device;
    CUresult result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuCtxGetDevice, &device);
    return result != CUDA_SUCCESS ? result : EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuDeviceGetMemPool, pool, device);
}

#define ASYNC(source, name, stream, ...)                                                                              \
    do {                                                                                                              \
        struct egpu_grant grant;                                                                                      \
        CUmemoryPool from = source;                                                                                   \
        if (dptr == NULL || egpu_inside)                                                                              \
            return EGPU_CALL(CUDA_ERROR_NOT_FOUND, name, __VA_ARGS__);                                                \
        CUresult result = egpu_grant_here(&grant, EGPU_KIND_RESERVED);                                                \
        egpu_inside++;                                                                                                \
        if (result == CUDA_SUCCESS && from == NULL)                                                                   \
            result = device_pool(&from);                                                                              \
        if (result == CUDA_SUCCESS && !meet(grant.state, from, grant.card))                                           \
            result = CUDA_ERROR_OUT_OF_MEMORY;                                                                        \
        if (result == CUDA_SUCCESS)                                                                                   \
            result = open_async(&grant, from, bytesize);                                                              \
        if (result == CUDA_SUCCESS) {                                                                                 \
            result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, name, __VA_ARGS__);                                              \
            result = close_async(&grant, from, result, *dptr, stream);                                                \
        }                                                                                                             \
        egpu_inside--;                                                                                                \
        return result;                                                                                                \
    } while (0)

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
    ASYNC(NULL, cuMemAllocAsync, hStream, dptr, bytesize, hStream);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
    ASYNC(NULL, cuMemAllocAsync_ptsz, hStream, dptr, bytesize, hStream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) {
    ASYNC(pool, cuMemAllocFromPoolAsync, hStream, dptr, bytesize, pool, hStream);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) {
    ASYNC(pool, cuMemAllocFromPoolAsync_ptsz, hStream, dptr, bytesize, pool, hStream);
}

/* ---- pools --------------------------------------------------------------------------------------------------- */

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps) {
    struct egpu_grant grant;
    CUresult result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemPoolCreate, pool, poolProps);
    if (result == CUDA_SUCCESS && poolProps->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
        egpu_grant_on(&grant, poolProps->location.id, EGPU_KIND_RESERVED) == CUDA_SUCCESS && grant.state != NULL)
        meet(grant.state, *pool, grant.card);
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    struct egpu_entry entry;
    struct egpu_state *state = egpu_inside ? NULL : egpu_state();
    int known = state != NULL && egpu_map_take(&state->map, EGPU_SPACE_POOL, (uintptr_t)pool, &entry);
    CUresult result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemPoolDestroy, pool);
    if (known && result == CUDA_SUCCESS) {
        __atomic_fetch_sub(&state->pools, 1, __ATOMIC_RELAXED);
        egpu_entry_release(state, &entry);
    } else if (known) {
        egpu_map_put(&state->map, &entry);
    }
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
    CUresult result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemPoolTrimTo, pool, minBytesToKeep);
    struct egpu_state *state = egpu_inside ? NULL : egpu_state();
    if (result == CUDA_SUCCESS && state != NULL && load_acquire(&state->seat.header) != NULL)
        egpu_pools_refresh(state);
    return result;
}
