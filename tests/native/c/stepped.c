/* Kill a process after each single instruction of charging and giving back, and look at what it leaves.
 *
 * Compiled with the library's ledger, region and usage sources, a region path of its own and no delay before reuse.
 * stepped PATH: the region exists. Prints the number of instructions it stopped at, or what was wrong. */
#include "ledger.h"
#include "region.h"
#include "usage.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT 1000u

static struct egpu_limits_copy limits;

static void fail(const char *what, int step)
{
    printf("step %d: %s\n", step, what);
    exit(1);
}

static void work(int step)
{
    static struct egpu_seat seat;
    if (egpu_usage_join(&seat, &limits) != EGPU_REASON_NONE || !egpu_usage_try(&seat, 0, 100, LIMIT))
        _exit(3);
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    egpu_usage_try(&seat, 0, 30, LIMIT);
    egpu_usage_try(&seat, 0, 2 * LIMIT, LIMIT);
    egpu_usage_release(&seat, 0, 50);
    (void)step;
    _exit(0);
}

/* The sum of what the slots say, which must be what the ledger says. */
static uint64_t sum(struct egpu_seat *seat)
{
    uint64_t total = 0, sequence;
    for (uint32_t i = 0; i < seat->slots; i++)
        total += egpu_ledger_held(seat->header, i, 0, &sequence);
    return total;
}

static int stop_at(pid_t child, int step)
{
    int status;
    waitpid(child, &status, 0);
    if (WIFEXITED(status))
        return -1;
    for (int i = 0; i < step; i++) {
        ptrace(PTRACE_SINGLESTEP, child, NULL, NULL);
        waitpid(child, &status, 0);
        if (WIFEXITED(status))
            return 0;
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return 1;
}

int main(void)
{
    static struct egpu_seat seat;
    int step = 0, running = 1;
    strcpy(limits.slice_uid, "stepped");
    if (egpu_usage_join(&seat, &limits) != EGPU_REASON_NONE)
        fail("cannot join", 0);
    for (; running; step++) {
        pid_t child = fork();
        if (child == 0)
            work(step);
        running = stop_at(child, step);
        if (running < 0)
            fail("the child could not start", step);
        if (sum(&seat) != egpu_usage_total(&seat, 0))
            fail("the slots do not add up to the ledger", step);
        if (step % 2 && (!egpu_usage_try(&seat, 0, 7, LIMIT) || sum(&seat) != egpu_usage_total(&seat, 0)))
            fail("another process's charge lost the dead one's", step);
        uint64_t held = seat.cards[0].held;
        struct egpu_sweep sweep = egpu_usage_sweep(&seat, 0);
        if (sweep.pending || sum(&seat) != held || egpu_usage_total(&seat, 0) != held)
            fail("the sweep did not recover exactly what was held", step);
        egpu_usage_release(&seat, 0, held);
    }
    printf("%d\n", step);
    return 0;
}
