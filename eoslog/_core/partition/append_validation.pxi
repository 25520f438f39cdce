# Validation of the batches of one append, before the append lock is taken.

cdef enum:
    LARGE_BATCH = 65536         # bytes whose checksum takes longer than releasing the GIL


cdef FoldedBatch* read_headers(uint8_t* data, Py_ssize_t size, bint client, int64_t size_max,
                               int64_t log_append_time, int* count) except NULL:
    """Check the batches of one append and return their headers, which the caller must free.

    With `log_append_time` >= 0, that time (ms) is written into the batches, and their CRCs renewed."""
    cdef uint8_t* p = data
    cdef uint8_t* end = data + size
    cdef int capacity = 16, n = 0, rc
    cdef FoldedBatch* headers = <FoldedBatch*>malloc(capacity * sizeof(FoldedBatch))
    cdef FoldedBatch* grown
    cdef uint32_t crc
    cdef FoldedBatch* b
    if headers == NULL:
        raise MemoryError()
    try:
        while p < end:
            if n == capacity:
                capacity *= 2
                grown = <FoldedBatch*>realloc(headers, capacity * sizeof(FoldedBatch))
                if grown == NULL:
                    raise MemoryError()
                headers = grown
            b = &headers[n]
            rc = parse_header(p, end, b)
            if rc != 1 or b.size > end - p:
                raise errors.CorruptRecord(f"batch {n}: no complete v2 batch at byte {p - data} of {size}")
            if b.size > size_max:
                raise errors.RecordTooLarge(f"batch of {b.size} bytes, max.message.bytes is {size_max}")
            if b.size >= LARGE_BATCH:
                with nogil:
                    crc = eoslog_crc32c(0, p + ATTRIBUTES_AT, <size_t>(b.size - ATTRIBUTES_AT))
            else:
                crc = eoslog_crc32c(0, p + ATTRIBUTES_AT, <size_t>(b.size - ATTRIBUTES_AT))
            if crc != load_u32(p + CRC_AT):
                raise errors.CorruptRecord(f"batch {n}: CRC is {crc:#010x}, header says {load_u32(p + CRC_AT):#010x}")
            if client:
                if b.attributes & CONTROL_BIT:
                    raise errors.CorruptRecord(f"batch {n}: clients may not write control batches")
                if b.count <= 0 or b.last_offset_delta + 1 != b.count:
                    raise errors.CorruptRecord(f"batch {n}: {b.count} records, last offset delta {b.last_offset_delta}")
                if b.producer_id >= 0 and (b.base_sequence < 0 or b.producer_epoch < 0):
                    raise errors.CorruptRecord(f"batch {n}: producer {b.producer_id} with sequence {b.base_sequence}, epoch {b.producer_epoch}")
                if n and (b.producer_id != headers[0].producer_id or b.producer_epoch != headers[0].producer_epoch
                          or (b.producer_id >= 0 and b.base_sequence != sequence_add(headers[n - 1].last_sequence, 1))
                          or (b.attributes ^ headers[0].attributes) & TRANSACTIONAL_BIT):
                    raise errors.CorruptRecord(f"batch {n}: the batches of one append must continue each other")
            if log_append_time >= 0 and not b.attributes & CONTROL_BIT:
                store_i16(p + ATTRIBUTES_AT, b.attributes | LOG_APPEND_TIME_BIT)
                store_i64(p + MAX_TIMESTAMP_AT, log_append_time)
                b.attributes |= LOG_APPEND_TIME_BIT
                b.max_timestamp = log_append_time
                store_i32(p + CRC_AT, <int32_t>eoslog_crc32c(0, p + ATTRIBUTES_AT, <size_t>(b.size - ATTRIBUTES_AT)))
            p += b.size
            n += 1
        if n == 0:
            raise errors.CorruptRecord("no batch to append")
    except BaseException:
        free(headers)
        raise
    count[0] = n
    return headers
