# Checksums and hashes for Python.
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from eoslog._core.hashes.crc32c cimport (
    eoslog_crc32c, eoslog_crc32c_backend, eoslog_crc32c_combine, eoslog_crc32c_software,
)
from eoslog._core.hashes.murmur2 cimport key_partition, murmur2_hash

# The implementation of CRC-32C: "vpclmulqdq", "sse4.2", "armv8" or "software". It is the best that the
# machine has, or the one that EOSLOG_CRC32C names.
crc32c_backend = eoslog_crc32c_backend().decode("ascii")


def crc32c(data, uint32_t value=0) -> int:
    """Return the CRC-32C of `data` (any contiguous buffer); `value` continues an earlier result.

    Source: RFC 3720, appendix B.4 (Castagnoli polynomial).
    """
    cdef Py_buffer view
    cdef uint32_t crc
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if view.len >= 8192:
        with nogil:
            crc = eoslog_crc32c(value, <const uint8_t*>view.buf, <size_t>view.len)
    else:
        crc = eoslog_crc32c(value, <const uint8_t*>view.buf, <size_t>view.len)
    PyBuffer_Release(&view)
    return crc


def crc32c_combine(uint32_t first, uint32_t second, size_t second_size) -> int:
    """Return the CRC-32C of two consecutive pieces, from their CRCs and the size of the second."""
    return eoslog_crc32c_combine(first, second, second_size)


def crc32c_software(data, uint32_t value=0) -> int:
    """Return the CRC-32C of `data`, computed with tables in software."""
    cdef Py_buffer view
    cdef uint32_t crc
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    with nogil:
        crc = eoslog_crc32c_software(value, <const uint8_t*>view.buf, <size_t>view.len)
    PyBuffer_Release(&view)
    return crc


def murmur2(data) -> int:
    """Return Kafka's murmur2 of `data`, signed 32 bits."""
    cdef Py_buffer view
    cdef int32_t value
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    value = murmur2_hash(<const uint8_t*>view.buf, view.len)
    PyBuffer_Release(&view)
    return value


def java_hash(str text) -> int:
    """Return Java's `String.hashCode()`: over UTF-16 units, signed 32 bits."""
    cdef uint32_t h = 0
    cdef uint32_t unit
    for character in text:
        unit = <uint32_t><Py_UCS4>character
        if unit >= 0x10000:
            unit -= 0x10000
            h = h * 31 + (0xD800 + (unit >> 10))
            unit = 0xDC00 + (unit & 0x3FF)
        h = h * 31 + unit
    return <int32_t>h


def partition_for_key(key, int32_t n) -> int:
    """Return the partition of `n` that Kafka clients choose for `key`."""
    cdef Py_buffer view
    cdef int32_t partition
    if n <= 0:
        raise errors.ConfigError(f"number of partitions must be positive, not {n}")
    PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
    partition = key_partition(<const uint8_t*>view.buf, view.len, n)
    PyBuffer_Release(&view)
    return partition
