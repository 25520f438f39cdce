# The state of one partition in one process, and the fold that keeps it up to date.
#
# The fold reads the headers of the batches that other processes have appended, and computes the
# producer state and the index entries from them. Functions here work on a C struct and need no GIL;
# `partition.pxi` makes them available to Python. The caller of each holds the partition's mutex.
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

cdef extern from "<unistd.h>" nogil:
    enum: SEEK_END
    int c_close "close"(int)
    int64_t c_lseek "lseek"(int, int64_t, int)

cdef extern from "<fcntl.h>" nogil:
    enum: O_RDWR, O_CREAT

from eoslog._core.hashes.crc32c cimport eoslog_crc32c

cdef enum:                      # statuses that `append` and `fold` return
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
    NEED_INDEXES = 13           # an append needs the index files of the fold's segment; a fold does not
    STALE = 14                  # an append failed, and no thread has reloaded the state since
    IO_FAILED = -1
    RELOAD = -2                 # the state is ahead of the log after a failed append: reload it
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

cdef struct SegmentDescriptors:
    int log, index, time, txn   # descriptors, -1: none

cdef struct PartitionState:
    Slot* slot
    Slot* shared                # the slot that `apart` replaces, for a reader; NULL: none
    Slot apart                  # private slot of a reader, see `stand_apart`
    WakeWord* lane
    uint64_t* session           # the directory's session number; a slot with another number is void
    ProducerTable table
    SegmentFold segment
    SegmentDescriptors files
    SegmentDescriptors next_files     # of the next segment, made ready by Python
    SegmentDescriptors rolled_files   # of the segment sealed last, until Python takes them
    int64_t rolled_base, rolled_to
    ProducerEntry* rolled_entries
    int32_t rolled_count, rolled_capacity
    int64_t next_offset
    uint32_t segments_version
    bint left                   # the files are closed, or will be: no reads and appends any more
    bint gated                  # a clean close of the directory has begun: no writes any more
    bint stale                  # ahead of the log, or partly loaded: not a basis for checks and repairs
    int lock_fd
    int64_t lock_at
    pthread_mutex_t mutex
    uint8_t* buffer
    int64_t buffer_at, buffer_size
    int64_t buffer_end          # offset from which on bytes were not published when they were read
    char[PATH_SIZE] directory
    const char* prepared_paths  # three NUL-ended names; Partition.next_paths keeps the memory
    int64_t writeback_bytes     # appended bytes after which a writeback starts; 0: left to the kernel
    int64_t writeback_segment, writeback_at
    int64_t carried_to, carried_base, carried_position   # end of the batches that were carried last
    int64_t segment_size_max, segment_ms, index_interval, index_entries_max, time_entries_max
    int32_t leader_epoch
    bint preallocates           # zeros follow the last batch, so that most appends keep the file's size
    int64_t file_size           # of the active log file; valid under the append lock


cdef void take_mutex(PartitionState* state) noexcept:
    """Lock the mutex. Wait for it without the GIL, because its owner may be waiting for the GIL."""
    if pthread_mutex_trylock(&state.mutex) != 0:
        with nogil:
            pthread_mutex_lock(&state.mutex)


cdef int segment_path(PartitionState* state, char* out, int64_t base, const char* suffix) noexcept nogil:
    return snprintf(out, NAME_SIZE, b"%s/%020lld%s", state.directory, <long long>base, suffix)


cdef void fold_batch(PartitionState* state, const FoldedBatch* b, int64_t position, Effects* e) noexcept nogil:
    """Apply one batch at `position` of the segment to the producer state, and fill `e` with its index
    entries. As in Kafka (LogSegment.append), a batch gets an offset index entry if more than the
    index interval was written since the last entry, not counting the batch itself."""
    cdef SegmentFold* s = &state.segment
    memset(e, 0, sizeof(Effects))
    e.aborted = fold_producer(&state.table, b, &e.entry)
    if e.aborted:
        s.aborted_count += 1
    if s.first_timestamp < 0:
        s.first_timestamp = b.max_timestamp
    if b.count > 0 and b.max_timestamp > s.max_timestamp:    # a batch emptied by compaction has no time
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
    """Read bytes of the segment from a position on. Batches below offset `end` are published."""
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
    """Fold the batches below offset `end`, which are published; at most `limit` batches, -1 for all.
    Returns APPENDED when the fold is at `end`, else NEXT_SEGMENT, FOLD_AGAIN (limit reached, or no
    memory), IO_FAILED or CORRUPT."""
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
        # Bytes read before they were published may be those of a writer that died. Read them again,
        # because another writer may have replaced them.
        if position < state.buffer_at or have < HEADER_SIZE or state.next_offset >= state.buffer_end:
            if fill_buffer(state, position, end) < 0:
                return IO_FAILED
            have = state.buffer_size
            if have == 0:
                return NEXT_SEGMENT
        p = state.buffer + (position - state.buffer_at)
        rc = parse_header(p, p + have, &b)
        if rc == -2 and state.buffer_at != position:
            state.buffer_size = 0             # the buffer ends within a marker: read from its start
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
    """Whether the published horizon of expired producers differs from the one the fold has applied."""
    return (atomic_load_i64(&state.slot.expire_below) != state.table.expire_below
            or atomic_load_i64(&state.slot.expire_before_ms) != state.table.expire_before_ms)


cdef void take_horizon(PartitionState* state) noexcept nogil:
    state.table.expire_below = atomic_load_i64(&state.slot.expire_below)
    state.table.expire_before_ms = atomic_load_i64(&state.slot.expire_before_ms)


cdef void take_interval(PartitionState* state) noexcept nogil:
    """Use the index interval of this session, even if the topic's setting has changed since."""
    cdef int64_t interval = atomic_load_i64(&state.slot.index_interval)
    if interval > 0 and atomic_load_u64(&state.slot.session) == atomic_load_u64(state.session):
        state.index_interval = interval


cdef int catch_up(PartitionState* state) noexcept nogil:
    """Fold up to the published end, and drop the producers that the published horizon expires.
    Returns the status of `fold_to`."""
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
    """Release the lock after an append that failed halfway. `busy` stays set, so that the next lock
    holder repairs the files. The state is marked stale, because another thread may lock the mutex
    before this one has reloaded it."""
    state.stale = True
    unlock_partition(state)
    return RELOAD


cdef inline void store_active(Slot* slot, int64_t base, int64_t position) noexcept nogil:
    """Publish the active segment. The order matters: readers, which take no lock, read the base, the
    position and then the base again."""
    atomic_store_i64(&slot.active_base, base)
    atomic_store_i64(&slot.end_position, position)


cdef void publish_end(PartitionState* state) noexcept nogil:
    """Publish the fold's position as the log end, and clear `busy`. The stable end follows the log
    end: for a moment it may be lower than it could be, and never higher than the log end."""
    store_active(state.slot, state.segment.base, state.segment.position)
    atomic_store_i64(&state.slot.log_end, state.next_offset)
    eoslog_os.point(POINT_LOG_END)
    atomic_store_i64(&state.slot.stable_end, first_unstable(&state.table, state.next_offset))
    atomic_store_u32(&state.slot.busy, 0)
    eoslog_os.point(POINT_PUBLISHED)
