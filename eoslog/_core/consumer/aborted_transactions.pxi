# The aborted transactions of a partition, whose batches a read_committed reader must skip.
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from operator import itemgetter

_marker_offset = itemgetter(2)

cdef struct AbortedRange:
    int64_t first_offset
    int64_t last_offset
    Py_ssize_t next             # next range of the same producer, -1: none

cdef struct AbortedProducer:
    int64_t producer_id
    int64_t asked               # base offset of the last batch looked up
    Py_ssize_t first            # its first range, -1: the place is free
    Py_ssize_t last
    Py_ssize_t at               # the first range that did not end below `asked`


@cython.final
cdef class AbortedTransactions:
    """Aborted transactions of one partition, looked up by batch. Not thread-safe.

    A transactional batch is aborted if its offset is in a range [first offset, marker offset] of its
    producer. A producer has one transaction at a time, so its ranges do not overlap. Lookups with rising
    offsets walk each producer's ranges once. A lookup of a lower offset starts at the first range again.

    Args:
        transactions: (producer id, first offset, offset of the ABORT marker), in any order.
    """

    cdef AbortedRange* _ranges
    cdef Py_ssize_t _count
    cdef AbortedProducer* _producers
    cdef uint64_t _mask

    def __cinit__(self, transactions=()):
        cdef Py_ssize_t count = len(transactions)
        cdef uint64_t places = 2
        cdef AbortedRange* found
        cdef AbortedProducer* producer
        while places < 2 * <uint64_t>count:
            places *= 2
        self._ranges = <AbortedRange*>malloc(max(count, 1) * sizeof(AbortedRange))
        self._producers = <AbortedProducer*>malloc(places * sizeof(AbortedProducer))
        if self._ranges == NULL or self._producers == NULL:
            raise MemoryError()
        memset(self._producers, 0xFF, places * sizeof(AbortedProducer))
        self._mask = places - 1
        for pid, first, last in sorted(transactions, key=_marker_offset):
            found = &self._ranges[self._count]
            found.first_offset = first
            found.last_offset = last
            found.next = -1
            producer = self._place(pid)
            if producer.first < 0:
                producer.producer_id = pid
                producer.first = producer.at = self._count
            else:
                self._ranges[producer.last].next = self._count
            producer.last = self._count
            self._count += 1

    cdef AbortedProducer* _place(self, int64_t producer_id) noexcept nogil:
        """Return the place of a producer, or the free place for it."""
        cdef uint64_t at = <uint64_t>producer_id * <uint64_t>0x9E3779B97F4A7C15
        at = (at ^ (at >> 32)) & self._mask
        while self._producers[at].first >= 0 and self._producers[at].producer_id != producer_id:
            at = (at + 1) & self._mask
        return &self._producers[at]

    def __dealloc__(self):
        free(self._ranges)
        free(self._producers)

    def __len__(self):
        return self._count

    def __contains__(self, item):
        """Whether the batch (producer id, base offset) is aborted."""
        producer_id, base_offset = item
        return self.covers(producer_id, base_offset)

    def __repr__(self):
        return f"AbortedTransactions({self._count})"

    cdef bint covers(self, int64_t producer_id, int64_t base_offset) noexcept nogil:
        cdef AbortedProducer* producer = self._place(producer_id)
        cdef Py_ssize_t at
        if producer.first < 0:
            return False
        at = producer.at if base_offset >= producer.asked else producer.first
        while at >= 0 and self._ranges[at].last_offset < base_offset:
            at = self._ranges[at].next
        producer.asked = base_offset
        producer.at = at
        return at >= 0 and self._ranges[at].first_offset <= base_offset


@cython.final
cdef class TransactionFold:
    """Finds aborted and open transactions from batches alone, for readers of plain files.

    Feed the batches of a log in order.

    Attributes:
        aborted: list of (producer id, first offset, marker offset).
        open: {producer id: first offset}.
        next_offset: the offset after the last batch.
    """

    cdef readonly list aborted
    cdef readonly dict open
    cdef readonly int64_t next_offset

    def __init__(self, open=None):
        self.aborted = []
        self.open = dict(open or {})
        self.next_offset = 0

    @property
    def last_stable_offset(self):
        """The first offset of the earliest open transaction, or the end."""
        return min(self.open.values(), default=self.next_offset)

    def feed(self, data, *, base_position=0):
        """Fold the complete batches in `data`. Returns their size in bytes.

        Raises:
            CorruptRecord: if a header is invalid, offsets do not rise, an end marker does not parse, or a
                transactional or control batch does not match its CRC, so that its effect is unknown.
        """
        cdef Pin pin = Pin(data)
        cdef const uint8_t* p = pin.data
        cdef const uint8_t* end = p + pin.size
        cdef int64_t size = 0
        cdef int step
        cdef int attributes
        cdef int64_t base = base_position
        cdef Batch batch
        while True:
            step = next_batch(p, end, &size)
            if step == BATCH_WHOLE:
                step = check_header(p)
            if step == BATCH_CODEC:         # an unknown codec does not matter: the records are not read
                step = BATCH_WHOLE
            if step != BATCH_WHOLE:
                break
            attributes = load_i16(p + ATTRIBUTES_AT)
            if load_i64(p + BASE_OFFSET_AT) < self.next_offset:
                at = base + (p - pin.data)
                raise placed(errors.CorruptRecord(
                    f"offsets go back at byte {at}: base offset {load_i64(p + BASE_OFFSET_AT)}, "
                    f"expected {self.next_offset} or more"), at)
            self.next_offset = load_i64(p + BASE_OFFSET_AT) + load_i32(p + LAST_OFFSET_DELTA_AT) + 1
            if attributes & (TRANSACTIONAL_BIT | CONTROL_BIT) and not crc_matches(p, size):
                at = base + (p - pin.data)
                raise placed(batch_fault(BATCH_CRC, p, size, f"position {at}"), at)
            if attributes & TRANSACTIONAL_BIT:
                producer_id = load_i64(p + PRODUCER_ID_AT)
                if attributes & CONTROL_BIT:
                    batch = Batch.__new__(Batch)
                    batch._pin = pin
                    batch._p = p
                    batch.position = base + (p - pin.data)
                    batch.size = size
                    control_type = batch.control_type
                    if control_type == CONTROL_ABORT or control_type == CONTROL_COMMIT:
                        first = self.open.pop(producer_id, None)
                        if first is not None and control_type == CONTROL_ABORT:
                            self.aborted.append((producer_id, first, batch.base_offset))
                else:
                    self.open.setdefault(producer_id, load_i64(p + BASE_OFFSET_AT))
            p += size
        if step != BATCH_END:
            at = base + (p - pin.data)
            raise placed(batch_fault(step, p, end - p, f"position {at}"), at)
        return p - pin.data
