/* Allocations: device, managed, host, pools, arrays; and what an address is. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_internal.h"

#define PITCH_ALIGN 512
#define HOST_FLAGS_MAPPED 2

uint64_t gs_round(uint64_t bytes, uint64_t granule)
{
    return (bytes + granule - 1) & ~(granule - 1);
}

/* regions: everything with an address that is not of an arena */

static struct range *regions;
static size_t region_count, region_room;
static pthread_mutex_t region_lock = PTHREAD_MUTEX_INITIALIZER;

/* Index of the first region that begins above `ptr`. */
static size_t region_after(CUdeviceptr ptr)
{
    size_t low = 0, high = region_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (regions[middle].base <= ptr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool region_grow(void)
{
    if (region_count < region_room)
        return true;
    size_t room = region_room ? region_room * 2 : 64;
    struct range *grown = realloc(regions, room * sizeof *grown);
    if (!grown)
        return false;
    regions = grown;
    region_room = room;
    return true;
}

CUresult gs_region_add(const struct range *range)
{
    pthread_mutex_lock(&region_lock);
    bool ok = region_grow();
    if (ok) {
        size_t at = region_after(range->base);
        memmove(&regions[at + 1], &regions[at], (region_count - at) * sizeof *regions);
        regions[at] = *range;
        region_count++;
    }
    pthread_mutex_unlock(&region_lock);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool gs_region_remove(CUdeviceptr base, enum memory_kind kind, struct range *out)
{
    pthread_mutex_lock(&region_lock);
    size_t at = region_after(base);
    bool found = at > 0 && regions[at - 1].base == base && regions[at - 1].kind == kind;
    if (found) {
        *out = regions[at - 1];
        memmove(&regions[at - 1], &regions[at], (region_count - at) * sizeof *regions);
        region_count--;
    }
    pthread_mutex_unlock(&region_lock);
    return found;
}

static bool region_find(CUdeviceptr ptr, struct range *out)
{
    pthread_mutex_lock(&region_lock);
    size_t at = region_after(ptr);
    bool found = at > 0 && ptr - regions[at - 1].base < regions[at - 1].size;
    if (found)
        *out = regions[at - 1];
    pthread_mutex_unlock(&region_lock);
    return found;
}

bool gs_find(CUdeviceptr ptr, struct range *out)
{
    for (int i = 0; i < gs.device_count; i++) {
        struct device *d = &gs.devices[i];
        if (!arena_holds(__atomic_load_n(&d->arena, __ATOMIC_ACQUIRE), ptr))
            continue;
        pthread_mutex_lock(&d->lock);
        bool found = arena_find(d->arena, ptr, out);
        pthread_mutex_unlock(&d->lock);
        out->device = i;
        return found;
    }
    return gs_pool_find(ptr, out) || region_find(ptr, out);
}

/* device memory */

/* Bytes the card loses: whole 2 MiB blocks, shared by small allocations; or each allocation rounded up by itself. */
static uint64_t price(const struct arena *arena, uint64_t bytes, uint64_t granule)
{
    if (granule < BLOCK_BYTES || bytes > BLOCK_BYTES / 2)
        return gs_round(bytes, granule);
    return arena_small_room(arena, bytes) ? 0 : BLOCK_BYTES;
}

static CUresult alloc_locked(struct device *d, int device, CUcontext ctx, uint64_t bytes, enum memory_kind kind,
                             CUdeviceptr *out)
{
    if (!d->arena)
        __atomic_store_n(&d->arena, arena_new(gs_card(device)->memory), __ATOMIC_RELEASE);
    REQUIRE(d->arena, CUDA_ERROR_OUT_OF_MEMORY);
    uint64_t granule = gs.state->granule;
    uint64_t charged = price(d->arena, bytes, granule);
    bool new_block;
    TRY(gs_charge(device, CHARGE_DATA, charged));
    *out = arena_alloc(d->arena, bytes, ctx, kind, charged, &new_block);
    if (*out)
        return CUDA_SUCCESS;
    gs_uncharge(device, CHARGE_DATA, charged);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult gs_alloc(int device, CUcontext ctx, uint64_t bytes, enum memory_kind kind, CUdeviceptr *out)
{
    struct device *d = &gs.devices[device];
    REQUIRE(bytes <= gs_card(device)->memory, CUDA_ERROR_OUT_OF_MEMORY);
    pthread_mutex_lock(&d->lock);
    CUresult rc = alloc_locked(d, device, ctx, bytes, kind, out);
    pthread_mutex_unlock(&d->lock);
    if (rc != CUDA_ERROR_OUT_OF_MEMORY)
        return rc;
    gs_pools_trim(device, true);
    pthread_mutex_lock(&d->lock);
    rc = alloc_locked(d, device, ctx, bytes, kind, out);
    pthread_mutex_unlock(&d->lock);
    return rc;
}

static CUresult free_locked(struct device *d, int device, CUdeviceptr ptr)
{
    uint64_t charged;
    bool block_empty;
    REQUIRE(arena_free(d->arena, ptr, &charged, &block_empty), CUDA_ERROR_INVALID_VALUE);
    if (gs.state->granule == BLOCK_BYTES && charged <= BLOCK_BYTES) /* a shared block is paid by whoever leaves last */
        charged = block_empty ? BLOCK_BYTES : 0;
    if (charged)
        gs_uncharge(device, CHARGE_DATA, charged);
    return CUDA_SUCCESS;
}

CUresult gs_free(CUdeviceptr ptr)
{
    for (int i = 0; i < gs.device_count; i++) {
        struct device *d = &gs.devices[i];
        if (!arena_holds(__atomic_load_n(&d->arena, __ATOMIC_ACQUIRE), ptr))
            continue;
        pthread_mutex_lock(&d->lock);
        CUresult rc = free_locked(d, i, ptr);
        pthread_mutex_unlock(&d->lock);
        return rc;
    }
    return gs_pool_free(ptr);
}

void gs_free_context(CUcontext ctx)
{
    struct device *d = &gs.devices[ctx->device];
    CUdeviceptr at = 0;
    pthread_mutex_lock(&d->lock);
    while (d->arena && (at = arena_first_of(d->arena, ctx, at)))
        free_locked(d, ctx->device, at);
    pthread_mutex_unlock(&d->lock);
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    REQUIRE(free && total, CUDA_ERROR_INVALID_VALUE);
    uint32_t index = gs.devices[ctx->device].card;
    struct gpusim_card *card = &gs.state->cards[index];
    gs_lock_card(gs.state, index);
    *total = card->memory;
    *free = card->memory - card->used;
    bool lost = card->lost;
    gs_unlock_card(gs.state, index);
    return lost ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
}

static CUresult alloc_current(CUdeviceptr *dptr, uint64_t bytes, enum memory_kind kind)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    REQUIRE(dptr && bytes, CUDA_ERROR_INVALID_VALUE);
    return gs_alloc(ctx->device, ctx, bytes, kind, dptr);
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    return alloc_current(dptr, bytesize, MEMORY_DEVICE);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes)
{
    REQUIRE(pPitch && WidthInBytes && Height, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(ElementSizeBytes == 4 || ElementSizeBytes == 8 || ElementSizeBytes == 16, CUDA_ERROR_INVALID_VALUE);
    *pPitch = gs_round(WidthInBytes, PITCH_ALIGN);
    return alloc_current(dptr, *pPitch * Height, MEMORY_DEVICE);
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    REQUIRE(dptr, CUDA_SUCCESS);
    gs_context_wait(ctx);
    return gs_free(dptr);
}

/* The calls of CUDA 2: a pointer of 32 bits cannot hold an address of here. */

CUresult cuMemAlloc(unsigned int *dptr, unsigned int bytesize)
{
    (void)dptr;
    (void)bytesize;
    TRY(gs_ready());
    return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuMemAllocPitch(unsigned int *dptr, unsigned int *pPitch, unsigned int WidthInBytes, unsigned int Height,
                         unsigned int ElementSizeBytes)
{
    (void)pPitch;
    (void)WidthInBytes;
    (void)Height;
    (void)ElementSizeBytes;
    return cuMemAlloc(dptr, 0);
}

CUresult cuMemFree(unsigned int dptr)
{
    (void)dptr;
    TRY(gs_ready());
    return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total)
{
    size_t free_bytes, total_bytes;
    REQUIRE(free && total, CUDA_ERROR_INVALID_VALUE);
    TRY(cuMemGetInfo_v2(&free_bytes, &total_bytes));
    *free = free_bytes > UINT32_MAX ? UINT32_MAX : (unsigned int)free_bytes;
    *total = total_bytes > UINT32_MAX ? UINT32_MAX : (unsigned int)total_bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    REQUIRE(flags == 1 || flags == 2, CUDA_ERROR_INVALID_VALUE);
    return alloc_current(dptr, bytesize, MEMORY_MANAGED);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    struct range r;
    TRY(gs_ready());
    REQUIRE(gs_find(dptr, &r), CUDA_ERROR_NOT_FOUND);
    if (pbase)
        *pbase = r.base;
    if (psize)
        *psize = r.size;
    return CUDA_SUCCESS;
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags,
                               CUstream hStream)
{
    struct range r;
    CUstream stream;
    (void)location;
    (void)flags;
    TRY(gs_stream(hStream, &stream));
    REQUIRE(count && gs_find(devPtr, &r) && r.kind == MEMORY_MANAGED, CUDA_ERROR_INVALID_VALUE);
    gs_push(stream, count / COPY_BYTES_PER_NS, false);
    return CUDA_SUCCESS;
}

CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream)
{
    return cuMemPrefetchAsync_v2(devPtr, count, (CUmemLocation){1, dstDevice}, 0, hStream);
}

CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUmemLocation location)
{
    struct range r;
    (void)advice;
    (void)location;
    TRY(gs_ready());
    REQUIRE(count && gs_find(devPtr, &r) && r.kind == MEMORY_MANAGED, CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device)
{
    return cuMemAdvise_v2(devPtr, count, advice, (CUmemLocation){1, device});
}

CUresult cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags)
{
    struct range r;
    CUstream stream;
    (void)length;
    (void)flags;
    TRY(gs_stream(hStream, &stream));
    return gs_find(dptr, &r) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* host memory */

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    REQUIRE(pp && bytesize, CUDA_ERROR_INVALID_VALUE);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *p = mmap(NULL, gs_round(bytesize, page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(p != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
    struct range r = {.base = (uintptr_t)p, .size = bytesize, .kind = MEMORY_HOST, .device = ctx->device, .ctx = ctx,
                      .flags = Flags, .owner = p};
    CUresult rc = gs_region_add(&r);
    if (rc != CUDA_SUCCESS)
        munmap(p, gs_round(bytesize, page));
    else
        *pp = p;
    return rc;
}

CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    return cuMemHostAlloc(pp, bytesize, 0);
}

CUresult cuMemFreeHost(void *p)
{
    struct range r;
    TRY(gs_ready());
    REQUIRE(gs_region_remove((uintptr_t)p, MEMORY_HOST, &r), CUDA_ERROR_INVALID_VALUE);
    if (!r.owner) { /* registered, not allocated */
        gs_region_add(&r);
        return CUDA_ERROR_INVALID_VALUE;
    }
    munmap(p, gs_round(r.size, (size_t)sysconf(_SC_PAGESIZE)));
    return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
    CUcontext ctx;
    struct range r;
    TRY(gs_current(&ctx));
    REQUIRE(p && bytesize, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(!gs_find((uintptr_t)p, &r), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    r = (struct range){.base = (uintptr_t)p, .size = bytesize, .kind = MEMORY_HOST, .device = ctx->device, .ctx = ctx,
                       .flags = Flags};
    return gs_region_add(&r);
}

CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags)
{
    return cuMemHostRegister_v2(p, bytesize, Flags);
}

CUresult cuMemHostUnregister(void *p)
{
    struct range r;
    TRY(gs_ready());
    REQUIRE(gs_region_remove((uintptr_t)p, MEMORY_HOST, &r), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    if (r.owner) {
        gs_region_add(&r);
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    struct range r;
    TRY(gs_ready());
    REQUIRE(pdptr && Flags == 0 && gs_find((uintptr_t)p, &r) && r.kind == MEMORY_HOST, CUDA_ERROR_INVALID_VALUE);
    *pdptr = (uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
    struct range r;
    TRY(gs_ready());
    REQUIRE(pFlags && gs_find((uintptr_t)p, &r) && r.kind == MEMORY_HOST, CUDA_ERROR_INVALID_VALUE);
    *pFlags = r.flags | HOST_FLAGS_MAPPED;
    return CUDA_SUCCESS;
}

/* what an address is */

enum { TYPE_HOST = 1, TYPE_DEVICE = 2 };

static CUresult pointer_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr, const struct range *r)
{
    bool host = r->kind == MEMORY_HOST;
    switch (attribute) {
    case 1: *(CUcontext *)data = r->ctx; break;
    case 2: *(unsigned *)data = host ? TYPE_HOST : TYPE_DEVICE; break;
    case 3: *(CUdeviceptr *)data = ptr; break;
    case 4:
        REQUIRE(host || r->kind == MEMORY_MANAGED, CUDA_ERROR_INVALID_VALUE);
        *(void **)data = (void *)(uintptr_t)ptr;
        break;
    case 6: *(int *)data = 0; break;
    case 7: case 20: *(unsigned long long *)data = r->base / MIN_UNIT; break;
    case 8: *(int *)data = r->kind == MEMORY_MANAGED; break;
    case 9: *(int *)data = r->device; break;
    case 10: *(int *)data = r->kind == MEMORY_DEVICE; break;
    case 11: case 19: *(CUdeviceptr *)data = r->base; break;
    case 12: case 18: *(size_t *)data = r->size; break;
    case 13: *(int *)data = 1; break;
    case 14: *(unsigned long long *)data = r->kind == MEMORY_MAPPED; break;
    case 15: *(int *)data = 0; break;
    case 16: *(unsigned *)data = 3; break;
    case 17: *(void **)data = NULL; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct range r;
    TRY(gs_ready());
    REQUIRE(data && gs_find(ptr, &r), CUDA_ERROR_INVALID_VALUE);
    return pointer_attribute(data, attribute, ptr, &r);
}

/* Unlike the singular, an address of nobody's is no error: its attributes are zero. */
CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data,
                                CUdeviceptr ptr)
{
    struct range r;
    TRY(gs_ready());
    REQUIRE(attributes && data, CUDA_ERROR_INVALID_VALUE);
    bool found = gs_find(ptr, &r);
    for (unsigned i = 0; i < numAttributes; i++) {
        bool is_int = attributes[i] == 2 || attributes[i] == 6 || attributes[i] == 8 || attributes[i] == 9 ||
                      attributes[i] == 10 || attributes[i] == 13 || attributes[i] == 15 || attributes[i] == 16;
        memset(data[i], 0, is_int ? sizeof(int) : sizeof(void *));
        if (attributes[i] == 9)
            *(int *)data[i] = -2; /* CU_DEVICE_INVALID */
        if (found)
            pointer_attribute(data[i], attributes[i], ptr, &r);
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct range r;
    TRY(gs_ready());
    REQUIRE(value && attribute == 6 && gs_find(ptr, &r), CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}
