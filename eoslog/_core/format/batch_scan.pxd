# Stepping over the record batches of a file, checking lengths and headers.
from libc.stddef cimport size_t
from libc.stdint cimport INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t

from eoslog._core.format.byteorder cimport load_i16, load_i32, load_i64, load_u32
from eoslog._core.hashes.crc32c cimport eoslog_crc32c
from eoslog._core.format.layout cimport (
    ATTRIBUTES_AT, BATCH_LENGTH_AT, CODEC_MASK, CRC_AT, HEADER_SIZE, LAST_OFFSET_DELTA_AT,
    LOG_OVERHEAD, MAGIC_AT, RECORDS_COUNT_AT, BASE_OFFSET_AT,
)

cdef enum:
    MAGIC_END = 17              # base offset, length, leader epoch and magic: enough to find the next batch
    MIN_BATCH_LENGTH = 14       # the smallest length any format allows

cdef enum BatchStep:
    BATCH_WHOLE = 1
    BATCH_END = 0               # nothing, or a partial tail: not an error
    BATCH_LENGTH = -1           # an impossible length field
    BATCH_MAGIC = -2            # not format v2
    BATCH_SHORT = -3            # shorter than a v2 header
    BATCH_OFFSETS = -4          # negative base offset or last offset delta, or an overflow
    BATCH_COUNT = -5            # negative count of records
    BATCH_CODEC = -6            # codec bits 5 to 7
    BATCH_CRC = -7

cdef inline int next_batch(const uint8_t* p, const uint8_t* end, int64_t* size) noexcept nogil:
    """Find the size of the batch at `p`, from length and magic only. Returns a BatchStep."""
    cdef int32_t length
    if end - p <= MAGIC_END:
        return BATCH_END
    length = load_i32(p + BATCH_LENGTH_AT)
    if length < MIN_BATCH_LENGTH:
        return BATCH_LENGTH
    size[0] = <int64_t>length + LOG_OVERHEAD
    if size[0] > end - p:
        return BATCH_END
    if p[MAGIC_AT] != 2:
        return BATCH_MAGIC
    if size[0] < HEADER_SIZE:
        return BATCH_SHORT
    return BATCH_WHOLE

cdef inline int64_t last_offset_at(const uint8_t* p) noexcept nogil:
    """Return the last offset of a batch with an unchecked header: defined even if the sum overflows."""
    return <int64_t>(<uint64_t>load_i64(p + BASE_OFFSET_AT) + <uint64_t><int64_t>load_i32(p + LAST_OFFSET_DELTA_AT))

cdef inline int check_header(const uint8_t* p) noexcept nogil:
    """Check the header fields of a complete batch that readers compute with. Returns a BatchStep."""
    cdef int64_t base = load_i64(p + BASE_OFFSET_AT)
    cdef int32_t delta = load_i32(p + LAST_OFFSET_DELTA_AT)
    if base < 0 or delta < 0 or base > INT64_MAX - 1 - delta:
        return BATCH_OFFSETS
    if load_i32(p + RECORDS_COUNT_AT) < 0:
        return BATCH_COUNT
    if (load_i16(p + ATTRIBUTES_AT) & CODEC_MASK) > 4:
        return BATCH_CODEC
    return BATCH_WHOLE

cdef inline bint crc_matches(const uint8_t* p, int64_t size) noexcept nogil:
    return load_u32(p + CRC_AT) == eoslog_crc32c(0, p + ATTRIBUTES_AT, <size_t>(size - ATTRIBUTES_AT))
