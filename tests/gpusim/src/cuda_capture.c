/* Stream capture: operations become nodes of a graph. */
#include "cuda_graph.h"

enum { CAPTURE_NONE, CAPTURE_ACTIVE, CAPTURE_INVALIDATED };

CUgraphNode gs_capture_node(CUstream stream, CUgraphNodeType type, uint64_t duration_ns)
{
    if (!stream->capture)
        return NULL;
    CUgraphNode node = gs_node_new(stream->capture, type, duration_ns);
    if (node && stream->capture_last)
        gs_node_depends(node, stream->capture_last);
    if (node)
        stream->capture_last = node;
    return node;
}


static CUresult begin(CUstream handle, CUgraph into, int mode)
{
    STREAM(handle);
    REQUIRE(stream != stream->ctx->legacy, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    REQUIRE(!stream->capture, CUDA_ERROR_ILLEGAL_STATE);
    REQUIRE(mode >= 0 && mode <= 2, CUDA_ERROR_INVALID_VALUE);
    CUgraph g = into ? into : gs_graph_new();
    REQUIRE(g, CUDA_ERROR_OUT_OF_MEMORY);
    stream->capture_last = NULL;
    stream->capture_origin = true;
    stream->capture_invalid = false;
    stream->capture_mode = mode;
    stream->capture = g;
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
    return begin(hStream, NULL, mode);
}

CUresult cuStreamBeginCapture(CUstream hStream)
{
    return begin(hStream, NULL, 0);
}

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                     CUstreamCaptureMode mode)
{
    (void)dependencyData;
    TRY(gs_graph_check(hGraph));
    TRY(begin(hStream, hGraph, mode));
    STREAM(hStream);
    stream->capture_last = numDependencies && dependencies ? dependencies[numDependencies - 1] : NULL;
    return CUDA_SUCCESS;
}

static void leave_capture(CUcontext ctx, CUgraph g)
{
    pthread_mutex_lock(&ctx->lock);
    for (CUstream s = ctx->streams; s; s = s->next)
        if (s->capture == g) {
            s->capture = NULL;
            s->capture_last = NULL;
            s->capture_origin = s->capture_invalid = false;
        }
    pthread_mutex_unlock(&ctx->lock);
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
    STREAM(hStream);
    REQUIRE(phGraph, CUDA_ERROR_INVALID_VALUE);
    CUgraph g = stream->capture;
    REQUIRE(g, CUDA_ERROR_ILLEGAL_STATE);
    REQUIRE(stream->capture_origin, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    bool invalid = stream->capture_invalid;
    leave_capture(stream->ctx, g);
    *phGraph = invalid ? NULL : g;
    if (invalid)
        gs_graph_free(g);
    return invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

static int capture_status(CUstream stream)
{
    return !stream->capture ? CAPTURE_NONE : stream->capture_invalid ? CAPTURE_INVALIDATED : CAPTURE_ACTIVE;
}

CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
    STREAM(hStream);
    REQUIRE(captureStatus, CUDA_ERROR_INVALID_VALUE);
    *captureStatus = capture_status(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
                                   CUgraph *graph_out, const CUgraphNode **dependencies_out,
                                   size_t *numDependencies_out)
{
    STREAM(hStream);
    REQUIRE(captureStatus_out, CUDA_ERROR_INVALID_VALUE);
    *captureStatus_out = capture_status(stream);
    if (*captureStatus_out != CAPTURE_ACTIVE)
        return CUDA_SUCCESS;
    if (id_out)
        *id_out = stream->capture->id;
    if (graph_out)
        *graph_out = stream->capture;
    if (dependencies_out)
        *dependencies_out = &stream->capture_last;
    if (numDependencies_out)
        *numDependencies_out = stream->capture_last != NULL;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
                                   CUgraph *graph_out, const CUgraphNode **dependencies_out,
                                   const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out)
{
    if (edgeData_out)
        *edgeData_out = NULL;
    return cuStreamGetCaptureInfo_v2(hStream, captureStatus_out, id_out, graph_out, dependencies_out,
                                     numDependencies_out);
}

CUresult cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out)
{
    return cuStreamGetCaptureInfo_v2(hStream, captureStatus_out, id_out, NULL, NULL, NULL);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode *dependencies,
                                              const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                              unsigned int flags)
{
    (void)dependencyData;
    (void)flags;
    STREAM(hStream);
    REQUIRE(stream->capture, CUDA_ERROR_ILLEGAL_STATE);
    REQUIRE(dependencies || !numDependencies, CUDA_ERROR_INVALID_VALUE);
    stream->capture_last = numDependencies ? dependencies[numDependencies - 1] : NULL;
    return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    static __thread CUstreamCaptureMode current;
    TRY(gs_ready());
    REQUIRE(mode && *mode >= 0 && *mode <= 2, CUDA_ERROR_INVALID_VALUE);
    CUstreamCaptureMode old = current;
    current = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}
