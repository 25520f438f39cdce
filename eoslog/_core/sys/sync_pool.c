/* fdatasync of several files at a time, in threads of this process.
 *
 * A file system writes its journal once for the syncs that wait at the same time, so ten files take less than twice
 * as long as one. The threads are C threads because a thread of Python would also wait for the GIL, twice for
 * each file. They start at the first use and stay. They block all signals, which are for Python's threads. */
#include "os_table.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

enum { MOST_THREADS = 8 };

typedef struct group {
    eoslog_sync *syncs;
    int count, taken, done;
    struct group *next;
} group;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER, ends = PTHREAD_COND_INITIALIZER;
static group *first; /* the groups with files that no thread has taken */
static int threads;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void sync_one(eoslog_sync *one) {
    one->error = eoslog_os.fdatasync(one->fd) < 0 ? errno : 0;
    if (one->error && !__atomic_load_n(one->deleted, __ATOMIC_ACQUIRE)) __atomic_store_n(one->poison, 1, __ATOMIC_RELEASE);
}

/* Sync one file of a group. The mutex is held, and released in between. */
static void sync_next(group *g) {
    int i = g->taken++;
    if (g->taken == g->count)
        for (group **at = &first; *at; at = &(*at)->next)
            if (*at == g) { *at = g->next; break; }
    pthread_mutex_unlock(&mutex);
    sync_one(&g->syncs[i]);
    pthread_mutex_lock(&mutex);
    if (++g->done == g->count) pthread_cond_broadcast(&ends);
}

static void *run(void *unused) {
    (void)unused;
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (!first) pthread_cond_wait(&work, &mutex);
        sync_next(first);
    }
    return NULL;
}

static void before_fork(void) { pthread_mutex_lock(&mutex); }
static void in_parent(void) { pthread_mutex_unlock(&mutex); }
static void in_child(void) { /* it has none of the threads */
    pthread_mutex_init(&mutex, NULL);
    pthread_cond_init(&work, NULL);
    pthread_cond_init(&ends, NULL);
    first = NULL;
    threads = 0;
}
static void install(void) { pthread_atfork(before_fork, in_parent, in_child); }

/* Start threads until there are `wanted`, or the system refuses: the caller can do all the work. */
static void start(int wanted) {
    sigset_t all, before;
    pthread_t thread;
    if (wanted > MOST_THREADS) wanted = MOST_THREADS;
    if (threads >= wanted) return;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (threads < wanted && pthread_create(&thread, NULL, run, NULL) == 0) {
        pthread_detach(thread);
        threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void eoslog_sync_all(eoslog_sync *syncs, int count) {
    group g = {syncs, count, 0, 0, NULL};
    if (count <= 1 || eoslog_os.fdatasync != fdatasync) { /* a simulator's or a fault's: in the order of the files */
        for (int i = 0; i < count; i++) sync_one(&syncs[i]);
        return;
    }
    pthread_once(&fork_once, install);
    pthread_mutex_lock(&mutex);
    start(count - 1);
    g.next = first;
    first = &g;
    pthread_cond_broadcast(&work);
    while (g.taken < count) sync_next(&g);
    while (g.done < count) pthread_cond_wait(&ends, &mutex);
    pthread_mutex_unlock(&mutex);
}
