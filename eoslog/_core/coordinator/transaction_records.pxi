# Encoding the records of __transaction_state, in complete batches of one record. A transaction writes
# three. Layout and tags: coordinator/transactions/records.py, which decodes them.
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from libc.stdint cimport int8_t
from libc.string cimport memset

cdef enum:                      # tagged fields of a value
    TAG_PREVIOUS_ID = 0
    TAG_NEXT_ID = 1
    TAG_CLIENT_VERSION = 2
    TAG_SPANS = 10000
    TAG_OWNER = 10001
    TAG_DECIDED = 10003
    TAG_LAST_EPOCH = 10004
    TAG_OPENED = 10005
    TAG_UNDECIDED = 10006
    TAG_CARRIED = 10007

cdef enum:
    ONGOING = 1
    PREPARED = 64               # this state and those above are Ongoing for Kafka, which knows no others
    KAFKA_FOREVER = 0x7FFFFFFF  # the timeout in ms of transactions that Kafka must not time out (KIP-939)


cdef int make_room(ByteBuffer* buffer, size_t more) except -1:
    if reserve(buffer, more) < 0:
        raise MemoryError()
    return 0


cdef int put_uvarint(ByteBuffer* buffer, uint64_t value) except -1:
    make_room(buffer, 10)
    while value >= 0x80:
        buffer.data[buffer.size] = <uint8_t>(value | 0x80)
        buffer.size += 1
        value >>= 7
    buffer.data[buffer.size] = <uint8_t>value
    buffer.size += 1
    return 0


cdef int put_i16(ByteBuffer* buffer, int16_t value) except -1:
    make_room(buffer, 2)
    store_i16(buffer.data + buffer.size, value)
    buffer.size += 2
    return 0


cdef int put_i32(ByteBuffer* buffer, int32_t value) except -1:
    make_room(buffer, 4)
    store_i32(buffer.data + buffer.size, value)
    buffer.size += 4
    return 0


cdef int put_i64(ByteBuffer* buffer, int64_t value) except -1:
    make_room(buffer, 8)
    store_i64(buffer.data + buffer.size, value)
    buffer.size += 8
    return 0


cdef int put_i8(ByteBuffer* buffer, int8_t value) except -1:
    make_room(buffer, 1)
    buffer.data[buffer.size] = <uint8_t>value
    buffer.size += 1
    return 0


cdef int put_raw(ByteBuffer* buffer, const void* data, size_t size) except -1:
    if put_bytes(buffer, data, size) < 0:
        raise MemoryError()
    return 0


cdef int put_topics(ByteBuffer* buffer, list rows, bint tagged) except -1:
    """Append a compact array of topics, each with the rows of its partitions.

    Rows are (topic, bytes after the name: b"" or a topic id, partition, i64s ...). A topic that was
    deleted and re-created has two ids, and counts as two topics."""
    cdef Py_ssize_t at = 0, end, size, groups = 0, i, count = len(rows)
    cdef const char* text
    cdef tuple row
    cdef bytes between
    if count > 1:
        rows.sort()
        for i in range(1, count):
            groups += (<tuple>rows[i])[:2] != (<tuple>rows[i - 1])[:2]
    put_uvarint(buffer, <uint64_t>(groups + (count > 0) + 1))
    while at < count:
        row = <tuple>rows[at]
        end = at + 1
        while end < count and (<tuple>rows[end])[:2] == row[:2]:
            end += 1
        text = PyUnicode_AsUTF8AndSize(row[0], &size)
        put_uvarint(buffer, <uint64_t>size + 1)
        put_raw(buffer, text, <size_t>size)
        between = row[1]
        put_raw(buffer, PyBytes_AS_STRING(between), <size_t>PyBytes_GET_SIZE(between))
        put_uvarint(buffer, <uint64_t>(end - at) + 1)
        while at < end:
            row = <tuple>rows[at]
            put_i32(buffer, row[2])
            for i in range(3, len(row)):
                put_i64(buffer, row[i])
            at += 1
        if tagged:
            put_uvarint(buffer, 0)
    return 0


cdef int put_tagged_topics(ByteBuffer* buffer, int tag, list rows) except -1:
    cdef ByteBuffer field
    memset(&field, 0, sizeof(field))
    try:
        put_topics(&field, rows, False)
        put_uvarint(buffer, <uint64_t>tag)
        put_uvarint(buffer, field.size)
        put_raw(buffer, field.data, field.size)
    finally:
        clear_buffer(&field)
    return 0


cdef int put_tag(ByteBuffer* buffer, int tag, int size) except -1:
    put_uvarint(buffer, <uint64_t>tag)
    put_uvarint(buffer, <uint64_t>size)
    return 0


cdef int put_carried(ByteBuffer* buffer, carried) except -1:
    """Append the tagged field with the batches that a decision carries: rows of (topic, topic id, partition,
    first offset, bytes)."""
    cdef ByteBuffer field
    cdef const char* text
    cdef Py_ssize_t size
    memset(&field, 0, sizeof(field))
    try:
        put_uvarint(&field, <uint64_t>len(carried) + 1)
        for topic, topic_id, partition, first, data in carried:
            text = PyUnicode_AsUTF8AndSize(topic, &size)
            put_uvarint(&field, <uint64_t>size + 1)
            put_raw(&field, text, <size_t>size)
            put_raw(&field, PyBytes_AS_STRING(topic_id), 16)
            put_i32(&field, partition)
            put_i64(&field, first)
            put_uvarint(&field, <uint64_t>PyBytes_GET_SIZE(data) + 1)
            put_raw(&field, PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data))
            put_uvarint(&field, 0)          # no tagged fields
        put_uvarint(buffer, TAG_CARRIED)
        put_uvarint(buffer, field.size)
        put_raw(buffer, field.data, field.size)
    finally:
        clear_buffer(&field)
    return 0


cdef int put_transaction_value(ByteBuffer* buffer, m, carried) except -1:
    """Encode a TransactionMetadata, and the batches that it carries, as the value of a record."""
    if not isinstance(m, tuple):
        raise TypeError(f"expected a TransactionMetadata, got {type(m).__name__}")
    (_, producer_id, producer_epoch, timeout_ms, state, partitions, start_timestamp, last_update,
     previous_id, next_id, last_epoch, client_version, spans, owner, decided, opened_ns,
     _) = <tuple>m
    cdef int64_t previous_producer = previous_id, next_producer = next_id, opened = opened_ns
    cdef int last_producer_epoch = last_epoch, kind = state
    cdef bint undecided = kind >= PREPARED
    put_i16(buffer, 1)
    put_i64(buffer, producer_id)
    put_i16(buffer, producer_epoch)
    put_i32(buffer, KAFKA_FOREVER if undecided else timeout_ms)
    put_i8(buffer, <int8_t>(ONGOING if undecided else kind))
    if kind == 0:                       # Empty: a null array
        put_uvarint(buffer, 0)
    else:
        put_topics(buffer, [(tp.topic, b"", tp.partition) for tp in partitions], True)
    put_i64(buffer, last_update)
    put_i64(buffer, start_timestamp)
    put_uvarint(buffer, 1 + (previous_producer >= 0) + (next_producer >= 0) + (1 if spans else 0)
                + (owner is not None) + (decided is not None) + (last_producer_epoch >= 0)
                + (opened >= 0) + undecided + (1 if carried else 0))
    if previous_producer >= 0:
        put_tag(buffer, TAG_PREVIOUS_ID, 8)
        put_i64(buffer, previous_producer)
    if next_producer >= 0:
        put_tag(buffer, TAG_NEXT_ID, 8)
        put_i64(buffer, next_producer)
    put_tag(buffer, TAG_CLIENT_VERSION, 2)
    put_i16(buffer, client_version)
    if spans:
        rows = []
        for tp, span in spans.items():
            first, last, topic_id = <tuple>span
            rows.append((tp.topic, topic_id, tp.partition, first, last))
        put_tagged_topics(buffer, TAG_SPANS, rows)
    if owner is not None:
        number, nonce = owner
        put_tag(buffer, TAG_OWNER, 12)
        put_i32(buffer, number)
        put_i64(buffer, <int64_t><uint64_t>nonce)
    if decided is not None:
        decided_id, data_epoch, commit, cause = <tuple>decided
        put_tag(buffer, TAG_DECIDED, 12)
        put_i64(buffer, decided_id)
        put_i16(buffer, data_epoch)
        put_i8(buffer, 1 if commit else 0)
        put_i8(buffer, cause)
    if last_producer_epoch >= 0:
        put_tag(buffer, TAG_LAST_EPOCH, 2)
        put_i16(buffer, <int16_t>last_producer_epoch)
    if opened >= 0:
        put_tag(buffer, TAG_OPENED, 8)
        put_i64(buffer, opened)
    if undecided:
        put_tag(buffer, TAG_UNDECIDED, 5)
        put_i8(buffer, <int8_t>kind)
        put_i32(buffer, timeout_ms)
    if carried:
        put_carried(buffer, carried)
    return 0


def transaction_value(metadata) -> bytes:
    """Return a TransactionMetadata as the value of a record."""
    cdef ByteBuffer buffer
    memset(&buffer, 0, sizeof(buffer))
    try:
        put_transaction_value(&buffer, metadata, ())
        return PyBytes_FromStringAndSize(<const char*>buffer.data, <Py_ssize_t>buffer.size)
    finally:
        clear_buffer(&buffer)


def transaction_batch(int64_t timestamp, metadata, carried=()) -> bytearray:
    """Return a batch with one record, a TransactionMetadata, as `build_batch` makes it.

    `carried`: rows of (topic, topic id, partition, first offset, bytes), the batches that a decision carries.

    The batch is writable, so that an append can write its offset in place."""
    cdef ByteBuffer key, value, batch
    cdef BatchHeader header
    cdef Span key_span = Span(NULL, 0), value_span = Span(NULL, 0)
    cdef Py_ssize_t size
    cdef const char* text
    memset(&key, 0, sizeof(key))
    memset(&value, 0, sizeof(value))
    memset(&batch, 0, sizeof(batch))
    try:
        name = metadata.transactional_id
        text = PyUnicode_AsUTF8AndSize(name, &size)
        put_i16(&key, 0)
        put_i16(&key, <int16_t>size)
        put_raw(&key, text, <size_t>size)
        put_transaction_value(&value, metadata, carried)
        make_room(&batch, layout.HEADER_SIZE)
        batch.size = layout.HEADER_SIZE
        key_span = Span(key.data, <Py_ssize_t>key.size)
        value_span = Span(value.data, <Py_ssize_t>value.size)
        if put_record(&batch, 0, 0, key_span, value_span, NULL, 0) < 0:
            raise MemoryError()
        header = BatchHeader(0, 0, 0, 0, timestamp, timestamp, -1, -1, -1, 1)
        put_header(batch.data, batch.size, &header)
        return PyByteArray_FromStringAndSize(<const char*>batch.data, <Py_ssize_t>batch.size)
    finally:
        clear_buffer(&key)
        clear_buffer(&value)
        clear_buffer(&batch)
