# Walking complete batches by their headers, for readers.

def walk_batches(data, int64_t position, int64_t start, int64_t end, int64_t size_max, int64_t least=0):
    """Find the complete batches of [start, end) from a batch boundary on.

    Args:
        data: a buffer; position: the byte in it where a batch begins.
        start, end: offsets; skips batches that end below `start`, and stops at `end`.
        size_max: bytes after which to stop; at least one batch is included.
        least: lowest base offset that a batch from `position` on may have.

    Returns:
        (first, stop, base offset, next offset, needed): bytes [first, stop) are the batches. If first ==
        stop, there is no complete batch, and `needed` bytes from `first` on are required (0: end of data).

    Raises:
        CorruptRecord: if there is no valid batch header, or offsets do not rise. No CRC covers the base
            offset, but damage to it shows in the order.
    """
    cdef Py_buffer view
    cdef const uint8_t* base
    cdef int64_t found = 0
    cdef int64_t size, at = position, first = position, length, last, base_offset = -1, next_offset = -1, needed = 0
    cdef bint corrupt = False, back = False
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        base = <const uint8_t*>view.buf
        size = view.len
        with nogil:
            while next_offset < end:
                if size - at < HEADER_SIZE:
                    needed = HEADER_SIZE if size > at else 0
                    break
                length = <int64_t>load_i32(base + at + BATCH_LENGTH_AT) + LOG_OVERHEAD
                if length < HEADER_SIZE and base[at + MAGIC_AT] >= 2 or length < 26 or load_i32(base + at + LAST_OFFSET_DELTA_AT) < 0 and base[at + MAGIC_AT] >= 2:
                    corrupt = True
                    break
                if load_i64(base + at) < max(next_offset, least):
                    found = load_i64(base + at)
                    back = True
                    break
                if load_i64(base + at) >= end:
                    break
                last = load_i64(base + at)
                if base[at + MAGIC_AT] >= 2:
                    last += load_i32(base + at + LAST_OFFSET_DELTA_AT)
                if last < start:
                    at += length
                    if at > size:
                        at -= length
                        first = at
                        needed = length
                        break
                    first = at
                    next_offset = last + 1
                    continue
                if length > size - at:
                    needed = length
                    break
                if base_offset >= 0 and at + length - first > size_max:
                    break
                if base_offset < 0:
                    base_offset = load_i64(base + at)
                    first = at
                at += length
                next_offset = last + 1
        if back:
            raise placed(errors.CorruptRecord(
                f"offsets go back at byte {at}: base offset {found}, expected {max(next_offset, least)} or more"), at)
        if corrupt and base_offset < 0:
            raise placed(errors.CorruptRecord(f"no batch header at byte {at}: length {length}"), at)
        return first, at if base_offset >= 0 else first, base_offset, next_offset, needed
    finally:
        PyBuffer_Release(&view)


def transaction_ends(data):
    """Return the end markers in a segment's batches, by their headers.

    Returns:
        [(producer id, first data offset since the producer's previous marker or -1, offset of that
        marker or -1, offset of this marker, whether it aborts)]; None if a batch has an older format.
    """
    cdef Py_buffer view
    cdef FoldedBatch b
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef int rc
    cdef dict first = {}, ended = {}
    cdef list out = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t*>view.buf
        end = p + view.len
        while p < end:
            rc = parse_header(p, end, &b)
            if rc != 1:
                return None if end - p >= HEADER_SIZE and p[MAGIC_AT] < 2 else out
            if b.control_type == CONTROL_ABORT or b.control_type == CONTROL_COMMIT:
                out.append((b.producer_id, first.pop(b.producer_id, -1), ended.get(b.producer_id, -1),
                            b.base_offset, b.control_type == CONTROL_ABORT))
                ended[b.producer_id] = b.base_offset
            elif b.attributes & TRANSACTIONAL_BIT and not b.attributes & CONTROL_BIT:
                if b.producer_id not in first:
                    first[b.producer_id] = b.base_offset
            if b.size > end - p:
                break
            p += b.size
        return out
    finally:
        PyBuffer_Release(&view)


def find_in_index(index, int64_t base_offset, int64_t target):
    """Return the position to scan from for an offset: the last entry at or below it (Kafka OffsetIndex.lookup)."""
    cdef Py_buffer view
    cdef int64_t low = 0, high, middle
    cdef const uint8_t* p
    PyObject_GetBuffer(index, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t*>view.buf
        high = view.len // OFFSET_ENTRY_SIZE
        while low < high:
            middle = (low + high) // 2
            if base_offset + load_i32(p + middle * OFFSET_ENTRY_SIZE) <= target:
                low = middle + 1
            else:
                high = middle
        return load_i32(p + (low - 1) * OFFSET_ENTRY_SIZE + 4) if low else 0
    finally:
        PyBuffer_Release(&view)


def find_in_time_index(index, int64_t base_offset, int64_t timestamp):
    """Return the offset to search from for a time (ms): that of the last entry at or below it, or the base."""
    cdef Py_buffer view
    cdef int64_t low = 0, high, middle
    cdef const uint8_t* p
    PyObject_GetBuffer(index, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t*>view.buf
        high = view.len // TIME_ENTRY_SIZE
        while low < high:
            middle = (low + high) // 2
            if load_i64(p + middle * TIME_ENTRY_SIZE) <= timestamp:
                low = middle + 1
            else:
                high = middle
        return base_offset + load_i32(p + (low - 1) * TIME_ENTRY_SIZE + 8) if low else base_offset
    finally:
        PyBuffer_Release(&view)
