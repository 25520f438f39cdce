# One record of a v2 batch, as bytes:
#
#   length varint | attributes i8 0 | timestamp delta varlong | offset delta varint
#   | key length varint (-1 null) | key | value length varint (-1 null) | value
#   | header count varint | per header: key length, key, value length (-1 null), value
#
# `length` counts what follows it.
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from eoslog._core.format.bytebuffer cimport ByteBuffer, reserve
from eoslog._core.format.varint cimport encode_varlong, varlong_size

cdef enum:
    RECORD_FRAMING = 36         # largest size of a record without key, value and headers: length,
                                # attributes, deltas 10 + 5, key and value length, header count

cdef struct Span:
    const uint8_t* data         # NULL: null, on the wire a length of -1
    Py_ssize_t size

cdef inline uint8_t* put_span(uint8_t* p, Span span) noexcept nogil:
    if span.data == NULL:
        p[0] = 1                # varint -1
        return p + 1
    p = encode_varlong(p, span.size)
    memcpy(p, span.data, span.size)
    return p + span.size

cdef inline Py_ssize_t span_size(Span span) noexcept nogil:
    if span.data == NULL:
        return 1
    return varlong_size(span.size) + span.size

cdef inline Py_ssize_t record_upper_bound(Span key, Span value, size_t headers_size) noexcept nogil:
    """Return an upper bound of a record's size. The sum of sizes in memory cannot overflow."""
    return RECORD_FRAMING + key.size + value.size + <Py_ssize_t>headers_size

cdef inline int put_record(
    ByteBuffer* buffer, int64_t timestamp_delta, int32_t offset_delta, Span key, Span value,
    const uint8_t* headers, size_t headers_size,
) noexcept nogil:
    """Append a record. `headers`: encoded count and headers, NULL for none. Returns -1 without memory."""
    cdef uint8_t* p
    cdef Py_ssize_t body
    if reserve(buffer, record_upper_bound(key, value, headers_size)) < 0:
        return -1
    body = 1 + varlong_size(timestamp_delta) + varlong_size(offset_delta)
    body += span_size(key) + span_size(value)
    body += <Py_ssize_t>headers_size if headers != NULL else 1
    p = encode_varlong(buffer.data + buffer.size, body)
    p[0] = 0
    p = encode_varlong(p + 1, timestamp_delta)
    p = encode_varlong(p, offset_delta)
    p = put_span(p, key)
    p = put_span(p, value)
    if headers == NULL:
        p[0] = 0
        p += 1
    else:
        memcpy(p, headers, headers_size)
        p += headers_size
    buffer.size = <size_t>(p - buffer.data)
    return 0
