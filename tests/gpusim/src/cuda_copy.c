/* Copies, sets and arrays. The bytes move at once; the time they take is simulated. */
#include <stdlib.h>
#include <string.h>

#include "cuda_internal.h"

struct CUarray_st {
    uint32_t magic;
    CUDA_ARRAY3D_DESCRIPTOR desc;
    CUdeviceptr ptr;
    size_t row; /* bytes */
};

struct CUmipmappedArray_st {
    uint32_t magic;
    unsigned levels;
    CUarray level[16];
};

#define BYTES(p) ((void *)(uintptr_t)(p))
#define ADDRESS(p) ((CUdeviceptr)(uintptr_t)(p))

enum way { HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, ANY_TO_ANY };

/* Every byte is of memory that the driver knows; a span may run through neighbouring mappings. */
static bool known(CUdeviceptr ptr, size_t bytes)
{
    struct range r;
    while (bytes) {
        if (!gs_find(ptr, &r) || ptr >= r.base + r.size)
            return false;
        size_t here = r.base + r.size - ptr;
        if (here >= bytes)
            return true;
        ptr += here;
        bytes -= here;
    }
    return true;
}

static CUresult take_time(CUstream handle, size_t bytes, enum way way, bool wait, bool *captured)
{
    CUstream stream;
    uint64_t rate = way == DEVICE_TO_DEVICE ? DEVICE_BYTES_PER_NS : COPY_BYTES_PER_NS;
    TRY(gs_stream(handle, &stream));
    *captured = false;
    if (stream->capture && !wait) {
        *captured = true;
        return gs_capture_node(stream, 1, bytes / rate) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    REQUIRE(!gs_card(stream->ctx->device)->lost, CUDA_ERROR_LAUNCH_FAILED);
    gs_push(stream, bytes / rate, false);
    if (wait)
        gs_stream_wait(stream);
    return CUDA_SUCCESS;
}

static CUresult copy(CUdeviceptr dst, CUdeviceptr src, size_t bytes, enum way way, CUstream stream, bool wait)
{
    bool captured;
    TRY(gs_ready());
    REQUIRE(way == DEVICE_TO_HOST || known(dst, bytes), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(way == HOST_TO_DEVICE || known(src, bytes), CUDA_ERROR_INVALID_VALUE);
    REQUIRE((dst && src) || !bytes, CUDA_ERROR_INVALID_VALUE);
    TRY(take_time(stream, bytes, way, wait, &captured));
    if (bytes && !captured)
        memmove(BYTES(dst), BYTES(src), bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    struct range r;
    TRY(gs_ready());
    bool from = gs_find(src, &r), to = gs_find(dst, &r);
    return copy(dst, src, ByteCount, from ? to ? DEVICE_TO_DEVICE : DEVICE_TO_HOST : HOST_TO_DEVICE, NULL, true);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
    struct range r;
    TRY(gs_ready());
    bool from = gs_find(src, &r), to = gs_find(dst, &r);
    return copy(dst, src, ByteCount, from ? to ? DEVICE_TO_DEVICE : DEVICE_TO_HOST : HOST_TO_DEVICE, hStream, false);
}

CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
                      size_t ByteCount)
{
    TRY(gs_context_check(dstContext));
    TRY(gs_context_check(srcContext));
    return copy(dstDevice, srcDevice, ByteCount, DEVICE_TO_DEVICE, NULL, true);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
                           size_t ByteCount, CUstream hStream)
{
    TRY(gs_context_check(dstContext));
    TRY(gs_context_check(srcContext));
    return copy(dstDevice, srcDevice, ByteCount, DEVICE_TO_DEVICE, hStream, false);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
    return copy(dstDevice, ADDRESS(srcHost), ByteCount, HOST_TO_DEVICE, NULL, true);
}

CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    return copy(ADDRESS(dstHost), srcDevice, ByteCount, DEVICE_TO_HOST, NULL, true);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
    return copy(dstDevice, srcDevice, ByteCount, DEVICE_TO_DEVICE, NULL, true);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream)
{
    return copy(dstDevice, ADDRESS(srcHost), ByteCount, HOST_TO_DEVICE, hStream, false);
}

CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    return copy(ADDRESS(dstHost), srcDevice, ByteCount, DEVICE_TO_HOST, hStream, false);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    return copy(dstDevice, srcDevice, ByteCount, DEVICE_TO_DEVICE, hStream, false);
}

/* arrays: rows one after the other */

static CUresult array_check(CUarray a)
{
    TRY(gs_ready());
    return a && a->magic == MAGIC_ARRAY ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static size_t element_bytes(int format)
{
    switch (format) {
    case 0x01: case 0x08: return 1;
    case 0x02: case 0x09: case 0x10: return 2;
    case 0x03: case 0x0a: case 0x20: return 4;
    default: return 0;
    }
}

CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    REQUIRE(pHandle && pAllocateArray && pAllocateArray->Width, CUDA_ERROR_INVALID_VALUE);
    const CUDA_ARRAY3D_DESCRIPTOR *d = pAllocateArray;
    size_t row = d->Width * element_bytes(d->Format) * d->NumChannels;
    REQUIRE(row, CUDA_ERROR_INVALID_VALUE);
    CUarray a = calloc(1, sizeof *a);
    REQUIRE(a, CUDA_ERROR_OUT_OF_MEMORY);
    *a = (struct CUarray_st){.magic = MAGIC_ARRAY, .desc = *d, .row = row};
    size_t bytes = row * (d->Height ? d->Height : 1) * (d->Depth ? d->Depth : 1);
    CUresult rc = gs_alloc(ctx->device, ctx, bytes, MEMORY_DEVICE, &a->ptr);
    if (rc == CUDA_SUCCESS)
        *pHandle = a;
    else
        free(a);
    return rc;
}

CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *d)
{
    REQUIRE(d, CUDA_ERROR_INVALID_VALUE);
    CUDA_ARRAY3D_DESCRIPTOR full = {.Width = d->Width, .Height = d->Height, .Format = d->Format,
                                    .NumChannels = d->NumChannels};
    return cuArray3DCreate_v2(pHandle, &full);
}

CUresult cuArray3DCreate(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d)
{
    REQUIRE(d, CUDA_ERROR_INVALID_VALUE);
    CUDA_ARRAY3D_DESCRIPTOR full = {.Width = d->Width, .Height = d->Height, .Depth = d->Depth, .Format = d->Format,
                                    .NumChannels = d->NumChannels, .Flags = d->Flags};
    return cuArray3DCreate_v2(pHandle, &full);
}

CUresult cuArrayCreate(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *d)
{
    REQUIRE(d, CUDA_ERROR_INVALID_VALUE);
    CUDA_ARRAY3D_DESCRIPTOR full = {.Width = d->Width, .Height = d->Height, .Format = d->Format,
                                    .NumChannels = d->NumChannels};
    return cuArray3DCreate_v2(pHandle, &full);
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
    TRY(array_check(hArray));
    REQUIRE(pArrayDescriptor, CUDA_ERROR_INVALID_VALUE);
    *pArrayDescriptor = hArray->desc;
    return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
    TRY(array_check(hArray));
    REQUIRE(pArrayDescriptor, CUDA_ERROR_INVALID_VALUE);
    *pArrayDescriptor = (CUDA_ARRAY_DESCRIPTOR){.Width = hArray->desc.Width, .Height = hArray->desc.Height,
                                                .Format = hArray->desc.Format, .NumChannels = hArray->desc.NumChannels};
    return CUDA_SUCCESS;
}

CUresult cuArrayDestroy(CUarray hArray)
{
    TRY(array_check(hArray));
    hArray->magic = MAGIC_DEAD;
    gs_free(hArray->ptr);
    free(hArray);
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                unsigned int numMipmapLevels)
{
    TRY(gs_ready());
    REQUIRE(pHandle && pMipmappedArrayDesc && numMipmapLevels, CUDA_ERROR_INVALID_VALUE);
    CUmipmappedArray m = calloc(1, sizeof *m);
    REQUIRE(m, CUDA_ERROR_OUT_OF_MEMORY);
    m->magic = MAGIC_ARRAY;
    CUDA_ARRAY3D_DESCRIPTOR d = *pMipmappedArrayDesc;
    for (unsigned i = 0; i < numMipmapLevels && i < 16 && d.Width; i++, m->levels++) {
        CUresult rc = cuArray3DCreate_v2(&m->level[i], &d);
        if (rc != CUDA_SUCCESS) {
            cuMipmappedArrayDestroy(m);
            return rc;
        }
        d.Width /= 2;
        d.Height = d.Height > 1 ? d.Height / 2 : d.Height;
        d.Depth = d.Depth > 1 ? d.Depth / 2 : d.Depth;
    }
    *pHandle = m;
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetLevel(CUarray *pLevelArray, CUmipmappedArray hMipmappedArray, unsigned int level)
{
    TRY(gs_ready());
    REQUIRE(pLevelArray && hMipmappedArray && level < hMipmappedArray->levels, CUDA_ERROR_INVALID_VALUE);
    *pLevelArray = hMipmappedArray->level[level];
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
    TRY(gs_ready());
    REQUIRE(hMipmappedArray && hMipmappedArray->magic == MAGIC_ARRAY, CUDA_ERROR_INVALID_HANDLE);
    for (unsigned i = 0; i < hMipmappedArray->levels; i++)
        cuArrayDestroy(hMipmappedArray->level[i]);
    free(hMipmappedArray);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoA_v2(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount)
{
    TRY(array_check(dstArray));
    return copy(dstArray->ptr + dstOffset, srcDevice, ByteCount, DEVICE_TO_DEVICE, NULL, true);
}

CUresult cuMemcpyAtoD_v2(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
    TRY(array_check(srcArray));
    return copy(dstDevice, srcArray->ptr + srcOffset, ByteCount, DEVICE_TO_DEVICE, NULL, true);
}

CUresult cuMemcpyHtoA_v2(CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount)
{
    TRY(array_check(dstArray));
    return copy(dstArray->ptr + dstOffset, ADDRESS(srcHost), ByteCount, HOST_TO_DEVICE, NULL, true);
}

CUresult cuMemcpyAtoH_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
    TRY(array_check(srcArray));
    return copy(ADDRESS(dstHost), srcArray->ptr + srcOffset, ByteCount, DEVICE_TO_HOST, NULL, true);
}

CUresult cuMemcpyAtoA_v2(CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
    TRY(array_check(dstArray));
    TRY(array_check(srcArray));
    return copy(dstArray->ptr + dstOffset, srcArray->ptr + srcOffset, ByteCount, DEVICE_TO_DEVICE, NULL, true);
}

CUresult cuMemcpyHtoAAsync_v2(CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount,
                              CUstream hStream)
{
    TRY(array_check(dstArray));
    return copy(dstArray->ptr + dstOffset, ADDRESS(srcHost), ByteCount, HOST_TO_DEVICE, hStream, false);
}

CUresult cuMemcpyAtoHAsync_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount, CUstream hStream)
{
    TRY(array_check(srcArray));
    return copy(ADDRESS(dstHost), srcArray->ptr + srcOffset, ByteCount, DEVICE_TO_HOST, hStream, false);
}

/* boxes */

struct side {
    int type;
    CUdeviceptr base;
    size_t pitch, slice;
};

enum { SIDE_HOST = 1, SIDE_DEVICE = 2, SIDE_ARRAY = 3, SIDE_UNIFIED = 4 };

static CUresult side_of(int type, const void *host, CUdeviceptr device, CUarray array, size_t pitch, size_t height,
                        struct side *out)
{
    *out = (struct side){.type = type, .base = type == SIDE_HOST ? ADDRESS(host) : device, .pitch = pitch,
                         .slice = pitch * height};
    if (type == SIDE_ARRAY) {
        TRY(array_check(array));
        out->base = array->ptr;
        out->pitch = array->row;
        out->slice = array->row * (array->desc.Height ? array->desc.Height : 1);
    }
    return type >= SIDE_HOST && type <= SIDE_UNIFIED && out->base ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool box_known(const struct side *s, size_t width, size_t height, size_t depth)
{
    return s->type == SIDE_HOST || s->type == SIDE_UNIFIED ||
           known(s->base, (depth - 1) * s->slice + (height - 1) * s->pitch + width);
}

static CUresult copy_box(const CUDA_MEMCPY3D *c, CUstream stream, bool wait)
{
    struct side src, dst;
    bool captured;
    TRY(gs_ready());
    REQUIRE(c, CUDA_ERROR_INVALID_VALUE);
    if (!c->WidthInBytes || !c->Height || !c->Depth)
        return CUDA_SUCCESS;
    TRY(side_of(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray, c->srcPitch ? c->srcPitch : c->WidthInBytes,
                c->srcHeight ? c->srcHeight : c->Height, &src));
    TRY(side_of(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray, c->dstPitch ? c->dstPitch : c->WidthInBytes,
                c->dstHeight ? c->dstHeight : c->Height, &dst));
    src.base += c->srcXInBytes + c->srcY * src.pitch + c->srcZ * src.slice;
    dst.base += c->dstXInBytes + c->dstY * dst.pitch + c->dstZ * dst.slice;
    REQUIRE(box_known(&src, c->WidthInBytes, c->Height, c->Depth), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(box_known(&dst, c->WidthInBytes, c->Height, c->Depth), CUDA_ERROR_INVALID_VALUE);
    enum way way = src.type == SIDE_HOST || dst.type == SIDE_HOST ? ANY_TO_ANY : DEVICE_TO_DEVICE;
    TRY(take_time(stream, c->WidthInBytes * c->Height * c->Depth, way, wait, &captured));
    for (size_t z = 0; z < c->Depth && !captured; z++)
        for (size_t y = 0; y < c->Height; y++)
            memmove(BYTES(dst.base + z * dst.slice + y * dst.pitch), BYTES(src.base + z * src.slice + y * src.pitch),
                    c->WidthInBytes);
    return CUDA_SUCCESS;
}

static CUresult copy_rectangle(const CUDA_MEMCPY2D *c, CUstream stream, bool wait)
{
    REQUIRE(c, CUDA_ERROR_INVALID_VALUE);
    CUDA_MEMCPY3D box = {
        .srcXInBytes = c->srcXInBytes, .srcY = c->srcY, .srcMemoryType = c->srcMemoryType, .srcHost = c->srcHost,
        .srcDevice = c->srcDevice, .srcArray = c->srcArray, .srcPitch = c->srcPitch, .dstXInBytes = c->dstXInBytes,
        .dstY = c->dstY, .dstMemoryType = c->dstMemoryType, .dstHost = c->dstHost, .dstDevice = c->dstDevice,
        .dstArray = c->dstArray, .dstPitch = c->dstPitch, .WidthInBytes = c->WidthInBytes, .Height = c->Height,
        .Depth = 1,
    };
    return copy_box(&box, stream, wait);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy)
{
    return copy_rectangle(pCopy, NULL, true);
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy)
{
    return copy_rectangle(pCopy, NULL, true);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream)
{
    return copy_rectangle(pCopy, hStream, false);
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy)
{
    return copy_box(pCopy, NULL, true);
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream)
{
    return copy_box(pCopy, hStream, false);
}

/* sets */

static void fill(char *at, unsigned value, size_t size, size_t count)
{
    if (size == 1) {
        memset(at, (int)value, count);
        return;
    }
    for (size_t i = 0; i < count; i++)
        memcpy(at + i * size, &value, size);
}

static CUresult set(CUdeviceptr dst, size_t pitch, unsigned value, size_t size, size_t width, size_t height,
                    CUstream stream)
{
    CUstream s;
    TRY(gs_stream(stream, &s));
    if (!width || !height)
        return CUDA_SUCCESS;
    REQUIRE(dst % size == 0 && known(dst, (height - 1) * pitch + width * size), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(!gs_card(s->ctx->device)->lost, CUDA_ERROR_LAUNCH_FAILED);
    if (s->capture)
        return gs_capture_node(s, 2, width * height * size / DEVICE_BYTES_PER_NS) ? CUDA_SUCCESS
                                                                                  : CUDA_ERROR_OUT_OF_MEMORY;
    gs_push(s, width * height * size / DEVICE_BYTES_PER_NS, true);
    for (size_t y = 0; y < height; y++)
        fill(BYTES(dst + y * pitch), value, size, width);
    return CUDA_SUCCESS;
}

#define SET(bits, type)                                                                                        \
    CUresult cuMemsetD##bits##_v2(CUdeviceptr dst, type value, size_t N)                                       \
    {                                                                                                          \
        return set(dst, 0, value, bits / 8, N, 1, NULL);                                                       \
    }                                                                                                          \
    CUresult cuMemsetD##bits##Async(CUdeviceptr dst, type value, size_t N, CUstream stream)                    \
    {                                                                                                          \
        return set(dst, 0, value, bits / 8, N, 1, stream);                                                     \
    }                                                                                                          \
    CUresult cuMemsetD2D##bits##_v2(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height)    \
    {                                                                                                          \
        return set(dst, pitch, value, bits / 8, width, height, NULL);                                          \
    }                                                                                                          \
    CUresult cuMemsetD2D##bits##Async(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height,  \
                                      CUstream stream)                                                         \
    {                                                                                                          \
        return set(dst, pitch, value, bits / 8, width, height, stream);                                        \
    }

SET(8, unsigned char)
SET(16, unsigned short)
SET(32, unsigned int)
