# The state of one partition in one process, and its fold over what others append.
#
# Functions over a C struct, without the interpreter; `partition.pxi` is their Python face. Whoever
# calls one holds the partition's mutex.
from libc.stdio cimport snprintf
from libc.string cimport strlen
from libc.errno cimport ENOENT

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_destroy(pthread_mutex_t*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_trylock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)

cdef extern from "<sys/stat.h>" nogil:
    struct stat_t "stat":
        int64_t st_size
    int fstat(int, stat_t*)

cdef extern from "<unistd.h>" nogil:
    int c_close "close"(int)
    int getpid()

cdef extern from "<fcntl.h>" nogil:
    enum: O_RDWR, O_CREAT

from eoslog._core.crc32c cimport eoslog_crc32c

cdef enum:                      # what `append` and `fold` answer
    APPENDED = 0
    CHANGED = 1                 # an expected log end has moved
    ROLL = 2                    # files of the next segment must be made ready first
    NEXT_SEGMENT = 3            # the fold needs the files of a later segment
    FOLD_AGAIN = 4              # too much to fold under the lock
    NEED_TXNINDEX = 5
    REPEATED = 6                # duplicate: the batch is in the log already
    LOCKED_OUT = 7
    VOID_SLOT = 8
    GONE = 9                    # topic deleted
    POISONED = 10
    REOPEN = 11                 # segments were deleted or swapped
    UNVERIFIED = 12             # first transactional batch without an expected coordinator log end
    NEED_INDEXES = 13           # of the segment that the fold is in: a fold alone does without
    STALE = 14                  # an append failed, and nobody has loaded the state anew since
    IO_FAILED = -1
    RELOAD = -2                 # own state is ahead of the log after a failed append: load it anew
    CORRUPT = -3

STATUS = {
    "APPENDED": APPENDED, "CHANGED": CHANGED, "ROLL": ROLL, "NEXT_SEGMENT": NEXT_SEGMENT,
    "FOLD_AGAIN": FOLD_AGAIN, "NEED_TXNINDEX": NEED_TXNINDEX, "REPEATED": REPEATED,
    "LOCKED_OUT": LOCKED_OUT, "VOID_SLOT": VOID_SLOT, "GONE": GONE, "POISONED": POISONED,
    "REOPEN": REOPEN, "UNVERIFIED": UNVERIFIED, "NEED_INDEXES": NEED_INDEXES, "STALE": STALE,
    "IO_FAILED": IO_FAILED, "RELOAD": RELOAD, "CORRUPT": CORRUPT,
}

cdef enum:
    FOLD_BUFFER = 65536
    FOLD_UNDER_LOCK = 256       # batches
    MAX_EXPECTED = 8
    PATH_SIZE = 4096            # of a directory's path
    NAME_SIZE = 4160            # of a file's path in it

cdef enum:                      # points between the stores of an append, for fault injection
    POINT_BUSY = 1
    POINT_ROLLED = 2
    POINT_WRITTEN = 3
    POINT_INDEXED = 4
    POINT_LOG_END = 5
    POINT_PUBLISHED = 6
    POINT_UNLOCKED = 7

cdef struct SegmentFiles:
    int log, index, time, txn   # descriptors, -1: none

cdef struct PartitionState:
    Slot* slot
    Slot* shared                # a reader's: the slot that `apart` stands for; NULL: none
    Slot apart                  # see `stand_apart`
    WakeWord* lane
    uint64_t* session           # the directory's session number; a slot of another one is void
    ProducerTable table
    SegmentFold segment
    SegmentFiles files
    SegmentFiles next_files     # of the next segment, made ready by Python
    SegmentFiles rolled_files   # of the segment sealed last, until Python takes them
    int64_t rolled_base, rolled_to
    ProducerEntry* rolled_entries
    int32_t rolled_count, rolled_capacity
    int64_t next_offset
    uint32_t segments_version
    bint left                   # its files are closed, or will be: nobody reads or appends here
    bint gated                  # the directory is being closed clean: nothing is written here any more
    bint stale                  # ahead of the log, or half loaded: nobody judges or repairs by it
    int lock_fd
    int64_t lock_at
    pthread_mutex_t mutex
    uint8_t* buffer
    int64_t buffer_at, buffer_size
    int64_t buffer_end          # offset: what lies at it or behind was not published when it was read
    char[PATH_SIZE] directory
    const char* prepared_paths  # three NUL-ended names; Partition.next_paths keeps the memory
    int64_t writeback_bytes     # appended since the last begin of a writeback; 0: the kernel's time will do
    int64_t writeback_segment, writeback_at
    int64_t segment_size_max, segment_ms, index_interval, index_entries_max, time_entries_max
    int32_t leader_epoch


cdef void take_mutex(PartitionState* state) noexcept:
    """Where it has to be waited for, without the GIL: who holds the mutex may be waiting for that."""
    if pthread_mutex_trylock(&state.mutex) != 0:
        with nogil:
            pthread_mutex_lock(&state.mutex)


cdef int segment_path(PartitionState* state, char* out, int64_t base, const char* suffix) noexcept nogil:
    return snprintf(out, NAME_SIZE, b"%s/%020lld%s", state.directory, <long long>base, suffix)


cdef void fold_batch(PartitionState* state, const FoldedBatch* b, int64_t position, Effects* e) noexcept nogil:
    """Apply one batch at `position` of the segment: producer state, and what its indexes need.
    The rule of the offset index is Kafka's: an entry when more than the interval lies behind
    the last one, counted before the batch itself (Kafka LogSegment.append)."""
    cdef SegmentFold* s = &state.segment
    memset(e, 0, sizeof(Effects))
    e.aborted = fold_producer(&state.table, b, &e.entry)
    if e.aborted:
        s.aborted_count += 1
    if s.first_timestamp < 0:
        s.first_timestamp = b.max_timestamp
    if b.count > 0 and b.max_timestamp > s.max_timestamp:    # what a cleaning emptied has no time
        s.max_timestamp = b.max_timestamp
        s.max_timestamp_offset = b.last_offset
    if position - s.last_index_position > state.index_interval:
        e.indexed = True
        e.relative_offset = <int32_t>(b.last_offset - s.base)
        e.position = position
        s.last_index_position = position
        s.index_count += 1
        time_entry(s, e)
    s.position = position + b.size
    state.next_offset = b.last_offset + 1


cdef int fill_buffer(PartitionState* state, int64_t position, int64_t end) noexcept nogil:
    """Read the segment's bytes from a position on; batches up to offset `end` are published."""
    cdef ssize_t n
    while True:
        n = eoslog_os.pread(state.files.log, state.buffer, FOLD_BUFFER, position)
        if n >= 0:
            break
        if errno != EINTR:
            return IO_FAILED
    state.buffer_at = position
    state.buffer_size = n
    state.buffer_end = end
    return 0


cdef int fold_to(PartitionState* state, int64_t end, int64_t limit, bint may_grow) noexcept nogil:
    """Fold headers up to offset `end` (published). APPENDED when there, else NEXT_SEGMENT,
    FOLD_AGAIN (limit reached), IO_FAILED or CORRUPT."""
    cdef FoldedBatch b
    cdef Effects e
    cdef const uint8_t* p
    cdef int64_t position, have
    cdef int rc
    while state.next_offset < end:
        if limit == 0:
            return FOLD_AGAIN
        if state.files.log < 0:
            return NEXT_SEGMENT
        position = state.segment.position
        have = state.buffer_at + state.buffer_size - position
        # Bytes that were not published yet may have been a dead writer's: others may be there now.
        if position < state.buffer_at or have < HEADER_SIZE or state.next_offset >= state.buffer_end:
            if fill_buffer(state, position, end) < 0:
                return IO_FAILED
            have = state.buffer_size
            if have == 0:
                return NEXT_SEGMENT
        p = state.buffer + (position - state.buffer_at)
        rc = parse_header(p, p + have, &b)
        if rc == -2 and state.buffer_at != position:
            state.buffer_size = 0             # a marker cut by the buffer's end: read it whole
            continue
        if rc != 1 or b.base_offset < state.next_offset:
            return CORRUPT
        if state.table.count == state.table.capacity:
            if not may_grow:
                return FOLD_AGAIN
            if table_reserve(&state.table, 64) < 0:
                return FOLD_AGAIN
        fold_batch(state, &b, position, &e)
        limit -= 1
    return APPENDED


cdef inline bint horizon_moved(const PartitionState* state) noexcept nogil:
    """Whether other producers are to be forgotten than the fold has forgotten."""
    return (atomic_load_i64(&state.slot.expire_below) != state.table.expire_below
            or atomic_load_i64(&state.slot.expire_before_ms) != state.table.expire_before_ms)


cdef void take_horizon(PartitionState* state) noexcept nogil:
    state.table.expire_below = atomic_load_i64(&state.slot.expire_below)
    state.table.expire_before_ms = atomic_load_i64(&state.slot.expire_before_ms)


cdef void take_interval(PartitionState* state) noexcept nogil:
    """Index as everybody does in this session, whatever the topic's setting is by now."""
    cdef int64_t interval = atomic_load_i64(&state.slot.index_interval)
    if interval > 0 and atomic_load_u64(&state.slot.session) == atomic_load_u64(state.session):
        state.index_interval = interval


cdef int catch_up(PartitionState* state) noexcept nogil:
    """Fold up to the published end, and forget whom the published horizon lets go; as `fold_to`."""
    cdef int rc
    if state.left:
        return GONE
    if state.stale:
        return STALE
    rc = fold_to(state, atomic_load_i64(&state.slot.log_end), -1, True)
    if rc == APPENDED and horizon_moved(state):
        take_horizon(state)
        table_forget(&state.table)
    return rc


cdef int must_reload(PartitionState* state) noexcept nogil:
    """After an append that failed halfway; `busy` stays: the next holder repairs. Another thread may
    have the mutex before this one has loaded the state anew."""
    state.stale = True
    unlock_partition(state)
    return RELOAD


cdef inline void store_active(Slot* slot, int64_t base, int64_t position) noexcept nogil:
    """In this order: readers, without the lock, ask for the base, the position, and the base again."""
    atomic_store_i64(&slot.active_base, base)
    atomic_store_i64(&slot.end_position, position)


cdef void publish_end(PartitionState* state) noexcept nogil:
    store_active(state.slot, state.segment.base, state.segment.position)
    atomic_store_i64(&state.slot.log_end, state.next_offset)
    eoslog_os.point(POINT_LOG_END)
    atomic_store_i64(&state.slot.stable_end, first_unstable(&state.table, state.next_offset))
    atomic_store_u32(&state.slot.busy, 0)
    eoslog_os.point(POINT_PUBLISHED)
