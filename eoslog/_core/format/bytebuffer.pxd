# A growing byte buffer in C memory. `size <= capacity`; pointers into it die at the next reserve.
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

cdef struct ByteBuffer:
    uint8_t* data
    size_t size
    size_t capacity

cdef inline void clear_buffer(ByteBuffer* buffer) noexcept nogil:
    """Free the memory, leaving an empty buffer."""
    free(buffer.data)
    buffer.data = NULL
    buffer.size = 0
    buffer.capacity = 0

cdef inline int reserve(ByteBuffer* buffer, size_t more) noexcept nogil:
    """Reserve memory for `more` bytes after `size`. Returns -1 without memory, the buffer unchanged."""
    cdef size_t wanted
    cdef uint8_t* grown
    if more <= buffer.capacity - buffer.size:
        return 0
    wanted = buffer.capacity * 2
    if wanted < buffer.size + more:
        wanted = buffer.size + more
    if wanted < 512:
        wanted = 512
    grown = <uint8_t*>realloc(buffer.data, wanted)
    if grown == NULL:
        return -1
    buffer.data = grown
    buffer.capacity = wanted
    return 0

cdef inline int put_bytes(ByteBuffer* buffer, const void* data, size_t size) noexcept nogil:
    if reserve(buffer, size) < 0:
        return -1
    if size > 0:
        memcpy(buffer.data + buffer.size, data, size)
        buffer.size += size
    return 0
