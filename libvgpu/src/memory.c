/* Linear device memory, and what a card has. */
#include "grant.h"

#include <string.h>

/* ---- allocate ------------------------------------------------------------------------------------------------ */

static CUresult free_real(CUdeviceptr address) {
    if (EGPU_REAL(cuMemFree_v2) != NULL)
        return egpu_real.cuMemFree_v2(address);
    return EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemFree, (unsigned int)address);
}

/* The driver has answered: settle what it gave, or give back what was charged. */
static CUresult settle(struct egpu_grant *grant, CUresult result, CUdeviceptr address, uint64_t bytes) {
    if (result == CUDA_SUCCESS && !egpu_grant_settle(grant, address, bytes)) {
        free_real(address);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS)
        egpu_grant_drop(grant);
    return result;
}

/* Open a grant for `bytes`, call the driver, settle: the body of every call that returns an address in *out. */
#define ALLOCATE(out, bytes, actual, name, ...)                                                                       \
    do {                                                                                                              \
        struct egpu_grant grant;                                                                                      \
        CUresult result;                                                                                              \
        if ((out) == NULL)                                                                                            \
            return EGPU_CALL(CUDA_ERROR_NOT_FOUND, name, __VA_ARGS__);                                                \
        result = egpu_grant_here(&grant, EGPU_KIND_DATA);                                                             \
        if (result == CUDA_SUCCESS)                                                                                   \
            result = egpu_grant_open(&grant, (bytes));                                                                \
        if (result != CUDA_SUCCESS)                                                                                   \
            return result;                                                                                            \
        egpu_inside++;                                                                                                \
        result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, name, __VA_ARGS__);                                                  \
        if (result == CUDA_SUCCESS)                                                                                   \
            result = settle(&grant, result, *(out), (actual));                                                        \
        else                                                                                                          \
            egpu_grant_drop(&grant);                                                                                  \
        egpu_inside--;                                                                                                \
        return result;                                                                                                \
    } while (0)

CUresult cuMemAlloc(unsigned int *dptr, unsigned int bytesize) {
    ALLOCATE(dptr, bytesize, bytesize, cuMemAlloc, dptr, bytesize);
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize) {
    ALLOCATE(dptr, bytesize, bytesize, cuMemAlloc_v2, dptr, bytesize);
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
    ALLOCATE(dptr, bytesize, bytesize, cuMemAllocManaged, dptr, bytesize, flags);
}

static uint64_t times(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* The least that rows of this width can take; the driver's pitch says what they do take. */
static uint64_t pitched(uint64_t width, uint64_t height) {
    return times(width > UINT64_MAX - 511 ? width : (width + 511) / 512 * 512, height);
}

CUresult cuMemAllocPitch(unsigned int *dptr, unsigned int *pPitch, unsigned int WidthInBytes, unsigned int Height,
                         unsigned int ElementSizeBytes) {
    if (pPitch == NULL)
        return EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemAllocPitch, dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
    ALLOCATE(dptr, pitched(WidthInBytes, Height), times(*pPitch, Height), cuMemAllocPitch, dptr, pPitch, WidthInBytes,
             Height, ElementSizeBytes);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes) {
    if (pPitch == NULL)
        return EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemAllocPitch_v2, dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
    ALLOCATE(dptr, pitched(WidthInBytes, Height), times(*pPitch, Height), cuMemAllocPitch_v2, dptr, pPitch, WidthInBytes,
             Height, ElementSizeBytes);
}

/* ---- free ---------------------------------------------------------------------------------------------------- */

/* The entry goes before the driver frees: another thread may be given the same address at once. */
#define FREE(address, name)                                                                                           \
    do {                                                                                                              \
        struct egpu_entry entry;                                                                                      \
        struct egpu_state *state = egpu_inside ? NULL : egpu_state();                                                 \
        int known = state != NULL && egpu_address_take(state, (address), &entry);                                     \
        CUresult result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, name, address);                                             \
        if (known && result == CUDA_SUCCESS)                                                                          \
            egpu_address_release(state, &entry);                                                                      \
        else if (known)                                                                                               \
            egpu_address_restore(state, (address), &entry);                                                           \
        return result;                                                                                                \
    } while (0)

CUresult cuMemFree(unsigned int dptr) {
    FREE(dptr, cuMemFree);
}

CUresult cuMemFree_v2(CUdeviceptr dptr) {
    FREE(dptr, cuMemFree_v2);
}

/* ---- what a card has ----------------------------------------------------------------------------------------- */

struct view {
    uint64_t total, free;
};

/* The card as the slice sees it, from the card as the driver sees it. */
static struct view seen(const struct egpu_grant *grant, struct view real) {
    struct view view = real;
    if (grant->state == NULL || grant->limit == EGPU_MEMORY_UNLIMITED)
        return view;
    egpu_pools_refresh(grant->state);
    uint64_t used = egpu_usage_living(&grant->state->seat, grant->card);
    view.total = grant->limit < real.total ? grant->limit : real.total;
    view.free = view.total > used ? view.total - used : 0;
    view.free = view.free < real.free ? view.free : real.free;
    return view;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    struct egpu_grant grant;
    size_t free_real = 0, total_real = 0;
    CUresult result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemGetInfo_v2, free ? &free_real : NULL, total ? &total_real : NULL);
    if (result != CUDA_SUCCESS)
        return result;
    struct view view = {total ? total_real : UINT64_MAX, free ? free_real : UINT64_MAX};
    if (egpu_grant_here(&grant, EGPU_KIND_DATA) == CUDA_SUCCESS)
        view = seen(&grant, view);
    else
        view.free = 0; /* nothing could be allocated */
    if (free != NULL)
        *free = view.free;
    if (total != NULL)
        *total = view.total;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total) {
    size_t wide_free = 0, wide_total = 0;
    if (EGPU_REAL(cuMemGetInfo_v2) == NULL)
        return EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemGetInfo, free, total);
    CUresult result = cuMemGetInfo_v2(free ? &wide_free : NULL, total ? &wide_total : NULL);
    if (result == CUDA_SUCCESS && free != NULL)
        *free = wide_free > UINT32_MAX ? UINT32_MAX : (unsigned int)wide_free;
    if (result == CUDA_SUCCESS && total != NULL)
        *total = wide_total > UINT32_MAX ? UINT32_MAX : (unsigned int)wide_total;
    return result;
}

static uint64_t total_seen(CUdevice device, uint64_t real) {
    struct egpu_grant grant;
    struct view view = {real, UINT64_MAX};
    if (egpu_grant_on(&grant, device, EGPU_KIND_DATA) == CUDA_SUCCESS)
        view = seen(&grant, view);
    return view.total;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
    CUresult result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuDeviceTotalMem_v2, bytes, dev);
    if (result == CUDA_SUCCESS && bytes != NULL)
        *bytes = total_seen(dev, *bytes);
    return result;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev) {
    CUresult result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuDeviceTotalMem, bytes, dev);
    if (result == CUDA_SUCCESS && bytes != NULL)
        *bytes = (unsigned int)total_seen(dev, *bytes);
    return result;
}
