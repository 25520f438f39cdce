# CRC-32C of crc32c.c.
from libc.stdint cimport uint8_t, uint32_t

cdef extern from "crc32c.h":
    uint32_t eoslog_crc32c(uint32_t crc, const uint8_t* data, size_t size) noexcept nogil
    uint32_t eoslog_crc32c_software(uint32_t crc, const uint8_t* data, size_t size) noexcept nogil
    const char* eoslog_crc32c_backend() noexcept nogil
    uint32_t eoslog_crc32c_combine(uint32_t first, uint32_t second, size_t second_size) noexcept nogil
