/* Code on the card: what loading a module takes is measured and charged. Code that the driver loads later, at the first
 * launch, is not seen here. */
#include "grant.h"

#include <string.h>

/* More than this between two looks at the card is a neighbour's allocation, not a module. */
#define PLAUSIBLE (256ull << 20)

static uint64_t card_free(void) {
    size_t free = 0, total = 0;
    return EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemGetInfo_v2, &free, &total) == CUDA_SUCCESS ? free : 0;
}

/* Charge a granule for what is to come. Without a context there is nothing to charge to: the driver answers that. */
static CUresult open_load(struct egpu_grant *grant, uint64_t *before) {
    CUresult result = egpu_grant_here(grant, EGPU_KIND_MODULE);
    *before = 0;
    if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_NOT_INITIALIZED)
        grant->state = NULL;
    else if (result != CUDA_SUCCESS || (result = egpu_grant_charge(grant, EGPU_GRANULE)) != CUDA_SUCCESS)
        return result;
    if (grant->state != NULL)
        *before = card_free();
    return CUDA_SUCCESS;
}

/* Bring the charge to what the card has lost; 0 when that does not fit. */
static int close_load(struct egpu_grant *grant, uint64_t before, void *handle) {
    uint64_t after = card_free(), size = before > after ? before - after : 0;
    struct egpu_grant excess = *grant;
    if (size > PLAUSIBLE)
        size = grant->bytes;
    if (size > grant->bytes && egpu_grant_charge(grant, size - grant->bytes) != CUDA_SUCCESS)
        return 0;
    if (size < grant->bytes) {
        excess.bytes = grant->bytes - size;
        egpu_grant_drop(&excess);
        grant->bytes = size;
    }
    return egpu_grant_keep(grant, EGPU_SPACE_MODULE, (uintptr_t)handle);
}

#define LOAD(out, unload, name, ...)                                                                                  \
    do {                                                                                                              \
        struct egpu_grant grant;                                                                                      \
        uint64_t before;                                                                                              \
        if ((out) == NULL || egpu_inside)                                                                             \
            return EGPU_CALL(CUDA_ERROR_NOT_FOUND, name, __VA_ARGS__);                                                \
        CUresult result = open_load(&grant, &before);                                                                 \
        if (result != CUDA_SUCCESS)                                                                                   \
            return result;                                                                                            \
        egpu_inside++;                                                                                                \
        result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, name, __VA_ARGS__);                                                  \
        if (result == CUDA_SUCCESS && grant.state != NULL && !close_load(&grant, before, *(out))) {                   \
            EGPU_CALL(CUDA_ERROR_NOT_FOUND, unload, *(out));                                                          \
            result = CUDA_ERROR_OUT_OF_MEMORY;                                                                        \
        }                                                                                                             \
        egpu_inside--;                                                                                                \
        if (result != CUDA_SUCCESS)                                                                                   \
            egpu_grant_drop(&grant);                                                                                  \
        return result;                                                                                                \
    } while (0)

CUresult cuModuleLoad(CUmodule *module, const char *fname) {
    LOAD(module, cuModuleUnload, cuModuleLoad, module, fname);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    LOAD(module, cuModuleUnload, cuModuleLoadData, module, image);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, int *options,
                            void **optionValues) {
    LOAD(module, cuModuleUnload, cuModuleLoadDataEx, module, image, numOptions, options, optionValues);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin) {
    LOAD(module, cuModuleUnload, cuModuleLoadFatBinary, module, fatCubin);
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jitOptions, void **jitOptionsValues,
                           unsigned int numJitOptions, int *libraryOptions, void **libraryOptionValues,
                           unsigned int numLibraryOptions) {
    LOAD(library, cuLibraryUnload, cuLibraryLoadData, library, code, jitOptions, jitOptionsValues, numJitOptions,
         libraryOptions, libraryOptionValues, numLibraryOptions);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, int *jitOptions, void **jitOptionsValues,
                               unsigned int numJitOptions, int *libraryOptions, void **libraryOptionValues,
                               unsigned int numLibraryOptions) {
    LOAD(library, cuLibraryUnload, cuLibraryLoadFromFile, library, fileName, jitOptions, jitOptionsValues,
         numJitOptions, libraryOptions, libraryOptionValues, numLibraryOptions);
}

EGPU_DESTROY(EGPU_SPACE_MODULE, cuModuleUnload, CUmodule)
EGPU_DESTROY(EGPU_SPACE_MODULE, cuLibraryUnload, CUlibrary)
