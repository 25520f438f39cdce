# The conditional append: store batches at the log end, if the log ends that the caller relies on have
# not moved. This module is the part under the append lock (protocol.md, Append, steps 2 to 11).
#
# One append, in `append_locked`:
#
#   1  Fold what other processes have appended, and reserve memory. No lock is held yet.
#   2  Take the append lock and check the slot (`enter_lock`): session, deletion, poison, expected log
#      ends. Repair what a dead lock holder left, and fold the last batches.
#   3  Check sequences and epochs of the new batches against the producer state (`judge_append`).
#   4  Set `busy`: from here on the files may differ from what is published. If this process dies now,
#      the next lock holder truncates them to the published end.
#   5  Roll to the next segment if it is due. Write the offsets into the batches, the batches into the
#      log file, and the entries into the index files.
#   6  Publish the new log end and clear `busy`. From here on readers see the batches.
#   7  Release the lock and wake the waiters.
#
# While the lock is held, this code does not run Python, does not allocate memory and does not flush.

cdef struct Result:
    int64_t base_offset, last_offset, timestamp
    int saved_errno
    bint rolled

cdef enum:
    PAGE = 4096
    PREALLOCATED = 65536        # bytes between two sizes of a preallocated file
    BLANK_MIN = 64              # zeros after the last batch at least: fewer may be the beginning of a header

cdef uint8_t zeros[PREALLOCATED + BLANK_MIN]


cdef int judge_append(PartitionState* state, const FoldedBatch* headers, int count, bint client, bint verified, Result* result) noexcept nogil:
    """Check the batches of one append against the producer state, without changing it.

    Returns APPENDED if the log accepts them, REPEATED with the stored offsets in `result` if it has
    them already, another status (NEED_TXNINDEX, UNVERIFIED), or Kafka's error code."""
    cdef int i, rc
    cdef int64_t first = -1
    cdef ProducerEntry* entry
    if not client:
        for i in range(count):
            if headers[i].attributes & CONTROL_BIT:
                rc = judge_marker(&state.table, &headers[i])
                if rc != ACCEPT:
                    return rc
                if headers[i].control_type == CONTROL_ABORT and state.files.txn < 0:
                    return NEED_TXNINDEX
            elif headers[i].producer_id >= 0:
                entry = table_known(&state.table, headers[i].producer_id)
                if entry != NULL and headers[i].producer_epoch < entry.epoch:
                    return INVALID_EPOCH
                if entry != NULL and headers[i].producer_epoch > entry.epoch and entry.txn_first_offset >= 0:
                    return INVALID_TXN
        return APPENDED
    if headers[0].producer_id < 0:
        return APPENDED
    rc = judge_batch(&state.table, &headers[0], &first)
    if rc == DUPLICATE:
        result.base_offset = first
        result.last_offset = first + headers[0].last_offset_delta if first >= 0 else -1
        result.timestamp = headers[0].max_timestamp
        return REPEATED
    if rc != ACCEPT:
        return rc
    if headers[0].attributes & TRANSACTIONAL_BIT and not verified:
        entry = table_find(&state.table, headers[0].producer_id)
        if entry == NULL or entry.txn_first_offset < 0:
            return UNVERIFIED
    return APPENDED


cdef int write_effects(PartitionState* state, const Effects* e) noexcept nogil:
    """Write the index entries of one folded batch. The fold has already counted them, so each entry
    belongs at its count minus one."""
    cdef uint8_t entry[ABORTED_ENTRY_SIZE]
    cdef SegmentFold* s = &state.segment
    if e.indexed:
        store_index_entry(entry, e)
        if eoslog_pwrite_all(state.files.index, entry, OFFSET_ENTRY_SIZE, (s.index_count - 1) * OFFSET_ENTRY_SIZE) < 0:
            return IO_FAILED
    if e.timed:
        store_time_entry(entry, e)
        if eoslog_pwrite_all(state.files.time, entry, TIME_ENTRY_SIZE, (s.time_count - 1) * TIME_ENTRY_SIZE) < 0:
            return IO_FAILED
    if e.aborted:
        store_aborted_entry(entry, &e.entry)
        if eoslog_pwrite_all(state.files.txn, entry, ABORTED_ENTRY_SIZE, (s.aborted_count - 1) * ABORTED_ENTRY_SIZE) < 0:
            return IO_FAILED
    return 0


cdef void extend(PartitionState* state, int64_t end) noexcept nogil:
    """Write zeros up to the next border of `PREALLOCATED` bytes.

    Only if batches just written, which end at `end`, have used up those of the file. The caller holds the
    lock and has set `busy`. An error fails no append, because any number of zeros is right, and the next
    append tries again."""
    cdef int64_t border = (end // PREALLOCATED + 1) * PREALLOCATED
    if border - end < BLANK_MIN:
        border += PREALLOCATED
    if not state.preallocates or end + BLANK_MIN <= state.file_size:
        return
    if eoslog_pwrite_all(state.files.log, zeros, <size_t>(border - end), end) < 0:
        eoslog_os.ftruncate(state.files.log, end)    # a full disk has better uses


cdef int begin_writeback(PartitionState* state, int64_t position) noexcept nogil:
    """Start writing appended bytes to the disk once `writeback_bytes` of them have collected, so that
    the next flush has little left to write. `position` is where this append began.

    Returns -1 with errno if the disk reports an error. The call makes nothing durable, but the kernel
    reports a failed write only once: the caller must treat the error as a failed flush."""
    cdef int64_t end = state.segment.position & ~<int64_t>(PAGE - 1)
    cdef int64_t begun
    if state.writeback_bytes == 0:
        return 0
    if state.writeback_segment != state.segment.base or state.writeback_at > position:
        state.writeback_segment = state.segment.base
        state.writeback_at = position
    begun = state.writeback_at
    if end - begun < state.writeback_bytes:
        return 0
    state.writeback_at = end
    if eoslog_os.writeback(state.files.log, begun, end - begun) == 0 or errno in (ENOSYS, EINVAL, ESPIPE, EOPNOTSUPP):
        return 0
    return -1


cdef int append_locked(PartitionState* state, uint8_t* data, int64_t size, FoldedBatch* headers, int count, bint client,
                       const Expected* expected, int expected_count, uint64_t deadline, Result* result) noexcept nogil:
    """Append checked batches, if every expected log end is still the same. Returns a status, or Kafka's
    error code; nothing is published unless it is APPENDED. The caller holds the partition's mutex."""
    cdef Effects e
    cdef int64_t position, written, offset, max_timestamp = -1
    cdef uint8_t* p
    cdef int i, rc
    # Without the lock: fold most of the log, and reserve memory for all that the lock holder will fold.
    rc = catch_up(state)
    if rc != 0:
        return rc
    if table_reserve(&state.table, FOLD_UNDER_LOCK + count + 16) < 0:
        return FOLD_AGAIN
    rc = enter_lock(state, deadline, expected, expected_count)
    if rc != 0:
        return rc
    # Under the lock: the fold is at the log end, so the checks see every batch of every process.
    rc = judge_append(state, headers, count, client, expected_count > 0, result)
    if rc != APPENDED:
        unlock_partition(state)
        return rc
    # Python must prepare the next segment's files before a roll, and take the last roll's result.
    offset = state.next_offset
    for i in range(count):
        if headers[i].max_timestamp > max_timestamp:
            max_timestamp = headers[i].max_timestamp
        offset += <int64_t>headers[i].last_offset_delta + 1
    if must_roll(state, size, max_timestamp, offset - 1):
        if state.next_files.log < 0 or state.rolled_files.log >= 0:
            unlock_partition(state)
            return ROLL
        result.rolled = True
    # From here to `publish_end` the files may be ahead of the published ends.
    atomic_store_u32(&state.slot.busy, 1)
    eoslog_os.point(POINT_BUSY)
    if result.rolled and (roll_segment(state) < 0 or index_aborts(state, headers, count) < 0):
        result.saved_errno = errno
        return must_reload(state)
    # The CRC of a batch does not cover its base offset and leader epoch, so both are set here.
    result.base_offset = state.next_offset
    result.timestamp = max_timestamp
    offset = state.next_offset
    p = data
    for i in range(count):
        store_i64(p, offset)
        store_i32(p + LEADER_EPOCH_AT, state.leader_epoch)
        headers[i].base_offset = offset
        headers[i].last_offset = offset + headers[i].last_offset_delta
        offset = headers[i].last_offset + 1
        p += headers[i].size
    position = written = state.segment.position
    if eoslog_pwrite_all(state.files.log, data, <size_t>size, position) < 0:
        result.saved_errno = errno
        # The fold has not changed yet: with the file truncated, the append never happened.
        if not result.rolled and eoslog_os.ftruncate(state.files.log, position) == 0:
            atomic_store_u32(&state.slot.busy, 0)
            unlock_partition(state)
            return IO_FAILED
        return must_reload(state)
    extend(state, position + size)
    eoslog_os.point(POINT_WRITTEN)
    # After an error in this loop the fold is ahead of the log: `must_reload` keeps `busy` set.
    for i in range(count):
        fold_batch(state, &headers[i], position, &e)
        position += headers[i].size
        if write_effects(state, &e) < 0:
            result.saved_errno = errno
            return must_reload(state)
    eoslog_os.point(POINT_INDEXED)
    result.last_offset = state.next_offset - 1
    publish_end(state)
    unlock_partition(state)
    eoslog_os.point(POINT_UNLOCKED)
    wake_word(state.lane, EVERYBODY)
    # The batches are published whatever the disk says now. A failed writeback poisons the partition,
    # unless the topic was deleted, because no later flush would report it.
    if begin_writeback(state, written) < 0:
        if not atomic_load_u32(&state.slot.deleted):
            result.saved_errno = errno
            atomic_store_u32(&state.slot.poison, 1)
    return APPENDED
