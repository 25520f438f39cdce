# Building record batches from Python values, with one object per record. The fast path is
# accumulator.pxi.
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from eoslog._core.format cimport layout
from eoslog._core.format.batch_header cimport (
    BatchHeader, put_header, put_header_fields, seal_crc, seal_crc_onto,
)
from eoslog._core.format.bytebuffer cimport ByteBuffer, clear_buffer, put_bytes, reserve
from eoslog._core.format.byteorder cimport load_i16, load_i32, load_i64, load_u32, store_i16, store_i32, store_i64
from eoslog._core.format.record cimport Span, put_record
from eoslog._core.format.varint cimport encode_varlong

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef int64_t MAX_DELTA = 2147483647


cdef int span_of_bytes(object data, Span* span) except -1:
    """Borrow the bytes of `data` (bytes or None), which must outlive `span`."""
    if data is None:
        span.data = NULL
        span.size = 0
    elif isinstance(data, bytes):
        span.data = <const uint8_t*>PyBytes_AS_STRING(data)
        span.size = PyBytes_GET_SIZE(data)
    else:
        raise errors.SerializationError(f"a key or value in a batch must be bytes or None, not {type(data).__name__}")
    return 0


cdef int put_varint(ByteBuffer* buffer, int64_t value) except -1:
    if reserve(buffer, 10) < 0:
        raise MemoryError()
    buffer.size = <size_t>(encode_varlong(buffer.data + buffer.size, value) - buffer.data)
    return 0


cdef const char* utf8_of(str text, Py_ssize_t* size, str part, str name) except NULL:
    try:
        return PyUnicode_AsUTF8AndSize(text, size)
    except UnicodeEncodeError:
        raise errors.SerializationError(
            f"the {part} of header {shown(name)} is not UTF-8: {shown(text)}; give bytes, or text without lone surrogates"
        ) from None


cdef int put_sized(ByteBuffer* buffer, const void* data, Py_ssize_t size, size_t limit, str limited_by) except -1:
    """Append the size and the bytes of a header's name or value, which is not copied above a limit."""
    if buffer.size + <size_t>size > limit:
        raise errors.RecordTooLarge(f"a record of more than {buffer.size + size} bytes exceeds {limited_by} = {limit}")
    put_varint(buffer, size)
    if put_bytes(buffer, data, <size_t>size) < 0:
        raise MemoryError()
    return 0


cdef int put_headers(ByteBuffer* buffer, object headers, size_t limit, str limited_by) except -1:
    """Append the count and the headers: (name, value) pairs or a mapping; str values as UTF-8."""
    cdef Py_ssize_t size
    cdef const char* text
    cdef Py_buffer view
    try:
        items = headers.items() if isinstance(headers, dict) else headers
        put_varint(buffer, len(items))
    except TypeError:
        raise errors.SerializationError(f"headers: expected (name, value) pairs or a mapping, got {shown(headers)}") from None
    for pair in items:
        try:
            name, value = pair
        except (TypeError, ValueError):
            raise errors.SerializationError(f"a header must be a (name, value) pair, not {shown(pair)}") from None
        if not isinstance(name, str):
            raise errors.SerializationError(f"a header's name must be str, not {type(name).__name__}")
        text = utf8_of(name, &size, "name", name)
        put_sized(buffer, text, size, limit, limited_by)
        if value is None:
            put_varint(buffer, -1)
        elif isinstance(value, str):
            text = utf8_of(value, &size, "value", name)
            put_sized(buffer, text, size, limit, limited_by)
        else:
            try:
                PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
            except (TypeError, BufferError):
                raise errors.SerializationError(
                    f"the value of header {shown(name)} must be bytes, str or None, not {type(value).__name__}"
                ) from None
            try:
                put_sized(buffer, view.buf, view.len, limit, limited_by)
            finally:
                PyBuffer_Release(&view)
    return 0


cdef int check_producer(int64_t producer_id, int producer_epoch, int64_t base_sequence,
                        bint transactional, bint control) except -1:
    if transactional and producer_id < 0:
        raise errors.ConfigError(f"a transactional batch needs a producer id, not {producer_id}")
    if producer_id >= 0 and producer_epoch < 0:
        raise errors.ConfigError(f"producer id {producer_id} needs an epoch, not {producer_epoch}")
    return 0


def build_batch(
    records, *, int64_t base_offset=0, str compression="none", level=None, int64_t producer_id=-1,
    int16_t producer_epoch=-1, int32_t base_sequence=-1, bint transactional=False,
    bint control=False, int32_t leader_epoch=0, int timestamp_type=0, max_timestamp=None,
    offset_deltas=None, last_offset_delta=None, delete_horizon_ms=None,
) -> bytes:
    """Build one record batch (v2), including header and CRC.

    Args:
        records: sequence of `(timestamp_ms, key, value, headers)`; key and value bytes or None,
            headers a sequence of `(name, bytes or None)`.
        compression: none, gzip, snappy, lz4 or zstd; a control batch is never compressed.
        level: compression level; None: the codec's default.
        base_sequence: may be -1 in spite of a producer id, for batches of a coordinator.
        timestamp_type: 0 CreateTime, 1 LogAppendTime (then `max_timestamp` is the append time).
        max_timestamp: None: the largest of the records.
        offset_deltas: offset delta of each record, ascending; None: 0, 1, 2, ...
        last_offset_delta: None: that of the last record; larger if compaction removed the last records.
        delete_horizon_ms: written instead of the base timestamp, with its attribute bit.

    Raises:
        ConfigError: if fields exclude each other.
        SerializationError: if a key, value or header has another type.
        RecordTooLarge: if the batch exceeds its 31-bit length.

    Source: Kafka message format v2 (KIP-98), delete horizon KIP-534.
    """
    cdef ByteBuffer buffer, headers
    cdef Span key = Span(NULL, 0), value = Span(NULL, 0)
    cdef BatchHeader header
    cdef int64_t base = -1, latest = -1, timestamp, delta = -1, previous = -1
    cdef Py_ssize_t index = 0
    cdef int codec = 0 if control else codec_id(compression)
    cdef bytes packed

    check_producer(producer_id, producer_epoch, base_sequence, transactional, control)
    buffer.data = headers.data = NULL
    buffer.size = headers.size = 0
    buffer.capacity = headers.capacity = 0
    try:
        if reserve(&buffer, 1024) < 0:
            raise MemoryError()
        buffer.size = layout.HEADER_SIZE
        if delete_horizon_ms is not None:
            base = delete_horizon_ms
        for record in records:
            stamp, key_bytes, value_bytes, record_headers = record
            timestamp = stamp
            if timestamp < -1:
                raise errors.ConfigError(f"a timestamp is -1 (none) or not negative, not {timestamp}")
            span_of_bytes(key_bytes, &key)
            span_of_bytes(value_bytes, &value)
            if index == 0 and delete_horizon_ms is None:
                base = timestamp
            if timestamp > latest:
                latest = timestamp
            delta = index if offset_deltas is None else offset_deltas[index]
            if delta <= previous or delta > MAX_DELTA:
                raise errors.ConfigError(f"offset delta {delta} does not follow {previous}")
            previous = delta
            headers.size = 0
            if record_headers:
                put_headers(&headers, record_headers, MAX_DELTA, "the limit of a batch")
            if put_record(&buffer, timestamp - base, <int32_t>delta, key, value,
                          headers.data if headers.size else NULL, headers.size) < 0:
                raise MemoryError()
            index += 1
            if buffer.size > <size_t>MAX_DELTA:
                raise errors.RecordTooLarge(f"a batch of {buffer.size} bytes exceeds {MAX_DELTA}")

        if index == 0:
            codec = 0
        if codec:
            packed = compress_records(
                codec, buffer.data + layout.HEADER_SIZE, buffer.size - layout.HEADER_SIZE, level)
            buffer.size = layout.HEADER_SIZE
            if put_bytes(&buffer, PyBytes_AS_STRING(packed), <size_t>PyBytes_GET_SIZE(packed)) < 0:
                raise MemoryError()

        header.base_offset = base_offset
        header.leader_epoch = leader_epoch
        header.attributes = codec
        if timestamp_type:
            header.attributes |= layout.LOG_APPEND_TIME_BIT
        if transactional:
            header.attributes |= layout.TRANSACTIONAL_BIT
        if control:
            header.attributes |= layout.CONTROL_BIT
        if delete_horizon_ms is not None:
            header.attributes |= layout.DELETE_HORIZON_BIT
        if last_offset_delta is not None:
            if last_offset_delta < delta:
                raise errors.ConfigError(f"last offset delta {last_offset_delta} is below a record's {delta}")
            delta = last_offset_delta
        header.last_offset_delta = <int32_t>(delta if delta >= 0 else 0)
        header.base_timestamp = base
        header.max_timestamp = latest if max_timestamp is None else max_timestamp
        header.producer_id = producer_id
        header.producer_epoch = producer_epoch
        header.base_sequence = base_sequence
        header.count = <int32_t>index
        put_header(buffer.data, buffer.size, &header)
        return PyBytes_FromStringAndSize(<const char*>buffer.data, <Py_ssize_t>buffer.size)
    finally:
        clear_buffer(&buffer)
        clear_buffer(&headers)


def build_marker(
    int64_t producer_id, int16_t producer_epoch, bint commit, *, int32_t coordinator_epoch=0,
    int64_t timestamp, int64_t base_offset=0, int32_t leader_epoch=0,
) -> bytes:
    """Build the control batch that ends a transaction in one partition; always 78 bytes."""
    cdef uint8_t key[4]
    cdef uint8_t value[6]
    cdef ByteBuffer batch
    cdef BatchHeader header
    cdef Span key_span = Span(&key[0], 4), value_span = Span(&value[0], 6)
    check_producer(producer_id, producer_epoch, -1, True, True)
    if timestamp < -1:
        raise errors.ConfigError(f"a timestamp is -1 (none) or not negative, not {timestamp}")
    store_i16(key, 0)
    store_i16(key + 2, layout.CONTROL_COMMIT if commit else layout.CONTROL_ABORT)
    store_i16(value, 0)
    store_i32(value + 2, coordinator_epoch)
    header = BatchHeader(base_offset, leader_epoch, layout.TRANSACTIONAL_BIT | layout.CONTROL_BIT, 0,
                         timestamp, timestamp, producer_id, producer_epoch, -1, 1)
    batch.data = NULL
    batch.size = batch.capacity = 0
    try:
        if reserve(&batch, layout.HEADER_SIZE) < 0:
            raise MemoryError()
        batch.size = layout.HEADER_SIZE
        if put_record(&batch, 0, 0, key_span, value_span, NULL, 0) < 0:
            raise MemoryError()
        put_header(batch.data, batch.size, &header)
        return PyBytes_FromStringAndSize(<const char*>batch.data, <Py_ssize_t>batch.size)
    finally:
        clear_buffer(&batch)


def stamp_batches(
    batches, *, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
    bint transactional,
) -> int:
    """Write producer fields into consecutive batches, in place.

    Each batch is checked against its CRC. The new CRC is computed from the old one and the header, so
    that the records are checksummed only once. Sequences continue from batch to batch.

    Args:
        batches: a writable buffer of complete v2 batches.

    Returns:
        The number of records in the batches.

    Raises:
        CorruptRecord: if the bytes are not complete v2 batches, or a CRC is wrong (a damaged batch must
            not get a right CRC). Earlier batches are already changed.
    """
    cdef Py_buffer view
    cdef uint8_t* p
    cdef uint8_t* end
    cdef int64_t size = 0, count = 0
    cdef int step = BATCH_END
    cdef uint32_t summed, before, after
    cdef int16_t attributes

    check_producer(producer_id, producer_epoch, base_sequence, transactional, False)
    PyObject_GetBuffer(batches, &view, PyBUF_WRITABLE)
    try:
        p = <uint8_t*>view.buf
        end = p + view.len
        with nogil:
            while p < end:
                step = next_batch(p, end, &size)
                if step != BATCH_WHOLE:
                    break
                summed = eoslog_crc32c(0, p + layout.ATTRIBUTES_AT, <size_t>size - layout.ATTRIBUTES_AT)
                if summed != load_u32(p + layout.CRC_AT):
                    step = BATCH_CRC
                    break
                before = eoslog_crc32c(0, p + layout.ATTRIBUTES_AT, layout.HEADER_SIZE - layout.ATTRIBUTES_AT)
                attributes = load_i16(p + layout.ATTRIBUTES_AT) & ~layout.TRANSACTIONAL_BIT
                if transactional:
                    attributes |= layout.TRANSACTIONAL_BIT
                store_i16(p + layout.ATTRIBUTES_AT, attributes)
                store_i64(p + layout.PRODUCER_ID_AT, producer_id)
                store_i16(p + layout.PRODUCER_EPOCH_AT, producer_epoch)
                store_i32(p + layout.BASE_SEQUENCE_AT, base_sequence)
                after = eoslog_crc32c(0, p + layout.ATTRIBUTES_AT, layout.HEADER_SIZE - layout.ATTRIBUTES_AT)
                # A CRC is linear over xor: add the effect of the header's change, followed by the same records.
                store_i32(p + layout.CRC_AT, <int32_t>eoslog_crc32c_combine(
                    before ^ after, summed, <size_t>size - layout.HEADER_SIZE))
                count += load_i32(p + layout.RECORDS_COUNT_AT)
                if base_sequence >= 0:
                    base_sequence = sequence_add(base_sequence, load_i32(p + layout.RECORDS_COUNT_AT))
                p += size
        if p < end:
            where = f"byte {p - <uint8_t*>view.buf}"
            if step == BATCH_END:
                raise errors.CorruptRecord(f"no complete batch at byte {where} of {view.len}")
            raise batch_fault(step, p, size if step == BATCH_CRC else end - p, where)
        return count
    finally:
        PyBuffer_Release(&view)
