# A view of one record batch, format v2. The header, big-endian:
#
#    0 baseOffset i64        | 8 batchLength i32 (bytes after itself) | 12 partitionLeaderEpoch i32
#   16 magic i8              | 17 crc u32 (CRC-32C of byte 21 to the end)
#   21 attributes i16        | 23 lastOffsetDelta i32
#   27 baseTimestamp i64     | 35 maxTimestamp i64
#   43 producerId i64        | 51 producerEpoch i16    | 53 baseSequence i32
#   57 recordsCount i32      | 61 records, plain or compressed as one block
#
# The checksum does not cover base offset, length and leader epoch.
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from eoslog._core.format.batch_scan cimport (
    BATCH_CODEC, BATCH_COUNT, BATCH_CRC, BATCH_END, BATCH_LENGTH, BATCH_MAGIC, BATCH_OFFSETS,
    BATCH_SHORT, BATCH_WHOLE, check_header, crc_matches, last_offset_at, next_batch,
)
from eoslog._core.format.byteorder cimport load_i16, load_i32, load_i64, load_u32
from eoslog._core.hashes.crc32c cimport eoslog_crc32c
from eoslog._core.format.layout cimport (
    ATTRIBUTES_AT, BASE_OFFSET_AT, BASE_SEQUENCE_AT, BASE_TIMESTAMP_AT, BATCH_LENGTH_AT, CODEC_MASK,
    CONTROL_ABORT, CONTROL_BIT, CONTROL_COMMIT, CRC_AT, DELETE_HORIZON_BIT, HEADER_SIZE,
    LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT, LOG_APPEND_TIME_BIT, MAGIC_AT, MAX_SEQUENCE,
    MAX_TIMESTAMP_AT, PRODUCER_EPOCH_AT, PRODUCER_ID_AT, RECORDS_COUNT_AT, TRANSACTIONAL_BIT,
)
from eoslog._core.format.record_reader cimport (
    MIN_RECORD_SIZE, RECORD_BODY, RECORD_FIELDS, RECORD_HEADER_COUNT, RECORD_HEADER_KEY,
    RECORD_HEADER_VALUE, RECORD_KEY_SIZE, RECORD_LEFTOVER, RECORD_MISSING, RECORD_OFFSET,
    RECORD_SIZE, RECORD_VALUE_SIZE, Fault, HeaderFields, RecordFields, parse_any_record,
    parse_common_record, parse_record, parse_record_header, prefetch, record_fault, unlikely,
)

# The data of a Batch that was made by `Batch.__new__` alone.
cdef uint8_t[61] NO_BATCH

RECORD_FAULTS = {
    RECORD_MISSING: "the batch counts {claimed} records but ends after {actual}",
    RECORD_LEFTOVER: "{claimed} bytes left over after the last of {actual} records",
    RECORD_SIZE: "a record claims {claimed} bytes where {actual} remain",
    RECORD_FIELDS: "a varint is cut short or too long, with {actual} bytes left",
    RECORD_KEY_SIZE: "a key claims {claimed} bytes where the record has {actual} left",
    RECORD_VALUE_SIZE: "a value claims {claimed} bytes where the record has {actual} left",
    RECORD_HEADER_COUNT: "a record claims {claimed} headers in {actual} bytes",
    RECORD_HEADER_KEY: "a header key claims {claimed} bytes where the record has {actual} left",
    RECORD_HEADER_VALUE: "a header value claims {claimed} bytes where the record has {actual} left",
    RECORD_BODY: "a record declares {claimed} bytes but its fields take {actual}",
    RECORD_OFFSET: "a record has offset delta {claimed} after {actual}, or outside its batch",
}


@cython.final
@cython.internal
cdef class Pin:
    """Keeps a buffer's memory in place while code reads it through a pointer."""

    cdef Py_buffer view
    cdef const uint8_t* data
    cdef Py_ssize_t size

    def __cinit__(self, source):
        PyObject_GetBuffer(source, &self.view, PyBUF_SIMPLE)
        self.data = <const uint8_t*>self.view.buf
        self.size = self.view.len

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef object batch_fault(int step, const uint8_t* p, int64_t room, object where):
    """Return the CorruptRecord for a header that `next_batch` or `check_header` rejected."""
    kind = errors.CorruptRecord
    if step == BATCH_LENGTH:
        what = f"batch length {load_i32(p + BATCH_LENGTH_AT)} is less than 14"
    elif step == BATCH_MAGIC:
        kind = errors.UnsupportedFormat
        what = f"record format magic {<int8_t>p[MAGIC_AT]}, 2 is the newest known"
    elif step == BATCH_SHORT:
        what = f"batch of {load_i32(p + BATCH_LENGTH_AT) + 12} bytes is shorter than its header of 61"
    elif step == BATCH_OFFSETS:
        what = (f"base offset {load_i64(p + BASE_OFFSET_AT)} with last offset delta "
                f"{load_i32(p + LAST_OFFSET_DELTA_AT)} is not a range of offsets")
    elif step == BATCH_COUNT:
        what = f"negative count of records {load_i32(p + RECORDS_COUNT_AT)}"
    elif step == BATCH_CODEC:
        kind = errors.UnsupportedFormat
        what = f"compression codec {load_i16(p + ATTRIBUTES_AT) & CODEC_MASK}, 4 is the highest known"
    else:
        stored = load_u32(p + CRC_AT)
        actual = eoslog_crc32c(0, p + ATTRIBUTES_AT, <size_t>(room - ATTRIBUTES_AT))
        what = f"CRC-32C {actual:08x} of the bytes differs from the stored {stored:08x}"
    return kind(f"corrupt record batch at {where}: {what}")


cdef object placed(error, int64_t position):
    """Return the error, with the byte at which the batch begins."""
    error.position = position
    return error


cdef object records_fault(Fault* fault, const uint8_t* base, int64_t base_offset, object where):
    """Return the CorruptRecord for records that do not parse."""
    what = RECORD_FAULTS[fault.code].format(claimed=fault.claimed, actual=fault.actual)
    return errors.CorruptRecord(
        f"corrupt records in the batch at {where}, base offset {base_offset}, "
        f"byte {fault.at - base} of the records: {what}"
    )


cdef Pin decompress_block(int codec, Pin pin, const uint8_t* p, int64_t size, object where):
    """Decompress the records of a batch in `pin`. A codec's error becomes CorruptRecord."""
    block = memoryview(pin.view.obj).cast("B")[p - pin.data:p - pin.data + size]
    try:
        return Pin(decompress_records(codec, block))
    except errors.CorruptRecord as error:
        raise type(error)(f"corrupt record batch at {where}: {error}") from error
    except (errors.EoslogError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise errors.CorruptRecord(
            f"corrupt record batch at {where}: {CODECS[codec]} block of {size} bytes: {error}") from error


cdef inline object bytes_or_none(const uint8_t* p, int32_t size):
    if size < 0:
        return None
    return PyBytes_FromStringAndSize(<const char*>p, size)


cdef list record_headers(RecordFields* record):
    """Return the headers of a record that `parse_record` has checked. Replaces malformed UTF-8, as Kafka does."""
    cdef HeaderFields header
    cdef Fault fault
    cdef const uint8_t* p = record.headers
    cdef int32_t i
    cdef list headers = []
    for i in range(record.header_count):
        p = parse_record_header(p, record.end, &header, &fault)
        if p == NULL:       # only if another thread writes to the buffer
            raise errors.CorruptRecord("record headers changed while they were read")
        headers.append((
            PyUnicode_DecodeUTF8(<const char*>header.key, header.key_size, "replace"),
            bytes_or_none(header.value, header.value_size),
        ))
    return headers


@cython.final
cdef class Batch:
    """One record batch, a view of a buffer that it keeps alive.

    Header fields are not verified unless `valid` is True. `position` and `size` are in bytes, and
    `last_offset` is inclusive. Made by `iter_batches`. Immutable, thread-safe.
    """

    cdef Pin _pin
    cdef const uint8_t* _p
    cdef readonly int64_t position
    cdef readonly int64_t size

    def __cinit__(self):
        self._p = NO_BATCH
        self.size = HEADER_SIZE

    def __init__(self):
        raise TypeError("batches are made by iter_batches")

    @property
    def base_offset(self):
        return load_i64(self._p + BASE_OFFSET_AT)

    @property
    def last_offset(self):
        return last_offset_at(self._p)

    @property
    def magic(self):
        return <int8_t>self._p[MAGIC_AT]

    @property
    def crc(self):
        return load_u32(self._p + CRC_AT)

    @property
    def valid(self):
        """Whether the checksum and the header are valid. Computed at each access."""
        return crc_matches(self._p, self.size) and check_header(self._p) == BATCH_WHOLE

    @property
    def compression(self):
        cdef int codec = load_i16(self._p + ATTRIBUTES_AT) & CODEC_MASK
        return CODECS[codec] if codec <= 4 else f"unknown-{codec}"

    @property
    def timestamp_type(self):
        return 1 if load_i16(self._p + ATTRIBUTES_AT) & LOG_APPEND_TIME_BIT else 0

    @property
    def base_timestamp(self):
        return load_i64(self._p + BASE_TIMESTAMP_AT)

    @property
    def max_timestamp(self):
        return load_i64(self._p + MAX_TIMESTAMP_AT)

    @property
    def producer_id(self):
        return load_i64(self._p + PRODUCER_ID_AT)

    @property
    def producer_epoch(self):
        return load_i16(self._p + PRODUCER_EPOCH_AT)

    @property
    def base_sequence(self):
        return load_i32(self._p + BASE_SEQUENCE_AT)

    @property
    def last_sequence(self):
        """The last sequence; wraps from 2^31 - 1 to 0; -1 without sequences."""
        return sequence_at(self._p, load_i32(self._p + LAST_OFFSET_DELTA_AT))

    @property
    def leader_epoch(self):
        return load_i32(self._p + LEADER_EPOCH_AT)

    @property
    def transactional(self):
        return bool(load_i16(self._p + ATTRIBUTES_AT) & TRANSACTIONAL_BIT)

    @property
    def control(self):
        return bool(load_i16(self._p + ATTRIBUTES_AT) & CONTROL_BIT)

    @property
    def delete_horizon_ms(self):
        """The time (ms) from which on tombstones and markers in the batch can be removed, or None."""
        if load_i16(self._p + ATTRIBUTES_AT) & DELETE_HORIZON_BIT:
            return load_i64(self._p + BASE_TIMESTAMP_AT)
        return None

    @property
    def count(self):
        return load_i32(self._p + RECORDS_COUNT_AT)

    @property
    def control_type(self):
        """The type of the control record (0 ABORT, 1 COMMIT), or None for other batches.

        Raises:
            CorruptRecord: if the control record does not parse.
        """
        found = self._control_record()
        if found is None:
            return None
        key = found[0]
        return int.from_bytes(key[2:4], "big", signed=True)

    @property
    def coordinator_epoch(self):
        """The epoch of the transaction coordinator in an end marker, else None."""
        found = self._control_record()
        if found is None:
            return None
        key, value = found
        if int.from_bytes(key[2:4], "big", signed=True) not in (CONTROL_ABORT, CONTROL_COMMIT):
            return None
        if value is None or len(value) < 6 or value[0] >= 0x80:
            raise errors.CorruptRecord(
                f"corrupt end marker at offset {self.base_offset}: its value "
                f"{None if value is None else value.hex()} is not a version and a coordinator epoch")
        return int.from_bytes(value[2:6], "big", signed=True)

    def _control_record(self):
        if not self.control or self.count == 0:
            return None
        offset, _, key, value, _ = self.records()[0]
        if key is None or len(key) < 4 or key[0] >= 0x80:
            raise errors.CorruptRecord(
                f"corrupt control record at offset {offset}: its key "
                f"{None if key is None else key.hex()} is not a version and a type")
        return key, value

    def records(self):
        """Decode the records, without checking the checksum.

        Returns:
            A list of (offset, timestamp in ms, key, value, headers); headers: [(str, bytes | None)].

        Raises:
            CorruptRecord: if the header or a record does not parse.
        """
        cdef Fault fault
        cdef RecordFields record
        cdef int step = check_header(self._p)
        cdef const uint8_t* p
        cdef const uint8_t* end
        cdef const uint8_t* block
        cdef int64_t base_offset, base_timestamp, append_time
        cdef int32_t count, i, delta = -1, last_delta
        cdef int attributes, codec
        cdef bint log_append
        cdef Pin pin = self._pin
        if step != BATCH_WHOLE:
            raise batch_fault(step, self._p, self.size, f"position {self.position}")
        attributes = load_i16(self._p + ATTRIBUTES_AT)
        codec = attributes & CODEC_MASK
        log_append = attributes & LOG_APPEND_TIME_BIT
        append_time = load_i64(self._p + MAX_TIMESTAMP_AT)
        base_offset = load_i64(self._p + BASE_OFFSET_AT)
        base_timestamp = load_i64(self._p + BASE_TIMESTAMP_AT)
        last_delta = load_i32(self._p + LAST_OFFSET_DELTA_AT)
        count = load_i32(self._p + RECORDS_COUNT_AT)
        p = self._p + HEADER_SIZE
        end = self._p + self.size
        if codec and end > p:
            pin = decompress_block(codec, pin, p, end - p, f"position {self.position}")
            p = pin.data
            end = p + pin.size
        block = p
        result = []
        for i in range(count):
            if p == end:
                record_fault(&fault, RECORD_MISSING, p, count, i)
                raise records_fault(&fault, block, base_offset, f"position {self.position}")
            p = parse_record(p, end, &record, &fault)
            if p != NULL and (record.offset_delta <= delta or record.offset_delta > last_delta):
                p = record_fault(&fault, RECORD_OFFSET, record.key, record.offset_delta, delta)
            if p == NULL:
                raise records_fault(&fault, block, base_offset, f"position {self.position}")
            delta = record.offset_delta
            result.append((
                base_offset + delta,
                append_time if log_append else add_timestamp(base_timestamp, record.timestamp_delta),
                bytes_or_none(record.key, record.key_size),
                bytes_or_none(record.value, record.value_size),
                record_headers(&record) if record.header_count else [],
            ))
        if p != end:
            record_fault(&fault, RECORD_LEFTOVER, p, end - p, count)
            raise records_fault(&fault, block, base_offset, f"position {self.position}")
        return result

    def tobytes(self):
        """Return a copy of the batch."""
        return PyBytes_FromStringAndSize(<const char*>self._p, self.size)

    def __repr__(self):
        return (f"Batch(base_offset={self.base_offset}, last_offset={self.last_offset}, "
                f"position={self.position}, size={self.size}, count={self.count})")


cdef inline int64_t add_timestamp(int64_t base, int64_t delta) noexcept nogil:
    """Add a delta, with wrapping on overflow, as Kafka does with impossible deltas."""
    return <int64_t>(<uint64_t>base + <uint64_t>delta)


cdef inline int64_t sequence_at(const uint8_t* header, int32_t delta) noexcept nogil:
    """Return the sequence of the record at an offset delta: modulo 2^31, -1 without sequences."""
    cdef int64_t base = load_i32(header + BASE_SEQUENCE_AT)
    if base < 0:
        return -1
    return (base + delta) & MAX_SEQUENCE


def iter_batches(data, position=0, end=None, *, base_position=0, strict=True, limit=None):
    """Find the batches in a buffer. Reads only headers, and computes no checksum.

    Args:
        data: any contiguous buffer.
        position: byte to start from, the beginning of a batch.
        end: one past the last byte to read; None: all.
        base_position: position of byte 0 of `data`, for `Batch.position` and errors.
        limit: largest number of batches to return; None: no limit.
        strict: False returns the batches before a damaged one; a call from there raises.

    Returns:
        The complete batches, in order. A partial batch at the end is left out.

    Raises:
        CorruptRecord: if a length is impossible, or the format is not v2.
    """
    cdef Pin pin = Pin(data)
    cdef const uint8_t* stop
    cdef const uint8_t* p
    cdef int64_t size = 0
    cdef int step
    cdef Batch batch
    cdef Py_ssize_t start = position
    cdef Py_ssize_t bound = pin.size if end is None else min(<Py_ssize_t>end, pin.size)
    cdef Py_ssize_t most = <Py_ssize_t>INT64_MAX if limit is None else <Py_ssize_t>limit
    cdef int64_t base = base_position
    if start < 0 or start > pin.size:
        raise errors.CorruptRecord(f"position {start} is outside the {pin.size} bytes given")
    batches = []
    p = pin.data + start
    stop = pin.data + max(bound, start)
    step = BATCH_END
    while len(batches) < most:
        step = next_batch(p, stop, &size)
        if step != BATCH_WHOLE:
            break
        batch = Batch.__new__(Batch)
        batch._pin = pin
        batch._p = p
        batch.position = base + (p - pin.data)
        batch.size = size
        batches.append(batch)
        p += size
    if step != BATCH_END and step != BATCH_WHOLE and (strict or not batches):
        raise placed(batch_fault(step, p, stop - p, f"position {base + (p - pin.data)}"), base + (p - pin.data))
    return batches


def batches_end(data, position=0, end=None):
    """Return where the complete batches from a position on end: a partial batch, damage, or `end`.

    Reads only lengths; for splitting a file.
    """
    cdef Pin pin = Pin(data)
    cdef Py_ssize_t start = position
    cdef Py_ssize_t bound = pin.size if end is None else min(<Py_ssize_t>end, pin.size)
    cdef const uint8_t* p
    cdef const uint8_t* stop
    cdef int64_t size = 0
    if start < 0 or start > bound:
        raise errors.CorruptRecord(f"position {start} is outside the {bound} bytes given")
    p = pin.data + start
    stop = pin.data + bound
    with nogil:
        while next_batch(p, stop, &size) == BATCH_WHOLE:
            p += size
    return p - pin.data
