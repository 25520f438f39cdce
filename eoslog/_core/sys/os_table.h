/* The one table through which every storage call, clock and wait goes. Fault injection and the
 * simulator (tests/simulation) replace its entries, so that the tested path is the production path. */
#ifndef EOSLOG_OS_TABLE_H
#define EOSLOG_OS_TABLE_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    EOSLOG_OPEN, EOSLOG_PREAD, EOSLOG_PWRITE, EOSLOG_FDATASYNC, EOSLOG_FSYNC, EOSLOG_FTRUNCATE,
    EOSLOG_RENAME, EOSLOG_UNLINK, EOSLOG_LOCK, EOSLOG_POINT, EOSLOG_MKDIR, EOSLOG_RMDIR,
    EOSLOG_WRITEBACK, EOSLOG_CALLS
};

typedef struct {
    int (*open)(const char *path, int flags, int mode);
    ssize_t (*pread)(int fd, void *data, size_t size, int64_t position);
    ssize_t (*pwrite)(int fd, const void *data, size_t size, int64_t position);
    int (*fdatasync)(int fd);
    int (*fsync)(int fd);
    int (*ftruncate)(int fd, int64_t size);
    int (*rename)(const char *from, const char *to);
    int (*unlink)(const char *path);
    /* type: F_RDLCK, F_WRLCK or F_UNLCK on one byte; never waits. 0, or -1 with errno. */
    int (*lock)(int fd, int type, int64_t at);
    /* a step between two stores that no system call marks */
    void (*point)(int id);
    int (*mkdir)(const char *path, int mode);
    int (*rmdir)(const char *path);
    /* begin to write a range's pages to the disk, wait for none of them, promise nothing */
    int (*writeback)(int fd, int64_t position, int64_t size);
    /* drop a file's pages from the cache; 1 if some stay that the disk may lack, else 0; -1 with errno */
    int (*forget)(int fd);
    /* a shared mapping, MAP_FAILED with errno on error */
    void *(*map)(int fd, int64_t at, size_t size, int writable);
    /* CLOCK_MONOTONIC, or the wall clock */
    int64_t (*clock_ns)(int wall);
    /* until one of n words differs from its expected value, or timeout; n = 0 only sleeps */
    int (*wait)(uint32_t **words, const uint32_t *expected, int n, int64_t timeout_ns);
} eoslog_os_table;

extern eoslog_os_table eoslog_os;

/* Let the nth coming call of a kind (1 = the next) fail with `error`; error 0 kills the process
 * before the call, -1 kills it after the call, -2 makes a write short. kind EOSLOG_POINT: nth is
 * the point's id. */
void eoslog_fault_arm(int kind, int64_t nth, int error);
void eoslog_fault_disarm(void);
/* Calls of a kind since counting began (arming anything, or this with reset, begins it). */
int64_t eoslog_fault_count(int kind, int reset);

/* Whole-range helpers over the table: 0, or -1 with errno (EIO for an early end of file). */
int eoslog_pwrite_all(int fd, const void *data, size_t size, int64_t position);
int eoslog_pread_all(int fd, void *data, size_t size, int64_t position);

/* Fork: descriptors that hold locks are closed in the child (never unlocked: the lock belongs to
 * the shared open file description), and the generation moves on, which kills inherited handles. */
extern volatile uint32_t eoslog_fork_generation;
int eoslog_fork_guard(int fd);
void eoslog_fork_release(int fd);

/* The process's id, with a system call only at the first use in a process. */
int eoslog_pid(void);

/* One fdatasync of several (sync_pool.c): its file, its errno or 0, and the partition's words. A failure sets `poison` unless
 * the topic is deleted, before any other code runs: the next fdatasync would succeed in spite of the lost bytes. */
typedef struct { int fd, error; uint32_t *poison; const uint32_t *deleted; } eoslog_sync;
void eoslog_sync_all(eoslog_sync *syncs, int count);

uint64_t eoslog_monotonic_ns(void);
int eoslog_futex_wake(uint32_t *word, int count);
#endif
