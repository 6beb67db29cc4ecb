/* Contexts: what each takes of the card is measured and charged; what ends with one is given back. */
#include "grant.h"

#include <string.h>

/* More than this is not a context but a neighbour's allocation seen between two looks at the card. */
#define PLAUSIBLE (2ull << 30)

/* ---- what a context takes ------------------------------------------------------------------------------------ */

struct measure {
    nvmlDevice_t device; /* NULL: nothing can be measured */
    uint64_t before;
};

static uint64_t card_used(nvmlDevice_t device) {
    nvmlMemory_t memory;
    if (EGPU_CALL(NVML_ERROR_FUNCTION_NOT_FOUND, nvmlDeviceGetMemoryInfo, device, &memory) != NVML_SUCCESS)
        return 0;
    return memory.used;
}

static void start(struct measure *measure, const char *uuid) {
    measure->device = NULL;
    if (EGPU_CALL(NVML_ERROR_FUNCTION_NOT_FOUND, nvmlInit_v2) != NVML_SUCCESS)
        return;
    if (EGPU_CALL(NVML_ERROR_FUNCTION_NOT_FOUND, nvmlDeviceGetHandleByUUID, uuid, &measure->device) != NVML_SUCCESS) {
        measure->device = NULL;
        EGPU_CALL(NVML_ERROR_FUNCTION_NOT_FOUND, nvmlShutdown);
        return;
    }
    measure->before = card_used(measure->device);
}

/* Bytes that the card has lost since start, or `otherwise` where that says nothing. */
static uint64_t finish(const struct measure *measure, uint64_t otherwise) {
    if (measure->device == NULL)
        return otherwise;
    uint64_t after = card_used(measure->device);
    EGPU_CALL(NVML_ERROR_FUNCTION_NOT_FOUND, nvmlShutdown);
    return after < measure->before || after - measure->before > PLAUSIBLE ? otherwise : after - measure->before;
}

/* ---- creation ------------------------------------------------------------------------------------------------ */

struct creation {
    struct egpu_grant grant;
    struct measure measure;
    uint64_t known; /* size by the limits page; 0: measured */
};

static CUresult open_creation(struct creation *creation, CUdevice device) {
    const struct egpu_limits_copy *limits;
    memset(creation, 0, sizeof *creation);
    CUresult result = egpu_grant_on(&creation->grant, device, EGPU_KIND_CONTEXT);
    if (result != CUDA_SUCCESS || creation->grant.state == NULL)
        return result;
    limits = egpu_limits_now(&(enum egpu_reason){0});
    const struct egpu_ledger *ledger = &creation->grant.state->seat.header->cards[creation->grant.card];
    creation->known = limits->cards[creation->grant.card].context;
    uint64_t hint = load_relaxed(&ledger->context);
    hint = hint > PLAUSIBLE ? 0 : hint;
    egpu_inside++;
    if (creation->known == 0)
        start(&creation->measure, limits->cards[creation->grant.card].uuid);
    egpu_inside--;
    return egpu_grant_charge(&creation->grant, creation->known ? creation->known : hint);
}

/* Bring the charge to what the context has turned out to take. */
static CUresult adjust(struct creation *creation) {
    struct egpu_grant *grant = &creation->grant;
    uint64_t size = creation->known ? creation->known : finish(&creation->measure, grant->bytes);
    if (size > grant->bytes)
        return egpu_grant_charge(grant, size - grant->bytes);
    struct egpu_grant excess = *grant;
    excess.bytes = grant->bytes - size;
    egpu_grant_drop(&excess);
    grant->bytes = size;
    return CUDA_SUCCESS;
}

static CUresult close_creation(struct creation *creation, CUresult result, CUcontext context) {
    struct egpu_grant *grant = &creation->grant;
    if (grant->state == NULL)
        return result;
    if (result != CUDA_SUCCESS) {
        egpu_inside++;
        finish(&creation->measure, 0);
        egpu_inside--;
        egpu_grant_drop(grant);
        return result;
    }
    grant->owner = egpu_owner(grant->state, context);
    egpu_inside++;
    result = adjust(creation);
    egpu_inside--;
    if (result == CUDA_SUCCESS) {
        store_relaxed(&grant->state->seat.header->cards[grant->card].context, grant->bytes);
        if (!egpu_grant_keep(grant, EGPU_SPACE_CONTEXT, (uintptr_t)context))
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS)
        egpu_grant_drop(grant);
    return result;
}

#define CREATE(device, name, ...)                                                                                     \
    do {                                                                                                              \
        struct creation creation;                                                                                     \
        if (pctx == NULL || egpu_inside)                                                                              \
            return EGPU_CALL(CUDA_ERROR_NOT_FOUND, name, __VA_ARGS__);                                                \
        CUresult result = open_creation(&creation, device);                                                           \
        if (result != CUDA_SUCCESS)                                                                                   \
            return result;                                                                                            \
        egpu_inside++;                                                                                                \
        result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, name, __VA_ARGS__);                                                  \
        egpu_inside--;                                                                                                \
        CUresult kept = close_creation(&creation, result, *pctx);                                                     \
        if (result == CUDA_SUCCESS && kept != CUDA_SUCCESS)                                                           \
            EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuCtxDestroy_v2, *pctx);                                                  \
        return kept;                                                                                                  \
    } while (0)

CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev) {
    CREATE(dev, cuCtxCreate, pctx, flags, dev);
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev) {
    CREATE(dev, cuCtxCreate_v2, pctx, flags, dev);
}

CUresult cuCtxCreate_v3(CUcontext *pctx, void *paramsArray, int numParams, unsigned int flags, CUdevice dev) {
    CREATE(dev, cuCtxCreate_v3, pctx, paramsArray, numParams, flags, dev);
}

CUresult cuCtxCreate_v4(CUcontext *pctx, void *ctxCreateParams, unsigned int flags, CUdevice dev) {
    CREATE(dev, cuCtxCreate_v4, pctx, ctxCreateParams, flags, dev);
}

/* ---- primary contexts ---------------------------------------------------------------------------------------- */

static int primary_active(CUdevice device) {
    unsigned int flags;
    int active = 0;
    return EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuDevicePrimaryCtxGetState, device, &flags, &active) == CUDA_SUCCESS &&
           active;
}

/* A retain of a context that is there already takes nothing more. */
static int known_primary(struct egpu_state *state, CUdevice device) {
    struct egpu_entry entry;
    uint64_t context = device >= 0 && device < EGPU_DEVICES ? load_relaxed(&state->primaries[device]) : 0;
    return context != 0 && egpu_map_find(&state->map, EGPU_SPACE_CONTEXT, context, &entry) && primary_active(device);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
    struct creation creation;
    struct egpu_entry entry;
    struct egpu_state *state = egpu_state();
    if (pctx == NULL || egpu_inside || state == NULL || known_primary(state, dev))
        return EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuDevicePrimaryCtxRetain, pctx, dev);
    CUresult result = open_creation(&creation, dev);
    if (result != CUDA_SUCCESS)
        return result;
    egpu_inside++;
    result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuDevicePrimaryCtxRetain, pctx, dev);
    egpu_inside--;
    if (result == CUDA_SUCCESS && egpu_map_find(&state->map, EGPU_SPACE_CONTEXT, (uintptr_t)*pctx, &entry)) {
        close_creation(&creation, CUDA_ERROR_INVALID_CONTEXT, NULL); /* another thread was first and has charged it */
        return result;
    }
    CUresult kept = close_creation(&creation, result, *pctx);
    if (kept == CUDA_SUCCESS && dev >= 0 && dev < EGPU_DEVICES)
        store_relaxed(&state->primaries[dev], (uintptr_t)*pctx);
    if (result == CUDA_SUCCESS && kept != CUDA_SUCCESS)
        EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuDevicePrimaryCtxRelease_v2, dev);
    return kept;
}

/* After a call that may have ended the device's primary context. */
static CUresult primary_ended(CUresult result, CUdevice device, int surely, uint16_t epoch) {
    struct egpu_state *state = egpu_state();
    if (result != CUDA_SUCCESS || state == NULL || device < 0 || device >= EGPU_DEVICES)
        return result;
    uint64_t context = load_relaxed(&state->primaries[device]);
    if (context != 0 && (surely || !primary_active(device)))
        egpu_context_ended(state, (CUcontext)(uintptr_t)context, epoch);
    return result;
}

#define PRIMARY(name, surely)                                                                                         \
    CUresult name(CUdevice dev) {                                                                                     \
        struct egpu_state *state = egpu_inside ? NULL : egpu_state();                                                 \
        uint16_t epoch = state ? egpu_context_ending(state) : 0;                                                      \
        CUresult result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, name, dev);                                                 \
        return state ? primary_ended(result, dev, surely, epoch) : result;                                            \
    }

PRIMARY(cuDevicePrimaryCtxRelease, 0)
PRIMARY(cuDevicePrimaryCtxRelease_v2, 0)
PRIMARY(cuDevicePrimaryCtxReset, 1)
PRIMARY(cuDevicePrimaryCtxReset_v2, 1)

#define DESTROY(name)                                                                                                 \
    CUresult name(CUcontext ctx) {                                                                                    \
        struct egpu_state *state = egpu_inside ? NULL : egpu_state();                                                 \
        uint16_t epoch = state ? egpu_context_ending(state) : 0;                                                      \
        CUresult result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, name, ctx);                                                 \
        if (state != NULL && result == CUDA_SUCCESS)                                                                  \
            egpu_context_ended(state, ctx, epoch);                                                                    \
        return result;                                                                                                \
    }

DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)
