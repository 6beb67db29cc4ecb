/* Graphs: nodes with a duration and what they depend on. A launch lasts as long as the longest path. */
#include <stdlib.h>
#include <string.h>

#include "cuda_graph.h"


CUresult gs_graph_check(CUgraph g)
{
    TRY(gs_ready());
    return g && g->magic == MAGIC_GRAPH ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool gs_node_depends(CUgraphNode node, CUgraphNode on)
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

CUgraphNode gs_node_new(CUgraph g, CUgraphNodeType type, uint64_t duration)
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

void gs_node_host(CUgraphNode node, CUhostFn fn, void *user)
{
    if (!node)
        return;
    node->fn = fn;
    node->user = user;
}

void gs_graph_free(CUgraph g)
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

CUgraph gs_graph_new(void)
{
    CUgraph g = calloc(1, sizeof *g);
    if (g) {
        g->magic = MAGIC_GRAPH;
        g->id = gs_next_id();
    }
    return g;
}

/* Nodes are in an order in which each follows what it depends on, unless edges were added backwards later. */
uint64_t gs_graph_duration(CUgraph g)
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

CUgraph gs_graph_copy(CUgraph from)
{
    CUgraph g = gs_graph_new();
    for (size_t i = 0; g && i < from->count; i++) {
        CUgraphNode old = from->nodes[i];
        CUgraphNode node = gs_node_new(g, old->type, old->duration);
        if (!node) {
            gs_graph_free(g);
            return NULL;
        }
        node->kernel = old->kernel;
        node->fn = old->fn;
        node->user = old->user;
        old->clone = node;
    }
    for (size_t i = 0; g && i < from->count; i++)
        for (size_t k = 0; k < from->nodes[i]->deps; k++)
            gs_node_depends(from->nodes[i]->clone, from->nodes[i]->dep[k]->clone);
    return g;
}

CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
    TRY(gs_ready());
    REQUIRE(phGraph && flags == 0, CUDA_ERROR_INVALID_VALUE);
    *phGraph = gs_graph_new();
    return *phGraph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphDestroy(CUgraph hGraph)
{
    TRY(gs_graph_check(hGraph));
    gs_graph_free(hGraph);
    return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)
{
    TRY(gs_graph_check(originalGraph));
    REQUIRE(phGraphClone, CUDA_ERROR_INVALID_VALUE);
    *phGraphClone = gs_graph_copy(originalGraph);
    return *phGraphClone ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult node_add(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t count, CUgraphNodeType type,
                         uint64_t duration)
{
    TRY(gs_graph_check(g));
    REQUIRE(out && (deps || !count), CUDA_ERROR_INVALID_VALUE);
    CUgraphNode node = gs_node_new(g, type, duration);
    REQUIRE(node, CUDA_ERROR_OUT_OF_MEMORY);
    for (size_t i = 0; i < count; i++)
        REQUIRE(gs_node_depends(node, deps[i]), CUDA_ERROR_OUT_OF_MEMORY);
    *out = node;
    return CUDA_SUCCESS;
}

CUresult gs_kernel_set(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    TRY(gs_function_check(p->func));
    uint64_t blocks = (uint64_t)p->gridDimX * p->gridDimY * p->gridDimZ;
    uint64_t threads = (uint64_t)p->blockDimX * p->blockDimY * p->blockDimZ;
    REQUIRE(blocks && threads && threads <= MAX_THREADS, CUDA_ERROR_INVALID_VALUE);
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
    return gs_kernel_set(*phGraphNode, nodeParams);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                 size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    return cuGraphAddKernelNode(phGraphNode, hGraph, dependencies, numDependencies, (const void *)nodeParams);
}

CUresult gs_node_check(CUgraphNode node, CUgraphNodeType type)
{
    TRY(gs_ready());
    return node && node->magic == MAGIC_NODE && node->type == type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    TRY(gs_node_check(hNode, NODE_KERNEL));
    REQUIRE(nodeParams, CUDA_ERROR_INVALID_VALUE);
    *nodeParams = hNode->kernel;
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    TRY(gs_node_check(hNode, NODE_KERNEL));
    REQUIRE(nodeParams, CUDA_ERROR_INVALID_VALUE);
    return gs_kernel_set(hNode, (const void *)nodeParams);
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
    TRY(gs_graph_check(childGraph));
    return node_add(phGraphNode, hGraph, dependencies, numDependencies, NODE_GRAPH, gs_graph_duration(childGraph));
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
    TRY(gs_graph_check(hGraph));
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
    TRY(gs_graph_check(g));
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
    TRY(gs_graph_check(hGraph));
    REQUIRE((from_ && to) || !numDependencies, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < numDependencies; i++)
        REQUIRE(gs_node_depends(to[i], from_[i]), CUDA_ERROR_OUT_OF_MEMORY);
    return CUDA_SUCCESS;
}

CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from_, const CUgraphNode *to,
                                   const CUgraphEdgeData *edgeData, size_t numDependencies)
{
    (void)edgeData;
    return cuGraphAddDependencies(hGraph, from_, to, numDependencies);
}
