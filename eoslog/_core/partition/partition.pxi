# Partition: the Python class around partition_state.pxi and the modules that change that state: lock,
# roll, conditional append, recovery and producer entries.
#
# Each method waits for the partition's mutex without the GIL, because its owner may wait for the GIL.
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer


@cython.final
cdef class Partition:
    """The state of one partition in this process, and its conditional append.

    Thread-safe. Invariants:
    - `table` and `segment` are the fold of the log up to `next_offset`, never beyond the published end;
    - index entries are a function of the segment's bytes, so the counts here give the files' sizes;
    - only the append-lock holder reads bytes above the published end.
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
        self.state.files = SegmentDescriptors(-1, -1, -1, -1)
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
                  int64_t writeback_bytes=0, bint preallocates=False):
        self.state.segment_size_max = segment_bytes
        self.state.segment_ms = segment_ms
        self.state.index_interval = index_interval_bytes
        take_interval(&self.state)
        self.state.index_entries_max = segment_index_bytes // OFFSET_ENTRY_SIZE
        self.state.time_entries_max = segment_index_bytes // TIME_ENTRY_SIZE - 1
        self.state.leader_epoch = leader_epoch
        self.state.writeback_bytes = writeback_bytes
        self.state.preallocates = preallocates

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
        """The base offset of the segment that contains the log end (a hint unless the lock is held)."""
        return atomic_load_i64(&self.slot().active_base)

    @property
    def end_position(self):
        """The byte position of the log end in the segment `active_base`."""
        return atomic_load_i64(&self.slot().end_position)

    @property
    def durable_end(self):
        return atomic_load_i64(&self.slot().durable_end)

    @property
    def covered_end(self):
        """The offset below which every record survives a power loss: in the partition's own files, or carried
        by a durable decision. Both ends only rise, so the order of the loads does not matter."""
        cdef Slot* slot = self.slot()
        return max(atomic_load_i64(&slot.carried_end), atomic_load_i64(&slot.durable_end))

    @property
    def published_segments_version(self):
        return atomic_load_u32(&self.slot().segments_version)

    @property
    def segments_version(self):
        """The version of the segment list that the fold uses."""
        return self.state.segments_version

    @property
    def cleaned_version(self):
        """A number that rises by two with each swap of cleaned segments; odd during a swap."""
        return atomic_load_u32(&self.slot().cleaned_version)

    @property
    def cleaned_to(self):
        """The offset below which this session may have replaced segments by cleaned ones."""
        return atomic_load_i64(&self.slot().cleaned_to)

    @property
    def expire_below(self):
        """The offset below which a producer's last batch makes the producer expired."""
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
        """Start the fold at the base offset of a segment, from the entries of a snapshot at that offset."""
        take_mutex(&self.state)
        try:
            begin_fold(&self.state, base, producers)
        finally:
            pthread_mutex_unlock(&self.state.mutex)

    def use_segment(self, int64_t base, int log_fd, *, int64_t leaving=-1, bytes producers=None, int64_t version=-1):
        """Give the fold the log file of the segment that it is in, or enters. Offsets before its base that
        the fold has not seen were removed by compaction. For appends, give it the indexes too (`use_indexes`).

        Args:
            producers: a snapshot's entries at `base`; the fold restarts there, with `version` of the list.
            leaving: move the fold only if it is in this segment: another thread may have rolled.

        Returns:
            (previous base, previous descriptors), owned by the caller now; None if nothing was changed.
        """
        cdef SegmentDescriptors old
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
            self.state.files = SegmentDescriptors(log_fd, -1, -1, -1)
            self.state.buffer_size = 0
            return left, (old.log, old.index, old.time, old.txn)
        finally:
            pthread_mutex_unlock(&self.state.mutex)

    def use_indexes(self, int64_t base, int index_fd, int time_fd, int txn_fd):
        """Give the fold index files (-1: not this one) of the segment that it is in. Returns False, and
        leaves the descriptors to the caller, if the fold is in another segment or has one of them."""
        cdef bint taken
        take_mutex(&self.state)
        taken = (not self.state.left and self.state.segment.base == base
                 and take_indexes(&self.state.files, index_fd, time_fd, txn_fd))
        pthread_mutex_unlock(&self.state.mutex)
        return taken

    def prepare_roll(self, list fds, bytes paths):
        """Give the next segment's files, created and synced (index, time index, log); `paths`: their
        NUL-ended names. If the files are accepted, the list is emptied."""
        take_mutex(&self.state)
        try:
            if prepare_next(&self.state, SegmentDescriptors(fds[2], fds[0], fds[1], -1), paths):
                self.next_paths = paths
                fds.clear()
        finally:
            pthread_mutex_unlock(&self.state.mutex)

    def take_prepared(self):
        """Return the next segment's files, (descriptors, names), to the caller. A failed roll may have
        renamed some of them."""
        take_mutex(&self.state)
        try:
            if self.state.next_files.log < 0:
                return (), ()
            found = (self.state.next_files.log, self.state.next_files.index, self.state.next_files.time)
            self.state.next_files = SegmentDescriptors(-1, -1, -1, -1)
            return found, tuple(self.next_paths.split(b"\0")[:3])
        finally:
            pthread_mutex_unlock(&self.state.mutex)

    def take_rolled(self):
        """Return the result of a roll, once: (old base, new base, descriptors of the old segment,
        snapshot entries at the new base)."""
        take_mutex(&self.state)
        try:
            return take_rolled(&self.state)
        finally:
            pthread_mutex_unlock(&self.state.mutex)

    def current_files(self):
        """Return the fold's segment: (base, log, index, time index, abort index); -1: no descriptor."""
        cdef SegmentDescriptors f
        cdef int64_t base
        take_mutex(&self.state)
        f = self.state.files
        base = self.state.segment.base
        pthread_mutex_unlock(&self.state.mutex)
        return base, f.log, f.index, f.time, f.txn

    def leave_files(self):
        """Return the fold's descriptors (log, index, time index, abort index) to the caller for closing.

        Later calls get the status GONE, so that none uses a descriptor number that was reused."""
        cdef SegmentDescriptors f
        take_mutex(&self.state)
        f = self.state.files
        self.state.files = SegmentDescriptors(-1, -1, -1, -1)
        self.state.left = True
        pthread_mutex_unlock(&self.state.mutex)
        return f.log, f.index, f.time, f.txn

    # --- fold ---------------------------------------------------------------------------------

    def fold(self):
        """Fold up to the published end. Returns the status: 0 at the end, 3 if the next segment's files are needed.

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
        """Return (offset, snapshot entries) at the fold's position."""
        take_mutex(&self.state)
        try:
            return self.state.next_offset, export_producers(&self.state.table)
        finally:
            pthread_mutex_unlock(&self.state.mutex)

    def producer(self, int64_t producer_id):
        """Return (epoch, last sequence, last timestamp, coordinator epoch, txn first offset, txn last
        offset) of a producer, or None."""
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
        """Return (producer id, epoch, first offset, last data offset) of each, by first offset."""
        take_mutex(&self.state)
        try:
            return open_transactions_of(&self.state.table)
        finally:
            pthread_mutex_unlock(&self.state.mutex)

    # --- append, roll, log start ------------------------------------------------------------------

    def append(self, data, bint client, expected, double timeout, int64_t size_max, int64_t log_append_time=-1):
        """Append complete batches under the append lock, if no log end in `expected` has moved.

        Args:
            data: buffer of v2 batches. Offsets, leader epoch and (if log_append_time >= 0, in ms) the
                time are written into it, or into a copy if it is read-only.
            client: check sequences and reject control batches; False for coordinators.
            expected: pairs of (log with a Partition as its `core`, log end), at most 8.
            timeout: seconds to wait for the lock. size_max: largest batch allowed, in bytes.

        Returns:
            (status, base offset, last offset, timestamp in ms, errno, rolled). APPENDED with an errno:
            the batches are published, but the disk reported an error and the partition is poisoned.

        Raises:
            CorruptRecord, RecordTooLarge: if the batches are not valid; nothing was written.
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

    @property
    def append_under_way(self):
        """Whether an append of any process, or of another thread, may have begun and not ended.

        Never waits. Takes the append lock for a moment if it is free.

        Raises:
            StorageError: the lock cannot be asked for.
        """
        cdef int rc = LOCKED_OUT, failed = 0
        self.control.check()
        with nogil:
            if pthread_mutex_trylock(&self.state.mutex) == 0:
                rc = lock_partition(&self.state, 0)
                if rc == IO_FAILED:
                    failed = errno
                elif rc == 0:
                    unlock_partition(&self.state)
                pthread_mutex_unlock(&self.state.mutex)
        if rc == IO_FAILED:
            raise errors.StorageError("cannot take the append lock", failed, (<bytes>self.state.directory).decode())
        return rc != 0

    def seal(self, double timeout):
        """Roll the active segment now, unless it is empty. Returns (status, errno)."""
        return self._change(SEAL, 0, 0, timeout)

    def advance_log_start(self, int64_t log_start, bint segments_changed, double timeout):
        """Publish a greater log start and that segments are removed. Returns (status, errno)."""
        return self._change(ADVANCE, log_start, segments_changed, timeout)

    def mark_swap(self, bint begins, int64_t cleaned_to, double timeout):
        """Publish the beginning or the end of a swap of sealed segments. Returns (status, errno)."""
        return self._change(SWAP, cleaned_to, begins, timeout)

    def expire_producers(self, int64_t below, int64_t before_ms, double timeout):
        """Publish a horizon of expired producers (see `forgotten`). Returns (status, errno)."""
        return self._change(EXPIRE, below, before_ms, timeout)

    def gate(self):
        """Reject later writes of this process (GONE). Waits for an append that is under way."""
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
        """Counters for `await_flush`. Read them before checking for a round or trying the flush lock."""
        self.control.check()
        return flush_counters(self.state.slot)

    def join_flush(self, int64_t target, double timeout):
        """Wait as `await_flush` does if a flush is under way. Returns whether `target` is durable."""
        cdef Slot* slot = self.state.slot
        cdef uint64_t seen
        self.control.check()
        with nogil:
            seen = flush_counters(slot)
            if atomic_load_i64(&slot.durable_end) < target and round_under_way(slot):
                await_round(slot, target, seen, <int64_t>(max(timeout, 0.0) * 1e9))
        return atomic_load_i64(&slot.durable_end) >= target

    def await_flush(self, int64_t target, uint64_t counters, double timeout):
        """Wait for another thread's flush: until `target` is durable, this thread is woken to flush, the
        partition is poisoned or deleted, or `timeout` seconds are over."""
        self.control.check()
        with nogil:
            await_round(self.state.slot, target, counters, <int64_t>(max(timeout, 0.0) * 1e9))

    def begin_flush(self, int64_t target):
        """Begin a round that makes everything below `target` durable. The caller holds the flush lock."""
        self.control.check()
        begin_round(self.state.slot, target)

    def give_up_flush(self):
        """Cancel the round, whose waiters look for the next one. The caller holds the flush lock."""
        self.control.check()
        give_up_round(self.state.slot)

    def pass_flush_on(self):
        """Wake a waiting thread to flush, after the flush lock was released."""
        self.control.check()
        pass_on(self.state.slot)

    cdef void raise_durable_end(self, int64_t target, uint64_t elapsed_ns) noexcept:
        cdef Slot* slot = self.state.slot
        slot.flush_ns = elapsed_ns if slot.flush_ns == 0 else (7 * slot.flush_ns + elapsed_ns) // 8
        atomic_max_i64(&slot.durable_end, target)

    def publish_durable(self, int64_t target, uint64_t elapsed_ns):
        """Raise the durable end (never lower it), record the cost of a flush, and wake the waiters."""
        self.control.check()
        self.raise_durable_end(target, elapsed_ns)
        wake_word(self.state.lane, EVERYBODY)
        end_round(self.state.slot)

    def carry(self, int64_t first, int64_t end, int64_t most):
        """Return the published batches [first, end) for a decision, as bytes. None if they are larger than `most`
        bytes, or not where the last ones ended: then read them otherwise, and call `keep_carried`."""
        take_mutex(&self.state)
        try:
            return carried_batches(&self.state, first, end, most)
        finally:
            pthread_mutex_unlock(&self.state.mutex)

    def keep_carried(self, bytes data, int64_t first, int64_t end, int64_t base, int64_t position):
        """Remember where in the segment `base` the batches `data` end, for the next `carry`. Returns whether they
        are complete, with right CRCs."""
        if size_of_batches(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), first, end) < 0:
            return False
        take_mutex(&self.state)
        self.state.carried_to = end
        self.state.carried_base = base
        self.state.carried_position = position
        pthread_mutex_unlock(&self.state.mutex)
        return True

    def publish_carried(self, int64_t end):
        """Raise the carried end (never lower it). The marker that is appended next wakes the readers."""
        self.control.check()
        atomic_max_i64(&self.state.slot.carried_end, end)

    def lead_flush(self, int lock_fd, int64_t lock_at, int64_t base, int fd, int64_t opened_at, point):
        """Flush everything published, if all of it that is not durable is in one segment with a durable name.

        This is the usual flush. Does nothing in the other cases, if a flush is under way, or if the flush
        lock is taken. The caller holds the process's flush mutex.

        Args:
            lock_fd, lock_at: file and byte of the flush lock.
            base, fd, opened_at: the segment, its descriptor, and the log end when that was opened.
            point: called with the names of the failpoints, before and after the sync.

        Returns:
            Whether everything that was published before the call is durable now. After a flush, this call has
            woken one waiter of the next round, and then all that `publish_durable` wakes.

        Raises:
            OSError: if the sync failed; the partition is poisoned.
        """
        cdef Slot* slot = self.state.slot
        cdef uint64_t started = eoslog_monotonic_ns()
        cdef int64_t target, done
        cdef eoslog_sync call
        cdef uint64_t turn
        cdef bint flushed = False
        self.control.check()
        if round_under_way(slot) or base >= atomic_load_i64(&slot.durable_end):     # a new name is not durable
            return False
        if not try_lock(lock_fd, lock_at):
            return False
        try:
            target = atomic_load_i64(&slot.log_end)
            done = max(atomic_load_i64(&slot.durable_end), atomic_load_i64(&slot.log_start))
            if done >= target:
                return True
            # The active segment is read after the log end: no later segment has records below `target`.
            if opened_at > done or base != atomic_load_i64(&slot.active_base):
                return False
            if atomic_load_u32(&slot.poison) or atomic_load_u32(&slot.deleted):
                return False
            begin_round(slot, target)
            turn = atomic_load_u64(&slot.round) & 1         # the next round may begin when the lock is free
            try:
                point("flush.before")
                call.fd, call.poison, call.deleted = fd, &slot.poison, &slot.deleted
                with nogil:
                    eoslog_sync_all(&call, 1)
                if call.error:
                    raise OSError(call.error, errno_text(call.error))
                point("flush.after")
                self.raise_durable_end(target, eoslog_monotonic_ns() - started)
                flushed = True
            except:
                give_up_round(slot)
                raise
            return True
        finally:
            unlock(lock_fd, lock_at)
            if flushed:
                wake_word(&slot.flushed[turn ^ 1], 1)       # first, because the disk waits for this thread
                wake_word(self.state.lane, EVERYBODY)
                wake_word(&slot.flushed[turn], EVERYBODY)
            else:
                pass_on(slot)

    def sync(self, int fd):
        """Call fdatasync; see `sync_together`."""
        (failed,) = sync_together([(self, fd)])
        if failed:
            raise OSError(failed, errno_text(failed))

    def poison(self):
        """Make every process reject appends and flushes of this partition from now on."""
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
        """Fold the current segment up to a byte position, checking CRCs and that offsets are contiguous.

        Returns:
            (valid position, next offset, index bytes, time index bytes, abort index bytes, reason
            for the stop or None, last gap or None); a gap is (position of the batch after it, offset
            that was expected there, its base offset)
        """
        return scan_segment(&self.state, end_position, verify)

    def final_time_entry(self):
        """Return the last time index entry of a sealed segment, or b"" (Kafka LogSegment.onBecomeInactiveSegment)."""
        return final_time_entry(&self.state.segment)

    def publish_recovered(self, bytes topic_id, int64_t log_start, int64_t durable_end,
                          int64_t expire_below=0, int64_t expire_before_ms=0):
        """Fill the slot, its session number last: the last step of recovery, with the lock held."""
        self.control.check()
        publish_recovered(&self.state, topic_id, log_start, durable_end, expire_below, expire_before_ms)

    def stand_apart(self):
        """Give a reader a private slot if no writer has recovered the partition (see `stand_apart`)."""
        self.control.check()
        stand_apart(&self.state)

    def publish_apart(self, bytes topic_id, int64_t log_start):
        """Publish the fold's bounds in the private slot. Returns False if a writer has recovered by now."""
        return self.slot() != NULL and publish_apart(&self.state, topic_id, log_start)


def sync_together(list syncs):
    """Call fdatasync for several partitions at a time. Poison each whose call fails, before any Python code
    runs, even a signal handler (protocol.md row 7).

    Args:
        syncs: (partition, descriptor) pairs.

    Returns:
        The errno of each, 0 for success.
    """
    cdef int count = <int>len(syncs), i
    cdef Partition partition
    cdef eoslog_sync* calls = <eoslog_sync*>malloc((count + 1) * sizeof(eoslog_sync))
    if calls == NULL:
        raise MemoryError()
    try:
        for i in range(count):
            partition, calls[i].fd = syncs[i]
            partition.control.check()
            calls[i].poison = &partition.state.slot.poison
            calls[i].deleted = &partition.state.slot.deleted
        with nogil:
            eoslog_sync_all(calls, count)
        return [calls[i].error for i in range(count)]
    finally:
        free(calls)
