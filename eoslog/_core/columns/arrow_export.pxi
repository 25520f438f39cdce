# Exporting columns through the Arrow C data interface: structs in PyCapsules, without any library.
#
# A field is (name, format, children, dictionary or None), a column (rows, nulls, buffers, offset,
# children, dictionary or None): `client/arrow/schema.py` makes both. Each struct owns what it points to by
# one Python object, its `private_data`, so that a consumer may take any part of it elsewhere.
#
# Source: Arrow C data interface, Arrow C stream interface, Arrow PyCapsule interface.
from cpython.exc cimport PyErr_CheckSignals
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EIO, ENOMEM
from libc.stdlib cimport calloc

cdef extern from "Python.h":
    bint Py_IsInitialized() nogil

cdef enum:
    ARROW_NULLABLE = 2

cdef struct ArrowSchema:
    const char* format
    const char* name
    const char* metadata
    int64_t flags
    int64_t n_children
    ArrowSchema** children
    ArrowSchema* dictionary
    void (*release)(ArrowSchema*) noexcept nogil
    void* private_data

cdef struct ArrowArray:
    int64_t length
    int64_t null_count
    int64_t offset
    int64_t n_buffers
    int64_t n_children
    const void** buffers
    ArrowArray** children
    ArrowArray* dictionary
    void (*release)(ArrowArray*) noexcept nogil
    void* private_data

cdef struct ArrowArrayStream:
    int (*get_schema)(ArrowArrayStream*, ArrowSchema*) noexcept nogil
    int (*get_next)(ArrowArrayStream*, ArrowArray*) noexcept nogil
    const char* (*get_last_error)(ArrowArrayStream*) noexcept nogil
    void (*release)(ArrowArrayStream*) noexcept nogil
    void* private_data

ctypedef fused ArrowStruct:
    ArrowSchema
    ArrowArray


@cython.final
@cython.internal
cdef class Exported:
    """The objects that one struct points to: its bytes, buffer addresses and child structs."""

    cdef tuple _kept
    cdef const void** pointers
    cdef void* below                    # the structs of the children, then that of the dictionary
    cdef void** children

    def __cinit__(self, kept, Py_ssize_t pointers, Py_ssize_t children, Py_ssize_t struct_size):
        cdef Py_ssize_t i
        self._kept = tuple(kept)
        self.pointers = <const void**>calloc(<size_t>pointers + 1, sizeof(void*))
        self.below = calloc(<size_t>children + 1, <size_t>struct_size)
        self.children = <void**>calloc(<size_t>children + 1, sizeof(void*))
        if self.pointers == NULL or self.below == NULL or self.children == NULL:
            raise MemoryError()
        for i in range(children):
            self.children[i] = <uint8_t*>self.below + i * struct_size

    def __dealloc__(self):
        free(<void*>self.pointers)
        free(self.below)
        free(self.children)


cdef void release_parts(ArrowStruct* part) noexcept with gil:
    """Release a struct, and the children that no consumer has moved out of it."""
    cdef int64_t i
    for i in range(part.n_children):
        if part.children[i].release != NULL:
            part.children[i].release(part.children[i])
    if part.dictionary != NULL and part.dictionary.release != NULL:
        part.dictionary.release(part.dictionary)
    Py_DECREF(<object>part.private_data)


cdef void release_schema(ArrowSchema* schema) noexcept nogil:
    # A consumer library may exit after the interpreter, when no objects are left to release.
    if Py_IsInitialized():
        release_parts(schema)
    schema.release = NULL


cdef void release_array(ArrowArray* array) noexcept nogil:
    if Py_IsInitialized():
        release_parts(array)
    array.release = NULL


cdef int fill_schema(ArrowSchema* schema, field) except -1:
    cdef Exported owned
    cdef Py_ssize_t i
    name, format, children, dictionary = field
    texts = (name.encode(), format.encode())
    owned = Exported(texts, 0, len(children), sizeof(ArrowSchema))
    memset(schema, 0, sizeof(ArrowSchema))
    schema.name = <const char*><bytes>texts[0]
    schema.format = <const char*><bytes>texts[1]
    schema.flags = ARROW_NULLABLE
    schema.n_children = len(children)
    schema.children = <ArrowSchema**>owned.children
    Py_INCREF(owned)
    schema.private_data = <void*>owned
    schema.release = release_schema
    try:
        for i, child in enumerate(children):
            fill_schema(schema.children[i], child)
        if dictionary is not None:
            schema.dictionary = <ArrowSchema*>owned.below + len(children)
            fill_schema(schema.dictionary, dictionary)
    except BaseException:
        schema.release(schema)
        raise
    return 0


cdef int fill_array(ArrowArray* array, column) except -1:
    cdef Exported owned
    cdef Pin pin
    cdef Py_ssize_t i
    rows, nulls, buffers, offset, children, dictionary = column
    pins = [None if buffer is None else Pin(buffer) for buffer in buffers]
    owned = Exported(pins, len(pins), len(children), sizeof(ArrowArray))
    for i, pin in enumerate(pins):
        if pin is not None:
            owned.pointers[i] = pin.data
    memset(array, 0, sizeof(ArrowArray))
    array.length = rows
    array.null_count = nulls
    array.offset = offset
    array.n_buffers = len(pins)
    array.buffers = owned.pointers
    array.n_children = len(children)
    array.children = <ArrowArray**>owned.children
    Py_INCREF(owned)
    array.private_data = <void*>owned
    array.release = release_array
    try:
        for i, child in enumerate(children):
            fill_array(array.children[i], child)
        if dictionary is not None:
            array.dictionary = <ArrowArray*>owned.below + len(children)
            fill_array(array.dictionary, dictionary)
    except BaseException:
        array.release(array)
        raise
    return 0


@cython.final
@cython.internal
cdef class Streamed:
    """The source of a stream: the schema, and a struct column for each batch."""

    cdef object field
    cdef object columns
    cdef bytes error
    cdef int broken                     # errno after an error, returned by all later calls; 0: none

    cdef int failed(self, error) noexcept:
        """Return an errno even after other errors: 0 would mean that the stream is complete."""
        cdef int code = ENOMEM if isinstance(error, MemoryError) else EIO
        self.error = b"an error without a text"
        try:
            self.error = f"{type(error).__name__}: {error}".encode("utf-8", "replace")
        except BaseException:
            pass                        # no memory, or an error that has no text
        return code


cdef int stream_schema(ArrowArrayStream* stream, ArrowSchema* schema) noexcept with gil:
    cdef Streamed streamed = <Streamed>stream.private_data
    memset(schema, 0, sizeof(ArrowSchema))
    try:
        fill_schema(schema, streamed.field)
        return 0
    except BaseException as error:
        return streamed.failed(error)


cdef int stream_next(ArrowArrayStream* stream, ArrowArray* array) noexcept with gil:
    cdef Streamed streamed = <Streamed>stream.private_data
    memset(array, 0, sizeof(ArrowArray))    # released: the end
    if streamed.broken:
        return streamed.broken
    try:
        PyErr_CheckSignals()                # an interrupt ends the stream, even for a consumer that is not Python
        column = next(streamed.columns, None)
        if column is not None:
            fill_array(array, column)
        return 0
    except BaseException as error:
        streamed.broken = streamed.failed(error)
        return streamed.broken


cdef const char* stream_error(ArrowArrayStream* stream) noexcept with gil:
    cdef Streamed streamed = <Streamed>stream.private_data
    if streamed.error is None:
        return NULL
    return <const char*>streamed.error


cdef void drop_stream(ArrowArrayStream* stream) noexcept with gil:
    Py_DECREF(<object>stream.private_data)


cdef void release_stream(ArrowArrayStream* stream) noexcept nogil:
    if Py_IsInitialized():
        drop_stream(stream)
    stream.release = NULL


cdef void drop_schema_capsule(object capsule) noexcept:
    cdef ArrowSchema* schema = <ArrowSchema*>PyCapsule_GetPointer(capsule, "arrow_schema")
    if schema.release != NULL:              # otherwise a consumer has moved it
        schema.release(schema)
    free(schema)


cdef void drop_array_capsule(object capsule) noexcept:
    cdef ArrowArray* array = <ArrowArray*>PyCapsule_GetPointer(capsule, "arrow_array")
    if array.release != NULL:
        array.release(array)
    free(array)


cdef void drop_stream_capsule(object capsule) noexcept:
    cdef ArrowArrayStream* stream = <ArrowArrayStream*>PyCapsule_GetPointer(capsule, "arrow_array_stream")
    if stream.release != NULL:
        stream.release(stream)
    free(stream)


def arrow_schema(field):
    """Return a field as the capsule for `__arrow_c_schema__`."""
    cdef ArrowSchema* schema = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
    if schema == NULL:
        raise MemoryError()
    capsule = PyCapsule_New(schema, "arrow_schema", drop_schema_capsule)
    fill_schema(schema, field)
    return capsule


def arrow_array(column):
    """Return a column as the second capsule for `__arrow_c_array__`, without copying buffers."""
    cdef ArrowArray* array = <ArrowArray*>calloc(1, sizeof(ArrowArray))
    if array == NULL:
        raise MemoryError()
    capsule = PyCapsule_New(array, "arrow_array", drop_array_capsule)
    fill_array(array, column)
    return capsule


def arrow_stream(field, columns):
    """Return struct columns, one per batch, as the capsule for `__arrow_c_stream__`.

    Args:
        field: the struct.
        columns: an iterator; an exception ends the stream, and its type and message become the error.
    """
    cdef Streamed streamed = Streamed()
    cdef ArrowArrayStream* stream = <ArrowArrayStream*>calloc(1, sizeof(ArrowArrayStream))
    if stream == NULL:
        raise MemoryError()
    capsule = PyCapsule_New(stream, "arrow_array_stream", drop_stream_capsule)
    streamed.field = field
    streamed.columns = columns
    stream.get_schema = stream_schema
    stream.get_next = stream_next
    stream.get_last_error = stream_error
    stream.release = release_stream
    Py_INCREF(streamed)
    stream.private_data = <void*>streamed
    return capsule
