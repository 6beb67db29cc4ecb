/* libnvidia-ml.so.1: reads the shared state; needs no connection to the daemon. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nvml_internal.h"

#define IDLE_POWER_PERCENT 15
#define SWITCH_BUS 0xc0
#define CORES_PER_SM 128

#define NVML_STUB(name)                  \
    EXPORT nvmlReturn_t name(void);      \
    nvmlReturn_t name(void)              \
    {                                    \
        return NVML_ERROR_NOT_SUPPORTED; \
    }
#include "nvml_stubs.def"
#undef NVML_STUB

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
struct gpusim_state *gs_state;
struct nvmlDevice_st gs_devices[GPUSIM_MAX_CARDS];
unsigned gs_device_count;
unsigned gs_users;
static dev_t state_dev;
static ino_t state_ino;

bool gs_device_ok(nvmlDevice_t device)
{
    return device >= gs_devices && device < gs_devices + gs_device_count;
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
    if (gs_state && st.st_dev == state_dev && st.st_ino == state_ino)
        return true;
    struct gpusim_state *fresh = gs_map(false);
    if (!fresh)
        return false;
    gs_state = fresh;
    state_dev = st.st_dev;
    state_ino = st.st_ino;
    return true;
}

static nvmlReturn_t first_user(void)
{
    uint32_t cards[GPUSIM_MAX_CARDS];
    REQUIRE(map_current(), NVML_ERROR_DRIVER_NOT_LOADED);
    gs_device_count = gs_visible_cards(gs_state, cards);
    for (unsigned i = 0; i < gs_device_count; i++)
        gs_devices[i] = (struct nvmlDevice_st){.card = cards[i], .index = i};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    pthread_mutex_lock(&init_lock);
    nvmlReturn_t rc = gs_users ? NVML_SUCCESS : first_user();
    if (rc == NVML_SUCCESS)
        __atomic_add_fetch(&gs_users, 1, __ATOMIC_RELEASE);
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
    bool used = gs_users > 0;
    if (used)
        __atomic_sub_fetch(&gs_users, 1, __ATOMIC_RELEASE);
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

nvmlReturn_t gs_put_number(unsigned int *out, unsigned int value)
{
    REQUIRE(out, NVML_ERROR_INVALID_ARGUMENT);
    *out = value;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    READY();
    return put_text(version, length, gs_state->driver_version);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    char text[64];
    READY();
    snprintf(text, sizeof text, "%u.%s", gs_state->cuda_version / 1000, gs_state->driver_version);
    return put_text(version, length, text);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    struct gpusim_state *now = gs_state ? gs_state : gs_map(false);
    REQUIRE(version, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(now, NVML_ERROR_DRIVER_NOT_LOADED);
    *version = (int)now->cuda_version;
    if (now != gs_state)
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
    for (uint32_t i = 0; i < gs_state->slots_high; i++)
        if (gs_state->slots[i].live && gs_state->slots[i].pid == pid) {
            snprintf(name, length, "%s", gs_state->slots[i].comm);
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

/* finding a device */

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    READY();
    return gs_put_number(count, gs_device_count);
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return nvmlDeviceGetCount_v2(count);
}

static nvmlReturn_t found(unsigned index, nvmlDevice_t *device)
{
    REQUIRE(!gs_state->cards[gs_devices[index].card].lost, NVML_ERROR_GPU_IS_LOST);
    *device = &gs_devices[index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    READY();
    REQUIRE(device && index < gs_device_count, NVML_ERROR_INVALID_ARGUMENT);
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
    for (unsigned i = 0; i < gs_device_count; i++)
        if (strcasecmp(gs_state->cards[gs_devices[i].card].uuid, uuid) == 0)
            return found(i, device);
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    READY();
    REQUIRE(serial && device, NVML_ERROR_INVALID_ARGUMENT);
    for (unsigned i = 0; i < gs_device_count; i++)
        if (strcmp(gs_state->cards[gs_devices[i].card].serial, serial) == 0)
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
    for (unsigned i = 0; i < gs_device_count; i++) {
        struct gpusim_card *c = &gs_state->cards[gs_devices[i].card];
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
    return gs_put_number(index, device->index);
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
        return gs_put_number(out, (unsigned int)(value));              \
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

/* links */

enum { LEVEL_INTERNAL = 0, LEVEL_NODE = 40, LEVEL_SYSTEM = 50 };
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 1 };
enum { REMOTE_SWITCH = 2 };

#define PAIR(a, b)                                              \
    DEVICE(a);                                                  \
    REQUIRE(gs_device_ok(b), NVML_ERROR_INVALID_ARGUMENT);         \
    const struct gpusim_card *other = &gs_state->cards[(b)->card]; \
    REQUIRE(!other->lost, NVML_ERROR_GPU_IS_LOST)

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, unsigned int *level)
{
    PAIR(a, b);
    return gs_put_number(level, a == b                               ? LEVEL_INTERNAL
                             : card->numa_node == other->numa_node ? LEVEL_NODE
                                                                   : LEVEL_SYSTEM);
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, unsigned int index, unsigned int *status)
{
    PAIR(a, b);
    REQUIRE(index <= 4, NVML_ERROR_INVALID_ARGUMENT);
    return gs_put_number(status, a != b && card->nvlinks && other->nvlinks ? P2P_OK : P2P_NOT_SUPPORTED);
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
    return gs_put_number(active, 1);
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
    LINK(device);
    return gs_put_number(version, card->cc_major >= 9 ? 7 : 5);
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
    return gs_put_number(type, REMOTE_SWITCH);
}
