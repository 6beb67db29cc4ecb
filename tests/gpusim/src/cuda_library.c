/* The linker, and libraries: other ways to a module. */
#include <stdlib.h>
#include <string.h>

#include "cuda_internal.h"

/* the linker: its result is the text it was given */

struct CUlinkState_st {
    char *text;
    size_t size;
};

CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option *options, void **optionValues, CUlinkState *stateOut)
{
    CUcontext ctx;
    (void)numOptions;
    (void)options;
    (void)optionValues;
    TRY(gs_current(&ctx));
    REQUIRE(stateOut, CUDA_ERROR_INVALID_VALUE);
    *stateOut = calloc(1, sizeof **stateOut);
    return *stateOut ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name,
                          unsigned int numOptions, CUjit_option *options, void **optionValues)
{
    (void)type;
    (void)name;
    (void)numOptions;
    (void)options;
    (void)optionValues;
    TRY(gs_ready());
    REQUIRE(state && data && size, CUDA_ERROR_INVALID_VALUE);
    char *grown = realloc(state->text, state->size + size + 1);
    REQUIRE(grown, CUDA_ERROR_OUT_OF_MEMORY);
    memcpy(grown + state->size, data, size);
    state->text = grown;
    state->size += size;
    while (state->size && !state->text[state->size - 1])
        state->size--;
    state->text[state->size] = 0;
    return CUDA_SUCCESS;
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path, unsigned int numOptions,
                          CUjit_option *options, void **optionValues)
{
    TRY(gs_ready());
    char *text = path ? gs_read_file(path) : NULL;
    REQUIRE(text, CUDA_ERROR_FILE_NOT_FOUND);
    CUresult rc = cuLinkAddData_v2(state, type, text, strlen(text), path, numOptions, options, optionValues);
    free(text);
    return rc;
}

CUresult cuLinkComplete(CUlinkState state, void **cubinOut, size_t *sizeOut)
{
    TRY(gs_ready());
    REQUIRE(state && cubinOut && state->text, CUDA_ERROR_INVALID_VALUE);
    *cubinOut = state->text;
    if (sizeOut)
        *sizeOut = state->size + 1;
    return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state)
{
    TRY(gs_ready());
    REQUIRE(state, CUDA_ERROR_INVALID_HANDLE);
    free(state->text);
    free(state);
    return CUDA_SUCCESS;
}

/* libraries: a module of the context that loaded them; a kernel is its function */

#define AS_MODULE(library) ((CUmodule)(void *)(library))
#define AS_FUNCTION(kernel) ((CUfunction)(void *)(kernel))

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues,
                           unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                           unsigned int numLibraryOptions)
{
    (void)jitOptions;
    (void)jitOptionsValues;
    (void)numJitOptions;
    (void)libraryOptions;
    (void)libraryOptionValues;
    (void)numLibraryOptions;
    return cuModuleLoadData((CUmodule *)(void *)library, code);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                               void **jitOptionsValues, unsigned int numJitOptions, CUlibraryOption *libraryOptions,
                               void **libraryOptionValues, unsigned int numLibraryOptions)
{
    (void)jitOptions;
    (void)jitOptionsValues;
    (void)numJitOptions;
    (void)libraryOptions;
    (void)libraryOptionValues;
    (void)numLibraryOptions;
    return cuModuleLoad((CUmodule *)(void *)library, fileName);
}

CUresult cuLibraryUnload(CUlibrary library)
{
    return cuModuleUnload(AS_MODULE(library));
}

CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
    TRY(gs_module_check(AS_MODULE(library)));
    REQUIRE(pMod, CUDA_ERROR_INVALID_VALUE);
    *pMod = AS_MODULE(library);
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
    return cuModuleGetFunction((CUfunction *)(void *)pKernel, AS_MODULE(library), name);
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary lib)
{
    return cuModuleGetFunctionCount(count, AS_MODULE(lib));
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib)
{
    return cuModuleEnumerateFunctions((CUfunction *)(void *)kernels, numKernels, AS_MODULE(lib));
}

CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    return cuModuleGetGlobal_v2(dptr, bytes, AS_MODULE(library), name);
}

CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
    TRY(gs_function_check(AS_FUNCTION(kernel)));
    REQUIRE(pFunc, CUDA_ERROR_INVALID_VALUE);
    *pFunc = AS_FUNCTION(kernel);
    return CUDA_SUCCESS;
}

CUresult cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel)
{
    TRY(gs_function_check(AS_FUNCTION(kernel)));
    REQUIRE(pLib, CUDA_ERROR_INVALID_VALUE);
    *pLib = (CUlibrary)(void *)AS_FUNCTION(kernel)->module;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char **name, CUkernel hfunc)
{
    return cuFuncGetName(name, AS_FUNCTION(hfunc));
}

CUresult cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev)
{
    (void)dev;
    return cuFuncGetAttribute(pi, attrib, AS_FUNCTION(kernel));
}

CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev)
{
    (void)dev;
    return cuFuncSetAttribute(AS_FUNCTION(kernel), attrib, val);
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev)
{
    (void)dev;
    return cuFuncSetCacheConfig(AS_FUNCTION(kernel), config);
}
