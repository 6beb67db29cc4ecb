/* Time a wrapped call whose driver does nothing: what the wrapper of a launch costs, on several threads.
 *
 * Linked to a libcuda of one empty function (compiled with -DDRIVER). bench_launch THREADS prints least and median ns. */
#define _GNU_SOURCE
#ifdef DRIVER
int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h, void *s,
                   void **p, void **x);
int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h, void *s,
                   void **p, void **x)
{
    return f && s && p && x && (a + b + c + d + e + g + h) == 0;
}
#else
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

#define ROUNDS 31
#define CALLS 100000

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

static void *launch(void *out)
{
    double *rounds = out;
    for (int r = 0; r < ROUNDS; r++) {
        double start = now();
        for (int i = 0; i < CALLS; i++)
            cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
        rounds[r] = (now() - start) / CALLS;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int threads = argc == 2 ? atoi(argv[1]) : 1;
    double *rounds = calloc((size_t)threads * ROUNDS, sizeof *rounds);
    pthread_t *started = calloc((size_t)threads, sizeof *started);
    for (int t = 0; t < threads; t++)
        pthread_create(&started[t], NULL, launch, rounds + t * ROUNDS);
    for (int t = 0; t < threads; t++)
        pthread_join(started[t], NULL);
    qsort(rounds, (size_t)threads * ROUNDS, sizeof *rounds, compare);
    printf("%.2f %.2f\n", rounds[0], rounds[threads * ROUNDS / 2]);
    return 0;
}
#endif
