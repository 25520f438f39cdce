/* Debug mode for the order of the locks; off, it costs a look at one word beside the system call. */
#ifndef EOSLOG_LOCK_DEBUG_H
#define EOSLOG_LOCK_DEBUG_H
#include <stdint.h>

enum {
    EOSLOG_LOCK_LEASE, EOSLOG_LOCK_CLEANER, EOSLOG_LOCK_BOOTSTRAP, EOSLOG_LOCK_APPEND, EOSLOG_LOCK_FLUSH, EOSLOG_LOCKS
};

/* Of the locks of a kind that this process has let go. */
typedef struct { uint64_t count, total_ns, longest_ns; } eoslog_lock_time;

extern volatile int eoslog_lock_debug;
/* Whether this thread may have many append locks: it waits for none of them for long, and then lets go of all. */
void eoslog_lock_allow_many(int many);
void eoslog_lock_debug_begin(void);
/* A call of the OS table is about to ask for a lock; it has taken or freed one. */
void eoslog_lock_asked(int fd, int type, int64_t at);
void eoslog_lock_changed(int fd, int type, int64_t at);
eoslog_lock_time eoslog_lock_times(int kind);
const char *eoslog_lock_name(int kind);
#endif
