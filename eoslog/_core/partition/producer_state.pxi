# Producer state of one partition, and the fold that computes it.
#
# Producer state is a pure function of the log: appends and replay both use `fold_batch`. The rules
# are Kafka's: ProducerStateManager, KIP-98, KIP-890 part 2.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset
from eoslog._core.format.byteorder cimport load_i16, load_i32, load_i64, load_u32, store_i16, store_i32, store_i64
from eoslog._core.format.layout cimport *
from eoslog._core.format.varint cimport decode_varint, decode_varlong

cdef enum:
    BATCHES_KEPT = 5            # Kafka's NUM_BATCHES_TO_RETAIN

cdef enum:                      # results of checking a data batch or marker
    ACCEPT = 0
    DUPLICATE = 1
    OUT_OF_ORDER = 45
    INVALID_EPOCH = 47
    INVALID_TXN = 48

cdef struct BatchMetadata:
    int32_t last_sequence
    int32_t offset_delta
    int64_t last_offset
    int64_t timestamp

cdef struct ProducerEntry:
    int64_t producer_id
    int64_t last_timestamp
    int64_t txn_first_offset    # -1: no open transaction
    int64_t txn_last_offset     # last data offset of the open transaction
    int32_t coordinator_epoch
    int32_t first_sequence      # first accepted sequence of this epoch; -1: none yet
    int32_t batch_count         # at most BATCHES_KEPT
    int32_t batch_next          # ring position of the next batch
    int32_t earlier, later      # neighbours in the list of open transactions, -1: none
    int16_t epoch
    BatchMetadata batches[BATCHES_KEPT]

# Invariants: entries 0..count-1 are in use, and only `table_forget` moves them. `slots` has 2**n places
# and is at most half full. Open transactions are linked in the order of their first offsets, so
# `first_open` has the first unstable offset.
cdef struct ProducerTable:
    ProducerEntry* entries
    int32_t count, capacity
    int32_t* slots
    int32_t slot_mask
    int32_t first_open, last_open
    int64_t expire_below, expire_before_ms      # the published horizon of expired producers

cdef struct FoldedBatch:        # one header, in host order
    int64_t base_offset, last_offset, base_timestamp, max_timestamp, producer_id
    int64_t size                # bytes, including the 12 of offset and length
    int32_t base_sequence, last_sequence, last_offset_delta, count
    int32_t control_type        # -1: not a control batch, or an empty one
    int32_t coordinator_epoch
    int16_t producer_epoch, attributes

cdef struct AbortedEntry:
    int64_t producer_id, first_offset, last_offset, last_stable_offset

cdef inline int32_t sequence_add(int32_t sequence, int32_t n) noexcept nogil:
    return <int32_t>((<uint32_t>sequence + <uint32_t>n) & 0x7FFFFFFF)

cdef inline int32_t sequence_distance(int32_t later, int32_t earlier) noexcept nogil:
    """Return the steps from earlier to later, modulo 2**31."""
    return <int32_t>((<uint32_t>later - <uint32_t>earlier) & 0x7FFFFFFF)

cdef int table_init(ProducerTable* t) except -1 nogil:
    memset(t, 0, sizeof(ProducerTable))
    t.first_open = -1
    t.last_open = -1
    return 0

cdef void table_free(ProducerTable* t) noexcept nogil:
    free(t.entries)
    free(t.slots)
    memset(t, 0, sizeof(ProducerTable))
    t.first_open = -1
    t.last_open = -1

cdef inline uint32_t hash_producer(int64_t producer_id) noexcept nogil:
    return <uint32_t>((<unsigned long long>producer_id * <unsigned long long>0x9E3779B97F4A7C15) >> 33)

cdef void table_rehash(ProducerTable* t) noexcept nogil:
    cdef int32_t i
    cdef uint32_t at
    memset(t.slots, 0xFF, (<size_t>t.slot_mask + 1) * sizeof(int32_t))
    for i in range(t.count):
        at = hash_producer(t.entries[i].producer_id) & <uint32_t>t.slot_mask
        while t.slots[at] >= 0:
            at = (at + 1) & <uint32_t>t.slot_mask
        t.slots[at] = i

cdef int table_reserve(ProducerTable* t, int32_t more) noexcept nogil:
    """Reserve memory for `more` new producers. Returns 0, or -1 without memory. Call it without a file lock."""
    cdef int32_t need = t.count + more, capacity
    cdef ProducerEntry* entries
    cdef int32_t* slots
    if need <= t.capacity:
        return 0
    capacity = t.capacity if t.capacity else 64
    while capacity < need:
        capacity *= 2
    entries = <ProducerEntry*>realloc(t.entries, <size_t>capacity * sizeof(ProducerEntry))
    if entries == NULL:
        return -1
    t.entries = entries
    slots = <int32_t*>malloc(2 * <size_t>capacity * sizeof(int32_t))
    if slots == NULL:
        return -1
    free(t.slots)
    t.slots = slots
    t.slot_mask = 2 * capacity - 1
    t.capacity = capacity
    table_rehash(t)
    return 0

cdef ProducerEntry* table_find(ProducerTable* t, int64_t producer_id) noexcept nogil:
    cdef uint32_t at
    if t.count == 0:
        return NULL
    at = hash_producer(producer_id) & <uint32_t>t.slot_mask
    while t.slots[at] >= 0:
        if t.entries[t.slots[at]].producer_id == producer_id:
            return &t.entries[t.slots[at]]
        at = (at + 1) & <uint32_t>t.slot_mask
    return NULL

cdef inline bint forgotten(const ProducerTable* t, const ProducerEntry* entry) noexcept nogil:
    """Whether a producer is expired (protocol.md row 10): its last batch is below the horizon's offset
    or, if it has only markers left, the last marker is older than the horizon's time. A producer with
    an open transaction never expires."""
    if t.expire_below == 0 or entry.txn_first_offset >= 0:
        return False
    if entry.batch_count == 0:
        return entry.last_timestamp < t.expire_before_ms
    return entry.batches[(entry.batch_next + BATCHES_KEPT - 1) % BATCHES_KEPT].last_offset < t.expire_below

cdef inline ProducerEntry* table_known(ProducerTable* t, int64_t producer_id) noexcept nogil:
    """Return the entry of a producer, or NULL if it is unknown or expired."""
    cdef ProducerEntry* entry = table_find(t, producer_id)
    return NULL if entry == NULL or forgotten(t, entry) else entry

cdef void table_forget(ProducerTable* t) noexcept nogil:
    """Drop the entries of expired producers. Allocates no memory."""
    cdef int32_t i, kept = 0
    cdef ProducerEntry* entry
    if t.count == 0:
        return
    for i in range(t.count):                     # until the rehash, `slots` says where each entry goes
        t.slots[i] = kept
        if not forgotten(t, &t.entries[i]):
            kept += 1
    for i in range(t.count):
        if forgotten(t, &t.entries[i]):
            continue
        entry = &t.entries[t.slots[i]]
        entry[0] = t.entries[i]
        if entry.earlier >= 0:
            entry.earlier = t.slots[entry.earlier]
        if entry.later >= 0:
            entry.later = t.slots[entry.later]
    if t.first_open >= 0:
        t.first_open = t.slots[t.first_open]
        t.last_open = t.slots[t.last_open]
    t.count = kept
    table_rehash(t)

cdef void begin_entry(ProducerEntry* entry, int64_t producer_id) noexcept nogil:
    """Initialize the entry of a producer without history."""
    memset(entry, 0, sizeof(ProducerEntry))
    entry.producer_id = producer_id
    entry.epoch = -1
    entry.coordinator_epoch = -1
    entry.last_timestamp = -1
    entry.txn_first_offset = -1
    entry.txn_last_offset = -1
    entry.first_sequence = -1
    entry.earlier = -1
    entry.later = -1

cdef ProducerEntry* table_insert(ProducerTable* t, int64_t producer_id) noexcept nogil:
    """Return the entry of a producer, a new empty one if there is none. The caller has reserved memory."""
    cdef ProducerEntry* entry = table_find(t, producer_id)
    cdef uint32_t at
    if entry != NULL:
        return entry
    entry = &t.entries[t.count]
    begin_entry(entry, producer_id)
    at = hash_producer(producer_id) & <uint32_t>t.slot_mask
    while t.slots[at] >= 0:
        at = (at + 1) & <uint32_t>t.slot_mask
    t.slots[at] = t.count
    t.count += 1
    return entry

cdef void open_transaction(ProducerTable* t, ProducerEntry* entry, int64_t first_offset) noexcept nogil:
    cdef int32_t i = <int32_t>(entry - t.entries)
    cdef int32_t before = t.last_open
    entry.txn_first_offset = first_offset
    while before >= 0 and t.entries[before].txn_first_offset > first_offset:
        before = t.entries[before].earlier       # only when loading a snapshot: appends are in order
    entry.earlier = before
    if before >= 0:
        entry.later = t.entries[before].later
        t.entries[before].later = i
    else:
        entry.later = t.first_open
        t.first_open = i
    if entry.later >= 0:
        t.entries[entry.later].earlier = i
    else:
        t.last_open = i

cdef void close_transaction(ProducerTable* t, ProducerEntry* entry) noexcept nogil:
    if entry.earlier >= 0:
        t.entries[entry.earlier].later = entry.later
    else:
        t.first_open = entry.later
    if entry.later >= 0:
        t.entries[entry.later].earlier = entry.earlier
    else:
        t.last_open = entry.earlier
    entry.earlier = -1
    entry.later = -1
    entry.txn_first_offset = -1
    entry.txn_last_offset = -1

cdef inline int64_t first_unstable(ProducerTable* t, int64_t log_end) noexcept nogil:
    return log_end if t.first_open < 0 else t.entries[t.first_open].txn_first_offset

cdef inline BatchMetadata* last_batch(ProducerEntry* entry) noexcept nogil:
    if entry.batch_count == 0:
        return NULL
    return &entry.batches[(entry.batch_next + BATCHES_KEPT - 1) % BATCHES_KEPT]

cdef int judge_batch(ProducerTable* t, const FoldedBatch* b, int64_t* first_offset) noexcept nogil:
    """Check whether a client may append this data batch, without changing anything. Returns ACCEPT,
    DUPLICATE (with `first_offset`, -1 if the stored batch is too old to know it) or Kafka's error code."""
    cdef ProducerEntry* entry
    cdef BatchMetadata* last
    cdef BatchMetadata* m
    cdef int i
    if b.producer_id < 0:
        return ACCEPT
    entry = table_known(t, b.producer_id)
    if entry == NULL or entry.epoch < 0:
        # No state: retention or expiry may have removed that of an idempotent producer. A transaction has
        # a new epoch and begins at 0; another sequence means that its first batch is missing (KIP-890).
        if b.attributes & TRANSACTIONAL_BIT and b.base_sequence != 0:
            return OUT_OF_ORDER
        return ACCEPT
    if b.producer_epoch < entry.epoch:
        return INVALID_EPOCH
    if b.producer_epoch > entry.epoch:
        if entry.txn_first_offset >= 0:
            return INVALID_TXN                   # the transaction of the older epoch has no marker yet
        return ACCEPT if b.base_sequence == 0 else OUT_OF_ORDER
    last = last_batch(entry)
    if last != NULL:
        for i in range(entry.batch_count):
            m = &entry.batches[i]
            if m.last_sequence == b.last_sequence and m.offset_delta == b.last_offset_delta:
                first_offset[0] = m.last_offset - m.offset_delta
                return DUPLICATE
    if (b.attributes & TRANSACTIONAL_BIT) == 0 and entry.txn_first_offset >= 0:
        return INVALID_TXN
    if last == NULL:
        return ACCEPT if b.base_sequence == 0 else OUT_OF_ORDER
    if b.base_sequence == sequence_add(last.last_sequence, 1):
        return ACCEPT
    # Sequences without gaps: a batch entirely at or below the last sequence of this epoch was stored.
    if (sequence_distance(last.last_sequence, b.last_sequence) < 0x40000000
            and sequence_distance(last.last_sequence, b.base_sequence)
            <= sequence_distance(last.last_sequence, entry.first_sequence)):
        first_offset[0] = -1
        return DUPLICATE
    return OUT_OF_ORDER

cdef int judge_marker(ProducerTable* t, const FoldedBatch* b) noexcept nogil:
    """Check whether a coordinator may append this marker. KIP-890 requires an epoch above that of the open
    transaction; the same epoch is accepted again if no transaction is open."""
    cdef ProducerEntry* entry = table_known(t, b.producer_id)
    if entry == NULL or entry.epoch < 0:
        return ACCEPT
    if b.producer_epoch < entry.epoch:
        return INVALID_EPOCH
    if b.producer_epoch == entry.epoch and entry.txn_first_offset >= 0:
        return INVALID_EPOCH
    return ACCEPT

cdef bint fold_producer(ProducerTable* t, const FoldedBatch* b, AbortedEntry* aborted) noexcept nogil:
    """Apply one batch of the log. Returns True for the marker of an aborted transaction, whose abort index
    entry is then in `aborted`. Does not reject any batch: what is in the log was accepted."""
    cdef ProducerEntry* entry
    cdef BatchMetadata* m
    cdef int64_t first
    cdef bint is_aborted = False
    if b.producer_id < 0:
        return False
    entry = table_insert(t, b.producer_id)
    if forgotten(t, entry):
        begin_entry(entry, b.producer_id)
    if b.producer_epoch != entry.epoch:
        entry.epoch = b.producer_epoch
        entry.batch_count = 0
        entry.batch_next = 0
        entry.first_sequence = -1
    if b.attributes & CONTROL_BIT:
        if b.control_type != CONTROL_ABORT and b.control_type != CONTROL_COMMIT:
            return False
        if entry.txn_first_offset >= 0:
            first = entry.txn_first_offset
            close_transaction(t, entry)
            if b.control_type == CONTROL_ABORT:
                aborted.producer_id = b.producer_id
                aborted.first_offset = first
                aborted.last_offset = b.base_offset
                aborted.last_stable_offset = first_unstable(t, b.base_offset + 1)
                is_aborted = True
        entry.coordinator_epoch = b.coordinator_epoch
        entry.last_timestamp = b.max_timestamp
        return is_aborted
    if b.attributes & TRANSACTIONAL_BIT:
        if entry.txn_first_offset < 0:
            open_transaction(t, entry, b.base_offset)
        entry.txn_last_offset = b.last_offset
    entry.last_timestamp = b.max_timestamp
    m = last_batch(entry)
    if m != NULL and b.base_sequence != sequence_add(m.last_sequence, 1):
        entry.batch_count = 0                    # accepted by a process to which the producer was unknown
        entry.batch_next = 0
        entry.first_sequence = -1
    if entry.first_sequence < 0:
        entry.first_sequence = b.base_sequence
    m = &entry.batches[entry.batch_next]
    m.last_sequence = b.last_sequence
    m.offset_delta = b.last_offset_delta
    m.last_offset = b.last_offset
    m.timestamp = b.max_timestamp
    entry.batch_next = (entry.batch_next + 1) % BATCHES_KEPT
    if entry.batch_count < BATCHES_KEPT:
        entry.batch_count += 1
    return False

cdef int parse_header(const uint8_t* p, const uint8_t* end, FoldedBatch* b) noexcept nogil:
    """Read a batch header and, for a control batch, the type in its record. Returns 1 on success, 0 if the
    bytes end within the header, -1 if this is not a v2 header, -2 if a marker's record is incomplete."""
    cdef int32_t length, n
    cdef int64_t skipped
    cdef const uint8_t* q
    cdef const uint8_t* stop
    if end - p < HEADER_SIZE:
        return 0
    length = load_i32(p + BATCH_LENGTH_AT)
    if length < HEADER_SIZE - LOG_OVERHEAD or p[MAGIC_AT] != 2:
        return -1
    b.size = <int64_t>length + LOG_OVERHEAD
    b.base_offset = load_i64(p)
    b.last_offset_delta = load_i32(p + LAST_OFFSET_DELTA_AT)
    if b.base_offset < 0 or b.last_offset_delta < 0 or b.base_offset > INT64_MAX - 1 - b.last_offset_delta:
        return -1
    b.last_offset = b.base_offset + b.last_offset_delta
    b.attributes = load_i16(p + ATTRIBUTES_AT)
    b.base_timestamp = load_i64(p + BASE_TIMESTAMP_AT)
    b.max_timestamp = load_i64(p + MAX_TIMESTAMP_AT)
    b.producer_id = load_i64(p + PRODUCER_ID_AT)
    b.producer_epoch = load_i16(p + PRODUCER_EPOCH_AT)
    b.base_sequence = load_i32(p + BASE_SEQUENCE_AT)
    b.count = load_i32(p + RECORDS_COUNT_AT)
    b.last_sequence = -1 if b.base_sequence < 0 else sequence_add(b.base_sequence, b.last_offset_delta)
    b.control_type = -1
    b.coordinator_epoch = -1
    if b.attributes & CONTROL_BIT and b.count > 0:
        if end - p < b.size:
            return -2
        stop = p + b.size
        q = decode_varint(p + HEADER_SIZE, stop, &n)
        if q == NULL or q >= stop:
            return -1
        q = decode_varlong(q + 1, stop, &skipped)
        q = decode_varint(q, stop, &n) if q != NULL else NULL
        q = decode_varint(q, stop, &n) if q != NULL else NULL
        if q == NULL or n < 4 or n > stop - q:
            return -1
        b.control_type = load_i16(q + 2)
        q = decode_varint(q + n, stop, &n)
        if q != NULL and n >= 6 and n <= stop - q:
            b.coordinator_epoch = load_i32(q + 2)
    return 1
