/* Physical memory of the virtual memory API: charged from cuMemCreate until neither a handle nor a mapping is left. */
#include "grant.h"

#include <string.h>

/* A piece of memory has a number of its own (EGPU_SPACE_PHYSICAL), since a handle's number may be given out again while
 * mappings of the old one live on. Handles (EGPU_SPACE_IMPORT) and mappings (EGPU_SPACE_MAPPING) name it as `owner`. */

static void leave(struct egpu_state *state, uint64_t number) {
    struct egpu_entry piece;
    if (egpu_map_leave(&state->map, EGPU_SPACE_PHYSICAL, number, &piece) && piece.count == 0)
        egpu_entry_release(state, &piece);
}

static int join(struct egpu_state *state, uint64_t number) {
    struct egpu_entry reference = {number, 0, 0, EGPU_SPACE_PHYSICAL, 0, 0, 0, 1};
    return egpu_map_join(&state->map, &reference) != 0;
}

static int keep(struct egpu_grant *grant, uint64_t handle) {
    uint64_t number = __atomic_add_fetch(&grant->state->physical, 1, __ATOMIC_RELAXED);
    struct egpu_entry name = {handle, 0, number, EGPU_SPACE_IMPORT, 0, 0, 0, 1};
    grant->owner = 0;
    if (!egpu_grant_keep(grant, EGPU_SPACE_PHYSICAL, number))
        return 0;
    if (egpu_map_put(&grant->state->map, &name))
        return 1;
    egpu_map_take(&grant->state->map, EGPU_SPACE_PHYSICAL, number, &name);
    return 0;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
    struct egpu_grant grant;
    if (handle == NULL || prop == NULL || egpu_inside || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemCreate, handle, size, prop, flags);
    CUresult result = egpu_grant_on(&grant, prop->location.id, EGPU_KIND_DATA);
    if (result == CUDA_SUCCESS)
        result = egpu_grant_charge(&grant, egpu_granules(size));
    if (result != CUDA_SUCCESS)
        return result;
    egpu_inside++;
    result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemCreate, handle, size, prop, flags);
    if (result == CUDA_SUCCESS && !keep(&grant, *handle)) {
        EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemRelease, *handle);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    egpu_inside--;
    if (result != CUDA_SUCCESS)
        egpu_grant_drop(&grant);
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct egpu_entry name;
    struct egpu_state *state = egpu_inside ? NULL : egpu_state();
    int known = state != NULL && egpu_map_leave(&state->map, EGPU_SPACE_IMPORT, handle, &name);
    CUresult result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemRelease, handle);
    if (!known)
        return result;
    if (result != CUDA_SUCCESS) {
        name.count = 1;
        egpu_map_join(&state->map, &name);
    } else if (name.count == 0) {
        leave(state, name.owner);
    }
    return result;
}

struct search {
    uint64_t address, number;
};

static void covers(const struct egpu_entry *entry, void *argument) {
    struct search *search = argument;
    if (search->address >= entry->key && search->address - entry->key < entry->size)
        search->number = entry->owner;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
    CUresult result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemRetainAllocationHandle, handle, addr);
    struct egpu_state *state = egpu_inside ? NULL : egpu_state();
    struct search search = {(uintptr_t)addr, 0};
    struct egpu_entry known;
    if (result != CUDA_SUCCESS || state == NULL || handle == NULL)
        return result;
    egpu_map_each(&state->map, EGPU_SPACE_MAPPING, covers, &search);
    if (search.number == 0)
        return result;
    struct egpu_entry name = {*handle, 0, search.number, EGPU_SPACE_IMPORT, 0, 0, 0, 1};
    int fresh = !egpu_map_find(&state->map, EGPU_SPACE_IMPORT, *handle, &known);
    if (egpu_map_join(&state->map, &name) != 0 && fresh)
        join(state, search.number);
    return result;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    struct egpu_entry name;
    struct egpu_state *state = egpu_inside ? NULL : egpu_state();
    int known = state != NULL && egpu_map_find(&state->map, EGPU_SPACE_IMPORT, handle, &name);
    struct egpu_entry mapping = {ptr, size, known ? name.owner : 0, EGPU_SPACE_MAPPING, 0, 0, 0, 1};
    if (known && !egpu_map_put(&state->map, &mapping))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (known)
        join(state, name.owner);
    CUresult result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemMap, ptr, size, offset, handle, flags);
    if (known && result != CUDA_SUCCESS) {
        egpu_map_take(&state->map, EGPU_SPACE_MAPPING, ptr, &mapping);
        leave(state, name.owner);
    }
    return result;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
    struct egpu_entry mapping;
    struct egpu_state *state = egpu_inside ? NULL : egpu_state();
    CUresult result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuMemUnmap, ptr, size);
    CUdeviceptr at = ptr;
    if (result != CUDA_SUCCESS || state == NULL)
        return result;
    while (at - ptr < size && egpu_map_take(&state->map, EGPU_SPACE_MAPPING, at, &mapping)) {
        leave(state, mapping.owner);
        if (mapping.size == 0)
            break;
        at += mapping.size;
    }
    return result;
}
