# The inside of a batch: one record after another, parsed in place and bounded by `end`.
#
#   length varint | attributes i8 | timestampDelta varlong | offsetDelta varint
#   keyLength varint (<0 null) | key | valueLength varint (<0 null) | value
#   headerCount varint | headerCount x (keyLength varint, key, valueLength varint (<0 null), value)
#
# The same checks hold whether the caller wants the fields or only walks over them.
from libc.stdint cimport int32_t, int64_t, uint8_t

from eoslog._core.varint cimport decode_varint, decode_varlong

cdef enum:
    MIN_RECORD_SIZE = 7         # each of the seven fields takes at least one byte

cdef enum RecordFault:
    RECORD_OK = 0
    RECORD_MISSING              # fewer records than the batch header counts
    RECORD_LEFTOVER             # bytes after the last record
    RECORD_SIZE                 # the record claims more bytes than remain
    RECORD_FIELDS               # a varint is cut short or too long
    RECORD_KEY_SIZE
    RECORD_VALUE_SIZE
    RECORD_HEADER_COUNT
    RECORD_HEADER_KEY
    RECORD_HEADER_VALUE
    RECORD_BODY                 # declared and parsed length of a record differ
    RECORD_OFFSET               # an offset outside the batch, or not after the one before

cdef struct Fault:
    int code
    int64_t claimed             # what the bytes say
    int64_t actual              # what they should have said, or the room there is
    const uint8_t* at

cdef struct RecordFields:
    int64_t timestamp_delta
    const uint8_t* key
    const uint8_t* value
    const uint8_t* headers      # the first header's key length
    const uint8_t* end          # one past the record
    int32_t offset_delta
    int32_t key_size            # negative: null
    int32_t value_size          # negative: null
    int32_t header_count

cdef struct HeaderFields:
    const uint8_t* key
    const uint8_t* value
    int32_t key_size
    int32_t value_size          # negative: null

cdef inline const uint8_t* record_fault(
    Fault* fault, int code, const uint8_t* at, int64_t claimed, int64_t actual
) noexcept nogil:
    fault.code = code
    fault.at = at
    fault.claimed = claimed
    fault.actual = actual
    return NULL

cdef inline const uint8_t* parse_record_header(
    const uint8_t* p, const uint8_t* end, HeaderFields* out, Fault* fault
) noexcept nogil:
    """Returns the byte after the header, or NULL with the fault filled in."""
    cdef const uint8_t* start = p
    p = decode_varint(p, end, &out.key_size)
    if p == NULL:
        return record_fault(fault, RECORD_FIELDS, start, 0, end - start)
    if out.key_size < 0 or out.key_size > end - p:
        return record_fault(fault, RECORD_HEADER_KEY, start, out.key_size, end - p)
    out.key = p
    p += out.key_size
    start = p
    p = decode_varint(p, end, &out.value_size)
    if p == NULL:
        return record_fault(fault, RECORD_FIELDS, start, 0, end - start)
    out.value = p
    if out.value_size > 0:
        if out.value_size > end - p:
            return record_fault(fault, RECORD_HEADER_VALUE, start, out.value_size, end - p)
        p += out.value_size
    return p

cdef inline const uint8_t* parse_record(
    const uint8_t* p, const uint8_t* end, RecordFields* out, Fault* fault
) noexcept nogil:
    """Returns the byte after the record, or NULL with the fault filled in. Headers are checked too."""
    cdef const uint8_t* start = p
    cdef const uint8_t* stop
    cdef HeaderFields header
    cdef int32_t size, i
    p = decode_varint(p, end, &size)
    if p == NULL:
        return record_fault(fault, RECORD_FIELDS, start, 0, end - start)
    if size < 0 or size > end - p:
        return record_fault(fault, RECORD_SIZE, start, size, end - p)
    if size < MIN_RECORD_SIZE - 1:
        return record_fault(fault, RECORD_BODY, start, size, MIN_RECORD_SIZE - 1)
    stop = p + size
    out.end = stop
    p += 1                                          # attributes: unused
    p = decode_varlong(p, stop, &out.timestamp_delta)
    if p == NULL:
        return record_fault(fault, RECORD_FIELDS, start, 0, size)
    p = decode_varint(p, stop, &out.offset_delta)
    if p == NULL:
        return record_fault(fault, RECORD_FIELDS, start, 0, size)
    p = decode_varint(p, stop, &out.key_size)
    if p == NULL:
        return record_fault(fault, RECORD_FIELDS, start, 0, size)
    out.key = p
    if out.key_size > 0:
        if out.key_size > stop - p:
            return record_fault(fault, RECORD_KEY_SIZE, start, out.key_size, stop - p)
        p += out.key_size
    p = decode_varint(p, stop, &out.value_size)
    if p == NULL:
        return record_fault(fault, RECORD_FIELDS, start, 0, size)
    out.value = p
    if out.value_size > 0:
        if out.value_size > stop - p:
            return record_fault(fault, RECORD_VALUE_SIZE, start, out.value_size, stop - p)
        p += out.value_size
    p = decode_varint(p, stop, &out.header_count)
    if p == NULL:
        return record_fault(fault, RECORD_FIELDS, start, 0, size)
    out.headers = p
    if out.header_count != 0:
        if out.header_count < 0 or out.header_count > stop - p:
            return record_fault(fault, RECORD_HEADER_COUNT, start, out.header_count, stop - p)
        for i in range(out.header_count):
            p = parse_record_header(p, stop, &header, fault)
            if p == NULL:
                return NULL
    if p != stop:
        return record_fault(fault, RECORD_BODY, start, size, size - (stop - p))
    return stop
