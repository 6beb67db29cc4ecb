/* Time the driver calls that the library wraps; print the least and the median of the rounds, ns.
 *
 * bench LIVE BYTES: LIVE allocations of BYTES are there while alloc+free is timed. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef unsigned long long CUdeviceptr;
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(CUdeviceptr *, size_t);
int cuMemFree_v2(CUdeviceptr);

#define ROUNDS 15
#define PAIRS 5000

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    void *context;
    CUdeviceptr address;
    double rounds[ROUNDS];
    if (argc != 3)
        return 64;
    long live = atol(argv[1]);
    size_t bytes = strtoull(argv[2], NULL, 0);
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 65;
    for (long i = 0; i < live; i++)
        if (cuMemAlloc_v2(&address, bytes))
            return 66;
    for (int r = 0; r < ROUNDS; r++) {
        double start = now();
        for (int i = 0; i < PAIRS; i++)
            if (cuMemAlloc_v2(&address, bytes) || cuMemFree_v2(address))
                return 67;
        rounds[r] = (now() - start) / PAIRS;
    }
    qsort(rounds, ROUNDS, sizeof *rounds, compare);
    printf("%.2f %.2f\n", rounds[0], rounds[ROUNDS / 2]);
    return 0;
}
