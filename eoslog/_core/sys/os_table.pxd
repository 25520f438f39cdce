# The OS-call table (os_table.h): every storage call of the core goes through it.
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from "os_table.h" nogil:
    enum:
        EOSLOG_OPEN, EOSLOG_PREAD, EOSLOG_PWRITE, EOSLOG_FDATASYNC, EOSLOG_FSYNC
        EOSLOG_FTRUNCATE, EOSLOG_RENAME, EOSLOG_UNLINK, EOSLOG_LOCK, EOSLOG_POINT
        EOSLOG_MKDIR, EOSLOG_RMDIR, EOSLOG_WRITEBACK
    ctypedef struct eoslog_os_table:
        int (*open)(const char*, int, int) noexcept nogil
        ssize_t (*pread)(int, void*, size_t, int64_t) noexcept nogil
        ssize_t (*pwrite)(int, const void*, size_t, int64_t) noexcept nogil
        int (*fdatasync)(int) noexcept nogil
        int (*fsync)(int) noexcept nogil
        int (*ftruncate)(int, int64_t) noexcept nogil
        int (*rename)(const char*, const char*) noexcept nogil
        int (*unlink)(const char*) noexcept nogil
        int (*lock)(int, int, int64_t) noexcept nogil
        void (*point)(int) noexcept nogil
        int (*mkdir)(const char*, int) noexcept nogil
        int (*rmdir)(const char*) noexcept nogil
        int (*writeback)(int, int64_t, int64_t) noexcept nogil
        int (*forget)(int) noexcept nogil
        void* (*map)(int, int64_t, size_t, int) noexcept nogil
        int64_t (*clock_ns)(int) noexcept nogil
        int (*wait)(uint32_t**, const uint32_t*, int, int64_t) noexcept nogil
    eoslog_os_table eoslog_os
    void eoslog_fault_arm(int kind, int64_t nth, int error)
    void eoslog_fault_disarm()
    int64_t eoslog_fault_count(int kind, int reset)
    int eoslog_pwrite_all(int fd, const void* data, size_t size, int64_t position)
    int eoslog_pread_all(int fd, void* data, size_t size, int64_t position)
    uint32_t eoslog_fork_generation
    int eoslog_fork_guard(int fd)
    void eoslog_fork_release(int fd)
    int eoslog_pid()
    ctypedef struct eoslog_sync:
        int fd, error
        uint32_t* poison
        const uint32_t* deleted
    void eoslog_sync_all(eoslog_sync*, int)
    uint64_t eoslog_monotonic_ns()
    int eoslog_futex_wake(uint32_t* word, int count)

cdef extern from "lock_debug.h" nogil:
    enum:
        EOSLOG_LOCKS
    ctypedef struct eoslog_lock_time:
        uint64_t count, total_ns, longest_ns
    void eoslog_lock_allow_many(int many)
    void eoslog_lock_debug_begin()
    eoslog_lock_time eoslog_lock_times(int kind)
    const char* eoslog_lock_name(int kind)

cdef extern from *:
    """
    #define atomic_load_i64(p)      __atomic_load_n((p), __ATOMIC_ACQUIRE)
    #define atomic_store_i64(p, v)  __atomic_store_n((p), (v), __ATOMIC_RELEASE)
    #define atomic_load_u64(p)      __atomic_load_n((p), __ATOMIC_ACQUIRE)
    #define atomic_store_u64(p, v)  __atomic_store_n((p), (v), __ATOMIC_RELEASE)
    #define atomic_load_u32(p)      __atomic_load_n((p), __ATOMIC_ACQUIRE)
    #define atomic_store_u32(p, v)  __atomic_store_n((p), (v), __ATOMIC_RELEASE)
    #define atomic_add_u32(p, v)    __atomic_add_fetch((p), (v), __ATOMIC_SEQ_CST)
    static inline void atomic_max_i64(int64_t *p, int64_t v) {
        int64_t seen = __atomic_load_n(p, __ATOMIC_ACQUIRE);
        while (seen < v && !__atomic_compare_exchange_n(p, &seen, v, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {}
    }
    """
    int64_t atomic_load_i64(int64_t* p) noexcept nogil
    void atomic_store_i64(int64_t* p, int64_t v) noexcept nogil
    uint64_t atomic_load_u64(uint64_t* p) noexcept nogil
    void atomic_store_u64(uint64_t* p, uint64_t v) noexcept nogil
    uint32_t atomic_load_u32(uint32_t* p) noexcept nogil
    void atomic_store_u32(uint32_t* p, uint32_t v) noexcept nogil
    uint32_t atomic_add_u32(uint32_t* p, uint32_t v) noexcept nogil
    void atomic_max_i64(int64_t* p, int64_t v) noexcept nogil
