# PublishedLog: what each append and each look at a partition's ends passes. Its subclass `PartitionLog`
# (storage/log/partition_log.py) does the rest: it opens files, rolls, checks records and raises errors.

cdef enum:
    NO_LIMIT = 1 << 30          # bytes of a batch


cdef class PublishedLog:
    """The published ends of a partition, its plain append, and its producers.

    A subclass has `_append_on`, which does what a plain append does not, and `_finish_fold`.
    """
    cdef readonly Partition core
    cdef readonly bint strict
    cdef public object on_append            # called after an append that its caller does not flush; or None
    cdef public bint looks_at_records       # clients' batches are checked or changed before the append
    cdef public bint _stamps                # batches get the time of the append
    cdef public int64_t _size_max           # the largest batch of a client, in bytes
    cdef bint read_only
    cdef double timeout_s
    cdef object coordinator, result_type

    @classmethod
    def __class_getitem__(cls, types):
        return GenericAlias(cls, types)

    def __init__(self, Partition core, bint strict, bint read_only, on_append, *, double timeout_s, coordinator, result_type):
        """Keep the partition.

        Args:
            core: the partition.
            strict: whether acknowledged records must be durable.
            read_only: whether nothing can be appended, and no producers are known.
            on_append: called after an append that its caller does not flush.
            timeout_s: the longest wait for the append lock, if an append names none.
            coordinator: the origin of batches that may be control batches; any other is a client.
            result_type: `AppendResult`.
        """
        self.core = core
        self.strict = strict
        self.read_only = read_only
        self.on_append = on_append
        self.timeout_s = timeout_s
        self.coordinator = coordinator
        self.result_type = result_type

    # --- published ends ---------------------------------------------------------------------------

    @property
    def log_start(self):
        """The first offset that may be read."""
        return atomic_load_i64(&self.core.slot().log_start)

    @property
    def log_end(self):
        """The offset of the next record to be appended."""
        return atomic_load_i64(&self.core.slot().log_end)

    @property
    def stable_end(self):
        """The first offset of the earliest open transaction, or the log end."""
        return atomic_load_i64(&self.core.slot().stable_end)

    @property
    def durable_end(self):
        """The offset below which a flush has made everything durable."""
        return atomic_load_i64(&self.core.slot().durable_end)

    @property
    def flushed_end(self):
        """The durable end, or the log end in an "os" directory."""
        cdef Slot* slot = self.core.slot()
        return atomic_load_i64(&slot.durable_end if self.strict else &slot.log_end)

    @property
    def high_watermark(self):
        """The end of what a power loss leaves, or the log end in an "os" directory.

        It is the end of the flushed records, or of those that a durable decision carries.
        """
        cdef Slot* slot = self.core.slot()
        if not self.strict:
            return atomic_load_i64(&slot.log_end)
        return max(atomic_load_i64(&slot.carried_end), atomic_load_i64(&slot.durable_end))

    @property
    def unflushed(self):
        """Whether something published is not durable yet."""
        cdef Slot* slot = self.core.slot()
        return atomic_load_i64(&slot.durable_end) < atomic_load_i64(&slot.log_end)

    # --- append -----------------------------------------------------------------------------------

    def append(self, batch, *, expect=(), origin=None, timeout=None, bint flushes=False):
        """Append complete v2 batches, if the log ends in `expect` have not moved.

        Args:
            batch: one or more batches, whose sequences must be consecutive. Offsets and the leader
                epoch are written into them, in place if the buffer is writable.
            expect: (log, end) pairs that the caller's decision relies on.
            origin: AppendOrigin.COORDINATOR allows control batches and skips the sequence check.
            timeout: seconds to wait for the append lock; None means 30.
            flushes: the caller flushes immediately, so the background flush is not needed.

        Returns:
            The AppendResult, or None if an expected end has moved: nothing was appended.

        Raises:
            InvalidRecord: if a record for a compacted topic has no key.
            KafkaError: INVALID_TIMESTAMP, if a timestamp is out of the topic's bounds.
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState, CorruptRecord,
            RecordTooLarge:
                if the batches are rejected; nothing was written.
            LockTimeout: if another process holds the append lock.
            DiskFull, StorageError, LogPoisoned, UnknownTopicOrPartition: nothing was published.

        Durability: survives a crash of the process on return, and power loss after `flush`.
        Source: protocol.md, Append; Kafka UnifiedLog.append; KIP-98.
        """
        cdef Result result
        cdef int rc
        cdef bint client = origin is not self.coordinator
        cdef double wait = self.timeout_s if timeout is None else timeout
        if self.read_only or self._stamps or (client and self.looks_at_records):
            return (<object>self)._append_on(batch, client, expect, wait, flushes, None)
        rc = self.core.append_batches(batch, client, expect, wait, self._size_max if client else NO_LIMIT, -1, &result)
        if rc == CHANGED:
            return None
        if rc != APPENDED or result.rolled or result.saved_errno:
            found = (rc, result.base_offset, result.last_offset, result.timestamp, result.saved_errno, result.rolled)
            return (<object>self)._append_on(batch, client, expect, wait, flushes, found)
        if self.on_append is not None and not flushes:
            self.on_append(self)
        return named(self.result_type, (result.base_offset, result.last_offset, False, result.timestamp))

    # --- producers --------------------------------------------------------------------------------

    cpdef fold(self):
        """Bring this process's producer state up to the published end. Read-only logs have none."""
        cdef int status
        if self.read_only:
            return
        status = self.core.fold()
        if status != APPENDED:
            (<object>self)._finish_fold(status)

    def open_transaction(self, int64_t producer_id):
        """Return (epoch, first offset, last data offset) of a producer's open transaction, or None."""
        entry = self.producer_entry(producer_id)
        return None if entry is None or entry[2] < 0 else (entry[0], entry[2], entry[3])

    cpdef producer_entry(self, int64_t producer_id):
        """Return (epoch, coordinator epoch, first and last offset in a transaction, or -1), or None."""
        cdef tuple entry
        self.fold()
        entry = self.core.producer(producer_id)
        return None if entry is None else (entry[0], entry[3], entry[4], entry[5])
