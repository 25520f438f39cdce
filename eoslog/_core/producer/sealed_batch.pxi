# A full batch between the accumulator and a partition's log.

cdef enum:
    RAW = 0                 # records as encoded
    PACKING = 1             # a thread compresses them
    PACKED = 2              # ready to be stamped

cdef enum:
    LONGEST_DECOMPRESSED = 1 << 28      # bytes; readers reject more

MAX_DECOMPRESSED = LONGEST_DECOMPRESSED


@cython.final
cdef class SealedBatch:
    """One batch, complete except for producer fields. Exports its bytes as a buffer.

    Call `stamp` before the first append. A retry appends the same bytes, with the same id, epoch and
    sequence. Not thread-safe: only the thread that drained the batch may use it.
    """

    cdef ByteBuffer buffer
    cdef MemoryPool pool                # the pool of the buffer
    cdef PartitionBuilder builder
    cdef int exports
    cdef int state
    cdef int codec                      # current codec of the bytes
    cdef size_t summed                  # bytes after the header whose CRC is known
    cdef uint32_t sum                   # of them
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly int32_t count
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t created_ns    # steady clock, of the first record
    cdef readonly size_t reserved       # bytes reserved in buffer.memory
    cdef list targets                   # offset delta, timestamp, target; and so on
    cdef readonly int64_t producer_id
    cdef readonly int16_t producer_epoch
    cdef readonly int32_t base_sequence
    cdef readonly bint stamped
    cdef public int attempts            # appends tried
    cdef public bint doubtful           # an append may have happened although the call failed
    cdef public bint settled            # its callbacks were called
    cdef public int64_t retry_at_ns     # steady clock

    def __cinit__(self):
        self.buffer.data = NULL
        self.buffer.size = self.buffer.capacity = 0
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1

    def __dealloc__(self):              # no view exists now, because a view keeps the batch alive
        if self.pool is not None and self.buffer.data != NULL:
            self.pool.take_back(self.buffer.data, self.buffer.capacity)
        else:
            clear_buffer(&self.buffer)

    @property
    def callbacks(self):
        """(offset delta, timestamp, target) of each record with a delivery callback, or None."""
        if self.targets is None:
            return None
        parts = iter(self.targets)
        return list(zip(parts, parts, parts))

    @property
    def data(self):
        """The batch itself, as a buffer."""
        return self

    @property
    def origin(self):
        """The batch itself, whose memory is released."""
        return self

    @property
    def batches(self):
        """The number of batches: 1."""
        return 1

    def __len__(self):
        return <Py_ssize_t>self.buffer.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.buffer.data, <Py_ssize_t>self.buffer.size, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.exports -= 1

    cdef int pack(self, int codec, object level) except -1:
        """Compress the records, unless that makes them longer. Only the first call has an effect."""
        cdef size_t plain = self.buffer.size - layout.HEADER_SIZE
        cdef ByteBuffer plain_buffer = self.buffer
        cdef bytes packed
        if self.state != RAW:
            return 0
        if codec == 0 or plain > LONGEST_DECOMPRESSED:
            self.state = PACKED
            return 0
        self.state = PACKING            # the codec may release the GIL
        try:
            packed = compress_records(codec, self.buffer.data + layout.HEADER_SIZE, plain, level)
            if <size_t>PyBytes_GET_SIZE(packed) < plain:
                # Copied into a block of its size, so that many batches do not keep the larger blocks.
                self.buffer = ByteBuffer(NULL, 0, 0)
                if reserve(&self.buffer, layout.HEADER_SIZE + <size_t>PyBytes_GET_SIZE(packed)) < 0:
                    self.buffer = plain_buffer
                    raise MemoryError()
                self.pool.take_back(plain_buffer.data, plain_buffer.capacity)
                self.buffer.size = layout.HEADER_SIZE
                put_bytes(&self.buffer, PyBytes_AS_STRING(packed), <size_t>PyBytes_GET_SIZE(packed))
                self.codec = codec
                self.summed = self.sum = 0
            if plain > 0:
                self.builder.topic.learn(<double>PyBytes_GET_SIZE(packed) / <double>plain)
        finally:
            self.state = PACKED
        return 0

    def stamp(self, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
              bint transactional):
        """Write the producer fields and the header. Must not run while the bytes are exported."""
        cdef BatchHeader header
        if self.exports:
            raise errors.IllegalState(f"the batch's bytes are in use by {self.exports} views")
        check_producer(producer_id, producer_epoch, base_sequence, transactional, False)
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.stamped = True
        header.base_offset = 0
        header.leader_epoch = -1        # the log stamps offset and leader epoch, outside the CRC
        header.attributes = <int16_t>self.codec
        if transactional:
            header.attributes |= layout.TRANSACTIONAL_BIT
        header.last_offset_delta = self.count - 1
        header.base_timestamp = self.base_timestamp
        header.max_timestamp = self.max_timestamp
        header.producer_id = producer_id
        header.producer_epoch = producer_epoch
        header.base_sequence = base_sequence
        header.count = self.count
        put_header_fields(self.buffer.data, self.buffer.size, &header)
        seal_crc_onto(self.buffer.data, self.buffer.size, self.summed, self.sum)

    def __repr__(self):
        return (f"<SealedBatch {self.topic}-{self.partition} count={self.count} size={self.buffer.size} "
                f"producer=({self.producer_id}, {self.producer_epoch}, {self.base_sequence})>")
