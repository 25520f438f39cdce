# One binary column for Arrow, in memory that grows: either binary_view, with 16 bytes per row that point
# into the batch with the value
#
#     size i32 | up to 12 bytes, or: first 4 bytes | number of the data buffer i32 | byte in it i32
#
# or plain binary: an i32 where each row ends, and a copy of the bytes. All little-endian, as Arrow has
# it. Nulls are zero bits in a validity bitmap, written from the first null on.
from eoslog._core.format.bytebuffer cimport ByteBuffer, clear_buffer, put_bytes, reserve

cdef enum:
    VIEW_SIZE = 16
    INLINE_SIZE = 12            # values up to this size are in the view itself
    POOLED_FROM = 1 << 16       # bytes: the allocator caches smaller blocks itself
    POOLED_IDLE = 32 << 20      # bytes kept if no block is in use
    POOLED_BLOCKS = 64

cdef struct Cells:              # one binary column
    ByteBuffer slots            # views, or the int32 ends after a leading 0
    uint8_t* validity
    int64_t capacity            # rows
    int64_t nulls
    ByteBuffer copied           # plain binary only
    size_t expected             # bytes that the last column needed there, and some more
    bint view
    bint pointed                # a view points into the current block
    int32_t block               # number of the current data buffer
    const uint8_t* base         # its first byte


cdef inline int grow_array(ByteBuffer* array, int64_t size) noexcept nogil:
    cdef uint8_t* grown
    if <size_t>size <= array.capacity:
        return 0
    grown = <uint8_t*>realloc(array.data, <size_t>size)
    if grown == NULL:
        return -1
    array.data = grown
    array.capacity = <size_t>size
    return 0


cdef inline int64_t slots_size(Cells* cells, int64_t rows) noexcept nogil:
    return rows * VIEW_SIZE if cells.view else rows * 4 + 4


cdef inline int grow_cells(Cells* cells, int64_t capacity) noexcept nogil:
    cdef uint8_t* grown
    cdef int64_t bitmap = (capacity + 7) // 8
    cdef int64_t old = (cells.capacity + 7) // 8
    if capacity <= cells.capacity:
        return 0
    if grow_array(&cells.slots, slots_size(cells, capacity)) < 0:
        return -1
    if not cells.view:
        memset(cells.slots.data, 0, 4)
    if cells.validity != NULL:
        grown = <uint8_t*>realloc(cells.validity, <size_t>bitmap)
        if grown == NULL:
            return -1
        memset(grown + old, 0xFF, <size_t>(bitmap - old))
        cells.validity = grown
    cells.capacity = capacity
    return 0


cdef inline int put_null(Cells* cells, int64_t row) noexcept nogil:
    cdef size_t bitmap = <size_t>((cells.capacity + 7) // 8)
    if cells.validity == NULL:
        cells.validity = <uint8_t*>malloc(bitmap)
        if cells.validity == NULL:
            return -1
        memset(cells.validity, 0xFF, bitmap)
    cells.validity[row >> 3] &= <uint8_t>~(1 << (row & 7))
    cells.nulls += 1
    return 0


cdef inline int put_cell(Cells* cells, int64_t row, const uint8_t* p, int32_t size) noexcept nogil:
    """Write one row, for which the caller has reserved memory. Returns -1 if a copy needs more and there is none."""
    cdef uint8_t* slot
    cdef uint32_t at
    cdef int32_t end
    if cells.view:
        slot = cells.slots.data + row * VIEW_SIZE
        if size > INLINE_SIZE:
            at = <uint32_t>(p - cells.base)
            memcpy(slot, &size, 4)
            memcpy(slot + 4, p, 4)
            memcpy(slot + 8, &cells.block, 4)
            memcpy(slot + 12, &at, 4)
            cells.pointed = True
            return 0
        memset(slot, 0, VIEW_SIZE)
        if size < 0:
            return put_null(cells, row)
        memcpy(slot, &size, 4)
        memcpy(slot + 4, p, <size_t>size)
        return 0
    if size > 0:
        if put_bytes(&cells.copied, p, <size_t>size) < 0:
            return -1
    elif size < 0 and put_null(cells, row) < 0:
        return -1
    end = <int32_t>cells.copied.size
    memcpy(cells.slots.data + (row + 1) * 4, &end, 4)
    return 0


cdef inline void revive_cells(Cells* cells, int64_t row, int64_t end) noexcept nogil:
    """Clear the nulls of rows that are removed again."""
    if cells.validity == NULL:
        return
    while row < end:
        if not cells.validity[row >> 3] >> (row & 7) & 1:
            cells.validity[row >> 3] |= <uint8_t>(1 << (row & 7))
            cells.nulls -= 1
        row += 1


cdef void clear_cells(Cells* cells) noexcept nogil:
    free(cells.validity)
    clear_buffer(&cells.slots)
    clear_buffer(&cells.copied)
    cells.validity = NULL
    cells.capacity = 0
    cells.nulls = 0
    cells.pointed = False


@cython.final
@cython.internal
@cython.no_gc
cdef class MemoryPool:
    """Returned memory blocks, for reuse. The GIL guards the pool.

    New memory costs a page fault and a cleared page per 4 KiB, which is more than writing to it costs.
    The pool keeps at most as many bytes as are in use, or POOLED_IDLE. It drops the oldest blocks first.
    """

    cdef uint8_t* blocks[POOLED_BLOCKS + 1]     # in the order they came back
    cdef size_t sizes[POOLED_BLOCKS + 1]
    cdef int count
    cdef size_t kept            # bytes of them all
    cdef size_t away            # bytes that are some ColumnMemory's

    cdef int lend(self, ByteBuffer* array, size_t size) except -1:
        """Give an empty array the smallest block that fits without much waste, if there is one."""
        cdef int i, found = -1
        for i in range(self.count):             # of one size, the last block is most likely in the cache
            if size <= self.sizes[i] <= 4 * size and (found < 0 or self.sizes[i] <= self.sizes[found]):
                found = i
        if found >= 0 and array.data == NULL:
            array.data = self.blocks[found]
            array.capacity = self.sizes[found]
            self.remove(found)
        return 0

    cdef void take_back(self, uint8_t* block, size_t size) noexcept:
        if size < POOLED_FROM:
            free(block)
            return
        self.blocks[self.count] = block
        self.sizes[self.count] = size
        self.count += 1
        self.kept += size
        while self.count > POOLED_BLOCKS or self.kept > max(self.away, <size_t>POOLED_IDLE):
            free(self.blocks[0])
            self.remove(0)

    cdef void remove(self, int i) noexcept:
        self.kept -= self.sizes[i]
        self.count -= 1
        while i < self.count:
            self.blocks[i] = self.blocks[i + 1]
            self.sizes[i] = self.sizes[i + 1]
            i += 1

    def __dealloc__(self):
        cdef int i
        for i in range(self.count):
            free(self.blocks[i])


# The pool of all columns, decompressed blocks and batches.
cdef MemoryPool BLOCKS = MemoryPool()


@cython.final
@cython.internal
@cython.no_gc
cdef class ColumnMemory:
    """C memory of an Arrow buffer; it returns to its pool with the buffer."""

    cdef uint8_t* data
    cdef Py_ssize_t size
    cdef size_t capacity
    cdef bint writable
    cdef MemoryPool pool        # safe to use in __dealloc__: without gc nothing clears it before

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, not self.writable, flags)

    def __dealloc__(self):
        if self.data != NULL:
            self.pool.away -= self.capacity
            self.pool.take_back(self.data, self.capacity)


cdef ColumnMemory own_array(ByteBuffer* array, int64_t size, MemoryPool pool):
    """Return the first bytes of an array, which gives up its memory."""
    cdef ColumnMemory memory = ColumnMemory.__new__(ColumnMemory)
    memory.pool = pool
    memory.data = array.data
    memory.capacity = array.capacity
    memory.size = size
    pool.away += array.capacity
    array.data = NULL
    array.size = array.capacity = 0
    return memory


def writable_memory(int64_t size):
    """Return an uninitialized buffer of `size` bytes, reused after its last view is dropped."""
    cdef ColumnMemory memory
    cdef ByteBuffer block = ByteBuffer(NULL, 0, 0)
    cdef size_t rounded = <size_t>(size + POOLED_FROM - 1) // POOLED_FROM * POOLED_FROM
    BLOCKS.lend(&block, rounded)
    if block.data == NULL and reserve(&block, rounded) < 0:
        raise MemoryError()
    memory = own_array(&block, size, BLOCKS)
    memory.writable = True
    return memory


cdef object hand_over(ByteBuffer* array, int64_t size, MemoryPool pool):
    """Wrap the first bytes of an array, which gives up its memory; None for an empty array."""
    cdef uint8_t* fitted
    if array.data == NULL:
        return None
    if <size_t>size < array.capacity // 2:          # copy instead of keeping much unused memory
        fitted = <uint8_t*>realloc(array.data, <size_t>max(size, 1))
        if fitted != NULL:
            array.data = fitted
            array.capacity = <size_t>max(size, 1)
    return own_array(array, size, pool)


cdef tuple hand_over_cells(Cells* cells, int64_t rows, MemoryPool pool):
    """Return (validity or None, count of nulls, slots, copied bytes), the parts of an Arrow column."""
    cdef ByteBuffer bitmap
    if grow_cells(cells, 1) < 0:            # a column without rows still has its leading 0
        raise MemoryError()
    nulls = cells.nulls
    slots = hand_over(&cells.slots, slots_size(cells, rows), pool)
    bitmap = ByteBuffer(cells.validity, 0, <size_t>((cells.capacity + 7) // 8))
    cells.validity = NULL
    validity = hand_over(&bitmap, (rows + 7) // 8, pool)
    copied = None
    if not cells.view:
        cells.expected = cells.copied.size + cells.copied.size // 8
        copied = hand_over(&cells.copied, <int64_t>cells.copied.size, pool) or b""
    clear_cells(cells)
    return validity if nulls else None, nulls, slots, copied


cdef bint is_utf8(const uint8_t* p, int32_t size) noexcept nogil:
    """Whether the bytes are UTF-8 according to RFC 3629: shortest form, no surrogates."""
    cdef const uint8_t* end = p + size
    cdef int more
    cdef uint8_t low, high
    while p < end:
        if p[0] < 0x80:
            p += 1
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= p[0] <= 0xDF:
            more = 1
        elif 0xE0 <= p[0] <= 0xEF:
            more = 2
            if p[0] == 0xE0:
                low = 0xA0
            elif p[0] == 0xED:
                high = 0x9F
        elif 0xF0 <= p[0] <= 0xF4:
            more = 3
            if p[0] == 0xF0:
                low = 0x90
            elif p[0] == 0xF4:
                high = 0x8F
        else:
            return False
        if end - p <= more or p[1] < low or p[1] > high:
            return False
        p += 2
        more -= 1
        while more > 0:
            if p[0] & 0xC0 != 0x80:
                return False
            p += 1
            more -= 1
    return True


cdef int put_replaced(Cells* cells, int64_t row, const uint8_t* p, int32_t size) noexcept with gil:
    """Return a header key that is not UTF-8, with U+FFFD for malformed bytes, as in Kafka."""
    try:
        text = PyUnicode_DecodeUTF8(<const char*>p, size, "replace").encode()
        return put_cell(cells, row, <const uint8_t*><char*>text, <int32_t>len(text))
    except Exception:
        return -1


cdef int put_header_cells(Cells* keys, Cells* values, int64_t* rows, const uint8_t* p, const uint8_t* stop,
                          int32_t count) noexcept nogil:
    """Append a record's headers. Returns -1 if there is no memory."""
    cdef HeaderFields header
    cdef Fault fault
    cdef int64_t at
    for _ in range(count):
        p = parse_record_header(p, stop, &header, &fault)
        at = rows[0]
        if p == NULL:
            return -1
        if at == keys.capacity and grow_cells(keys, max(at * 2, 256)) < 0:
            return -1
        if at == values.capacity and grow_cells(values, max(at * 2, 256)) < 0:
            return -1
        if is_utf8(header.key, header.key_size):
            if put_cell(keys, at, header.key, header.key_size) < 0:
                return -1
        elif put_replaced(keys, at, header.key, header.key_size) < 0:
            return -1
        if put_cell(values, at, header.value, header.value_size) < 0:
            return -1
        rows[0] = at + 1
    return 0
