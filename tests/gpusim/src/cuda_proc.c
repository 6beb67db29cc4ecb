/* cuGetProcAddress: the name without suffix, the version asked for, and the kind of default stream. */
#include <string.h>

#include "cuda_internal.h"

#define FLAG_PER_THREAD 2
#define STATUS_FOUND 0
#define STATUS_NO_SYMBOL 1
#define STATUS_TOO_OLD 2

#define CUDA_STUB(name, version)       \
    EXPORT CUresult name(void);        \
    CUresult name(void)                \
    {                                  \
        return CUDA_ERROR_NOT_SUPPORTED; \
    }
#include "cuda_stubs.def"
#undef CUDA_STUB

struct entry {
    const char *symbol;
    void *function;
    int version;
};

#define CUDA_FN(ret, name, params, version) {#name, (void *)name, version},
#define CUDA_STUB(name, version) {#name, (void *)name, version},
static const struct entry ENTRIES[] = {
#include "cuda_api.def"
#include "cuda_stubs.def"
};
#undef CUDA_FN
#undef CUDA_STUB

/* Length of a symbol without `_vN`, `_ptds`, `_ptsz`. */
static size_t base_length(const char *symbol, bool *per_thread)
{
    size_t n = strlen(symbol);
    *per_thread = n > 5 && (strcmp(symbol + n - 5, "_ptds") == 0 || strcmp(symbol + n - 5, "_ptsz") == 0);
    if (*per_thread)
        n -= 5;
    if (n > 3 && symbol[n - 3] == '_' && symbol[n - 2] == 'v' && symbol[n - 1] >= '2' && symbol[n - 1] <= '9')
        n -= 3;
    return n;
}

static bool better(const struct entry *a, bool a_thread, const struct entry *b, bool b_thread)
{
    if (!b)
        return true;
    if (a_thread != b_thread)
        return a_thread;
    return a->version > b->version;
}

void *gs_proc(const char *symbol, int version, uint64_t flags, int *status)
{
    const struct entry *best = NULL;
    bool best_thread = false;
    size_t length = strlen(symbol);
    *status = STATUS_NO_SYMBOL;
    if (gs.state && version > (int)gs.state->cuda_version)
        version = (int)gs.state->cuda_version;
    for (size_t i = 0; i < sizeof ENTRIES / sizeof *ENTRIES; i++) {
        const struct entry *e = &ENTRIES[i];
        bool per_thread;
        if (strncmp(e->symbol, symbol, length) != 0 || base_length(e->symbol, &per_thread) != length)
            continue;
        if (per_thread && !(flags & FLAG_PER_THREAD))
            continue;
        if (e->version > version) {
            *status = best ? STATUS_FOUND : STATUS_TOO_OLD;
            continue;
        }
        if (better(e, per_thread, best, best_thread)) {
            best = e;
            best_thread = per_thread;
        }
    }
    if (!best)
        return NULL;
    *status = STATUS_FOUND;
    return best->function;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *symbolStatus)
{
    int status;
    REQUIRE(symbol && pfn && flags <= FLAG_PER_THREAD, CUDA_ERROR_INVALID_VALUE);
    *pfn = gs_proc(symbol, cudaVersion, flags, &status);
    if (symbolStatus)
        *symbolStatus = status;
    return *pfn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    return cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, NULL);
}
