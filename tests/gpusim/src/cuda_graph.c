/* Graphs: nodes with a duration and what they depend on. A launch lasts as long as the longest path. */
#include <stdlib.h>
#include <string.h>

#include "cuda_internal.h"

enum { NODE_KERNEL, NODE_MEMCPY, NODE_MEMSET, NODE_HOST, NODE_GRAPH, NODE_EMPTY, NODE_WAIT, NODE_RECORD,
       NODE_ALLOC = 10, NODE_FREE = 11 };
enum { CAPTURE_NONE, CAPTURE_ACTIVE, CAPTURE_INVALIDATED };

struct CUgraphNode_st {
    uint32_t magic;
    CUgraph graph;
    CUgraphNodeType type;
    uint64_t duration;
    uint64_t done; /* scratch: end relative to the launch */
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUhostFn fn;
    void *user;
    CUgraphNode clone; /* scratch of cuGraphClone */
    size_t deps, room;
    CUgraphNode *dep;
};

struct CUgraph_st {
    uint32_t magic;
    uint64_t id;
    size_t count, room;
    CUgraphNode *nodes;
};

struct CUgraphExec_st {
    uint32_t magic;
    CUgraph graph; /* a copy of its own */
    cuuint64_t flags;
};

static CUresult graph_check(CUgraph g)
{
    TRY(gs_ready());
    return g && g->magic == MAGIC_GRAPH ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool node_depends(CUgraphNode node, CUgraphNode on)
{
    if (node->deps == node->room) {
        size_t room = node->room ? node->room * 2 : 4;
        CUgraphNode *grown = realloc(node->dep, room * sizeof *grown);
        if (!grown)
            return false;
        node->dep = grown;
        node->room = room;
    }
    node->dep[node->deps++] = on;
    return true;
}

static CUgraphNode node_new(CUgraph g, CUgraphNodeType type, uint64_t duration)
{
    if (g->count == g->room) {
        size_t room = g->room ? g->room * 2 : 16;
        CUgraphNode *grown = realloc(g->nodes, room * sizeof *grown);
        if (!grown)
            return NULL;
        g->nodes = grown;
        g->room = room;
    }
    CUgraphNode node = calloc(1, sizeof *node);
    if (!node)
        return NULL;
    node->magic = MAGIC_NODE;
    node->graph = g;
    node->type = type;
    node->duration = duration;
    g->nodes[g->count++] = node;
    return node;
}

CUgraphNode gs_capture_node(CUstream stream, CUgraphNodeType type, uint64_t duration_ns)
{
    if (!stream->capture)
        return NULL;
    CUgraphNode node = node_new(stream->capture, type, duration_ns);
    if (node && stream->capture_last)
        node_depends(node, stream->capture_last);
    if (node)
        stream->capture_last = node;
    return node;
}

void gs_node_host(CUgraphNode node, CUhostFn fn, void *user)
{
    if (!node)
        return;
    node->fn = fn;
    node->user = user;
}

static void graph_free(CUgraph g)
{
    for (size_t i = 0; i < g->count; i++) {
        g->nodes[i]->magic = MAGIC_DEAD;
        free(g->nodes[i]->dep);
        free(g->nodes[i]);
    }
    free(g->nodes);
    g->magic = MAGIC_DEAD;
    free(g);
}

static CUgraph graph_new(void)
{
    CUgraph g = calloc(1, sizeof *g);
    if (g) {
        g->magic = MAGIC_GRAPH;
        g->id = gs_next_id();
    }
    return g;
}

/* Nodes are in an order in which each follows what it depends on, unless edges were added backwards later. */
static uint64_t graph_duration(CUgraph g)
{
    uint64_t longest = 0;
    for (size_t i = 0; i < g->count; i++) {
        CUgraphNode node = g->nodes[i];
        uint64_t start = 0;
        for (size_t k = 0; k < node->deps; k++)
            start = node->dep[k]->done > start ? node->dep[k]->done : start;
        node->done = start + node->duration;
        longest = node->done > longest ? node->done : longest;
    }
    return longest;
}

static CUgraph graph_copy(CUgraph from)
{
    CUgraph g = graph_new();
    for (size_t i = 0; g && i < from->count; i++) {
        CUgraphNode old = from->nodes[i];
        CUgraphNode node = node_new(g, old->type, old->duration);
        if (!node) {
            graph_free(g);
            return NULL;
        }
        node->kernel = old->kernel;
        node->fn = old->fn;
        node->user = old->user;
        old->clone = node;
    }
    for (size_t i = 0; g && i < from->count; i++)
        for (size_t k = 0; k < from->nodes[i]->deps; k++)
            node_depends(from->nodes[i]->clone, from->nodes[i]->dep[k]->clone);
    return g;
}

CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
    TRY(gs_ready());
    REQUIRE(phGraph && flags == 0, CUDA_ERROR_INVALID_VALUE);
    *phGraph = graph_new();
    return *phGraph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphDestroy(CUgraph hGraph)
{
    TRY(graph_check(hGraph));
    graph_free(hGraph);
    return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)
{
    TRY(graph_check(originalGraph));
    REQUIRE(phGraphClone, CUDA_ERROR_INVALID_VALUE);
    *phGraphClone = graph_copy(originalGraph);
    return *phGraphClone ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult node_add(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t count, CUgraphNodeType type,
                         uint64_t duration)
{
    TRY(graph_check(g));
    REQUIRE(out && (deps || !count), CUDA_ERROR_INVALID_VALUE);
    CUgraphNode node = node_new(g, type, duration);
    REQUIRE(node, CUDA_ERROR_OUT_OF_MEMORY);
    for (size_t i = 0; i < count; i++)
        REQUIRE(node_depends(node, deps[i]), CUDA_ERROR_OUT_OF_MEMORY);
    *out = node;
    return CUDA_SUCCESS;
}

static CUresult kernel_set(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    TRY(gs_function_check(p->func));
    uint64_t blocks = (uint64_t)p->gridDimX * p->gridDimY * p->gridDimZ;
    uint64_t threads = (uint64_t)p->blockDimX * p->blockDimY * p->blockDimZ;
    REQUIRE(blocks && threads && threads <= 1024, CUDA_ERROR_INVALID_VALUE);
    memcpy(&node->kernel, p, sizeof *p);
    node->duration = gs_kernel_ns(p->func, p->func->module->ctx->device, blocks, threads);
    return CUDA_SUCCESS;
}

CUresult cuGraphAddKernelNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                              size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    REQUIRE(nodeParams, CUDA_ERROR_INVALID_VALUE);
    TRY(gs_function_check(nodeParams->func));
    TRY(node_add(phGraphNode, hGraph, dependencies, numDependencies, NODE_KERNEL, 0));
    return kernel_set(*phGraphNode, nodeParams);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                 size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    return cuGraphAddKernelNode(phGraphNode, hGraph, dependencies, numDependencies, (const void *)nodeParams);
}

static CUresult node_check(CUgraphNode node, CUgraphNodeType type)
{
    TRY(gs_ready());
    return node && node->magic == MAGIC_NODE && node->type == type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    TRY(node_check(hNode, NODE_KERNEL));
    REQUIRE(nodeParams, CUDA_ERROR_INVALID_VALUE);
    *nodeParams = hNode->kernel;
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    TRY(node_check(hNode, NODE_KERNEL));
    REQUIRE(nodeParams, CUDA_ERROR_INVALID_VALUE);
    return kernel_set(hNode, (const void *)nodeParams);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                              size_t numDependencies, const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    (void)ctx;
    REQUIRE(copyParams, CUDA_ERROR_INVALID_VALUE);
    uint64_t bytes = copyParams->WidthInBytes * copyParams->Height * copyParams->Depth;
    return node_add(phGraphNode, hGraph, dependencies, numDependencies, NODE_MEMCPY, bytes / COPY_BYTES_PER_NS);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                              size_t numDependencies, const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
    (void)ctx;
    REQUIRE(memsetParams, CUDA_ERROR_INVALID_VALUE);
    uint64_t bytes = memsetParams->elementSize * memsetParams->width * memsetParams->height;
    return node_add(phGraphNode, hGraph, dependencies, numDependencies, NODE_MEMSET, bytes / DEVICE_BYTES_PER_NS);
}

CUresult cuGraphAddHostNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                            size_t numDependencies, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    REQUIRE(nodeParams && nodeParams->fn, CUDA_ERROR_INVALID_VALUE);
    TRY(node_add(phGraphNode, hGraph, dependencies, numDependencies, NODE_HOST, 0));
    gs_node_host(*phGraphNode, nodeParams->fn, nodeParams->userData);
    return CUDA_SUCCESS;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                  size_t numDependencies, CUgraph childGraph)
{
    TRY(graph_check(childGraph));
    return node_add(phGraphNode, hGraph, dependencies, numDependencies, NODE_GRAPH, graph_duration(childGraph));
}

CUresult cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                             size_t numDependencies)
{
    return node_add(phGraphNode, hGraph, dependencies, numDependencies, NODE_EMPTY, 0);
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                   size_t numDependencies, CUevent event)
{
    REQUIRE(event, CUDA_ERROR_INVALID_VALUE);
    return node_add(phGraphNode, hGraph, dependencies, numDependencies, NODE_RECORD, 0);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                 size_t numDependencies, CUevent event)
{
    REQUIRE(event, CUDA_ERROR_INVALID_VALUE);
    return node_add(phGraphNode, hGraph, dependencies, numDependencies, NODE_WAIT, 0);
}

/* The memory of an allocation node is taken when the node is made and kept until it is freed by cuMemFree. */
CUresult cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                size_t numDependencies, CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    TRY(graph_check(hGraph));
    REQUIRE(nodeParams && nodeParams->bytesize && gs_device_ok(nodeParams->poolProps.location.id),
            CUDA_ERROR_INVALID_VALUE);
    TRY(gs_alloc(nodeParams->poolProps.location.id, ctx, nodeParams->bytesize, MEMORY_DEVICE, &nodeParams->dptr));
    return node_add(phGraphNode, hGraph, dependencies, numDependencies, NODE_ALLOC, 0);
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                               size_t numDependencies, CUdeviceptr dptr)
{
    struct range r;
    TRY(gs_ready());
    REQUIRE(gs_find(dptr, &r), CUDA_ERROR_INVALID_VALUE);
    return node_add(phGraphNode, hGraph, dependencies, numDependencies, NODE_FREE, 0);
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
    TRY(gs_ready());
    REQUIRE(hNode && hNode->magic == MAGIC_NODE && type, CUDA_ERROR_INVALID_VALUE);
    *type = hNode->type;
    return CUDA_SUCCESS;
}

static CUresult list_nodes(CUgraph g, CUgraphNode *nodes, size_t *numNodes, bool roots)
{
    TRY(graph_check(g));
    REQUIRE(numNodes, CUDA_ERROR_INVALID_VALUE);
    size_t found = 0;
    for (size_t i = 0; i < g->count; i++) {
        if (roots && g->nodes[i]->deps)
            continue;
        if (nodes && found < *numNodes)
            nodes[found] = g->nodes[i];
        found++;
    }
    for (size_t i = found; nodes && i < *numNodes; i++)
        nodes[i] = NULL;
    *numNodes = found;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
    return list_nodes(hGraph, nodes, numNodes, false);
}

CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
    return list_nodes(hGraph, rootNodes, numRootNodes, true);
}

static void forget_dependency(CUgraphNode node, CUgraphNode gone)
{
    size_t kept = 0;
    for (size_t k = 0; k < node->deps; k++)
        if (node->dep[k] != gone)
            node->dep[kept++] = node->dep[k];
    node->deps = kept;
}

CUresult cuGraphDestroyNode(CUgraphNode hNode)
{
    TRY(gs_ready());
    REQUIRE(hNode && hNode->magic == MAGIC_NODE, CUDA_ERROR_INVALID_VALUE);
    CUgraph g = hNode->graph;
    size_t kept = 0;
    for (size_t i = 0; i < g->count; i++)
        if (g->nodes[i] != hNode) {
            forget_dependency(g->nodes[i], hNode);
            g->nodes[kept++] = g->nodes[i];
        }
    g->count = kept;
    hNode->magic = MAGIC_DEAD;
    free(hNode->dep);
    free(hNode);
    return CUDA_SUCCESS;
}

CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from_, const CUgraphNode *to,
                                size_t numDependencies)
{
    TRY(graph_check(hGraph));
    REQUIRE((from_ && to) || !numDependencies, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < numDependencies; i++)
        REQUIRE(node_depends(to[i], from_[i]), CUDA_ERROR_OUT_OF_MEMORY);
    return CUDA_SUCCESS;
}

CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from_, const CUgraphNode *to,
                                   const CUgraphEdgeData *edgeData, size_t numDependencies)
{
    (void)edgeData;
    return cuGraphAddDependencies(hGraph, from_, to, numDependencies);
}

/* executable graphs */

static CUresult exec_check(CUgraphExec exec)
{
    TRY(gs_ready());
    return exec && exec->magic == MAGIC_EXEC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
    TRY(graph_check(hGraph));
    REQUIRE(phGraphExec, CUDA_ERROR_INVALID_VALUE);
    CUgraphExec exec = calloc(1, sizeof *exec);
    if (exec)
        exec->graph = graph_copy(hGraph);
    if (!exec || !exec->graph) {
        free(exec);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    exec->magic = MAGIC_EXEC;
    exec->flags = flags;
    *phGraphExec = exec;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    REQUIRE(instantiateParams, CUDA_ERROR_INVALID_VALUE);
    instantiateParams->hErrNode_out = NULL;
    instantiateParams->result_out = 0;
    return cuGraphInstantiateWithFlags(phGraphExec, hGraph, instantiateParams->flags);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
                               size_t bufferSize)
{
    if (phErrorNode)
        *phErrorNode = NULL;
    if (logBuffer && bufferSize)
        *logBuffer = 0;
    return cuGraphInstantiateWithFlags(phGraphExec, hGraph, 0);
}

CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
                            size_t bufferSize)
{
    return cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags)
{
    TRY(exec_check(hGraphExec));
    REQUIRE(flags, CUDA_ERROR_INVALID_VALUE);
    *flags = hGraphExec->flags;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    TRY(exec_check(hGraphExec));
    graph_free(hGraphExec->graph);
    hGraphExec->magic = MAGIC_DEAD;
    free(hGraphExec);
    return CUDA_SUCCESS;
}

/* A node of the graph stands for the node of the same place in the executable one. */
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    TRY(exec_check(hGraphExec));
    TRY(node_check(hNode, NODE_KERNEL));
    REQUIRE(nodeParams, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < hNode->graph->count && i < hGraphExec->graph->count; i++)
        if (hNode->graph->nodes[i] == hNode)
            return kernel_set(hGraphExec->graph->nodes[i], (const void *)nodeParams);
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphExecUpdateResultInfo *resultInfo)
{
    TRY(exec_check(hGraphExec));
    TRY(graph_check(hGraph));
    bool same = hGraphExec->graph->count == hGraph->count;
    for (size_t i = 0; same && i < hGraph->count; i++)
        same = hGraphExec->graph->nodes[i]->type == hGraph->nodes[i]->type;
    if (resultInfo)
        *resultInfo = (CUgraphExecUpdateResultInfo){.result = same ? 0 : 2 /* topology changed */};
    REQUIRE(same, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    CUgraph copy = graph_copy(hGraph);
    REQUIRE(copy, CUDA_ERROR_OUT_OF_MEMORY);
    graph_free(hGraphExec->graph);
    hGraphExec->graph = copy;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode *hErrorNode_out,
                           CUgraphExecUpdateResult *updateResult_out)
{
    CUgraphExecUpdateResultInfo info = {0};
    CUresult rc = cuGraphExecUpdate_v2(hGraphExec, hGraph, &info);
    if (hErrorNode_out)
        *hErrorNode_out = info.errorNode;
    if (updateResult_out)
        *updateResult_out = info.result;
    return rc;
}

CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream)
{
    CUstream stream;
    TRY(exec_check(hGraphExec));
    return gs_stream(hStream, &stream);
}

static void run_kernel(CUgraphNode node)
{
    const unsigned grid[3] = {node->kernel.gridDimX, node->kernel.gridDimY, node->kernel.gridDimZ};
    const unsigned block[3] = {node->kernel.blockDimX, node->kernel.blockDimY, node->kernel.blockDimZ};
    if (node->kernel.func)
        gs_kernel_run(node->kernel.func, grid, block, NULL);
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
    CUstream stream;
    TRY(exec_check(hGraphExec));
    TRY(gs_stream(hStream, &stream));
    REQUIRE(!gs_card(stream->ctx->device)->lost, CUDA_ERROR_LAUNCH_FAILED);
    CUgraph g = hGraphExec->graph;
    uint64_t duration = graph_duration(g);
    if (stream->capture)
        return gs_capture_node(stream, NODE_GRAPH, duration) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t end = gs_push(stream, duration, true);
    for (size_t i = 0; i < g->count; i++) {
        CUgraphNode node = g->nodes[i];
        if (node->type == NODE_HOST && node->fn)
            gs_callback(stream, end - duration + node->done, node->fn, NULL, node->user);
        else if (node->type == NODE_KERNEL)
            run_kernel(node);
    }
    return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    TRY(gs_ready());
    return gs_device_ok(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    TRY(cuDeviceGraphMemTrim(device));
    REQUIRE(value && attr >= 0 && attr <= 3, CUDA_ERROR_INVALID_VALUE);
    *(cuuint64_t *)value = 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    TRY(cuDeviceGraphMemTrim(device));
    return value && attr >= 0 && attr <= 3 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* capture */

#define STREAM(handle) \
    CUstream stream;   \
    TRY(gs_stream(handle, &stream))

static CUresult begin(CUstream handle, CUgraph into, int mode)
{
    STREAM(handle);
    REQUIRE(stream != stream->ctx->legacy, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    REQUIRE(!stream->capture, CUDA_ERROR_ILLEGAL_STATE);
    REQUIRE(mode >= 0 && mode <= 2, CUDA_ERROR_INVALID_VALUE);
    CUgraph g = into ? into : graph_new();
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
    TRY(graph_check(hGraph));
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
        graph_free(g);
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
