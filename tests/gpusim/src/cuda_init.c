/* Start-up, devices, what they are, and the accounting of their memory. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_internal.h"

struct process gs;

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
/* On a page that fork() wipes: 1 in the process that called cuInit, 0 in its children. */
static volatile uint32_t *initialised;
static bool was_initialised;
static uint64_t last_id;

enum { NOT_HERE = 0, HERE = 1 };

CUresult gs_ready(void)
{
    return initialised && *initialised == HERE ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

uint64_t gs_next_id(void)
{
    return __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
}

static int hex_value(char c)
{
    return isdigit((unsigned char)c) ? c - '0' : tolower((unsigned char)c) - 'a' + 10;
}

static void uuid_bytes(const char *text, char out[16])
{
    int n = 0;
    for (const char *p = text + 4; *p && n < 32; p++) /* after "GPU-" */
        if (isxdigit((unsigned char)*p)) {
            out[n / 2] = (char)(n % 2 ? out[n / 2] | hex_value(*p) : hex_value(*p) << 4);
            n++;
        }
}

/* The card that one entry of CUDA_VISIBLE_DEVICES names: an index or a UUID (or its beginning); -1 for none. */
static int visible_entry(const char *entry, const uint32_t *cards, uint32_t count)
{
    char *end;
    long index = strtol(entry, &end, 10);
    if (end != entry && *end == 0)
        return index >= 0 && (uint32_t)index < count ? (int)cards[index] : -1;
    int found = -1;
    size_t length = strlen(entry);
    for (uint32_t i = 0; length > 4 && i < count; i++)
        if (strncasecmp(gs.state->cards[cards[i]].uuid, entry, length) == 0) {
            if (found >= 0)
                return -1;
            found = (int)cards[i];
        }
    return found;
}

static bool already_listed(uint32_t card)
{
    for (int i = 0; i < gs.device_count; i++)
        if (gs.devices[i].card == card)
            return true;
    return false;
}

static void add_device(uint32_t card)
{
    struct device *d = &gs.devices[gs.device_count];
    *d = (struct device){.card = card};
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->busy_lock, NULL);
    pthread_mutex_init(&d->primary.lock, NULL);
    d->primary.magic = MAGIC_DEAD;
    d->primary.device = gs.device_count++;
    d->primary.primary = true;
}

/* CUDA_VISIBLE_DEVICES ends at its first entry that names no card, and is void when it repeats one. */
static void find_devices(void)
{
    uint32_t cards[GPUSIM_MAX_CARDS];
    uint32_t count = gs_visible_cards(gs.state, cards);
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    gs.device_count = 0;
    if (!wanted) {
        for (uint32_t i = 0; i < count; i++)
            add_device(cards[i]);
        return;
    }
    char text[1024], *rest = text, *entry;
    snprintf(text, sizeof text, "%s", wanted);
    while ((entry = strsep(&rest, ","))) {
        while (isspace((unsigned char)*entry))
            entry++;
        entry[strcspn(entry, " \t\n")] = 0;
        int card = visible_entry(entry, cards, count);
        if (card < 0)
            return;
        if (already_listed((uint32_t)card)) {
            gs.device_count = 0;
            return;
        }
        add_device((uint32_t)card);
    }
}

static CUresult initialise(void)
{
    if (was_initialised) /* by the parent of this process */
        return CUDA_ERROR_NOT_INITIALIZED;
    struct gpusim_state *state = gs_map(true);
    REQUIRE(state, CUDA_ERROR_NO_DEVICE);
    gs.state = state;
    find_devices();
    uint32_t slot = 0;
    CUresult rc = gs.device_count == 0                           ? CUDA_ERROR_NO_DEVICE
                  : gs_attach(&slot, &gs.generation) < 0         ? CUDA_ERROR_SYSTEM_NOT_READY
                                                                 : CUDA_SUCCESS;
    void *page = MAP_FAILED;
    if (rc == CUDA_SUCCESS)
        page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        gs_unmap(state);
        gs.state = NULL;
        return rc == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : rc;
    }
    madvise(page, 4096, MADV_WIPEONFORK);
    madvise(state, sizeof *state, MADV_DONTDUMP);
    gs.slot = &state->slots[slot];
    initialised = page;
    was_initialised = true;
    *initialised = HERE;
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int Flags)
{
    REQUIRE(Flags == 0, CUDA_ERROR_INVALID_VALUE);
    if (gs_ready() == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    if (was_initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&init_lock);
    CUresult rc = gs_ready() == CUDA_SUCCESS ? CUDA_SUCCESS : initialise();
    pthread_mutex_unlock(&init_lock);
    return rc;
}

CUresult cuDriverGetVersion(int *driverVersion)
{
    REQUIRE(driverVersion, CUDA_ERROR_INVALID_VALUE);
    struct gpusim_state *state = gs.state ? gs.state : gs_map(false);
    *driverVersion = state ? (int)state->cuda_version : 0;
    if (state && state != gs.state)
        gs_unmap(state);
    return CUDA_SUCCESS;
}

CUresult cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
    REQUIRE(ppExportTable && pExportTableId, CUDA_ERROR_INVALID_VALUE);
    *ppExportTable = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

struct error_text {
    CUresult code;
    const char *name;
    const char *text;
};

static const struct error_text ERRORS[] = {
#define CUDA_ERR(name, value, text) {name, #name, text},
#include "cuda_errors.def"
#undef CUDA_ERR
};

static const struct error_text *error_find(CUresult error)
{
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].code == error)
            return &ERRORS[i];
    return NULL;
}

CUresult cuGetErrorName(CUresult error, const char **pStr)
{
    REQUIRE(pStr, CUDA_ERROR_INVALID_VALUE);
    const struct error_text *found = error_find(error);
    *pStr = found ? found->name : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **pStr)
{
    REQUIRE(pStr, CUDA_ERROR_INVALID_VALUE);
    const struct error_text *found = error_find(error);
    *pStr = found ? found->text : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* accounting */

bool gs_device_ok(CUdevice device)
{
    return device >= 0 && device < gs.device_count;
}

struct gpusim_card *gs_card(int device)
{
    return &gs.state->cards[gs.devices[device].card];
}

struct gpusim_usage *gs_usage(int device)
{
    return &gs.slot->card[gs.devices[device].card];
}

static uint64_t *charge_field(struct gpusim_usage *usage, enum charge_kind kind)
{
    return kind == CHARGE_CONTEXT ? &usage->context : kind == CHARGE_MODULE ? &usage->module : &usage->data;
}

static bool slot_ours(void)
{
    return __atomic_load_n(&gs.slot->live, __ATOMIC_ACQUIRE) && gs.slot->generation == gs.generation;
}

CUresult gs_charge(int device, enum charge_kind kind, uint64_t bytes)
{
    uint32_t index = gs.devices[device].card;
    struct gpusim_card *card = &gs.state->cards[index];
    struct gpusim_usage *usage = gs_usage(device);
    CUresult rc = CUDA_SUCCESS;
    gs_lock_card(gs.state, index);
    if (!slot_ours())
        rc = CUDA_ERROR_DEINITIALIZED;
    else if (card->lost)
        rc = CUDA_ERROR_DEVICE_UNAVAILABLE;
    else if (bytes > card->memory || card->used > card->memory - bytes)
        rc = CUDA_ERROR_OUT_OF_MEMORY;
    if (rc == CUDA_SUCCESS) {
        *charge_field(usage, kind) += bytes;
        card->used += bytes;
        usage->contexts += kind == CHARGE_CONTEXT;
        uint64_t now = usage->context + usage->module + usage->data;
        if (now > usage->peak)
            usage->peak = now;
    }
    gs_unlock_card(gs.state, index);
    return rc;
}

void gs_uncharge(int device, enum charge_kind kind, uint64_t bytes)
{
    uint32_t index = gs.devices[device].card;
    struct gpusim_usage *usage = gs_usage(device);
    gs_lock_card(gs.state, index);
    if (slot_ours()) {
        *charge_field(usage, kind) -= bytes;
        gs.state->cards[index].used -= bytes;
        usage->contexts -= kind == CHARGE_CONTEXT;
    }
    gs_unlock_card(gs.state, index);
}

/* devices */

#define DEVICE(dev)       \
    TRY(gs_ready());      \
    REQUIRE(gs_device_ok(dev), CUDA_ERROR_INVALID_DEVICE)

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    DEVICE(ordinal);
    REQUIRE(device, CUDA_ERROR_INVALID_VALUE);
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    TRY(gs_ready());
    REQUIRE(count, CUDA_ERROR_INVALID_VALUE);
    *count = gs.device_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
    DEVICE(dev);
    REQUIRE(name && len > 0, CUDA_ERROR_INVALID_VALUE);
    snprintf(name, (size_t)len, "%s", gs_card(dev)->name);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
    DEVICE(dev);
    REQUIRE(uuid, CUDA_ERROR_INVALID_VALUE);
    uuid_bytes(gs_card(dev)->uuid, uuid->bytes);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    return cuDeviceGetUuid_v2(uuid, dev);
}

CUresult cuDeviceGetLuid(char *luid, unsigned int *deviceNodeMask, CUdevice dev)
{
    DEVICE(dev);
    (void)luid;
    (void)deviceNodeMask;
    return CUDA_ERROR_NOT_SUPPORTED; /* Windows only */
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    DEVICE(dev);
    REQUIRE(bytes, CUDA_ERROR_INVALID_VALUE);
    *bytes = gs_card(dev)->memory;
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
    DEVICE(dev);
    REQUIRE(bytes, CUDA_ERROR_INVALID_VALUE);
    uint64_t memory = gs_card(dev)->memory;
    *bytes = memory > UINT32_MAX ? UINT32_MAX : (unsigned int)memory;
    return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
    DEVICE(dev);
    REQUIRE(major && minor, CUDA_ERROR_INVALID_VALUE);
    *major = (int)gs_card(dev)->cc_major;
    *minor = (int)gs_card(dev)->cc_minor;
    return CUDA_SUCCESS;
}

/* CU_DEVICE_ATTRIBUTE_* that are the same on every card: value by attribute; the rest are 0. */
static const int FIXED_ATTRIBUTES[] = {
    [1] = 1024, [2] = 1024, [3] = 1024, [4] = 64, [5] = 2147483647, [6] = 65535, [7] = 65535, [8] = 49152,
    [9] = 65536, [10] = 32, [11] = 2147483647, [12] = 65536, [14] = 512, [15] = 1, [19] = 1, [21] = 131072,
    [22] = 131072, [23] = 65536, [24] = 16384, [25] = 16384, [26] = 16384, [30] = 512, [31] = 1, [32] = 1,
    [40] = 3, [41] = 1, [51] = 32, [78] = 1, [79] = 1, [80] = 1, [82] = 65536, [83] = 1, [87] = 2, [89] = 1,
    [90] = 1, [91] = 1, [92] = 1, [93] = 1, [94] = 1, [95] = 1, [98] = 1, [99] = 1, [102] = 1, [103] = 1,
    [106] = 32, [111] = 1024, [115] = 1, [119] = 1, [122] = 1, [123] = 1, [125] = 1, [134] = -1,
};

static int card_attribute(const struct gpusim_card *card, CUdevice_attribute attribute)
{
    switch (attribute) {
    case 13: return (int)card->clock_mhz * 1000;
    case 16: return (int)card->sm_count;
    case 33: return (int)card->pci_bus;
    case 34: return (int)card->pci_device;
    case 36: return (int)card->memory_clock_mhz * 1000;
    case 37: return (int)card->bus_width;
    case 38: return (int)card->l2_bytes;
    case 39: return (int)card->threads_per_sm;
    case 50: return (int)card->pci_domain;
    case 75: return (int)card->cc_major;
    case 76: return (int)card->cc_minor;
    case 81: return (int)card->shared_per_sm;
    case 97: return (int)card->shared_per_sm - 1024;
    case 120: return card->cc_major >= 9;
    default: break;
    }
    if ((size_t)attribute < sizeof FIXED_ATTRIBUTES / sizeof *FIXED_ATTRIBUTES)
        return FIXED_ATTRIBUTES[attribute];
    return 0;
}

#define LAST_ATTRIBUTE 162

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
    DEVICE(dev);
    REQUIRE(pi && attrib > 0 && attrib < LAST_ATTRIBUTE, CUDA_ERROR_INVALID_VALUE);
    *pi = card_attribute(gs_card(dev), attrib);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev)
{
    DEVICE(dev);
    REQUIRE(prop, CUDA_ERROR_INVALID_VALUE);
    *prop = (CUdevprop){
        .maxThreadsPerBlock = 1024, .maxThreadsDim = {1024, 1024, 64}, .maxGridSize = {2147483647, 65535, 65535},
        .sharedMemPerBlock = 49152, .totalConstantMemory = 65536, .SIMDWidth = 32, .memPitch = 2147483647,
        .regsPerBlock = 65536, .clockRate = (int)gs_card(dev)->clock_mhz * 1000, .textureAlign = 512,
    };
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
    DEVICE(dev);
    REQUIRE(pciBusId && len >= 13, CUDA_ERROR_INVALID_VALUE);
    struct gpusim_card *c = gs_card(dev);
    snprintf(pciBusId, (size_t)len, "%04X:%02X:%02X.0", c->pci_domain, c->pci_bus, c->pci_device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
    TRY(gs_ready());
    REQUIRE(dev && pciBusId, CUDA_ERROR_INVALID_VALUE);
    unsigned domain = 0, bus, device;
    if (sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &device) != 3) {
        domain = 0;
        REQUIRE(sscanf(pciBusId, "%x:%x", &bus, &device) == 2, CUDA_ERROR_INVALID_VALUE);
    }
    for (int i = 0; i < gs.device_count; i++)
        if (gs_card(i)->pci_domain == domain && gs_card(i)->pci_bus == bus && gs_card(i)->pci_device == device) {
            *dev = i;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
{
    DEVICE(dev);
    DEVICE(peerDev);
    REQUIRE(canAccessPeer, CUDA_ERROR_INVALID_VALUE);
    *canAccessPeer = dev != peerDev && gs_card(dev)->nvlinks && gs_card(peerDev)->nvlinks;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice, CUdevice dstDevice)
{
    REQUIRE(value && attrib >= 1 && attrib <= 5, CUDA_ERROR_INVALID_VALUE);
    TRY(cuDeviceCanAccessPeer(value, srcDevice, dstDevice));
    REQUIRE(srcDevice != dstDevice, CUDA_ERROR_INVALID_DEVICE);
    if (attrib == 1) /* performance rank: 0 is the best */
        *value = !*value;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetExecAffinitySupport(int *pi, CUexecAffinityType type, CUdevice dev)
{
    DEVICE(dev);
    REQUIRE(pi && type == 0, CUDA_ERROR_INVALID_VALUE);
    *pi = 0;
    return CUDA_SUCCESS;
}
