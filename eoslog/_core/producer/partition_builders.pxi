# The open batch of each partition of a topic, and conversion of keys, values and timestamps.

cdef int borrow_other(object data, Span* span, Py_buffer* view, str role) except -1:
    if isinstance(data, str):
        try:
            span.data = <const uint8_t*>PyUnicode_AsUTF8AndSize(data, &span.size)
        except UnicodeEncodeError as error:
            raise errors.SerializationError(f"{role} is not valid UTF-8: {error}") from error
        return 0
    try:
        PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    except (TypeError, ValueError, BufferError):    # ValueError: released, or a null Arrow scalar
        raise errors.SerializationError(
            f"{role}: expected bytes, str, a contiguous buffer or None, got {type(data).__name__}; "
            f"or give the producer a {role}.serializer") from None
    span.data = <const uint8_t*>view.buf
    if span.data == NULL:               # an empty buffer may have no address, but is not null
        span.data = <const uint8_t*>&EMPTY_BYTES
    span.size = view.len
    return 1


cdef uint8_t EMPTY_BYTES = 0


cdef inline int borrow(object data, Span* span, Py_buffer* view, str role) except -1:
    """Borrow the bytes of `data`, valid as long as `data`. Returns 1 if `view` must be released."""
    if PyBytes_CheckExact(data):
        span.data = <const uint8_t*>PyBytes_AS_STRING(data)
        span.size = PyBytes_GET_SIZE(data)
        return 0
    if data is None:
        span.data = NULL
        span.size = 0
        return 0
    return borrow_other(data, span, view, role)


@cython.final
cdef class PartitionBuilder:
    """The open batch of one partition. Empty (count 0) between batches."""

    cdef TopicBuilders topic
    cdef int32_t partition
    cdef ByteBuffer buffer
    cdef int32_t count
    cdef int32_t outstanding            # sealed batches that are not yet delivered
    cdef size_t last_size               # size of the previous batch: allocate as much
    cdef size_t summed                  # bytes after the header whose CRC is known
    cdef uint32_t sum                   # of them
    cdef int64_t base_timestamp
    cdef int64_t max_timestamp
    cdef int64_t created_ns
    cdef list callbacks                 # offset delta, timestamp, target; and so on

    def __dealloc__(self):
        clear_buffer(&self.buffer)


@cython.final
cdef class TopicBuilders:
    """The open batches of a topic, and where its keyless records go."""

    cdef str name
    cdef list builders
    cdef int32_t count
    cdef int32_t sticky
    cdef size_t stuck                   # bytes of its batches since the partition was chosen
    cdef uint32_t turn
    cdef size_t bulk_limit              # max.message.bytes: the largest size of a batch
    cdef double ratio                   # learned ratio of compressed to plain size
    cdef BulkEncoder held               # encoder with open batches for the next columns

    cdef void learn(self, double seen) noexcept:
        # Adapts slowly to a better ratio and quickly to a worse one, so that batches are not too large.
        if seen > self.ratio:
            self.ratio = max(self.ratio + 0.05, seen)
        else:
            self.ratio = max(self.ratio - 0.005, seen)
        self.ratio = min(max(self.ratio, 0.05), 1.0)

    cdef int grow(self, int32_t count) except -1:
        cdef PartitionBuilder builder
        while self.count < count:
            builder = PartitionBuilder.__new__(PartitionBuilder)
            builder.topic = self
            if self.count < count:                  # another thread may have grown it
                builder.partition = self.count
                self.builders.append(builder)
                self.count += 1
        return 0

    cdef int32_t drawn(self, uint64_t random) noexcept:
        """Return a partition for a random number, weighted by longest queue + 1 - own queue."""
        cdef int32_t index, longest = 0
        cdef int64_t total = 0, point
        for index in range(self.count):
            longest = max(longest, (<PartitionBuilder>self.builders[index]).outstanding)
        for index in range(self.count):
            total += longest + 1 - (<PartitionBuilder>self.builders[index]).outstanding
        point = <int64_t>(random % <uint64_t>total)
        for index in range(self.count):
            point -= longest + 1 - (<PartitionBuilder>self.builders[index]).outstanding
            if point < 0:
                return index
        return self.count - 1


cdef object serialized(object serializer, object value, str role):
    try:
        return serializer(value)
    except errors.EoslogError:
        raise
    except Exception as error:
        raise errors.SerializationError(f"{role}.serializer failed: {shown(error)}") from error


cdef int64_t timestamp_of(object timestamp) except -1:
    if not isinstance(timestamp, int) or timestamp < 0 or timestamp > NEVER:
        raise errors.SerializationError(f"timestamp: expected an int, ms since 1970, got {shown(timestamp)}")
    return timestamp
