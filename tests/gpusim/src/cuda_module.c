/* Modules, libraries, functions, launches. A kernel is a name and a duration; a few really compute. */
#define _GNU_SOURCE
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_internal.h"

#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_WRAPPER 0x466243b1u
#define NOTE "gpusim:"
#define MAX_THREADS 1024

struct module_global {
    char *name;
    CUdeviceptr ptr;
    uint64_t size;
    struct module_global *next;
};

/* kernels that really compute */

static void vector_add(void **p, uint64_t threads)
{
    const float *a = *(const float **)p[0], *b = *(const float **)p[1];
    float *c = *(float **)p[2];
    uint64_t n = *(const unsigned int *)p[3];
    for (uint64_t i = 0; i < n && i < threads; i++)
        c[i] = a[i] + b[i];
}

static void saxpy(void **p, uint64_t threads)
{
    uint64_t n = *(const unsigned int *)p[0];
    float a = *(const float *)p[1];
    const float *x = *(const float **)p[2];
    float *y = *(float **)p[3];
    for (uint64_t i = 0; i < n && i < threads; i++)
        y[i] += a * x[i];
}

static const struct {
    const char *name;
    void (*run)(void **params, uint64_t threads);
} BUILTINS[] = {{"vectorAdd", vector_add}, {"vector_add", vector_add}, {"saxpy", saxpy}};

static int builtin_of(const char *name)
{
    for (size_t i = 0; i < sizeof BUILTINS / sizeof *BUILTINS; i++)
        if (strcmp(BUILTINS[i].name, name) == 0)
            return (int)i + 1;
    return 0;
}

void gs_kernel_run(CUfunction f, const unsigned grid[3], const unsigned block[3], void **params)
{
    if (f->builtin && params)
        BUILTINS[f->builtin - 1].run(params, (uint64_t)grid[0] * grid[1] * grid[2] * block[0] * block[1] * block[2]);
}

/* durations */

static uint64_t unit_ns(const char *unit)
{
    return strncmp(unit, "ns", 2) == 0 ? 1 : strncmp(unit, "us", 2) == 0 ? 1000 : strncmp(unit, "ms", 2) == 0 ? 1000000 : 0;
}

/* `..._us_250` and `..._ms_2`: the duration is in the name. */
static uint64_t name_duration(const char *name)
{
    const char *unit = NULL;
    for (const char *p = strchr(name, '_'); p; p = strchr(p + 1, '_'))
        if (unit_ns(p + 1) && p[3] == '_' && isdigit((unsigned char)p[4]))
            unit = p + 1;
    return unit ? strtoull(unit + 3, NULL, 10) * unit_ns(unit) : DEFAULT_KERNEL_NS;
}

/* A comment of the PTX, `// gpusim: NAME duration_ns=N` or `wave_ns=N`. */
static uint64_t noted(const char *text, const char *name, const char *key)
{
    for (const char *p = text ? strstr(text, NOTE) : NULL; p; p = strstr(p + 1, NOTE)) {
        const char *word = p + strlen(NOTE);
        const char *end = strchrnul(word, '\n');
        word += strspn(word, " \t");
        size_t length = strcspn(word, " \t\n");
        const char *value = strstr(word, key);
        if (length == strlen(name) && strncmp(word, name, length) == 0 && value && value < end)
            return strtoull(value + strlen(key), NULL, 10);
    }
    return 0;
}

uint64_t gs_kernel_ns(CUfunction f, int device, uint64_t blocks, uint64_t threads)
{
    if (!f->wave_ns)
        return f->duration_ns;
    struct gpusim_card *card = gs_card(device);
    uint64_t resident = (uint64_t)card->sm_count * (card->threads_per_sm / (threads ? threads : 1));
    return (blocks + resident - 1) / (resident ? resident : 1) * f->wave_ns;
}

/* modules */

static CUresult module_check(CUmodule m)
{
    TRY(gs_ready());
    return m && m->magic == MAGIC_MODULE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult gs_function_check(CUfunction f)
{
    TRY(gs_ready());
    return f && f->magic == MAGIC_FUNCTION ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUfunction function_add(CUmodule m, const char *name, size_t length)
{
    CUfunction f = calloc(1, sizeof *f);
    char *copy = f ? strndup(name, length) : NULL;
    if (!copy) {
        free(f);
        return NULL;
    }
    f->magic = MAGIC_FUNCTION;
    f->module = m;
    f->name = copy;
    f->duration_ns = name_duration(copy);
    uint64_t given = noted(m->text, copy, "duration_ns=");
    if (given)
        f->duration_ns = given;
    f->wave_ns = noted(m->text, copy, "wave_ns=");
    f->builtin = builtin_of(copy);
    f->shape[0] = f->shape[1] = f->shape[2] = 1;
    f->next = m->functions;
    m->functions = f;
    return f;
}

static bool name_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$';
}

static CUresult parse_entries(CUmodule m)
{
    for (const char *p = strstr(m->text, ".entry"); p; p = strstr(p + 1, ".entry")) {
        const char *name = p + 6 + strspn(p + 6, " \t\n");
        size_t length = 0;
        while (name_char(name[length]))
            length++;
        REQUIRE(length, CUDA_ERROR_INVALID_PTX);
        REQUIRE(function_add(m, name, length), CUDA_ERROR_OUT_OF_MEMORY);
    }
    return CUDA_SUCCESS;
}

/* Bytes of a `.global ... .b8 name[64]` or `.global .f32 name`. */
static uint64_t global_size(const char *line, const char *name_end)
{
    uint64_t element = 4;
    for (const char *p = line; p && p < name_end; p = strchr(p + 1, '.'))
        if (*p == '.' && strchr("bfsu", p[1]) && isdigit((unsigned char)p[2]))
            element = strtoull(p + 2, NULL, 10) / 8;
    uint64_t count = *name_end == '[' ? strtoull(name_end + 1, NULL, 10) : 1;
    return element * (count ? count : 1);
}

static CUresult global_add(CUmodule m, const char *line)
{
    const char *end = line + strcspn(line, ";=[");
    while (end > line && !name_char(end[-1]))
        end--;
    const char *name = end;
    while (name > line && name_char(name[-1]))
        name--;
    struct module_global *g = calloc(1, sizeof *g);
    REQUIRE(g, CUDA_ERROR_OUT_OF_MEMORY);
    g->name = strndup(name, (size_t)(end - name));
    g->size = global_size(line, end);
    g->next = m->globals;
    m->globals = g;
    CUresult rc = gs_alloc(m->ctx->device, m->ctx, g->size, MEMORY_DEVICE, &g->ptr);
    return g->name ? rc : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult parse_globals(CUmodule m)
{
    for (const char *p = strstr(m->text, ".global"); p; p = strstr(p + 1, ".global")) {
        const char *start = p;
        while (start > m->text && start[-1] != '\n')
            start--;
        start += strspn(start, " \t");
        if (start == p || strncmp(start, ".visible", 8) == 0 || strncmp(start, ".extern", 7) == 0)
            if (isspace((unsigned char)p[7]))
                TRY(global_add(m, p));
    }
    return CUDA_SUCCESS;
}

static void module_free(CUmodule m)
{
    bool open = m->ctx->magic == MAGIC_CONTEXT;
    while (m->functions) {
        CUfunction f = m->functions;
        m->functions = f->next;
        f->magic = MAGIC_DEAD;
        free(f->name);
        free(f);
    }
    while (m->globals) {
        struct module_global *g = m->globals;
        m->globals = g->next;
        if (g->ptr && open)
            gs_free(g->ptr);
        free(g->name);
        free(g);
    }
    if (m->charged)
        gs_uncharge(m->ctx->device, CHARGE_MODULE, m->charged);
    m->magic = MAGIC_DEAD;
    free(m->text);
    free(m);
}

void gs_modules_free(CUcontext ctx)
{
    while (ctx->modules) {
        CUmodule m = ctx->modules;
        ctx->modules = m->next;
        module_free(m);
    }
}

static CUresult fill_module(CUmodule m, const void *image)
{
    uint32_t word;
    memcpy(&word, image, sizeof word);
    bool binary = word == FATBIN_MAGIC || word == FATBIN_WRAPPER || memcmp(image, "\x7f" "ELF", 4) == 0;
    if (!binary) {
        const char *text = image;
        REQUIRE(isprint((unsigned char)text[0]) || isspace((unsigned char)text[0]), CUDA_ERROR_INVALID_IMAGE);
        REQUIRE(strstr(text, ".version") && strstr(text, ".target"), CUDA_ERROR_INVALID_PTX);
        m->text = strdup(text);
        REQUIRE(m->text, CUDA_ERROR_OUT_OF_MEMORY);
        TRY(parse_entries(m));
    }
    uint64_t price = gs_card(m->ctx->device)->module_bytes;
    TRY(gs_charge(m->ctx->device, CHARGE_MODULE, price));
    m->charged = price;
    return m->text ? parse_globals(m) : CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    REQUIRE(module && image, CUDA_ERROR_INVALID_VALUE);
    CUmodule m = calloc(1, sizeof *m);
    REQUIRE(m, CUDA_ERROR_OUT_OF_MEMORY);
    m->magic = MAGIC_MODULE;
    m->ctx = ctx;
    CUresult rc = fill_module(m, image);
    if (rc != CUDA_SUCCESS) {
        module_free(m);
        return rc;
    }
    pthread_mutex_lock(&ctx->lock);
    m->next = ctx->modules;
    ctx->modules = m;
    pthread_mutex_unlock(&ctx->lock);
    *module = m;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options,
                            void **optionValues)
{
    (void)numOptions;
    (void)options;
    (void)optionValues;
    return cuModuleLoadData(module, image);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    return cuModuleLoadData(module, fatCubin);
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "rbe");
    char *text = NULL;
    size_t size = 0, room = 0;
    if (!file)
        return NULL;
    do {
        room = room ? room * 2 : 65536;
        char *grown = realloc(text, room + 1);
        if (!grown)
            break;
        text = grown;
        size += fread(text + size, 1, room - size, file);
    } while (size == room);
    fclose(file);
    if (text)
        text[size] = 0;
    return text;
}

CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
    CUcontext ctx;
    TRY(gs_current(&ctx));
    REQUIRE(module && fname, CUDA_ERROR_INVALID_VALUE);
    char *text = read_file(fname);
    REQUIRE(text, CUDA_ERROR_FILE_NOT_FOUND);
    CUresult rc = cuModuleLoadData(module, text);
    free(text);
    return rc;
}

CUresult cuModuleUnload(CUmodule hmod)
{
    TRY(module_check(hmod));
    CUcontext ctx = hmod->ctx;
    pthread_mutex_lock(&ctx->lock);
    CUmodule *at = &ctx->modules;
    while (*at && *at != hmod)
        at = &(*at)->next;
    if (*at)
        *at = hmod->next;
    pthread_mutex_unlock(&ctx->lock);
    module_free(hmod);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    REQUIRE(mode, CUDA_ERROR_INVALID_VALUE);
    *mode = 2; /* lazy */
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    TRY(module_check(hmod));
    REQUIRE(hfunc && name && *name, CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&hmod->ctx->lock);
    CUfunction f = hmod->functions;
    while (f && strcmp(f->name, name) != 0)
        f = f->next;
    if (!f && !hmod->text)
        f = function_add(hmod, name, strlen(name));
    pthread_mutex_unlock(&hmod->ctx->lock);
    REQUIRE(f, CUDA_ERROR_NOT_FOUND);
    *hfunc = f;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule mod)
{
    TRY(module_check(mod));
    REQUIRE(count, CUDA_ERROR_INVALID_VALUE);
    *count = 0;
    for (CUfunction f = mod->functions; f; f = f->next)
        ++*count;
    return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions, CUmodule mod)
{
    TRY(module_check(mod));
    REQUIRE(functions, CUDA_ERROR_INVALID_VALUE);
    for (CUfunction f = mod->functions; f && numFunctions; f = f->next, numFunctions--)
        *functions++ = f;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name)
{
    TRY(module_check(hmod));
    REQUIRE(name && (dptr || bytes), CUDA_ERROR_INVALID_VALUE);
    for (struct module_global *g = hmod->globals; g; g = g->next)
        if (strcmp(g->name, name) == 0) {
            if (dptr)
                *dptr = g->ptr;
            if (bytes)
                *bytes = g->size;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

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
    char *text = path ? read_file(path) : NULL;
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
    TRY(module_check(AS_MODULE(library)));
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

/* functions */

#define FUNCTION_ATTRIBUTES 17

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
    TRY(gs_function_check(hfunc));
    REQUIRE(pi && attrib >= 0 && attrib < FUNCTION_ATTRIBUTES, CUDA_ERROR_INVALID_VALUE);
    struct gpusim_card *card = gs_card(hfunc->module->ctx->device);
    int compute = (int)(card->cc_major * 10 + card->cc_minor);
    switch (attrib) {
    case 0: *pi = MAX_THREADS; break;
    case 4: *pi = 32; break;
    case 5: case 6: *pi = compute; break;
    default: *pi = hfunc->attributes[attrib]; break;
    }
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
    TRY(gs_function_check(hfunc));
    REQUIRE(attrib >= 8 && attrib < FUNCTION_ATTRIBUTES, CUDA_ERROR_INVALID_VALUE);
    hfunc->attributes[attrib] = value;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config)
{
    (void)config;
    return gs_function_check(hfunc);
}

CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
    TRY(gs_function_check(hfunc));
    REQUIRE(hmod, CUDA_ERROR_INVALID_VALUE);
    *hmod = hfunc->module;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char **name, CUfunction hfunc)
{
    TRY(gs_function_check(hfunc));
    REQUIRE(name, CUDA_ERROR_INVALID_VALUE);
    *name = hfunc->name;
    return CUDA_SUCCESS;
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
    TRY(gs_function_check(function));
    REQUIRE(state, CUDA_ERROR_INVALID_VALUE);
    *state = 1;
    return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction function)
{
    return gs_function_check(function);
}

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
