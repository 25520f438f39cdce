# The columns that batches are decoded into, and wider types for consumers such as Spark, which do not
# support milliseconds and small integers.
from libc.stdint cimport INT64_MAX

cdef enum:
    COLUMN_KEY = 1
    COLUMN_VALUE = 2
    COLUMN_OFFSET = 4
    COLUMN_TIMESTAMP = 8
    COLUMN_TIMESTAMP_TYPE = 16
    COLUMN_HEADERS = 32

COLUMN_BITS = {
    "key": COLUMN_KEY, "value": COLUMN_VALUE, "offset": COLUMN_OFFSET, "timestamp": COLUMN_TIMESTAMP,
    "timestamp_type": COLUMN_TIMESTAMP_TYPE, "headers": COLUMN_HEADERS,
}

cdef enum:
    US_PER_MS = 1000


cdef int flatten(ByteBuffer* timestamps, ByteBuffer* types, int64_t rows, MemoryPool pool) except -1:
    """Convert milliseconds to microseconds in place, and int8 to int32. Missing columns stay missing.

    Raises:
        KafkaError: INVALID_TIMESTAMP, if a time is out of range for 64-bit microseconds; nothing is changed then.
    """
    cdef ByteBuffer wide = ByteBuffer(NULL, 0, 0)
    cdef int64_t* times = <int64_t*>timestamps.data
    cdef int64_t last = INT64_MAX // US_PER_MS
    cdef int64_t row
    cdef uint64_t beyond = 0
    if types.data != NULL:
        pool.lend(&wide, <size_t>rows * 4)
        if grow_array(&wide, max(rows, 1) * 4) < 0:
            raise MemoryError()
    if times != NULL:
        for row in range(rows):
            beyond |= <uint64_t>times[row] + <uint64_t>last > 2 * <uint64_t>last
        if beyond:
            clear_buffer(&wide)
            worst = next(times[row] for row in range(rows) if not -last <= times[row] <= last)
            raise errors.error_for(
                errors.ErrorCode.INVALID_TIMESTAMP,
                f"a record's timestamp is {worst} ms, microseconds of 64 bits hold {-last} to {last} ms")
        for row in range(rows):
            times[row] *= US_PER_MS
    if types.data != NULL:
        for row in range(rows):
            (<int32_t*>wide.data)[row] = types.data[row]
        pool.take_back(types.data, types.capacity)
        types[0] = wide
    return 0
