# Decoding complete batches into Arrow buffers, in one pass and without the GIL.
#
# Keys and values are Cells (binary_column.pxi), the other columns plain arrays. Columns that were not
# requested are skipped with the same checks. If only offsets are requested, the header is enough.
from libc.stdint cimport INT32_MAX

from eoslog._core.format.record_shape cimport SHAPE_BYTES, RecordShape, forget_shape, learn_shape, parse_alike

cdef enum:
    SMALL_RECORD = 64           # bytes, to guess how many there are
    ALIKE = 2                   # records of one shape, before a run of them is looked for
    AHEAD = 2                   # batches to decompress in advance
    AHEAD_AFTER = 1 << 20       # decompressed bytes, before it is worth a thread
    AHEAD_FROM = 1 << 16        # compressed bytes of a batch that are worth handing over

cdef enum FillStatus:
    FILL_DONE = 1               # the data or the requested range ends
    FILL_FULL = 2               # the next batch would exceed the limits
    FILL_BLOCK = 3              # the current batch is compressed
    FILL_NO_MEMORY = 4
    FILL_RECORDS = 5            # the records do not parse: see the fault
    FILL_HEADER = 6             # header or checksum: see the step


@cython.final
cdef class ColumnDecoder:
    """Collects the columns of data records from complete batches.

    Call `feed` until the decoder is `full` or there is no more data, then `take`. Not thread-safe.

    Args:
        columns: names out of key, value, offset, timestamp, timestamp_type, headers.
        view: keys and values as binary_view without a copy, or as plain binary.
        flat: times in microseconds and timestamp types of 32 bits, as Spark needs them.
        check_crc: verify the checksum of each batch that is read.
        max_rows: rows after which to stop; a single batch may have more.
        max_bytes: bytes of batches after which to stop; a single batch may have more.
        ahead: decompresses later batches in another thread (`storage/format/decompress_ahead.py`); None: no thread.

    Attributes:
        rows: number of rows collected since the last `take`.
        full: whether the last `feed` stopped because of a limit.
    """

    cdef readonly int64_t rows
    cdef readonly bint full
    cdef readonly int64_t max_rows
    cdef readonly int64_t max_bytes
    cdef int _wanted
    cdef bint _check
    cdef bint _flat
    cdef int64_t _capacity              # rows
    cdef int64_t _bytes
    cdef int64_t _expected              # rows that the last columns had memory for, 0: no columns yet
    cdef MemoryPool _pool
    cdef ByteBuffer _offsets            # int64 each
    cdef ByteBuffer _timestamps         # int64 each
    cdef ByteBuffer _types              # int8 each
    cdef Cells _keys
    cdef Cells _values
    cdef ByteBuffer _header_ends        # int32 each, after a leading 0
    cdef int64_t _header_count
    cdef Cells _header_keys
    cdef Cells _header_values
    cdef list _buffers
    cdef bint _busy
    cdef object _ahead
    cdef list _jobs                     # (address, job) of batches in advance, by address; a job keeps their memory
    cdef const uint8_t* _checked        # the first of them: its checksum is right
    cdef int64_t _decompressed          # bytes in total

    def __cinit__(self, columns=("offset", "value"), *, view=True, flat=False, check_crc=True,
                  max_rows=65536, max_bytes=1 << 26, ahead=None):
        for name in columns:
            if name not in COLUMN_BITS:
                raise errors.ConfigError(f"unknown column {name!r}: {', '.join(COLUMN_BITS)} are known")
            self._wanted |= <int>COLUMN_BITS[name]
        if max_rows < 1 or max_rows > INT32_MAX:
            raise errors.ConfigError(f"batch rows must be 1 to {INT32_MAX}, not {max_rows}")
        self._check = check_crc
        self._flat = flat
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self._keys.view = self._values.view = self._header_values.view = bool(view)
        self._header_keys.view = False      # a column of strings is always a copy: checked to be UTF-8
        self._buffers = []
        self._pool = BLOCKS
        self._ahead = ahead
        self._jobs = []

    def __dealloc__(self):
        self._clear()

    cdef void _clear(self) noexcept nogil:
        clear_buffer(&self._offsets)
        clear_buffer(&self._timestamps)
        clear_buffer(&self._types)
        clear_buffer(&self._header_ends)
        clear_cells(&self._keys)
        clear_cells(&self._values)
        clear_cells(&self._header_keys)
        clear_cells(&self._header_values)
        self.rows = self._capacity = self._header_count = self._bytes = 0

    def feed(self, data, position, start, end, AbortedTransactions aborted=None):
        """Decode the batches of `data` from a byte on, up to the limits.

        Args:
            data: complete batches; must not change while columns made of it exist.
            position: byte in `data` to start from: 0, or the result of the last call.
            start: first offset to decode.
            end: one past the last offset to decode.
            aborted: transactions to leave out, None for none.

        Returns:
            (next offset, next byte in `data`).

        Raises:
            CorruptRecord: if the next batch is damaged; `position` is its byte. Rows collected before stay.
        """
        cdef Pin pin = Pin(data)
        cdef Pin block
        cdef const uint8_t* p = pin.data + <Py_ssize_t>position
        cdef const uint8_t* stop = pin.data + pin.size
        cdef int64_t next_offset = start
        cdef int64_t bound = end
        cdef int64_t size = 0
        cdef int step = BATCH_WHOLE
        cdef int status
        cdef int number = -1                # number of `data` in the buffers, if a view points into it
        cdef Fault fault
        if self._busy:
            raise errors.IllegalState("a ColumnDecoder belongs to one thread at a time")
        if pin.size > INT32_MAX:
            raise errors.IllegalState(f"{pin.size} bytes are too many for one call: a view reaches at most {INT32_MAX}")
        if <Py_ssize_t>position < 0 or <Py_ssize_t>position > pin.size:
            raise errors.CorruptRecord(f"position {position} is outside the {pin.size} bytes given")
        self.full = False
        if self._expected == 0:             # the first columns: guess from the data
            self._expected = max(1024, min(self.max_rows, bound - next_offset, (stop - p) // SMALL_RECORD))
        if self._capacity == 0:
            self._prepare()
        while True:
            self._aim(number, pin.data)
            self._busy = True
            with nogil:
                status = self._scan(&p, stop, &next_offset, bound, aborted, &size, &step, &fault)
            self._busy = False
            if number < 0 and self._pointed():
                number = len(self._buffers)
                self._buffers.append(data)
            if status != FILL_BLOCK:
                break
            try:
                block = self._decompress(pin, p, size, stop, bound)
            except errors.CorruptRecord as error:
                placed(error, p - pin.data)
                raise
            self._aim(-1, block.data)
            self._busy = True
            with nogil:
                status = self._fill(p, block.data, block.data + block.size, next_offset, bound, False, &fault)
            self._busy = False
            if status != FILL_DONE:
                if status == FILL_RECORDS:
                    raise placed(records_fault(&fault, block.data, load_i64(p + BASE_OFFSET_AT),
                                               f"offset {load_i64(p + BASE_OFFSET_AT)}"), p - pin.data)
                break
            if self._pointed():
                self._buffers.append(block.view.obj)
            self._bytes += block.size
            self._decompressed += block.size
            next_offset = min(load_i64(p + BASE_OFFSET_AT) + load_i32(p + LAST_OFFSET_DELTA_AT) + 1, bound)
            p += size
        if status == FILL_NO_MEMORY:
            raise MemoryError()
        if status == FILL_HEADER:
            raise placed(batch_fault(step, p, size if step == BATCH_CRC else stop - p,
                                     f"offset {next_offset}"), p - pin.data)
        if status == FILL_RECORDS:
            raise placed(records_fault(&fault, p + HEADER_SIZE, load_i64(p + BASE_OFFSET_AT),
                                       f"offset {load_i64(p + BASE_OFFSET_AT)}"), p - pin.data)
        self.full = status == FILL_FULL
        return next_offset, p - pin.data

    cdef Pin _decompress(self, Pin pin, const uint8_t* p, int64_t size, const uint8_t* stop, int64_t end):
        """Return the records of a compressed batch, and let the other thread begin with the next batches."""
        cdef object found = None
        if self._ahead is not None and self._decompressed >= AHEAD_AFTER:
            job = self._job_of(p)
            self._look_ahead(pin, p + size, stop, end)
            if job is not None:
                found = self._ahead.result(job, [later for _, later in self._jobs])
        if found is not None:
            return Pin(found)
        return decompress_block(load_i16(p + ATTRIBUTES_AT) & CODEC_MASK, pin, p + HEADER_SIZE, size - HEADER_SIZE,
                                f"offset {load_i64(p + BASE_OFFSET_AT)}")

    cdef object _job_of(self, const uint8_t* p):
        """Take the job of the batch at p; None if there is none. Drops those of batches that were not read."""
        cdef Py_ssize_t i
        job = None
        for i, (address, other) in enumerate(self._jobs):
            if <size_t>address == <size_t>p:
                job = other
                break
        self._jobs = self._jobs[i + 1:] if job is not None else []
        self._set_checked()
        return job

    cdef int _set_checked(self) except -1:
        self._checked = <const uint8_t*><size_t>self._jobs[0][0] if self._jobs else NULL
        return 0

    cdef int _look_ahead(self, Pin pin, const uint8_t* p, const uint8_t* stop, int64_t end) except -1:
        """Submit the batches from p on. Leaves damaged, small and uncompressed batches to `_scan`."""
        cdef int64_t size = 0
        cdef int codec, i
        cdef bint right
        for i in range(AHEAD):
            if next_batch(p, stop, &size) != BATCH_WHOLE or check_header(p) != BATCH_WHOLE:
                break
            codec = load_i16(p + ATTRIBUTES_AT) & CODEC_MASK
            if codec == 0 or size < AHEAD_FROM or load_i64(p + BASE_OFFSET_AT) >= end:
                break
            if i >= len(self._jobs):
                with nogil:
                    right = not self._check or crc_matches(p, size)
                if not right:
                    break
                block = memoryview(pin.view.obj).cast("B")[p + HEADER_SIZE - pin.data:p + size - pin.data]
                job = self._ahead.submit(CODECS[codec], block)
                if job is None:
                    break
                self._jobs.append((<size_t>p, job))
            p += size
        self._set_checked()
        return 0

    cdef bint _pointed(self):
        return self._keys.pointed or self._values.pointed or self._header_values.pointed

    cdef int _aim(self, int number, const uint8_t* base) except -1:
        """Make the next views point into this block; -1: the block is not in the buffers yet."""
        cdef int32_t block = number if number >= 0 else <int32_t>len(self._buffers)
        self._keys.block = self._values.block = self._header_values.block = block
        self._keys.base = self._values.base = self._header_values.base = base
        self._keys.pointed = self._values.pointed = self._header_values.pointed = False
        return 0

    cdef int _scan(self, const uint8_t** at, const uint8_t* stop, int64_t* next_offset, int64_t end,
                   AbortedTransactions aborted, int64_t* size, int* step, Fault* fault) noexcept nogil:
        """Decode uncompressed batches up to one of another kind. Returns a FillStatus, with `at` on that batch."""
        cdef const uint8_t* p = at[0]
        cdef int64_t base_offset, last_offset
        cdef int32_t count
        cdef int attributes, status
        cdef bint skipped, packed, counted
        while next_offset[0] < end:
            at[0] = p
            step[0] = next_batch(p, stop, size)
            if step[0] == BATCH_END:
                return FILL_DONE
            if step[0] == BATCH_WHOLE:
                step[0] = check_header(p)
            if step[0] != BATCH_WHOLE and step[0] != BATCH_CODEC:
                return FILL_HEADER
            base_offset = load_i64(p + BASE_OFFSET_AT)
            last_offset = base_offset + load_i32(p + LAST_OFFSET_DELTA_AT)
            if base_offset >= end:
                next_offset[0] = end
                return FILL_DONE
            if last_offset < next_offset[0]:
                p += size[0]
                continue
            if step[0] == BATCH_CODEC:      # a batch before the requested range
                return FILL_HEADER
            count = load_i32(p + RECORDS_COUNT_AT)
            if self.rows > 0 and (self.rows + count > self.max_rows or self._bytes >= self.max_bytes):
                return FILL_FULL
            attributes = load_i16(p + ATTRIBUTES_AT)
            skipped = attributes & CONTROL_BIT or (
                aborted is not None and attributes & TRANSACTIONAL_BIT
                and aborted.covers(load_i64(p + PRODUCER_ID_AT), base_offset))
            packed = attributes & CODEC_MASK and size[0] > HEADER_SIZE
            counted = not packed and self._counts(p, size[0], count)
            if self._check and p != self._checked and (skipped or packed or counted) and not crc_matches(p, size[0]):
                step[0] = BATCH_CRC
                return FILL_HEADER
            if packed and not skipped:
                return FILL_BLOCK
            if not skipped:
                if counted:
                    status = self._number(max(base_offset, next_offset[0]), min(last_offset + 1, end))
                else:
                    status = self._fill(p, p + HEADER_SIZE, p + size[0], next_offset[0], end, self._check, fault)
                if status == FILL_HEADER:
                    step[0] = BATCH_CRC
                if status != FILL_DONE:
                    return status
                self._bytes += size[0]
            next_offset[0] = last_offset + 1 if last_offset < end else end
            p += size[0]
        at[0] = p
        return FILL_DONE

    cdef bint _counts(self, const uint8_t* header, int64_t size, int32_t count) noexcept nogil:
        """Whether the header is enough: only offsets are requested, and there are as many as records."""
        return (self._wanted | COLUMN_OFFSET == COLUMN_OFFSET and count == load_i32(header + LAST_OFFSET_DELTA_AT) + 1
                and count <= (size - HEADER_SIZE) // MIN_RECORD_SIZE)

    cdef int _number(self, int64_t first, int64_t end) noexcept nogil:
        """Add one row for each offset of [first, end). Returns a FillStatus."""
        cdef int64_t* offsets
        cdef int64_t i, count = end - first
        if self._make_room(self.rows + count) < 0:
            return FILL_NO_MEMORY
        if self._wanted & COLUMN_OFFSET:
            offsets = <int64_t*>self._offsets.data + self.rows
            for i in range(count):
                offsets[i] = first + i
        self.rows += count
        return FILL_DONE

    cdef int _fill(self, const uint8_t* header, const uint8_t* p, const uint8_t* stop, int64_t start,
                   int64_t end, bint check, Fault* fault) noexcept nogil:
        """Decode the records of one batch, which are in [p, stop), all of them or none. Returns a FillStatus.

        With `check`, the header precedes the records, and the checksum is computed piece by piece just
        ahead of decoding, so that each byte is read from memory once. FILL_HEADER: the checksum is wrong.
        """
        cdef RecordFields record
        cdef RecordFields odd                           # the only copy whose address is taken
        cdef RecordShape shape
        cdef int attributes = load_i16(header + ATTRIBUTES_AT)
        cdef int log_append = 1 if attributes & LOG_APPEND_TIME_BIT else 0
        cdef int64_t base_offset = load_i64(header + BASE_OFFSET_AT)
        cdef int64_t base_timestamp = load_i64(header + BASE_TIMESTAMP_AT)
        cdef int64_t append_time = load_i64(header + MAX_TIMESTAMP_AT)
        cdef int64_t offset
        cdef const uint8_t* following
        cdef const uint8_t* limit
        cdef BatchRows rows
        cdef int32_t last_delta = load_i32(header + LAST_OFFSET_DELTA_AT)
        cdef int32_t count = load_i32(header + RECORDS_COUNT_AT)
        cdef int32_t i = 0, taken, delta = -1
        cdef const uint8_t* summed = header + ATTRIBUTES_AT if check else stop + 1
        cdef uint32_t crc = 0
        cdef int64_t row = self.rows
        cdef int64_t header_count = self._header_count
        cdef size_t key_bytes = self._keys.copied.size
        cdef size_t value_bytes = self._values.copied.size
        cdef size_t header_key_bytes = self._header_keys.copied.size
        cdef size_t header_value_bytes = self._header_values.copied.size
        cdef int wanted = self._wanted
        cdef bint whole = base_offset >= start and base_offset + last_delta < end
        cdef int alike = 0                              # records in a row with the same shape
        cdef int status = FILL_DONE
        if count > (stop - p) // MIN_RECORD_SIZE:       # checked before allocating memory for them
            record_fault(fault, RECORD_MISSING, p, count, (stop - p) // MIN_RECORD_SIZE)
            return FILL_RECORDS
        if stop - p > INT32_MAX - 1 or self._copied_too_much(stop - p):
            return FILL_FULL if self.rows > 0 else FILL_NO_MEMORY
        if self._make_room(row + count) < 0:
            return FILL_NO_MEMORY
        memset(&rows, 0, sizeof(BatchRows))
        if wanted & COLUMN_OFFSET:
            rows.offsets = <int64_t*>self._offsets.data
        if wanted & COLUMN_TIMESTAMP:
            rows.timestamps = <int64_t*>self._timestamps.data
        if wanted & COLUMN_TIMESTAMP_TYPE:
            rows.types = self._types.data
        if wanted & COLUMN_HEADERS:
            rows.header_ends = self._header_ends.data
        if wanted & COLUMN_KEY:
            rows.keys = &self._keys
        if wanted & COLUMN_VALUE:
            rows.values = &self._values
        rows.base_offset, rows.last_delta = base_offset, last_delta
        rows.base_timestamp, rows.append_time, rows.log_append = base_timestamp, append_time, log_append
        record.timestamp_delta = 0
        forget_shape(&shape)
        while i < count:
            if p == stop:
                record_fault(fault, RECORD_MISSING, p, count, i)
                status = FILL_RECORDS
                break
            if unlikely(p >= summed):
                crc = eoslog_crc32c(crc, summed, <size_t>min(stop - summed, PIECE))
                summed += min(stop - summed, PIECE)
            if alike >= ALIKE and whole:
                limit = min(stop - (SHAPE_BYTES - 1), summed)
                rows.header_count = <int32_t>self._header_count
                taken = take_alike(&p, limit, stop, &shape, &rows, row, count - i, &delta)
                i += taken
                row += taken
                alike = ALIKE if p >= limit else 0
                if taken:
                    continue
            prefetch(p + PIECE)
            prefetch(p + PIECE + 64)
            following = NULL
            if shape.known and stop - p >= SHAPE_BYTES:
                following = parse_alike(p, stop, &shape, rows.timestamps != NULL, &record)
            alike = alike + 1 if following != NULL else 0
            if unlikely(following == NULL):
                following = parse_common_record(p, stop, &record)
                if following != NULL:
                    learn_shape(&shape, p, stop, &record, i)
                else:
                    following = parse_any_record(p, stop, &odd, fault)
                    if following != NULL:
                        record = odd
            p = following
            if unlikely(p != NULL and (record.offset_delta <= delta or record.offset_delta > last_delta)):
                p = record_fault(fault, RECORD_OFFSET, record.key, record.offset_delta, delta)
            if unlikely(p == NULL):
                status = FILL_RECORDS
                break
            delta = record.offset_delta
            offset = base_offset + delta
            i += 1
            if unlikely(<uint64_t>offset - <uint64_t>start >= <uint64_t>end - <uint64_t>start):
                continue
            if wanted & COLUMN_OFFSET:
                rows.offsets[row] = offset
            if wanted & COLUMN_TIMESTAMP:
                rows.timestamps[row] = append_time if log_append else add_timestamp(
                    base_timestamp, record.timestamp_delta)
            if wanted & COLUMN_TIMESTAMP_TYPE:
                self._types.data[row] = <uint8_t>log_append
            if wanted & COLUMN_KEY and put_cell(&self._keys, row, record.key, record.key_size) < 0:
                status = FILL_NO_MEMORY
                break
            if wanted & COLUMN_VALUE and put_cell(&self._values, row, record.value, record.value_size) < 0:
                status = FILL_NO_MEMORY
                break
            if wanted & COLUMN_HEADERS and self._put_headers(row, &record) < 0:
                status = FILL_NO_MEMORY
                break
            row += 1
        if status == FILL_DONE and p != stop:
            record_fault(fault, RECORD_LEFTOVER, p, stop - p, count)
            status = FILL_RECORDS
        if check and status in (FILL_DONE, FILL_RECORDS):
            if summed < stop:
                crc = eoslog_crc32c(crc, summed, <size_t>(stop - summed))
            if crc != load_u32(header + CRC_AT):
                status = FILL_HEADER
        if status == FILL_DONE:
            self.rows = row
            return FILL_DONE
        revive_cells(&self._keys, self.rows, min(row + 1, self._keys.capacity))
        revive_cells(&self._values, self.rows, min(row + 1, self._values.capacity))
        revive_cells(&self._header_values, header_count,
                     min(self._header_count + 1, self._header_values.capacity))
        self._keys.copied.size = key_bytes
        self._values.copied.size = value_bytes
        self._header_keys.copied.size = header_key_bytes
        self._header_values.copied.size = header_value_bytes
        self._header_count = header_count
        return status

    cdef bint _copied_too_much(self, int64_t more) noexcept nogil:
        """Whether a column's bytes might exceed the range of an int32."""
        cdef int64_t room = INT32_MAX - 3 * more        # a replaced header key grows to three times
        return (<int64_t>self._keys.copied.size > room or <int64_t>self._values.copied.size > room
                or <int64_t>self._header_keys.copied.size > room
                or <int64_t>self._header_values.copied.size > room)

    cdef int _prepare(self) except -1:
        """Take memory of earlier columns from the pool, as much as they needed."""
        cdef int64_t rows = self._expected
        if self._wanted & COLUMN_OFFSET:
            self._pool.lend(&self._offsets, <size_t>rows * 8)
        if self._wanted & COLUMN_TIMESTAMP:
            self._pool.lend(&self._timestamps, <size_t>rows * 8)
        if self._wanted & COLUMN_TIMESTAMP_TYPE:
            self._pool.lend(&self._types, <size_t>rows)
        if self._wanted & COLUMN_KEY:
            self._prepare_cells(&self._keys, rows)
        if self._wanted & COLUMN_VALUE:
            self._prepare_cells(&self._values, rows)
        return 0

    cdef int _prepare_cells(self, Cells* cells, int64_t rows) except -1:
        self._pool.lend(&cells.slots, <size_t>slots_size(cells, rows))
        if cells.expected:
            self._pool.lend(&cells.copied, cells.expected)
            if cells.copied.data == NULL and reserve(&cells.copied, cells.expected) < 0:
                raise MemoryError()
        return 0

    cdef int _make_room(self, int64_t rows) noexcept nogil:
        cdef int64_t capacity
        if rows <= self._capacity:
            return 0
        capacity = max(rows, min(self._capacity * 4, self.max_rows), self._expected)
        if self._wanted & COLUMN_OFFSET and grow_array(&self._offsets, capacity * 8) < 0:
            return -1
        if self._wanted & COLUMN_TIMESTAMP and grow_array(&self._timestamps, capacity * 8) < 0:
            return -1
        if self._wanted & COLUMN_TIMESTAMP_TYPE and grow_array(&self._types, capacity) < 0:
            return -1
        if self._wanted & COLUMN_KEY and grow_cells(&self._keys, capacity) < 0:
            return -1
        if self._wanted & COLUMN_VALUE and grow_cells(&self._values, capacity) < 0:
            return -1
        if self._wanted & COLUMN_HEADERS and grow_array(&self._header_ends, capacity * 4 + 4) < 0:
            return -1
        self._capacity = capacity
        return 0

    cdef int _put_headers(self, int64_t row, const RecordFields* record) noexcept nogil:
        cdef int32_t end
        if put_header_cells(&self._header_keys, &self._header_values, &self._header_count, record.headers, record.end,
                       record.header_count) < 0:
            return -1
        end = <int32_t>self._header_count
        memcpy(self._header_ends.data + (row + 1) * 4, &end, 4)
        return 0

    def take(self):
        """Return the collected columns, and start again without rows.

        Returns:
            A dict: "rows"; "buffers", the data buffers that views point into; and each requested column.
            offset, timestamp and timestamp_type are one buffer. key and value are (validity or None,
            count of nulls, views or int32 offsets, bytes or None). headers is (int32 list offsets,
            count, keys, values) with keys and values in that form.

        Raises:
            CorruptRecord: if a time is out of range for `flat`; the collected rows stay.
        """
        cdef int64_t rows = self.rows
        cdef int wanted = self._wanted
        if self._busy:
            raise errors.IllegalState("a ColumnDecoder belongs to one thread at a time")
        taken = {"rows": rows, "buffers": self._buffers}
        if self._make_room(max(rows, 1)) < 0:
            raise MemoryError()
        if self._flat:
            flatten(&self._timestamps, &self._types, rows, self._pool)
        if wanted & COLUMN_OFFSET:
            taken["offset"] = hand_over(&self._offsets, rows * 8, self._pool)
        if wanted & COLUMN_TIMESTAMP:
            taken["timestamp"] = hand_over(&self._timestamps, rows * 8, self._pool)
        if wanted & COLUMN_TIMESTAMP_TYPE:
            taken["timestamp_type"] = hand_over(&self._types, rows * (4 if self._flat else 1), self._pool)
        if wanted & COLUMN_KEY:
            taken["key"] = hand_over_cells(&self._keys, rows, self._pool)
        if wanted & COLUMN_VALUE:
            taken["value"] = hand_over_cells(&self._values, rows, self._pool)
        if wanted & COLUMN_HEADERS:
            memset(self._header_ends.data, 0, 4)
            taken["headers"] = (
                hand_over(&self._header_ends, rows * 4 + 4, self._pool), self._header_count,
                hand_over_cells(&self._header_keys, self._header_count, self._pool),
                hand_over_cells(&self._header_values, self._header_count, self._pool),
            )
        self._buffers = []
        self._expected = min(max(self._capacity, 1024), 1 << 20)
        self._clear()
        return taken
