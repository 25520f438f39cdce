# Partition: one partition as its writers see it; the Python face of partition_state.pxi and of the
# chapters that act on it: lock, roll, conditional append, recovery, producer entries.
#
# Each call takes the partition's mutex without the GIL: who holds it may be waiting for the GIL.
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer


@cython.final
cdef class Partition:
    """The state of one partition in this process, and its conditional append.

    Shared by threads (a mutex inside). Invariants:
    - `table` and `segment` are the fold of the log up to `next_offset`, never beyond the published end;
    - index entries are a function of the segment's bytes, so the counts here are the files' sizes;
    - only the append-lock holder looks at bytes above the published end.
    """
    cdef ControlFile control
    cdef PartitionState state
    cdef readonly int slot_number
    cdef bytes next_paths       # keeps the memory of state.prepared_paths

    def __cinit__(self, ControlFile control, int slot, int lock_fd, int64_t lock_at, str directory):
        cdef bytes raw = directory.encode("utf-8", "surrogateescape")
        if len(raw) > PATH_SIZE - 64:
            raise errors.StorageError("path too long", 36, directory)
        memcpy(self.state.directory, <const char*>raw, len(raw) + 1)
        table_init(&self.state.table)
        self.state.buffer = <uint8_t*>malloc(FOLD_BUFFER)
        if self.state.buffer == NULL:
            raise MemoryError()
        pthread_mutex_init(&self.state.mutex, NULL)
        self.control = control
        self.state.slot = control.slot(slot)
        self.state.shared = NULL
        self.state.lane = control.lane(slot)
        self.state.session = control.session_word()
        self.slot_number = slot
        self.state.lock_fd = lock_fd
        self.state.lock_at = lock_at
        self.state.files = SegmentFiles(-1, -1, -1, -1)
        self.state.next_files = self.state.files
        self.state.rolled_files = self.state.files
        self.configure()

    def __dealloc__(self):
        table_free(&self.state.table)
        free(self.state.buffer)
        free(self.state.rolled_entries)
        pthread_mutex_destroy(&self.state.mutex)

    def configure(self, *, int64_t segment_bytes=1 << 30, int64_t segment_ms=7 * 86400000,
                  int64_t index_interval_bytes=4096, int64_t segment_index_bytes=10485760, int32_t leader_epoch=0,
                  int64_t writeback_bytes=0):
        self.state.segment_size_max = segment_bytes
        self.state.segment_ms = segment_ms
        self.state.index_interval = index_interval_bytes
        take_interval(&self.state)
        self.state.index_entries_max = segment_index_bytes // OFFSET_ENTRY_SIZE
        self.state.time_entries_max = segment_index_bytes // TIME_ENTRY_SIZE - 1
        self.state.leader_epoch = leader_epoch
        self.state.writeback_bytes = writeback_bytes

    # --- published values -------------------------------------------------------------------

    cdef Slot* slot(self) except NULL:
        self.control.check()
        return published_slot(&self.state)

    @property
    def session(self):
        return atomic_load_u64(&self.slot().session)

    @property
    def log_end(self):
        return atomic_load_i64(&self.slot().log_end)

    @property
    def stable_end(self):
        return atomic_load_i64(&self.slot().stable_end)

    @property
    def log_start(self):
        return atomic_load_i64(&self.slot().log_start)

    @property
    def active_base(self):
        """Base offset of the segment that holds the log end (a hint without the lock)."""
        return atomic_load_i64(&self.slot().active_base)

    @property
    def end_position(self):
        """Byte of the log end in the segment `active_base`."""
        return atomic_load_i64(&self.slot().end_position)

    @property
    def durable_end(self):
        return atomic_load_i64(&self.slot().durable_end)

    @property
    def published_segments_version(self):
        return atomic_load_u32(&self.slot().segments_version)

    @property
    def segments_version(self):
        """The version of the segment list that the fold goes by."""
        return self.state.segments_version

    @property
    def cleaned_version(self):
        """Rises by two with each swap of cleaned segments; odd while one is under way."""
        return atomic_load_u32(&self.slot().cleaned_version)

    @property
    def cleaned_to(self):
        """Offset below which segments may have been replaced by cleaned ones in this session."""
        return atomic_load_i64(&self.slot().cleaned_to)

    @property
    def expire_below(self):
        """Producers whose last batch lies below this offset are forgotten."""
        return atomic_load_i64(&self.slot().expire_below)

    @property
    def deleted(self):
        cdef Slot* slot = self.slot()
        return atomic_load_u32(&(slot if self.state.shared == NULL else self.state.shared).deleted) != 0

    @property
    def poisoned(self):
        return atomic_load_u32(&self.slot().poison) != 0

    @property
    def flush_ns(self):
        return self.slot().flush_ns

    @property
    def next_offset(self):
        """The fold's position."""
        return self.state.next_offset

    @property
    def segment_base(self):
        return self.state.segment.base

    @property
    def segment_position(self):
        return self.state.segment.position

    # --- what Python prepares, without the lock -----------------------------------------------

    def load(self, int64_t base, bytes producers):
        """Start the fold at the base offset of a segment, from a snapshot's entries there."""
        take_mutex(&self.state)
        try:
            begin_fold(&self.state, base, producers)
        finally:
            pthread_mutex_unlock(&self.state.mutex)

    def use_segment(self, int64_t base, int log_fd, *, int64_t leaving=-1, bytes producers=None, int64_t version=-1):
        """Give the fold the log file of the segment that it enters (or is in). Offsets before its base
        that the fold has not met were cleaned away. Who appends needs the indexes too: `use_indexes`.

        With `producers`, a snapshot's entries at `base`, the fold begins anew there, in `version` of the list. With
        `leaving`, only a fold that is in that segment moves: another thread may have rolled meanwhile.

        Returns:
            (base that it was in, the descriptors that it had), which are the caller's now; None when
            nothing was changed.
        """
        cdef SegmentFiles old
        take_mutex(&self.state)
        try:
            if self.state.left or (leaving >= 0 and leaving != self.state.segment.base):
                return None
            old = self.state.files
            left = self.state.segment.base
            if producers is not None:
                begin_fold(&self.state, base, producers, version)
            elif base != left:
                enter_segment(&self.state.segment, base)
                self.state.next_offset = max(self.state.next_offset, base)
            self.state.files = SegmentFiles(log_fd, -1, -1, -1)
            self.state.buffer_size = 0
            return left, (old.log, old.index, old.time, old.txn)
        finally:
            pthread_mutex_unlock(&self.state.mutex)

    def use_indexes(self, int64_t base, int index_fd, int time_fd, int txn_fd):
        """Give the fold the indexes (-1: not this one) of the segment that it is in; False if it is in
        another one by now, or has one of them: the descriptors stay the caller's."""
        cdef bint taken
        take_mutex(&self.state)
        taken = (not self.state.left and self.state.segment.base == base
                 and take_indexes(&self.state.files, index_fd, time_fd, txn_fd))
        pthread_mutex_unlock(&self.state.mutex)
        return taken

    def prepare_roll(self, list fds, bytes paths):
        """Hand over made and synced files for the next segment (index, time index, log); paths = their
        NUL-ended names. What is taken is gone from the list."""
        take_mutex(&self.state)
        try:
            if prepare_next(&self.state, SegmentFiles(fds[2], fds[0], fds[1], -1), paths):
                self.next_paths = paths
                fds.clear()
        finally:
            pthread_mutex_unlock(&self.state.mutex)

    def take_prepared(self):
        """Give back the next segment's files, (descriptors, names): a roll that failed may have
        renamed some of them."""
        take_mutex(&self.state)
        try:
            if self.state.next_files.log < 0:
                return (), ()
            found = (self.state.next_files.log, self.state.next_files.index, self.state.next_files.time)
            self.state.next_files = SegmentFiles(-1, -1, -1, -1)
            return found, tuple(self.next_paths.split(b"\0")[:3])
        finally:
            pthread_mutex_unlock(&self.state.mutex)

    def take_rolled(self):
        """After a roll: (old base, new base, descriptors of the old, snapshot entries at the new
        base), once."""
        take_mutex(&self.state)
        try:
            return take_rolled(&self.state)
        finally:
            pthread_mutex_unlock(&self.state.mutex)

    def current_files(self):
        """(base, log, index, time index, abort index) that the fold is in; -1: none."""
        cdef SegmentFiles f
        cdef int64_t base
        take_mutex(&self.state)
        f = self.state.files
        base = self.state.segment.base
        pthread_mutex_unlock(&self.state.mutex)
        return base, f.log, f.index, f.time, f.txn

    def leave_files(self):
        """Give back the descriptors that the fold is in, (log, index, time index, abort index), for ever:
        who has this partition yet is answered GONE, and reads no file that has the number by then."""
        cdef SegmentFiles f
        take_mutex(&self.state)
        f = self.state.files
        self.state.files = SegmentFiles(-1, -1, -1, -1)
        self.state.left = True
        pthread_mutex_unlock(&self.state.mutex)
        return f.log, f.index, f.time, f.txn

    # --- fold ---------------------------------------------------------------------------------

    def fold(self):
        """Fold up to the published end; the status (0 there, 3 the next segment's files are needed).

        Raises:
            StorageError: the segment cannot be read.
        """
        cdef int rc, failed = 0
        self.control.check()
        with nogil:
            pthread_mutex_lock(&self.state.mutex)
            rc = catch_up(&self.state)
            if rc == IO_FAILED:
                failed = errno
            pthread_mutex_unlock(&self.state.mutex)
        if rc == IO_FAILED:
            raise errors.StorageError(
                f"cannot read segment {self.state.segment.base} at byte {self.state.segment.position}",
                failed, (<bytes>self.state.directory).decode())
        return rc

    def export_producers(self):
        """(offset, snapshot entries) of the fold's position."""
        take_mutex(&self.state)
        try:
            return self.state.next_offset, export_producers(&self.state.table)
        finally:
            pthread_mutex_unlock(&self.state.mutex)

    def producer(self, int64_t producer_id):
        """(epoch, last sequence, last timestamp, coordinator epoch, txn first offset, txn last
        offset), or None."""
        take_mutex(&self.state)
        try:
            return producer_of(&self.state.table, producer_id)
        finally:
            pthread_mutex_unlock(&self.state.mutex)

    def producer_ids(self):
        take_mutex(&self.state)
        try:
            return producer_ids_of(&self.state.table)
        finally:
            pthread_mutex_unlock(&self.state.mutex)

    def open_transactions(self):
        """(producer id, epoch, first offset, last data offset) in order of first offset."""
        take_mutex(&self.state)
        try:
            return open_transactions_of(&self.state.table)
        finally:
            pthread_mutex_unlock(&self.state.mutex)

    # --- append, roll, log start ------------------------------------------------------------------

    def append(self, data, bint client, expected, double timeout, int64_t size_max, int64_t log_append_time=-1):
        """Append whole batches under the partition's lock, if nothing in `expected` has moved.

        Args:
            data: buffer of complete v2 batches; offsets, leader epoch (and the time, with
                log_append_time >= 0 in ms) are stamped into it, or into a copy of what is read-only.
            client: check sequences and refuse control batches; False for coordinators.
            expected: (what has a Partition as its `core`, log end) each, at most 8.
            timeout: seconds to wait for the lock. size_max: bytes of the largest batch allowed.

        Returns:
            (status, base offset, last offset, timestamp in ms, errno, rolled). An errno beside APPENDED:
            it is published, but the disk refused to take it; the partition is poisoned.

        Raises:
            CorruptRecord, RecordTooLarge: the batches are not acceptable; nothing was written.
        """
        cdef Py_buffer view
        cdef FoldedBatch* headers = NULL
        cdef Expected expects[MAX_EXPECTED]
        cdef Result result
        cdef int count = 0, rc, n
        cdef uint64_t deadline
        self.control.check()
        n = take_expected(expected, expects)
        memset(&result, 0, sizeof(result))
        result.base_offset = -1
        result.last_offset = -1
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        if view.readonly:
            PyBuffer_Release(&view)
            PyObject_GetBuffer(bytearray(data), &view, PyBUF_WRITABLE)
        try:
            headers = read_headers(<uint8_t*>view.buf, view.len, client, size_max, log_append_time, &count)
            deadline = eoslog_monotonic_ns() + <uint64_t>(max(timeout, 0.0) * 1e9)
            with nogil:
                pthread_mutex_lock(&self.state.mutex)
                rc = append_locked(&self.state, <uint8_t*>view.buf, view.len, headers, count, client, expects, n, deadline, &result)
                if rc == IO_FAILED and result.saved_errno == 0:
                    result.saved_errno = errno
                pthread_mutex_unlock(&self.state.mutex)
        finally:
            free(headers)
            PyBuffer_Release(&view)
        return rc, result.base_offset, result.last_offset, result.timestamp, result.saved_errno, result.rolled

    def seal(self, double timeout):
        """Roll the active segment now unless it is empty; (status, errno)."""
        return self._change(SEAL, 0, 0, timeout)

    def advance_log_start(self, int64_t log_start, bint segments_changed, double timeout):
        """Publish a greater log start, and that segments go, under the lock; (status, errno)."""
        return self._change(ADVANCE, log_start, segments_changed, timeout)

    def mark_swap(self, bint begins, int64_t cleaned_to, double timeout):
        """Publish the begin or the end of a swap of sealed segments, under the lock; (status, errno)."""
        return self._change(SWAP, cleaned_to, begins, timeout)

    def expire_producers(self, int64_t below, int64_t before_ms, double timeout):
        """Publish who is forgotten from now on, under the lock; (status, errno). See `forgotten`."""
        return self._change(EXPIRE, below, before_ms, timeout)

    def gate(self):
        """This process writes nothing here any more (GONE); an append under way is waited for."""
        self._change(GATE, 0, 0, 0)

    cdef _change(self, Change what, int64_t first, int64_t second, double timeout):
        cdef int rc, failed = 0
        cdef uint64_t deadline = eoslog_monotonic_ns() + <uint64_t>(max(timeout, 0.0) * 1e9)
        self.control.check()
        with nogil:
            pthread_mutex_lock(&self.state.mutex)
            rc = change_locked(&self.state, what, first, second, deadline)
            if rc == IO_FAILED or rc == RELOAD:
                failed = errno
            pthread_mutex_unlock(&self.state.mutex)
        return rc, failed

    # --- durability -------------------------------------------------------------------------------

    @property
    def flush_counters(self):
        """What `await_flush` goes by: read before one looks whether somebody flushes."""
        self.control.check()
        return flush_counters(self.state.slot)

    def join_flush(self, int64_t target, double timeout):
        """Sleep as `await_flush` where a flush is under way; whether `target` is durable."""
        cdef Slot* slot = self.state.slot
        cdef uint64_t seen
        self.control.check()
        with nogil:
            seen = flush_counters(slot)
            if atomic_load_i64(&slot.durable_end) < target and round_under_way(slot):
                await_round(slot, target, seen, <int64_t>(max(timeout, 0.0) * 1e9))
        return atomic_load_i64(&slot.durable_end) >= target

    def await_flush(self, int64_t target, uint64_t counters, double timeout):
        """Sleep while others flush: until `target` is durable, it is this one's turn, or `timeout`
        (s) is over. Poison and deletion end it too."""
        self.control.check()
        with nogil:
            await_round(self.state.slot, target, counters, <int64_t>(max(timeout, 0.0) * 1e9))

    def begin_flush(self, int64_t target):
        """Under the flush lock: everything below `target` is served by the flush that begins."""
        self.control.check()
        begin_round(self.state.slot, target)

    def give_up_flush(self):
        """Under the flush lock: what was begun comes to nothing; who waits looks again."""
        self.control.check()
        give_up_round(self.state.slot)

    def pass_flush_on(self):
        """The flush lock is free again: let one who waits have it."""
        self.control.check()
        pass_on(self.state.slot)

    def publish_durable(self, int64_t target, uint64_t elapsed_ns):
        """Raise the durable end (never lowers it), remember what a flush costs, wake whom it serves."""
        self.control.check()
        self.state.slot.flush_ns = elapsed_ns if self.state.slot.flush_ns == 0 else (7 * self.state.slot.flush_ns + elapsed_ns) // 8
        atomic_max_i64(&self.state.slot.durable_end, target)
        wake_word(self.state.lane, EVERYBODY)
        end_round(self.state.slot)

    def sync(self, int fd):
        """Fdatasync; the partition is poisoned before anybody hears that it failed, a signal's
        handler included: the next one would succeed over what was lost (protocol.md row 7)."""
        cdef int rc, failed
        self.control.check()
        with nogil:
            rc = eoslog_os.fdatasync(fd)
            failed = errno
            if rc < 0 and not atomic_load_u32(&self.state.slot.deleted):
                atomic_store_u32(&self.state.slot.poison, 1)
        if rc < 0:
            raise OSError(failed, errno_text(failed))

    def poison(self):
        """No append and no acknowledgement in this partition any more, for any process."""
        self.control.check()
        atomic_store_u32(&self.state.slot.poison, 1)
        self.control.wake(self.slot_number)

    # --- session start ------------------------------------------------------------------------------

    def lock_for_recovery(self, double timeout):
        cdef int rc
        cdef uint64_t deadline = eoslog_monotonic_ns() + <uint64_t>(max(timeout, 0.0) * 1e9)
        self.control.check()
        with nogil:
            rc = lock_partition(&self.state, deadline)
        return rc

    def unlock_after_recovery(self):
        unlock_partition(&self.state)

    def scan_segment(self, int64_t end_position, bint verify):
        """Fold the segment in hand up to a byte position, with CRC and contiguity checked.

        Returns:
            (valid position, next offset, index bytes, time index bytes, abort index bytes, reason
            of the stop or None)
        """
        return scan_segment(&self.state, end_position, verify)

    def final_time_entry(self):
        """The entry that a sealed segment's time index ends with, or b"" (Kafka LogSegment.onBecomeInactiveSegment)."""
        return final_time_entry(&self.state.segment)

    def publish_recovered(self, bytes topic_id, int64_t log_start, int64_t durable_end,
                          int64_t expire_below=0, int64_t expire_before_ms=0):
        """Last step of recovery, under the lock: fill the slot, its session number last."""
        self.control.check()
        publish_recovered(&self.state, topic_id, log_start, durable_end, expire_below, expire_before_ms)

    def stand_apart(self):
        """For a reader whose writers have not recovered the partition: see `stand_apart`."""
        self.control.check()
        stand_apart(&self.state)

    def publish_apart(self, bytes topic_id, int64_t log_start):
        """Show what the fold found as bounds, to nobody else; False: writers were there first."""
        return self.slot() != NULL and publish_apart(&self.state, topic_id, log_start)
