# Which data batches a read_committed reader must not see.
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

cdef struct AbortedRange:
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset


@cython.final
cdef class AbortedTransactions:
    """Aborted transactions of one partition, looked up by batch.

    A transactional batch belongs to the transaction of its producer whose [first offset, marker offset]
    it lies in: a producer has one transaction at a time, so its ranges never overlap.

    Args:
        transactions: (producer id, first offset, offset of the ABORT marker), in any order.
    """

    cdef AbortedRange* _ranges
    cdef Py_ssize_t _count

    def __cinit__(self, transactions=()):
        cdef Py_ssize_t i = 0
        # Sorted by the marker: the first one at or after a batch is the only candidate.
        ordered = sorted((pid, last, first) for pid, first, last in transactions)
        if ordered:
            self._ranges = <AbortedRange*>malloc(len(ordered) * sizeof(AbortedRange))
            if self._ranges == NULL:
                raise MemoryError()
        for pid, last, first in ordered:
            self._ranges[i].producer_id = pid
            self._ranges[i].first_offset = first
            self._ranges[i].last_offset = last
            i += 1
        self._count = i

    def __dealloc__(self):
        free(self._ranges)

    def __len__(self):
        return self._count

    def __contains__(self, item):
        """Whether the batch (producer id, base offset) was aborted."""
        producer_id, base_offset = item
        return self.covers(producer_id, base_offset)

    def __repr__(self):
        return f"AbortedTransactions({self._count})"

    cdef bint covers(self, int64_t producer_id, int64_t base_offset) noexcept nogil:
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self._count
        cdef Py_ssize_t middle
        cdef AbortedRange* found
        while low < high:
            middle = low + (high - low) // 2
            found = &self._ranges[middle]
            if found.producer_id < producer_id or (
                    found.producer_id == producer_id and found.last_offset < base_offset):
                low = middle + 1
            else:
                high = middle
        if low == self._count:
            return False
        found = &self._ranges[low]
        return found.producer_id == producer_id and found.first_offset <= base_offset


@cython.final
cdef class TransactionFold:
    """Finds aborted and open transactions from batches alone, for a directory that nobody manages.

    Feed it the log in order. State: `aborted`, a list of (producer id, first offset, marker offset);
    `open`, {producer id: first offset}; `next_offset`, after the last batch seen.
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
        """The first open offset, or the end."""
        return min(self.open.values(), default=self.next_offset)

    def feed(self, data, *, base_position=0):
        """Folds the whole batches in `data` and returns the bytes that they take.

        Raises:
            CorruptRecord: a header that makes no sense, or an end marker that does not parse.
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
            if step == BATCH_CODEC:         # who wrote what where can be told all the same
                step = BATCH_WHOLE
            if step != BATCH_WHOLE:
                break
            attributes = load_i16(p + ATTRIBUTES_AT)
            self.next_offset = load_i64(p + BASE_OFFSET_AT) + load_i32(p + LAST_OFFSET_DELTA_AT) + 1
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
            raise batch_fault(step, p, end - p, f"position {base + (p - pin.data)}")
        return p - pin.data
