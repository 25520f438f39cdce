# Decoding runs of records with the same shape into columns, with the common work outside the loop.
from eoslog._core.format.record_shape cimport RecordShape, load_le32, parse_alike

cdef enum:
    PIECE = 12288               # bytes checksummed at a time: they are in the L1 cache when decoded

cdef struct BatchRows:          # where the rows of a batch go (NULL: column not requested), and
    int64_t* offsets
    int64_t* timestamps
    uint8_t* types
    uint8_t* header_ends        # int32 each, after a leading 0
    Cells* keys
    Cells* values
    int64_t base_offset         # fields of the batch header
    int64_t base_timestamp
    int64_t append_time
    int log_append
    int32_t last_delta          # the greatest offset delta allowed
    int32_t header_count        # of the rows so far


cdef int32_t take_alike(const uint8_t** at, const uint8_t* limit, const uint8_t* end, const RecordShape* like,
                        const BatchRows* to, int64_t row, int32_t most, int32_t* delta) noexcept nogil:
    """Decode consecutive records with the same shape into rows.

    Stops before the first record that has another shape, needs more memory, or has an impossible offset.

    Args:
        at: the first record; on return, the byte after the last decoded one.
        limit: no record that begins from here on is decoded; SHAPE_BYTES before `end` at least.
        end: end of the batch.
        like: the shape.
        row: row of the first record.
        most: number of records to decode at most.
        delta: offset delta of the record before; on return, of the last decoded one.

    Returns:
        The number of decoded records.
    """
    # Local copies: the compiler must assume that the stores below change the originals.
    cdef RecordShape shape = like[0]
    cdef int64_t* offsets = to.offsets
    cdef int64_t* timestamps = to.timestamps
    cdef Cells* keys = to.keys
    cdef Cells* values = to.values
    cdef bint valued = values != NULL
    cdef bint view = valued and values.view
    cdef uint8_t* slots = values.slots.data if valued else NULL
    cdef uint8_t* copy = values.copied.data + values.copied.size if valued else NULL
    cdef size_t room = values.copied.capacity - values.copied.size if valued else 0
    cdef uint32_t copied = <uint32_t>values.copied.size if valued else 0
    cdef uint64_t block = <uint64_t>values.block if valued else 0
    cdef const uint8_t* base = values.base if valued else NULL
    cdef uint64_t* slot
    cdef RecordFields record
    cdef const uint8_t* p = at[0]
    cdef const uint8_t* following
    cdef int64_t base_offset = to.base_offset, base_timestamp = to.base_timestamp
    cdef int64_t first = row, last = row + most
    cdef int32_t before = delta[0], last_delta = to.last_delta, size
    while p < limit and row < last:
        following = parse_alike(p, end, &shape, timestamps != NULL, &record)
        if unlikely(following == NULL or record.offset_delta <= before or record.offset_delta > last_delta):
            break
        size = record.value_size
        if valued and not view and unlikely(<size_t>size > room):
            break
        if keys != NULL and unlikely(put_cell(keys, row, record.key, record.key_size) < 0):
            break
        if view:
            if size > INLINE_SIZE:
                slot = <uint64_t*>slots + 2 * row
                slot[0] = <uint64_t>size | <uint64_t>load_le32(record.value) << 32
                slot[1] = block | <uint64_t>(record.value - base) << 32
                values.pointed = True
            elif put_cell(values, row, record.value, size) < 0:
                break
        elif valued:
            if size > 0:                    # if all are empty, no memory was allocated
                memcpy(copy, record.value, <size_t>size)
            copy += size
            room -= size
            copied += size
            (<uint32_t*>slots)[row + 1] = copied
        prefetch(p + PIECE)
        prefetch(p + PIECE + 64)
        before = record.offset_delta
        if offsets != NULL:
            offsets[row] = base_offset + before
        if timestamps != NULL:
            timestamps[row] = to.append_time if to.log_append else add_timestamp(
                base_timestamp, record.timestamp_delta)
        row += 1
        p = following
    if valued and not view:
        values.copied.size = copied
    if to.types != NULL:
        memset(to.types + first, to.log_append, <size_t>(row - first))
    if to.header_ends != NULL:
        for size in range(<int32_t>(row - first)):
            (<int32_t*>to.header_ends)[first + size + 1] = to.header_count
    at[0] = p
    delta[0] = before
    return <int32_t>(row - first)
