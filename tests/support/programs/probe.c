/* Says what a container has been given, takes so many MiB of the card, and stays.
 *
 * probe [MiB]
 * Lines: "page <hex of /etc/elasticgpu/limits>" or "page none"; "total <bytes>"; "alloc <MiB> <result>"; "ready".
 * Linked to the C library alone; the driver is opened as frameworks open it, so that it also starts where there is no card.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef int (*init_fn)(unsigned);
typedef int (*device_fn)(int *, int);
typedef int (*retain_fn)(void **, int);
typedef int (*current_fn)(void *);
typedef int (*info_fn)(size_t *, size_t *);
typedef int (*alloc_fn)(unsigned long long *, size_t);

static void show_page(void)
{
    FILE *page = fopen("/etc/elasticgpu/limits", "rb");
    if (page == NULL) {
        puts("page none");
        return;
    }
    fputs("page ", stdout);
    for (int byte; (byte = fgetc(page)) != EOF;)
        printf("%02x", (unsigned)byte);
    putchar('\n');
    fclose(page);
}

static void use_card(size_t mib)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *context = NULL;
    size_t available = 0, total = 0;
    unsigned long long address = 0;
    int device = 0;
    if (driver == NULL) {
        puts("driver none");
        return;
    }
    int result = ((init_fn)dlsym(driver, "cuInit"))(0);
    if (result == 0)
        result = ((device_fn)dlsym(driver, "cuDeviceGet"))(&device, 0);
    if (result == 0)
        result = ((retain_fn)dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, device);
    if (result == 0)
        result = ((current_fn)dlsym(driver, "cuCtxSetCurrent"))(context);
    if (result == 0)
        result = ((info_fn)dlsym(driver, "cuMemGetInfo_v2"))(&available, &total);
    printf("total %zu\n", total);
    if (result == 0 && mib != 0)
        result = ((alloc_fn)dlsym(driver, "cuMemAlloc_v2"))(&address, mib << 20);
    printf("alloc %zu %d\n", mib, result);
}

int main(int count, char **arguments)
{
    show_page();
    if (count > 1)
        use_card(strtoul(arguments[1], NULL, 10));
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
