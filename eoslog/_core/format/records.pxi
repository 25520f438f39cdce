# Decoding records into objects, for consumers.
from types import GenericAlias

from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyTypeObject

cdef extern from *:
    """
    #include "structmember.h"
    static int add_member(PyTypeObject* type, PyMemberDef* member) {
        PyObject* descriptor = PyDescr_NewMember(type, member);
        int failed = descriptor == NULL || PyDict_SetItemString(type->tp_dict, member->name, descriptor) < 0;
        Py_XDECREF(descriptor);
        return failed ? -1 : 0;
    }
    """
    ctypedef struct PyMemberDef:
        const char* name
        int type
        Py_ssize_t offset
        int flags
    enum: T_OBJECT_EX, READONLY
    int add_member(PyTypeObject* type, PyMemberDef* member) except -1
    void PyType_Modified(PyTypeObject* type)


@cython.final
@cython.freelist(1024)
@cython.no_gc
cdef class Record:
    """A record that a consumer or a scan returns.

    Immutable. Two records are equal if all of their fields are. `Record[str, dict]` is the type of a
    record with keys and values of these types.

    Attributes:
        topic: name of the topic.
        partition: number of the partition.
        offset: offset in the partition.
        timestamp: ms since 1970; -1: none.
        timestamp_type: 0 if the producer set the timestamp (CreateTime), 1 if the log did (LogAppendTime).
        key: bytes or None, or the result of the key deserializer.
        value: bytes or None, or the result of the value deserializer.
        headers: list of (str, bytes or None), in order; names may repeat.
        leader_epoch: leader epoch of the batch; None if unknown.
    """

    cdef str topic              # these three have member descriptors, see `read_by_slot`
    cdef readonly int32_t partition
    cdef int32_t epoch          # the leader epoch; negative for none
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef readonly int timestamp_type
    cdef object key
    cdef object value
    cdef list _headers          # None for no headers: most records have none

    def __init__(self, topic, partition, offset, timestamp=-1, timestamp_type=0, key=None, value=None,
                 headers=None, leader_epoch=None):
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self._headers = list(headers) if headers else None
        self.epoch = -1 if leader_epoch is None else leader_epoch

    @classmethod
    def __class_getitem__(cls, types):
        return GenericAlias(cls, types)

    @property
    def leader_epoch(self):
        return None if self.epoch < 0 else self.epoch

    @property
    def headers(self):
        return [] if self._headers is None else list(self._headers)

    def _fields(self):
        return (self.topic, self.partition, self.offset, self.timestamp, self.timestamp_type, self.key,
                self.value, self.headers, self.leader_epoch)

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        return self._fields() == (<Record>other)._fields()

    def __hash__(self):
        return hash((self.topic, self.partition, self.offset))

    def __reduce__(self):
        return Record, self._fields()

    def __repr__(self):
        return (f"Record(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
                f"timestamp={self.timestamp}, key={self.key!r}, value={self.value!r})")


cdef PyMemberDef record_members[3]


cdef read_by_slot():
    """Give Record's object fields member descriptors, as `__slots__` does.

    The interpreter reads such a field by its offset (PEP 659) in 4 ns. A property that Cython makes is
    a call and takes 22 ns.
    """
    cdef Record record = Record.__new__(Record)
    cdef const char* begin = <const char*><PyObject*>record
    record_members[0] = PyMemberDef(b"topic", T_OBJECT_EX, <const char*>&record.topic - begin, READONLY)
    record_members[1] = PyMemberDef(b"key", T_OBJECT_EX, <const char*>&record.key - begin, READONLY)
    record_members[2] = PyMemberDef(b"value", T_OBJECT_EX, <const char*>&record.value - begin, READONLY)
    for i in range(3):
        add_member(<PyTypeObject*>Record, &record_members[i])
    PyType_Modified(<PyTypeObject*>Record)


read_by_slot()
(<PyTypeObject*>Record).tp_name = b"eoslog.Record"     # where users import it from


@cython.final
cdef class RecordDecoder:
    """Decodes the data records with offsets in [start, end) from complete batches, some at a time.

    Skips control batches and, with `aborted`, the batches of aborted transactions. Not thread-safe.

    Args:
        topic: topic name for each record.
        partition: partition number for each record.
        data: complete batches; the first may begin below `start`.
        start: first offset to decode.
        end: one past the last offset to decode.
        aborted: transactions to leave out; None: none (read_uncommitted).
        key_deserializer: called with the bytes of each key that is not null.
        value_deserializer: called with the bytes of each value that is not null.
        check_crc: verify the checksum of each batch that is read.
        epochs: the leader epochs of the partition; None uses those in the batches, which no checksum covers.

    Attributes:
        position: next offset to decode, after gaps, control batches and aborted batches.
    """

    cdef str topic
    cdef int32_t partition
    cdef Pin pin
    cdef const uint8_t* p       # the next batch
    cdef int64_t end
    cdef AbortedTransactions aborted
    cdef object key_deserializer
    cdef object value_deserializer
    cdef bint check_crc
    cdef LeaderEpochs epochs
    cdef readonly int64_t position

    def __cinit__(self, str topic, int32_t partition, data, int64_t start, int64_t end,
                  AbortedTransactions aborted, key_deserializer, value_deserializer, bint check_crc,
                  LeaderEpochs epochs, /):
        self.topic = topic
        self.partition = partition
        self.pin = Pin(data)
        self.p = self.pin.data
        self.position = start
        self.end = end
        self.aborted = aborted
        self.key_deserializer = key_deserializer
        self.value_deserializer = value_deserializer
        self.check_crc = check_crc
        self.epochs = epochs

    def take(self, Py_ssize_t least):
        """Decode complete batches until there are `least` records, and pass batches without records.

        Returns:
            The records; fewer than `least` if the data or the range ends, or if damage follows them.

        Raises:
            CorruptRecord, or the exception of a deserializer: as `decode_records`.
        """
        return self.decode(least, <Py_ssize_t>INT64_MAX)

    cdef list decode(self, Py_ssize_t least, Py_ssize_t room):
        """As `take`; stops inside a batch at `room` records, if it is not larger than `least`."""
        cdef const uint8_t* stop = self.pin.data + self.pin.size
        cdef int64_t size = 0, base_offset, last_offset
        cdef int32_t epoch
        cdef int step = BATCH_END
        cdef int attributes
        cdef bint matches, left_out
        cdef Py_ssize_t before
        cdef list records = []
        while room > PyList_GET_SIZE(records) and self.position < self.end:
            step = next_batch(self.p, stop, &size)
            if step == BATCH_WHOLE:
                step = check_header(self.p)
            if step != BATCH_WHOLE:
                break
            base_offset = load_i64(self.p + BASE_OFFSET_AT)
            last_offset = base_offset + load_i32(self.p + LAST_OFFSET_DELTA_AT)
            if base_offset >= self.end:
                self.position = self.end
                break
            if last_offset < self.position:
                self.p += size
                continue
            attributes = load_i16(self.p + ATTRIBUTES_AT)
            left_out = attributes & CONTROL_BIT or self.is_aborted(attributes, base_offset)
            if PyList_GET_SIZE(records) >= least and not left_out:
                break
            if self.check_crc:
                if size > 4096:
                    with nogil:
                        matches = crc_matches(self.p, size)
                else:
                    matches = crc_matches(self.p, size)
                if not matches:
                    step = BATCH_CRC
                    break
            if not left_out:
                before = PyList_GET_SIZE(records)
                epoch = (load_i32(self.p + LEADER_EPOCH_AT) if self.epochs is None
                         else self.epochs.of_batch(self.pin.data, self.p, stop))
                try:
                    self.position = decode_batch(
                        records, self.topic, self.partition, epoch, self.pin, self.p, size, self.position, self.end,
                        room, self.key_deserializer, self.value_deserializer)
                except errors.CorruptRecord as error:
                    del records[before:]                # all of a batch or nothing
                    if records:
                        return records
                    placed(error, self.p - self.pin.data)
                    raise
                except Exception:
                    if records:
                        self.position = (<Record>records[PyList_GET_SIZE(records) - 1]).offset + 1
                        return records
                    raise
                if self.position <= last_offset:
                    break                               # the limit, or `end` inside the batch
            self.position = min(last_offset + 1, self.end)
            self.p += size
        if step < 0 and not records:
            fault = batch_fault(step, self.p, size if step == BATCH_CRC else stop - self.p,
                                f"offset {self.position}")
            raise placed(fault, self.p - self.pin.data)
        return records

    cdef bint is_aborted(self, int attributes, int64_t base_offset) noexcept:
        return (self.aborted is not None and attributes & TRANSACTIONAL_BIT
                and self.aborted.covers(load_i64(self.p + PRODUCER_ID_AT), base_offset))


def decode_records(str topic, partition, data, start, end, AbortedTransactions aborted=None, limit=None,
                   key_deserializer=None, value_deserializer=None, check_crc=True, LeaderEpochs epochs=None):
    """Decode the data records with offsets in [start, end) from complete batches.

    Args:
        limit: largest number of records to return; None: no limit.

    The other arguments are those of `RecordDecoder`.

    Returns:
        (records, next position). The position is also after gaps, control batches and aborted batches.

    Raises:
        CorruptRecord: if the first batch to read is damaged; `position` is its byte in `data`. If other
            batches precede it, their records are returned, and the next call raises. In the same way, an
            exception of a deserializer is raised when its record is the first one.
    """
    cdef Py_ssize_t room = <Py_ssize_t>INT64_MAX if limit is None else <Py_ssize_t>limit
    cdef RecordDecoder decoder = RecordDecoder(topic, partition, data, start, end, aborted, key_deserializer,
                                               value_deserializer, check_crc, epochs)
    records = decoder.decode(room, room)
    return records, decoder.position


cdef int64_t decode_batch(list records, str topic, int32_t partition, int32_t epoch, Pin pin,
                          const uint8_t* header, int64_t size, int64_t start, int64_t end, Py_ssize_t room,
                          key_deserializer, value_deserializer) except -1:
    """Append the records of one batch with offsets in [start, end). Returns the next position.

    Parses all records of the batch, unless `limit` stops it, so that damage is found at the first read.
    """
    cdef Fault fault
    cdef RecordFields fields
    cdef Record record
    cdef const uint8_t* p = header + HEADER_SIZE
    cdef const uint8_t* stop = header + size
    cdef const uint8_t* block
    cdef int attributes = load_i16(header + ATTRIBUTES_AT)
    cdef int32_t count = load_i32(header + RECORDS_COUNT_AT)
    cdef int32_t last_delta = load_i32(header + LAST_OFFSET_DELTA_AT)
    cdef int64_t base_offset = load_i64(header + BASE_OFFSET_AT)
    cdef int64_t base_timestamp = load_i64(header + BASE_TIMESTAMP_AT)
    cdef int64_t append_time = load_i64(header + MAX_TIMESTAMP_AT)
    cdef int log_append = 1 if attributes & LOG_APPEND_TIME_BIT else 0
    cdef int64_t offset
    cdef int32_t i, delta = -1
    cdef Pin block_pin = pin
    if attributes & CODEC_MASK and stop > p:
        block_pin = decompress_block(attributes & CODEC_MASK, pin, p, stop - p, f"offset {base_offset}")
        p = block_pin.data
        stop = p + block_pin.size
    block = p
    for i in range(count):
        if p == stop:
            record_fault(&fault, RECORD_MISSING, p, count, i)
            raise records_fault(&fault, block, base_offset, f"offset {base_offset}")
        p = parse_record(p, stop, &fields, &fault)
        if p != NULL and (fields.offset_delta <= delta or fields.offset_delta > last_delta):
            p = record_fault(&fault, RECORD_OFFSET, fields.key, fields.offset_delta, delta)
        if p == NULL:
            raise records_fault(&fault, block, base_offset, f"offset {base_offset}")
        delta = fields.offset_delta
        offset = base_offset + delta
        if offset < start:
            continue
        if offset >= end:
            return end
        record = Record.__new__(Record)
        record.topic = topic
        record.partition = partition
        record.offset = offset
        record.epoch = epoch
        record.timestamp_type = log_append
        record.timestamp = (
            append_time if log_append else add_timestamp(base_timestamp, fields.timestamp_delta))
        if fields.key_size >= 0:
            record.key = PyBytes_FromStringAndSize(<const char*>fields.key, fields.key_size)
            if key_deserializer is not None:
                record.key = key_deserializer(record.key)
        if fields.value_size >= 0:
            record.value = PyBytes_FromStringAndSize(<const char*>fields.value, fields.value_size)
            if value_deserializer is not None:
                record.value = value_deserializer(record.value)
        if fields.header_count:
            record._headers = record_headers(&fields)
        records.append(record)
        if PyList_GET_SIZE(records) == room and i + 1 < count:
            return offset + 1
    if p != stop:
        record_fault(&fault, RECORD_LEFTOVER, p, stop - p, count)
        raise records_fault(&fault, block, base_offset, f"offset {base_offset}")
    return base_offset + last_delta + 1
