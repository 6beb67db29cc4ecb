/* Launches of every kind, and occupancy. */
#include "cuda_internal.h"

/* launches */

static CUresult launch(CUfunction f, const unsigned grid[3], const unsigned block[3], CUstream handle, void **params)
{
    CUstream stream;
    TRY(gs_stream(handle, &stream));
    TRY(gs_function_check(f));
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    REQUIRE(blocks && threads && threads <= MAX_THREADS, CUDA_ERROR_INVALID_VALUE);
    int device = stream->ctx->device;
    REQUIRE(f->module->ctx == stream->ctx, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(!gs_card(device)->lost, CUDA_ERROR_LAUNCH_FAILED);
    uint64_t duration = gs_kernel_ns(f, device, blocks, threads);
    if (stream->capture)
        return gs_capture_node(stream, 0, duration) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    gs_push(stream, duration, true);
    gs_kernel_run(f, grid, block, params);
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                        unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                        unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra)
{
    (void)sharedMemBytes;
    (void)extra;
    const unsigned grid[3] = {gridDimX, gridDimY, gridDimZ}, block[3] = {blockDimX, blockDimY, blockDimZ};
    return launch(f, grid, block, hStream, kernelParams);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
{
    REQUIRE(config && (config->attrs || !config->numAttrs), CUDA_ERROR_INVALID_VALUE);
    return cuLaunchKernel(f, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                          config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->hStream, kernelParams,
                          extra);
}

static uint64_t resident_blocks(int device, uint64_t threads)
{
    struct gpusim_card *card = gs_card(device);
    uint64_t per_sm = card->threads_per_sm / (threads ? threads : 1);
    return per_sm > 32 ? 32 : per_sm;
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                                   unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                                   unsigned int sharedMemBytes, CUstream hStream, void **kernelParams)
{
    TRY(gs_function_check(f));
    int device = f->module->ctx->device;
    uint64_t blocks = (uint64_t)gridDimX * gridDimY * gridDimZ;
    uint64_t room = gs_card(device)->sm_count * resident_blocks(device, (uint64_t)blockDimX * blockDimY * blockDimZ);
    REQUIRE(blocks <= room, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    return cuLaunchKernel(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream,
                          kernelParams, NULL);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList, unsigned int numDevices,
                                              unsigned int flags)
{
    (void)flags;
    TRY(gs_ready());
    REQUIRE(launchParamsList && numDevices, CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < numDevices; i++) {
        CUDA_LAUNCH_PARAMS *p = &launchParamsList[i];
        TRY(cuLaunchCooperativeKernel(p->function, p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY,
                                      p->blockDimZ, p->sharedMemBytes, p->hStream, p->kernelParams));
    }
    return CUDA_SUCCESS;
}

/* the launches of CUDA 2: the block's shape is kept in the function */

CUresult cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z)
{
    TRY(gs_function_check(hfunc));
    REQUIRE(x > 0 && y > 0 && z > 0, CUDA_ERROR_INVALID_VALUE);
    hfunc->shape[0] = (unsigned)x;
    hfunc->shape[1] = (unsigned)y;
    hfunc->shape[2] = (unsigned)z;
    return CUDA_SUCCESS;
}

CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream)
{
    TRY(gs_function_check(f));
    REQUIRE(grid_width > 0 && grid_height > 0, CUDA_ERROR_INVALID_VALUE);
    const unsigned grid[3] = {(unsigned)grid_width, (unsigned)grid_height, 1};
    return launch(f, grid, f->shape, hStream, NULL);
}

CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height)
{
    return cuLaunchGridAsync(f, grid_width, grid_height, NULL);
}

CUresult cuLaunch(CUfunction f)
{
    return cuLaunchGrid(f, 1, 1);
}

/* occupancy: by threads alone */

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
                                                     size_t dynamicSMemSize)
{
    (void)dynamicSMemSize;
    TRY(gs_function_check(func));
    REQUIRE(numBlocks && blockSize > 0, CUDA_ERROR_INVALID_VALUE);
    *numBlocks = (int)resident_blocks(func->module->ctx->device, (uint64_t)blockSize);
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func, int blockSize,
                                                              size_t dynamicSMemSize, unsigned int flags)
{
    (void)flags;
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks, func, blockSize, dynamicSMemSize);
}

CUresult cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize,
                                          int blockSizeLimit)
{
    (void)blockSizeToDynamicSMemSize;
    (void)dynamicSMemSize;
    TRY(gs_function_check(func));
    REQUIRE(minGridSize && blockSize, CUDA_ERROR_INVALID_VALUE);
    int device = func->module->ctx->device;
    *blockSize = blockSizeLimit > 0 && blockSizeLimit < MAX_THREADS ? blockSizeLimit : MAX_THREADS;
    *minGridSize = (int)(gs_card(device)->sm_count * resident_blocks(device, (uint64_t)*blockSize));
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize, CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit, unsigned int flags)
{
    (void)flags;
    return cuOccupancyMaxPotentialBlockSize(minGridSize, blockSize, func, blockSizeToDynamicSMemSize, dynamicSMemSize,
                                            blockSizeLimit);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize, CUfunction func, int numBlocks,
                                                 int blockSize)
{
    TRY(gs_function_check(func));
    REQUIRE(dynamicSmemSize && numBlocks > 0 && blockSize > 0, CUDA_ERROR_INVALID_VALUE);
    *dynamicSmemSize = gs_card(func->module->ctx->device)->shared_per_sm / (size_t)numBlocks;
    return CUDA_SUCCESS;
}

CUresult cuProfilerStart(void)
{
    CUcontext ctx;
    return gs_current(&ctx);
}

CUresult cuProfilerStop(void)
{
    CUcontext ctx;
    return gs_current(&ctx);
}
