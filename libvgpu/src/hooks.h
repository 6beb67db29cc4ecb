/* What hooks.def becomes: typed pointers to the real functions, prototypes of the hooks, the table of names. */
#ifndef EGPU_HOOKS_H
#define EGPU_HOOKS_H

#include "cuda_types.h"
#include "sys.h"

enum egpu_library { EGPU_LIBRARY_CUDA = 0, EGPU_LIBRARY_NVML = 1, EGPU_LIBRARIES = 2 };

enum egpu_id {
#define CU(version, base, stream, name, params, args) EGPU_ID_##name,
#define NV(name, params, args) EGPU_ID_##name,
#define CALL(library, name, result, params) EGPU_ID_##name,
#include "hooks.def"
    EGPU_IDS
};

struct egpu_real {
#define CU(version, base, stream, name, params, args) CUresult(*name) params;
#define NV(name, params, args) nvmlReturn_t(*name) params;
#define CALL(library, name, result, params) result(*name) params;
#include "hooks.def"
};

#define CU(version, base, stream, name, params, args) EGPU_EXPORT CUresult name params;
#define NV(name, params, args) EGPU_EXPORT nvmlReturn_t name params;
#include "hooks.def"

struct egpu_hook {
    const char *name;
    const char *base;       /* name for cuGetProcAddress; NULL: not to be had there */
    void *hook;             /* what programs get; NULL: only called */
    uint16_t offset;        /* of the pointer in struct egpu_real */
    uint16_t library;       /* enum egpu_library */
    uint16_t version;       /* in hundredths: 1202 is CUDA 12.2, 302 is 3.2 */
    uint16_t stream;        /* 1: for the per-thread default stream */
};

extern struct egpu_real egpu_real;
extern const struct egpu_hook egpu_hooks[EGPU_IDS];

/* Find the real function; its pointer stays NULL when the installed driver does not have it. */
void egpu_resolve(enum egpu_id id);

/* Index of a hooked name, -1 for any other. */
int egpu_hook_index(const char *name);

/* The hook for what cuGetProcAddress found, or the found pointer itself. */
void *egpu_substitute(const char *symbol, void *found, int cuda_version, uint64_t flags);

/* The real function, NULL when the driver lacks it. */
#define EGPU_REAL(name)                                                                                               \
    (EGPU_LIKELY(load_relaxed(&egpu_real.name) != NULL) ? load_relaxed(&egpu_real.name)                               \
                                                        : (egpu_resolve(EGPU_ID_##name), load_relaxed(&egpu_real.name)))

/* Call the real function, or answer `missing` when the driver lacks it. */
#define EGPU_CALL(missing, name, ...) (EGPU_REAL(name) != NULL ? load_relaxed(&egpu_real.name)(__VA_ARGS__) : (missing))

#endif
