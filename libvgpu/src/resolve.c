/* Where the real functions are, and which names are ours. */
#include "objects.h"
#include "hooks.h"
#include "reach.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

struct egpu_real egpu_real;

#define REAL_OFFSET(name) (uint16_t)offsetof(struct egpu_real, name)
const struct egpu_hook egpu_hooks[EGPU_IDS] = {
#define CU(version, base, stream, name, params, args)                                                                 \
    [EGPU_ID_##name] = {#name, #base, (void *)name, REAL_OFFSET(name), EGPU_LIBRARY_CUDA, version / 10, stream},
#define NV(name, params, args)                                                                                        \
    [EGPU_ID_##name] = {#name, NULL, (void *)name, REAL_OFFSET(name), EGPU_LIBRARY_NVML, 0, 0},
#define CALL(library, name, result, params)                                                                           \
    [EGPU_ID_##name] = {#name, NULL, NULL, REAL_OFFSET(name), EGPU_LIBRARY_##library, 0, 0},
#include "hooks.def"
};

static const char *const sonames[EGPU_LIBRARIES] = {"libcuda.so.1", "libnvidia-ml.so.1"};
static const struct egpu_object *libraries[EGPU_LIBRARIES];
static struct egpu_object objects[EGPU_LIBRARIES];
static egpu_lock resolving;

void *(*egpu_real_dlsym)(void *handle, const char *name);
void *(*egpu_real_dlvsym)(void *handle, const char *name, const char *version);
static void *(*real_dlopen)(const char *name, int flags);

/* ---- the dynamic linker itself ------------------------------------------------------------------------------- */

static void *linker_symbol(const char *name) {
    static const char *const homes[] = {"libdl.so.2", "libc.so.6"}; /* libdl's own before glibc 2.34, libc's since */
    struct egpu_object object;
    void *found = NULL;
    for (size_t i = 0; i < sizeof homes / sizeof *homes && found == NULL; i++)
        if (egpu_elf_object(homes[i], &object))
            found = egpu_elf_symbol(&object, name);
    return found;
}

int egpu_reach(void) {
    if (EGPU_LIKELY(load_acquire(&egpu_real_dlsym) != NULL))
        return 1;
    store_release(&real_dlopen, (void *(*)(const char *, int))linker_symbol("dlopen"));
    store_release(&egpu_real_dlvsym, (void *(*)(void *, const char *, const char *))linker_symbol("dlvsym"));
    store_release(&egpu_real_dlsym, (void *(*)(void *, const char *))linker_symbol("dlsym"));
    return egpu_real_dlsym != NULL;
}

/* ---- driver libraries ---------------------------------------------------------------------------------------- */

/* A pinned library stays: its functions' addresses are kept, and programs close and reopen NVML. */
static const struct egpu_object *library(enum egpu_library which, int load) {
    const struct egpu_object *known = load_acquire(&libraries[which]);
    struct egpu_object found;
    if (known != NULL)
        return known;
    int loaded = egpu_elf_object(sonames[which], &found);
    if ((!loaded && !load) || !egpu_reach() || real_dlopen == NULL)
        return NULL;
    int saved = errno;
    void *handle = real_dlopen(sonames[which], RTLD_LAZY | (loaded ? RTLD_NOLOAD : RTLD_LOCAL));
    errno = saved;
    if ((!loaded && handle == NULL) || !egpu_elf_object(sonames[which], &found))
        return NULL;
    egpu_lock_take(&resolving);
    if (libraries[which] == NULL) {
        objects[which] = found;
        store_release(&libraries[which], &objects[which]);
    }
    egpu_lock_give(&resolving);
    return libraries[which];
}

static void **pointer_of(const struct egpu_hook *hook) {
    return (void **)((char *)&egpu_real + hook->offset);
}

static void *find_real(const struct egpu_hook *hook, int load) {
    void *real = load_acquire(pointer_of(hook));
    const struct egpu_object *from = real ? NULL : library(hook->library, load);
    if (from != NULL) {
        real = egpu_elf_symbol(from, hook->name);
        store_release(pointer_of(hook), real);
    }
    return real;
}

void egpu_resolve(enum egpu_id id) {
    find_real(&egpu_hooks[id], 1);
}

/* ---- names --------------------------------------------------------------------------------------------------- */

#define BUCKETS 512u
static uint16_t buckets[BUCKETS]; /* index plus one */
static uint32_t buckets_ready;

static uint32_t name_hash(const char *name) {
    uint32_t h = 2166136261u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 16777619u;
    return h;
}

__attribute__((constructor)) static void fill_buckets(void) {
    for (uint16_t i = 0; i < EGPU_IDS; i++) {
        uint32_t at = name_hash(egpu_hooks[i].name) % BUCKETS;
        if (egpu_hooks[i].hook == NULL)
            continue;
        while (buckets[at] != 0)
            at = (at + 1) % BUCKETS;
        buckets[at] = i + 1;
    }
    store_release(&buckets_ready, 1);
}

/* Before the constructor ran, other libraries' constructors already look up names. */
static int index_by_walk(const char *name) {
    for (int i = 0; i < EGPU_IDS; i++)
        if (egpu_hooks[i].hook != NULL && strcmp(egpu_hooks[i].name, name) == 0)
            return i;
    return -1;
}

int egpu_hook_index(const char *name) {
    if (name == NULL || !((name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v')))
        return -1;
    if (EGPU_UNLIKELY(!load_acquire(&buckets_ready)))
        return index_by_walk(name);
    for (uint32_t at = name_hash(name) % BUCKETS; buckets[at] != 0; at = (at + 1) % BUCKETS)
        if (strcmp(egpu_hooks[buckets[at] - 1].name, name) == 0)
            return buckets[at] - 1;
    return -1;
}

/* ---- dlsym --------------------------------------------------------------------------------------------------- */

int egpu_lookup_index(const char *name) {
    egpu_reach();
    if (name != NULL && name[0] == 'd' && (strcmp(name, "dlsym") == 0 || strcmp(name, "dlvsym") == 0))
        return name[2] == 's' ? EGPU_LOOKUP_DLSYM : EGPU_LOOKUP_DLVSYM;
    return egpu_hook_index(name);
}

/* What the dynamic linker found for one of our names: the hook if it is the driver's or already ours. */
static void *hooked(int index, void *found) {
    const struct egpu_hook *hook = &egpu_hooks[index];
    struct egpu_object object;
    if (found == NULL)
        return NULL;
    if (found == hook->hook) /* through the handle of the program itself, which sees this library's exports */
        return find_real(hook, 0) ? hook->hook : NULL;
    if (!egpu_elf_object_at(found, &object) || object.soname == NULL ||
        strcmp(object.soname, sonames[hook->library]) != 0)
        return found; /* some other library's function of that name */
    return find_real(hook, 0) ? hook->hook : found;
}

static void *linker_hooked(int index, void *found) {
    if (index == EGPU_LOOKUP_DLSYM)
        return found == (void *)egpu_real_dlsym ? (void *)dlsym : found;
    return found == (void *)egpu_real_dlvsym ? (void *)dlvsym : found;
}

void *egpu_dlsym_hooked(void *handle, const char *name, int index) {
    if (egpu_real_dlsym == NULL)
        return NULL;
    if (index >= EGPU_LOOKUP_DLSYM)
        return linker_hooked(index, egpu_real_dlsym(handle, name));
    if (handle != RTLD_DEFAULT && handle != RTLD_NEXT)
        return hooked(index, egpu_real_dlsym(handle, name));
    if (find_real(&egpu_hooks[index], 0) != NULL)
        return egpu_hooks[index].hook;
    return hooked(index, egpu_real_dlsym(RTLD_NEXT, name)); /* what follows this library: its own name comes first */
}

void *egpu_dlvsym_hooked(void *handle, const char *name, const char *version, int index) {
    if (egpu_real_dlvsym == NULL)
        return NULL;
    if (index >= EGPU_LOOKUP_DLSYM)
        return linker_hooked(index, egpu_real_dlvsym(handle, name, version));
    return hooked(index, egpu_real_dlvsym(handle == RTLD_DEFAULT ? RTLD_NEXT : handle, name, version));
}

/* ---- cuGetProcAddress ---------------------------------------------------------------------------------------- */

#define KNOWN_CUDA 13030 /* hooks.def knows every variant up to here */
#define PER_THREAD_STREAM 2u

static int is_ours(const char *name) {
    return egpu_hook_index(name) >= 0;
}

/* The variant that a name means at a version, where the driver's answer is none of its exported functions. */
static const struct egpu_hook *variant(const char *symbol, int cuda_version, int stream) {
    const struct egpu_hook *best = NULL;
    for (int i = 0; i < EGPU_IDS; i++) {
        const struct egpu_hook *hook = &egpu_hooks[i];
        if (hook->base == NULL || strcmp(hook->base, symbol) != 0 || hook->version * 10 > cuda_version)
            continue;
        if (hook->stream > stream || (best != NULL && best->stream > hook->stream))
            continue;
        if (best == NULL || hook->stream > best->stream || hook->version > best->version)
            best = hook;
    }
    return best;
}

void *egpu_substitute(const char *symbol, void *found, int cuda_version, uint64_t flags) {
    const struct egpu_object *cuda = library(EGPU_LIBRARY_CUDA, 0);
    const char *name = cuda ? egpu_elf_name(cuda, found, is_ours) : NULL;
    int index = name ? egpu_hook_index(name) : -1;
    const struct egpu_hook *hook = index >= 0 ? &egpu_hooks[index] : NULL;
    if (name == NULL) {
        index = egpu_hook_index(symbol);
        hook = variant(symbol, cuda_version, (flags & PER_THREAD_STREAM) != 0);
        if (hook == NULL && index >= 0 && cuda_version <= KNOWN_CUDA && strcmp(egpu_hooks[index].base, symbol) != 0)
            hook = &egpu_hooks[index]; /* asked for by its exported name */
    }
    return hook != NULL && find_real(hook, 0) != NULL ? hook->hook : found;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, uint64_t flags) {
    CUresult result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuGetProcAddress, symbol, pfn, cudaVersion, flags);
    if (result == CUDA_SUCCESS && symbol != NULL && pfn != NULL && *pfn != NULL)
        *pfn = egpu_substitute(symbol, *pfn, cudaVersion, flags);
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, uint64_t flags, int *symbolStatus) {
    CUresult result = EGPU_CALL(CUDA_ERROR_NOT_FOUND, cuGetProcAddress_v2, symbol, pfn, cudaVersion, flags, symbolStatus);
    if (result == CUDA_SUCCESS && symbol != NULL && pfn != NULL && *pfn != NULL)
        *pfn = egpu_substitute(symbol, *pfn, cudaVersion, flags);
    return result;
}
