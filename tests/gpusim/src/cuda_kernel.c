/* Functions: a kernel is a name and a duration; a few really compute. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_internal.h"

#define NOTE "gpusim:"

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

void gs_kernel_describe(CUfunction f)
{
    const char *text = f->module->text;
    uint64_t given = noted(text, f->name, "duration_ns=");
    f->duration_ns = given ? given : name_duration(f->name);
    f->wave_ns = noted(text, f->name, "wave_ns=");
    f->builtin = builtin_of(f->name);
    f->shape[0] = f->shape[1] = f->shape[2] = 1;
}

uint64_t gs_kernel_ns(CUfunction f, int device, uint64_t blocks, uint64_t threads)
{
    if (!f->wave_ns)
        return f->duration_ns;
    struct gpusim_card *card = gs_card(device);
    uint64_t resident = (uint64_t)card->sm_count * (card->threads_per_sm / (threads ? threads : 1));
    return (blocks + resident - 1) / (resident ? resident : 1) * f->wave_ns;
}

CUresult gs_function_check(CUfunction f)
{
    TRY(gs_ready());
    return f && f->magic == MAGIC_FUNCTION ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
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
