/* Modules: PTX is read for the names of its kernels and its globals; other images have any name. */
#define _GNU_SOURCE
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_internal.h"

#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_WRAPPER 0x466243b1u

struct module_global {
    char *name;
    CUdeviceptr ptr;
    uint64_t size;
    struct module_global *next;
};

/* modules */

CUresult gs_module_check(CUmodule m)
{
    TRY(gs_ready());
    return m && m->magic == MAGIC_MODULE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
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
    gs_kernel_describe(f);
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

char *gs_read_file(const char *path)
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
    char *text = gs_read_file(fname);
    REQUIRE(text, CUDA_ERROR_FILE_NOT_FOUND);
    CUresult rc = cuModuleLoadData(module, text);
    free(text);
    return rc;
}

CUresult cuModuleUnload(CUmodule hmod)
{
    TRY(gs_module_check(hmod));
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
    TRY(gs_module_check(hmod));
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
    TRY(gs_module_check(mod));
    REQUIRE(count, CUDA_ERROR_INVALID_VALUE);
    *count = 0;
    for (CUfunction f = mod->functions; f; f = f->next)
        ++*count;
    return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions, CUmodule mod)
{
    TRY(gs_module_check(mod));
    REQUIRE(functions, CUDA_ERROR_INVALID_VALUE);
    for (CUfunction f = mod->functions; f && numFunctions; f = f->next, numFunctions--)
        *functions++ = f;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name)
{
    TRY(gs_module_check(hmod));
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
