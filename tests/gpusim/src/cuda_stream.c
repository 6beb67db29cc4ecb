/* Simulated time: streams as queues whose tail is the moment of completion. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_internal.h"

#define SPIN_NS 60000
#define STREAM_NON_BLOCKING 1
#define PER_THREAD_CACHE 8

__thread unsigned gs_per_thread_default;

void gs_raise_to(uint64_t *word, uint64_t value)
{
    uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (seen < value && !__atomic_compare_exchange_n(word, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

void gs_sleep_until(uint64_t when)
{
    uint64_t now = gs_now_ns();
    if (when > now + SPIN_NS) {
        uint64_t target = when - SPIN_NS;
        struct timespec t = {.tv_sec = (time_t)(target / 1000000000u), .tv_nsec = (long)(target % 1000000000u)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
            ;
    }
    while (gs_now_ns() < when)
        sched_yield();
}

/* streams */

CUstream gs_stream_new(CUcontext ctx, unsigned flags, int priority)
{
    CUstream stream = calloc(1, sizeof *stream);
    if (!stream)
        return NULL;
    stream->magic = MAGIC_STREAM;
    stream->ctx = ctx;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = gs_next_id();
    pthread_mutex_init(&stream->lock, NULL);
    return stream;
}

void gs_stream_free(CUstream stream)
{
    stream->magic = MAGIC_DEAD;
    pthread_mutex_destroy(&stream->lock);
    free(stream);
}

static CUstream stream_add(CUcontext ctx, unsigned flags, int priority, bool per_thread)
{
    CUstream stream = gs_stream_new(ctx, flags, priority);
    if (!stream)
        return NULL;
    stream->per_thread = per_thread;
    pthread_mutex_lock(&ctx->lock);
    stream->next = ctx->streams;
    ctx->streams = stream;
    pthread_mutex_unlock(&ctx->lock);
    return stream;
}

/* Each thread has a default stream of its own in each context. */
static CUstream per_thread_stream(CUcontext ctx)
{
    static __thread struct {
        uint64_t context_id;
        CUstream stream;
    } cache[PER_THREAD_CACHE];
    static __thread unsigned next;
    for (unsigned i = 0; i < PER_THREAD_CACHE; i++)
        if (cache[i].context_id == ctx->id)
            return cache[i].stream;
    CUstream stream = stream_add(ctx, 0, 0, true);
    if (stream) {
        cache[next % PER_THREAD_CACHE].context_id = ctx->id;
        cache[next++ % PER_THREAD_CACHE].stream = stream;
    }
    return stream;
}

CUresult gs_stream(CUstream handle, CUstream *out)
{
    CUcontext ctx;
    if ((uintptr_t)handle > (uintptr_t)STREAM_PER_THREAD) {
        TRY(gs_ready());
        REQUIRE(handle->magic == MAGIC_STREAM, CUDA_ERROR_INVALID_HANDLE);
        *out = handle;
        return CUDA_SUCCESS;
    }
    TRY(gs_current(&ctx));
    bool per_thread = handle == STREAM_PER_THREAD || (!handle && gs_per_thread_default);
    *out = per_thread ? per_thread_stream(ctx) : ctx->legacy;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Adds the part of [start, end) that this process did not already keep the card busy in. */
static void count_busy(int device, uint64_t start, uint64_t end)
{
    struct gpusim_usage *usage = gs_usage(device);
    struct device *d = &gs.devices[device];
    pthread_mutex_lock(&d->busy_lock);
    uint64_t from = usage->busy_until_ns > start ? usage->busy_until_ns : start;
    if (end > from) {
        __atomic_store_n(&usage->busy_ns, usage->busy_ns + (end - from), __ATOMIC_RELAXED);
        __atomic_store_n(&usage->busy_until_ns, end, __ATOMIC_RELAXED);
    }
    usage->launches++;
    pthread_mutex_unlock(&d->busy_lock);
}

static uint64_t earliest_start(CUstream stream, uint64_t now)
{
    CUcontext ctx = stream->ctx;
    uint64_t start = stream->tail > now ? stream->tail : now;
    uint64_t other = 0;
    if (stream == ctx->legacy)
        other = __atomic_load_n(&ctx->blocking_tail, __ATOMIC_RELAXED);
    else if (!(stream->flags & STREAM_NON_BLOCKING))
        other = __atomic_load_n(&ctx->legacy->tail, __ATOMIC_RELAXED);
    return other > start ? other : start;
}

/* Queues work and returns when it will be done. Waits while the queue of the stream is full, as the driver does. */
uint64_t gs_push(CUstream stream, uint64_t duration_ns, bool device_work)
{
    pthread_mutex_lock(&stream->lock);
    uint64_t now = gs_now_ns();
    uint64_t oldest = stream->ends[stream->pushed % LAUNCH_QUEUE];
    if (oldest > now) {
        gs_sleep_until(oldest);
        now = oldest;
    }
    uint64_t start = earliest_start(stream, now);
    uint64_t end = start + duration_ns;
    stream->ends[stream->pushed++ % LAUNCH_QUEUE] = end;
    __atomic_store_n(&stream->tail, end, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&stream->lock);
    gs_raise_to(&stream->ctx->max_tail, end);
    if (stream != stream->ctx->legacy && !(stream->flags & STREAM_NON_BLOCKING))
        gs_raise_to(&stream->ctx->blocking_tail, end);
    if (device_work)
        count_busy(stream->ctx->device, start, end);
    return end;
}

void gs_stream_wait(CUstream stream)
{
    uint64_t tail = __atomic_load_n(&stream->tail, __ATOMIC_ACQUIRE);
    if (stream == stream->ctx->legacy) {
        uint64_t other = __atomic_load_n(&stream->ctx->blocking_tail, __ATOMIC_ACQUIRE);
        tail = other > tail ? other : tail;
    }
    gs_sleep_until(tail);
    gs_callbacks_done(stream);
    gs_pools_trim(stream->ctx->device, false);
}

void gs_context_wait(CUcontext ctx)
{
    uint64_t tail = __atomic_load_n(&ctx->max_tail, __ATOMIC_ACQUIRE);
    if (tail)
        gs_sleep_until(tail);
    gs_callbacks_done(NULL);
    gs_pools_trim(ctx->device, false);
}

CUresult gs_not_capturing(CUstream stream)
{
    if (!stream->capture)
        return CUDA_SUCCESS;
    stream->capture_invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    REQUIRE(phStream && flags <= STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_VALUE);
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    *phStream = stream_add(ctx, flags, priority, false);
    return *phStream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
    return cuStreamCreateWithPriority(phStream, Flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream hStream)
{
    CUstream stream;
    REQUIRE((uintptr_t)hStream > (uintptr_t)STREAM_PER_THREAD, CUDA_ERROR_INVALID_HANDLE);
    TRY(gs_stream(hStream, &stream));
    gs_callbacks_done(stream);
    CUcontext ctx = stream->ctx;
    pthread_mutex_lock(&ctx->lock);
    CUstream *at = &ctx->streams;
    while (*at && *at != stream)
        at = &(*at)->next;
    if (*at)
        *at = stream->next;
    pthread_mutex_unlock(&ctx->lock);
    gs_stream_free(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream hStream)
{
    return cuStreamDestroy_v2(hStream);
}


CUresult cuStreamGetPriority(CUstream hStream, int *priority)
{
    STREAM(hStream);
    REQUIRE(priority, CUDA_ERROR_INVALID_VALUE);
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetDevice(CUstream hStream, CUdevice *device)
{
    STREAM(hStream);
    REQUIRE(device, CUDA_ERROR_INVALID_VALUE);
    *device = stream->ctx->device;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream hStream, unsigned int *flags)
{
    STREAM(hStream);
    REQUIRE(flags, CUDA_ERROR_INVALID_VALUE);
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream hStream, unsigned long long *streamId)
{
    STREAM(hStream);
    REQUIRE(streamId, CUDA_ERROR_INVALID_VALUE);
    *streamId = stream->id;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
    STREAM(hStream);
    REQUIRE(pctx, CUDA_ERROR_INVALID_VALUE);
    *pctx = stream->ctx;
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream hStream)
{
    STREAM(hStream);
    TRY(gs_not_capturing(stream));
    gs_stream_wait(stream);
    return gs_card(stream->ctx->device)->lost ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream hStream)
{
    STREAM(hStream);
    TRY(gs_not_capturing(stream));
    bool busy = stream->callbacks || __atomic_load_n(&stream->tail, __ATOMIC_ACQUIRE) > gs_now_ns();
    return busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
    STREAM(hStream);
    REQUIRE(fn, CUDA_ERROR_INVALID_VALUE);
    if (stream->capture) {
        gs_node_host(gs_capture_node(stream, 3, 0), fn, userData);
        return CUDA_SUCCESS;
    }
    gs_callback(stream, gs_push(stream, 0, false), fn, NULL, userData);
    return CUDA_SUCCESS;
}

CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData, unsigned int flags)
{
    STREAM(hStream);
    TRY(gs_not_capturing(stream));
    REQUIRE(callback && flags == 0, CUDA_ERROR_INVALID_VALUE);
    gs_callback(stream, gs_push(stream, 0, false), NULL, callback, userData);
    return CUDA_SUCCESS;
}

CUresult cuStreamGetAttribute(CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue *value_out)
{
    STREAM(hStream);
    REQUIRE(value_out, CUDA_ERROR_INVALID_VALUE);
    memset(value_out, 0, sizeof *value_out);
    if (attr == 8) /* priority */
        value_out->priority = stream->priority;
    return CUDA_SUCCESS;
}

CUresult cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue *value)
{
    STREAM(hStream);
    REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
    if (attr == 8)
        stream->priority = value->priority;
    return CUDA_SUCCESS;
}

CUresult cuStreamCopyAttributes(CUstream dst, CUstream src)
{
    CUstream from;
    STREAM(dst);
    TRY(gs_stream(src, &from));
    stream->priority = from->priority;
    return CUDA_SUCCESS;
}

/* Memory operations of a stream: written when reached; a wait is taken as satisfied then. */

static CUresult write_value(CUstream hStream, CUdeviceptr addr, cuuint64_t value, size_t size)
{
    struct range r;
    STREAM(hStream);
    REQUIRE(gs_find(addr, &r) && addr % size == 0, CUDA_ERROR_INVALID_VALUE);
    gs_push(stream, 0, false);
    memcpy((void *)(uintptr_t)addr, &value, size);
    return CUDA_SUCCESS;
}

static CUresult wait_value(CUstream hStream, CUdeviceptr addr)
{
    struct range r;
    STREAM(hStream);
    REQUIRE(gs_find(addr, &r), CUDA_ERROR_INVALID_VALUE);
    gs_push(stream, 0, false);
    return CUDA_SUCCESS;
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
{
    (void)flags;
    return write_value(stream, addr, value, 4);
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags)
{
    (void)flags;
    return write_value(stream, addr, value, 8);
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
{
    (void)value;
    (void)flags;
    return wait_value(stream, addr);
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags)
{
    (void)value;
    (void)flags;
    return wait_value(stream, addr);
}
