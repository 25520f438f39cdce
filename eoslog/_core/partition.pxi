# One partition as its writers see it: fold, conditional append, repair.
#
# The locked part of an append is one nogil call (protocol.md, Append): lock, compare, fold the
# rest, judge, roll, write, index, publish, unlock. No Python, no malloc, no flush in it.
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdio cimport snprintf
from libc.string cimport strlen
from libc.errno cimport ENOENT

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_destroy(pthread_mutex_t*)
    int pthread_mutex_lock(pthread_mutex_t*)
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
    IO_FAILED = -1
    RELOAD = -2                 # own state is ahead of the log after a failed append: load it anew
    CORRUPT = -3

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

cdef struct SegmentFold:        # what the fold knows of the segment it is in
    int64_t base
    int64_t position            # byte after the last folded batch
    int64_t first_timestamp     # max timestamp of the first batch, -1: none yet
    int64_t max_timestamp
    int64_t max_timestamp_offset
    int64_t last_index_position
    int64_t last_time           # timestamp of the last time-index entry
    int64_t index_count, time_count, aborted_count

cdef struct Effects:            # index entries that one batch calls for
    bint indexed, timed, aborted
    int64_t position
    int32_t relative_offset
    int64_t timestamp
    int32_t timestamp_relative_offset
    AbortedEntry entry

cdef struct SegmentFiles:
    int log, index, time, txn   # descriptors, -1: none

cdef struct Expected:
    Slot* slot
    int64_t log_end

cdef struct Result:
    int64_t base_offset, last_offset, timestamp
    int saved_errno
    bint rolled


cdef void enter_segment(SegmentFold* s, int64_t base) noexcept nogil:
    memset(s, 0, sizeof(SegmentFold))
    s.base = base
    s.first_timestamp = -1
    s.max_timestamp = -1
    s.last_time = -1


cdef void store_index_entry(uint8_t* p, const Effects* e) noexcept nogil:
    store_i32(p, e.relative_offset)
    store_i32(p + 4, <int32_t>e.position)

cdef void store_time_entry(uint8_t* p, const Effects* e) noexcept nogil:
    store_i64(p, e.timestamp)
    store_i32(p + 8, e.timestamp_relative_offset)

cdef void store_aborted_entry(uint8_t* p, const AbortedEntry* e) noexcept nogil:
    store_i16(p, 0)
    store_i64(p + 2, e.producer_id)
    store_i64(p + 10, e.first_offset)
    store_i64(p + 18, e.last_offset)
    store_i64(p + 26, e.last_stable_offset)


@cython.final
cdef class Partition:
    """The state of one partition in this process, and its conditional append.

    Shared by threads (a mutex inside). Invariants:
    - `table` and `segment` are the fold of the log up to `next_offset`, never beyond the published end;
    - index entries are a function of the segment's bytes, so the counts here are the files' sizes;
    - only the append-lock holder looks at bytes above the published end.
    """
    cdef ControlFile control
    cdef Slot* slot
    cdef WakeLane* lane
    cdef readonly int slot_number
    cdef ProducerTable table
    cdef SegmentFold segment
    cdef SegmentFiles files
    cdef SegmentFiles next_files
    cdef SegmentFiles rolled_files
    cdef int64_t rolled_base, rolled_to
    cdef ProducerEntry* rolled_entries
    cdef int32_t rolled_count, rolled_capacity
    cdef readonly int64_t next_offset
    cdef uint32_t segments_version
    cdef int lock_fd
    cdef int64_t lock_at
    cdef pthread_mutex_t mutex
    cdef uint8_t* buffer
    cdef int64_t buffer_at, buffer_size
    cdef char[PATH_SIZE] directory
    cdef bytes next_paths       # keeps the memory of prepared_paths
    cdef const char* prepared_paths
    cdef int64_t segment_size_max, segment_ms, index_interval, index_entries_max, time_entries_max
    cdef int32_t leader_epoch

    def __cinit__(self, ControlFile control, int slot, int lock_fd, int64_t lock_at, str directory):
        cdef bytes raw = directory.encode("utf-8", "surrogateescape")
        if len(raw) > PATH_SIZE - 64:
            raise errors.StorageError("path too long", 36, directory)
        memcpy(self.directory, <const char*>raw, len(raw) + 1)
        table_init(&self.table)
        self.buffer = <uint8_t*>malloc(FOLD_BUFFER)
        if self.buffer == NULL:
            raise MemoryError()
        pthread_mutex_init(&self.mutex, NULL)
        self.control = control
        self.slot = control.slot(slot)
        self.lane = control.lane(slot)
        self.slot_number = slot
        self.lock_fd = lock_fd
        self.lock_at = lock_at
        self.files = SegmentFiles(-1, -1, -1, -1)
        self.next_files = self.files
        self.rolled_files = self.files
        self.configure()

    def __dealloc__(self):
        table_free(&self.table)
        free(self.buffer)
        free(self.rolled_entries)
        pthread_mutex_destroy(&self.mutex)

    def configure(self, *, int64_t segment_bytes=1 << 30, int64_t segment_ms=7 * 86400000,
                  int64_t index_interval_bytes=4096, int64_t segment_index_bytes=10485760, int32_t leader_epoch=0):
        self.segment_size_max = segment_bytes
        self.segment_ms = segment_ms
        self.index_interval = index_interval_bytes
        self.index_entries_max = segment_index_bytes // OFFSET_ENTRY_SIZE
        self.time_entries_max = segment_index_bytes // TIME_ENTRY_SIZE - 1
        self.leader_epoch = leader_epoch

    # --- published values -------------------------------------------------------------------

    @property
    def session(self):
        self.control.check()
        return atomic_load_u64(&self.slot.session)

    @property
    def log_end(self):
        self.control.check()
        return atomic_load_i64(&self.slot.log_end)

    @property
    def stable_end(self):
        self.control.check()
        return atomic_load_i64(&self.slot.stable_end)

    @property
    def log_start(self):
        self.control.check()
        return atomic_load_i64(&self.slot.log_start)

    @property
    def active_base(self):
        """Base offset of the segment that holds the log end (a hint without the lock)."""
        self.control.check()
        return atomic_load_i64(&self.slot.active_base)

    @property
    def durable_end(self):
        self.control.check()
        return atomic_load_i64(&self.slot.durable_end)

    @property
    def published_segments_version(self):
        self.control.check()
        return atomic_load_u32(&self.slot.segments_version)

    @property
    def deleted(self):
        self.control.check()
        return atomic_load_u32(&self.slot.deleted) != 0

    @property
    def poisoned(self):
        self.control.check()
        return atomic_load_u32(&self.slot.poison) != 0

    @property
    def flush_ns(self):
        return self.slot.flush_ns

    @property
    def segment_base(self):
        return self.segment.base

    @property
    def segment_position(self):
        return self.segment.position

    # --- what Python prepares, without the lock -----------------------------------------------

    def load(self, int64_t base, bytes producers):
        """Start the fold at the base offset of a segment, from a snapshot's entries there."""
        with nogil:                              # who holds the mutex may be waiting for the GIL
            pthread_mutex_lock(&self.mutex)
        try:
            table_free(&self.table)
            import_producers(&self.table, producers)
            self.next_offset = base
            enter_segment(&self.segment, base)
            self.buffer_size = 0
            self.segments_version = atomic_load_u32(&self.slot.segments_version)
        finally:
            pthread_mutex_unlock(&self.mutex)

    def use_segment(self, int64_t base, int log_fd, int index_fd, int time_fd, int txn_fd):
        """Give the fold the files of the segment that it enters (or is in). The descriptors that it
        had go back to the caller."""
        cdef SegmentFiles old
        with nogil:
            pthread_mutex_lock(&self.mutex)
        old = self.files
        if base != self.segment.base:
            enter_segment(&self.segment, base)
        self.files.log, self.files.index, self.files.time, self.files.txn = log_fd, index_fd, time_fd, txn_fd
        self.buffer_size = 0
        pthread_mutex_unlock(&self.mutex)
        return old.log, old.index, old.time, old.txn

    def use_txnindex(self, int txn_fd):
        with nogil:
            pthread_mutex_lock(&self.mutex)
        self.files.txn = txn_fd
        pthread_mutex_unlock(&self.mutex)

    def prepare_roll(self, int log_fd, int index_fd, int time_fd, bytes paths):
        """Hand over made and synced files for the next segment; paths = three NUL-ended names."""
        cdef ProducerEntry* grown
        with nogil:
            pthread_mutex_lock(&self.mutex)
        try:
            if self.next_files.log >= 0 or self.rolled_files.log >= 0:
                return False
            if self.rolled_capacity < self.table.count + 1024:
                grown = <ProducerEntry*>realloc(self.rolled_entries, (<size_t>self.table.count + 4096) * sizeof(ProducerEntry))
                if grown == NULL:
                    raise MemoryError()
                self.rolled_entries = grown
                self.rolled_capacity = self.table.count + 4096
            self.next_paths = paths
            self.prepared_paths = paths
            self.next_files = SegmentFiles(log_fd, index_fd, time_fd, -1)
            return True
        finally:
            pthread_mutex_unlock(&self.mutex)

    def take_rolled(self):
        """After a roll: (old base, new base, descriptors of the old, snapshot entries at the new
        base), once."""
        cdef ProducerTable view
        with nogil:
            pthread_mutex_lock(&self.mutex)
        try:
            if self.rolled_files.log < 0:
                return None
            memset(&view, 0, sizeof(view))
            view.entries = self.rolled_entries
            view.count = self.rolled_count
            f = self.rolled_files
            self.rolled_files = SegmentFiles(-1, -1, -1, -1)
            snapshot = export_producers(&view) if self.rolled_count >= 0 else None
            return self.rolled_base, self.rolled_to, (f.log, f.index, f.time, f.txn), snapshot
        finally:
            pthread_mutex_unlock(&self.mutex)

    def current_files(self):
        return self.segment.base, self.files.log, self.files.index, self.files.time, self.files.txn

    # --- fold ---------------------------------------------------------------------------------

    cdef void fold_one(self, const FoldedBatch* b, int64_t position, Effects* e) noexcept nogil:
        """Apply one batch at `position` of the segment: producer state, and what its indexes need.
        The rule of the offset index is Kafka's: an entry when more than the interval lies behind
        the last one, counted before the batch itself (kafka.md 2.2)."""
        cdef SegmentFold* s = &self.segment
        memset(e, 0, sizeof(Effects))
        e.aborted = fold_producer(&self.table, b, &e.entry)
        if e.aborted:
            s.aborted_count += 1
        if s.first_timestamp < 0:
            s.first_timestamp = b.max_timestamp
        if b.max_timestamp > s.max_timestamp:
            s.max_timestamp = b.max_timestamp
            s.max_timestamp_offset = b.last_offset
        if position - s.last_index_position > self.index_interval:
            e.indexed = True
            e.relative_offset = <int32_t>(b.last_offset - s.base)
            e.position = position
            s.last_index_position = position
            s.index_count += 1
            self.time_entry(e)
        s.position = position + b.size
        self.next_offset = b.last_offset + 1

    cdef void time_entry(self, Effects* e) noexcept nogil:
        cdef SegmentFold* s = &self.segment
        if s.max_timestamp > s.last_time:
            e.timed = True
            e.timestamp = s.max_timestamp
            e.timestamp_relative_offset = <int32_t>(s.max_timestamp_offset - s.base)
            s.last_time = s.max_timestamp
            s.time_count += 1

    cdef int fill(self, int64_t position) noexcept nogil:
        cdef ssize_t n
        while True:
            n = eoslog_os.pread(self.files.log, self.buffer, FOLD_BUFFER, position)
            if n >= 0:
                break
            if errno != EINTR:
                return IO_FAILED
        self.buffer_at = position
        self.buffer_size = n
        return 0

    cdef int fold_to(self, int64_t end, int64_t limit, bint may_grow) noexcept nogil:
        """Fold headers up to offset `end` (published). APPENDED when there, else NEXT_SEGMENT,
        FOLD_AGAIN (limit reached), IO_FAILED or CORRUPT."""
        cdef FoldedBatch b
        cdef Effects e
        cdef const uint8_t* p
        cdef int64_t position, have
        cdef int rc
        while self.next_offset < end:
            if limit == 0:
                return FOLD_AGAIN
            if self.files.log < 0:
                return NEXT_SEGMENT
            position = self.segment.position
            have = self.buffer_at + self.buffer_size - position
            if position < self.buffer_at or have < HEADER_SIZE:
                if self.fill(position) < 0:
                    return IO_FAILED
                have = self.buffer_size
                if have == 0:
                    return NEXT_SEGMENT
            p = self.buffer + (position - self.buffer_at)
            rc = parse_header(p, p + have, &b)
            if rc == -2 and self.buffer_at != position:
                self.buffer_size = 0             # a marker cut by the buffer's end: read it whole
                continue
            if rc != 1 or b.base_offset < self.next_offset:
                return CORRUPT
            if self.table.count == self.table.capacity:
                if not may_grow:
                    return FOLD_AGAIN
                if table_reserve(&self.table, 64) < 0:
                    return FOLD_AGAIN
            self.fold_one(&b, position, &e)
            limit -= 1
        return APPENDED

    def fold(self):
        """Fold up to the published end; the status (0 there, 3 the next segment's files are needed)."""
        cdef int rc
        self.control.check()
        with nogil:
            pthread_mutex_lock(&self.mutex)
            rc = self.fold_to(atomic_load_i64(&self.slot.log_end), -1, True)
            pthread_mutex_unlock(&self.mutex)
        return rc

    def export_producers(self):
        """(offset, snapshot entries) of the fold's position."""
        with nogil:
            pthread_mutex_lock(&self.mutex)
        try:
            return self.next_offset, export_producers(&self.table)
        finally:
            pthread_mutex_unlock(&self.mutex)

    def producer(self, int64_t producer_id):
        """(epoch, last sequence, last timestamp, coordinator epoch, txn first offset, txn last
        offset), or None."""
        cdef ProducerEntry* e
        cdef BatchMetadata* m
        with nogil:
            pthread_mutex_lock(&self.mutex)
        try:
            e = table_find(&self.table, producer_id)
            if e == NULL:
                return None
            m = last_batch(e)
            return (e.epoch, m.last_sequence if m != NULL else -1, e.last_timestamp,
                    e.coordinator_epoch, e.txn_first_offset, e.txn_last_offset)
        finally:
            pthread_mutex_unlock(&self.mutex)

    def producer_ids(self):
        with nogil:
            pthread_mutex_lock(&self.mutex)
        try:
            return [self.table.entries[i].producer_id for i in range(self.table.count)]
        finally:
            pthread_mutex_unlock(&self.mutex)

    def open_transactions(self):
        """(producer id, epoch, first offset, last data offset) in order of first offset."""
        cdef int32_t i
        out = []
        with nogil:
            pthread_mutex_lock(&self.mutex)
        try:
            i = self.table.first_open
            while i >= 0:
                e = &self.table.entries[i]
                out.append((e.producer_id, e.epoch, e.txn_first_offset, e.txn_last_offset))
                i = e.later
            return out
        finally:
            pthread_mutex_unlock(&self.mutex)

    # --- lock -----------------------------------------------------------------------------------

    cdef int lock(self, uint64_t deadline) noexcept nogil:
        cdef int64_t backoff = 5000
        while eoslog_os.lock(self.lock_fd, F_WRLCK, self.lock_at) < 0:
            if errno != EAGAIN and errno != EACCES:
                return IO_FAILED
            if eoslog_monotonic_ns() >= deadline:
                return LOCKED_OUT
            pause_ns(backoff)
            if backoff < 1000000:
                backoff *= 2
        self.slot.holder_since_ns = eoslog_monotonic_ns()
        self.slot.holder_pid = getpid()
        return 0

    cdef void unlock(self) noexcept nogil:
        self.slot.holder_pid = 0
        eoslog_os.lock(self.lock_fd, F_UNLCK, self.lock_at)

    cdef int name(self, char* out, int64_t base, const char* suffix) noexcept nogil:
        return snprintf(out, NAME_SIZE, b"%s/%020lld%s", self.directory, <long long>base, suffix)

    cdef int repair(self) noexcept nogil:
        """Under the lock, after a holder died in mid-append: cut log and indexes to the published
        end, drop a segment that it began, recompute the stable end (protocol.md row 9)."""
        cdef char path[NAME_SIZE]
        cdef SegmentFold* s = &self.segment
        cdef int rc
        if self.files.txn < 0:
            self.name(path, s.base, b".txnindex")
            self.files.txn = eoslog_os.open(path, O_RDWR, 0o600)
        if (eoslog_os.ftruncate(self.files.log, s.position) < 0
                or eoslog_os.ftruncate(self.files.index, s.index_count * OFFSET_ENTRY_SIZE) < 0
                or eoslog_os.ftruncate(self.files.time, s.time_count * TIME_ENTRY_SIZE) < 0):
            return IO_FAILED
        if self.files.txn >= 0 and eoslog_os.ftruncate(self.files.txn, s.aborted_count * ABORTED_ENTRY_SIZE) < 0:
            return IO_FAILED
        if self.next_offset != s.base:
            self.name(path, self.next_offset, b".log")
            eoslog_os.unlink(path)
            self.name(path, self.next_offset, b".index")
            eoslog_os.unlink(path)
            self.name(path, self.next_offset, b".timeindex")
            eoslog_os.unlink(path)
        self.slot.active_base = s.base
        self.slot.end_position = s.position
        atomic_store_i64(&self.slot.stable_end, first_unstable(&self.table, self.next_offset))
        atomic_store_u32(&self.slot.busy, 0)
        return 0

    cdef int enter(self, uint64_t deadline, const Expected* expected, int expected_count) noexcept nogil:
        """Steps 2 to 6 of an append: lock, check the slot, repair, compare, fold the rest. Unlocks
        again unless it returns APPENDED."""
        cdef stat_t st
        cdef int rc, i
        rc = self.lock(deadline)
        if rc != 0:
            return rc
        if atomic_load_u64(&self.slot.session) != atomic_load_u64(<uint64_t*>(self.control.chunks[0] + 16)):
            rc = VOID_SLOT
        elif atomic_load_u32(&self.slot.deleted):
            rc = GONE
        elif atomic_load_u32(&self.slot.poison):
            rc = POISONED
        elif atomic_load_u32(&self.slot.segments_version) != self.segments_version:
            rc = REOPEN
        else:
            for i in range(expected_count):
                if atomic_load_i64(&expected[i].slot.log_end) != expected[i].log_end:
                    rc = CHANGED
        if rc == 0:
            rc = self.fold_to(atomic_load_i64(&self.slot.log_end), FOLD_UNDER_LOCK, False)
        if rc == 0 and atomic_load_u32(&self.slot.busy):
            rc = self.repair()
        if rc == 0 and self.slot.active_base != self.segment.base:
            rc = NEXT_SEGMENT
        if rc == 0 and fstat(self.files.log, &st) < 0:
            rc = IO_FAILED
        if rc == 0 and st.st_size != self.segment.position:
            if st.st_size < self.segment.position:
                rc = CORRUPT                     # somebody cut published bytes
            elif eoslog_os.ftruncate(self.files.log, self.segment.position) < 0:
                rc = IO_FAILED
        if rc != 0:
            self.unlock()
        return rc

    cdef bint must_roll(self, int64_t size, int64_t max_timestamp, int64_t last_offset) noexcept nogil:
        cdef SegmentFold* s = &self.segment
        if s.position == 0:
            return False
        return (s.position > self.segment_size_max - size
                or (s.first_timestamp >= 0 and max_timestamp - s.first_timestamp > self.segment_ms)
                or s.index_count >= self.index_entries_max or s.time_count >= self.time_entries_max
                or last_offset - s.base > 0x7FFFFFFF)

    cdef int roll(self) noexcept nogil:
        """Under the lock and busy: seal the segment, put the prepared files in its place."""
        cdef char path[NAME_SIZE]
        cdef uint8_t entry[TIME_ENTRY_SIZE]
        cdef Effects e
        cdef const char* prepared = self.prepared_paths
        cdef int64_t time_count = self.segment.time_count
        memset(&e, 0, sizeof(e))
        self.time_entry(&e)
        if e.timed:
            store_time_entry(entry, &e)
            if eoslog_pwrite_all(self.files.time, entry, TIME_ENTRY_SIZE, time_count * TIME_ENTRY_SIZE) < 0:
                return IO_FAILED
        self.name(path, self.next_offset, b".index")
        if eoslog_os.rename(prepared, path) < 0:
            return IO_FAILED
        prepared += strlen(prepared) + 1
        self.name(path, self.next_offset, b".timeindex")
        if eoslog_os.rename(prepared, path) < 0:
            return IO_FAILED
        prepared += strlen(prepared) + 1
        self.name(path, self.next_offset, b".log")
        if eoslog_os.rename(prepared, path) < 0:
            return IO_FAILED
        if self.table.count <= self.rolled_capacity:
            memcpy(self.rolled_entries, self.table.entries, <size_t>self.table.count * sizeof(ProducerEntry))
            self.rolled_count = self.table.count
        else:
            self.rolled_count = -1               # no snapshot this time: the next open folds more
        self.rolled_files = self.files
        self.rolled_base = self.segment.base
        self.rolled_to = self.next_offset
        self.files = self.next_files
        self.next_files = SegmentFiles(-1, -1, -1, -1)
        enter_segment(&self.segment, self.next_offset)
        self.buffer_size = 0
        self.slot.active_base = self.segment.base
        self.slot.end_position = 0
        eoslog_os.point(POINT_ROLLED)
        return 0

    cdef int index_aborts(self, const FoldedBatch* headers, int count) noexcept nogil:
        """Under the lock, after a roll: the abort marker that made the log roll needs an abort
        index in the new segment; `judge` saw the old one. Recovery makes it again if it is lost."""
        cdef char path[NAME_SIZE]
        cdef int i
        for i in range(count):
            if headers[i].attributes & CONTROL_BIT and headers[i].control_type == CONTROL_ABORT and self.files.txn < 0:
                self.name(path, self.segment.base, b".txnindex")
                self.files.txn = eoslog_os.open(path, O_RDWR | O_CREAT, 0o600)
                if self.files.txn < 0:
                    return IO_FAILED
        return 0

    cdef int write_effects(self, const Effects* e) noexcept nogil:
        cdef uint8_t entry[ABORTED_ENTRY_SIZE]
        cdef SegmentFold* s = &self.segment
        if e.indexed:
            store_index_entry(entry, e)
            if eoslog_pwrite_all(self.files.index, entry, OFFSET_ENTRY_SIZE, (s.index_count - 1) * OFFSET_ENTRY_SIZE) < 0:
                return IO_FAILED
        if e.timed:
            store_time_entry(entry, e)
            if eoslog_pwrite_all(self.files.time, entry, TIME_ENTRY_SIZE, (s.time_count - 1) * TIME_ENTRY_SIZE) < 0:
                return IO_FAILED
        if e.aborted:
            store_aborted_entry(entry, &e.entry)
            if eoslog_pwrite_all(self.files.txn, entry, ABORTED_ENTRY_SIZE, (s.aborted_count - 1) * ABORTED_ENTRY_SIZE) < 0:
                return IO_FAILED
        return 0

    cdef int judge(self, const FoldedBatch* headers, int count, bint client, bint verified, Result* result) noexcept nogil:
        """All batches of one append against the state as it is; changes nothing."""
        cdef int i, rc
        cdef int64_t first = -1
        cdef ProducerEntry* entry
        if not client:
            for i in range(count):
                if headers[i].attributes & CONTROL_BIT:
                    rc = judge_marker(&self.table, &headers[i])
                    if rc != ACCEPT:
                        return rc
                    if headers[i].control_type == CONTROL_ABORT and self.files.txn < 0:
                        return NEED_TXNINDEX
                elif headers[i].producer_id >= 0:
                    entry = table_find(&self.table, headers[i].producer_id)
                    if entry != NULL and headers[i].producer_epoch < entry.epoch:
                        return INVALID_EPOCH
                    if entry != NULL and headers[i].producer_epoch > entry.epoch and entry.txn_first_offset >= 0:
                        return INVALID_TXN
            return APPENDED
        if headers[0].producer_id < 0:
            return APPENDED
        rc = judge_batch(&self.table, &headers[0], &first)
        if rc == DUPLICATE:
            result.base_offset = first
            result.last_offset = first + headers[0].last_offset_delta if first >= 0 else -1
            result.timestamp = headers[0].max_timestamp
            return REPEATED
        if rc != ACCEPT:
            return rc
        if headers[0].attributes & TRANSACTIONAL_BIT and not verified:
            entry = table_find(&self.table, headers[0].producer_id)
            if entry == NULL or entry.txn_first_offset < 0:
                return UNVERIFIED
        return APPENDED

    cdef int append_locked(self, uint8_t* data, int64_t size, FoldedBatch* headers, int count, bint client,
                           const Expected* expected, int expected_count, uint64_t deadline, Result* result) noexcept nogil:
        cdef Effects e
        cdef int64_t position, offset, max_timestamp = -1
        cdef uint8_t* p
        cdef int i, rc
        rc = self.fold_to(atomic_load_i64(&self.slot.log_end), -1, True)
        if rc != 0:
            return rc
        if table_reserve(&self.table, FOLD_UNDER_LOCK + count + 16) < 0:
            return FOLD_AGAIN
        rc = self.enter(deadline, expected, expected_count)
        if rc != 0:
            return rc
        rc = self.judge(headers, count, client, expected_count > 0, result)
        if rc != APPENDED:
            self.unlock()
            return rc
        offset = self.next_offset
        for i in range(count):
            if headers[i].max_timestamp > max_timestamp:
                max_timestamp = headers[i].max_timestamp
            offset += <int64_t>headers[i].last_offset_delta + 1
        if self.must_roll(size, max_timestamp, offset - 1):
            if self.next_files.log < 0:
                self.unlock()
                return ROLL
            result.rolled = True
        atomic_store_u32(&self.slot.busy, 1)
        eoslog_os.point(POINT_BUSY)
        if result.rolled and (self.roll() < 0 or self.index_aborts(headers, count) < 0):
            result.saved_errno = errno
            self.unlock()                        # busy stays: the next holder repairs
            return RELOAD
        result.base_offset = self.next_offset
        result.timestamp = max_timestamp
        offset = self.next_offset
        p = data
        for i in range(count):
            store_i64(p, offset)
            store_i32(p + LEADER_EPOCH_AT, self.leader_epoch)
            headers[i].base_offset = offset
            headers[i].last_offset = offset + headers[i].last_offset_delta
            offset = headers[i].last_offset + 1
            p += headers[i].size
        position = self.segment.position
        if eoslog_pwrite_all(self.files.log, data, <size_t>size, position) < 0:
            result.saved_errno = errno
            if not result.rolled and eoslog_os.ftruncate(self.files.log, position) == 0:
                atomic_store_u32(&self.slot.busy, 0)
                self.unlock()
                return IO_FAILED
            self.unlock()
            return RELOAD
        eoslog_os.point(POINT_WRITTEN)
        for i in range(count):
            self.fold_one(&headers[i], position, &e)
            position += headers[i].size
            if self.write_effects(&e) < 0:
                result.saved_errno = errno
                self.unlock()
                return RELOAD
        eoslog_os.point(POINT_INDEXED)
        result.last_offset = self.next_offset - 1
        self.publish()
        self.unlock()
        eoslog_os.point(POINT_UNLOCKED)
        wake_lane(self.lane)
        return APPENDED

    cdef void publish(self) noexcept nogil:
        self.slot.end_position = self.segment.position
        self.slot.active_base = self.segment.base
        atomic_store_i64(&self.slot.log_end, self.next_offset)
        eoslog_os.point(POINT_LOG_END)
        atomic_store_i64(&self.slot.stable_end, first_unstable(&self.table, self.next_offset))
        atomic_store_u32(&self.slot.busy, 0)
        eoslog_os.point(POINT_PUBLISHED)

    def append(self, data, bint client, list expected, double timeout, int64_t size_max, int64_t log_append_time=-1):
        """Append whole batches under the partition's lock, if nothing in `expected` has moved.

        Args:
            data: writable buffer of complete v2 batches; offsets, leader epoch (and the time, with
                log_append_time >= 0 in ms) are stamped into it.
            client: check sequences and refuse control batches; False for coordinators.
            expected: [(Partition, log end)], at most 8.
            timeout: seconds to wait for the lock. size_max: bytes of the largest batch allowed.

        Returns:
            (status, base offset, last offset, timestamp in ms, errno, rolled)

        Raises:
            CorruptRecord, RecordTooLarge: the batches are not acceptable; nothing was written.
        """
        cdef Py_buffer view
        cdef FoldedBatch* headers = NULL
        cdef Expected expects[MAX_EXPECTED]
        cdef Result result
        cdef int count = 0, rc, n = 0
        cdef uint64_t deadline
        cdef Partition other
        self.control.check()
        if len(expected) > MAX_EXPECTED:
            raise ValueError("too many expected log ends")
        for other, log_end in expected:
            expects[n].slot = other.slot
            expects[n].log_end = log_end
            n += 1
        memset(&result, 0, sizeof(result))
        result.base_offset = -1
        result.last_offset = -1
        PyObject_GetBuffer(data, &view, PyBUF_WRITABLE)
        try:
            headers = read_headers(<uint8_t*>view.buf, view.len, client, size_max, log_append_time, &count)
            deadline = eoslog_monotonic_ns() + <uint64_t>(max(timeout, 0.0) * 1e9)
            with nogil:
                pthread_mutex_lock(&self.mutex)
                rc = self.append_locked(<uint8_t*>view.buf, view.len, headers, count, client, expects, n, deadline, &result)
                if rc == IO_FAILED and result.saved_errno == 0:
                    result.saved_errno = errno
                pthread_mutex_unlock(&self.mutex)
        finally:
            free(headers)
            PyBuffer_Release(&view)
        return rc, result.base_offset, result.last_offset, result.timestamp, result.saved_errno, result.rolled

    def seal(self, double timeout):
        """Roll the active segment now unless it is empty; the status."""
        cdef int rc
        cdef uint64_t deadline = eoslog_monotonic_ns() + <uint64_t>(max(timeout, 0.0) * 1e9)
        self.control.check()
        with nogil:
            pthread_mutex_lock(&self.mutex)
            rc = self.fold_to(atomic_load_i64(&self.slot.log_end), -1, True)
            if rc == 0:
                rc = self.enter(deadline, NULL, 0)
            if rc == 0:
                if self.segment.position == 0:
                    self.unlock()
                elif self.next_files.log < 0:
                    self.unlock()
                    rc = ROLL
                else:
                    atomic_store_u32(&self.slot.busy, 1)
                    rc = self.roll()
                    if rc == 0:
                        self.publish()
                    else:
                        rc = RELOAD
                    self.unlock()
            pthread_mutex_unlock(&self.mutex)
        return rc

    def advance_log_start(self, int64_t log_start, bint segments_changed, double timeout):
        """Publish a greater log start, and that segments go, under the lock; the status."""
        cdef int rc
        cdef uint64_t deadline = eoslog_monotonic_ns() + <uint64_t>(max(timeout, 0.0) * 1e9)
        self.control.check()
        with nogil:
            pthread_mutex_lock(&self.mutex)
            rc = self.fold_to(atomic_load_i64(&self.slot.log_end), -1, True)
            if rc == 0:
                rc = self.enter(deadline, NULL, 0)
            if rc == 0:
                if log_start > self.slot.log_start:
                    atomic_store_i64(&self.slot.log_start, log_start)
                if segments_changed:
                    self.segments_version += 1
                    atomic_store_u32(&self.slot.segments_version, self.segments_version)
                self.unlock()
                wake_lane(self.lane)
            pthread_mutex_unlock(&self.mutex)
        return rc

    # --- durability -------------------------------------------------------------------------------

    def publish_durable(self, int64_t target, uint64_t elapsed_ns):
        """Raise the durable end (never lowers it), remember what a flush costs, wake who waits."""
        self.control.check()
        self.slot.flush_ns = elapsed_ns if self.slot.flush_ns == 0 else (7 * self.slot.flush_ns + elapsed_ns) // 8
        atomic_max_i64(&self.slot.durable_end, target)
        wake_lane(self.lane)

    def poison(self):
        """No append and no acknowledgement in this partition any more, for any process."""
        self.control.check()
        atomic_store_u32(&self.slot.poison, 1)
        wake_lane(self.lane)

    # --- session start ------------------------------------------------------------------------------

    def lock_for_recovery(self, double timeout):
        cdef int rc
        cdef uint64_t deadline = eoslog_monotonic_ns() + <uint64_t>(max(timeout, 0.0) * 1e9)
        self.control.check()
        with nogil:
            rc = self.lock(deadline)
        return rc

    def unlock_after_recovery(self):
        with nogil:
            self.unlock()

    def scan_segment(self, int64_t end_position, bint verify):
        """Fold the segment in hand up to a byte position, with CRC and contiguity checked.

        Returns:
            (valid position, next offset, index bytes, time index bytes, abort index bytes, reason
            of the stop or None)
        """
        cdef FoldedBatch b
        cdef Effects e
        cdef bytearray index = bytearray(), time = bytearray(), aborted = bytearray(), data
        cdef uint8_t entry[ABORTED_ENTRY_SIZE]
        cdef int64_t position = self.segment.position
        cdef uint8_t* p
        cdef int64_t size
        cdef int rc
        cdef uint32_t crc
        reason = None
        data = bytearray(1 << 20)
        cdef int64_t at = position, have = 0
        while position < end_position:
            if at + have - position < HEADER_SIZE and at + have < end_position:
                at = position
                have = self._load(data, position, end_position)
            p = <uint8_t*><char*>data + (position - at)
            rc = parse_header(p, p + (at + have - position), &b)
            if rc in (0, -1):
                reason = "cut short" if rc == 0 else "no batch header"
                break
            size = b.size
            if size > end_position - position:
                reason = f"batch of {size} bytes, {end_position - position} left"
                break
            if size > at + have - position:
                if size > len(data):
                    data = bytearray(size)
                at = position
                have = self._load(data, position, end_position)
                p = <uint8_t*><char*>data
                if have < size:
                    reason = "cut short"
                    break
                rc = parse_header(p, p + have, &b)
            if rc != 1:
                reason = "no valid control record"
                break
            if verify:
                with nogil:
                    crc = eoslog_crc32c(0, p + ATTRIBUTES_AT, <size_t>(size - ATTRIBUTES_AT))
                if crc != load_u32(p + CRC_AT):
                    reason = f"CRC {crc:#010x}, header says {load_u32(p + CRC_AT):#010x}"
                    break
            if b.base_offset < self.next_offset:
                reason = f"base offset {b.base_offset} below {self.next_offset}"
                break
            if b.last_offset - self.segment.base > 0x7FFFFFFF:
                reason = f"offset {b.last_offset} too far from base {self.segment.base}"
                break
            if table_reserve(&self.table, 16) < 0:
                raise MemoryError()
            self.fold_one(&b, position, &e)
            position += size
            if e.indexed:
                store_index_entry(entry, &e)
                index += (<char*>entry)[:OFFSET_ENTRY_SIZE]
            if e.timed:
                store_time_entry(entry, &e)
                time += (<char*>entry)[:TIME_ENTRY_SIZE]
            if e.aborted:
                store_aborted_entry(entry, &e.entry)
                aborted += (<char*>entry)[:ABORTED_ENTRY_SIZE]
        return position, self.next_offset, bytes(index), bytes(time), bytes(aborted), reason

    cdef int64_t _load(self, bytearray data, int64_t position, int64_t end) except -1:
        cdef int64_t size = min(<int64_t>len(data), end - position)
        cdef char* p = data
        cdef int rc
        with nogil:
            rc = eoslog_pread_all(self.files.log, p, <size_t>size, position)
        if rc < 0:
            raise errors.StorageError("cannot read the segment", errno, (<bytes>self.directory).decode())
        return size

    def final_time_entry(self):
        """The entry that a sealed segment's time index ends with, or b"" (kafka.md 2.3)."""
        cdef Effects e
        cdef uint8_t entry[TIME_ENTRY_SIZE]
        memset(&e, 0, sizeof(e))
        self.time_entry(&e)
        if not e.timed:
            return b""
        store_time_entry(entry, &e)
        return bytes((<char*>entry)[:TIME_ENTRY_SIZE])

    def publish_recovered(self, bytes topic_id, int64_t log_start, int64_t durable_end):
        """Last step of recovery, under the lock: fill the slot, its session number last."""
        self.control.check()
        memcpy(self.slot.topic_id, <const char*>topic_id, 16)
        self.slot.deleted = 0
        self.slot.poison = 0
        self.slot.segments_version = 1
        self.slot.cleaned_version = 0
        self.slot.cleaned_to = 0
        self.slot.expire_below = 0
        self.slot.log_start = log_start
        self.slot.durable_end = durable_end
        self.segments_version = 1
        self.publish()
        atomic_store_u64(&self.slot.session, self.control.session)


cdef FoldedBatch* read_headers(uint8_t* data, Py_ssize_t size, bint client, int64_t size_max,
                               int64_t log_append_time, int* count) except NULL:
    """Check the batches of one append and return their headers (the caller frees them)."""
    cdef uint8_t* p = data
    cdef uint8_t* end = data + size
    cdef int capacity = 16, n = 0, rc
    cdef FoldedBatch* headers = <FoldedBatch*>malloc(capacity * sizeof(FoldedBatch))
    cdef FoldedBatch* grown
    cdef uint32_t crc
    cdef FoldedBatch* b
    if headers == NULL:
        raise MemoryError()
    try:
        while p < end:
            if n == capacity:
                capacity *= 2
                grown = <FoldedBatch*>realloc(headers, capacity * sizeof(FoldedBatch))
                if grown == NULL:
                    raise MemoryError()
                headers = grown
            b = &headers[n]
            rc = parse_header(p, end, b)
            if rc != 1 or b.size > end - p:
                raise errors.CorruptRecord(f"batch {n}: no complete v2 batch at byte {p - data} of {size}")
            if b.size > size_max:
                raise errors.RecordTooLarge(f"batch of {b.size} bytes, max.message.bytes is {size_max}")
            crc = eoslog_crc32c(0, p + ATTRIBUTES_AT, <size_t>(b.size - ATTRIBUTES_AT))
            if crc != load_u32(p + CRC_AT):
                raise errors.CorruptRecord(f"batch {n}: CRC is {crc:#010x}, header says {load_u32(p + CRC_AT):#010x}")
            if client:
                if b.attributes & CONTROL_BIT:
                    raise errors.CorruptRecord(f"batch {n}: clients may not write control batches")
                if b.count <= 0 or b.last_offset_delta + 1 != b.count:
                    raise errors.CorruptRecord(f"batch {n}: {b.count} records, last offset delta {b.last_offset_delta}")
                if b.producer_id >= 0 and (b.base_sequence < 0 or b.producer_epoch < 0):
                    raise errors.CorruptRecord(f"batch {n}: producer {b.producer_id} with sequence {b.base_sequence}, epoch {b.producer_epoch}")
                if n and (b.producer_id != headers[0].producer_id or b.producer_epoch != headers[0].producer_epoch
                          or (b.producer_id >= 0 and b.base_sequence != sequence_add(headers[n - 1].last_sequence, 1))
                          or (b.attributes ^ headers[0].attributes) & TRANSACTIONAL_BIT):
                    raise errors.CorruptRecord(f"batch {n}: the batches of one append must continue each other")
            if log_append_time >= 0 and not b.attributes & CONTROL_BIT:
                store_i16(p + ATTRIBUTES_AT, b.attributes | LOG_APPEND_TIME_BIT)
                store_i64(p + MAX_TIMESTAMP_AT, log_append_time)
                b.attributes |= LOG_APPEND_TIME_BIT
                b.max_timestamp = log_append_time
                store_i32(p + CRC_AT, <int32_t>eoslog_crc32c(0, p + ATTRIBUTES_AT, <size_t>(b.size - ATTRIBUTES_AT)))
            p += b.size
            n += 1
        if n == 0:
            raise errors.CorruptRecord("no batch to append")
    except BaseException:
        free(headers)
        raise
    count[0] = n
    return headers


STATUS = {
    "APPENDED": APPENDED, "CHANGED": CHANGED, "ROLL": ROLL, "NEXT_SEGMENT": NEXT_SEGMENT,
    "FOLD_AGAIN": FOLD_AGAIN, "NEED_TXNINDEX": NEED_TXNINDEX, "REPEATED": REPEATED,
    "LOCKED_OUT": LOCKED_OUT, "VOID_SLOT": VOID_SLOT, "GONE": GONE, "POISONED": POISONED,
    "REOPEN": REOPEN, "UNVERIFIED": UNVERIFIED, "IO_FAILED": IO_FAILED, "RELOAD": RELOAD,
    "CORRUPT": CORRUPT,
}
