# Recovery of a partition: starting the fold, scanning segments, and publishing the result.
#
# A scan folds a segment like an append does, and computes the content of its index files. With `verify`
# it checks the CRC of each batch.

cdef int begin_fold(PartitionState* state, int64_t base, bytes producers, int64_t version=-1) except -1:
    """Start the fold at the base offset of a segment, from the entries of a snapshot at that offset.

    `version`: version of the list in which the segment was found. If the published version differs, the
    next lock makes the fold restart. -1: no other process writes, and the current version is used."""
    state.stale = True                           # until everything is loaded
    table_free(&state.table)
    if atomic_load_u64(&state.slot.session) == atomic_load_u64(state.session):
        take_horizon(state)                      # a void slot has no valid values
        take_interval(state)
    import_producers(&state.table, producers)
    state.next_offset = base
    enter_segment(&state.segment, base)
    state.buffer_size = 0
    state.segments_version = atomic_load_u32(&state.slot.segments_version) if version < 0 else <uint32_t>version
    state.stale = False
    return 0


cdef enum:
    SUMMED_PIECE = 1 << 17      # bytes per read: they are in the L2 cache when the CRC is computed
    HEADERS_PIECE = 1 << 15     # bytes per read if only headers are needed


cdef struct ScanWindow:         # bytes [at, at + have) of the segment, read into `data`
    char* data
    int64_t room
    int64_t at
    int64_t have
    int64_t end                 # first byte that must not be read


cdef int read_window(PartitionState* state, ScanWindow* window, int64_t position) noexcept nogil:
    """Move the window to a position. Returns -1 if the bytes cannot be read."""
    window.at = position
    window.have = min(window.room, window.end - position)
    return eoslog_pread_all(state.files.log, window.data, <size_t>window.have, position)


cdef int sum_batch(PartitionState* state, ScanWindow* window, int64_t position, int64_t end,
                   uint32_t* crc) noexcept nogil:
    """Compute the CRC of a batch whose header is in the window, and move the window along. Returns -1 if
    the bytes cannot be read."""
    cdef int64_t here
    position += ATTRIBUTES_AT
    crc[0] = 0
    while True:
        here = min(end, window.at + window.have) - position
        crc[0] = eoslog_crc32c(crc[0], <uint8_t*>window.data + (position - window.at), <size_t>here)
        position += here
        if position == end:
            return 0
        if read_window(state, window, position) < 0:
            return -1


cdef object unreadable(PartitionState* state):
    return errors.StorageError("cannot read the segment", errno, (<bytes>state.directory).decode())


cdef tuple scan_segment(PartitionState* state, int64_t end_position, bint verify):
    """Fold the current segment up to a byte position, checking CRCs (with `verify`) and offsets.

    Returns:
        (valid position, next offset, index bytes, time index bytes, abort index bytes, reason for the
        stop or None, last gap or None). A gap is (position of the batch after it, expected offset, base
        offset of that batch).
    """
    cdef FoldedBatch b
    cdef Effects e
    cdef ScanWindow window
    cdef bytearray index = bytearray(), time = bytearray(), aborted = bytearray()
    cdef bytearray data = PyByteArray_FromStringAndSize(NULL, SUMMED_PIECE if verify else HEADERS_PIECE)
    cdef uint8_t entry[ABORTED_ENTRY_SIZE]
    cdef int64_t position = state.segment.position
    cdef int64_t gap_at = -1, gap_begin = 0, gap_end = 0
    cdef uint8_t* p
    cdef int64_t size
    cdef int rc, failed
    cdef uint32_t crc, stated
    reason = None
    window = ScanWindow(data, len(data), position, 0, end_position)
    while position < end_position:
        if window.at + window.have - position < HEADER_SIZE and window.at + window.have < end_position:
            with nogil:
                failed = read_window(state, &window, position)
            if failed:
                raise unreadable(state)
        p = <uint8_t*>window.data + (position - window.at)
        rc = parse_header(p, p + (window.at + window.have - position), &b)
        if rc in (0, -1):
            reason = "cut short" if rc == 0 else "no batch header"
            break
        size = b.size
        if size > end_position - position:
            reason = f"batch of {size} bytes, {end_position - position} left"
            break
        if rc == -2:
            if size > window.room:
                data = PyByteArray_FromStringAndSize(NULL, size)
                window.data = data
                window.room = size
            with nogil:
                failed = read_window(state, &window, position)
            if failed:
                raise unreadable(state)
            p = <uint8_t*>window.data
            rc = parse_header(p, p + window.have, &b)
        if rc != 1:
            reason = "no valid control record"
            break
        if verify:
            stated = load_u32(p + CRC_AT)
            with nogil:
                failed = sum_batch(state, &window, position, position + size, &crc)
            if failed:
                raise unreadable(state)
            if crc != stated:
                reason = f"CRC {crc:#010x}, header says {stated:#010x}"
                break
        if b.base_offset < state.next_offset:
            reason = f"base offset {b.base_offset} below {state.next_offset}"
            break
        if b.base_offset > state.next_offset:
            gap_at, gap_begin, gap_end = position, state.next_offset, b.base_offset
        if b.last_offset - state.segment.base > 0x7FFFFFFF:
            reason = f"offset {b.last_offset} too far from base {state.segment.base}"
            break
        if table_reserve(&state.table, 16) < 0:
            raise MemoryError()
        fold_batch(state, &b, position, &e)
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
    gap = None if gap_at < 0 else (gap_at, gap_begin, gap_end)
    return position, state.next_offset, bytes(index), bytes(time), bytes(aborted), reason, gap


cdef bytes final_time_entry(SegmentFold* segment):
    """Return the last time index entry of a sealed segment, or b"" (Kafka LogSegment.onBecomeInactiveSegment)."""
    cdef Effects e
    cdef uint8_t entry[TIME_ENTRY_SIZE]
    memset(&e, 0, sizeof(e))
    time_entry(segment, &e)
    if not e.timed:
        return b""
    store_time_entry(entry, &e)
    return bytes((<char*>entry)[:TIME_ENTRY_SIZE])


cdef void publish_recovered(PartitionState* state, const char* topic_id, int64_t log_start, int64_t durable_end,
                            int64_t expire_below, int64_t expire_before_ms) noexcept nogil:
    """Fill the slot, the last step of recovery. The caller holds the append lock. The session number is
    stored last, because it makes the slot valid for other processes."""
    memcpy(state.slot.topic_id, topic_id, 16)
    state.slot.deleted = 0
    state.slot.poison = 0
    state.slot.segments_version = 1
    state.slot.cleaned_version = 0
    state.slot.cleaned_to = 0
    state.slot.expire_below = expire_below
    state.slot.expire_before_ms = expire_before_ms
    state.slot.log_start = log_start
    state.slot.durable_end = durable_end
    state.slot.carried_end = 0
    state.slot.index_interval = state.index_interval
    state.segments_version = 1
    publish_end(state)
    atomic_store_u64(&state.slot.session, atomic_load_u64(state.session))


cdef inline Slot* published_slot(PartitionState* state) noexcept:
    """Return the slot with the current bounds. A reader with a private slot changes to the shared slot
    here, once a writer has filled it. The caller holds the GIL."""
    if state.shared != NULL and atomic_load_u64(&state.shared.session) == atomic_load_u64(state.session):
        state.slot = state.shared
        state.shared = NULL
    return state.slot


cdef void stand_apart(PartitionState* state) noexcept:
    """Use a private slot instead of the shared one, which is void, until a writer has filled that."""
    memset(&state.apart, 0, sizeof(state.apart))
    if state.shared == NULL:
        state.shared = state.slot
    state.slot = &state.apart


cdef bint publish_apart(PartitionState* state, const char* topic_id, int64_t log_start) noexcept:
    """Fill the private slot with the bounds that the fold has found. Returns False if a writer was first.

    The bounds are valid if the shared slot is still void now, because a writer fills it before it appends.
    """
    if state.shared == NULL:
        return False
    publish_recovered(state, topic_id, log_start, state.next_offset, 0, 0)
    state.apart.segments_version = 0xFFFFFFFF   # no shared slot has these; even: no swap is under way
    state.apart.cleaned_version = 0xFFFFFFFE
    return published_slot(state) == &state.apart
