# Records as objects, for consumers.
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
@cython.freelist(256)
@cython.no_gc
cdef class Record:
    """One record as a consumer gets it. Immutable; equal to a record with the same fields.

    Attributes:
        topic: name of the topic.
        partition: number of the partition.
        offset: offset in the partition.
        timestamp: ms since 1970, -1 for none.
        timestamp_type: 0 set by the producer (CreateTime), 1 by the log (LogAppendTime).
        key: bytes or None, or what the key deserializer made of it.
        value: bytes or None, or what the value deserializer made of it.
        headers: list of (str, bytes or None), in order, names may repeat.
        leader_epoch: leader epoch of the batch.
    """

    cdef str topic              # these three are read by slot, see `read_by_slot`
    cdef readonly int32_t partition
    cdef readonly int32_t leader_epoch
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef readonly int timestamp_type
    cdef object key
    cdef object value
    cdef list _headers          # None for no headers: most records have none

    def __init__(self, topic, partition, offset, timestamp=-1, timestamp_type=0, key=None, value=None,
                 headers=None, leader_epoch=-1):
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self._headers = list(headers) if headers else None
        self.leader_epoch = leader_epoch

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
    """Give Record's objects member descriptors, as `__slots__` has: the interpreter reads those by their
    offset (PEP 659), 4 ns, where it calls the properties that Cython makes, 22 ns.
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


def decode_records(str topic, partition, data, start, end, AbortedTransactions aborted=None, limit=None,
                   key_deserializer=None, value_deserializer=None, check_crc=True):
    """Decodes the data records with offsets in [start, end) out of whole batches.

    Control batches are passed over, and with `aborted` the batches of aborted transactions too.

    Args:
        topic: put into each record.
        partition: put into each record.
        data: whole batches; the first may begin below `start`.
        start: first offset wanted.
        end: one past the last offset wanted.
        aborted: transactions to leave out, None for none (read_uncommitted).
        limit: most records to return; None for no limit.
        key_deserializer: called with the bytes of each key that is not null.
        value_deserializer: called with the bytes of each value that is not null.
        check_crc: verify the checksum of each batch that is looked into.

    Returns:
        The records, and the position to go on from: it also steps over gaps, control and aborted batches.

    Raises:
        CorruptRecord: the first batch to look into is damaged; `position` is its byte in `data`. Where batches precede it their records
            are returned, and the error comes when the caller goes on. What a deserializer raises
            waits in the same way for its record's turn.
    """
    cdef Pin pin = Pin(data)
    cdef const uint8_t* p = pin.data
    cdef const uint8_t* stop = p + pin.size
    cdef int64_t first = start
    cdef int64_t bound = end
    cdef int64_t position = first
    cdef Py_ssize_t room = <Py_ssize_t>INT64_MAX if limit is None else <Py_ssize_t>limit
    cdef int32_t number = partition
    cdef bint check = check_crc
    cdef int64_t size = 0, base_offset, last_offset
    cdef int step = BATCH_END
    cdef int attributes
    cdef bint matches
    cdef Py_ssize_t before
    cdef list records = []
    while room > PyList_GET_SIZE(records) and position < bound:
        step = next_batch(p, stop, &size)
        if step == BATCH_WHOLE:
            step = check_header(p)
        if step != BATCH_WHOLE:
            break
        base_offset = load_i64(p + BASE_OFFSET_AT)
        last_offset = base_offset + load_i32(p + LAST_OFFSET_DELTA_AT)
        if base_offset >= bound:
            position = bound
            break
        if last_offset < position:
            p += size
            continue
        attributes = load_i16(p + ATTRIBUTES_AT)
        if check:
            if size > 4096:
                with nogil:
                    matches = crc_matches(p, size)
            else:
                matches = crc_matches(p, size)
            if not matches:
                step = BATCH_CRC
                break
        if not attributes & CONTROL_BIT and not (
                aborted is not None and attributes & TRANSACTIONAL_BIT
                and aborted.covers(load_i64(p + PRODUCER_ID_AT), base_offset)):
            before = PyList_GET_SIZE(records)
            try:
                position = decode_batch(records, topic, number, pin, p, size, position, bound, room,
                                        key_deserializer, value_deserializer)
            except errors.CorruptRecord as error:
                del records[before:]                # all of a batch or nothing
                if records:
                    return records, position
                placed(error, p - pin.data)
                raise
            except Exception:
                if records:
                    return records, (<Record>records[PyList_GET_SIZE(records) - 1]).offset + 1
                raise
            if position <= last_offset:
                break                               # the limit, or `end` inside the batch
        position = min(last_offset + 1, bound)
        p += size
    if step < 0 and not records:
        fault = batch_fault(step, p, size if step == BATCH_CRC else stop - p, f"offset {position}")
        raise placed(fault, p - pin.data)
    return records, position


cdef int64_t decode_batch(list records, str topic, int32_t partition, Pin pin, const uint8_t* header,
                          int64_t size, int64_t start, int64_t end, Py_ssize_t room, key_deserializer,
                          value_deserializer) except -1:
    """Appends the records of one batch with offsets in [start, end); returns the next position.

    The whole batch is parsed unless the room ends first, so that damage is found at its first read.
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
    cdef int32_t leader_epoch = load_i32(header + LEADER_EPOCH_AT)
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
        record.leader_epoch = leader_epoch
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
