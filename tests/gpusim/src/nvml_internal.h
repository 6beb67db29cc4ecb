/* What the files of libnvidia-ml.so.1 share. */
#ifndef GPUSIM_NVML_INTERNAL_H
#define GPUSIM_NVML_INTERNAL_H

#include "client.h"
#include "nvml_types.h"

#define EXPORT __attribute__((visibility("default")))
#define NVML_FN(ret, name, params) EXPORT ret name params;
#include "nvml_api.def"
#undef NVML_FN

#define NO_INSTANCE 0xffffffffu
#define VERSION_OF(type, number) ((unsigned int)(sizeof(type) | ((number) << 24)))

struct nvmlDevice_st {
    uint32_t card;
    unsigned index;
};

extern struct gpusim_state *gs_state;
extern struct nvmlDevice_st gs_devices[GPUSIM_MAX_CARDS];
extern unsigned gs_device_count;
extern unsigned gs_users;

bool gs_device_ok(nvmlDevice_t device);
nvmlReturn_t gs_put_number(unsigned int *out, unsigned int value);

#define REQUIRE(condition, error) \
    do {                          \
        if (!(condition))         \
            return (error);       \
    } while (0)
#define READY() REQUIRE(__atomic_load_n(&gs_users, __ATOMIC_ACQUIRE), NVML_ERROR_UNINITIALIZED)
#define DEVICE(device)                                                                           \
    READY();                                                                                     \
    REQUIRE(gs_device_ok(device), NVML_ERROR_INVALID_ARGUMENT);                                     \
    struct gpusim_card *card = &gs_state->cards[(device)->card];                                    \
    REQUIRE(!__atomic_load_n(&card->lost, __ATOMIC_ACQUIRE), NVML_ERROR_GPU_IS_LOST)

#endif
