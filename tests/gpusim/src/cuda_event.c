/* Events: the moment at which a stream will have come so far. */
#include <stdlib.h>

#include "cuda_internal.h"

#define EVENT_DISABLE_TIMING 2
#define EVENT_FLAGS 7

static CUresult event_check(CUevent event)
{
    TRY(gs_ready());
    return event && event->magic == MAGIC_EVENT ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    REQUIRE(phEvent && Flags <= EVENT_FLAGS, CUDA_ERROR_INVALID_VALUE);
    CUevent event = calloc(1, sizeof *event);
    REQUIRE(event, CUDA_ERROR_OUT_OF_MEMORY);
    event->magic = MAGIC_EVENT;
    event->flags = Flags;
    event->ctx = ctx;
    *phEvent = event;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent hEvent)
{
    TRY(event_check(hEvent));
    hEvent->magic = MAGIC_DEAD;
    free(hEvent);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent hEvent)
{
    return cuEventDestroy_v2(hEvent);
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
    STREAM(hStream);
    TRY(event_check(hEvent));
    REQUIRE(hEvent->ctx == stream->ctx, CUDA_ERROR_INVALID_HANDLE);
    hEvent->capture = stream->capture;
    if (stream->capture) {
        hEvent->capture_node = stream->capture_last;
        return CUDA_SUCCESS;
    }
    __atomic_store_n(&hEvent->stamp, gs_push(stream, 0, false), __ATOMIC_RELEASE);
    hEvent->recorded = true;
    return CUDA_SUCCESS;
}

CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags)
{
    REQUIRE(flags <= 1, CUDA_ERROR_INVALID_VALUE);
    return cuEventRecord(hEvent, hStream);
}

CUresult cuEventQuery(CUevent hEvent)
{
    TRY(event_check(hEvent));
    REQUIRE(!hEvent->capture, CUDA_ERROR_CAPTURED_EVENT);
    return hEvent->recorded && hEvent->stamp > gs_now_ns() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent hEvent)
{
    TRY(event_check(hEvent));
    REQUIRE(!hEvent->capture, CUDA_ERROR_CAPTURED_EVENT);
    if (hEvent->recorded)
        gs_sleep_until(hEvent->stamp);
    gs_pools_trim(hEvent->ctx->device, false);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    TRY(event_check(hStart));
    TRY(event_check(hEnd));
    REQUIRE(pMilliseconds, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(hStart->recorded && hEnd->recorded, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(!((hStart->flags | hEnd->flags) & EVENT_DISABLE_TIMING), CUDA_ERROR_INVALID_HANDLE);
    uint64_t now = gs_now_ns();
    REQUIRE(hStart->stamp <= now && hEnd->stamp <= now, CUDA_ERROR_NOT_READY);
    *pMilliseconds = (float)((double)((int64_t)(hEnd->stamp - hStart->stamp)) / 1e6);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    return cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    STREAM(hStream);
    TRY(event_check(hEvent));
    REQUIRE(Flags <= 1, CUDA_ERROR_INVALID_VALUE);
    if (hEvent->capture) { /* the stream joins the capture of the event's stream */
        REQUIRE(!stream->capture || stream->capture == hEvent->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        stream->capture = hEvent->capture;
        if (!stream->capture_last || stream->capture_last != hEvent->capture_node)
            stream->capture_last = hEvent->capture_node;
        return CUDA_SUCCESS;
    }
    if (!hEvent->recorded)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&stream->lock);
    if (hEvent->stamp > stream->tail)
        __atomic_store_n(&stream->tail, hEvent->stamp, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&stream->lock);
    gs_raise_to(&stream->ctx->max_tail, hEvent->stamp);
    return CUDA_SUCCESS;
}
