# The locked part of an append, in one call: lock, compare, fold the rest, judge, roll, write, index,
# publish, unlock, wake (protocol.md, Append). No Python, no malloc, no flush in it.

cdef struct Result:
    int64_t base_offset, last_offset, timestamp
    int saved_errno
    bint rolled

cdef enum:
    PAGE = 4096


cdef int judge_append(PartitionState* state, const FoldedBatch* headers, int count, bint client, bint verified, Result* result) noexcept nogil:
    """All batches of one append against the state as it is; changes nothing."""
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


cdef int begin_writeback(PartitionState* state, int64_t position) noexcept nogil:
    """Lets the disk work on what a bulk of appends has written, so that the flush behind them finds
    little to do; `position` is where this append began. -1 when the disk refused, with errno.

    It takes the place of no flush: who hears that it failed must take that for a flush that failed."""
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
    cdef Effects e
    cdef int64_t position, written, offset, max_timestamp = -1
    cdef uint8_t* p
    cdef int i, rc
    rc = catch_up(state)
    if rc != 0:
        return rc
    if table_reserve(&state.table, FOLD_UNDER_LOCK + count + 16) < 0:
        return FOLD_AGAIN
    rc = enter_lock(state, deadline, expected, expected_count)
    if rc != 0:
        return rc
    rc = judge_append(state, headers, count, client, expected_count > 0, result)
    if rc != APPENDED:
        unlock_partition(state)
        return rc
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
    atomic_store_u32(&state.slot.busy, 1)
    eoslog_os.point(POINT_BUSY)
    if result.rolled and (roll_segment(state) < 0 or index_aborts(state, headers, count) < 0):
        result.saved_errno = errno
        return must_reload(state)
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
        if not result.rolled and eoslog_os.ftruncate(state.files.log, position) == 0:
            atomic_store_u32(&state.slot.busy, 0)
            unlock_partition(state)
            return IO_FAILED
        return must_reload(state)
    eoslog_os.point(POINT_WRITTEN)
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
    if begin_writeback(state, written) < 0:
        if not atomic_load_u32(&state.slot.deleted):
            result.saved_errno = errno
            atomic_store_u32(&state.slot.poison, 1)
    return APPENDED
