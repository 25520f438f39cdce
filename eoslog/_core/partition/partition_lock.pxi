# The append lock of a partition: wait for it, check the slot, repair what a dead holder left.
#
# These are steps 2 to 6 of protocol.md's Append. None of them needs the GIL.

cdef struct Expected:
    Slot* slot
    int64_t log_end


cdef class Partition            # partition.pxi


cdef int take_expected(expected, Expected* expects) except -1:
    """Unpack pairs of (log with a Partition as its `core`, expected log end). Returns their number."""
    cdef Partition other
    cdef int n = 0
    if len(expected) > MAX_EXPECTED:
        raise ValueError("too many expected log ends")
    for log, log_end in expected:
        other = log.core
        expects[n].slot = other.state.slot
        expects[n].log_end = log_end
        n += 1
    return n


cdef enum:
    YIELDS = 16                 # tries before the first sleep: most holders need some microseconds

cdef int lock_slot(Slot* slot, int fd, int64_t at, uint64_t deadline) noexcept nogil:
    """Try to lock one byte of the lock file until the deadline. Returns 0, LOCKED_OUT or IO_FAILED.

    A blocking lock call would have no timeout, and a suspended holder would block every process."""
    cdef int64_t backoff = 5000
    cdef int tries = 0
    while eoslog_os.lock(fd, F_WRLCK, at) < 0:
        if errno != EAGAIN and errno != EACCES:
            return IO_FAILED
        if eoslog_monotonic_ns() >= deadline:
            return LOCKED_OUT
        tries += 1
        if tries <= YIELDS:
            sched_yield()
            continue
        pause_ns(backoff)
        if backoff < 1000000:
            backoff *= 2
    slot.holder_since_ns = eoslog_monotonic_ns()
    slot.holder_pid = eoslog_pid()
    return 0


cdef void unlock_slot(Slot* slot, int fd, int64_t at) noexcept nogil:
    slot.holder_pid = 0
    eoslog_os.lock(fd, F_UNLCK, at)


cdef int lock_partition(PartitionState* state, uint64_t deadline) noexcept nogil:
    return lock_slot(state.slot, state.lock_fd, state.lock_at, deadline)


cdef void unlock_partition(PartitionState* state) noexcept nogil:
    unlock_slot(state.slot, state.lock_fd, state.lock_at)


cdef int trim(PartitionState* state) noexcept nogil:
    """Truncate the active log file to its last batch. The caller holds the lock. Returns -1 on an error."""
    if state.file_size == state.segment.position:
        return 0
    state.file_size = state.segment.position
    return eoslog_os.ftruncate(state.files.log, state.segment.position)


cdef int repair_after_dead_holder(PartitionState* state) noexcept nogil:
    """Repair the files after a lock holder died during an append (protocol.md row 9). The caller holds
    the lock, and its fold is at the published end.

    Truncates log and indexes to the published end, undoes an incomplete roll, and recomputes the
    stable end. A roll is complete once the log file of the next segment has its final name: other
    processes may use that segment from then on. In that case the segment stays, and NEXT_SEGMENT
    makes the caller enter it and repair it there."""
    cdef char path[NAME_SIZE]
    cdef SegmentFold* s = &state.segment
    cdef int fd
    if state.next_offset != s.base:
        segment_path(state, path, state.next_offset, b".log")
        fd = eoslog_os.open(path, O_RDWR, 0o600)
        if fd >= 0:
            c_close(fd)
            store_active(state.slot, state.next_offset, 0)
            return NEXT_SEGMENT
        if errno != ENOENT:
            return IO_FAILED
        segment_path(state, path, state.next_offset, b".index")
        eoslog_os.unlink(path)
        segment_path(state, path, state.next_offset, b".timeindex")
        eoslog_os.unlink(path)
    if state.files.txn < 0:
        segment_path(state, path, s.base, b".txnindex")
        state.files.txn = eoslog_os.open(path, O_RDWR, 0o600)
    if (eoslog_os.ftruncate(state.files.log, s.position) < 0
            or eoslog_os.ftruncate(state.files.index, s.index_count * OFFSET_ENTRY_SIZE) < 0
            or eoslog_os.ftruncate(state.files.time, s.time_count * TIME_ENTRY_SIZE) < 0):
        return IO_FAILED
    if state.files.txn >= 0 and eoslog_os.ftruncate(state.files.txn, s.aborted_count * ABORTED_ENTRY_SIZE) < 0:
        return IO_FAILED
    store_active(state.slot, s.base, s.position)
    atomic_store_i64(&state.slot.stable_end, first_unstable(&state.table, state.next_offset))
    atomic_store_u32(&state.slot.busy, 0)
    return 0


cdef int enter_lock(PartitionState* state, uint64_t deadline, const Expected* expected, int expected_count) noexcept nogil:
    """Take the append lock and bring the fold to the log end (steps 2 to 6 of an append).

    Returns APPENDED with the lock held, the fold at the published end, the indexes open, and nothing
    after the fold's position but the zeros of a preallocated log file. Any other status means that the
    lock is released."""
    cdef int rc, i
    if state.gated:
        return GONE
    rc = lock_partition(state, deadline)
    if rc != 0:
        return rc
    if atomic_load_u64(&state.slot.session) != atomic_load_u64(state.session):
        rc = VOID_SLOT
    elif atomic_load_u32(&state.slot.deleted):
        rc = GONE
    elif atomic_load_u32(&state.slot.poison):
        rc = POISONED
    elif atomic_load_u32(&state.slot.segments_version) != state.segments_version:
        # Sealed segments were deleted or swapped. That does not concern a fold in the active segment.
        if state.files.log >= 0 and state.segment.base == state.slot.active_base:
            state.segments_version = atomic_load_u32(&state.slot.segments_version)
        else:
            rc = REOPEN
    if rc == 0:
        for i in range(expected_count):
            if atomic_load_i64(&expected[i].slot.log_end) != expected[i].log_end:
                rc = CHANGED
    if rc == 0:
        rc = fold_to(state, atomic_load_i64(&state.slot.log_end), FOLD_UNDER_LOCK, False)
    if rc == 0 and horizon_moved(state):
        rc = FOLD_AGAIN                      # every process must use one horizon (protocol.md row 10)
    if rc == 0 and state.files.index < 0:
        rc = NEED_INDEXES
    if rc == 0 and atomic_load_u32(&state.slot.busy):
        rc = repair_after_dead_holder(state)
    if rc == 0 and state.slot.active_base != state.segment.base:
        rc = NEXT_SEGMENT
    if rc == 0:
        # Not `fstat`: since Linux 6.13, a write to a file whose times were read stores new times.
        state.file_size = c_lseek(state.files.log, 0, SEEK_END)
        if state.file_size < 0:
            rc = IO_FAILED
        elif state.file_size < state.segment.position:
            rc = CORRUPT                     # another program truncated published bytes
        elif not state.preallocates and trim(state) < 0:
            rc = IO_FAILED
    if rc != 0:
        unlock_partition(state)
    return rc


cdef int advance_log_start_locked(
    PartitionState* state, int64_t log_start, bint segments_changed, uint64_t deadline
) noexcept nogil:
    """Publish a greater log start and, with `segments_changed`, a new version of the segment list.
    Returns the status."""
    cdef int rc = catch_up(state)
    if rc != 0:
        return rc
    rc = enter_lock(state, deadline, NULL, 0)
    if rc != 0:
        return rc
    if log_start > state.slot.log_start:
        atomic_store_i64(&state.slot.log_start, log_start)
    if segments_changed:
        state.segments_version += 1
        atomic_store_u32(&state.slot.segments_version, state.segments_version)
    unlock_partition(state)
    wake_word(state.lane, EVERYBODY)
    return 0


cdef int expire_producers_locked(PartitionState* state, int64_t below, int64_t before_ms, uint64_t deadline) noexcept nogil:
    """Publish a horizon of expired producers: those whose last batch is below an offset, and those
    that have only markers left, the last one older than a time. Neither value ever decreases.
    Returns the status."""
    cdef int rc = catch_up(state)
    if rc != 0:
        return rc
    rc = enter_lock(state, deadline, NULL, 0)
    if rc != 0:
        return rc
    if min(below, state.next_offset) > state.slot.expire_below:
        atomic_store_i64(&state.slot.expire_below, min(below, state.next_offset))
        if before_ms > state.slot.expire_before_ms:
            atomic_store_i64(&state.slot.expire_before_ms, before_ms)
    unlock_partition(state)
    return catch_up(state)


cdef int mark_swap_locked(PartitionState* state, bint begins, int64_t cleaned_to, uint64_t deadline) noexcept nogil:
    """Publish the beginning of a swap of sealed segments (`cleaned_version` becomes odd) or its end.
    Returns the status. A list of segments is valid if `cleaned_version` was even, and the same before
    and after the listing (protocol.md row 28).

    The beginning requires a fold in the active segment, past all segments that are swapped. The end
    does not fold: if another process has rolled in between, the fold would have to list segments to
    enter the next one, and the listing waits for this very end."""
    cdef uint32_t version
    cdef int rc
    if begins:
        rc = catch_up(state)
        if rc == 0:
            rc = enter_lock(state, deadline, NULL, 0)
        if rc != 0:
            return rc
    else:
        rc = lock_partition(state, deadline)
        if rc != 0:
            return rc
        if atomic_load_u64(&state.slot.session) != atomic_load_u64(state.session):
            rc = VOID_SLOT
        elif atomic_load_u32(&state.slot.deleted):
            rc = GONE
    version = atomic_load_u32(&state.slot.cleaned_version)
    if rc == 0 and <bint>(version & 1) != begins:
        if begins and cleaned_to > state.slot.cleaned_to:
            atomic_store_i64(&state.slot.cleaned_to, cleaned_to)
        atomic_store_u32(&state.slot.cleaned_version, version + 1)
        version = atomic_load_u32(&state.slot.segments_version) + 1
        if state.segments_version == version - 1:
            state.segments_version = version     # else this fold may be in a removed segment: it restarts
        atomic_store_u32(&state.slot.segments_version, version)
    unlock_partition(state)
    wake_word(state.lane, EVERYBODY)
    return rc


cdef enum Change:               # publications under the lock other than an append; GATE: no more writes
    GATE
    SEAL
    ADVANCE
    SWAP
    EXPIRE


cdef int change_locked(PartitionState* state, Change what, int64_t first, int64_t second, uint64_t deadline) noexcept nogil:
    """Make one change of the kind `what`; `first` and `second` are its arguments. Returns the status."""
    if what == GATE:
        state.gated = True
        return 0
    if what == SEAL:
        return seal_locked(state, deadline)
    if what == ADVANCE:
        return advance_log_start_locked(state, first, second != 0, deadline)
    if what == SWAP:
        return mark_swap_locked(state, second != 0, first, deadline)
    return expire_producers_locked(state, first, second, deadline)
