# Records from columns: Arrow buffers by address, straight into the accumulator's batches.

cdef struct Column:
    const uint8_t* validity     # one bit a row, NULL when every row has a value
    const uint8_t* offsets      # count + 1 of 4 or 8 bytes; NULL for a column of fixed width
    const uint8_t* data
    int64_t data_size
    int64_t first               # row of the arrays at which the column begins
    bint wide                   # offsets of 8 bytes


cdef inline bint has_value(const Column* column, int64_t row) noexcept nogil:
    row += column.first
    return column.validity == NULL or column.validity[row >> 3] >> (row & 7) & 1


cdef inline int value_at(const Column* column, int64_t row, Span* span) noexcept nogil:
    """The bytes of a row; -1 when its offsets leave the data."""
    cdef int64_t start, end
    cdef int32_t narrow[2]
    cdef int64_t wide[2]
    if not has_value(column, row):
        span.data = NULL
        span.size = 0
        return 0
    row += column.first
    if column.wide:
        memcpy(wide, column.offsets + 8 * row, 16)
        start, end = wide[0], wide[1]
    else:
        memcpy(narrow, column.offsets + 4 * row, 8)
        start, end = narrow[0], narrow[1]
    if start < 0 or end < start or end > column.data_size:
        return -1
    span.data = column.data + start
    span.size = <Py_ssize_t>(end - start)
    return 0


cdef int take_column(object source, int64_t count, int width, Column* column) except -1:
    """Unpacks (first row, validity, offsets, data, wide) with (address, size) or None each, and
    checks that the buffers hold `count` rows; `width` is of a value, 0 with offsets."""
    cdef int64_t size
    cdef size_t address
    first, validity, offsets, data, wide = source
    column.first = first
    column.wide = wide
    column.validity = column.offsets = column.data = NULL
    if first < 0:
        raise errors.CorruptRecord(f"Arrow column: first row {first}")
    count += column.first
    if validity is not None:
        address, size = validity
        if size < (count + 7) // 8:
            raise errors.CorruptRecord(f"Arrow column: {size} bytes of validity for {count} rows")
        column.validity = <const uint8_t*>address
    if data is not None:
        address, size = data
        column.data = <const uint8_t*>address
        column.data_size = size
    if column.data == NULL:
        column.data = &EMPTY_BYTES
        column.data_size = 0
    if width:
        if column.data_size < count * width:
            raise errors.CorruptRecord(f"Arrow column: {column.data_size} bytes for {count} rows of {width}")
        return 0
    if offsets is None:
        raise errors.CorruptRecord("Arrow column: no offsets")
    address, size = offsets
    if size < (count + 1) * (8 if wide else 4):
        raise errors.CorruptRecord(f"Arrow column: {size} bytes of offsets for {count} rows")
    column.offsets = <const uint8_t*>address
    return 0


def produce_columns(
    RecordAccumulator accumulator, str topic, int64_t count, value, key=None, timestamp=None,
    partition=None, headers=None,
) -> int:
    """Buffer `count` records whose parts are columns.

    Args:
        value, key: `(first row, validity, offsets, data, wide)`, each buffer `(address, size)` or
            None; what they point to must stay until the call returns. None: all null.
        timestamp: the same without offsets, int64 ms; null for now.
        partition: the same, int32; null to choose by key.
        headers: a list of (name, value) pairs or None a record, or None.
    """
    cdef Column values, keys, stamps, places
    cdef Span key_span = Span(NULL, 0), value_span = Span(NULL, 0)
    cdef ByteBuffer encoded = ByteBuffer(NULL, 0, 0)
    cdef TopicBuilders entry
    cdef int64_t row, now = 0, stamp
    cdef int32_t place
    cdef bint with_values = value is not None, with_keys = key is not None
    cdef bint with_stamps = timestamp is not None, with_places = partition is not None

    if accumulator.gate:
        accumulator._refuse()
    entry = accumulator.topic_builders(topic)
    if with_values:
        take_column(value, count, 0, &values)
    if with_keys:
        take_column(key, count, 0, &keys)
    if with_stamps:
        take_column(timestamp, count, 8, &stamps)
    if with_places:
        take_column(partition, count, 4, &places)
    try:
        for row in range(count):
            if row & 1023 == 0:
                now = wall_clock_ms()
            if with_values and value_at(&values, row, &value_span) < 0:
                raise errors.CorruptRecord(f"Arrow column value: the offsets of row {row} leave its data")
            if with_keys and value_at(&keys, row, &key_span) < 0:
                raise errors.CorruptRecord(f"Arrow column key: the offsets of row {row} leave its data")
            stamp = now
            if with_stamps and has_value(&stamps, row):
                memcpy(&stamp, stamps.data + 8 * (row + stamps.first), 8)
                if stamp < 0:
                    raise errors.SerializationError(f"row {row}: timestamp {stamp} is negative")
            place = -1
            if with_places and has_value(&places, row):
                memcpy(&place, places.data + 4 * (row + places.first), 4)
                place = accumulator.checked_partition(entry, place)
            elif accumulator.mode == CALLABLE:
                place = accumulator.checked_partition(entry, accumulator.partitioner(
                    topic, None if key_span.data == NULL else (<const char*>key_span.data)[:key_span.size],
                    entry.count))
            encoded.size = 0
            if headers is not None and headers[row]:
                put_headers(&encoded, headers[row])
            accumulator.put(entry, key_span, value_span, encoded.data, encoded.size, place, stamp,
                            None, entry.bulk_limit)
            if accumulator.must_wake:
                accumulator.wake()
    finally:
        clear_buffer(&encoded)
    return count
