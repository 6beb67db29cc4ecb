/* Every kind of launch. Counted for now; the wrapper's whole cost is one thread-local decrement. */
#include "state.h"

#include "hooks.h"

#define BATCH 256

static __thread int credit; /* launches until the next visit to the slot */

static __attribute__((noinline, cold)) void refill(void) {
    struct egpu_state *state = egpu_state();
    credit = BATCH;
    if (state != NULL && load_acquire(&state->seat.header) != NULL)
        __atomic_fetch_add(&state->seat.slot->launches, BATCH, __ATOMIC_RELAXED);
}

#define LAUNCH(name, params, args)                                                                                    \
    CUresult name params {                                                                                            \
        if (EGPU_UNLIKELY(--credit < 0))                                                                              \
            refill();                                                                                                 \
        if (EGPU_UNLIKELY(EGPU_REAL(name) == NULL))                                                                   \
            return CUDA_ERROR_NOT_FOUND;                                                                              \
        return load_relaxed(&egpu_real.name) args;                                                                    \
    }

#define GRID                                                                                                          \
    CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,                \
        unsigned int bz, unsigned int shared, CUstream stream, void **params

LAUNCH(cuLaunch, (CUfunction f), (f))
LAUNCH(cuLaunchGrid, (CUfunction f, int width, int height), (f, width, height))
LAUNCH(cuLaunchGridAsync, (CUfunction f, int width, int height, CUstream stream), (f, width, height, stream))
LAUNCH(cuLaunchKernel, (GRID, void **extra), (f, gx, gy, gz, bx, by, bz, shared, stream, params, extra))
LAUNCH(cuLaunchKernel_ptsz, (GRID, void **extra), (f, gx, gy, gz, bx, by, bz, shared, stream, params, extra))
LAUNCH(cuLaunchKernelEx, (const void *config, CUfunction f, void **params, void **extra), (config, f, params, extra))
LAUNCH(cuLaunchKernelEx_ptsz, (const void *config, CUfunction f, void **params, void **extra),
       (config, f, params, extra))
LAUNCH(cuLaunchCooperativeKernel, (GRID), (f, gx, gy, gz, bx, by, bz, shared, stream, params))
LAUNCH(cuLaunchCooperativeKernel_ptsz, (GRID), (f, gx, gy, gz, bx, by, bz, shared, stream, params))
LAUNCH(cuLaunchCooperativeKernelMultiDevice, (void *list, unsigned int count, unsigned int flags),
       (list, count, flags))
LAUNCH(cuGraphLaunch, (CUgraphExec exec, CUstream stream), (exec, stream))
LAUNCH(cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream), (exec, stream))
