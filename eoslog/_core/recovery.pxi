# Recovery of a partition: where the fold begins, the fold of a segment in which every byte is looked at
# and the index files are made anew, and the publication of what was found.

cdef int begin_fold(PartitionState* state, int64_t base, bytes producers, int64_t version=-1) except -1:
    """At the base offset of a segment, from a snapshot's entries there; `version` is of the list that the
    segment stood in: with another one by now, who goes on from there begins anew (-1: nobody else writes)."""
    state.stale = True                           # until all of it is done
    table_free(&state.table)
    if atomic_load_u64(&state.slot.session) == atomic_load_u64(state.session):
        take_horizon(state)                      # a void slot says nothing
        take_interval(state)
    import_producers(&state.table, producers)
    state.next_offset = base
    enter_segment(&state.segment, base)
    state.buffer_size = 0
    state.segments_version = atomic_load_u32(&state.slot.segments_version) if version < 0 else <uint32_t>version
    state.stale = False
    return 0


cdef enum:
    SUMMED_PIECE = 1 << 20      # bytes read at a stretch: each read begins cold, in the kernel and here
    HEADERS_PIECE = 1 << 15     # and where nothing but headers is looked at


cdef struct ScanWindow:         # bytes [at, at + have) of the segment, read into `data`
    char* data
    int64_t room
    int64_t at
    int64_t have
    int64_t end                 # nothing at or behind it is read


cdef int read_window(PartitionState* state, ScanWindow* window, int64_t position) noexcept nogil:
    """Moves the window to a position; -1: it can't be read."""
    window.at = position
    window.have = min(window.room, window.end - position)
    return eoslog_pread_all(state.files.log, window.data, <size_t>window.have, position)


cdef int sum_batch(PartitionState* state, ScanWindow* window, int64_t position, int64_t end,
                   uint32_t* crc) noexcept nogil:
    """The CRC of a batch whose header is in the window, which moves along; -1: it can't be read."""
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
    """Fold the segment in hand up to a byte position, with CRC and contiguity checked.

    Returns:
        (valid position, next offset, index bytes, time index bytes, abort index bytes, reason
        of the stop or None)
    """
    cdef FoldedBatch b
    cdef Effects e
    cdef ScanWindow window
    cdef bytearray index = bytearray(), time = bytearray(), aborted = bytearray()
    cdef bytearray data = PyByteArray_FromStringAndSize(NULL, SUMMED_PIECE if verify else HEADERS_PIECE)
    cdef uint8_t entry[ABORTED_ENTRY_SIZE]
    cdef int64_t position = state.segment.position
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
    return position, state.next_offset, bytes(index), bytes(time), bytes(aborted), reason


cdef bytes final_time_entry(SegmentFold* segment):
    """The entry that a sealed segment's time index ends with, or b"" (Kafka LogSegment.onBecomeInactiveSegment)."""
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
    """Last step of recovery, under the lock: fill the slot, its session number last."""
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
    state.slot.index_interval = state.index_interval
    state.segments_version = 1
    publish_end(state)
    atomic_store_u64(&state.slot.session, atomic_load_u64(state.session))


cdef inline Slot* published_slot(PartitionState* state) noexcept:
    """Where the bounds are to be read. Under the GIL: a reader leaves `apart` as soon as it may."""
    if state.shared != NULL and atomic_load_u64(&state.shared.session) == atomic_load_u64(state.session):
        state.slot = state.shared
        state.shared = NULL
    return state.slot


cdef void stand_apart(PartitionState* state) noexcept:
    """Bounds that nobody else sees stand for the slot, which is void, until a writer has filled it."""
    memset(&state.apart, 0, sizeof(state.apart))
    if state.shared == NULL:
        state.shared = state.slot
    state.slot = &state.apart


cdef bint publish_apart(PartitionState* state, const char* topic_id, int64_t log_start) noexcept:
    """Fill what stands for the slot with what the fold found.

    What it read was published if the slot is void even now: a writer fills that before it appends.
    """
    if state.shared == NULL:
        return False
    publish_recovered(state, topic_id, log_start, state.next_offset, 0, 0)
    state.apart.segments_version = 0xFFFFFFFF   # no slot's, nor this one: even, no swap is under way
    state.apart.cleaned_version = 0xFFFFFFFE
    return published_slot(state) == &state.apart
