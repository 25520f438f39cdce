# The fast path behind Producer.produce: records are encoded straight into their partition's growing
# batch; no Python object is made for a record unless somebody wants to hear of its delivery.
#
# Thread safety: everything runs under the GIL, and the steps that belong together make no Python
# object that the garbage collector tracks. Making one may start a collection, a collection runs
# Python code, and that lets other threads in. So objects are made first, the state is looked at
# again, and then nothing is made until the step is complete.
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_CheckExact
from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject
from posix.unistd cimport usleep

from eoslog._core.clock cimport steady_clock_ns, wall_clock_ms
from eoslog._core.record cimport record_upper_bound

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
    WAKE_SIZE = 131072          # bytes of full batches that are worth waking the sender for

cdef class BulkEncoder          # bulk.pxi


cdef object as_sequence(object values, str what):
    """A list or tuple as it is, another iterable as a list."""
    if type(values) in (list, tuple):
        return values
    try:
        if isinstance(values, (str, bytes, bytearray, memoryview)):     # one value, not its letters
            raise TypeError
        items = iter(values)
    except TypeError:
        raise errors.SerializationError(
            f"{what}: expected a sequence of {what}, got {type(values).__name__}") from None
    return list(items)


cdef class RecordAccumulator:
    """Buffers records into batches; a subclass says what topics exist and sends what is drained.

    Hooks for the subclass: `_describe_topic(name) -> (partitions, max_message_bytes)`, `_wake()`,
    `_wait_for_space(size)` (returns when there may be room, or raises), `_refuse()` (raises what
    the closed gate stands for).

    Args:
        batch_size: bytes at which a batch is full; one record a batch at 0.
        linger_ms: how long a batch may wait for more records.
        buffer_memory: bytes held until delivered.
        max_request_size: of one record, with its batch's header.
        compression, level: codec of the batches.
        key_serializer, value_serializer: callables to bytes, or None.
        partitioner: None, "sticky", "round_robin", "random" or `f(topic, key, partitions) -> int`.
        ignore_keys: keyed records are spread like the others.
    """

    cdef dict topics
    cdef TopicBuilders latest           # of `topics`, the one that was asked for last
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
    cdef readonly size_t used           # bytes of records not yet delivered
    cdef readonly int64_t buffered      # records not yet delivered
    cdef readonly int64_t produced      # records taken so far
    cdef public int gate                # not 0: produce calls _refuse()
    cdef MemoryPool pool                # of the buffers of batches that are delivered
    cdef public int64_t sleeping_until  # when the sender looks again by itself; 0: it is awake
    cdef public bint exhausted          # somebody waits for memory: send what there is
    cdef bint must_wake
    cdef list unpacked                  # sealed batches whose records are still to be compressed

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
        raise errors.UnknownTopicOrPartition(f"no topic {topic!r}")

    def _wake(self):
        pass

    def _wait_for_space(self, size_t size):
        raise errors.QueueFull(f"{self.used} of {self.buffer_memory} bytes are taken, {size} more wanted")

    def _refuse(self):
        raise errors.IllegalState("the producer takes no records now")

    # Records in.

    def produce(self, topic, value=None, key=None, *, headers=None, partition=None, timestamp=None,
                on_delivery=None) -> None:
        """Buffer one record; thread-safe.

        Args:
            topic: must exist.
            value, key: bytes, str (as UTF-8), a contiguous buffer or None; any object with a
                serializer.
            headers: (name, value) pairs or a mapping.
            partition: None to choose by key, or to spread.
            timestamp: ms since 1970; None for now.
            on_delivery: called with (error or None, RecordMetadata) from poll, flush or close.

        Raises:
            UnknownTopicOrPartition, RecordTooLarge, SerializationError: this record.
            QueueFull: the buffer stayed full for max.block.ms.
            IllegalState: closed, or no transaction is open.

        **Durability**: none yet; `flush()` or a delivery tells.
        """
        cdef TopicBuilders entry
        cdef Span key_span = Span(NULL, 0), value_span = Span(NULL, 0)
        cdef Py_buffer key_view, value_view
        cdef int views = 0
        cdef ByteBuffer encoded = ByteBuffer(NULL, 0, 0)
        cdef int32_t chosen = -1
        cdef int64_t stamp

        if self.gate:
            self._refuse()
        entry = self.topic_builders(topic)
        if self.key_serializer is not None:
            key = serialized(self.key_serializer, key, "key")
        if self.value_serializer is not None:
            value = serialized(self.value_serializer, value, "value")
        if timestamp is None:
            stamp = wall_clock_ms()
        else:
            stamp = timestamp_of(timestamp)
        if on_delivery is not None and not PyCallable_Check(on_delivery):
            raise errors.ConfigError(f"on_delivery: expected a callable, got {on_delivery!r}")
        try:
            if borrow(key, &key_span, &key_view, "key"):
                views |= 1
            if borrow(value, &value_span, &value_view, "value"):
                views |= 2
            if headers:
                put_headers(&encoded, headers)
            if partition is not None:
                chosen = self.checked_partition(entry, partition)
            elif self.mode == CALLABLE:
                chosen = self.checked_partition(entry, self.partitioner(
                    topic, None if key is None else (<const char*>key_span.data)[:key_span.size],
                    entry.count))
            self.put(entry, key_span, value_span, encoded.data, encoded.size, chosen, stamp,
                     on_delivery, self.full_at(entry))
        finally:
            if views & 1:
                PyBuffer_Release(&key_view)
            if views & 2:
                PyBuffer_Release(&value_view)
            clear_buffer(&encoded)
        if self.must_wake:
            self.wake()

    def produce_many(self, topic, values, keys=None, partition=None) -> int:
        """Buffer a record for each of `values`; batches are filled up to max.message.bytes.

        Args:
            topic: must exist.
            values: a sequence of what `produce` takes as value.
            keys: None, or as many keys.
            partition: of all of them; None to choose by key, or to spread batch by batch.

        Returns:
            How many records were buffered.

        Raises:
            As `produce`; records before the one at fault stay buffered.
        """
        cdef TopicBuilders entry
        cdef BulkEncoder bulk = None
        cdef Source source
        cdef int32_t chosen = -1
        cdef Py_ssize_t first = 0, row, length, count

        if self.gate:
            self._refuse()
        values = as_sequence(values, "values")
        count = len(values)
        if keys is not None:
            keys = as_sequence(keys, "keys")
            if len(keys) != count:
                raise errors.ConfigError(f"{len(keys)} keys for {count} values")
        entry = self.topic_builders(topic)
        if partition is not None:
            chosen = self.checked_partition(entry, partition)
        if self.key_serializer is None and self.value_serializer is None:
            bulk = bulk_encoder(self, entry, chosen, keys is not None, count)
        memset(&source, 0, sizeof(Source))
        while first < count:
            # A slice holds its objects, whatever becomes of the caller's list.
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
            put_rows(self, entry, some_values, some_keys, row, chosen)
            first += length
        return count

    cdef size_t full_at(self, TopicBuilders entry) noexcept:
        cdef size_t limit = self.batch_size
        if self.codec:
            limit = <size_t>(<double>limit / entry.ratio)
        return limit if limit < entry.bulk_limit else entry.bulk_limit

    cdef TopicBuilders topic_builders(self, object topic):
        cdef PyObject* found
        if self.latest is not None and topic is self.latest.name:
            return self.latest                      # nearly always: no look into a dict
        if not isinstance(topic, str):
            raise errors.SerializationError(f"topic: expected str, got {type(topic).__name__}")
        found = PyDict_GetItem(self.topics, topic)
        if found == NULL:
            return self.load_topic(topic)
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
        if partitions < entry.count:                # deleted and made anew
            self.topics[topic] = self.latest = entry = fresh
        entry.bulk_limit = max_message_bytes
        entry.grow(partitions)
        return entry

    cdef int32_t checked_partition(self, TopicBuilders entry, object partition) except -1:
        cdef int64_t chosen
        if not isinstance(partition, int):
            raise errors.SerializationError(f"partition: expected int, got {type(partition).__name__}")
        if not 0 <= partition < entry.count:
            self.load_topic(entry.name)             # it may have grown
            if not 0 <= partition < entry.count:
                raise errors.UnknownTopicOrPartition(
                    f"no partition {partition} in topic {entry.name!r} with {entry.count} partitions")
        chosen = partition
        return <int32_t>chosen

    cdef int32_t spread(self, TopicBuilders entry) noexcept:
        """A partition by chance, the fuller ones less likely."""
        self.random ^= self.random << 13
        self.random ^= self.random >> 7
        self.random ^= self.random << 17
        if entry.count == 1 or self.mode == RANDOM:
            return <int32_t>(self.random % <uint64_t>entry.count)
        return entry.drawn(self.random)

    cdef void move_on(self, TopicBuilders entry) noexcept:
        entry.sticky = self.spread(entry)
        entry.stuck = 0

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
            raise errors.RecordTooLarge(
                f"a record of about {size + layout.HEADER_SIZE} bytes exceeds max.message.bytes = "
                f"{entry.bulk_limit} of topic {entry.name!r}")
        if size + layout.HEADER_SIZE > self.buffer_memory:
            raise errors.RecordTooLarge(
                f"a record of about {size + layout.HEADER_SIZE} bytes exceeds buffer.memory = {self.buffer_memory}")
        while self.used + size + layout.HEADER_SIZE > self.buffer_memory:
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
            elif self.gate and not asked:           # closed while Python code ran: a serializer, a wait
                asked = True
                self._refuse()
            else:
                break

        # From here to the end no object is made.
        if builder.count == 0:
            self.pool.lend(&builder.buffer, builder.last_size)
            if reserve(&builder.buffer, max(builder.last_size, layout.HEADER_SIZE + size)) < 0:
                raise MemoryError()
            builder.buffer.size = layout.HEADER_SIZE
            builder.base_timestamp = builder.max_timestamp = stamp
            builder.created_ns = steady_clock_ns()
            self.active[builder] = None
            self.used += layout.HEADER_SIZE
            if builder.created_ns + self.linger_ns < self.sleeping_until:
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
        self.used += builder.buffer.size - before
        self.buffered += 1
        self.produced += 1
        return 0

    cdef int seal(self, PartitionBuilder builder) except -1:
        """Moves a builder's batch to the ready queue, unless another thread has just done so."""
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
        if builder.partition == builder.topic.sticky:   # small batches count as one of their size (KIP-794)
            builder.topic.stuck += batch.reserved
            if builder.topic.stuck >= self.full_at(builder.topic):
                self.move_on(builder.topic)
        del self.active[builder]
        self.ready.append(batch)
        if self.codec:
            self.unpacked.append(batch)
            self.must_wake = True
        elif self.sleeping_until and len(self.ready) * batch.reserved >= WAKE_SIZE:
            self.must_wake = True                   # fewer go when the first one's linger is over
        return 0

    cdef int wake(self) except -1:
        """Compresses what this thread has filled, then tells the sender."""
        self.must_wake = False
        while self.unpacked:
            (<SealedBatch>self.unpacked.pop(0)).pack(self.codec, self.level)
        if self.sleeping_until:
            self._wake()
        return 0

    # Batches out.

    def _drain(self, int64_t now_ns, bint force, into=None):
        """The full and the due batches (all with `force`), per partition in order.

        They are appended to `into` where they cannot be lost: an interrupt between two bytecodes
        of the caller would lose a returned list.
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
            if not (force or self.exhausted) and builder.created_ns + self.linger_ns > now_ns:
                break                               # the rest is younger
            self.seal(builder)
        for item in self.ready:
            if (<SealedBatch>item).state == PACKING:
                break                               # its thread wakes the sender when it is done
            count += 1
        taken = self.ready[:count]
        drained.extend(taken)
        del self.ready[:count]
        for item in taken:
            batch = <SealedBatch>item
            batch.pack(self.codec, self.level)
            while batch.state == PACKING:           # begun while the list was made
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
        """When the oldest open batch has lingered enough, on the steady clock; None without one."""
        if self.ready:
            if (<SealedBatch>self.ready[0]).state == PACKING:
                return steady_clock_ns() + 1_000_000    # no use in asking all the time
            return 0
        for item in self.active:
            return (<PartitionBuilder>item).created_ns + self.linger_ns
        return None

    def _ready_since_ns(self) -> int:
        """When the first record of the oldest full batch came, on the steady clock; None without."""
        if not self.ready:
            return None
        return (<SealedBatch>self.ready[0]).created_ns

    def _release(self, SealedBatch batch) -> None:
        """Give back the memory of a batch whose fate is known; once a batch."""
        self.used -= batch.reserved
        self.buffered -= batch.count
        batch.builder.outstanding -= 1

    def _refresh_topics(self) -> None:
        """Look at the topics again: partitions may have been added, topics deleted."""
        for name in list(self.topics):
            try:
                self.load_topic(name)
            except errors.UnknownTopicOrPartition:
                self.topics.pop(name, None)
                self.latest = None

    def __len__(self):
        return self.buffered
