# The roll: seal the active segment and begin the next one, with the append lock held.
#
# Python creates and syncs the new files beforehand, so that a roll only renames them. A crash leaves
# `busy` set. The log file is renamed last, and decides: before that rename, the repair by the next lock
# holder undoes the roll; after it, the roll is complete.

cdef bint must_roll(PartitionState* state, int64_t size, int64_t max_timestamp, int64_t last_offset) noexcept nogil:
    """Whether batches of `size` bytes need a new segment: by size, by time, because an index is full, or
    because the last offset does not fit in 31 bits relative to the base."""
    cdef SegmentFold* s = &state.segment
    if s.position == 0:
        return False
    return (s.position > state.segment_size_max - size
            or (s.first_timestamp >= 0 and max_timestamp - s.first_timestamp > state.segment_ms)
            or s.index_count >= state.index_entries_max or s.time_count >= state.time_entries_max
            or last_offset - s.base > 0x7FFFFFFF)


cdef int roll_segment(PartitionState* state) noexcept nogil:
    """Seal the segment and enter the next one, made of the prepared files. The caller holds the lock and
    has set `busy`. Returns 0, or IO_FAILED with some files renamed."""
    cdef char path[NAME_SIZE]
    cdef uint8_t entry[TIME_ENTRY_SIZE]
    cdef Effects e
    cdef const char* prepared = state.prepared_paths
    cdef int64_t time_count = state.segment.time_count
    memset(&e, 0, sizeof(e))
    if trim(state) < 0:                       # before the next log has its name: only the last one has zeros
        return IO_FAILED
    time_entry(&state.segment, &e)
    if e.timed:
        store_time_entry(entry, &e)
        if eoslog_pwrite_all(state.files.time, entry, TIME_ENTRY_SIZE, time_count * TIME_ENTRY_SIZE) < 0:
            return IO_FAILED
    segment_path(state, path, state.next_offset, b".index")
    if eoslog_os.rename(prepared, path) < 0:
        return IO_FAILED
    prepared += strlen(prepared) + 1
    segment_path(state, path, state.next_offset, b".timeindex")
    if eoslog_os.rename(prepared, path) < 0:
        return IO_FAILED
    prepared += strlen(prepared) + 1
    segment_path(state, path, state.next_offset, b".log")
    if eoslog_os.rename(prepared, path) < 0:
        return IO_FAILED
    if state.table.count <= state.rolled_capacity:
        memcpy(state.rolled_entries, state.table.entries, <size_t>state.table.count * sizeof(ProducerEntry))
        state.rolled_count = state.table.count
    else:
        state.rolled_count = -1               # no snapshot of this roll: the next open folds more
    state.rolled_files = state.files
    state.rolled_base = state.segment.base
    state.rolled_to = state.next_offset
    state.files = state.next_files
    state.next_files = SegmentDescriptors(-1, -1, -1, -1)
    enter_segment(&state.segment, state.next_offset)
    state.file_size = 0
    state.buffer_size = 0
    store_active(state.slot, state.segment.base, 0)
    eoslog_os.point(POINT_ROLLED)
    return 0


cdef int index_aborts(PartitionState* state, const FoldedBatch* headers, int count) noexcept nogil:
    """Create the new segment's abort index if the append that rolled contains an abort marker:
    `judge_append` saw the old segment's. The caller holds the lock. Recovery rebuilds a lost index."""
    cdef char path[NAME_SIZE]
    cdef int i
    for i in range(count):
        if headers[i].attributes & CONTROL_BIT and headers[i].control_type == CONTROL_ABORT and state.files.txn < 0:
            segment_path(state, path, state.segment.base, b".txnindex")
            state.files.txn = eoslog_os.open(path, O_RDWR | O_CREAT, 0o600)
            if state.files.txn < 0:
                return IO_FAILED
    return 0


cdef int seal_locked(PartitionState* state, uint64_t deadline) noexcept nogil:
    """Roll the active segment now, unless it is empty. Returns the status."""
    cdef int rc = catch_up(state)
    if rc != 0:
        return rc
    rc = enter_lock(state, deadline, NULL, 0)
    if rc != 0:
        return rc
    if state.segment.position > 0:
        if state.next_files.log < 0 or state.rolled_files.log >= 0:
            rc = ROLL
        else:
            atomic_store_u32(&state.slot.busy, 1)
            if roll_segment(state) < 0:
                return must_reload(state)
            publish_end(state)
    unlock_partition(state)
    return rc


cdef bint take_indexes(SegmentDescriptors* held, int index, int time, int txn) noexcept nogil:
    """Take over the given indexes (-1: not this one); none of them if one is open already."""
    if (index >= 0 and held.index >= 0) or (time >= 0 and held.time >= 0) or (txn >= 0 and held.txn >= 0):
        return False
    held.index = max(held.index, index)
    held.time = max(held.time, time)
    held.txn = max(held.txn, txn)
    return True


cdef int reserve_rolled(PartitionState* state) noexcept nogil:
    """Reserve memory for the producer entries that the next roll copies. Returns -1 if there is none.
    Call it without the lock. Does nothing while Python has not taken the copy of the last roll."""
    cdef ProducerEntry* grown
    if state.rolled_files.log >= 0 or state.rolled_capacity >= state.table.count + 1024:
        return 0
    grown = <ProducerEntry*>realloc(state.rolled_entries, (<size_t>state.table.count + 4096) * sizeof(ProducerEntry))
    if grown == NULL:
        return -1
    state.rolled_entries = grown
    state.rolled_capacity = state.table.count + 4096
    return 0


cdef bint prepare_next(PartitionState* state, SegmentDescriptors files, const char* paths) except -1:
    """Take over files for the next segment, created and synced, and reserve memory for the roll. Returns
    False if there are such files already, or Python has not taken the files of the last roll."""
    if state.left or state.next_files.log >= 0 or state.rolled_files.log >= 0:
        return False
    if reserve_rolled(state) < 0:
        raise MemoryError()
    state.prepared_paths = paths
    state.next_files = files
    return True


cdef tuple take_rolled(PartitionState* state):
    """Return the last roll, once: (old base, new base, old descriptors, snapshot entries at the new
    base), or None."""
    cdef ProducerTable view
    cdef SegmentDescriptors f = state.rolled_files
    if f.log < 0:
        return None
    memset(&view, 0, sizeof(view))
    view.entries = state.rolled_entries
    view.count = state.rolled_count
    view.expire_below = state.table.expire_below
    view.expire_before_ms = state.table.expire_before_ms
    state.rolled_files = SegmentDescriptors(-1, -1, -1, -1)
    snapshot = export_producers(&view) if state.rolled_count >= 0 else None
    return state.rolled_base, state.rolled_to, (f.log, f.index, f.time, f.txn), snapshot
