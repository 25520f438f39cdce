# Records of one shape: as long as the one before in each part, as rows of numbers or structs are.
#
# Two comparisons of eight bytes and one of four tell whether a record has the sizes of the one before
# and its other varints in the same places. Then all that is left to decode are those two varints, the
# timestamp's and the offset's, and where everything lies is known before any of it is read.
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from eoslog._core.record_reader cimport RecordFields, prefetch, unlikely

cdef enum:
    SHAPE_BYTES = 16            # what is compared; all varints before the key end within 13
    LONGEST_PAUSE = 64          # records that are not learned from, where none is like the one before
    PIECE = 12288               # bytes summed at a stretch: they are in the first cache when decoded

cdef struct RecordShape:
    uint64_t mask[2]            # of the first 16 bytes: all bits of the sizes, top bits of the other varints
    uint64_t same[2]            # what those are
    uint32_t value_mask         # of the four bytes from the value's size on: all bits of it
    uint32_t value_same
    uint32_t timestamp_bits     # those of four bytes that are the varint's payload
    uint32_t offset_bits
    int32_t timestamp_at        # places from the record's first byte on
    int32_t offset_at
    int32_t key_at
    int32_t key_size
    int32_t value_size_at
    int32_t value_at
    int32_t value_size
    int64_t size                # bytes of the record,
    int64_t room                # and how many must be there for what is loaded; INT64_MAX: no shape
    int32_t missed              # the last record that was not like the one before,
    int32_t due                 # the first one that is learned from again,
    int32_t pause               # and how many are passed over next time

cdef inline uint64_t load_le64(const uint8_t* p) noexcept nogil:
    cdef uint64_t v
    memcpy(&v, p, 8)
    return v

cdef inline uint32_t load_le32(const uint8_t* p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return v

cdef inline void forget_shape(RecordShape* shape) noexcept nogil:
    """No record has this shape."""
    memset(shape, 0, sizeof(RecordShape))
    shape.room = INT64_MAX
    shape.missed = -2

cdef inline int32_t expect_varint(RecordShape* shape, const uint8_t* record, int32_t at, uint64_t bits) noexcept nogil:
    """Has these bits of a varint of at most three bytes compared; returns the byte behind it."""
    cdef int32_t last = at + 2
    while True:
        shape.mask[at >> 3] |= bits << ((at & 7) * 8)
        at += 1
        if at > last or record[at - 1] < 0x80:
            return at

cdef inline void learn_shape(
    RecordShape* shape, const uint8_t* record, const uint8_t* end, const RecordFields* fields, int32_t number
) noexcept nogil:
    """Takes the shape of a record that `parse_common_record` has taken.

    Where none is like the one before, ever more records are passed over, up to LONGEST_PAUSE; one that
    was alike ends that.

    Args:
        record: its first byte.
        end: of the batch.
        fields: what was found in it.
        number: of the record in its batch.
    """
    cdef int32_t at, width
    shape.pause = min(shape.pause * 2, LONGEST_PAUSE) if number == shape.missed + 1 else 1
    shape.missed = number
    if number < shape.due:
        return
    shape.due = number + shape.pause
    shape.size = fields.end - record
    shape.key_at = <int32_t>(fields.key - record)
    shape.key_size = fields.key_size
    shape.value_size_at = shape.key_at + max(fields.key_size, 0)
    shape.value_at = <int32_t>(fields.value - record)
    shape.value_size = fields.value_size
    shape.room = max(shape.size, SHAPE_BYTES, shape.value_size_at + 4)
    if shape.room > end - record:           # a small one, the last of its batch
        shape.room = INT64_MAX
        return
    shape.mask[0] = shape.mask[1] = 0
    at = expect_varint(shape, record, 0, 0xFF)
    shape.timestamp_at = at + 1             # behind the attributes
    shape.offset_at = expect_varint(shape, record, shape.timestamp_at, 0x80)
    at = expect_varint(shape, record, shape.offset_at, 0x80)
    expect_varint(shape, record, at, 0xFF)
    shape.timestamp_bits = <uint32_t>0x7F7F7F >> (3 - (shape.offset_at - shape.timestamp_at)) * 8
    shape.offset_bits = <uint32_t>0x7F7F7F >> (3 - (at - shape.offset_at)) * 8
    width = shape.value_at - shape.value_size_at
    shape.value_mask = <uint32_t>0xFFFFFF >> (3 - width) * 8
    shape.same[0] = load_le64(record) & shape.mask[0]
    shape.same[1] = load_le64(record + 8) & shape.mask[1]
    shape.value_same = load_le32(record + shape.value_size_at) & shape.value_mask

cdef inline int32_t signed_payload(uint32_t v) noexcept nogil:
    """Moves the seven bits of each of three bytes together and undoes the zigzag."""
    v = v - (v >> 8 << 7) - (v >> 16 << 14)
    return <int32_t>((v >> 1) ^ (0 - (v & 1)))

cdef inline const uint8_t* parse_alike(
    const uint8_t* p, const uint8_t* end, const RecordShape* shape, bint timed, RecordFields* out
) noexcept nogil:
    """`parse_common_record` of a record of this shape; NULL for any other, damaged ones too.

    Args:
        timed: fill in the timestamp.
    """
    if unlikely(end - p < shape.room):
        return NULL
    if unlikely((((load_le64(p) & shape.mask[0]) ^ shape.same[0]) |
                 ((load_le64(p + 8) & shape.mask[1]) ^ shape.same[1]) |
                 ((load_le32(p + shape.value_size_at) & shape.value_mask) ^ shape.value_same) |
                 p[shape.size - 1]) != 0):      # the count of headers
        return NULL
    if timed:
        out.timestamp_delta = signed_payload(load_le32(p + shape.timestamp_at) & shape.timestamp_bits)
    out.offset_delta = signed_payload(load_le32(p + shape.offset_at) & shape.offset_bits)
    out.key = p + shape.key_at
    out.key_size = shape.key_size
    out.value = p + shape.value_at
    out.value_size = shape.value_size
    out.header_count = 0
    out.headers = out.end = p + shape.size
    return out.end

cdef inline int32_t take_alike(
    const uint8_t** at, const uint8_t* limit, const RecordShape* shape, int32_t* delta, int32_t last_delta,
    int32_t most, int64_t base_offset, int64_t* offsets, uint64_t* views, uint64_t buffer, const uint8_t* base
) noexcept nogil:
    """Records of this shape that follow one another, as rows of offsets and of views longer than 12 bytes.

    `parse_alike` and what is done with one record, with all that is the same for each outside the loop.
    The first record that is not like this, or whose offset can't be, is left where it lies.

    Args:
        at: the first record; then the byte behind the last one taken.
        limit: no record that begins at or behind it is taken; `shape.room` bytes are there before it.
        delta: offset delta of the record before; then of the last one taken.
        last_delta: the greatest that may be.
        most: records to take.
        offsets, views: where the rows go.
        buffer: number of the data buffer that the views point into; base: its first byte.

    Returns:
        How many were taken.
    """
    cdef const uint8_t* p = at[0]
    cdef uint64_t mask0 = shape.mask[0], mask1 = shape.mask[1]
    cdef uint64_t same0 = shape.same[0], same1 = shape.same[1]
    cdef uint32_t value_mask = shape.value_mask, value_same = shape.value_same
    cdef uint32_t offset_bits = shape.offset_bits
    cdef int32_t offset_at = shape.offset_at, value_at = shape.value_at, value_size_at = shape.value_size_at
    cdef int64_t size = shape.size
    cdef uint64_t value_size = <uint64_t>shape.value_size
    cdef int32_t before = delta[0], now, taken = 0
    while p < limit and taken < most:
        if unlikely((((load_le64(p) & mask0) ^ same0) | ((load_le64(p + 8) & mask1) ^ same1) |
                     ((load_le32(p + value_size_at) & value_mask) ^ value_same) | p[size - 1]) != 0):
            break
        now = signed_payload(load_le32(p + offset_at) & offset_bits)
        if unlikely(now <= before or now > last_delta):
            break
        prefetch(p + PIECE)
        prefetch(p + PIECE + 64)
        offsets[taken] = base_offset + now
        views[2 * taken] = value_size | <uint64_t>load_le32(p + value_at) << 32
        views[2 * taken + 1] = buffer | <uint64_t>(p + value_at - base) << 32
        before = now
        taken += 1
        p += size
    at[0] = p
    delta[0] = before
    return taken
