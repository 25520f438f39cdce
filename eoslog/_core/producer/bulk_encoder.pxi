# Encoding many records per call, without the GIL. They go into batches that no other thread uses yet,
# so that the sender can write one batch while the next one grows. Records that this path does not
# support (str, buffers, too large ones) go through the accumulator's `produce`.

from libc.stdlib cimport calloc

cdef enum:
    SLICE_ROWS = 8192           # records whose objects are kept alive at a time
    BULK_ROWS = 256             # fewer records use `produce`
    SUM_BYTES = 12288           # bytes checksummed at a time, while they are in the L1 cache

cdef enum:                      # why BulkEncoder.fill returned
    ALL_TAKEN = 0
    BATCH_FULL = 1
    BUDGET_SPENT = 2
    NOT_FOR_BULK = 3
    OUT_OF_MEMORY = 4

cdef struct OwnBatch:           # the open batch of one partition
    ByteBuffer buffer
    int32_t count
    int64_t base_timestamp
    int64_t max_timestamp
    size_t summed               # bytes after the header whose CRC is known
    uint32_t sum                # of them


cdef BulkEncoder bulk_encoder(RecordAccumulator accumulator, TopicBuilders entry, int32_t chosen,
                              bint keyed, Py_ssize_t count):
    """Return an encoder for these records, or None if `produce` is better."""
    cdef BulkEncoder bulk
    cdef bint by_key = keyed and accumulator.mode == BY_KEY
    if count < BULK_ROWS or (chosen < 0 and accumulator.mode in (RANDOM, CALLABLE)):
        return None
    if chosen < 0 and (by_key or accumulator.mode == ROUND_ROBIN) and count < 64 * <int64_t>entry.count:
        return None
    bulk = BulkEncoder.__new__(BulkEncoder)
    bulk.batches = <OwnBatch*>calloc(<size_t>entry.count, sizeof(OwnBatch))
    if bulk.batches == NULL:
        raise MemoryError()
    bulk.partitions = entry.count
    bulk.accumulator = accumulator
    bulk.entry = entry
    bulk.chosen = chosen
    bulk.by_key = by_key
    bulk.round_robin = chosen < 0 and accumulator.mode == ROUND_ROBIN
    bulk.summing = accumulator.codec == 0
    bulk.limit = entry.bulk_limit
    bulk.budget = min(entry.bulk_limit, accumulator.buffer_memory // 8)
    bulk.largest = min(min(entry.bulk_limit, accumulator.max_request_size), bulk.budget)
    return bulk


@cython.final
@cython.internal
cdef class BulkEncoder:
    """Encodes the records of one call. Not shared between threads; the accumulator's rules apply."""

    cdef RecordAccumulator accumulator
    cdef TopicBuilders entry
    cdef OwnBatch* batches      # by partition
    cdef int32_t partitions
    cdef int32_t chosen         # partition of all records, or -1
    cdef bint by_key
    cdef bint round_robin
    cdef bint summing
    cdef int32_t sticky
    cdef uint32_t turn
    cdef size_t limit           # bytes of a batch
    cdef size_t budget          # bytes to encode in one stretch, reserved before in buffer.memory
    cdef size_t largest         # largest record accepted, including a batch header
    cdef size_t written         # bytes of the stretch
    cdef int32_t full           # the partition that ended it
    cdef int stopped

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.partitions):
            clear_buffer(&self.batches[i].buffer)
        free(self.batches)

    cdef Py_ssize_t add(self, const InputColumns* source, Py_ssize_t row, Py_ssize_t end, bint last) except -1:
        """Buffer rows from `row` on. Returns the first row that needs `produce`, or `end`.

        On return, and after an exception, all encoded rows are in the accumulator's own batches.
        """
        cdef RecordAccumulator accumulator = self.accumulator
        cdef int64_t now
        try:
            while row < end:
                if accumulator._used + self.budget > accumulator.buffer_memory:
                    self.give_all()
                    while accumulator._used + self.budget > accumulator.buffer_memory:
                        accumulator._wait_for_space(self.budget)
                        if accumulator._gate:
                            accumulator._refuse()
                self.prepare()
                now = wall_clock_ms()
                accumulator._used += self.budget
                with nogil:
                    row = self.fill(source, row, end, now)
                if self.round_robin:
                    self.entry.turn = self.turn
                accumulator._used -= self.budget - self.written
                if accumulator._gate:            # closed in the meantime
                    accumulator._refuse()
                if self.stopped == BATCH_FULL:
                    self.give(self.full)
                    accumulator.seal(<PartitionBuilder>self.entry.builders[self.full])
                    if self.full == self.entry.sticky:
                        accumulator.move_on(self.entry)
                    if accumulator.must_wake:
                        accumulator.wake()
                elif self.stopped == NOT_FOR_BULK:
                    break
                elif self.stopped == OUT_OF_MEMORY:
                    raise MemoryError()
            if row < end or last:
                self.give_all()
        except BaseException:
            try:
                if not accumulator._gate:
                    self.give_all()
            finally:
                self.drop_all()                 # records left after the producer was closed
            raise
        return row

    cdef Py_ssize_t fill(self, const InputColumns* source, Py_ssize_t row, Py_ssize_t end,
                         int64_t now) noexcept nogil:
        """Encode until a batch is full or the budget is spent. Returns the first row not encoded."""
        cdef Span key = Span(NULL, 0), value = Span(NULL, 0)
        cdef OwnBatch* batch
        cdef size_t size, before
        cdef int64_t stamp = now
        cdef int32_t place
        self.written = 0
        while row < end:
            self.stopped = NOT_FOR_BULK
            if not cell_at(&source.values, row, &value) or not cell_at(&source.keys, row, &key):
                return row
            size = <size_t>record_upper_bound(key, value, 0)
            if size + layout.HEADER_SIZE > self.largest:
                return row
            if source.stamps != NULL:
                stamp = stamp_at(source, row, now)
                if stamp < 0:
                    return row
            if source.places != NULL and has_value(source.places, row):
                place = place_at(source.places, row)
                if not 0 <= place < self.partitions:
                    return row
            elif self.chosen >= 0:
                place = self.chosen
            elif self.by_key and key.data != NULL:
                place = key_partition(key.data, key.size, self.partitions)
            elif self.round_robin:
                place = <int32_t>(self.turn % <uint32_t>self.partitions)
            else:
                place = self.sticky
            if self.written + size + layout.HEADER_SIZE > self.budget:
                self.stopped = BUDGET_SPENT
                return row
            batch = &self.batches[place]
            if batch.count and batch.buffer.size + size > self.limit:
                self.full = place
                self.stopped = BATCH_FULL
                return row
            self.stopped = OUT_OF_MEMORY
            if batch.count == 0:
                if reserve(&batch.buffer, layout.HEADER_SIZE + size) < 0:
                    return row
                batch.buffer.size = layout.HEADER_SIZE
                batch.base_timestamp = batch.max_timestamp = stamp
                batch.summed = batch.sum = 0
                self.written += layout.HEADER_SIZE
            before = batch.buffer.size
            if put_record(&batch.buffer, stamp - batch.base_timestamp, batch.count, key, value, NULL, 0) < 0:
                return row
            self.written += batch.buffer.size - before
            if stamp > batch.max_timestamp:
                batch.max_timestamp = stamp
            batch.count += 1
            self.turn += 1
            if self.summing and batch.buffer.size - layout.HEADER_SIZE - batch.summed >= SUM_BYTES:
                sum_up(batch)
            row += 1
        self.stopped = ALL_TAKEN
        return row

    cdef int prepare(self) except -1:
        """Reserve memory for the next batches, and choose the partition of the next records."""
        cdef int32_t place
        cdef size_t size
        self.sticky = self.entry.sticky
        self.turn = self.entry.turn
        for place in range(self.partitions):
            if self.batches[place].buffer.data == NULL:
                size = (<PartitionBuilder>self.entry.builders[place]).last_size
                if size >= POOLED_FROM and (self.chosen < 0 or self.chosen == place):
                    self.accumulator.pool.lend(&self.batches[place].buffer, size)
                    if reserve(&self.batches[place].buffer, size) < 0:
                        raise MemoryError()
        return 0

    cdef int give(self, int32_t place) except -1:
        """Make an encoded batch the open batch of its partition, after sealing the one open there."""
        cdef OwnBatch* batch = &self.batches[place]
        cdef PartitionBuilder builder = <PartitionBuilder>self.entry.builders[place]
        cdef RecordAccumulator accumulator = self.accumulator
        cdef bint asked = False
        if batch.count == 0:
            return 0
        if self.summing:
            sum_up(batch)
        while True:
            if builder.count:                   # sealing creates an object: other threads may run in between
                accumulator.seal(builder)
            elif accumulator._gate and not asked:
                asked = True
                accumulator._refuse()
            else:
                break
        clear_buffer(&builder.buffer)
        builder.buffer = batch.buffer
        builder.base_timestamp = batch.base_timestamp
        builder.max_timestamp = batch.max_timestamp
        builder.summed = batch.summed
        builder.sum = batch.sum
        builder.count = batch.count
        builder.created_ns = steady_clock_ns()
        accumulator.active[builder] = None
        accumulator.buffered += batch.count
        accumulator.produced += batch.count
        if builder.created_ns + accumulator.linger_ns < accumulator._sleeping_until:
            accumulator.must_wake = True
        batch.count = 0
        batch.buffer = ByteBuffer(NULL, 0, 0)
        return 0

    cdef int give_all(self) except -1:
        cdef int32_t place
        for place in range(self.partitions):
            self.give(place)
            self.give_back(place)
        if self.accumulator.must_wake:
            self.accumulator.wake()
        return 0

    cdef void drop_all(self) noexcept:
        cdef int32_t place
        for place in range(self.partitions):
            if self.batches[place].count:
                self.accumulator._used -= self.batches[place].buffer.size
                self.batches[place].count = 0
            self.give_back(place)

    cdef void give_back(self, int32_t place) noexcept:
        cdef OwnBatch* batch = &self.batches[place]
        if batch.buffer.data != NULL:
            self.accumulator.pool.take_back(batch.buffer.data, batch.buffer.capacity)
            batch.buffer = ByteBuffer(NULL, 0, 0)


cdef void sum_up(OwnBatch* batch) noexcept nogil:
    cdef const uint8_t* start = batch.buffer.data + layout.HEADER_SIZE + batch.summed
    cdef size_t more = batch.buffer.size - layout.HEADER_SIZE - batch.summed
    batch.sum = eoslog_crc32c(batch.sum, start, more)
    batch.summed += more


cdef int put_rows(RecordAccumulator accumulator, TopicBuilders entry, values, keys, Py_ssize_t row,
                  int32_t chosen) except -1:
    """Buffer objects from `row` on with `produce`, which accepts all types."""
    cdef Span key_span = Span(NULL, 0), value_span = Span(NULL, 0)
    cdef Py_buffer key_view, value_view
    cdef int32_t place
    cdef int views
    cdef int64_t stamp = wall_clock_ms()
    cdef object value, key = None
    for row in range(row, len(values)):
        views = 0
        value = values[row]
        if accumulator.value_serializer is not None:
            value = serialized(accumulator.value_serializer, value, "value")
        if keys is not None:
            key = keys[row]
            if accumulator.key_serializer is not None:
                key = serialized(accumulator.key_serializer, key, "key")
        place = chosen
        try:
            if borrow(key, &key_span, &key_view, "key"):
                views |= 1
            if borrow(value, &value_span, &value_view, "value"):
                views |= 2
            if place < 0 and accumulator.mode == CALLABLE:
                place = accumulator.checked_partition(entry, accumulator.partitioner(
                    entry.name, None if key is None else (<const char*>key_span.data)[:key_span.size],
                    entry.count))
            accumulator.put(entry, key_span, value_span, NULL, 0, place, stamp, None, entry.bulk_limit)
        finally:
            if views & 1:
                PyBuffer_Release(&key_view)
            if views & 2:
                PyBuffer_Release(&value_view)
        if accumulator.must_wake:
            accumulator.wake()
    return 0


def produce_columns(
    RecordAccumulator accumulator, str topic, int64_t count, value, key=None, timestamp=None,
    partition=None, headers=None, *, bint more=False,
) -> int:
    """Buffer `count` records, given as columns.

    Args:
        value, key: `(first row, validity, offsets, data, wide)`, with buffers as `(address, size)` or
            None. The memory must stay valid until the call returns. None: all null.
        timestamp: such a column without offsets, int64 ms; null: the current time.
        partition: such a column without offsets, int32; null: chosen by key.
        headers: per record a list of (name, value) pairs or None; or None.
        more: more calls of this kind follow, by this thread alone. Batches stay open for them until
            `_drain` is forced, even if a call has few rows.
    """
    cdef Column values, keys, stamps, places
    cdef InputColumns source
    cdef ByteBuffer encoded = ByteBuffer(NULL, 0, 0)
    cdef BulkEncoder bulk
    cdef TopicBuilders entry
    cdef int64_t row = 0

    if accumulator._gate:
        accumulator._refuse()
    entry = accumulator.topic_builders(topic)
    memset(&source, 0, sizeof(InputColumns))
    if value is not None:
        take_column(value, count, 0, &values)
        source.values.column = &values
    if key is not None:
        take_column(key, count, 0, &keys)
        source.keys.column = &keys
    if timestamp is not None:
        take_column(timestamp, count, 8, &stamps)
        source.stamps = &stamps
    if partition is not None:
        take_column(partition, count, 4, &places)
        source.places = &places
    bulk, entry.held = entry.held, None             # an error must leave nothing held
    if headers is not None and bulk is not None:
        bulk.give_all()
        bulk = None
    elif bulk is not None:
        bulk.by_key = accumulator.mode == BY_KEY and (key is not None or partition is not None)
    elif headers is None:
        bulk = bulk_encoder(accumulator, entry, -1, key is not None or partition is not None, count)
    try:
        while row < count:
            if bulk is not None:
                row = bulk.add(&source, row, count, not more)
                if row == count:
                    if more:
                        entry.held = bulk
                    break
            encoded.size = 0
            if headers is not None and headers[row]:
                put_headers(&encoded, headers[row], accumulator.max_request_size, "max.request.size")
            put_row(accumulator, entry, &source, row, encoded.data, encoded.size)
            row += 1
    finally:
        clear_buffer(&encoded)
    return count


cdef int put_row(RecordAccumulator accumulator, TopicBuilders entry, const InputColumns* source,
                 int64_t row, const uint8_t* headers, size_t headers_size) except -1:
    """Buffer one row of columns with `produce`."""
    cdef Span key, value
    cdef int64_t stamp = stamp_at(source, row, wall_clock_ms())
    cdef int32_t place = -1
    if not cell_at(&source.values, row, &value):
        raise errors.CorruptRecord(f"Arrow column value: the offsets of row {row} leave its data")
    if not cell_at(&source.keys, row, &key):
        raise errors.CorruptRecord(f"Arrow column key: the offsets of row {row} leave its data")
    if stamp < 0:
        raise errors.SerializationError(f"row {row}: timestamp {stamp} is negative")
    if source.places != NULL and has_value(source.places, row):
        place = accumulator.checked_partition(entry, place_at(source.places, row))
    elif accumulator.mode == CALLABLE:
        place = accumulator.checked_partition(entry, accumulator.partitioner(
            entry.name, None if key.data == NULL else (<const char*>key.data)[:key.size], entry.count))
    accumulator.put(entry, key, value, headers, headers_size, place, stamp, None, entry.bulk_limit)
    if accumulator.must_wake:
        accumulator.wake()
    return 0
