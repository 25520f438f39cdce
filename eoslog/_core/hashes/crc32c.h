/* CRC-32C (Castagnoli), the checksum of record batches. */
#ifndef EOSLOG_CRC32C_H
#define EOSLOG_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continue `crc` (0 to start) over `size` bytes. Thread-safe; needs no GIL. */
uint32_t eoslog_crc32c(uint32_t crc, const uint8_t *data, size_t size);

/* The CRC of two pieces, one behind the other, from theirs; in logarithmic time. */
uint32_t eoslog_crc32c_combine(uint32_t first, uint32_t second, size_t second_size);

/* eoslog_crc32c by tables, on every machine: the fallback, and the reference for the fast path. */
uint32_t eoslog_crc32c_software(uint32_t crc, const uint8_t *data, size_t size);

/* "vpclmulqdq", "sse4.2", "armv8" or "software": what eoslog_crc32c does here. */
const char *eoslog_crc32c_backend(void);

#endif
