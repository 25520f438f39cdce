# The fast path of Producer.produce: encoding records directly into the open batch of their partition.
# A Python object is made for a record only if it has a delivery callback.
#
# Thread safety: this code runs under the GIL, and a step that must be atomic creates no Python object
# that the garbage collector tracks. Creating one may start a collection, which may run Python code and
# let other threads run. So a step first creates its objects, then checks the state again, and creates
# nothing until it is complete.
from cpython.buffer cimport PyBuffer_FillInfo, PyObject_CheckBuffer
from cpython.bytes cimport PyBytes_CheckExact
from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject
from posix.unistd cimport usleep

from eoslog._core.sys.clock cimport steady_clock_ns, wall_clock_ms
from eoslog._core.format.record cimport record_upper_bound

cdef extern from "Python.h":
    int PyCallable_Check(object o) noexcept

cdef int64_t NEVER = 0x7FFFFFFFFFFFFFFF

cdef enum:
    BY_KEY = 0              # murmur2 of the key, sticky without one
    STICKY = 1
    ROUND_ROBIN = 2
    RANDOM = 3
    CALLABLE = 4

cdef dict PARTITIONERS = {None: BY_KEY, "sticky": STICKY, "round_robin": ROUND_ROBIN, "random": RANDOM}


cdef enum:
    WAKE_SIZE = 131072          # bytes of full batches for which the sender is woken

cdef class BulkEncoder          # bulk_encoder.pxi


cdef bint is_one_buffer(object values):
    """Whether a buffer is one value; an array of items longer than a byte is a sequence of values."""
    if not PyObject_CheckBuffer(values):
        return False
    try:
        return memoryview(values).itemsize == 1
    except (ValueError, BufferError):           # closed, or of a layout that memoryview does not know
        return False


cdef object as_sequence(object values, str what):
    """Return a list or tuple unchanged, another iterable as a list."""
    if type(values) in (list, tuple):
        return values
    try:
        if isinstance(values, (str, dict)) or is_one_buffer(values):    # not its letters or keys
            raise TypeError
        items = iter(values)
    except TypeError:
        raise errors.SerializationError(
            f"{what}: expected a sequence of {what}, got {type(values).__name__}") from None
    return list(items)


cdef class RecordAccumulator:
    """Collects records in batches. A subclass knows the topics and sends the drained batches.

    Hooks of the subclass: `_describe_topic(name) -> (partitions, max_message_bytes)`, `_wake()`,
    `_wait_for_space(size)` (returns when there may be memory, or raises), `_refuse()` (raises the
    error of the closed gate).

    Args:
        batch_size: bytes at which a batch is full; 0: one record per batch.
        linger_ms: time that a batch waits for more records.
        buffer_memory: limit of the records that are not delivered yet, in bytes.
        max_request_size: largest record in bytes, including a batch header.
        compression, level: codec of the batches.
        key_serializer, value_serializer: functions that return bytes, or None.
        partitioner: None, "sticky", "round_robin", "random" or `f(topic, key, partitions) -> int`.
        ignore_keys: distribute records with a key like those without.
    """

    cdef dict topics
    cdef TopicBuilders latest           # the last used one of `topics`
    cdef dict active                    # builders with records, oldest first
    cdef list ready                     # sealed batches, oldest first
    cdef size_t batch_size
    cdef int64_t linger_ns
    cdef size_t buffer_memory
    cdef size_t max_request_size
    cdef int codec
    cdef object level
    cdef object key_serializer
    cdef object value_serializer
    cdef int mode
    cdef object partitioner
    cdef uint64_t random
    cdef readonly size_t _used          # bytes of records not yet delivered
    cdef readonly int64_t buffered      # records not yet delivered
    cdef readonly int64_t produced      # records accepted so far
    cdef public int _gate               # not 0: produce calls _refuse()
    cdef MemoryPool pool                # buffers of delivered batches
    cdef public int64_t _sleeping_until # time until which the sender sleeps; 0: it is awake
    cdef public bint _exhausted         # a thread waits for memory: send all batches now
    cdef bint must_wake
    cdef list unpacked                  # sealed batches whose records are not compressed yet

    def __init__(self, *, size_t batch_size=16384, double linger_ms=5, size_t buffer_memory=33554432,
                 size_t max_request_size=1048576, str compression="none", level=None,
                 key_serializer=None, value_serializer=None, partitioner=None,
                 bint ignore_keys=False):
        self.pool = BLOCKS
        self.topics = {}
        self.active = {}
        self.ready = []
        self.unpacked = []
        self.batch_size = batch_size
        self.linger_ns = <int64_t>(linger_ms * 1e6)
        self.buffer_memory = buffer_memory
        self.max_request_size = max_request_size
        self.codec = codec_id(compression)
        self.level = level
        self.key_serializer = key_serializer
        self.value_serializer = value_serializer
        self.partitioner = partitioner
        self.mode = CALLABLE if callable(partitioner) else PARTITIONERS[partitioner]
        if ignore_keys and self.mode == BY_KEY:
            self.mode = STICKY
        self.random = int.from_bytes(urandom(8), "little") | 1

    # What a subclass provides.

    def _describe_topic(self, str topic):
        raise errors.UnknownTopicOrPartition(f"topic {topic!r} does not exist; create it with log.create_topic({topic!r}) (producing does not create topics)")

    def _wake(self):
        pass

    def _wait_for_space(self, size_t size):
        raise errors.QueueFull(f"buffer full: {self._used} of {self.buffer_memory} bytes are in use (buffer.memory), {size} more needed")

    def _refuse(self):
        raise errors.IllegalState("the producer does not accept records at the moment")

    # Records in.

    def produce(self, topic, value=None, key=None, *, headers=None, partition=None, timestamp=None,
                on_delivery=None, publishing_id=None) -> None:
        """Buffer one record for sending. Thread-safe.

        Args:
            topic: name of an existing topic.
            value, key: bytes, str (encoded as UTF-8), a contiguous buffer or None; with a serializer,
                any object.
            headers: (name, value) pairs or a mapping; values are bytes, str or None.
            partition: partition number; None chooses it by key or, without a key, distributes records.
            timestamp: ms since 1970; None: the current time.
            on_delivery: called with (error or None, RecordMetadata) from poll, flush or close.
            publishing_id: None; a producer with a name takes ids (`NamedProducer`).

        Raises:
            ConfigError: if there is a publishing id, and the producer has no name.
            UnknownTopicOrPartition: if the topic or partition does not exist.
            RecordTooLarge: if the record exceeds max.request.size, buffer.memory or the topic's
                max.message.bytes.
            SerializationError: if a key, value or header has a wrong type, or a serializer fails.
            QueueFull: if the buffer was full for max.block.ms.
            IllegalState: if the producer is closed, or no transaction is open.

        **Durability**: none on return. The record is as durable as `acks` says when `flush` returns or its
        delivery is reported.
        """
        if publishing_id is not None:
            refuse_publishing_id("publishing_id")
        buffer_record(self, topic, value, key, headers, partition, timestamp, on_delivery)

    def produce_many(self, topic, values, keys=None, partition=None, publishing_ids=None) -> int:
        """Buffer one record for each of `values`, in batches of up to max.message.bytes.

        Args:
            topic: name of an existing topic.
            values: a sequence of values, as for `produce`.
            keys: a sequence of as many keys, or None.
            partition: partition number of all records; None chooses it by key or, without keys,
                distributes batches.

            publishing_ids: None; a producer with a name takes ids (`NamedProducer`).

        Returns:
            The number of buffered records.

        Raises:
            As `produce`; records before the invalid one stay buffered.
        """
        if publishing_ids is not None:
            refuse_publishing_id("publishing_ids")
        return buffer_records(self, topic, values, keys, partition)

    @cython.final
    cdef size_t full_at(self, TopicBuilders entry) noexcept:
        cdef size_t limit = self.batch_size
        if self.codec:
            limit = <size_t>(<double>limit / entry.ratio)
        return limit if limit < entry.bulk_limit else entry.bulk_limit

    @cython.final
    cdef TopicBuilders topic_builders(self, object topic):
        cdef PyObject* found
        if self.latest is not None and topic is self.latest.name:
            return self.latest                      # the common case, without a dict lookup
        if not isinstance(topic, str):
            raise errors.SerializationError(f"topic: expected str, got {type(topic).__name__}")
        found = PyDict_GetItem(self.topics, topic)
        if found == NULL:
            return self.load_topic(str.__str__(topic))
        self.latest = <TopicBuilders>found
        return self.latest

    cdef TopicBuilders load_topic(self, str topic):
        cdef TopicBuilders entry, fresh
        partitions, max_message_bytes = self._describe_topic(topic)
        fresh = TopicBuilders.__new__(TopicBuilders)
        fresh.name = topic
        fresh.builders = []
        fresh.ratio = 1.0
        fresh.bulk_limit = max_message_bytes
        fresh.grow(partitions)                      # complete before another thread can see it
        self.move_on(fresh)
        entry = self.topics.setdefault(topic, fresh)
        if partitions < entry.count:                # deleted and re-created
            self.topics[topic] = self.latest = entry = fresh
        entry.bulk_limit = max_message_bytes
        entry.grow(partitions)
        return entry

    @cython.final
    cdef int32_t checked_partition(self, TopicBuilders entry, object partition) except -1:
        cdef int64_t chosen
        if not isinstance(partition, int):
            raise errors.SerializationError(f"partition: expected int, got {type(partition).__name__}")
        if not 0 <= partition < entry.count:
            self.load_topic(entry.name)             # it may have grown
            if not 0 <= partition < entry.count:
                raise errors.UnknownTopicOrPartition(
                    f"no partition {shown(partition)} in topic {entry.name!r} with {entry.count} partitions")
        chosen = partition
        return <int32_t>chosen

    cdef int32_t spread(self, TopicBuilders entry) noexcept:
        """Choose a random partition; partitions with more unsent records are less likely."""
        self.random ^= self.random << 13
        self.random ^= self.random >> 7
        self.random ^= self.random << 17
        if entry.count == 1 or self.mode == RANDOM:
            return <int32_t>(self.random % <uint64_t>entry.count)
        return entry.drawn(self.random)

    cdef void move_on(self, TopicBuilders entry) noexcept:
        entry.sticky = self.spread(entry)
        entry.stuck = 0

    @cython.final
    cdef int put(self, TopicBuilders entry, Span key, Span value, const uint8_t* headers,
                 size_t headers_size, int32_t partition, int64_t stamp, object target,
                 size_t limit) except -1:
        cdef PartitionBuilder builder
        cdef size_t before, size = <size_t>record_upper_bound(key, value, headers_size)
        cdef bint sticky = False, asked = False
        cdef list callbacks = None if target is None else []

        if size + layout.HEADER_SIZE > self.max_request_size:
            raise errors.RecordTooLarge(
                f"a record of about {size + layout.HEADER_SIZE} bytes exceeds max.request.size = {self.max_request_size}")
        if size + layout.HEADER_SIZE > entry.bulk_limit and self.codec == 0:
            self.load_topic(entry.name)             # it may have been raised
        if size + layout.HEADER_SIZE > entry.bulk_limit and self.codec == 0:
            raise errors.RecordTooLarge(
                f"a record of about {size + layout.HEADER_SIZE} bytes exceeds max.message.bytes = "
                f"{entry.bulk_limit} of topic {entry.name!r}")
        if size + layout.HEADER_SIZE > self.buffer_memory:
            raise errors.RecordTooLarge(
                f"a record of about {size + layout.HEADER_SIZE} bytes exceeds buffer.memory = {self.buffer_memory}")
        while self._used + size + layout.HEADER_SIZE > self.buffer_memory:
            self._wait_for_space(size + layout.HEADER_SIZE)

        if partition < 0:
            if key.data != NULL and self.mode == BY_KEY:
                partition = key_partition(key.data, key.size, entry.count)
            elif self.mode == ROUND_ROBIN:
                partition = <int32_t>(entry.turn % <uint32_t>entry.count)
                entry.turn += 1
            elif self.mode == RANDOM:
                partition = self.spread(entry)
            else:
                sticky = True
        while True:
            builder = <PartitionBuilder>entry.builders[entry.sticky if sticky else partition]
            if builder.count and builder.buffer.size + size > limit:
                self.seal(builder)
                if sticky and builder.partition == entry.sticky:
                    self.move_on(entry)
            elif self._gate and not asked:           # closed while Python code ran (a serializer, a wait)
                asked = True
                self._refuse()
            else:
                break

        # From here to the end no object is created.
        if builder.count == 0:
            self.pool.lend(&builder.buffer, builder.last_size)
            if reserve(&builder.buffer, max(builder.last_size, layout.HEADER_SIZE + size)) < 0:
                raise MemoryError()
            builder.buffer.size = layout.HEADER_SIZE
            builder.base_timestamp = builder.max_timestamp = stamp
            builder.created_ns = steady_clock_ns()
            self.active[builder] = None
            self._used += layout.HEADER_SIZE
            if builder.created_ns + self.linger_ns < self._sleeping_until:
                self.must_wake = True
        before = builder.buffer.size
        if put_record(&builder.buffer, stamp - builder.base_timestamp, builder.count, key, value,
                      headers if headers_size else NULL, headers_size) < 0:
            raise MemoryError()
        if stamp > builder.max_timestamp:
            builder.max_timestamp = stamp
        if target is not None:
            if builder.callbacks is None:
                builder.callbacks = callbacks
            builder.callbacks.append(builder.count)
            builder.callbacks.append(stamp)
            builder.callbacks.append(target)
        builder.count += 1
        self._used += builder.buffer.size - before
        self.buffered += 1
        self.produced += 1
        return 0

    @cython.final
    cdef int seal(self, PartitionBuilder builder) except -1:
        """Move a builder's batch to the ready queue, unless another thread has done so."""
        cdef SealedBatch batch = SealedBatch.__new__(SealedBatch)
        if builder.count == 0:
            return 0
        batch.builder = builder
        batch.pool = self.pool
        batch.topic = builder.topic.name
        batch.partition = builder.partition
        batch.count = builder.count
        batch.base_timestamp = builder.base_timestamp
        batch.max_timestamp = builder.max_timestamp
        batch.created_ns = builder.created_ns
        batch.reserved = builder.buffer.size
        batch.targets = builder.callbacks
        batch.buffer = builder.buffer
        batch.summed = builder.summed
        batch.sum = builder.sum
        builder.summed = builder.sum = 0
        builder.last_size = builder.buffer.size
        builder.buffer = ByteBuffer(NULL, 0, 0)
        builder.count = 0
        builder.callbacks = None
        builder.outstanding += 1
        if builder.partition == builder.topic.sticky:   # a small batch counts with its size (KIP-794)
            builder.topic.stuck += batch.reserved
            if builder.topic.stuck >= self.full_at(builder.topic):
                self.move_on(builder.topic)
        del self.active[builder]
        self.ready.append(batch)
        if self.codec:
            self.unpacked.append(batch)
            self.must_wake = True
        elif self._sleeping_until and len(self.ready) * batch.reserved >= WAKE_SIZE:
            self.must_wake = True                   # fewer bytes are sent when the first batch's linger time is over
        return 0

    @cython.final
    cdef int wake(self) except -1:
        """Compress the batches that this thread has filled, then wake the sender."""
        self.must_wake = False
        while self.unpacked:
            (<SealedBatch>self.unpacked.pop(0)).pack(self.codec, self.level)
        if self._sleeping_until:
            self._wake()
        return 0

    # Batches out.

    def _drain(self, int64_t now_ns, bint force, into=None):
        """Append the full and the due batches (all with `force`) to `into`, per partition in order.

        They are not returned, because an interrupt between two bytecodes of the caller would lose a
        returned list.
        """
        cdef PartitionBuilder builder
        cdef SealedBatch batch
        cdef object drained = [] if into is None else into
        cdef Py_ssize_t count = 0
        cdef list taken
        if force:
            for item in list(self.topics.values()):
                self.give_held(<TopicBuilders>item)
        for item in list(self.active):
            builder = <PartitionBuilder>item
            if not (force or self._exhausted) and builder.created_ns + self.linger_ns > now_ns:
                break                               # later batches are younger
            self.seal(builder)
        for item in self.ready:
            if (<SealedBatch>item).state == PACKING:
                break                               # the compressing thread wakes the sender at its end
            count += 1
        taken = self.ready[:count]
        drained.extend(taken)
        del self.ready[:count]
        for item in taken:
            batch = <SealedBatch>item
            batch.pack(self.codec, self.level)
            while batch.state == PACKING:           # compression began while the list was created
                with nogil:
                    usleep(50)
        return drained

    cdef int give_held(self, TopicBuilders entry) except -1:
        cdef BulkEncoder held = entry.held
        entry.held = None
        if held is not None:
            held.give_all()
        return 0

    def _next_due_ns(self) -> int:
        """Return when the oldest open batch's linger time ends (steady clock, ns), or None."""
        if self.ready:
            if (<SealedBatch>self.ready[0]).state == PACKING:
                return steady_clock_ns() + 1_000_000    # do not check continuously
            return 0
        for item in self.active:
            return (<PartitionBuilder>item).created_ns + self.linger_ns
        return None

    def _ready_since_ns(self) -> int:
        """Return the time of the first record in the oldest full batch (steady clock, ns), or None."""
        if not self.ready:
            return None
        return (<SealedBatch>self.ready[0]).created_ns

    def _buffered_places(self) -> set:
        """Return (topic, partition) of the batches that are not drained."""
        cdef PartitionBuilder builder
        cdef set found = set()
        for item in [*self.active, *[(<SealedBatch>batch).builder for batch in self.ready]]:
            builder = <PartitionBuilder>item
            found.add((builder.topic.name, builder.partition))
        return found

    def _release(self, SealedBatch batch) -> None:
        """Release the memory of a batch that was delivered or has failed; once per batch."""
        self._used -= batch.reserved
        self.buffered -= batch.count
        batch.builder.outstanding -= 1

    def _refresh_topics(self) -> None:
        """Load all topics again, because partitions may have been added or topics deleted."""
        for name in list(self.topics):
            try:
                self.load_topic(name)
            except errors.UnknownTopicOrPartition:
                self.topics.pop(name, None)
                self.latest = None

    def __len__(self):
        return self.buffered


cdef int refuse_publishing_id(str name) except -1:
    raise errors.ConfigError(
        f"{name}: only a producer with a name, and its transactions, take publishing ids; create it with "
        "log.producer(name=...)"
    )


cdef int buffer_record(RecordAccumulator accumulator, object topic, object value, object key, object headers,
                       object partition, object timestamp, object on_delivery) except -1:
    """Implement `RecordAccumulator.produce`."""
    cdef TopicBuilders entry
    cdef Span key_span = Span(NULL, 0), value_span = Span(NULL, 0)
    cdef Py_buffer key_view, value_view
    cdef int views = 0
    cdef ByteBuffer encoded = ByteBuffer(NULL, 0, 0)
    cdef int32_t chosen = -1
    cdef int64_t stamp

    if accumulator._gate:
        accumulator._refuse()
    entry = accumulator.topic_builders(topic)
    if accumulator.key_serializer is not None:
        key = serialized(accumulator.key_serializer, key, "key")
    if accumulator.value_serializer is not None:
        value = serialized(accumulator.value_serializer, value, "value")
    if timestamp is None:
        stamp = wall_clock_ms()
    else:
        stamp = timestamp_of(timestamp)
    if on_delivery is not None and not PyCallable_Check(on_delivery):
        raise errors.ConfigError(f"on_delivery: expected a callable, got {shown(on_delivery)}")
    try:
        if borrow(key, &key_span, &key_view, "key"):
            views |= 1
        if borrow(value, &value_span, &value_view, "value"):
            views |= 2
        if headers:
            put_headers(&encoded, headers, accumulator.max_request_size, "max.request.size")
        if partition is not None:
            chosen = accumulator.checked_partition(entry, partition)
        elif accumulator.mode == CALLABLE:
            chosen = accumulator.checked_partition(entry, accumulator.partitioner(
                topic, None if key is None else (<const char*>key_span.data)[:key_span.size],
                entry.count))
        accumulator.put(entry, key_span, value_span, encoded.data, encoded.size, chosen, stamp,
                 on_delivery, accumulator.full_at(entry))
    finally:
        if views & 1:
            PyBuffer_Release(&key_view)
        if views & 2:
            PyBuffer_Release(&value_view)
        clear_buffer(&encoded)
    if accumulator.must_wake:
        accumulator.wake()
    return 0


cdef object buffer_records(RecordAccumulator accumulator, object topic, object values, object keys,
                           object partition):
    """Implement `RecordAccumulator.produce_many`."""
    cdef TopicBuilders entry
    cdef BulkEncoder bulk = None
    cdef InputColumns source
    cdef int32_t chosen = -1
    cdef Py_ssize_t first = 0, row, length, count

    if accumulator._gate:
        accumulator._refuse()
    values = as_sequence(values, "values")
    count = len(values)
    if keys is not None:
        keys = as_sequence(keys, "keys")
        if len(keys) != count:
            raise errors.ConfigError(f"{len(keys)} keys for {count} values")
    entry = accumulator.topic_builders(topic)
    if partition is not None:
        chosen = accumulator.checked_partition(entry, partition)
    if accumulator.key_serializer is None and accumulator.value_serializer is None:
        bulk = bulk_encoder(accumulator, entry, chosen, keys is not None, count)
    memset(&source, 0, sizeof(InputColumns))
    while first < count:
        # A slice keeps its objects alive, even if the caller changes the list.
        some_values = values[first:first + SLICE_ROWS]
        some_keys = None if keys is None else keys[first:first + SLICE_ROWS]
        length = len(some_values)
        if length != min(count - first, SLICE_ROWS) or (some_keys is not None and len(some_keys) != length):
            raise errors.ConfigError("values or keys were changed by another thread")
        row = 0
        if bulk is not None:
            source.values.objects = PySequence_Fast_ITEMS(some_values)
            source.keys.objects = NULL if some_keys is None else PySequence_Fast_ITEMS(some_keys)
            row = bulk.add(&source, 0, length, first + length == count)
        put_rows(accumulator, entry, some_values, some_keys, row, chosen)
        first += length
    return count


cdef class RecordCalls:
    """The methods that buffer records, for an object that forwards them to an accumulator.

    They are compiled, so that forwarding costs no time.
    """

    cdef RecordAccumulator accumulator

    def __init__(self, RecordAccumulator accumulator not None):
        self.accumulator = accumulator

    def produce(self, topic, value=None, key=None, *, headers=None, partition=None, timestamp=None,
                on_delivery=None, publishing_id=None) -> None:
        """Buffer one record for sending, as `Producer.produce`. Thread-safe.

        Args:
            topic: name of an existing topic.
            value, key: bytes, str (encoded as UTF-8), a contiguous buffer or None; with a serializer,
                any object.
            headers: (name, value) pairs or a mapping; values are bytes, str or None.
            partition: partition number; None chooses it by key or, without a key, distributes records.
            timestamp: ms since 1970; None: the current time.
            on_delivery: called with (error or None, RecordMetadata) from poll, flush or close.
            publishing_id: None; a producer with a name takes ids (`NamedProducer`).

        Raises:
            ConfigError: if there is a publishing id, and the producer has no name.
            UnknownTopicOrPartition: if the topic or partition does not exist.
            RecordTooLarge: if the record exceeds max.request.size, buffer.memory or the topic's
                max.message.bytes.
            SerializationError: if a key, value or header has a wrong type, or a serializer fails.
            QueueFull: if the buffer was full for max.block.ms.
            IllegalState: if no transaction is open.

        **Durability**: none on return. The records become durable together when the transaction commits.
        """
        if publishing_id is not None:
            refuse_publishing_id("publishing_id")
        buffer_record(self.accumulator, topic, value, key, headers, partition, timestamp, on_delivery)

    def produce_many(self, topic, values, keys=None, partition=None, publishing_ids=None) -> int:
        """Buffer one record for each of `values`, as `Producer.produce_many`.

        Args:
            topic: name of an existing topic.
            values: a sequence of values, as for `produce`.
            keys: a sequence of as many keys, or None.
            partition: partition number of all records; None chooses it by key or, without keys,
                distributes batches.

            publishing_ids: None; a producer with a name takes ids (`NamedProducer`).

        Returns:
            The number of buffered records.

        Raises:
            As `produce`; records before the invalid one stay buffered.
        """
        if publishing_ids is not None:
            refuse_publishing_id("publishing_ids")
        return buffer_records(self.accumulator, topic, values, keys, partition)
