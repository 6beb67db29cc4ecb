/* Graphs as the files about them share them. */
#ifndef GPUSIM_CUDA_GRAPH_H
#define GPUSIM_CUDA_GRAPH_H

#include "cuda_internal.h"

enum { NODE_KERNEL, NODE_MEMCPY, NODE_MEMSET, NODE_HOST, NODE_GRAPH, NODE_EMPTY, NODE_WAIT, NODE_RECORD,
       NODE_ALLOC = 10, NODE_FREE = 11 };

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

CUresult gs_graph_check(CUgraph g);
CUresult gs_node_check(CUgraphNode node, CUgraphNodeType type);
CUgraph gs_graph_new(void);
CUgraph gs_graph_copy(CUgraph from);
void gs_graph_free(CUgraph g);
uint64_t gs_graph_duration(CUgraph g);
CUgraphNode gs_node_new(CUgraph g, CUgraphNodeType type, uint64_t duration);
bool gs_node_depends(CUgraphNode node, CUgraphNode on);
CUresult gs_kernel_set(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p);

#endif
