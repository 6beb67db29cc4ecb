/* Memory, processes and what they do. */
#include <stdlib.h>
#include <string.h>

#include "nvml_internal.h"

#define IDLE_TEMPERATURE 35
#define BUSY_TEMPERATURE_RISE 40

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    DEVICE(device);
    REQUIRE(memory, NVML_ERROR_INVALID_ARGUMENT);
    uint64_t used = gs_card_used(gs_state, device->card) + card->reserved;
    uint64_t total = card->memory + card->reserved;
    *memory = (nvmlMemory_t){.total = total, .used = used, .free = total - used};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    DEVICE(device);
    REQUIRE(memory, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(memory->version == VERSION_OF(nvmlMemory_v2_t, 2), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    uint64_t used = gs_card_used(gs_state, device->card);
    memory->total = card->memory + card->reserved;
    memory->reserved = card->reserved;
    memory->used = used;
    memory->free = card->memory - used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    DEVICE(device);
    REQUIRE(memory, NVML_ERROR_INVALID_ARGUMENT);
    *memory = (nvmlBAR1Memory_t){.bar1Total = card->memory, .bar1Free = card->memory - (1u << 20), .bar1Used = 1u << 20};
    return NVML_SUCCESS;
}

/* The live processes with a context on the card: fills up to `room`, returns how many there are. */
static unsigned processes(uint32_t card, nvmlProcessDetail_t *out, unsigned room)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < __atomic_load_n(&gs_state->slots_high, __ATOMIC_ACQUIRE); i++) {
        const struct gpusim_slot *slot = &gs_state->slots[i];
        const struct gpusim_usage *u = &slot->card[card];
        if (!__atomic_load_n(&slot->live, __ATOMIC_ACQUIRE) || !u->contexts)
            continue;
        if (n < room)
            out[n] = (nvmlProcessDetail_t){.pid = slot->pid, .usedGpuMemory = u->context + u->module + u->data,
                                           .gpuInstanceId = NO_INSTANCE, .computeInstanceId = NO_INSTANCE};
        n++;
    }
    return n;
}

/* `count` goes in as the room and comes out as the number; the layout of an entry is the caller's. */
static nvmlReturn_t list(nvmlDevice_t device, unsigned int *count, char *infos, size_t size)
{
    DEVICE(device);
    (void)card;
    REQUIRE(count && (infos || !*count), NVML_ERROR_INVALID_ARGUMENT);
    unsigned room = *count > GPUSIM_MAX_SLOTS ? GPUSIM_MAX_SLOTS : *count;
    nvmlProcessDetail_t *found_list = calloc(room ? room : 1, sizeof *found_list);
    REQUIRE(found_list, NVML_ERROR_MEMORY);
    *count = processes(device->card, found_list, room);
    for (unsigned i = 0; i < *count && i < room; i++)
        memcpy(infos + i * size, &found_list[i], size); /* every layout is a prefix of this one */
    free(found_list);
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t list_nothing(nvmlDevice_t device, unsigned int *count)
{
    DEVICE(device);
    (void)card;
    return gs_put_number(count, 0);
}

#define LISTS(kind, expression1, expression)                                                                          \
    nvmlReturn_t nvmlDeviceGet##kind##RunningProcesses(nvmlDevice_t device, unsigned int *count,                      \
                                                       nvmlProcessInfo_v1_t *infos)                                   \
    {                                                                                                                 \
        (void)infos;                                                                                                  \
        return expression1;                                                                                           \
    }                                                                                                                 \
    nvmlReturn_t nvmlDeviceGet##kind##RunningProcesses_v2(nvmlDevice_t device, unsigned int *count,                   \
                                                          nvmlProcessInfo_t *infos)                                   \
    {                                                                                                                 \
        (void)infos;                                                                                                  \
        return expression;                                                                                            \
    }                                                                                                                 \
    nvmlReturn_t nvmlDeviceGet##kind##RunningProcesses_v3(nvmlDevice_t device, unsigned int *count,                   \
                                                          nvmlProcessInfo_t *infos)                                   \
    {                                                                                                                 \
        (void)infos;                                                                                                  \
        return expression;                                                                                            \
    }

LISTS(Compute, list(device, count, (char *)infos, sizeof *infos), list(device, count, (char *)infos, sizeof *infos))
LISTS(Graphics, list_nothing(device, count), list_nothing(device, count))
LISTS(MPSCompute, list_nothing(device, count), list_nothing(device, count))

enum { MODE_COMPUTE = 0 };

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *details)
{
    REQUIRE(details, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(details->version == VERSION_OF(nvmlProcessDetailList_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    if (details->mode != MODE_COMPUTE)
        return list_nothing(device, &details->numProcArrayEntries);
    return list(device, &details->numProcArrayEntries, (char *)details->procArray, sizeof *details->procArray);
}

/* activity */

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    DEVICE(device);
    REQUIRE(utilization, NVML_ERROR_INVALID_ARGUMENT);
    *utilization = (nvmlUtilization_t){.gpu = card->util_sm, .memory = card->util_mem};
    return NVML_SUCCESS;
}

static nvmlReturn_t no_codec(nvmlDevice_t device, unsigned int *utilization, unsigned int *period)
{
    DEVICE(device);
    (void)card;
    REQUIRE(utilization && period, NVML_ERROR_INVALID_ARGUMENT);
    *utilization = 0;
    *period = 167000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *utilization, unsigned int *period)
{
    return no_codec(device, utilization, period);
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *utilization, unsigned int *period)
{
    return no_codec(device, utilization, period);
}

static bool seen(const nvmlProcessUtilizationSample_t *out, unsigned n, unsigned pid)
{
    for (unsigned i = 0; i < n; i++)
        if (out[i].pid == pid)
            return true;
    return false;
}

/* The latest sample of each process, newest first, newer than `last_seen` and not idle. */
static unsigned samples_of(const struct gpusim_card *card, uint64_t last_seen, nvmlProcessUtilizationSample_t *out,
                           unsigned room)
{
    uint64_t end = __atomic_load_n(&card->sample_seq, __ATOMIC_ACQUIRE);
    uint64_t begin = end > GPUSIM_SAMPLES ? end - GPUSIM_SAMPLES : 0;
    unsigned n = 0;
    for (uint64_t i = end; i > begin && n < room; i--) {
        const struct gpusim_sample *s = &card->samples[(i - 1) % GPUSIM_SAMPLES];
        if (s->time_us <= last_seen)
            break;
        if (!s->sm || seen(out, n, s->pid))
            continue;
        out[n++] = (nvmlProcessUtilizationSample_t){.pid = s->pid, .timeStamp = s->time_us, .smUtil = s->sm,
                                                    .memUtil = s->mem};
    }
    return n;
}

#define MOST_SAMPLES 512

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long last_seen)
{
    nvmlProcessUtilizationSample_t found_samples[MOST_SAMPLES];
    DEVICE(device);
    REQUIRE(count, NVML_ERROR_INVALID_ARGUMENT);
    unsigned room = samples ? *count : 0;
    unsigned n = samples_of(card, last_seen, found_samples, MOST_SAMPLES);
    *count = n;
    REQUIRE(n, NVML_ERROR_NOT_FOUND);
    REQUIRE(n <= room, NVML_ERROR_INSUFFICIENT_SIZE);
    memcpy(samples, found_samples, n * sizeof *samples);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
    nvmlProcessUtilizationSample_t found_samples[MOST_SAMPLES];
    DEVICE(device);
    REQUIRE(info, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(info->version == VERSION_OF(nvmlProcessesUtilizationInfo_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    unsigned room = info->procUtilArray ? info->processSamplesCount : 0;
    unsigned n = samples_of(card, info->lastSeenTimeStamp, found_samples, MOST_SAMPLES);
    info->processSamplesCount = n;
    REQUIRE(n, NVML_ERROR_NOT_FOUND);
    REQUIRE(n <= room, NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < n; i++)
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_t){
            .timeStamp = found_samples[i].timeStamp, .pid = found_samples[i].pid, .smUtil = found_samples[i].smUtil,
            .memUtil = found_samples[i].memUtil};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *temperature)
{
    DEVICE(device);
    REQUIRE(sensor == 0, NVML_ERROR_INVALID_ARGUMENT);
    return gs_put_number(temperature, IDLE_TEMPERATURE + card->util_sm * BUSY_TEMPERATURE_RISE / 100);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int type, unsigned int *temperature)
{
    DEVICE(device);
    (void)card;
    return gs_put_number(temperature, type == 0 ? 96 : 93);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    DEVICE(device);
    REQUIRE(type <= 3, NVML_ERROR_INVALID_ARGUMENT);
    return gs_put_number(mhz, type == 2 ? card->memory_clock_mhz : card->clock_mhz);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    return nvmlDeviceGetClockInfo(device, type, mhz);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    DEVICE(device);
    REQUIRE(reasons, NVML_ERROR_INVALID_ARGUMENT);
    *reasons = card->util_sm ? 0 : 1; /* idle */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    DEVICE(device);
    (void)card;
    REQUIRE(values && count > 0, NVML_ERROR_INVALID_ARGUMENT);
    for (int i = 0; i < count; i++)
        values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}
