/* Asking the books before asking the driver: open a grant, call the driver, then keep the grant or drop it. */
#ifndef EGPU_GRANT_H
#define EGPU_GRANT_H

#include "hooks.h"
#include "state.h"

/* The driver hands out device memory in blocks of this size; smaller allocations of a process share blocks. */
#define EGPU_GRANULE EGPU_BLOCK_BYTES
#define EGPU_SMALL (EGPU_GRANULE / 2)

static inline uint64_t egpu_granules(uint64_t bytes) {
    return bytes > UINT64_MAX - EGPU_GRANULE ? UINT64_MAX / EGPU_GRANULE * EGPU_GRANULE
                                             : (bytes + EGPU_GRANULE - 1) / EGPU_GRANULE * EGPU_GRANULE;
}

struct egpu_grant {
    struct egpu_state *state; /* NULL: nothing is charged, the call only passes */
    uint64_t limit;
    uint64_t bytes; /* charged so far */
    uint64_t owner; /* the context that ends it */
    uint32_t card;
    enum egpu_kind kind;
};

/* Set while this thread is inside a driver call of ours: what the driver then calls itself is not counted again. */
extern __thread int egpu_inside;

/* The card and context that this thread works on. CUDA_SUCCESS, or what the call in question answers instead. */
CUresult egpu_grant_here(struct egpu_grant *grant, enum egpu_kind kind);
/* The card of a device ordinal. */
CUresult egpu_grant_on(struct egpu_grant *grant, CUdevice device, enum egpu_kind kind);
/* Charge more bytes to an open grant. CUDA_ERROR_OUT_OF_MEMORY leaves it as it was. */
CUresult egpu_grant_charge(struct egpu_grant *grant, uint64_t bytes);
/* Give back what the grant has charged. */
void egpu_grant_drop(struct egpu_grant *grant);
/* Enter it in the map under a key; 0 when there is no memory for that, and the grant is still open. */
int egpu_grant_keep(struct egpu_grant *grant, enum egpu_space space, uint64_t key);
/* Give back what an entry holds that was taken out of the map. */
void egpu_entry_release(struct egpu_state *state, const struct egpu_entry *entry);

/* Charge for an allocation of device memory by size: whole granules, or a share of the blocks of small ones. */
CUresult egpu_grant_open(struct egpu_grant *grant, uint64_t bytes);
/* Enter it under its address, with the size that it turned out to have. 0: it does not fit, the grant is still open. */
int egpu_grant_settle(struct egpu_grant *grant, uint64_t address, uint64_t bytes);
/* Before the driver frees an address: forget it, for another thread may be given it at once. 0: unknown. */
int egpu_address_take(struct egpu_state *state, uint64_t address, struct egpu_entry *out);
/* The driver has freed it: give it back, and its block if it was the last in one. */
void egpu_address_release(struct egpu_state *state, const struct egpu_entry *entry);
/* The driver has not freed it: as before. */
void egpu_address_restore(struct egpu_state *state, uint64_t address, const struct egpu_entry *entry);

/* Card index of a device ordinal on the limits page, -1 when it is not on it. */
int egpu_card_of_device(struct egpu_state *state, const struct egpu_limits_copy *limits, CUdevice device);
/* Card index by a UUID's text. */
int egpu_card_of_uuid(const struct egpu_limits_copy *limits, const char *uuid);
/* What ends with a context: its address and the epoch, since an address comes back for another context. */
uint64_t egpu_owner(struct egpu_state *state, CUcontext context);
/* Before a call that may end a context; the answer goes to egpu_context_ended. */
uint16_t egpu_context_ending(struct egpu_state *state);
/* The context has ended, and what was charged for it before is given back. */
void egpu_context_ended(struct egpu_state *state, CUcontext context, uint16_t epoch);
/* Take the granule that is kept ready for small allocations back; 1 when there was one. */
int egpu_spare_release(struct egpu_state *state, uint32_t card);
/* Bring what is charged for pools in line with what the driver reserves for them. */
void egpu_pools_refresh(struct egpu_state *state);

/* Define a call that ends an object charged under its handle: the charge goes when the driver has ended the object. */
#define EGPU_DESTROY(space, name, type)                                                                               \
    CUresult name(type handle) {                                                                                      \
        struct egpu_entry entry;                                                                                      \
        struct egpu_state *state = egpu_inside ? NULL : egpu_state();                                                 \
        int known = state != NULL && egpu_map_take(&state->map, space, (uintptr_t)handle, &entry);                    \
        CUresult result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, name, handle);                                              \
        if (known && result == CUDA_SUCCESS)                                                                          \
            egpu_entry_release(state, &entry);                                                                        \
        else if (known)                                                                                               \
            egpu_map_put(&state->map, &entry);                                                                        \
        return result;                                                                                                \
    }

#endif
