# The keys and values of many records: objects in a list, or Arrow buffers by address.

from cpython.ref cimport PyObject

cdef extern from "Python.h" nogil:
    bint is_bytes "PyBytes_CheckExact"(PyObject* item)
    char* bytes_data "PyBytes_AS_STRING"(PyObject* item)
    Py_ssize_t bytes_size "PyBytes_GET_SIZE"(PyObject* item)
    PyObject* NONE "Py_None"

cdef extern from "Python.h":
    PyObject** PySequence_Fast_ITEMS(object sequence)

cdef struct Column:
    const uint8_t* validity     # one bit per row; NULL: every row has a value
    const uint8_t* offsets      # count + 1 of 4 or 8 bytes; NULL for a column of fixed width
    const uint8_t* data
    int64_t data_size
    int64_t first               # row of the arrays at which the column begins
    bint wide                   # offsets of 8 bytes


cdef inline bint has_value(const Column* column, int64_t row) noexcept nogil:
    row += column.first
    return column.validity == NULL or column.validity[row >> 3] >> (row & 7) & 1


cdef inline int value_at(const Column* column, int64_t row, Span* span) noexcept nogil:
    """Get the bytes of a row. Returns -1 if its offsets are outside of the data."""
    cdef int64_t start, end
    cdef int32_t narrow[2]
    cdef int64_t wide[2]
    if not has_value(column, row):
        span.data = NULL
        span.size = 0
        return 0
    row += column.first
    if column.wide:
        memcpy(wide, column.offsets + 8 * row, 16)
        start, end = wide[0], wide[1]
    else:
        memcpy(narrow, column.offsets + 4 * row, 8)
        start, end = narrow[0], narrow[1]
    if start < 0 or end < start or end > column.data_size:
        return -1
    span.data = column.data + start
    span.size = <Py_ssize_t>(end - start)
    return 0


cdef int take_column(object source, int64_t count, int width, Column* column) except -1:
    """Unpack (first row, validity, offsets, data, wide), with (address, size) or None for buffers, and
    check that the buffers have `count` rows. `width`: size of a value, 0 with offsets."""
    cdef int64_t size
    cdef size_t address
    first, validity, offsets, data, wide = source
    column.first = first
    column.wide = wide
    column.validity = column.offsets = column.data = NULL
    if first < 0:
        raise errors.CorruptRecord(f"Arrow column: first row {first}")
    count += column.first
    if validity is not None:
        address, size = validity
        if size < (count + 7) // 8:
            raise errors.CorruptRecord(f"Arrow column: {size} bytes of validity for {count} rows")
        column.validity = <const uint8_t*>address
    if data is not None:
        address, size = data
        column.data = <const uint8_t*>address
        column.data_size = size
    if column.data == NULL:
        column.data = &EMPTY_BYTES
        column.data_size = 0
    if width:
        if column.data_size < count * width:
            raise errors.CorruptRecord(f"Arrow column: {column.data_size} bytes for {count} rows of {width}")
        return 0
    if offsets is None:
        raise errors.CorruptRecord("Arrow column: no offsets")
    address, size = offsets
    if size < (count + 1) * (8 if wide else 4):
        raise errors.CorruptRecord(f"Arrow column: {size} bytes of offsets for {count} rows")
    column.offsets = <const uint8_t*>address
    return 0


cdef struct InCells:           # keys or values; neither objects nor a column: all null
    PyObject** objects          # bytes or None, or objects that this path does not support
    Column* column


cdef inline bint cell_at(const InCells* cells, Py_ssize_t row, Span* span) noexcept nogil:
    """Borrow the bytes of a row. Returns False if they need the GIL, or are invalid.

    Bytes objects are immutable, so that their content can be read without the GIL while they exist.
    """
    cdef PyObject* item
    if cells.objects != NULL:
        item = cells.objects[row]
        if is_bytes(item):
            span.data = <const uint8_t*>bytes_data(item)
            span.size = bytes_size(item)
            return True
        span.data = NULL
        span.size = 0
        return item == NONE
    if cells.column != NULL:
        return value_at(cells.column, row, span) == 0
    span.data = NULL
    span.size = 0
    return True


cdef struct InputColumns:             # the records of one call
    InCells values
    InCells keys
    Column* stamps              # int64 ms, null: now; NULL: now for all
    Column* places              # int32, null: to be chosen; NULL: to be chosen for all


cdef inline int64_t stamp_at(const InputColumns* source, int64_t row, int64_t now) noexcept nogil:
    cdef int64_t stamp = now
    if source.stamps != NULL and has_value(source.stamps, row):
        memcpy(&stamp, source.stamps.data + 8 * (row + source.stamps.first), 8)
    return stamp


cdef inline int32_t place_at(const Column* places, int64_t row) noexcept nogil:
    cdef int32_t place
    memcpy(&place, places.data + 4 * (row + places.first), 4)
    return place
