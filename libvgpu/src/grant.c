#include "grant.h"

#include <string.h>

__thread int egpu_inside;

/* ---- which card ---------------------------------------------------------------------------------------------- */

static int digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The 16 bytes of "GPU-xxxxxxxx-xxxx-..." or "MIG-...". */
static int parse(const char *text, unsigned char bytes[16]) {
    int digits = 0;
    if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0)
        return 0;
    memset(bytes, 0, 16);
    for (int i = 4; i < EGPU_UUID_LEN && text[i] != 0 && digits < 32; i++)
        if (digit(text[i]) >= 0) {
            bytes[digits / 2] = (unsigned char)(bytes[digits / 2] << 4 | digit(text[i]));
            digits++;
        } else if (text[i] != '-') {
            return 0;
        }
    return digits == 32;
}

static int card_of_bytes(const struct egpu_limits_copy *limits, const unsigned char wanted[16]) {
    unsigned char bytes[16];
    for (uint32_t i = 0; i < limits->card_count && i < EGPU_MAX_CARDS; i++)
        if (parse(limits->cards[i].uuid, bytes) && memcmp(bytes, wanted, 16) == 0)
            return (int)i;
    return -1;
}

int egpu_card_of_uuid(const struct egpu_limits_copy *limits, const char *uuid) {
    unsigned char bytes[16];
    return parse(uuid, bytes) ? card_of_bytes(limits, bytes) : -1;
}

static int ask_card(const struct egpu_limits_copy *limits, CUdevice device) {
    CUuuid uuid;
    CUresult result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuDeviceGetUuid_v2, &uuid, device); /* a MIG device's own */
    if (result != CUDA_SUCCESS)
        result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuDeviceGetUuid, &uuid, device);
    return result == CUDA_SUCCESS ? card_of_bytes(limits, uuid.bytes) : -1;
}

int egpu_card_of_device(struct egpu_state *state, const struct egpu_limits_copy *limits, CUdevice device) {
    if (device < 0 || device >= EGPU_DEVICES)
        return ask_card(limits, device);
    int known = load_relaxed(&state->card_of_device[device]);
    if (known == 0) {
        known = ask_card(limits, device) + 1;
        store_relaxed(&state->card_of_device[device], (uint8_t)known);
    }
    return known - 1;
}

static uint64_t *cache_of(struct egpu_state *state, CUcontext context) {
    return &state->contexts[((uintptr_t)context >> 4 ^ (uintptr_t)context >> 12) % EGPU_CONTEXTS];
}

static int card_of_context(struct egpu_state *state, const struct egpu_limits_copy *limits, CUcontext context) {
    uint64_t *cached = cache_of(state, context), known = load_relaxed(cached);
    CUdevice device;
    if (EGPU_LIKELY(known >> 8 == (uintptr_t)context && known != 0))
        return (int)(known & 0xff) - 1;
    if (EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuCtxGetDevice, &device) != CUDA_SUCCESS)
        return -1;
    int card = egpu_card_of_device(state, limits, device);
    if (card >= 0)
        store_relaxed(cached, (uint64_t)(uintptr_t)context << 8 | (uint64_t)(card + 1));
    return card;
}

/* ---- grants -------------------------------------------------------------------------------------------------- */

static CUresult open_grant(struct egpu_grant *grant, const struct egpu_limits_copy *limits, int card) {
    if (card < 0) {
        egpu_refuse(EGPU_REASON_CARD_NOT_IN_SLICE);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    grant->card = (uint32_t)card;
    grant->limit = limits->cards[card].memory;
    return CUDA_SUCCESS;
}

static CUresult begin(struct egpu_grant *grant, enum egpu_kind kind, const struct egpu_limits_copy **limits) {
    memset(grant, 0, sizeof *grant);
    grant->kind = kind;
    if (egpu_inside)
        return CUDA_SUCCESS;
    grant->state = egpu_ready(limits);
    return grant->state ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult egpu_grant_here(struct egpu_grant *grant, enum egpu_kind kind) {
    const struct egpu_limits_copy *limits;
    CUcontext context = NULL;
    CUresult result = begin(grant, kind, &limits);
    if (result != CUDA_SUCCESS || grant->state == NULL)
        return result;
    result = EGPU_CALL(CUDA_ERROR_NOT_INITIALIZED, cuCtxGetCurrent, &context);
    if (result != CUDA_SUCCESS)
        return result;
    if (context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    grant->owner = egpu_owner(grant->state, context);
    return open_grant(grant, limits, card_of_context(grant->state, limits, context));
}

CUresult egpu_grant_on(struct egpu_grant *grant, CUdevice device, enum egpu_kind kind) {
    const struct egpu_limits_copy *limits;
    CUresult result = begin(grant, kind, &limits);
    if (result != CUDA_SUCCESS || grant->state == NULL)
        return result;
    return open_grant(grant, limits, egpu_card_of_device(grant->state, limits, device));
}

CUresult egpu_grant_charge(struct egpu_grant *grant, uint64_t bytes) {
    struct egpu_state *state = grant->state;
    enum egpu_reason reason = EGPU_REASON_NONE;
    if (state == NULL || bytes == 0)
        return CUDA_SUCCESS;
    if (!egpu_usage_try(&state->seat, grant->card, bytes, grant->limit)) {
        egpu_spare_release(state, grant->card);
        egpu_pools_refresh(state);
        reason = egpu_usage_charge(&state->seat, grant->card, bytes, grant->limit);
    }
    if (reason != EGPU_REASON_NONE) {
        egpu_refuse(reason);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    grant->bytes += bytes;
    egpu_usage_kind(&state->seat, grant->card, grant->kind, (int64_t)bytes);
    return CUDA_SUCCESS;
}

void egpu_grant_drop(struct egpu_grant *grant) {
    if (grant->state == NULL || grant->bytes == 0)
        return;
    egpu_usage_kind(&grant->state->seat, grant->card, grant->kind, -(int64_t)grant->bytes);
    egpu_usage_release(&grant->state->seat, grant->card, grant->bytes);
    grant->bytes = 0;
}

int egpu_grant_keep(struct egpu_grant *grant, enum egpu_space space, uint64_t key) {
    struct egpu_entry entry = {key, grant->bytes, grant->owner, (uint8_t)space, (uint8_t)grant->card,
                               (uint8_t)grant->kind, 0, 1};
    return grant->state == NULL || egpu_map_put(&grant->state->map, &entry);
}

void egpu_entry_release(struct egpu_state *state, const struct egpu_entry *entry) {
    struct egpu_grant grant = {state, 0, entry->size, entry->owner, entry->card, (enum egpu_kind)entry->kind};
    if (entry->space == EGPU_SPACE_BLOCK) {
        grant.bytes = EGPU_GRANULE;
        __atomic_fetch_sub(&state->small[entry->card].blocks, 1, __ATOMIC_RELAXED);
    }
    egpu_grant_drop(&grant);
}

/* ---- contexts that end ---------------------------------------------------------------------------------------- */

#define ADDRESS_MASK 0xffffffffffffull

uint64_t egpu_owner(struct egpu_state *state, CUcontext context) {
    return ((uintptr_t)context & ADDRESS_MASK) | (uint64_t)load_relaxed(&state->epoch) << 48;
}

uint16_t egpu_context_ending(struct egpu_state *state) {
    return __atomic_add_fetch(&state->epoch, 1, __ATOMIC_ACQ_REL);
}

struct ending {
    uint64_t address;
    uint16_t epoch;
};

static int ends(const struct egpu_entry *entry, const void *argument) {
    const struct ending *ending = argument;
    return entry->owner != 0 && (entry->owner & ADDRESS_MASK) == ending->address &&
           (int16_t)((uint16_t)(entry->owner >> 48) - ending->epoch) < 0;
}

static void release(const struct egpu_entry *entry, void *state) {
    egpu_entry_release(state, entry);
}

void egpu_context_ended(struct egpu_state *state, CUcontext context, uint16_t epoch) {
    struct ending ending = {(uintptr_t)context & ADDRESS_MASK, epoch};
    store_relaxed(cache_of(state, context), 0);
    egpu_map_drain(&state->map, ends, &ending, release, state);
    for (uint32_t card = 0; card < EGPU_MAX_CARDS; card++)
        if (load_relaxed(&state->small[card].blocks) == 0)
            egpu_spare_release(state, card);
}

/* ---- allocations that share blocks ---------------------------------------------------------------------------- */

int egpu_spare_release(struct egpu_state *state, uint32_t card) {
    struct egpu_grant grant = {state, 0, EGPU_GRANULE, 0, card, EGPU_KIND_DATA};
    if (__atomic_exchange_n(&state->small[card].spare, 0, __ATOMIC_ACQ_REL) == 0)
        return 0;
    egpu_grant_drop(&grant);
    return 1;
}

/* Keep one granule ready for the next small allocation: most of them then need not ask the slice's books. */
static void keep_spare(struct egpu_grant *grant) {
    uint32_t none = 0;
    if (grant->bytes == EGPU_GRANULE && load_relaxed(&grant->state->small[grant->card].blocks) > 0 &&
        __atomic_compare_exchange_n(&grant->state->small[grant->card].spare, &none, 1, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED))
        grant->bytes = 0;
    egpu_grant_drop(grant);
}

static CUresult open_small(struct egpu_grant *grant, uint64_t bytes) {
    if (__atomic_exchange_n(&grant->state->small[grant->card].spare, 0, __ATOMIC_ACQ_REL) != 0) {
        grant->bytes = EGPU_GRANULE;
        return CUDA_SUCCESS;
    }
    if (egpu_grant_charge(grant, EGPU_GRANULE) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    uint64_t latest = load_relaxed(&grant->state->small[grant->card].latest);
    return egpu_map_has_room(&grant->state->map, latest, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static int settle_small(struct egpu_grant *grant, uint64_t address, uint64_t bytes) {
    struct egpu_entry block = {address / EGPU_GRANULE, 0, grant->owner, EGPU_SPACE_BLOCK, (uint8_t)grant->card,
                               (uint8_t)grant->kind, 0, 0};
    enum egpu_placed placed = egpu_map_place(&grant->state->map, &block, address, bytes);
    if (placed == EGPU_PLACED_NOT)
        return 0;
    if (placed == EGPU_PLACED_NEW) {
        if (grant->bytes < EGPU_GRANULE && egpu_grant_charge(grant, EGPU_GRANULE) != CUDA_SUCCESS) {
            egpu_map_remove(&grant->state->map, address, &block);
            return 0;
        }
        __atomic_fetch_add(&grant->state->small[grant->card].blocks, 1, __ATOMIC_RELAXED);
        store_relaxed(&grant->state->small[grant->card].latest, block.key);
        grant->bytes -= EGPU_GRANULE;
    }
    keep_spare(grant);
    return 1;
}

static int settle_large(struct egpu_grant *grant, uint64_t address, uint64_t bytes) {
    uint64_t need = egpu_granules(bytes);
    if (need > grant->bytes && egpu_grant_charge(grant, need - grant->bytes) != CUDA_SUCCESS)
        return 0;
    if (need < grant->bytes) {
        struct egpu_grant excess = *grant;
        excess.bytes = grant->bytes - need;
        egpu_grant_drop(&excess);
        grant->bytes = need;
    }
    return egpu_grant_keep(grant, EGPU_SPACE_ADDRESS, address);
}

CUresult egpu_grant_open(struct egpu_grant *grant, uint64_t bytes) {
    if (grant->state == NULL)
        return CUDA_SUCCESS;
    if (bytes != 0 && bytes <= EGPU_SMALL)
        return open_small(grant, bytes);
    return egpu_grant_charge(grant, egpu_granules(bytes));
}

int egpu_grant_settle(struct egpu_grant *grant, uint64_t address, uint64_t bytes) {
    if (grant->state == NULL || bytes == 0)
        return 1;
    int shares = bytes <= EGPU_SMALL && address % EGPU_GRANULE + bytes <= EGPU_GRANULE;
    return shares ? settle_small(grant, address, bytes) : settle_large(grant, address, bytes);
}

/* ---- free ---------------------------------------------------------------------------------------------------- */

int egpu_address_take(struct egpu_state *state, uint64_t address, struct egpu_entry *out) {
    return egpu_map_remove(&state->map, address, out) != EGPU_REMOVED_NOT;
}

void egpu_address_release(struct egpu_state *state, const struct egpu_entry *entry) {
    if (entry->space != EGPU_SPACE_BLOCK) {
        egpu_entry_release(state, entry);
        return;
    }
    store_relaxed(&state->small[entry->card].latest, entry->key);
    if (entry->count != 0)
        return;
    egpu_entry_release(state, entry);
    if (load_relaxed(&state->small[entry->card].blocks) == 0)
        egpu_spare_release(state, entry->card);
}

void egpu_address_restore(struct egpu_state *state, uint64_t address, const struct egpu_entry *entry) {
    if (entry->space == EGPU_SPACE_BLOCK)
        egpu_map_place(&state->map, entry, address, entry->size);
    else
        egpu_map_put(&state->map, entry);
}
