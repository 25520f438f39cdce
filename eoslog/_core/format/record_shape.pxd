# Fast decoding of records with the same shape: each varint has as many bytes as in the record before.
#
# Two comparisons of eight bytes check that the varints before the key end at the same bytes, and one of
# four bytes checks the value's size. After that, no branch depends on the decoded values. So varying
# sizes, as of text, cost nothing. A mispredicted branch would cost as much as the rest of the decoding.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from eoslog._core.format.record_reader cimport RecordFields, unlikely

cdef enum:
    SHAPE_BYTES = 16            # bytes that are compared; all varints before the key end within 13
    VALUE_SIZE_BYTES = 4        # bytes that are compared from the value's size on
    LONGEST_PAUSE = 64          # most records that are skipped for learning, if shapes keep changing

cdef struct RecordShape:
    uint64_t tops[2]            # the top bits of the varints before the key, in the first 16 bytes
    uint64_t same[2]            # their values
    uint32_t value_tops         # the same of four bytes from the value's size on
    uint32_t value_same
    uint32_t size_bits          # payload bits of these four bytes
    uint32_t timestamp_bits
    uint32_t offset_bits
    uint32_t key_bits
    uint32_t value_bits
    int64_t size_width          # bytes of the record's size,
    int64_t timestamp_at        # positions relative to the record's first byte,
    int64_t offset_at
    int64_t key_size_at
    int64_t key_at
    int64_t value_size_width    # and bytes of the value's size
    bint known                  # there is a shape
    int32_t missed              # the last record with another shape than the one before,
    int32_t due                 # the next record to learn from,
    int32_t pause               # and how many records to skip next time

cdef inline uint64_t load_le64(const uint8_t* p) noexcept nogil:
    cdef uint64_t v
    memcpy(&v, p, 8)
    return v

cdef inline uint32_t load_le32(const uint8_t* p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return v

cdef inline void forget_shape(RecordShape* shape) noexcept nogil:
    """Set the shape that no record has."""
    memset(shape, 0, sizeof(RecordShape))
    shape.missed = -2

cdef inline int64_t expect_varint(RecordShape* shape, const uint8_t* record, int64_t at) noexcept nogil:
    """Include the top bits of a varint of up to three bytes in the comparison. Returns the byte after it."""
    cdef int64_t last = at + 2
    while True:
        shape.tops[at >> 3] |= <uint64_t>0x80 << ((at & 7) * 8)
        at += 1
        if at > last or record[at - 1] < 0x80:
            return at

cdef inline uint32_t payload_bits(int64_t width) noexcept nogil:
    return <uint32_t>0x7F7F7F >> (3 - width) * 8

cdef inline void learn_shape(
    RecordShape* shape, const uint8_t* record, const uint8_t* end, const RecordFields* fields, int32_t number
) noexcept nogil:
    """Learn the shape of a record that `parse_common_record` has parsed.

    While no record has the shape of the one before, skips more and more records, up to LONGEST_PAUSE.
    A record with the same shape resets that.

    Args:
        record: first byte of the record.
        end: end of the batch.
        fields: the parsed fields.
        number: index of the record in its batch.
    """
    cdef int64_t value_size_at
    shape.pause = min(shape.pause * 2, LONGEST_PAUSE) if number == shape.missed + 1 else 1
    shape.missed = number
    if number < shape.due:
        return
    shape.due = number + shape.pause
    if end - record < SHAPE_BYTES:          # a small record, the last of its batch
        return
    shape.tops[0] = shape.tops[1] = 0
    shape.size_width = expect_varint(shape, record, 0)
    shape.timestamp_at = shape.size_width + 1           # after the attributes
    shape.offset_at = expect_varint(shape, record, shape.timestamp_at)
    shape.key_size_at = expect_varint(shape, record, shape.offset_at)
    shape.key_at = expect_varint(shape, record, shape.key_size_at)
    shape.same[0] = load_le64(record) & shape.tops[0]
    shape.same[1] = load_le64(record + 8) & shape.tops[1]
    shape.size_bits = payload_bits(shape.size_width)
    shape.timestamp_bits = payload_bits(shape.offset_at - shape.timestamp_at)
    shape.offset_bits = payload_bits(shape.key_size_at - shape.offset_at)
    shape.key_bits = payload_bits(shape.key_at - shape.key_size_at)
    value_size_at = shape.key_at + max(fields.key_size, 0)
    shape.value_size_width = fields.value - record - value_size_at
    shape.known = max(shape.size_width, shape.key_at - shape.key_size_at, shape.value_size_width) <= 2
    shape.value_bits = payload_bits(shape.value_size_width)
    shape.value_tops = <uint32_t>0x808080 >> (3 - shape.value_size_width) * 8
    shape.value_same = shape.value_tops >> 8 & 0x808080     # all but the last byte's

cdef inline uint32_t short_payload(uint32_t v) noexcept nogil:
    """Join the seven payload bits of each of two bytes."""
    return v - (v >> 8 << 7)

cdef inline int32_t signed_payload(uint32_t v) noexcept nogil:
    """Join the seven payload bits of each of three bytes, and undo the zigzag encoding."""
    v = v - (v >> 8 << 7) - (v >> 16 << 14)
    return <int32_t>((v >> 1) ^ (0 - (v & 1)))

cdef inline const uint8_t* parse_alike(
    const uint8_t* p, const uint8_t* end, const RecordShape* shape, bint timed, RecordFields* out
) noexcept nogil:
    """Parse a record of the known shape with a value that is not null; NULL for other or damaged records.

    Args:
        p: the record; SHAPE_BYTES must be readable.
        timed: fill in the timestamp.
    """
    cdef uint64_t first = load_le64(p)
    cdef uint32_t size = short_payload(<uint32_t>first & shape.size_bits)
    cdef const uint8_t* stop = p + shape.size_width + (size >> 1)   # first: the next record depends on it
    cdef uint32_t key = short_payload(load_le32(p + shape.key_size_at) & shape.key_bits)
    cdef const uint8_t* value_at = p + shape.key_at + (key >> 1)
    cdef uint32_t value
    # A negative size is odd. Only null (-1) is accepted, and only for a key.
    if unlikely((((first & shape.tops[0]) ^ shape.same[0]) | ((load_le64(p + 8) & shape.tops[1]) ^ shape.same[1]) |
                 (size & 1) | (key >> 1 & (0 - (key & 1)))) != 0):
        return NULL
    if unlikely(end - value_at < VALUE_SIZE_BYTES or stop > end):
        return NULL
    value = load_le32(value_at)
    value_at += shape.value_size_width
    size = (value & shape.value_tops) ^ shape.value_same
    value = short_payload(value & shape.value_bits)
    if unlikely((size | value & 1 | <uint64_t>(stop - value_at - (value >> 1) - 1)) != 0 or stop[-1] != 0):
        return NULL                         # the last byte is the count of headers
    if timed:
        out.timestamp_delta = signed_payload(load_le32(p + shape.timestamp_at) & shape.timestamp_bits)
    out.offset_delta = signed_payload(load_le32(p + shape.offset_at) & shape.offset_bits)
    out.key = p + shape.key_at
    out.key_size = <int32_t>(key >> 1) - <int32_t>(key & 1)
    out.value = value_at
    out.value_size = <int32_t>(value >> 1)
    out.header_count = 0
    out.headers = out.end = stop
    return stop
