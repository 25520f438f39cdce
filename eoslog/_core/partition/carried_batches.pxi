# Reading the batches that a decision carries: published bytes that no flush has covered (protocol.md, Carry).


cdef int64_t size_of_batches(const uint8_t* data, int64_t size, int64_t first, int64_t end) noexcept nogil:
    """Return the bytes of the batches [first, end) at the begin of `data`; -1 if not all are there with
    right CRCs. After a failed writeback, the kernel may have dropped what was written."""
    cdef FoldedBatch b
    cdef int64_t at = 0
    while first < end:
        if parse_header(data + at, data + size, &b) != 1 or b.base_offset != first or b.size > size - at:
            return -1
        if eoslog_crc32c(0, data + at + ATTRIBUTES_AT, <size_t>(b.size - ATTRIBUTES_AT)) != load_u32(data + at + CRC_AT):
            return -1
        at += b.size
        first = b.last_offset + 1
    return at if first == end else -1


cdef object carried_batches(PartitionState* state, int64_t first, int64_t end, int64_t most):
    """Return the published batches [first, end) as bytes; None if the last ones did not end at `first`, or
    they are not `most` bytes of one segment at most. The caller holds the mutex."""
    cdef int64_t position = state.carried_position
    cdef int64_t size = min(state.segment.position - position, most)
    cdef bytes data
    cdef uint8_t* p
    if (state.carried_to != first or state.carried_base != state.segment.base or state.next_offset < end
            or state.files.log < 0 or state.left or state.stale or size <= 0):
        return None
    data = PyBytes_FromStringAndSize(NULL, size)
    p = <uint8_t*>PyBytes_AS_STRING(data)
    if eoslog_os.pread(state.files.log, p, <size_t>size, position) != size:
        return None
    size = size_of_batches(p, size, first, end)
    if size < 0:
        return None
    state.carried_to = end
    state.carried_position = position + size
    return data[:size]
