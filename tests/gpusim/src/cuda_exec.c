/* Executable graphs and their launches. */
#include <stdlib.h>

#include "cuda_graph.h"

struct CUgraphExec_st {
    uint32_t magic;
    CUgraph graph; /* a copy of its own */
    cuuint64_t flags;
};

static CUresult exec_check(CUgraphExec exec)
{
    TRY(gs_ready());
    return exec && exec->magic == MAGIC_EXEC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
    TRY(gs_graph_check(hGraph));
    REQUIRE(phGraphExec, CUDA_ERROR_INVALID_VALUE);
    CUgraphExec exec = calloc(1, sizeof *exec);
    if (exec)
        exec->graph = gs_graph_copy(hGraph);
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
    gs_graph_free(hGraphExec->graph);
    hGraphExec->magic = MAGIC_DEAD;
    free(hGraphExec);
    return CUDA_SUCCESS;
}

/* A node of the graph stands for the node of the same place in the executable one. */
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    TRY(exec_check(hGraphExec));
    TRY(gs_node_check(hNode, NODE_KERNEL));
    REQUIRE(nodeParams, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < hNode->graph->count && i < hGraphExec->graph->count; i++)
        if (hNode->graph->nodes[i] == hNode)
            return gs_kernel_set(hGraphExec->graph->nodes[i], (const void *)nodeParams);
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphExecUpdateResultInfo *resultInfo)
{
    TRY(exec_check(hGraphExec));
    TRY(gs_graph_check(hGraph));
    bool same = hGraphExec->graph->count == hGraph->count;
    for (size_t i = 0; same && i < hGraph->count; i++)
        same = hGraphExec->graph->nodes[i]->type == hGraph->nodes[i]->type;
    if (resultInfo)
        *resultInfo = (CUgraphExecUpdateResultInfo){.result = same ? 0 : 2 /* topology changed */};
    REQUIRE(same, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    CUgraph copy = gs_graph_copy(hGraph);
    REQUIRE(copy, CUDA_ERROR_OUT_OF_MEMORY);
    gs_graph_free(hGraphExec->graph);
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
    uint64_t duration = gs_graph_duration(g);
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
