/* NVML as the slice sees it: the card is as large as the limit, and only the slice's own processes run on it. */
#include "grant.h"

#include <string.h>
#include <sys/stat.h>

/* The state and card index of a device of the slice; NULL for any other device, which is shown as it is. */
static struct egpu_state *slice_card(nvmlDevice_t device, uint32_t *card, uint64_t *limit) {
    char uuid[96];
    const struct egpu_limits_copy *limits;
    struct egpu_state *state = egpu_ready(&limits);
    if (state == NULL ||
        EGPU_CALL(NVML_ERROR_FUNCTION_NOT_FOUND, nvmlDeviceGetUUID, device, uuid, sizeof uuid) != NVML_SUCCESS)
        return NULL;
    uuid[sizeof uuid - 1] = 0;
    int index = egpu_card_of_uuid(limits, uuid);
    if (index < 0)
        return NULL;
    *card = (uint32_t)index;
    *limit = limits->cards[index].memory;
    return state;
}

static void show(nvmlDevice_t device, unsigned long long *total, unsigned long long *free, unsigned long long *used) {
    uint32_t card;
    uint64_t limit;
    struct egpu_state *state = egpu_inside ? NULL : slice_card(device, &card, &limit);
    if (state == NULL || limit == EGPU_MEMORY_UNLIMITED)
        return;
    egpu_pools_refresh(state);
    *used = egpu_usage_living(&state->seat, card);
    *total = limit < *total ? limit : *total;
    *free = *total > *used ? *total - *used : 0;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    nvmlReturn_t result = EGPU_CALL(NVML_ERROR_FUNCTION_NOT_FOUND, nvmlDeviceGetMemoryInfo, device, memory);
    if (result == NVML_SUCCESS && memory != NULL)
        show(device, &memory->total, &memory->free, &memory->used);
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlReturn_t result = EGPU_CALL(NVML_ERROR_FUNCTION_NOT_FOUND, nvmlDeviceGetMemoryInfo_v2, device, memory);
    if (result != NVML_SUCCESS || memory == NULL)
        return result;
    unsigned long long total = memory->total;
    show(device, &memory->total, &memory->free, &memory->used);
    if (memory->total != total)
        memory->reserved = 0; /* the card's, not the slice's */
    return result;
}

/* ---- process lists ------------------------------------------------------------------------------------------- */

#define MAX_PROCESSES 1024

struct process {
    unsigned int pid;
    unsigned long long memory;
};

struct list {
    uint32_t count;
    struct process processes[MAX_PROCESSES];
};

static uint64_t own_namespace(void) {
    struct stat info;
    return stat("/proc/self/ns/pid", &info) == 0 ? (uint64_t)info.st_ino : 0;
}

/* The slice's live processes that hold something on the card, by the pids of this container. */
static uint32_t processes(struct egpu_state *state, uint32_t card, struct list *list) {
    uint64_t namespace = own_namespace();
    egpu_usage_sweep(&state->seat, card); /* the dead are marked so */
    list->count = 0;
    for (uint32_t i = 0; i < state->seat.slots && list->count < MAX_PROCESSES; i++) {
        struct process process;
        if (i >= load_acquire(&state->seat.header->high_water))
            break;
        if (egpu_usage_process(&state->seat, i, card, namespace, &process.pid, &process.memory))
            list->processes[list->count++] = process;
    }
    return list->count;
}

/* The list of a card of the slice: 1 and the answer, or 0 where the driver's own answer holds. */
static int own_list(nvmlDevice_t device, struct list *list) {
    uint32_t card;
    uint64_t limit;
    struct egpu_state *state = egpu_inside ? NULL : slice_card(device, &card, &limit);
    if (state == NULL)
        return 0;
    processes(state, card, list);
    return 1;
}

/* NVML's manners: say how many there are, and that they do not fit where they do not. */
#define LIST(name, type, fill)                                                                                        \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos) {                                        \
        struct list *list = count ? egpu_pages(sizeof *list) : NULL;                                                  \
        if (list == NULL || !own_list(device, list)) {                                                                \
            if (list != NULL)                                                                                         \
                egpu_pages_free(list, sizeof *list);                                                                  \
            return EGPU_CALL(NVML_ERROR_FUNCTION_NOT_FOUND, name, device, count, infos);                              \
        }                                                                                                             \
        unsigned int room = *count, found = (fill) ? list->count : 0;                                                 \
        for (unsigned int i = 0; infos != NULL && i < found && found <= room; i++) {                                  \
            memset(&infos[i], 0xff, sizeof infos[i]); /* no MIG instance: all ones */                                 \
            infos[i].pid = list->processes[i].pid;                                                                    \
            infos[i].usedGpuMemory = list->processes[i].memory;                                                       \
        }                                                                                                             \
        *count = found;                                                                                               \
        egpu_pages_free(list, sizeof *list);                                                                          \
        return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;                                            \
    }

LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, 1)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t, 1)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, 1)
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, 0)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t, 0)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, 0)
