# The 61-byte header of a v2 batch, written in one place. Layout: layout.pxd.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from eoslog._core.format.byteorder cimport store_i16, store_i32, store_i64
from eoslog._core.hashes.crc32c cimport eoslog_crc32c, eoslog_crc32c_combine
from eoslog._core.format cimport layout

cdef struct BatchHeader:
    int64_t base_offset
    int32_t leader_epoch
    int16_t attributes
    int32_t last_offset_delta
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int16_t producer_epoch
    int32_t base_sequence
    int32_t count

cdef inline void seal_crc(uint8_t* batch, size_t size) noexcept nogil:
    """Compute the CRC and write it; call this after all other changes."""
    store_i32(batch + layout.CRC_AT, <int32_t>eoslog_crc32c(
        0, batch + layout.ATTRIBUTES_AT, size - layout.ATTRIBUTES_AT))

cdef inline void seal_crc_onto(uint8_t* batch, size_t size, size_t summed, uint32_t sum) noexcept nogil:
    """Compute the CRC and write it, given the CRC of the first `summed` bytes after the header."""
    cdef uint32_t crc = eoslog_crc32c(0, batch + layout.ATTRIBUTES_AT, layout.HEADER_SIZE - layout.ATTRIBUTES_AT)
    crc = eoslog_crc32c_combine(crc, sum, summed)
    store_i32(batch + layout.CRC_AT, <int32_t>eoslog_crc32c(
        crc, batch + layout.HEADER_SIZE + summed, size - layout.HEADER_SIZE - summed))

cdef inline void put_header_fields(uint8_t* batch, size_t size, const BatchHeader* header) noexcept nogil:
    """Write the header, except the CRC, of a batch of `size` bytes (header included)."""
    store_i64(batch + layout.BASE_OFFSET_AT, header.base_offset)
    store_i32(batch + layout.BATCH_LENGTH_AT, <int32_t>(size - layout.LOG_OVERHEAD))
    store_i32(batch + layout.LEADER_EPOCH_AT, header.leader_epoch)
    batch[layout.MAGIC_AT] = 2
    store_i16(batch + layout.ATTRIBUTES_AT, header.attributes)
    store_i32(batch + layout.LAST_OFFSET_DELTA_AT, header.last_offset_delta)
    store_i64(batch + layout.BASE_TIMESTAMP_AT, header.base_timestamp)
    store_i64(batch + layout.MAX_TIMESTAMP_AT, header.max_timestamp)
    store_i64(batch + layout.PRODUCER_ID_AT, header.producer_id)
    store_i16(batch + layout.PRODUCER_EPOCH_AT, header.producer_epoch)
    store_i32(batch + layout.BASE_SEQUENCE_AT, header.base_sequence)
    store_i32(batch + layout.RECORDS_COUNT_AT, header.count)

cdef inline void put_header(uint8_t* batch, size_t size, const BatchHeader* header) noexcept nogil:
    """Write the header of a batch of `size` bytes (header included), with the records in place."""
    put_header_fields(batch, size, header)
    seal_crc(batch, size)
