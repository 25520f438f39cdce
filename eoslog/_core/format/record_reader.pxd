# Parsing the records of a batch, one after another, in place and bounded by `end`.
#
#   length varint | attributes i8 | timestampDelta varlong | offsetDelta varint
#   keyLength varint (<0 null) | key | valueLength varint (<0 null) | value
#   headerCount varint | headerCount x (keyLength varint, key, valueLength varint (<0 null), value)
#
# The checks are the same whether the caller uses the fields or skips the record.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from eoslog._core.format.varint cimport decode_varint, decode_varlong

cdef extern from *:
    """
    #define eoslog_unlikely(x) __builtin_expect(!!(x), 0)
    #define eoslog_prefetch(p) __builtin_prefetch(p, 0, 2)
    """
    void prefetch "eoslog_prefetch"(const void* p) noexcept nogil
    bint unlikely "eoslog_unlikely"(bint) noexcept nogil

cdef enum:
    MIN_RECORD_SIZE = 7         # each of the seven fields takes at least one byte
    COMMON_BEFORE_KEY = 13      # four varints of three bytes and the attributes
    COMMON_BEHIND_KEY = 4       # a varint of three bytes and the count of headers

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
    int64_t claimed             # value in the bytes
    int64_t actual              # expected value, or available bytes
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

cdef inline const uint8_t* parse_sized(
    const uint8_t* p, const uint8_t* end, const uint8_t** data, int32_t* size, int too_long, int64_t room, Fault* fault
) noexcept nogil:
    """Parse a length (negative: null) and that many bytes. `room`: for the fault of a truncated varint.
    Returns the byte after them, or NULL with the fault filled in."""
    cdef const uint8_t* start = p
    p = decode_varint(p, end, size)
    if p == NULL:
        return record_fault(fault, RECORD_FIELDS, start, 0, room)
    data[0] = p
    if size[0] > 0:
        if size[0] > end - p:
            return record_fault(fault, too_long, start, size[0], end - p)
        p += size[0]
    return p

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
    return parse_sized(p, end, &out.value, &out.value_size, RECORD_HEADER_VALUE, end - p, fault)

cdef inline const uint8_t* parse_any_record(
    const uint8_t* p, const uint8_t* end, RecordFields* out, Fault* fault
) noexcept nogil:
    """Parse a record field by field: any valid record, and the fault of an invalid one."""
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
    p = parse_sized(p, stop, &out.key, &out.key_size, RECORD_KEY_SIZE, size, fault)
    if p == NULL:
        return NULL
    p = parse_sized(p, stop, &out.value, &out.value_size, RECORD_VALUE_SIZE, size, fault)
    if p == NULL:
        return NULL
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

cdef inline int short_varint(const uint8_t* p, uint32_t* zigzag) noexcept nogil:
    """Decode a varint of up to three bytes, which must be readable. Returns its size, 0 if it is longer."""
    cdef uint32_t value = p[0]
    if value < 0x80:
        zigzag[0] = value
        return 1
    value += <uint32_t>p[1] << 7                    # includes the top bit of the first byte: subtract 0x80
    if value < 0x4080:
        zigzag[0] = value - 0x80
        return 2
    value += <uint32_t>p[2] << 14
    if value < 0x204080:
        zigzag[0] = value - 0x4080
        return 3
    zigzag[0] = 0
    return 0

cdef inline const uint8_t* parse_common_record(
    const uint8_t* p, const uint8_t* end, RecordFields* out
) noexcept nogil:
    """Parse a complete record without headers and with short varints; NULL for other or damaged records.

    Checks bounds once for all varints before the key, and once for the two after the key. Nearly all
    records are of this kind, so that this function dominates the cost of decoding.
    """
    cdef const uint8_t* stop
    cdef uint32_t size, timestamp, offset, key, value
    cdef int width
    if unlikely(end - p < COMMON_BEFORE_KEY):
        return NULL
    width = short_varint(p, &size)
    p += width
    stop = p + (size >> 1)
    if unlikely(width == 0 or size & 1 or <int64_t>(size >> 1) > end - p):
        return NULL
    p += 1                                          # attributes: unused
    width = short_varint(p, &timestamp)
    p += width
    if unlikely(width == 0):
        return NULL
    width = short_varint(p, &offset)
    p += width
    if unlikely(width == 0):
        return NULL
    width = short_varint(p, &key)
    p += width
    out.key = p
    if not key & 1:
        out.key_size = <int32_t>(key >> 1)
        p += key >> 1
    else:
        out.key_size = -1
    if unlikely(width == 0 or end - p < COMMON_BEHIND_KEY):
        return NULL
    width = short_varint(p, &value)
    p += width
    out.value = p
    if not value & 1:
        out.value_size = <int32_t>(value >> 1)
        p += value >> 1
    else:
        out.value_size = -1
    if unlikely(width == 0 or stop - p != 1 or p[0] != 0):
        return NULL
    out.timestamp_delta = <int32_t>((timestamp >> 1) ^ (0 - (timestamp & 1)))
    out.offset_delta = <int32_t>((offset >> 1) ^ (0 - (offset & 1)))
    out.header_count = 0
    out.headers = out.end = stop
    return stop

cdef inline const uint8_t* parse_record(
    const uint8_t* p, const uint8_t* end, RecordFields* out, Fault* fault
) noexcept nogil:
    """Returns the byte after the record, or NULL with the fault filled in. Headers are checked too."""
    cdef const uint8_t* stop = parse_common_record(p, end, out)
    if unlikely(stop == NULL):
        return parse_any_record(p, end, out, fault)
    return stop
