/* Contexts: what each takes of the card is measured and charged; what ends with one is given back. */
#include "grant.h"

#include <string.h>
#include <unistd.h>

#define PLAUSIBLE (2ull << 30)  /* more is not a context but a neighbour's allocation between two looks */
#define UNMEASURED (512ull << 20) /* charged while the first context of a slice is measured */
#define TURN_NS 2000000000ull
#define POLL_NS 2000000ull
#define MAX_LISTED 256

/* ---- what a context takes ------------------------------------------------------------------------------------ */

struct measure {
    nvmlDevice_t device; /* NULL: nothing can be measured */
    uint64_t card;       /* bytes in use on the whole card before */
    uint64_t own;        /* by this process */
};

static uint64_t card_used(nvmlDevice_t device) {
    nvmlMemory_t memory;
    if (EGPU_CALL(NVML_ERROR_FUNCTION_NOT_FOUND, nvmlDeviceGetMemoryInfo, device, &memory) != NVML_SUCCESS)
        return 0;
    return memory.used;
}

/* What the driver says this process has; 0 where it does not know our pid, as in a pid namespace. */
static uint64_t own_used(nvmlDevice_t device) {
    unsigned int count = MAX_LISTED, pid = (unsigned int)getpid();
    nvmlProcessInfo_t *list = egpu_pages(sizeof *list * MAX_LISTED);
    uint64_t used = 0;
    if (list == NULL)
        return 0;
    if (EGPU_CALL(NVML_ERROR_FUNCTION_NOT_FOUND, nvmlDeviceGetComputeRunningProcesses_v3, device, &count, list) ==
        NVML_SUCCESS)
        for (unsigned int i = 0; i < count && i < MAX_LISTED; i++)
            if (list[i].pid == pid && list[i].usedGpuMemory != UINT64_MAX)
                used += list[i].usedGpuMemory;
    egpu_pages_free(list, sizeof *list * MAX_LISTED);
    return used;
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
    measure->own = own_used(measure->device);
    measure->card = card_used(measure->device);
}

/* Bytes that the context has taken since start. What the whole card has lost counts only as far as it is plausible:
 * neighbours allocate too. */
static uint64_t finish(const struct measure *measure, uint64_t hint, uint64_t otherwise) {
    if (measure->device == NULL)
        return hint ? hint : otherwise;
    uint64_t card = card_used(measure->device), own = own_used(measure->device);
    EGPU_CALL(NVML_ERROR_FUNCTION_NOT_FOUND, nvmlShutdown);
    if (own > measure->own)
        return own - measure->own;
    uint64_t lost = card > measure->card ? card - measure->card : 0;
    if (hint != 0)
        return lost > hint / 2 && lost < hint + hint / 2 ? lost : hint;
    return lost > 0 && lost < PLAUSIBLE ? lost : otherwise;
}

/* ---- creation ------------------------------------------------------------------------------------------------ */

struct creation {
    struct egpu_grant grant;
    struct measure measure;
    struct egpu_ledger *ledger;
    uint64_t known; /* size by the limits page; 0: measured */
    uint64_t hint;  /* size by an earlier measurement; 0: none */
};

/* The size that an earlier context had. While another process measures the first one it is waited for, a bounded time;
 * 0 makes it this process's turn. */
static uint64_t hint_or_turn(struct egpu_ledger *ledger) {
    uint64_t end = egpu_now() + TURN_NS;
    for (;;) {
        uint64_t hint = load_acquire(&ledger->context), turn = load_relaxed(&ledger->turn), now = egpu_now();
        if (hint != 0)
            return hint < PLAUSIBLE ? hint : UNMEASURED;
        if ((turn <= now || turn > now + TURN_NS) &&
            __atomic_compare_exchange_n(&ledger->turn, &turn, now + TURN_NS, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            return 0;
        if (now >= end)
            return 0;
        egpu_sleep(POLL_NS);
    }
}

static uint64_t first_charge(const struct creation *creation) {
    uint64_t half = creation->grant.limit / 2;
    if (creation->known != 0)
        return creation->known;
    return creation->hint ? creation->hint : half < UNMEASURED ? half : UNMEASURED;
}

static CUresult open_creation(struct creation *creation, CUdevice device) {
    enum egpu_reason reason;
    memset(creation, 0, sizeof *creation);
    CUresult result = egpu_grant_on(&creation->grant, device, EGPU_KIND_CONTEXT);
    if (result != CUDA_SUCCESS || creation->grant.state == NULL)
        return result;
    const struct egpu_limits_card *card = &egpu_limits_now(&reason)->cards[creation->grant.card];
    creation->ledger = &creation->grant.state->seat.header->cards[creation->grant.card];
    creation->known = card->context;
    creation->hint = creation->known ? 0 : hint_or_turn(creation->ledger);
    result = egpu_grant_charge(&creation->grant, first_charge(creation));
    if (result == CUDA_SUCCESS && creation->known == 0) {
        egpu_inside++;
        start(&creation->measure, card->uuid);
        egpu_inside--;
    }
    return result;
}

/* Bring the charge to what the context has turned out to take. */
static CUresult adjust(struct creation *creation) {
    struct egpu_grant *grant = &creation->grant;
    uint64_t size = creation->known ? creation->known : finish(&creation->measure, creation->hint, grant->bytes);
    if (creation->known == 0 && creation->hint == 0) {
        store_release(&creation->ledger->context, size);
        store_release(&creation->ledger->turn, 0);
    }
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
        finish(&creation->measure, 0, 0);
        egpu_inside--;
        if (creation->known == 0 && creation->hint == 0)
            store_release(&creation->ledger->turn, 0);
        egpu_grant_drop(grant);
        return result;
    }
    grant->owner = egpu_owner(grant->state, context);
    egpu_inside++;
    result = adjust(creation);
    egpu_inside--;
    if (result == CUDA_SUCCESS && !egpu_grant_keep(grant, EGPU_SPACE_CONTEXT, (uintptr_t)context))
        result = CUDA_ERROR_OUT_OF_MEMORY;
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
