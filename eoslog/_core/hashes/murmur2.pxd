# murmur2 as Kafka's default partitioner computes it (32 bits, seed 0x9747b28c).
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define eoslog_le32(v) __builtin_bswap32(v)
    #else
    #define eoslog_le32(v) (v)
    #endif
    """
    uint32_t eoslog_le32(uint32_t) noexcept nogil

cdef inline int32_t murmur2_hash(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    cdef uint32_t m = 0x5BD1E995u
    cdef uint32_t h = 0x9747B28Cu ^ <uint32_t>size
    cdef uint32_t k = 0
    cdef Py_ssize_t left = size
    while left >= 4:
        memcpy(&k, p, 4)
        k = eoslog_le32(k) * m
        k ^= k >> 24
        h = (h * m) ^ (k * m)
        p += 4
        left -= 4
    if left == 3:
        h ^= <uint32_t>p[2] << 16
    if left >= 2:
        h ^= <uint32_t>p[1] << 8
    if left >= 1:
        h = (h ^ p[0]) * m
    h ^= h >> 13
    h *= m
    return <int32_t>(h ^ (h >> 15))

cdef inline int32_t key_partition(const uint8_t* p, Py_ssize_t size, int32_t count) noexcept nogil:
    return (murmur2_hash(p, size) & 0x7FFFFFFF) % count
