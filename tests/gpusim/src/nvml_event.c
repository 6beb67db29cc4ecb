/* Health: error counts, and the events that tell of errors. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "nvml_internal.h"

#define EVENT_DOUBLE_BIT_ECC 0x2ull
#define EVENT_XID 0x8ull

enum { ECC_CORRECTED = 0, ECC_UNCORRECTED = 1, LOCATION_DEVICE_MEMORY = 2 };

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                         unsigned long long *count)
{
    DEVICE(device);
    REQUIRE(count && error <= ECC_UNCORRECTED && counter <= 1, NVML_ERROR_INVALID_ARGUMENT);
    *count = error == ECC_CORRECTED ? card->ecc_corrected : card->ecc_uncorrected;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                             unsigned int location, unsigned long long *count)
{
    nvmlReturn_t rc = nvmlDeviceGetTotalEccErrors(device, error, counter, count);
    if (rc == NVML_SUCCESS && location != LOCATION_DEVICE_MEMORY)
        *count = 0;
    return rc;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    DEVICE(device);
    (void)card;
    REQUIRE(types, NVML_ERROR_INVALID_ARGUMENT);
    *types = EVENT_XID | EVENT_DOUBLE_BIT_ECC;
    return NVML_SUCCESS;
}

struct nvmlEventSet_st {
    pthread_mutex_t lock;
    struct {
        unsigned long long types;
        uint64_t xid, ecc; /* seen so far */
    } watch[GPUSIM_MAX_CARDS]; /* by device index */
};

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    READY();
    REQUIRE(set, NVML_ERROR_INVALID_ARGUMENT);
    *set = calloc(1, sizeof **set);
    REQUIRE(*set, NVML_ERROR_MEMORY);
    pthread_mutex_init(&(*set)->lock, NULL);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    READY();
    REQUIRE(set, NVML_ERROR_INVALID_ARGUMENT);
    pthread_mutex_destroy(&set->lock);
    free(set);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    DEVICE(device);
    REQUIRE(set, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(types && !(types & ~(EVENT_XID | EVENT_DOUBLE_BIT_ECC)), NVML_ERROR_NOT_SUPPORTED);
    pthread_mutex_lock(&set->lock);
    set->watch[device->index].types |= types;
    set->watch[device->index].xid = card->xid_seq;
    set->watch[device->index].ecc = card->ecc_seq;
    pthread_mutex_unlock(&set->lock);
    return NVML_SUCCESS;
}

static bool take_event(nvmlEventSet_t set, unsigned i, nvmlEventData_t *data)
{
    const struct gpusim_card *card = &gs_state->cards[gs_devices[i].card];
    if (set->watch[i].types & EVENT_DOUBLE_BIT_ECC && set->watch[i].ecc < card->ecc_seq) {
        set->watch[i].ecc++;
        data->eventType = EVENT_DOUBLE_BIT_ECC;
        data->eventData = 0;
    } else if (set->watch[i].types & EVENT_XID && set->watch[i].xid < card->xid_seq) {
        if (card->xid_seq - set->watch[i].xid > GPUSIM_XIDS)
            set->watch[i].xid = card->xid_seq - GPUSIM_XIDS;
        data->eventType = EVENT_XID;
        data->eventData = card->xids[set->watch[i].xid++ % GPUSIM_XIDS];
    } else {
        return false;
    }
    data->device = &gs_devices[i];
    return true;
}

static bool take_any(nvmlEventSet_t set, nvmlEventData_t *data)
{
    bool taken = false;
    pthread_mutex_lock(&set->lock);
    for (unsigned i = 0; i < gs_device_count && !taken; i++)
        taken = take_event(set, i, data);
    pthread_mutex_unlock(&set->lock);
    return taken;
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    READY();
    REQUIRE(set && data, NVML_ERROR_INVALID_ARGUMENT);
    uint64_t deadline = gs_now_ns() + (uint64_t)timeout_ms * 1000000u;
    for (;;) {
        uint32_t events = __atomic_load_n(&gs_state->events, __ATOMIC_ACQUIRE);
        if (take_any(set, data))
            return NVML_SUCCESS;
        uint64_t now = gs_now_ns();
        REQUIRE(now < deadline, NVML_ERROR_TIMEOUT);
        uint64_t left = deadline - now;
        struct timespec t = {.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
        syscall(SYS_futex, &gs_state->events, FUTEX_WAIT, events, &t, NULL, 0);
    }
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    nvmlReturn_t rc = nvmlEventSetWait(set, data, timeout_ms);
    if (rc == NVML_SUCCESS)
        data->gpuInstanceId = data->computeInstanceId = NO_INSTANCE;
    return rc;
}
