/* Arrays: charged by what their description says they take, in whole granules. */
#include "grant.h"

#include <string.h>

static uint64_t times(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t element(unsigned int format, unsigned int channels) {
    switch (format) {
    case 0x01: /* 8-bit integers */
    case 0x08:
        return channels;
    case 0x02: /* 16-bit integers and half */
    case 0x09:
    case 0x10:
        return 2ull * channels;
    case 0x03: /* 32-bit integers and float */
    case 0x0a:
    case 0x20:
        return 4ull * channels;
    default: /* packed, planar and block-compressed formats: at most 16 bytes an element */
        return 16;
    }
}

static uint64_t volume(uint64_t width, uint64_t height, uint64_t depth, unsigned int format, unsigned int channels) {
    uint64_t rows = times(height ? height : 1, depth ? depth : 1);
    return times(times(width, element(format, channels)), rows);
}

static uint64_t levels(uint64_t bytes, unsigned int count) {
    uint64_t sum = bytes;
    for (unsigned int i = 1; i < count && i < 32; i++)
        sum = sum > UINT64_MAX - (bytes >> i) ? UINT64_MAX : sum + (bytes >> i); /* at most half of the level above */
    return sum;
}

static CUresult settle(struct egpu_grant *grant, CUresult result, void *handle, int *kept) {
    *kept = result == CUDA_SUCCESS && egpu_grant_keep(grant, EGPU_SPACE_ARRAY, (uintptr_t)handle);
    if (!*kept)
        egpu_grant_drop(grant);
    return result == CUDA_SUCCESS && !*kept ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

#define ARRAY(description, bytes, destroy, name, ...)                                                                 \
    do {                                                                                                              \
        struct egpu_grant grant;                                                                                      \
        int kept;                                                                                                     \
        if (pHandle == NULL || (description) == NULL || egpu_inside)                                                  \
            return EGPU_CALL(CUDA_ERROR_NOT_FOUND, name, __VA_ARGS__);                                                \
        CUresult result = egpu_grant_here(&grant, EGPU_KIND_DATA);                                                    \
        if (result == CUDA_SUCCESS)                                                                                   \
            result = egpu_grant_charge(&grant, egpu_granules(bytes));                                                 \
        if (result != CUDA_SUCCESS)                                                                                   \
            return result;                                                                                            \
        egpu_inside++;                                                                                                \
        CUresult answer = EGPU_CALL(CUDA_ERROR_NOT_FOUND, name, __VA_ARGS__);                                         \
        result = settle(&grant, answer, *pHandle, &kept);                                                             \
        if (answer == CUDA_SUCCESS && !kept)                                                                          \
            EGPU_CALL(CUDA_ERROR_NOT_FOUND, destroy, *pHandle);                                                       \
        egpu_inside--;                                                                                                \
        return result;                                                                                                \
    } while (0)

#define FLAT(d) volume((d)->Width, (d)->Height, 1, (d)->Format, (d)->NumChannels)
#define DEEP(d) volume((d)->Width, (d)->Height, (d)->Depth, (d)->Format, (d)->NumChannels)

CUresult cuArrayCreate(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *pAllocateArray) {
    ARRAY(pAllocateArray, FLAT(pAllocateArray), cuArrayDestroy, cuArrayCreate, pHandle, pAllocateArray);
}

CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray) {
    ARRAY(pAllocateArray, FLAT(pAllocateArray), cuArrayDestroy, cuArrayCreate_v2, pHandle, pAllocateArray);
}

CUresult cuArray3DCreate(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *pAllocateArray) {
    ARRAY(pAllocateArray, DEEP(pAllocateArray), cuArrayDestroy, cuArray3DCreate, pHandle, pAllocateArray);
}

CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray) {
    ARRAY(pAllocateArray, DEEP(pAllocateArray), cuArrayDestroy, cuArray3DCreate_v2, pHandle, pAllocateArray);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                unsigned int numMipmapLevels) {
    ARRAY(pMipmappedArrayDesc, levels(DEEP(pMipmappedArrayDesc), numMipmapLevels), cuMipmappedArrayDestroy,
          cuMipmappedArrayCreate, pHandle, pMipmappedArrayDesc, numMipmapLevels);
}

EGPU_DESTROY(EGPU_SPACE_ARRAY, cuArrayDestroy, CUarray)
EGPU_DESTROY(EGPU_SPACE_ARRAY, cuMipmappedArrayDestroy, CUmipmappedArray)
