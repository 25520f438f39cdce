# Zigzag LEB128 varints, bounded: every decode takes `end`, one past the last readable byte.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef inline const uint8_t* decode_varint(const uint8_t* p, const uint8_t* end, int32_t* out) noexcept nogil:
    """Return the byte after the varint, or NULL if it is truncated or longer than 5 bytes."""
    cdef uint32_t value = 0
    cdef uint8_t b
    cdef int shift = 0
    if end - p >= 2:                                # the common cases: one byte, two bytes
        value = p[0]
        if value < 0x80:
            out[0] = <int32_t>((value >> 1) ^ (0 - (value & 1)))
            return p + 1
        if p[1] < 0x80:
            value = (value & 0x7F) | (<uint32_t>p[1] << 7)
            out[0] = <int32_t>((value >> 1) ^ (0 - (value & 1)))
            return p + 2
        value = 0
    while p < end and shift < 35:
        b = p[0]
        p += 1
        value |= <uint32_t>(b & 0x7F) << shift
        if b < 0x80:
            out[0] = <int32_t>((value >> 1) ^ (0 - (value & 1)))
            return p
        shift += 7
    return NULL

cdef inline const uint8_t* decode_varlong(const uint8_t* p, const uint8_t* end, int64_t* out) noexcept nogil:
    """Return the byte after the varlong, or NULL if it is truncated or longer than 10 bytes."""
    cdef uint64_t value = 0
    cdef uint8_t b
    cdef int shift = 0
    if end - p >= 2:
        value = p[0]
        if value < 0x80:
            out[0] = <int64_t>((value >> 1) ^ (0 - (value & 1)))
            return p + 1
        if p[1] < 0x80:
            value = (value & 0x7F) | (<uint64_t>p[1] << 7)
            out[0] = <int64_t>((value >> 1) ^ (0 - (value & 1)))
            return p + 2
        value = 0
    while p < end and shift < 70:
        b = p[0]
        p += 1
        value |= <uint64_t>(b & 0x7F) << shift
        if b < 0x80:
            out[0] = <int64_t>((value >> 1) ^ (0 - (value & 1)))
            return p
        shift += 7
    return NULL

cdef inline uint8_t* encode_varlong(uint8_t* p, int64_t value) noexcept nogil:
    """Write at most 10 bytes. Returns the byte after them."""
    cdef uint64_t v = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    while v >= 0x80:
        p[0] = <uint8_t>(v | 0x80)
        p += 1
        v >>= 7
    p[0] = <uint8_t>v
    return p + 1

cdef inline int varlong_size(int64_t value) noexcept nogil:
    cdef uint64_t v = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    cdef int n = 1
    while v >= 0x80:
        v >>= 7
        n += 1
    return n
