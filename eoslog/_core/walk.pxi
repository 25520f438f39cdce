# Walking whole batches by their headers, for readers.

def walk_batches(data, int64_t position, int64_t start, int64_t end, int64_t size_max, int64_t least=0):
    """Find the whole batches of [start, end) from a batch boundary on.

    Args:
        data: a buffer; position: byte in it where a batch begins.
        start, end: offsets; batches that end below start are skipped, none at or past end is loaded.
        size_max: bytes to stop at; at least one batch is taken.
        least: no batch from `position` on has a lower base offset.

    Returns:
        (first, stop, base offset, next offset, needed): bytes [first, stop) hold the batches;
        first == stop when none is complete, then `needed` bytes from `first` on are (0: the data ends).

    Raises:
        CorruptRecord: no batch header where one must be, or offsets go back: a base offset is not
            under the batch's CRC, but it can't change without that.
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
    """The ends of transactions among a segment's batches, by their headers.

    Returns:
        [(producer id, its first data offset since its last end in here or -1, offset of that end
        or -1, offset of this end, whether it aborts)], or None where a batch is of an older format.
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
    """Position to scan from for an offset: the greatest entry at or below it (Kafka OffsetIndex.lookup)."""
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
    """Offset to search from for a time in ms: that of the greatest entry at or below it, else the base."""
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
