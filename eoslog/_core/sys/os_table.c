#include "os_table.h"
#include "lock_debug.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif

/* --- names below a descriptor -----------------------------------------------------------------
 * A session names its files `/proc/self/fd/N/NAME` (storage/fs/opened_directory.py). openat(N, NAME) is
 * the same file without the way through /proc, which costs more than the rest of the call. */

/* The descriptor that a path begins at, and from there on the name; AT_FDCWD leaves it as it is. */
static int begin_at(const char **path) {
    static const char root[] = "/proc/self/fd/";
    const char *p = *path;
    int fd = 0, digits = 0;
    if (strncmp(p, root, sizeof root - 1) != 0) return AT_FDCWD;
    for (p += sizeof root - 1; *p >= '0' && *p <= '9' && digits < 9; p++, digits++) fd = 10 * fd + (*p - '0');
    if (!digits || p[0] != '/' || !p[1] || p[1] == '/') return AT_FDCWD;
    *path = p + 1;
    return fd;
}

static int open_below(const char *path, int flags, int mode) {
    const char *name = path;
    int root = begin_at(&name);
    int fd = openat(root, name, flags, mode);
    if (fd < 0 && errno == EBADF) errno = ENOENT; /* the session has closed its directory */
    return fd;
}

/* --- permissions of new files ----------------------------------------------------------------
 * A folder with the setgid bit and permissions for others than its owner is shared: what is made in
 * it takes the folder's mode (files without x) whatever the umask, and its group, by the setgid bit.
 * Such a file has its permissions before it has its name, so no process meets it without them. */

enum { FOLDER_SIZE = PATH_MAX };

/* The path of the folder that a path lies in; 0, or -1 if it is too long. */
static int folder_of(const char *path, char *folder) {
    const char *slash = strrchr(path, '/');
    size_t size = slash ? (size_t)(slash - path) : 1;
    if (size >= FOLDER_SIZE) return -1;
    memcpy(folder, slash ? path : ".", size);
    if (slash == path) folder[size++] = '/';
    folder[size] = 0;
    return 0;
}

/* Whether a path lies in a shared folder; then `folder` and its mode are set. */
static int in_shared_folder(const char *path, char *folder, mode_t *mode) {
    struct stat found;
    const char *name = folder;
    if (folder_of(path, folder) < 0) return 0;
    int root = begin_at(&name);
    if (fstatat(root, name, &found, 0) < 0) return 0;
    *mode = found.st_mode & 07777;
    return (*mode & S_ISGID) && (*mode & 077);
}

static int open_or_create(const char *path, int flags, int mode) {
    char folder[FOLDER_SIZE], link[32];
    mode_t shared;
    int fd;
    if (!(flags & O_CREAT) || !in_shared_folder(path, folder, &shared)) return open_below(path, flags, mode);
    for (;;) {
        fd = open(path, flags & ~O_CREAT);
        if (fd >= 0 || errno != ENOENT) return fd;
        fd = open(folder, (flags & ~(O_CREAT | O_EXCL)) | O_TMPFILE, mode);
        if (fd < 0) break; /* a file system without unnamed files */
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        if (fchmod(fd, shared & 0666) == 0 && linkat(AT_FDCWD, link, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0) return fd;
        int why = errno;
        close(fd);
        errno = why;
        if (why == ENOENT) break;    /* no /proc */
        if (why != EEXIST) return -1;
    }
    fd = open(path, flags, mode);
    struct stat made;
    if (fd >= 0 && fstat(fd, &made) == 0 && made.st_uid == geteuid() && made.st_size == 0) (void)fchmod(fd, shared & 0666);
    return fd;
}

/* --- descriptors 0 to 2 -----------------------------------------------------------------------
 * If a program has closed one of them, the next open returns it. A library that prints to it would then
 * write its text into a log file. So no file stays there, as in SQLite (SQLITE_MINIMUM_FILE_DESCRIPTOR),
 * and /dev/null takes the free ones. */

static int above_standard(int fd) {
    if (fd < 0 || fd > 2) return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, 3), why = errno, taken;
    close(fd);
    while ((taken = open("/dev/null", O_RDWR)) >= 0 && taken <= 2) continue;
    if (taken > 2) close(taken);
    errno = why;
    return moved;
}

static int real_open(const char *path, int flags, int mode) {
    return above_standard(open_or_create(path, flags | O_CLOEXEC, mode));
}
static ssize_t real_pread(int fd, void *data, size_t size, int64_t at) { return pread(fd, data, size, at); }
static ssize_t real_pwrite(int fd, const void *data, size_t size, int64_t at) { return pwrite(fd, data, size, at); }
static int real_ftruncate(int fd, int64_t size) { return ftruncate(fd, size); }
static void real_point(int id) { (void)id; }

static int real_lock(int fd, int type, int64_t at) {
    struct flock lock;
    memset(&lock, 0, sizeof lock);
    lock.l_type = (short)type;
    lock.l_whence = SEEK_SET;
    lock.l_start = at;
    lock.l_len = 1;
    int rc;
    if (eoslog_lock_debug) eoslog_lock_asked(fd, type, at);
    do rc = fcntl(fd, F_OFD_SETLK, &lock); while (rc < 0 && errno == EINTR);
    if (eoslog_lock_debug && rc == 0) eoslog_lock_changed(fd, type, at);
    return rc;
}

static int real_writeback(int fd, int64_t at, int64_t size) {
    return sync_file_range(fd, at, size, SYNC_FILE_RANGE_WRITE);
}
static int64_t real_clock_ns(int wall) {
    struct timespec now;
    clock_gettime(wall ? CLOCK_REALTIME : CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
static int real_mkdir(const char *path, int mode) {
    static uint32_t made;
    char folder[FOLDER_SIZE], aside[FOLDER_SIZE + 64];
    mode_t shared;
    if (!in_shared_folder(path, folder, &shared)) return mkdir(path, (mode_t)mode);
    if (access(path, F_OK) == 0) { errno = EEXIST; return -1; }
    /* By this end of its name, the next session removes what a crash leaves of it. */
    snprintf(aside, sizeof aside, "%s/eoslog.making-%d.%016llx%016x-delete", folder, (int)getpid(),
             (unsigned long long)real_clock_ns(1), __atomic_add_fetch(&made, 1, __ATOMIC_RELAXED));
    if (mkdir(aside, (mode_t)mode) < 0) return -1;
    if (chmod(aside, shared) == 0) {
        long rc = syscall(SYS_renameat2, AT_FDCWD, aside, AT_FDCWD, path, 1 /* RENAME_NOREPLACE */);
        if (rc < 0 && (errno == EINVAL || errno == ENOSYS)) rc = rename(aside, path);
        if (rc == 0) return 0;
    }
    int why = errno == ENOTEMPTY ? EEXIST : errno;
    (void)rmdir(aside);
    errno = why;
    return -1;
}
/* The kernel reports all pages as cached to a process that may not write the file (mincore(2)). */
static int real_forget(int fd) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct statfs where;
    struct stat about;
    int rc = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), stay = 0;
    if (rc) { errno = rc; return -1; }
    if (fstatfs(fd, &where) < 0 || fstat(fd, &about) < 0) return -1;
    if (where.f_type == 0x01021994 /* tmpfs has no disk */ || about.st_size == 0) return 0;
    const size_t size = (size_t)about.st_size, count = (size + page - 1) / page;
    unsigned char *cached = malloc(count);
    if (!cached) return -1;
    void *place = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    rc = place == MAP_FAILED ? -1 : mincore(place, size, cached);
    for (size_t i = 0; rc == 0 && i < count; i++) stay |= cached[i] & 1;
    if (place != MAP_FAILED) munmap(place, size);
    free(cached);
    return rc < 0 ? -1 : stay;
}
static void *real_map(int fd, int64_t at, size_t size, int writable) {
    return mmap(NULL, size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, at);
}
static int real_wait(uint32_t **words, const uint32_t *expected, int n, int64_t timeout_ns);

#define REAL_TABLE { real_open, real_pread, real_pwrite, fdatasync, fsync, real_ftruncate, rename, unlink, real_lock, \
                     real_point, real_mkdir, rmdir, real_writeback, real_forget, real_map, real_clock_ns, real_wait }
static const eoslog_os_table real_table = REAL_TABLE;
eoslog_os_table eoslog_os = REAL_TABLE;

/* --- faults ------------------------------------------------------------------------------- */

typedef struct { int64_t at; int error; int armed; } fault;
static fault faults[EOSLOG_CALLS];
static int64_t counts[EOSLOG_CALLS];

/* Returns the fault that this call meets, or NULL. Kills or stops at once where asked to, before. */
static const fault *meet(int kind, int64_t id) {
    int64_t n = __atomic_add_fetch(&counts[kind], 1, __ATOMIC_RELAXED);
    const fault *f = &faults[kind];
    if (!f->armed || f->at != (kind == EOSLOG_POINT ? id : n)) return NULL;
    if (f->error == 0) kill(getpid(), SIGKILL);
    if (f->error == -3) {
        faults[kind].armed = 0;  /* a point is passed again and again */
        kill(getpid(), SIGSTOP);
    }
    return f;
}

#define FAULTY(kind, expression, type)                                   \
    const fault *f = meet(kind, 0);                                      \
    if (f && f->error > 0) { errno = f->error; return -1; }              \
    type rc = expression;                                                \
    if (f && f->error == -1) kill(getpid(), SIGKILL);                    \
    return rc

static int faulty_open(const char *p, int fl, int m) { FAULTY(EOSLOG_OPEN, real_open(p, fl, m), int); }
static ssize_t faulty_pread(int fd, void *d, size_t n, int64_t at) { FAULTY(EOSLOG_PREAD, real_pread(fd, d, n, at), ssize_t); }
static ssize_t faulty_pwrite(int fd, const void *d, size_t n, int64_t at) {
    const fault *f = meet(EOSLOG_PWRITE, 0);
    if (f && f->error > 0) {
        /* a full disk takes what still fits before it says no */
        if (f->error == ENOSPC && n > 1) { ssize_t part = real_pwrite(fd, d, n / 2, at); (void)part; }
        errno = f->error;
        return -1;
    }
    if (f && f->error == -2 && n > 1) n /= 2;
    ssize_t rc = real_pwrite(fd, d, n, at);
    if (f && f->error == -1) kill(getpid(), SIGKILL);
    return rc;
}
static int faulty_fdatasync(int fd) { FAULTY(EOSLOG_FDATASYNC, fdatasync(fd), int); }
static int faulty_fsync(int fd) { FAULTY(EOSLOG_FSYNC, fsync(fd), int); }
static int faulty_ftruncate(int fd, int64_t n) { FAULTY(EOSLOG_FTRUNCATE, real_ftruncate(fd, n), int); }
static int faulty_rename(const char *a, const char *b) { FAULTY(EOSLOG_RENAME, rename(a, b), int); }
static int faulty_unlink(const char *p) { FAULTY(EOSLOG_UNLINK, unlink(p), int); }
static int faulty_lock(int fd, int t, int64_t at) { FAULTY(EOSLOG_LOCK, real_lock(fd, t, at), int); }
static void faulty_point(int id) { meet(EOSLOG_POINT, id); }
static int faulty_mkdir(const char *p, int m) { FAULTY(EOSLOG_MKDIR, real_mkdir(p, m), int); }
static int faulty_rmdir(const char *p) { FAULTY(EOSLOG_RMDIR, rmdir(p), int); }
static int faulty_writeback(int fd, int64_t at, int64_t n) { FAULTY(EOSLOG_WRITEBACK, real_writeback(fd, at, n), int); }

static const eoslog_os_table faulty_table = {
    faulty_open, faulty_pread, faulty_pwrite, faulty_fdatasync, faulty_fsync, faulty_ftruncate,
    faulty_rename, faulty_unlink, faulty_lock, faulty_point, faulty_mkdir, faulty_rmdir,
    faulty_writeback, real_forget, real_map, real_clock_ns, real_wait,
};

void eoslog_fault_arm(int kind, int64_t nth, int error) {
    faults[kind].at = kind == EOSLOG_POINT ? nth : counts[kind] + nth;
    faults[kind].error = error;
    faults[kind].armed = 1;
    eoslog_os = faulty_table;
}

void eoslog_fault_disarm(void) {
    memset(faults, 0, sizeof faults);
    memset(counts, 0, sizeof counts);
    eoslog_os = real_table;
}

int64_t eoslog_fault_count(int kind, int reset) {
    if (reset) { counts[kind] = 0; eoslog_os = faulty_table; }
    return counts[kind];
}

/* --- whole ranges ---------------------------------------------------------------------------- */

int eoslog_pwrite_all(int fd, const void *data, size_t size, int64_t position) {
    const char *p = data;
    while (size) {
        ssize_t n = eoslog_os.pwrite(fd, p, size, position);
        if (n < 0) { if (errno == EINTR) continue; return -1; }
        if (n == 0) { errno = ENOSPC; return -1; }
        p += n; size -= (size_t)n; position += n;
    }
    return 0;
}

int eoslog_pread_all(int fd, void *data, size_t size, int64_t position) {
    char *p = data;
    while (size) {
        ssize_t n = eoslog_os.pread(fd, p, size, position);
        if (n < 0) { if (errno == EINTR) continue; return -1; }
        if (n == 0) { errno = EIO; return -1; }
        p += n; size -= (size_t)n; position += n;
    }
    return 0;
}

/* --- fork ------------------------------------------------------------------------------------ */

volatile uint32_t eoslog_fork_generation;
static int *guarded;
static int guarded_count, guarded_capacity;
static pthread_mutex_t guard_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t guard_once = PTHREAD_ONCE_INIT;
static volatile int own_pid;    /* 0: not known yet */

static void before_fork(void) { pthread_mutex_lock(&guard_mutex); }
static void in_parent(void) { pthread_mutex_unlock(&guard_mutex); }
static void in_child(void) {
    for (int i = 0; i < guarded_count; i++) close(guarded[i]);
    guarded_count = 0;
    eoslog_fork_generation++;
    own_pid = 0;
    pthread_mutex_unlock(&guard_mutex);
}
static void install_guard(void) { pthread_atfork(before_fork, in_parent, in_child); }

int eoslog_pid(void) {
    if (own_pid == 0) {
        pthread_once(&guard_once, install_guard);   /* so that a child does not keep it */
        own_pid = (int)getpid();
    }
    return own_pid;
}

int eoslog_fork_guard(int fd) {
    pthread_once(&guard_once, install_guard);
    pthread_mutex_lock(&guard_mutex);
    int ok = 0;
    if (guarded_count == guarded_capacity) {
        int capacity = guarded_capacity ? 2 * guarded_capacity : 64;
        int *grown = realloc(guarded, (size_t)capacity * sizeof *grown);
        if (grown) { guarded = grown; guarded_capacity = capacity; } else ok = -1;
    }
    if (ok == 0) guarded[guarded_count++] = fd;
    pthread_mutex_unlock(&guard_mutex);
    return ok;
}

void eoslog_fork_release(int fd) {
    pthread_mutex_lock(&guard_mutex);
    for (int i = 0; i < guarded_count; i++)
        if (guarded[i] == fd) { guarded[i] = guarded[--guarded_count]; break; }
    pthread_mutex_unlock(&guard_mutex);
}

/* --- time and waiting --------------------------------------------------------------------------- */

uint64_t eoslog_monotonic_ns(void) { return (uint64_t)eoslog_os.clock_ns(0); }

static int futex_wait(uint32_t *word, uint32_t expected, int64_t timeout_ns) {
    struct timespec t = { timeout_ns / 1000000000, timeout_ns % 1000000000 };
    return (int)syscall(SYS_futex, word, FUTEX_WAIT, expected, &t, NULL, 0);
}

int eoslog_futex_wake(uint32_t *word, int count) {
    return (int)syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
struct waitv { uint64_t value; uint64_t address; uint32_t flags; uint32_t reserved; };

static int real_wait(uint32_t **words, const uint32_t *expected, int n, int64_t timeout_ns) {
    if (n == 0) {
        struct timespec t = { timeout_ns / 1000000000, timeout_ns % 1000000000 };
        return nanosleep(&t, NULL);
    }
    if (n == 1) return futex_wait(words[0], expected[0], timeout_ns);
    struct waitv waiters[64];
    struct timespec until;
    if (n > 64) n = 64;
    for (int i = 0; i < n; i++) {
        waiters[i].value = expected[i];
        waiters[i].address = (uint64_t)(uintptr_t)words[i];
        waiters[i].flags = 2; /* FUTEX_32, shared */
        waiters[i].reserved = 0;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += timeout_ns % 1000000000;
    until.tv_sec += timeout_ns / 1000000000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    long rc = syscall(SYS_futex_waitv, waiters, n, 0, &until, CLOCK_MONOTONIC);
    if (rc < 0 && errno == ENOSYS) {       /* kernels before 5.16: look again every millisecond */
        struct timespec ms = { 0, timeout_ns < 1000000 ? timeout_ns : 1000000 };
        nanosleep(&ms, NULL);
        return 0;
    }
    return rc < 0 ? -1 : 0;
}
