/* Contexts: primary and created ones, and each thread's stack of current ones. */
#include <stdlib.h>
#include <string.h>

#include "cuda_internal.h"

#define STACK_DEPTH 64
#define API_VERSION 3020
#define LEAST_PRIORITY 0
#define GREATEST_PRIORITY (-5)

static __thread CUcontext stack[STACK_DEPTH];
static __thread int depth;

static const size_t DEFAULT_LIMITS[] = {1024, 1 << 20, 8 << 20, 2, 2048, 128, 0, 0};

CUresult gs_context_check(CUcontext ctx)
{
    if (!ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    uint32_t magic = __atomic_load_n(&ctx->magic, __ATOMIC_ACQUIRE);
    return magic == MAGIC_CONTEXT ? CUDA_SUCCESS
           : magic == MAGIC_DEAD  ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                  : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult gs_current(CUcontext *ctx)
{
    TRY(gs_ready());
    *ctx = depth ? stack[depth - 1] : NULL;
    return gs_context_check(*ctx);
}

static CUresult open_context(CUcontext ctx)
{
    TRY(gs_charge(ctx->device, CHARGE_CONTEXT, gs_card(ctx->device)->context_bytes));
    memcpy(ctx->limits, DEFAULT_LIMITS, sizeof ctx->limits);
    ctx->id = gs_next_id();
    ctx->streams = NULL;
    ctx->modules = NULL;
    ctx->max_tail = ctx->blocking_tail = 0;
    ctx->legacy = gs_stream_new(ctx, 0, 0);
    if (!ctx->legacy) {
        gs_uncharge(ctx->device, CHARGE_CONTEXT, gs_card(ctx->device)->context_bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    __atomic_store_n(&ctx->magic, MAGIC_CONTEXT, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

static void close_context(CUcontext ctx)
{
    gs_context_wait(ctx);
    __atomic_store_n(&ctx->magic, MAGIC_DEAD, __ATOMIC_RELEASE);
    gs_modules_free(ctx);
    gs_free_context(ctx);
    while (ctx->streams) {
        CUstream stream = ctx->streams;
        ctx->streams = stream->next;
        gs_stream_free(stream);
    }
    gs_stream_free(ctx->legacy);
    ctx->legacy = NULL;
    gs_uncharge(ctx->device, CHARGE_CONTEXT, gs_card(ctx->device)->context_bytes);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    TRY(gs_ready());
    REQUIRE(pctx, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(gs_device_ok(dev), CUDA_ERROR_INVALID_DEVICE);
    struct device *d = &gs.devices[dev];
    pthread_mutex_lock(&d->lock);
    CUresult rc = d->primary.refs ? CUDA_SUCCESS : open_context(&d->primary);
    if (rc == CUDA_SUCCESS) {
        d->primary.refs++;
        *pctx = &d->primary;
    }
    pthread_mutex_unlock(&d->lock);
    return rc;
}

/* The primary context is closed outside of the device's lock, which freeing its memory takes. */
static CUresult primary_drop(CUdevice dev, bool all)
{
    TRY(gs_ready());
    REQUIRE(gs_device_ok(dev), CUDA_ERROR_INVALID_DEVICE);
    struct device *d = &gs.devices[dev];
    pthread_mutex_lock(&d->lock);
    unsigned refs = d->primary.refs;
    unsigned left = all || refs == 0 ? 0 : refs - 1;
    bool close = refs > 0 && left == 0;
    d->primary.refs = left;
    pthread_mutex_unlock(&d->lock);
    if (close)
        close_context(&d->primary);
    return refs || all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    return primary_drop(dev, false);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    return primary_drop(dev, false);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    return primary_drop(dev, true);
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
    return primary_drop(dev, true);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
    TRY(gs_ready());
    REQUIRE(gs_device_ok(dev), CUDA_ERROR_INVALID_DEVICE);
    gs.devices[dev].primary.flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    TRY(gs_ready());
    REQUIRE(gs_device_ok(dev), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(flags && active, CUDA_ERROR_INVALID_VALUE);
    *flags = gs.devices[dev].primary.flags;
    *active = gs.devices[dev].primary.refs > 0;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
    TRY(gs_ready());
    TRY(gs_context_check(ctx));
    REQUIRE(depth < STACK_DEPTH, CUDA_ERROR_OUT_OF_MEMORY);
    stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext ctx)
{
    return cuCtxPushCurrent_v2(ctx);
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
    TRY(gs_ready());
    REQUIRE(depth > 0, CUDA_ERROR_INVALID_CONTEXT);
    depth--;
    if (pctx)
        *pctx = stack[depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *pctx)
{
    return cuCtxPopCurrent_v2(pctx);
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
    TRY(gs_ready());
    if (!ctx) {
        depth -= depth > 0;
        return CUDA_SUCCESS;
    }
    TRY(gs_context_check(ctx));
    if (depth == 0)
        depth = 1;
    stack[depth - 1] = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
    TRY(gs_ready());
    REQUIRE(pctx, CUDA_ERROR_INVALID_VALUE);
    *pctx = depth ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    TRY(gs_ready());
    REQUIRE(pctx, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(gs_device_ok(dev), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(depth < STACK_DEPTH, CUDA_ERROR_OUT_OF_MEMORY);
    CUcontext ctx = calloc(1, sizeof *ctx);
    REQUIRE(ctx, CUDA_ERROR_OUT_OF_MEMORY);
    pthread_mutex_init(&ctx->lock, NULL);
    ctx->device = dev;
    ctx->flags = flags;
    CUresult rc = open_context(ctx);
    if (rc != CUDA_SUCCESS) {
        free(ctx);
        return rc;
    }
    *pctx = stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    return cuCtxCreate_v2(pctx, flags, dev);
}

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags,
                        CUdevice dev)
{
    REQUIRE(!paramsArray && numParams == 0, CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
    return cuCtxCreate_v2(pctx, flags, dev);
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev)
{
    REQUIRE(!ctxCreateParams || (!ctxCreateParams->numExecAffinityParams && !ctxCreateParams->cigParams),
            CUDA_ERROR_NOT_SUPPORTED);
    return cuCtxCreate_v2(pctx, flags, dev);
}

/* The handle stays behind as a tombstone, so that a later use is answered and not undefined. */
CUresult cuCtxDestroy_v2(CUcontext ctx)
{
    TRY(gs_ready());
    TRY(gs_context_check(ctx));
    REQUIRE(!ctx->primary, CUDA_ERROR_INVALID_CONTEXT);
    close_context(ctx);
    if (depth && stack[depth - 1] == ctx)
        depth--;
    return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext ctx)
{
    return cuCtxDestroy_v2(ctx);
}

CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags)
{
    REQUIRE(pctx && flags == 0, CUDA_ERROR_INVALID_VALUE);
    return gs_current(pctx);
}

CUresult cuCtxDetach(CUcontext ctx)
{
    TRY(gs_ready());
    return gs_context_check(ctx);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    REQUIRE(device, CUDA_ERROR_INVALID_VALUE);
    *device = ctx->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    TRY(gs_ready());
    if (!ctx)
        return cuCtxGetDevice(device);
    TRY(gs_context_check(ctx));
    REQUIRE(device, CUDA_ERROR_INVALID_VALUE);
    *device = ctx->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    REQUIRE(flags, CUDA_ERROR_INVALID_VALUE);
    *flags = ctx->flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    ctx->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
    TRY(gs_ready());
    REQUIRE(ctxId, CUDA_ERROR_INVALID_VALUE);
    if (!ctx)
        TRY(gs_current(&ctx));
    TRY(gs_context_check(ctx));
    *ctxId = ctx->id;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
    TRY(gs_ready());
    REQUIRE(version, CUDA_ERROR_INVALID_VALUE);
    if (!ctx)
        TRY(gs_current(&ctx));
    TRY(gs_context_check(ctx));
    *version = API_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    gs_context_wait(ctx);
    return gs_card(ctx->device)->lost ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
    if (!ctx)
        return cuCtxSynchronize();
    TRY(gs_ready());
    TRY(gs_context_check(ctx));
    gs_context_wait(ctx);
    return CUDA_SUCCESS;
}

#define LIMITS 7

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    REQUIRE(limit >= 0 && limit < LIMITS, CUDA_ERROR_UNSUPPORTED_LIMIT);
    ctx->limits[limit] = value;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *pvalue, CUlimit limit)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    REQUIRE(pvalue, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(limit >= 0 && limit < LIMITS, CUDA_ERROR_UNSUPPORTED_LIMIT);
    *pvalue = ctx->limits[limit];
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *pconfig)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    REQUIRE(pconfig, CUDA_ERROR_INVALID_VALUE);
    *pconfig = ctx->cache_config;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    ctx->cache_config = config;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    if (leastPriority)
        *leastPriority = LEAST_PRIORITY;
    if (greatestPriority)
        *greatestPriority = GREATEST_PRIORITY;
    return CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache(void)
{
    CUcontext ctx;
    return gs_current(&ctx);
}

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
    CUcontext ctx;
    int can = 0;
    TRY(gs_current(&ctx));
    REQUIRE(Flags == 0, CUDA_ERROR_INVALID_VALUE);
    TRY(gs_context_check(peerContext));
    TRY(cuDeviceCanAccessPeer(&can, ctx->device, peerContext->device));
    return can ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    return gs_context_check(peerContext);
}
