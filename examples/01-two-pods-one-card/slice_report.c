/* An ordinary CUDA program: it asks how much memory there is, takes half of it, adds two vectors on the card, asks for more
 * than is left, and then keeps what it has. It knows nothing of slices.
 *
 * cc slice_report.c -o slice_report -lcuda
 */
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;

extern CUresult cuInit(unsigned flags);
extern CUresult cuDeviceGet(CUdevice *device, int ordinal);
extern CUresult cuDeviceGetName(char *name, int size, CUdevice device);
extern CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
extern CUresult cuCtxSetCurrent(CUcontext context);
extern CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
extern CUresult cuMemGetInfo_v2(size_t *available, size_t *total);
extern CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
extern CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
extern CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
extern CUresult cuModuleLoadData(CUmodule *module, const void *image);
extern CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
extern CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **arguments,
                               void **extra);
extern CUresult cuCtxSynchronize(void);
extern CUresult cuGetErrorName(CUresult error, const char **name);

enum { COUNT = 1024, MIB = 1 << 20 };

static const char PTX[] =
    ".version 6.4\n.target sm_70\n.address_size 64\n"
    ".visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c)\n{\n"
    "  .reg .u64 %p<8>; .reg .u32 %t; .reg .f32 %f<4>;\n"
    "  ld.param.u64 %p1, [a]; ld.param.u64 %p2, [b]; ld.param.u64 %p3, [c];\n"
    "  mov.u32 %t, %tid.x; mul.wide.u32 %p4, %t, 4;\n"
    "  add.u64 %p5, %p1, %p4; add.u64 %p6, %p2, %p4; add.u64 %p7, %p3, %p4;\n"
    "  ld.global.f32 %f1, [%p5]; ld.global.f32 %f2, [%p6]; add.f32 %f3, %f1, %f2; st.global.f32 [%p7], %f3;\n"
    "  ret;\n}\n";

static const char *name_of(CUresult result)
{
    const char *name = "unknown";
    cuGetErrorName(result, &name);
    return name;
}

static int failed(const char *what, CUresult result)
{
    if (result != 0)
        printf("%s: %s\n", what, name_of(result));
    return result != 0;
}

static int add_vectors(void)
{
    static float one[COUNT], two[COUNT];
    CUdeviceptr a, b, c;
    CUmodule module;
    CUfunction add;
    for (int i = 0; i < COUNT; i++)
        one[i] = (float)i, two[i] = 1.0f;
    if (failed("load", cuModuleLoadData(&module, PTX)) || failed("function", cuModuleGetFunction(&add, module, "add")) ||
        failed("alloc", cuMemAlloc_v2(&a, sizeof one)) || failed("alloc", cuMemAlloc_v2(&b, sizeof two)) ||
        failed("alloc", cuMemAlloc_v2(&c, sizeof one)) || failed("copy", cuMemcpyHtoD_v2(a, one, sizeof one)) ||
        failed("copy", cuMemcpyHtoD_v2(b, two, sizeof two)))
        return 1;
    void *arguments[] = {&a, &b, &c};
    return failed("launch", cuLaunchKernel(add, 1, 1, 1, COUNT, 1, 1, 0, NULL, arguments, NULL)) ||
           failed("synchronize", cuCtxSynchronize());
}

int main(void)
{
    CUdevice device;
    CUcontext context;
    CUdeviceptr address;
    size_t total, available;
    char model[128];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (failed("cuInit", cuInit(0)) || failed("cuDeviceGet", cuDeviceGet(&device, 0)) ||
        failed("context", cuDevicePrimaryCtxRetain(&context, device)) || failed("context", cuCtxSetCurrent(context)))
        return 1;
    cuDeviceGetName(model, sizeof model, device);
    cuDeviceTotalMem_v2(&total, device);
    cuMemGetInfo_v2(&available, &total);
    printf("card            %s\n", model);
    printf("total memory    %zu MiB\n", total / MIB);
    printf("half of it      %s\n", name_of(cuMemAlloc_v2(&address, total / 2)));
    if (add_vectors() == 0)
        printf("vector addition done\n");
    printf("as much again   %s\n", name_of(cuMemAlloc_v2(&address, total / 2)));
    for (;;)
        pause();
}
