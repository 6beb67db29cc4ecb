/* Host functions of streams: one thread, started by the first of them, runs them when their time has come. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "cuda_internal.h"

struct callback {
    uint64_t when;
    CUstream stream;
    CUhostFn fn;
    CUstreamCallback callback;
    void *user;
    struct callback *next;
};

static pthread_mutex_t callback_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t callback_change;
static struct callback *callbacks;
static bool callback_thread;
static uint64_t callbacks_pending;

static void callback_wait(uint64_t until)
{
    struct timespec t = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};
    if (until == UINT64_MAX)
        pthread_cond_wait(&callback_change, &callback_lock);
    else
        pthread_cond_timedwait(&callback_change, &callback_lock, &t);
}

static void *callback_loop(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&callback_lock);
    for (;;) {
        struct callback *c = callbacks;
        if (!c || c->when > gs_now_ns()) {
            callback_wait(c ? c->when : UINT64_MAX);
            continue;
        }
        callbacks = c->next;
        pthread_mutex_unlock(&callback_lock);
        if (c->fn)
            c->fn(c->user);
        else
            c->callback(c->stream, CUDA_SUCCESS, c->user);
        pthread_mutex_lock(&callback_lock);
        c->stream->callbacks--;
        callbacks_pending--;
        pthread_cond_broadcast(&callback_change);
        free(c);
    }
    return NULL;
}

static bool callback_start(void)
{
    pthread_t thread;
    pthread_condattr_t attributes;
    sigset_t all, before;
    if (callback_thread)
        return true;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&callback_change, &attributes);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    callback_thread = pthread_create(&thread, NULL, callback_loop, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (callback_thread)
        pthread_detach(thread);
    return callback_thread;
}

void gs_callback(CUstream stream, uint64_t when, CUhostFn fn, CUstreamCallback callback, void *user)
{
    struct callback *c = malloc(sizeof *c);
    if (!c)
        return;
    *c = (struct callback){.when = when, .stream = stream, .fn = fn, .callback = callback, .user = user};
    pthread_mutex_lock(&callback_lock);
    if (callback_start()) {
        struct callback **at = &callbacks;
        while (*at && (*at)->when <= when)
            at = &(*at)->next;
        c->next = *at;
        *at = c;
        stream->callbacks++;
        callbacks_pending++;
        pthread_cond_broadcast(&callback_change);
    }
    pthread_mutex_unlock(&callback_lock);
}

void gs_callbacks_done(CUstream stream)
{
    if (!__atomic_load_n(&callbacks_pending, __ATOMIC_ACQUIRE))
        return;
    pthread_mutex_lock(&callback_lock);
    while (stream ? stream->callbacks : callbacks_pending)
        pthread_cond_wait(&callback_change, &callback_lock);
    pthread_mutex_unlock(&callback_lock);
}
