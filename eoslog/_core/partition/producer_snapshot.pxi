# Producer state as snapshot entries and as Python values. Expired producers are left out.

cdef bytes export_producers(ProducerTable* t):
    """Return the entries of a producer snapshot, 46 bytes each (docs/reference/file-format.md), without a header."""
    cdef bytearray out = bytearray(<Py_ssize_t>t.count * SNAPSHOT_ENTRY_SIZE)
    cdef uint8_t* p = <uint8_t*><char*>out
    cdef uint8_t* begin = p
    cdef ProducerEntry* e
    cdef BatchMetadata* m
    cdef int32_t i
    for i in range(t.count):
        e = &t.entries[i]
        if forgotten(t, e):
            continue
        m = last_batch(e)
        store_i64(p, e.producer_id)
        store_i16(p + 8, e.epoch)
        store_i32(p + 10, m.last_sequence if m != NULL else -1)
        store_i64(p + 14, m.last_offset if m != NULL else -1)
        store_i32(p + 22, m.offset_delta if m != NULL else 0)
        store_i64(p + 26, e.last_timestamp)
        store_i32(p + 34, e.coordinator_epoch)
        store_i64(p + 38, e.txn_first_offset)
        p += SNAPSHOT_ENTRY_SIZE
    return bytes(out[:p - begin])


cdef int import_producers(ProducerTable* t, bytes entries) except -1:
    cdef Py_ssize_t n = len(entries) // SNAPSHOT_ENTRY_SIZE, i
    cdef const uint8_t* p = <const uint8_t*><const char*>entries
    cdef ProducerEntry* e
    cdef int64_t first
    if table_reserve(t, <int32_t>n) < 0:
        raise MemoryError()
    for i in range(n):
        if table_find(t, load_i64(p)) != NULL:   # the list of open transactions would have it twice
            raise errors.CorruptRecord(f"the snapshot has producer {load_i64(p)} twice")
        e = table_insert(t, load_i64(p))
        e.epoch = load_i16(p + 8)
        e.last_timestamp = load_i64(p + 26)
        e.coordinator_epoch = load_i32(p + 34)
        if load_i64(p + 14) >= 0:
            e.batches[0].last_sequence = load_i32(p + 10)
            e.batches[0].last_offset = load_i64(p + 14)
            e.batches[0].offset_delta = load_i32(p + 22)
            e.batches[0].timestamp = e.last_timestamp
            e.batch_count = 1
            e.batch_next = 1
            # Earlier batches are not known to be stored. Rejecting them is safe; a false duplicate is not.
            e.first_sequence = sequence_distance(e.batches[0].last_sequence, e.batches[0].offset_delta)
        first = load_i64(p + 38)
        if first >= 0:
            open_transaction(t, e, first)
            e.txn_last_offset = e.batches[0].last_offset if e.batch_count else first
        p += SNAPSHOT_ENTRY_SIZE
    return 0


cdef tuple producer_of(ProducerTable* t, int64_t producer_id):
    """Return (epoch, last sequence, last timestamp, coordinator epoch, txn first offset, txn last
    offset), or None."""
    cdef ProducerEntry* e = table_known(t, producer_id)
    cdef BatchMetadata* m
    if e == NULL:
        return None
    m = last_batch(e)
    return (e.epoch, m.last_sequence if m != NULL else -1, e.last_timestamp,
            e.coordinator_epoch, e.txn_first_offset, e.txn_last_offset)


cdef list producer_ids_of(ProducerTable* t):
    cdef int32_t i
    return [t.entries[i].producer_id for i in range(t.count) if not forgotten(t, &t.entries[i])]


cdef list open_transactions_of(ProducerTable* t):
    """Return (producer id, epoch, first offset, last data offset) of each, by first offset."""
    cdef ProducerEntry* e
    cdef int32_t i = t.first_open
    cdef list out = []
    while i >= 0:
        e = &t.entries[i]
        out.append((e.producer_id, e.epoch, e.txn_first_offset, e.txn_last_offset))
        i = e.later
    return out
