# Adoption: a file that was written outside the log becomes a segment. A roll gives it the name that an
# empty prepared file usually gets (segment_roll.pxi), so that its records are written to the disk once.
#
# Until it has that name, only its owner uses the file and changes it in place. Offsets are written into
# it for the log end seen without the lock, and the file is made durable. Under the lock there are only
# renames and index entries. If another process has appended in between, the status is CHANGED.
#
# A crash leaves what a roll leaves (repair_after_dead_holder in partition_lock.pxi): before the last
# rename the log is unchanged; after it the segment exists, and its unpublished bytes are truncated.

cdef enum:
    SEGMENT_READ = 262144       # bytes read and checksummed at a time: they fit into the L2 cache


@cython.final
cdef class SegmentFile:
    """A file of complete data batches, each checked against its CRC. Not thread-safe.

    Args:
        fd: readable and writable; the caller closes it, unless `adopt_segment` has taken it.
        size: bytes of the file.

    Raises:
        CorruptRecord: if the file has other bytes than complete v2 data batches, or a CRC is wrong.
    """

    cdef readonly int fd
    cdef readonly int64_t size
    cdef readonly int64_t count         # records
    cdef readonly int64_t largest       # bytes of its largest batch
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t base_offset   # as stamped, -1: not yet
    cdef readonly int batches
    cdef FoldedBatch* headers
    cdef uint8_t* raw                   # HEADER_SIZE bytes each
    cdef uint32_t* sums                 # CRC of the records of each

    def __cinit__(self, int fd, int64_t size):
        cdef uint8_t* buffer
        self.fd = fd
        self.size = size
        self.base_offset = self.max_timestamp = -1
        buffer = <uint8_t*>malloc(SEGMENT_READ)
        if buffer == NULL:
            raise MemoryError()
        try:
            self._read(buffer)
        finally:
            free(buffer)

    def __dealloc__(self):
        free(self.headers)
        free(self.raw)
        free(self.sums)

    def release(self):
        """Return the descriptor, which the caller owns from now on; -1 if the log has taken it."""
        cdef int fd = self.fd
        self.fd = -1
        return fd

    cdef int _read(self, uint8_t* buffer) except -1:
        cdef int64_t position = 0, left, at, begin = 0, have = 0, taken
        cdef uint8_t* raw
        cdef FoldedBatch* b
        cdef uint32_t sum
        while position < self.size:
            self._grow()
            b = &self.headers[self.batches]
            raw = self.raw + <size_t>self.batches * HEADER_SIZE
            if have - (position - begin) < HEADER_SIZE:
                begin = position
                have = pread_most(self.fd, <char*>buffer, SEGMENT_READ, position)
            if have - (position - begin) < HEADER_SIZE:
                raise errors.CorruptRecord(f"byte {position} of {self.size}: the file ends in a header")
            memcpy(raw, buffer + (position - begin), HEADER_SIZE)
            if (parse_header(raw, raw + HEADER_SIZE, b) != 1 or b.attributes & CONTROL_BIT
                    or b.size > self.size - position or b.count <= 0 or b.last_offset_delta + 1 != b.count):
                raise errors.CorruptRecord(f"byte {position} of {self.size}: no complete data batch of format v2")
            sum = 0
            at = position + HEADER_SIZE
            left = b.size - HEADER_SIZE
            while left > 0:
                if at - begin >= have:
                    begin = at
                    have = pread_most(self.fd, <char*>buffer, SEGMENT_READ, at)
                    if have == 0:
                        raise errors.CorruptRecord(f"the file ends at byte {at}, not {self.size}")
                taken = min(left, have - (at - begin))
                with nogil:
                    sum = eoslog_crc32c(sum, buffer + (at - begin), <size_t>taken)
                at += taken
                left -= taken
            self.sums[self.batches] = sum
            if header_crc(raw, sum, b.size) != load_u32(raw + CRC_AT):
                raise errors.CorruptRecord(f"byte {position}: the batch does not match its CRC")
            self.batches += 1
            self.count += b.count
            self.largest = max(self.largest, b.size)
            self.max_timestamp = max(self.max_timestamp, b.max_timestamp)
            position += b.size
        if self.batches == 0:
            raise errors.CorruptRecord("no batch in the file")
        return 0

    cdef int _grow(self) except -1:
        """Reserve memory for one more batch."""
        cdef size_t room
        cdef void* grown
        if self.batches & (self.batches - 1) or 0 < self.batches < 64:
            return 0                    # grows at 0 and at powers of two
        room = 64 if self.batches == 0 else <size_t>self.batches * 2
        grown = realloc(self.headers, room * sizeof(FoldedBatch))
        if grown == NULL:
            raise MemoryError()
        self.headers = <FoldedBatch*>grown
        grown = realloc(self.raw, room * HEADER_SIZE)
        if grown == NULL:
            raise MemoryError()
        self.raw = <uint8_t*>grown
        grown = realloc(self.sums, room * sizeof(uint32_t))
        if grown == NULL:
            raise MemoryError()
        self.sums = <uint32_t*>grown
        return 0

    def stamp(self, *, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
              bint transactional, int64_t base_offset, int32_t leader_epoch):
        """Write producer fields and offsets into the headers, for an append at `base_offset`. Can be repeated.

        Raises:
            OSError: if a write failed; the file cannot be adopted until a later `stamp` succeeds.
        """
        cdef int i, rc = 0
        cdef int64_t position = 0, offset = base_offset
        cdef uint8_t* raw
        cdef FoldedBatch* b
        check_producer(producer_id, producer_epoch, base_sequence, transactional, False)
        self.base_offset = -1
        with nogil:
            for i in range(self.batches):
                raw = self.raw + <size_t>i * HEADER_SIZE
                b = &self.headers[i]
                b.attributes = b.attributes & ~<int16_t>TRANSACTIONAL_BIT
                if transactional:
                    b.attributes |= TRANSACTIONAL_BIT
                b.base_offset = offset
                b.last_offset = offset + b.last_offset_delta
                b.producer_id = producer_id
                b.producer_epoch = producer_epoch
                b.base_sequence = base_sequence
                b.last_sequence = -1 if base_sequence < 0 else sequence_add(base_sequence, b.last_offset_delta)
                if base_sequence >= 0:
                    base_sequence = sequence_add(b.last_sequence, 1)
                store_i64(raw, offset)
                store_i32(raw + LEADER_EPOCH_AT, leader_epoch)
                store_i16(raw + ATTRIBUTES_AT, b.attributes)
                store_i64(raw + PRODUCER_ID_AT, producer_id)
                store_i16(raw + PRODUCER_EPOCH_AT, producer_epoch)
                store_i32(raw + BASE_SEQUENCE_AT, b.base_sequence)
                store_i32(raw + CRC_AT, <int32_t>header_crc(raw, self.sums[i], b.size))
                rc = eoslog_pwrite_all(self.fd, raw, HEADER_SIZE, position)
                if rc < 0:
                    break
                offset = b.last_offset + 1
                position += b.size
        if rc < 0:
            raise OSError(errno, errno_text(errno))
        self.base_offset = base_offset


cdef uint32_t header_crc(const uint8_t* raw, uint32_t sum, int64_t size) noexcept nogil:
    """Return the CRC of a batch, from its header and the CRC of its records."""
    return eoslog_crc32c_combine(
        eoslog_crc32c(0, raw + ATTRIBUTES_AT, HEADER_SIZE - ATTRIBUTES_AT), sum, <size_t>(size - HEADER_SIZE))


cdef int adopt_locked(PartitionState* state, SegmentFile file, SegmentDescriptors taken, const char* paths,
                      const Expected* expected, int expected_count, uint64_t deadline, Result* result) noexcept nogil:
    cdef SegmentDescriptors kept
    cdef const char* kept_paths
    cdef FoldedBatch* headers = file.headers
    cdef int64_t position = 0
    cdef int i, rc
    cdef Effects e
    if reserve_rolled(state) < 0:
        return FOLD_AGAIN
    rc = catch_up(state)
    if rc != 0:
        return rc
    if table_reserve(&state.table, FOLD_UNDER_LOCK + file.batches + 16) < 0:
        return FOLD_AGAIN
    rc = enter_lock(state, deadline, expected, expected_count)
    if rc != 0:
        return rc
    if state.next_offset != headers[0].base_offset:
        rc = CHANGED
    elif state.segment.position == 0 or state.rolled_files.log >= 0:
        rc = ROLL                             # no segment to roll, or Python has not taken the last roll
    else:
        rc = judge_append(state, headers, file.batches, True, expected_count > 0, result)
    if rc != APPENDED:
        unlock_partition(state)
        return rc
    atomic_store_u32(&state.slot.busy, 1)
    eoslog_os.point(POINT_BUSY)
    kept = state.next_files
    kept_paths = state.prepared_paths
    state.next_files = taken
    state.prepared_paths = paths
    rc = roll_segment(state)
    result.saved_errno = errno
    state.next_files = kept
    state.prepared_paths = kept_paths
    if rc < 0:
        return must_reload(state)
    result.rolled = True
    result.base_offset = state.next_offset
    result.timestamp = file.max_timestamp
    for i in range(file.batches):
        fold_batch(state, &headers[i], position, &e)
        position += headers[i].size
        if write_effects(state, &e) < 0:
            result.saved_errno = errno
            return must_reload(state)
    eoslog_os.point(POINT_INDEXED)
    result.saved_errno = 0
    result.last_offset = state.next_offset - 1
    publish_end(state)
    unlock_partition(state)
    eoslog_os.point(POINT_UNLOCKED)
    wake_word(state.lane, EVERYBODY)
    return APPENDED


def adopt_segment(Partition partition, SegmentFile file, list fds, bytes paths, expected, double timeout):
    """Make a stamped file the partition's next segment, if the log ends at the offset it was stamped for.

    Args:
        partition: a partition whose active segment is not empty.
        file: stamped. If it becomes a segment, the partition takes the descriptor out of it, so that
            no interruption of the caller closes the descriptor twice.
        fds: descriptors of empty index and time index files; taken out of the list in the same way.
        paths: names of the index, the time index and the file, each NUL-ended.
        expected: as in `Partition.append`.
        timeout: seconds to wait for the lock.

    Returns:
        (status, base offset, last offset, timestamp in ms, errno, rolled); see `Partition.append`.
        CHANGED: the log ends elsewhere, or an expected end has moved. ROLL: the active segment is
        empty, or `take_rolled` must be called first. `rolled` with another status than APPENDED: the
        segment has its name, but its records are not published.
    """
    cdef Expected expects[MAX_EXPECTED]
    cdef Result result
    cdef SegmentDescriptors taken = SegmentDescriptors(file.fd, fds[0], fds[1], -1)
    cdef const char* names = paths
    cdef uint64_t deadline
    cdef int rc, n
    if file.base_offset < 0:
        raise ValueError("the file is not stamped")
    n = take_expected(expected, expects)
    memset(&result, 0, sizeof(result))
    result.base_offset = result.last_offset = -1
    partition.control.check()
    deadline = eoslog_monotonic_ns() + <uint64_t>(max(timeout, 0.0) * 1e9)
    with nogil:
        pthread_mutex_lock(&partition.state.mutex)
        rc = adopt_locked(&partition.state, file, taken, names, expects, n, deadline, &result)
        if rc == IO_FAILED and result.saved_errno == 0:
            result.saved_errno = errno
        pthread_mutex_unlock(&partition.state.mutex)
    if result.rolled:
        file.fd = -1
        fds.clear()
    return rc, result.base_offset, result.last_offset, result.timestamp, result.saved_errno, result.rolled
