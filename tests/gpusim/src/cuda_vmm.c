/* Physical memory apart from addresses, and memory shared with other processes.
 *
 * A physical allocation is a memory file of its own, so that an exported descriptor means the same bytes elsewhere.
 * It is charged to the process that created it until that process has let go of it and of its mappings.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cuda_internal.h"

#define MAGIC_PHYSICAL 0x50485931u
#define HANDLE_NONE 0
#define HANDLE_FD 1
#define ACCESS_READ_WRITE 3
#define LOCATION_DEVICE 1

struct physical {
    uint32_t magic;
    int fd;
    int device;
    uint64_t size;
    uint64_t charged; /* 0 when imported */
    unsigned refs;    /* handles and mappings */
    CUmemAllocationProp prop;
};

struct reservation {
    CUdeviceptr base;
    uint64_t size;
    struct reservation *next;
};

static pthread_mutex_t vmm_lock = PTHREAD_MUTEX_INITIALIZER;
static struct reservation *reservations;

static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
    struct physical *p = (struct physical *)(uintptr_t)handle;
    return p && p->magic == MAGIC_PHYSICAL ? p : NULL;
}

static void physical_drop(struct physical *p)
{
    if (--p->refs)
        return;
    if (p->charged)
        gs_uncharge(p->device, CHARGE_DATA, p->charged);
    close(p->fd);
    p->magic = MAGIC_DEAD;
    free(p);
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    (void)option;
    TRY(gs_ready());
    REQUIRE(granularity && prop, CUDA_ERROR_INVALID_VALUE);
    *granularity = BLOCK_BYTES;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags)
{
    TRY(gs_ready());
    REQUIRE(ptr && size && size % 4096 == 0 && flags == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(!(alignment & (alignment - 1)), CUDA_ERROR_INVALID_VALUE);
    uint64_t align = alignment > BLOCK_BYTES ? alignment : BLOCK_BYTES;
    struct reservation *r = malloc(sizeof *r);
    void *p = mmap((void *)(uintptr_t)addr, size + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!r || p == MAP_FAILED) {
        if (p != MAP_FAILED)
            munmap(p, size + align);
        free(r);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint64_t base = gs_round((uintptr_t)p, align);
    if (base > (uintptr_t)p)
        munmap(p, base - (uintptr_t)p);
    munmap((void *)(uintptr_t)(base + size), (uintptr_t)p + align - base);
    *r = (struct reservation){.base = base, .size = size};
    pthread_mutex_lock(&vmm_lock);
    r->next = reservations;
    reservations = r;
    pthread_mutex_unlock(&vmm_lock);
    *ptr = base;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    struct range mapped;
    TRY(gs_ready());
    REQUIRE(!gs_find(ptr, &mapped), CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&vmm_lock);
    struct reservation **at = &reservations;
    while (*at && ((*at)->base != ptr || (*at)->size != size))
        at = &(*at)->next;
    struct reservation *found = *at;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&vmm_lock);
    REQUIRE(found, CUDA_ERROR_INVALID_VALUE);
    munmap((void *)(uintptr_t)ptr, size);
    free(found);
    return CUDA_SUCCESS;
}

static bool reserved(CUdeviceptr ptr, uint64_t size)
{
    pthread_mutex_lock(&vmm_lock);
    struct reservation *r = reservations;
    while (r && (ptr < r->base || ptr + size > r->base + r->size))
        r = r->next;
    pthread_mutex_unlock(&vmm_lock);
    return r;
}

static struct physical *physical_new(int fd, int device, uint64_t size, uint64_t charged)
{
    struct physical *p = calloc(1, sizeof *p);
    if (p)
        *p = (struct physical){.magic = MAGIC_PHYSICAL, .fd = fd, .device = device, .size = size, .charged = charged,
                               .refs = 1};
    return p;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags)
{
    TRY(gs_ready());
    REQUIRE(handle && prop && flags == 0 && size && size % BLOCK_BYTES == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(prop->type == 1 && prop->location.type == LOCATION_DEVICE, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(prop->requestedHandleTypes == HANDLE_NONE || prop->requestedHandleTypes == HANDLE_FD,
            CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(gs_device_ok(prop->location.id), CUDA_ERROR_INVALID_DEVICE);
    TRY(gs_charge(prop->location.id, CHARGE_DATA, size));
    int fd = (int)syscall(SYS_memfd_create, "gpusim", MFD_CLOEXEC);
    struct physical *p = fd >= 0 && ftruncate(fd, (off_t)size) == 0 ? physical_new(fd, prop->location.id, size, size) : NULL;
    if (!p) {
        if (fd >= 0)
            close(fd);
        gs_uncharge(prop->location.id, CHARGE_DATA, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    p->prop = *prop;
    *handle = (uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    TRY(gs_ready());
    REQUIRE(physical_of(handle), CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&vmm_lock);
    physical_drop(physical_of(handle));
    pthread_mutex_unlock(&vmm_lock);
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    TRY(gs_ready());
    struct physical *p = physical_of(handle);
    struct range there;
    REQUIRE(p && flags == 0 && size && offset + size <= p->size && reserved(ptr, size), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(!gs_find(ptr, &there), CUDA_ERROR_INVALID_VALUE);
    void *at = mmap((void *)(uintptr_t)ptr, size, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, p->fd, (off_t)offset);
    REQUIRE(at != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
    madvise(at, size, MADV_DONTFORK);
    struct range r = {.base = ptr, .size = size, .kind = MEMORY_MAPPED, .device = p->device, .owner = p};
    TRY(gs_region_add(&r));
    pthread_mutex_lock(&vmm_lock);
    p->refs++;
    pthread_mutex_unlock(&vmm_lock);
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    struct range r;
    TRY(gs_ready());
    REQUIRE(size, CUDA_ERROR_INVALID_VALUE);
    for (uint64_t done = 0; done < size; done += r.size) {
        REQUIRE(gs_region_remove(ptr + done, MEMORY_MAPPED, &r), CUDA_ERROR_INVALID_VALUE);
        mmap((void *)(uintptr_t)r.base, r.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        pthread_mutex_lock(&vmm_lock);
        physical_drop(r.owner);
        pthread_mutex_unlock(&vmm_lock);
    }
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    struct range r;
    TRY(gs_ready());
    REQUIRE(desc && count && size && gs_find(ptr, &r) && r.kind == MEMORY_MAPPED, CUDA_ERROR_INVALID_VALUE);
    int protection = desc[0].flags == ACCESS_READ_WRITE ? PROT_READ | PROT_WRITE : desc[0].flags ? PROT_READ : PROT_NONE;
    return mprotect((void *)(uintptr_t)ptr, size, protection) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    struct range r;
    TRY(gs_ready());
    REQUIRE(flags && location && gs_find(ptr, &r), CUDA_ERROR_INVALID_VALUE);
    *flags = location->id == r.device ? ACCESS_READ_WRITE : 0;
    return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType, unsigned long long flags)
{
    TRY(gs_ready());
    struct physical *p = physical_of(handle);
    REQUIRE(p && shareableHandle && flags == 0 && handleType == HANDLE_FD, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(p->prop.requestedHandleTypes & HANDLE_FD, CUDA_ERROR_INVALID_VALUE);
    int fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);
    REQUIRE(fd >= 0, CUDA_ERROR_OPERATING_SYSTEM);
    *(int *)shareableHandle = fd;
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                        CUmemAllocationHandleType shHandleType)
{
    CUcontext ctx;
    struct stat st;
    TRY(gs_ready());
    REQUIRE(handle && shHandleType == HANDLE_FD, CUDA_ERROR_INVALID_VALUE);
    int given = (int)(intptr_t)osHandle;
    REQUIRE(fstat(given, &st) == 0 && st.st_size > 0, CUDA_ERROR_INVALID_VALUE);
    int fd = fcntl(given, F_DUPFD_CLOEXEC, 0);
    int device = gs_current(&ctx) == CUDA_SUCCESS ? ctx->device : 0;
    struct physical *p = fd >= 0 ? physical_new(fd, device, (uint64_t)st.st_size, 0) : NULL;
    REQUIRE(p, CUDA_ERROR_OUT_OF_MEMORY);
    p->prop = (CUmemAllocationProp){.type = 1, .requestedHandleTypes = HANDLE_FD,
                                    .location = {LOCATION_DEVICE, device}};
    *handle = (uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    TRY(gs_ready());
    REQUIRE(prop && physical_of(handle), CUDA_ERROR_INVALID_VALUE);
    *prop = physical_of(handle)->prop;
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    struct range r;
    TRY(gs_ready());
    REQUIRE(handle && gs_find((uintptr_t)addr, &r) && r.kind == MEMORY_MAPPED, CUDA_ERROR_INVALID_VALUE);
    struct physical *p = r.owner;
    pthread_mutex_lock(&vmm_lock);
    p->refs++;
    pthread_mutex_unlock(&vmm_lock);
    *handle = (uintptr_t)p;
    return CUDA_SUCCESS;
}

/* Legacy IPC needs a name that other processes can open; the node directory has none to give. */

CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    struct range r;
    TRY(gs_ready());
    REQUIRE(pHandle && gs_find(dptr, &r), CUDA_ERROR_INVALID_VALUE);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    (void)handle;
    (void)Flags;
    TRY(gs_ready());
    REQUIRE(pdptr, CUDA_ERROR_INVALID_VALUE);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    return cuIpcOpenMemHandle_v2(pdptr, handle, Flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    (void)dptr;
    TRY(gs_ready());
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *pHandle, CUevent event)
{
    (void)event;
    TRY(gs_ready());
    return pHandle ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcOpenEventHandle(CUevent *phEvent, CUipcEventHandle handle)
{
    (void)handle;
    TRY(gs_ready());
    return phEvent ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}
