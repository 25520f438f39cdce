/* CRC-32C by the best means of the machine: folding by carry-less multiplication of 512 bits, the
 * CRC instruction, or slice-by-8 tables.
 *
 * The choice is made once, when the module is loaded; EOSLOG_CRC32C names a slower one by its
 * `backend`, and counts for nothing where the machine has no such. No -march: special instructions appear only in the functions marked
 * with a target attribute.
 *
 * The CRC instruction has a latency of three cycles and a throughput of one, so long inputs run as
 * three independent streams. Streams are joined by "append n zero bytes", a linear map of the
 * 32 bits that is tabulated per byte for the two block lengths used.
 *
 * Folding (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", 2009)
 * carries 128 bits n bits on by multiplying their halves with powers of x, and needs no joining.
 */
#include "crc32c.h"

#include <stdlib.h>
#include <string.h>

#define POLYNOMIAL 0x82F63B78u /* reflected */
#define LONG_BLOCK 2048u       /* bytes a stream; multiples of 8 */
#define SHORT_BLOCK 256u

static uint32_t slices[8][256];

static inline uint64_t load_le64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

uint32_t eoslog_crc32c_software(uint32_t crc, const uint8_t *p, size_t size)
{
    crc = ~crc;
    while (size >= 8) {
        uint64_t v = load_le64(p) ^ crc;
        crc = slices[7][v & 0xFF] ^ slices[6][(v >> 8) & 0xFF] ^ slices[5][(v >> 16) & 0xFF] ^
              slices[4][(v >> 24) & 0xFF] ^ slices[3][(v >> 32) & 0xFF] ^
              slices[2][(v >> 40) & 0xFF] ^ slices[1][(v >> 48) & 0xFF] ^ slices[0][v >> 56];
        p += 8;
        size -= 8;
    }
    for (; size > 0; size--)
        crc = slices[0][(crc ^ *p++) & 0xFF] ^ (crc >> 8);
    return ~crc;
}

static void fill_slices(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc & 1) ? (crc >> 1) ^ POLYNOMIAL : crc >> 1;
        slices[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++)
            slices[k][i] = (slices[k - 1][i] >> 8) ^ slices[0][slices[k - 1][i] & 0xFF];
}

/* Polynomials modulo POLYNOMIAL, reflected: bit 31 is the coefficient of x^0. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = (b & 1) ? (b >> 1) ^ POLYNOMIAL : b >> 1;
    }
    return product;
}

static uint32_t squares[8 * sizeof(size_t)]; /* x^(8 * 2^k): 2^k zero bytes appended */

static void fill_squares(void)
{
    squares[0] = 1u << (31 - 8);
    for (size_t k = 1; k < sizeof squares / sizeof *squares; k++)
        squares[k] = multiply(squares[k - 1], squares[k - 1]);
}

uint32_t eoslog_crc32c_combine(uint32_t first, uint32_t second, size_t second_size)
{
    for (int k = 0; second_size; k++, second_size >>= 1)
        if (second_size & 1)
            first = multiply(squares[k], first);
    return first ^ second;
}

#if defined(__x86_64__) || defined(__aarch64__)

static uint32_t long_shift[4][256];
static uint32_t short_shift[4][256];

/* Tabulate the map "append `zeros` zero bytes" for each byte of a (not inverted) CRC. */
static void fill_shift(uint32_t table[4][256], uint32_t zeros)
{
    uint32_t image[32]; /* of each single bit; the map is linear over xor */
    for (int bit = 0; bit < 32; bit++) {
        uint32_t crc = 1u << bit;
        for (uint32_t i = 0; i < zeros; i++)
            crc = slices[0][crc & 0xFF] ^ (crc >> 8);
        image[bit] = crc;
    }
    for (int k = 0; k < 4; k++)
        for (uint32_t value = 0; value < 256; value++) {
            uint32_t crc = 0;
            for (int bit = 0; bit < 8; bit++)
                if (value & (1u << bit))
                    crc ^= image[8 * k + bit];
            table[k][value] = crc;
        }
}

static inline uint32_t shift(uint32_t table[4][256], uint32_t crc)
{
    return table[0][crc & 0xFF] ^ table[1][(crc >> 8) & 0xFF] ^ table[2][(crc >> 16) & 0xFF] ^
           table[3][crc >> 24];
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#if defined(__clang__) /* for clang the instruction is a feature of its own, which a target may exclude */
#define WITH_CRC32 ",crc32"
#else
#define WITH_CRC32 ""
#endif
#define HARDWARE __attribute__((target("sse4.2" WITH_CRC32)))
#define HARDWARE_NAME "sse4.2"
#define STEP8(crc, v) ((uint32_t)_mm_crc32_u64((crc), (v)))
#define STEP1(crc, b) _mm_crc32_u8((crc), (b))

/* CPUID is asked here: __builtin_cpu_supports needs a runtime that not every compiler links. */
static int hardware_present(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_2) != 0;
}
#else
#include <arm_acle.h>
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#define HARDWARE __attribute__((target("+crc")))
#define HARDWARE_NAME "armv8"
#define STEP8(crc, v) __crc32cd((crc), (v))
#define STEP1(crc, b) __crc32cb((crc), (b))

static int hardware_present(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}
#endif

/* Blocks are multiples of 64. The processor's own prefetching loses the thread at every jump between
 * streams, so each cache line of the next round is asked for as its counterpart is read; a prefetch
 * past the end of the data is no access. */
#define THREE_STREAMS(block, table)                                        \
    while (size >= 3 * (size_t)(block)) {                                  \
        uint32_t second = 0, third = 0;                                    \
        for (const uint8_t *stop = p + (block); p < stop;) {               \
            __builtin_prefetch(p + 3 * (size_t)(block));                   \
            __builtin_prefetch(p + 4 * (size_t)(block));                   \
            __builtin_prefetch(p + 5 * (size_t)(block));                   \
            for (const uint8_t *line = p + 64; p < line; p += 8) {         \
                crc = STEP8(crc, load_le64(p));                            \
                second = STEP8(second, load_le64(p + (block)));            \
                third = STEP8(third, load_le64(p + 2 * (size_t)(block)));  \
            }                                                              \
        }                                                                  \
        crc = shift(table, shift(table, crc) ^ second) ^ third;            \
        p += 2 * (size_t)(block);                                          \
        size -= 3 * (size_t)(block);                                       \
    }

HARDWARE static uint32_t crc32c_hardware(uint32_t crc, const uint8_t *p, size_t size)
{
    crc = ~crc;
    THREE_STREAMS(LONG_BLOCK, long_shift)
    THREE_STREAMS(SHORT_BLOCK, short_shift)
    for (; size >= 8; size -= 8, p += 8)
        crc = STEP8(crc, load_le64(p));
    for (; size > 0; size--)
        crc = STEP1(crc, *p++);
    return ~crc;
}
#endif

#if defined(__x86_64__)
#define FOLDING __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2" WITH_CRC32)))
#define FOLDED 256u /* bytes a round: four registers */
/* Bytes that are asked for ahead: the processor's own prefetching stops at the end of each page, and
 * the pages of a file lie anywhere. Past the end of the data it is no access. */
#define AHEAD 8192u

/* Two factors a distance, for the lower and the upper half of 128 bits. The register of a product of
 * two reflected halves reads one power of x too high, and a factor of 32 bits in a half 32 too high. */
struct factors {
    uint64_t low, high;
};
static struct factors over_2048, over_512, over_128;

static uint32_t power(unsigned n) /* x^n */
{
    uint32_t result = 1u << 31, square = 1u << 30;
    for (; n; n >>= 1, square = multiply(square, square))
        if (n & 1)
            result = multiply(result, square);
    return result;
}

static struct factors factors_over(unsigned bits)
{
    return (struct factors){power(bits + 64 - 33), power(bits - 33)};
}

static void fill_factors(void)
{
    over_2048 = factors_over(2048);
    over_512 = factors_over(512);
    over_128 = factors_over(128);
}

#define ZMM_STATE 0xE6u /* in XCR0: the system saves the XMM, YMM, ZMM and mask registers */

static int folding_present(void)
{
    unsigned a, b, c, d, state;
    const unsigned wanted = bit_SSE4_2 | bit_PCLMUL | bit_OSXSAVE;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & wanted) != wanted)
        return 0;
    __asm__("xgetbv" : "=a"(state), "=d"(d) : "c"(0));
    if ((state & ZMM_STATE) != ZMM_STATE || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    return (b & bit_AVX512F) != 0 && (c & bit_VPCLMULQDQ) != 0;
}

FOLDING static inline __m512i spread(const struct factors *by)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)by));
}

FOLDING static inline __m512i fold(__m512i onto, __m512i from, __m512i by)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(from, by, 0x00),
                                     _mm512_clmulepi64_epi128(from, by, 0x11), onto, 0x96);
}

FOLDING static inline __m128i fold_lane(__m128i onto, __m128i from, __m128i by)
{
    return _mm_xor_si128(onto, _mm_xor_si128(_mm_clmulepi64_si128(from, by, 0x00),
                                             _mm_clmulepi64_si128(from, by, 0x11)));
}

FOLDING static uint32_t crc32c_folding(uint32_t crc, const uint8_t *p, size_t size)
{
    if (size < 128)
        return crc32c_hardware(crc, p, size);
    __m512i d = _mm512_xor_si512(
        _mm512_loadu_si512(p),
        _mm512_inserti32x4(_mm512_setzero_si512(), _mm_cvtsi32_si128((int)~crc), 0));
    __m512i by_512 = spread(&over_512);
    if (size >= 2 * FOLDED) {
        __m512i by_2048 = spread(&over_2048);
        __m512i a = d;
        __m512i b = _mm512_loadu_si512(p + 64);
        __m512i c = _mm512_loadu_si512(p + 128);
        d = _mm512_loadu_si512(p + 192);
        for (p += FOLDED, size -= FOLDED; size >= FOLDED; p += FOLDED, size -= FOLDED) {
            __builtin_prefetch(p + AHEAD);
            __builtin_prefetch(p + AHEAD + 64);
            __builtin_prefetch(p + AHEAD + 128);
            __builtin_prefetch(p + AHEAD + 192);
            a = fold(_mm512_loadu_si512(p), a, by_2048);
            b = fold(_mm512_loadu_si512(p + 64), b, by_2048);
            c = fold(_mm512_loadu_si512(p + 128), c, by_2048);
            d = fold(_mm512_loadu_si512(p + 192), d, by_2048);
        }
        d = fold(d, fold(c, fold(b, a, by_512), by_512), by_512);
    } else {
        p += 64;
        size -= 64;
    }
    for (; size >= 64; p += 64, size -= 64)
        d = fold(_mm512_loadu_si512(p), d, by_512);
    __m128i by_128 = _mm_loadu_si128((const __m128i *)&over_128);
    __m128i last = _mm512_castsi512_si128(d);
    last = fold_lane(_mm512_extracti32x4_epi32(d, 1), last, by_128);
    last = fold_lane(_mm512_extracti32x4_epi32(d, 2), last, by_128);
    last = fold_lane(_mm512_extracti32x4_epi32(d, 3), last, by_128);
    /* 128 bits that are congruent to all before them: the instruction takes them to 32. */
    uint64_t state = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(last));
    state = _mm_crc32_u64(state, (uint64_t)_mm_extract_epi64(last, 1));
    _mm256_zeroupper(); /* SSE code is slow while the upper halves are in use */
    return crc32c_hardware(~(uint32_t)state, p, size);
}
#endif

static int always_present(void)
{
    return 1;
}

static const struct {
    const char *name;
    uint32_t (*crc32c)(uint32_t, const uint8_t *, size_t);
    int (*present)(void);
} backends[] = { /* the best first */
#if defined(__x86_64__)
    {"vpclmulqdq", crc32c_folding, folding_present},
#endif
#if defined(__x86_64__) || defined(__aarch64__)
    {HARDWARE_NAME, crc32c_hardware, hardware_present},
#endif
    {"software", eoslog_crc32c_software, always_present},
};
static size_t chosen;

__attribute__((constructor)) static void choose(void)
{
    const size_t count = sizeof backends / sizeof *backends;
    const char *wanted = getenv("EOSLOG_CRC32C");
    fill_slices();
    fill_squares();
#if defined(__x86_64__) || defined(__aarch64__)
    fill_shift(long_shift, LONG_BLOCK);
    fill_shift(short_shift, SHORT_BLOCK);
#endif
#if defined(__x86_64__)
    fill_factors();
#endif
    while (!backends[chosen].present())
        chosen++;
    for (size_t i = chosen; wanted && i < count; i++)
        if (strcmp(wanted, backends[i].name) == 0 && backends[i].present())
            chosen = i;
}

uint32_t eoslog_crc32c(uint32_t crc, const uint8_t *data, size_t size)
{
    return backends[chosen].crc32c(crc, data, size);
}

const char *eoslog_crc32c_backend(void)
{
    return backends[chosen].name;
}
