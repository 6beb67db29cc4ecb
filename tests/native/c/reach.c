/* Reach the driver's functions by every way a program can; print what an allocation of argv[2] bytes answers.
 *
 * reach WAY BYTES, WAY one of: dlopen, default, next, indirect, proc, proc-v1, proc-early, constructor.
 * Compiled with -DLINKED it is linked to libcuda, and also knows: link. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long CUdeviceptr;
typedef int (*fn_init)(unsigned);
typedef int (*fn_retain)(void **, int);
typedef int (*fn_current)(void *);
typedef int (*fn_alloc)(CUdeviceptr *, size_t);
typedef int (*fn_proc)(const char *, void **, int, uint64_t);
typedef int (*fn_proc_v2)(const char *, void **, int, uint64_t, int *);

static void *library;
static int early;

static void *get(const char *way, const char *name)
{
    if (strcmp(way, "default") == 0)
        return dlsym(RTLD_DEFAULT, name);
    if (strcmp(way, "next") == 0)
        return dlsym(RTLD_NEXT, name);
    if (strcmp(way, "indirect") == 0) {
        void *libc = dlopen("libc.so.6", RTLD_LAZY);
        void *(*find)(void *, const char *) = (void *(*)(void *, const char *))dlsym(libc, "dlsym");
        return find(library, name);
    }
    return dlsym(library, name);
}

static void *proc(const char *way, const char *name, int version)
{
    void *found = NULL;
    int status = 77;
    if (strcmp(way, "proc-v1") == 0) {
        fn_proc look = (fn_proc)dlsym(library, "cuGetProcAddress");
        return look(name, &found, version, 0) == 0 ? found : NULL;
    }
    fn_proc_v2 look = (fn_proc_v2)dlsym(library, "cuGetProcAddress_v2");
    fn_proc_v2 again = NULL;
    if (look("cuGetProcAddress", (void **)&again, 12000, 0, &status) != 0 || status != 0)
        return NULL;
    status = 77;
    return again(name, &found, version, 0, &status) == 0 && status == 0 ? found : NULL;
}

static int attempt(const char *way, size_t bytes)
{
    void *context;
    CUdeviceptr address;
    fn_alloc alloc = NULL;
    int by_proc = strncmp(way, "proc", 4) == 0;
    if (strcmp(way, "proc-early") == 0)
        alloc = (fn_alloc)proc(way, "cuMemAlloc", 12000);
    fn_init init = (fn_init)get(way, "cuInit");
    fn_retain retain = (fn_retain)get(way, "cuDevicePrimaryCtxRetain");
    fn_current current = (fn_current)get(way, "cuCtxSetCurrent");
    if (!init || !retain || !current || init(0) != 0)
        return -1;
    int result = retain(&context, 0);
    if (result != 0)
        return 1000 + result;
    current(context);
    if (!alloc)
        alloc = by_proc ? (fn_alloc)proc(way, "cuMemAlloc", 12000) : (fn_alloc)get(way, "cuMemAlloc_v2");
    return alloc ? alloc(&address, bytes) : -2;
}

#ifdef LINKED
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(CUdeviceptr *, size_t);

static int linked(size_t bytes)
{
    void *context;
    CUdeviceptr address;
    if (cuInit(0) != 0)
        return -1;
    int result = cuDevicePrimaryCtxRetain(&context, 0);
    if (result != 0)
        return 1000 + result;
    cuCtxSetCurrent(context);
    return cuMemAlloc_v2(&address, bytes);
}
#endif

__attribute__((constructor)) static void before_main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "constructor") == 0) {
        library = dlopen("libcuda.so.1", RTLD_NOW);
        early = attempt("dlopen", strtoull(argv[2], NULL, 0));
    }
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 64;
    size_t bytes = strtoull(argv[2], NULL, 0);
    int result = early;
    if (strcmp(argv[1], "link") == 0) {
#ifdef LINKED
        result = linked(bytes);
#else
        return 64;
#endif
    } else if (strcmp(argv[1], "constructor") != 0) {
        int global = strcmp(argv[1], "default") == 0 || strcmp(argv[1], "next") == 0;
        library = dlopen("libcuda.so.1", RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
        if (!library)
            return 65;
        result = attempt(argv[1], bytes);
    }
    printf("%d\n", result);
    return 0;
}
