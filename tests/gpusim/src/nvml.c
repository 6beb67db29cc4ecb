/* libnvidia-ml.so.1: reads the shared state; needs no connection to the daemon. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "nvml_types.h"

#define EXPORT __attribute__((visibility("default")))
#define NVML_FN(ret, name, params) EXPORT ret name params;
#include "nvml_api.def"
#undef NVML_FN
#define NVML_STUB(name)                  \
    EXPORT nvmlReturn_t name(void);      \
    nvmlReturn_t name(void)              \
    {                                    \
        return NVML_ERROR_NOT_SUPPORTED; \
    }
#include "nvml_stubs.def"
#undef NVML_STUB

#define NO_INSTANCE 0xffffffffu
#define IDLE_TEMPERATURE 35
#define BUSY_TEMPERATURE_RISE 40
#define IDLE_POWER_PERCENT 15
#define EVENT_DOUBLE_BIT_ECC 0x2ull
#define EVENT_XID 0x8ull
#define SWITCH_BUS 0xc0
#define CORES_PER_SM 128
#define VERSION_OF(type, number) ((unsigned int)(sizeof(type) | ((number) << 24)))

struct nvmlDevice_st {
    uint32_t card;
    unsigned index;
};

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gpusim_state *state;
static struct nvmlDevice_st devices[GPUSIM_MAX_CARDS];
static unsigned device_count;
static unsigned users;
static dev_t state_dev;
static ino_t state_ino;

#define REQUIRE(condition, error) \
    do {                          \
        if (!(condition))         \
            return (error);       \
    } while (0)
#define READY() REQUIRE(__atomic_load_n(&users, __ATOMIC_ACQUIRE), NVML_ERROR_UNINITIALIZED)
#define DEVICE(device)                                                                           \
    READY();                                                                                     \
    REQUIRE(device_ok(device), NVML_ERROR_INVALID_ARGUMENT);                                     \
    struct gpusim_card *card = &state->cards[(device)->card];                                    \
    REQUIRE(!__atomic_load_n(&card->lost, __ATOMIC_ACQUIRE), NVML_ERROR_GPU_IS_LOST)

static bool device_ok(nvmlDevice_t device)
{
    return device >= devices && device < devices + device_count;
}

/* library */

/* The mapping of a former daemon is given up, never unmapped: another thread may still read it. */
static bool map_current(void)
{
    char path[512];
    struct stat st;
    snprintf(path, sizeof path, "%s/state", gs_dir());
    if (stat(path, &st) != 0)
        return false;
    if (state && st.st_dev == state_dev && st.st_ino == state_ino)
        return true;
    struct gpusim_state *fresh = gs_map(false);
    if (!fresh)
        return false;
    state = fresh;
    state_dev = st.st_dev;
    state_ino = st.st_ino;
    return true;
}

static nvmlReturn_t first_user(void)
{
    uint32_t cards[GPUSIM_MAX_CARDS];
    REQUIRE(map_current(), NVML_ERROR_DRIVER_NOT_LOADED);
    device_count = gs_visible_cards(state, cards);
    for (unsigned i = 0; i < device_count; i++)
        devices[i] = (struct nvmlDevice_st){.card = cards[i], .index = i};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    pthread_mutex_lock(&init_lock);
    nvmlReturn_t rc = users ? NVML_SUCCESS : first_user();
    if (rc == NVML_SUCCESS)
        __atomic_add_fetch(&users, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&init_lock);
    return rc;
}

nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&init_lock);
    bool used = users > 0;
    if (used)
        __atomic_sub_fetch(&users, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&init_lock);
    return used ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_MEMORY: return "Insufficient Memory";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument Version Mismatch";
    case NVML_ERROR_UNKNOWN: return "Unknown Error";
    }
    return "Unknown Error";
}

static nvmlReturn_t put_text(char *out, unsigned int length, const char *text)
{
    REQUIRE(out, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(length > strlen(text), NVML_ERROR_INSUFFICIENT_SIZE);
    strcpy(out, text);
    return NVML_SUCCESS;
}

static nvmlReturn_t put_number(unsigned int *out, unsigned int value)
{
    REQUIRE(out, NVML_ERROR_INVALID_ARGUMENT);
    *out = value;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    READY();
    return put_text(version, length, state->driver_version);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    char text[64];
    READY();
    snprintf(text, sizeof text, "%u.%s", state->cuda_version / 1000, state->driver_version);
    return put_text(version, length, text);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    struct gpusim_state *now = state ? state : gs_map(false);
    REQUIRE(version, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(now, NVML_ERROR_DRIVER_NOT_LOADED);
    *version = (int)now->cuda_version;
    if (now != state)
        gs_unmap(now);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return nvmlSystemGetCudaDriverVersion(version);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    READY();
    REQUIRE(name && length, NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t i = 0; i < state->slots_high; i++)
        if (state->slots[i].live && state->slots[i].pid == pid) {
            snprintf(name, length, "%s", state->slots[i].comm);
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

/* finding a device */

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    READY();
    return put_number(count, device_count);
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return nvmlDeviceGetCount_v2(count);
}

static nvmlReturn_t found(unsigned index, nvmlDevice_t *device)
{
    REQUIRE(!state->cards[devices[index].card].lost, NVML_ERROR_GPU_IS_LOST);
    *device = &devices[index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    READY();
    REQUIRE(device && index < device_count, NVML_ERROR_INVALID_ARGUMENT);
    return found(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    READY();
    REQUIRE(uuid && device, NVML_ERROR_INVALID_ARGUMENT);
    for (unsigned i = 0; i < device_count; i++)
        if (strcasecmp(state->cards[devices[i].card].uuid, uuid) == 0)
            return found(i, device);
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    READY();
    REQUIRE(serial && device, NVML_ERROR_INVALID_ARGUMENT);
    for (unsigned i = 0; i < device_count; i++)
        if (strcmp(state->cards[devices[i].card].serial, serial) == 0)
            return found(i, device);
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    unsigned domain = 0, bus, slot;
    READY();
    REQUIRE(bus_id && device, NVML_ERROR_INVALID_ARGUMENT);
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        REQUIRE(sscanf(bus_id, "%x:%x", &bus, &slot) == 2, NVML_ERROR_INVALID_ARGUMENT);
    }
    for (unsigned i = 0; i < device_count; i++) {
        struct gpusim_card *c = &state->cards[devices[i].card];
        if (c->pci_domain == domain && c->pci_bus == bus && c->pci_device == slot)
            return found(i, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

/* what it is */

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    DEVICE(device);
    return put_text(name, length, card->name);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    DEVICE(device);
    return put_text(uuid, length, card->uuid);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
    DEVICE(device);
    return put_text(serial, length, card->serial);
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length)
{
    DEVICE(device);
    (void)card;
    return put_text(version, length, "96.00.00.00.01");
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    DEVICE(device);
    (void)card;
    return put_number(index, device->index);
}

static void fill_pci(const struct gpusim_card *card, nvmlPciInfo_t *pci)
{
    *pci = (nvmlPciInfo_t){.domain = card->pci_domain, .bus = card->pci_bus, .device = card->pci_device,
                           .pciDeviceId = card->pci_device_id, .pciSubSystemId = card->pci_device_id};
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", card->pci_domain & 0xffff,
             card->pci_bus & 0xff, card->pci_device & 0xff);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", card->pci_domain, card->pci_bus & 0xff,
             card->pci_device & 0xff);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    DEVICE(device);
    REQUIRE(pci, NVML_ERROR_INVALID_ARGUMENT);
    fill_pci(card, pci);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *pci)
{
    nvmlPciInfo_t full;
    DEVICE(device);
    REQUIRE(pci, NVML_ERROR_INVALID_ARGUMENT);
    fill_pci(card, &full);
    *pci = (nvmlPciInfo_v2_t){.domain = full.domain, .bus = full.bus, .device = full.device,
                              .pciDeviceId = full.pciDeviceId, .pciSubSystemId = full.pciSubSystemId};
    memcpy(pci->busId, full.busIdLegacy, sizeof pci->busId);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v2_t *pci)
{
    return nvmlDeviceGetPciInfo_v2(device, pci);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    DEVICE(device);
    REQUIRE(major && minor, NVML_ERROR_INVALID_ARGUMENT);
    *major = (int)card->cc_major;
    *minor = (int)card->cc_minor;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    DEVICE(device);
    (void)card;
    (void)attributes;
    return NVML_ERROR_NOT_SUPPORTED; /* of a MIG instance only */
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    return nvmlDeviceGetAttributes_v2(device, attributes);
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int size, unsigned long *set)
{
    DEVICE(device);
    (void)card;
    REQUIRE(set && size, NVML_ERROR_INVALID_ARGUMENT);
    memset(set, 0, size * sizeof *set);
    long cpus = sysconf(_SC_NPROCESSORS_CONF);
    for (long i = 0; i < cpus && i < (long)size * 64; i++)
        set[i / 64] |= 1ul << (i % 64);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int size, unsigned long *set,
                                         unsigned int scope)
{
    DEVICE(device);
    (void)scope;
    REQUIRE(set && size, NVML_ERROR_INVALID_ARGUMENT);
    memset(set, 0, size * sizeof *set);
    set[0] = 1ul << card->numa_node;
    return NVML_SUCCESS;
}

/* numbers that are one field or one constant */

#define NUMBER(name, value)                                         \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *out)       \
    {                                                               \
        DEVICE(device);                                             \
        (void)card;                                                 \
        return put_number(out, (unsigned int)(value));              \
    }

NUMBER(nvmlDeviceGetMinorNumber, card->minor)
NUMBER(nvmlDeviceGetBrand, card->brand)
NUMBER(nvmlDeviceGetArchitecture, card->architecture)
NUMBER(nvmlDeviceGetNumGpuCores, card->sm_count * CORES_PER_SM)
NUMBER(nvmlDeviceGetMemoryBusWidth, card->bus_width)
NUMBER(nvmlDeviceGetMultiGpuBoard, 0)
NUMBER(nvmlDeviceGetBoardId, card->pci_bus << 8)
NUMBER(nvmlDeviceGetNumaNodeId, card->numa_node)
NUMBER(nvmlDeviceGetPersistenceMode, 1)
NUMBER(nvmlDeviceGetComputeMode, 0)
NUMBER(nvmlDeviceGetDisplayMode, 0)
NUMBER(nvmlDeviceGetDisplayActive, 0)
NUMBER(nvmlDeviceGetPerformanceState, card->util_sm ? 0 : 8)
NUMBER(nvmlDeviceGetVirtualizationMode, 0)
NUMBER(nvmlDeviceIsMigDeviceHandle, 0)
NUMBER(nvmlDeviceGetPowerUsage,
       card->power_limit_mw / 100 * (IDLE_POWER_PERCENT + card->util_sm * (100 - IDLE_POWER_PERCENT) / 100))
NUMBER(nvmlDeviceGetPowerManagementMode, 1)
NUMBER(nvmlDeviceGetPowerManagementLimit, card->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, card->power_limit_mw)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, card->power_limit_mw)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, 5)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, 5)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, 16)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, 16)

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    DEVICE(device);
    (void)card;
    REQUIRE(current && pending, NVML_ERROR_INVALID_ARGUMENT);
    *current = *pending = 1;
    return NVML_SUCCESS;
}

/* memory and processes */

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    DEVICE(device);
    REQUIRE(memory, NVML_ERROR_INVALID_ARGUMENT);
    uint64_t used = gs_card_used(state, device->card) + card->reserved;
    uint64_t total = card->memory + card->reserved;
    *memory = (nvmlMemory_t){.total = total, .used = used, .free = total - used};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    DEVICE(device);
    REQUIRE(memory, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(memory->version == VERSION_OF(nvmlMemory_v2_t, 2), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    uint64_t used = gs_card_used(state, device->card);
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
    for (uint32_t i = 0; i < __atomic_load_n(&state->slots_high, __ATOMIC_ACQUIRE); i++) {
        const struct gpusim_slot *slot = &state->slots[i];
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
    return put_number(count, 0);
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
    return put_number(temperature, IDLE_TEMPERATURE + card->util_sm * BUSY_TEMPERATURE_RISE / 100);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int type, unsigned int *temperature)
{
    DEVICE(device);
    (void)card;
    return put_number(temperature, type == 0 ? 96 : 93);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    DEVICE(device);
    REQUIRE(type <= 3, NVML_ERROR_INVALID_ARGUMENT);
    return put_number(mhz, type == 2 ? card->memory_clock_mhz : card->clock_mhz);
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

/* health */

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
    const struct gpusim_card *card = &state->cards[devices[i].card];
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
    data->device = &devices[i];
    return true;
}

static bool take_any(nvmlEventSet_t set, nvmlEventData_t *data)
{
    bool taken = false;
    pthread_mutex_lock(&set->lock);
    for (unsigned i = 0; i < device_count && !taken; i++)
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
        uint32_t events = __atomic_load_n(&state->events, __ATOMIC_ACQUIRE);
        if (take_any(set, data))
            return NVML_SUCCESS;
        uint64_t now = gs_now_ns();
        REQUIRE(now < deadline, NVML_ERROR_TIMEOUT);
        uint64_t left = deadline - now;
        struct timespec t = {.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
        syscall(SYS_futex, &state->events, FUTEX_WAIT, events, &t, NULL, 0);
    }
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    nvmlReturn_t rc = nvmlEventSetWait(set, data, timeout_ms);
    if (rc == NVML_SUCCESS)
        data->gpuInstanceId = data->computeInstanceId = NO_INSTANCE;
    return rc;
}

/* links */

enum { LEVEL_INTERNAL = 0, LEVEL_NODE = 40, LEVEL_SYSTEM = 50 };
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 1 };
enum { REMOTE_SWITCH = 2 };

#define PAIR(a, b)                                              \
    DEVICE(a);                                                  \
    REQUIRE(device_ok(b), NVML_ERROR_INVALID_ARGUMENT);         \
    const struct gpusim_card *other = &state->cards[(b)->card]; \
    REQUIRE(!other->lost, NVML_ERROR_GPU_IS_LOST)

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, unsigned int *level)
{
    PAIR(a, b);
    return put_number(level, a == b                               ? LEVEL_INTERNAL
                             : card->numa_node == other->numa_node ? LEVEL_NODE
                                                                   : LEVEL_SYSTEM);
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, unsigned int index, unsigned int *status)
{
    PAIR(a, b);
    REQUIRE(index <= 4, NVML_ERROR_INVALID_ARGUMENT);
    return put_number(status, a != b && card->nvlinks && other->nvlinks ? P2P_OK : P2P_NOT_SUPPORTED);
}

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t a, nvmlDevice_t b, int *same)
{
    PAIR(a, b);
    (void)card;
    (void)other;
    REQUIRE(same, NVML_ERROR_INVALID_ARGUMENT);
    *same = a == b;
    return NVML_SUCCESS;
}

#define LINK(device)                                          \
    DEVICE(device);                                           \
    REQUIRE(card->nvlinks, NVML_ERROR_NOT_SUPPORTED);         \
    REQUIRE(link < card->nvlinks, NVML_ERROR_INVALID_ARGUMENT)

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active)
{
    LINK(device);
    return put_number(active, 1);
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
    LINK(device);
    return put_number(version, card->cc_major >= 9 ? 7 : 5);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    LINK(device);
    REQUIRE(pci, NVML_ERROR_INVALID_ARGUMENT);
    struct gpusim_card other = {.pci_bus = SWITCH_BUS + link % 4};
    fill_pci(&other, pci);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, unsigned int *type)
{
    LINK(device);
    return put_number(type, REMOTE_SWITCH);
}
