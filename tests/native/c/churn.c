/* Allocate and free at random for a number of rounds, once a line has come in, print "granted refused", and wait for the end of
 * standard input.
 *
 * churn SEED ROUNDS [fork|exec]: 0 rounds is until killed. The third word: a child is forked in the middle, and lives
 * or execs for a moment. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef unsigned long long CUdeviceptr;
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(CUdeviceptr *, size_t);
int cuMemFree_v2(CUdeviceptr);

#define MOST 256

static uint64_t state;

static uint32_t any(uint32_t below)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(state >> 33) % below;
}

static size_t size(void)
{
    return any(4) ? ((size_t)any(4) + 1) << 21 : (size_t)any(1 << 18) + 1;
}

int main(int argc, char **argv)
{
    static CUdeviceptr held[MOST];
    unsigned count = 0;
    long granted = 0, refused = 0;
    void *context;
    if (argc < 3)
        return 64;
    state = strtoull(argv[1], NULL, 0) * 77 + 1;
    long rounds = atol(argv[2]);
    if (cuInit(0))
        return 65;
    if (cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 65;
    char word[8];
    printf("ready\n");
    fflush(stdout);
    if (fgets(word, sizeof word, stdin) == NULL)
        return 65;
    for (long i = 0; rounds == 0 || i < rounds; i++) {
        if (argc > 3 && i == rounds / 2) {
            pid_t child = fork();
            if (child == 0 && strcmp(argv[3], "exec") == 0)
                execl("/bin/true", "true", NULL);
            if (child == 0)
                _exit(0);
            waitpid(child, NULL, 0);
        }
        if (count < MOST && any(3)) {
            int result = cuMemAlloc_v2(&held[count], size());
            count += result == 0;
            granted += result == 0;
            refused += result == 2;
            if (result != 0 && result != 2)
                return 66;
            for (unsigned n = result ? any(count + 1) : 0; n > 0; n--)
                if (cuMemFree_v2(held[--count]))
                    return 67;
        } else if (count > 0 && cuMemFree_v2(held[--count])) {
            return 68;
        }
    }
    while (count > 0)
        if (cuMemFree_v2(held[--count]))
            return 69;
    printf("%ld %ld\n", granted, refused);
    fflush(stdout);
    while (fgets(word, sizeof word, stdin) != NULL)
        ;
    return 0;
}
