# The leader epoch of a batch. No CRC covers the epoch in the header, so it is compared with the checkpoint.

cdef enum:
    NEIGHBOURS_MAX = 64         # batches that are compared on each side of one that differs


@cython.final
cdef class LeaderEpochs:
    """The leader epochs of a partition, according to its checkpoint.

    Args:
        entries: (epoch, start offset), rising; without entries no batch has an epoch.
        on_difference: called for the first batch with another epoch, with its base offset, its epoch and
            the checkpoint's.
    """

    cdef bytes memory
    cdef const int64_t* starts
    cdef const int64_t* epochs
    cdef Py_ssize_t count
    cdef object on_difference

    def __init__(self, entries, on_difference=None):
        entries = list(entries)
        self.count = len(entries)
        self.memory = struct.pack(
            f"={2 * self.count}q", *(start for _, start in entries), *(epoch for epoch, _ in entries))
        self.starts = <const int64_t*>PyBytes_AS_STRING(self.memory)
        self.epochs = self.starts + self.count
        self.on_difference = on_difference

    cdef Py_ssize_t find(self, int64_t last_offset) noexcept:
        """Return the entry of a batch by its last offset; -1 for none."""
        cdef Py_ssize_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) // 2
            if self.starts[middle] <= last_offset:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def at(self, int64_t last_offset):
        """Return the epoch of the batch that ends at an offset, or None if no entry covers it."""
        cdef Py_ssize_t entry = self.find(last_offset)
        return None if entry < 0 else self.epochs[entry]

    cdef int32_t of_batch(self, const uint8_t* first, const uint8_t* p, const uint8_t* stop) except? -2:
        """Return the epoch of the batch at `p`, one of the complete batches in [first, stop); -1: not known."""
        cdef int32_t said = load_i32(p + LEADER_EPOCH_AT)
        cdef Py_ssize_t entry = self.find(last_offset_at(p))
        if entry < 0 or said == -1:                 # -1: made from a message of an older format
            return -1
        if said == self.epochs[entry]:
            return said
        if self.on_difference is not None:
            tell, self.on_difference = self.on_difference, None
            tell(load_i64(p + BASE_OFFSET_AT), said, self.epochs[entry])
        if self.repeated(p, p, stop, said, entry) or self.repeated(first, p, stop, said, entry):
            return -1                               # a flipped bit changes one batch: the checkpoint may be wrong
        return <int32_t>self.epochs[entry]

    cdef bint repeated(self, const uint8_t* at, const uint8_t* p, const uint8_t* stop, int32_t said,
                       Py_ssize_t entry) noexcept:
        """Whether another batch than the one at `p`, of the same entry, has this epoch; checks some from `at` on."""
        cdef int64_t size = 0
        for _ in range(NEIGHBOURS_MAX):
            if next_batch(at, stop, &size) != BATCH_WHOLE:
                return False
            if at != p and load_i32(at + LEADER_EPOCH_AT) == said and self.find(last_offset_at(at)) == entry:
                return True
            at += size
        return False
