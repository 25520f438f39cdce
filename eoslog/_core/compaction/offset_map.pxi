# Records in compaction: a map with the last offset of each key, and batches without superseded records.
#
# The map stores and compares complete keys, so that two keys with the same hash are never mixed up.
# A rewritten batch keeps its base offset, last offset, sequences, producer, codec and flags.
from libc.string cimport memcmp
from eoslog._core.format.byteorder cimport store_i16, store_i32, store_i64
from eoslog._core.format.bytebuffer cimport ByteBuffer, clear_buffer, put_bytes, reserve
from eoslog._core.format.record cimport Span, put_record

cdef struct KeySlot:
    uint64_t hash
    int64_t key_at              # byte of the key in `keys`
    int64_t offset              # -1: the slot is free
    int32_t key_size


cdef inline uint64_t hash_key(const uint8_t* key, int32_t size, uint64_t seed) noexcept nogil:
    """Return FNV-1a over words of eight bytes with a final mix. Seeded, so that no set of keys is slow."""
    cdef uint64_t h = seed ^ <uint64_t>size
    cdef uint64_t word
    cdef int32_t i = 0
    while i + 8 <= size:
        memcpy(&word, key + i, 8)
        h = (h ^ word) * <uint64_t>0x9E3779B97F4A7C15
        h ^= h >> 29
        i += 8
    while i < size:
        h = (h ^ key[i]) * <uint64_t>0x100000001B3
        i += 1
    h ^= h >> 32
    h *= <uint64_t>0xD6E8FEB86659FD93
    return h ^ (h >> 32)


@cython.final
cdef class OffsetMap:
    """The last offset of each key, over the batches that were added. Not thread-safe."""

    cdef KeySlot* slots
    cdef uint64_t mask, seed
    cdef int64_t used
    cdef ByteBuffer keys
    cdef readonly int64_t records

    def __cinit__(self):
        self.seed = int.from_bytes(urandom(8), "little")
        self._resize(1024)

    def __dealloc__(self):
        free(self.slots)
        clear_buffer(&self.keys)

    def __len__(self):
        return self.used

    @property
    def memory(self):
        """The bytes that the map uses."""
        return <int64_t>((self.mask + 1) * sizeof(KeySlot) + self.keys.capacity)

    cdef int _resize(self, uint64_t places) except -1:
        cdef KeySlot* old = self.slots
        cdef KeySlot* grown = <KeySlot*>malloc(places * sizeof(KeySlot))
        cdef uint64_t i, at, old_places = self.mask + 1 if old != NULL else 0
        if grown == NULL:
            raise MemoryError()
        for i in range(places):
            grown[i].offset = -1
        for i in range(old_places):
            if old[i].offset >= 0:
                at = old[i].hash & (places - 1)
                while grown[at].offset >= 0:
                    at = (at + 1) & (places - 1)
                grown[at] = old[i]
        free(old)
        self.slots = grown
        self.mask = places - 1
        return 0

    cdef KeySlot* _find(self, const uint8_t* key, int32_t size, uint64_t hash) noexcept nogil:
        """Return the key's slot, or the free slot for it."""
        cdef uint64_t at = hash & self.mask
        cdef KeySlot* slot
        while True:
            slot = &self.slots[at]
            if slot.offset < 0 or (
                slot.hash == hash and slot.key_size == size
                and (size == 0 or memcmp(self.keys.data + slot.key_at, key, <size_t>size) == 0)
            ):
                return slot
            at = (at + 1) & self.mask

    def latest(self, bytes key not None):
        """Return the last offset of a key, None if it was not added."""
        cdef const uint8_t* p = <const uint8_t*><const char*>key
        cdef KeySlot* slot = self._find(p, <int32_t>len(key), hash_key(p, <int32_t>len(key), self.seed))
        return slot.offset if slot.offset >= 0 else None

    def add(self, Batch batch not None):
        """Add the offsets of a data batch's keys, where later offsets win. Skips records without a key.

        Raises:
            CorruptRecord: if the header or a record does not parse; the map must not be used then.
        """
        cdef RecordBlock block = RecordBlock(batch)
        cdef RecordFields record
        cdef KeySlot* slot
        cdef uint64_t hash
        while block.next(&record):
            self.records += 1
            if record.key_size < 0:
                continue
            if 4 * (self.used + 1) > 3 * <int64_t>(self.mask + 1):
                self._resize(2 * (self.mask + 1))
            hash = hash_key(record.key, record.key_size, self.seed)
            slot = self._find(record.key, record.key_size, hash)
            if slot.offset < 0:
                slot.hash = hash
                slot.key_size = record.key_size
                slot.key_at = <int64_t>self.keys.size
                if put_bytes(&self.keys, record.key, <size_t>record.key_size) < 0:
                    raise MemoryError()
                self.used += 1
            slot.offset = block.base_offset + record.offset_delta

    def rewrite(self, Batch batch not None, int64_t now_ms, int64_t delete_retention_ms):
        """Return a data batch without the records that have a later record with the same key.

        Tombstones are removed too, once their delete horizon has passed. The first rewrite of a batch with
        a tombstone sets that horizon: `now_ms + delete_retention_ms`, or the largest time. Records without
        a key stay, because no later record supersedes them.

        Returns:
            (number of kept records, the new batch); None instead of the batch if it is unchanged, or
            has no record left.

        Raises:
            CorruptRecord: if the header or a record does not parse.
        """
        cdef RecordBlock block = RecordBlock(batch)
        cdef RecordFields record
        cdef KeySlot* slot
        cdef ByteBuffer kept
        cdef const uint8_t* start
        cdef int64_t largest = -1, horizon = -1
        cdef int32_t count = 0, total = 0
        cdef bint stays, tombstone, tombstones = False
        cdef bint has_horizon = block.attributes & DELETE_HORIZON_BIT
        cdef bint expired = has_horizon and block.base_timestamp <= now_ms
        memset(&kept, 0, sizeof(kept))
        try:
            start = block.p
            while block.next(&record):
                total += 1
                stays, tombstone = True, False
                if record.key_size >= 0:
                    tombstone = record.value_size < 0
                    slot = self._find(record.key, record.key_size, hash_key(record.key, record.key_size, self.seed))
                    stays = (slot.offset <= block.base_offset + record.offset_delta
                             and not (tombstone and expired))
                if stays:
                    if put_bytes(&kept, start, <size_t>(record.end - start)) < 0:
                        raise MemoryError()
                    count += 1
                    tombstones = tombstones or tombstone
                    largest = max(largest, add_timestamp(block.base_timestamp, record.timestamp_delta))
                start = record.end
            if tombstones and not has_horizon:
                horizon = now_ms + min(delete_retention_ms, INT64_MAX - max(now_ms, 0))
            if count == 0 or (count == total and horizon < 0):
                return count, None
            if block.attributes & LOG_APPEND_TIME_BIT:
                largest = load_i64(batch._p + MAX_TIMESTAMP_AT)
            return count, rebuilt(batch, block, kept.data, kept.size, count, largest, horizon)
        finally:
            clear_buffer(&kept)


@cython.final
@cython.internal
cdef class RecordBlock:
    """Iterates over the records of a batch, decompressed if necessary."""

    cdef Pin pin
    cdef object where
    cdef const uint8_t* block
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef int64_t base_offset, base_timestamp
    cdef int32_t count, seen, delta, last_delta
    cdef int attributes, codec
    cdef object level

    def __cinit__(self, Batch batch):
        cdef int step = check_header(batch._p)
        self.where = f"position {batch.position}"
        if step != BATCH_WHOLE:
            raise batch_fault(step, batch._p, batch.size, self.where)
        self.attributes = load_i16(batch._p + ATTRIBUTES_AT)
        self.codec = self.attributes & CODEC_MASK
        self.base_offset = load_i64(batch._p + BASE_OFFSET_AT)
        self.base_timestamp = load_i64(batch._p + BASE_TIMESTAMP_AT)
        self.last_delta = load_i32(batch._p + LAST_OFFSET_DELTA_AT)
        self.count = load_i32(batch._p + RECORDS_COUNT_AT)
        self.delta = -1
        self.pin = batch._pin
        self.p = batch._p + HEADER_SIZE
        self.end = batch._p + batch.size
        if self.codec and self.end > self.p:
            self.pin = decompress_block(self.codec, self.pin, self.p, self.end - self.p, self.where)
            self.p = self.pin.data
            self.end = self.p + self.pin.size
        self.block = self.p

    cdef int next(self, RecordFields* record) except -1:
        """Return 1 and the next record; 0 after the last one."""
        cdef Fault fault
        cdef const uint8_t* p
        if self.seen == self.count:
            if self.p != self.end:
                record_fault(&fault, RECORD_LEFTOVER, self.p, self.end - self.p, self.count)
                raise records_fault(&fault, self.block, self.base_offset, self.where)
            return 0
        if self.p == self.end:
            record_fault(&fault, RECORD_MISSING, self.p, self.count, self.seen)
            raise records_fault(&fault, self.block, self.base_offset, self.where)
        p = parse_record(self.p, self.end, record, &fault)
        if p != NULL and (record.offset_delta <= self.delta or record.offset_delta > self.last_delta):
            p = record_fault(&fault, RECORD_OFFSET, record.key, record.offset_delta, self.delta)
        if p == NULL:
            raise records_fault(&fault, self.block, self.base_offset, self.where)
        self.delta = record.offset_delta
        self.p = p
        self.seen += 1
        return 1


cdef bytes rebuilt(Batch batch, RecordBlock source, const uint8_t* records, size_t size, int32_t count,
                   int64_t max_timestamp, int64_t horizon):
    """Return the batch with other records. A horizon (>= 0) replaces the base timestamp, so that the
    timestamp delta of each record is written again."""
    cdef ByteBuffer moved
    cdef bytes block
    cdef bytearray out
    cdef uint8_t* p
    cdef int attributes = source.attributes
    memset(&moved, 0, sizeof(moved))
    try:
        if horizon >= 0:
            attributes |= DELETE_HORIZON_BIT
            move_records(&moved, records, records + size, source.base_timestamp, horizon)
            records, size = moved.data, moved.size
        if source.codec:
            block = compress_records(source.codec, records, size, source.level)
        else:
            block = PyBytes_FromStringAndSize(<const char*>records, <Py_ssize_t>size)
    finally:
        clear_buffer(&moved)
    out = bytearray(PyBytes_FromStringAndSize(<const char*>batch._p, HEADER_SIZE))
    out += block
    p = <uint8_t*><char*>out
    store_i32(p + BATCH_LENGTH_AT, <int32_t>(len(out) - 12))
    store_i16(p + ATTRIBUTES_AT, <int16_t>attributes)
    if horizon >= 0:
        store_i64(p + BASE_TIMESTAMP_AT, horizon)
    store_i64(p + MAX_TIMESTAMP_AT, max_timestamp)
    store_i32(p + RECORDS_COUNT_AT, count)
    store_i32(p + CRC_AT, <int32_t>eoslog_crc32c(0, p + ATTRIBUTES_AT, <size_t>len(out) - ATTRIBUTES_AT))
    return bytes(out)


cdef int move_records(ByteBuffer* out, const uint8_t* p, const uint8_t* end, int64_t base, int64_t new_base) except -1:
    """Copy checked records so that their timestamps count from another base."""
    cdef RecordFields record
    cdef Fault fault
    cdef Span key, value
    cdef const uint8_t* rest
    while p < end:
        p = parse_record(p, end, &record, &fault)
        if p == NULL:
            raise errors.CorruptRecord("records changed while they were read")
        key.data = record.key if record.key_size >= 0 else NULL
        key.size = max(record.key_size, 0)
        value.data = record.value if record.value_size >= 0 else NULL
        value.size = max(record.value_size, 0)
        rest = record.value + value.size         # the count of headers, and the headers
        if put_record(out, add_timestamp(base, record.timestamp_delta) - new_base, record.offset_delta,
                      key, value, rest, <size_t>(record.end - rest)) < 0:
            raise MemoryError()
    return 0


def stamp_horizon(Batch batch not None, int64_t horizon_ms):
    """Return the batch with all of its records and a delete horizon (KIP-534)."""
    cdef RecordBlock source = RecordBlock(batch)
    return rebuilt(batch, source, source.p, <size_t>(source.end - source.p), source.count,
                   load_i64(batch._p + MAX_TIMESTAMP_AT), horizon_ms)


def empty_batch(Batch batch not None):
    """Return the batch without records: its header keeps offsets, producer and sequences."""
    cdef bytearray out = bytearray(PyBytes_FromStringAndSize(<const char*>batch._p, HEADER_SIZE))
    cdef uint8_t* p = <uint8_t*><char*>out
    store_i32(p + BATCH_LENGTH_AT, HEADER_SIZE - 12)
    store_i16(p + ATTRIBUTES_AT, <int16_t>(load_i16(p + ATTRIBUTES_AT) & ~(CODEC_MASK | DELETE_HORIZON_BIT)))
    store_i64(p + BASE_TIMESTAMP_AT, -1)
    store_i32(p + RECORDS_COUNT_AT, 0)
    store_i32(p + CRC_AT, <int32_t>eoslog_crc32c(0, p + ATTRIBUTES_AT, HEADER_SIZE - ATTRIBUTES_AT))
    return bytes(out)


def first_without_key(Batch batch not None):
    """Return the index of the first record without a key, -1 if all have one."""
    cdef RecordBlock block = RecordBlock(batch)
    cdef RecordFields record
    while block.next(&record):
        if record.key_size < 0:
            return block.seen - 1
    return -1


def first_older(Batch batch not None, int64_t horizon_ms):
    """Return the index of the first record with a time before a horizon, -1 if there is none.

    A record without a time (-1) does not count."""
    cdef RecordBlock block = RecordBlock(batch)
    cdef RecordFields record
    cdef int64_t timestamp
    while block.next(&record):
        timestamp = add_timestamp(block.base_timestamp, record.timestamp_delta)
        if -1 < timestamp < horizon_ms:
            return block.seen - 1
    return -1


def first_beyond_time(Batch batch not None):
    """Return the index of the first record whose time does not fit into 64 bits, -1 if there is none.

    Raises:
        CorruptRecord: if a record does not parse or contradicts the header."""
    cdef RecordBlock block = RecordBlock(batch)
    cdef RecordFields record
    cdef int32_t found = -1
    cdef int64_t timestamp
    while block.next(&record):
        timestamp = add_timestamp(block.base_timestamp, record.timestamp_delta)
        if found < 0 and (timestamp < block.base_timestamp) != (record.timestamp_delta < 0):
            found = block.seen - 1
    return found


def recompressed(Batch batch not None, str compression, level=None):
    """Return the batch with its records in another codec; level None: the codec's default."""
    cdef RecordBlock source = RecordBlock(batch)
    source.level = level
    source.codec = codec_id(compression)
    source.attributes = (source.attributes & ~CODEC_MASK) | source.codec
    return rebuilt(batch, source, source.p, <size_t>(source.end - source.p), source.count,
                   load_i64(batch._p + MAX_TIMESTAMP_AT), -1)
