# Big-endian loads and stores at any alignment. Callers must check bounds.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    uint16_t __builtin_bswap16(uint16_t) noexcept nogil
    uint32_t __builtin_bswap32(uint32_t) noexcept nogil
    uint64_t __builtin_bswap64(uint64_t) noexcept nogil

cdef inline int16_t load_i16(const uint8_t* p) noexcept nogil:
    cdef uint16_t v
    memcpy(&v, p, 2)
    return <int16_t>__builtin_bswap16(v)

cdef inline int32_t load_i32(const uint8_t* p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return <int32_t>__builtin_bswap32(v)

cdef inline uint32_t load_u32(const uint8_t* p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return __builtin_bswap32(v)

cdef inline int64_t load_i64(const uint8_t* p) noexcept nogil:
    cdef uint64_t v
    memcpy(&v, p, 8)
    return <int64_t>__builtin_bswap64(v)

cdef inline void store_i16(uint8_t* p, int16_t value) noexcept nogil:
    cdef uint16_t v = __builtin_bswap16(<uint16_t>value)
    memcpy(p, &v, 2)

cdef inline void store_i32(uint8_t* p, int32_t value) noexcept nogil:
    cdef uint32_t v = __builtin_bswap32(<uint32_t>value)
    memcpy(p, &v, 4)

cdef inline void store_i64(uint8_t* p, int64_t value) noexcept nogil:
    cdef uint64_t v = __builtin_bswap64(<uint64_t>value)
    memcpy(p, &v, 8)
