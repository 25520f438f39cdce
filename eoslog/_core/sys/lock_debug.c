/* The order of the locks, asserted, and how long each is held: EOSLOG_DEBUG_LOCKS=1 or _core.debug_locks().
 *
 * lease < cleaner < bootstrap < append | flush; a thread has one append lock, or flush locks (docs/contributing/protocol.md, section 2,
 * but for the bootstrap lock: a cleaner writes the log start down under it, and nobody asks for a cleaner's lock under it).
 * A lock is known by its file and byte, found by /proc: this is no mode for speed. */
#include "lock_debug.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RANK_LAST = EOSLOG_LOCK_APPEND }; /* append and flush share it */
#define CLEANER_FROM ((int64_t)1 << 32)

static const char *const names[EOSLOG_LOCKS] = {"lease", "cleaner", "bootstrap", "append", "flush"};
typedef struct { int fd, kind; int64_t at; pthread_t thread; uint64_t since; } held_lock;

volatile int eoslog_lock_debug;
static __thread int many_allowed;
static held_lock held[1024];
static int held_count;
static eoslog_lock_time times[EOSLOG_LOCKS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void eoslog_lock_allow_many(int many) { many_allowed = many; }
const char *eoslog_lock_name(int kind) { return names[kind]; }

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Which of the ordered locks this is; -1 for a byte that only says who is there. */
static int kind_of(int fd, int64_t at) {
    char link[48], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return -1;
    path[size] = 0;
    const char *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    if (strncmp(name, "eoslog.lock-", 12) == 0)
        return at >= CLEANER_FROM ? EOSLOG_LOCK_CLEANER : at & 1 ? EOSLOG_LOCK_FLUSH : EOSLOG_LOCK_APPEND;
    if (strcmp(name, "eoslog.session") == 0 && at != 1) return at == 0 ? EOSLOG_LOCK_BOOTSTRAP : EOSLOG_LOCK_LEASE;
    return -1;
}

static int rank(int kind) { return kind > RANK_LAST ? RANK_LAST : kind; }

/* A lock is asked for: stop the process if this thread has one that must not come before it. */
static void judge(int kind, int64_t at) {
    for (int i = 0; i < held_count; i++) {
        if (!pthread_equal(held[i].thread, pthread_self()) || rank(held[i].kind) < rank(kind)) continue;
        /* A backup has many: cleaners' locks in one order, append locks of which it waits for none for long. */
        if (held[i].kind == kind && (kind == EOSLOG_LOCK_CLEANER || (many_allowed && kind == EOSLOG_LOCK_APPEND))) continue;
        /* A flush of several partitions takes what flush locks are free. Nothing waits for one while it has another. */
        if (held[i].kind == kind && kind == EOSLOG_LOCK_FLUSH) continue;
        fprintf(stderr, "eoslog: order of locks: %s lock (byte %lld) asked for under the %s lock (byte %lld)\n",
                names[kind], (long long)at, names[held[i].kind], (long long)held[i].at);
        abort();
    }
}

void eoslog_lock_asked(int fd, int type, int64_t at) {
    int kind = type == F_WRLCK ? kind_of(fd, at) : -1;
    if (kind < 0) return;
    pthread_mutex_lock(&mutex);
    judge(kind, at);
    pthread_mutex_unlock(&mutex);
}

void eoslog_lock_changed(int fd, int type, int64_t at) {
    int saved = errno, kind = type == F_WRLCK ? kind_of(fd, at) : -1;
    pthread_mutex_lock(&mutex);
    if (kind >= 0 && held_count < (int)(sizeof held / sizeof *held)) {
        held_lock lock = {fd, kind, at, pthread_self(), now_ns()};
        held[held_count++] = lock;
    }
    for (int i = 0; type == F_UNLCK && i < held_count; i++)
        if (held[i].fd == fd && held[i].at == at) {
            eoslog_lock_time *time = &times[held[i].kind];
            uint64_t ns = now_ns() - held[i].since;
            time->count++;
            time->total_ns += ns;
            if (ns > time->longest_ns) time->longest_ns = ns;
            held[i] = held[--held_count];
            break;
        }
    pthread_mutex_unlock(&mutex);
    errno = saved;
}

eoslog_lock_time eoslog_lock_times(int kind) {
    pthread_mutex_lock(&mutex);
    eoslog_lock_time found = times[kind];
    pthread_mutex_unlock(&mutex);
    return found;
}

static void before_fork(void) { pthread_mutex_lock(&mutex); }
static void in_parent(void) { pthread_mutex_unlock(&mutex); }
static void in_child(void) {
    held_count = 0; /* a child has none of its parent's locks */
    memset(times, 0, sizeof times);
    pthread_mutex_unlock(&mutex);
}

void eoslog_lock_debug_begin(void) {
    if (!eoslog_lock_debug) pthread_atfork(before_fork, in_parent, in_child);
    eoslog_lock_debug = 1;
}
