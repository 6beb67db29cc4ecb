/* Start many processes at once; print the median and the 99th percentile of what each needs from its first driver call
 * to its first allocation, ns.
 *
 * bench_start PROCESSES */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long CUdeviceptr;
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(CUdeviceptr *, size_t);

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

static double first(void)
{
    void *context;
    CUdeviceptr address;
    double start = now();
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || cuMemAlloc_v2(&address, 4096))
        _exit(1);
    return now() - start;
}

int main(int argc, char **argv)
{
    int count = argc == 2 ? atoi(argv[1]) : 300, go[2], failed = 0;
    double *times = mmap(NULL, (size_t)count * sizeof *times, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (setpgid(0, 0) != 0 || pipe(go) != 0)
        return 65;
    for (int i = 0; i < count; i++)
        if (fork() == 0) {
            char word;
            close(go[1]);
            if (read(go[0], &word, 1) < 0)
                _exit(2);
            times[i] = first();
            sleep(60); /* all of them are alive at once */
            _exit(0);
        }
    close(go[1]);
    for (int ready = 0, waited = 0; ready < count && waited < 60000; waited++) {
        usleep(1000);
        ready = failed;
        for (int i = 0; i < count; i++)
            ready += times[i] != 0;
        while (waitpid(-1, NULL, WNOHANG) > 0)
            failed++;
    }
    signal(SIGTERM, SIG_IGN);
    kill(0, SIGTERM);
    qsort(times, (size_t)count, sizeof *times, compare);
    printf("%.0f %.0f %d\n", times[count / 2], times[count * 99 / 100], failed);
    return 0;
}
