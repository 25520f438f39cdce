# Reading Kafka's primitive encodings, of which coordinator and metadata records are made. What writes them,
# and the table of encodings: storage/format/serde.py.

@cython.final
cdef class Reader:
    """Reads one record; every read is bounded by the data, and short data is CorruptRecord."""

    cdef bytes data
    cdef const uint8_t* start
    cdef Py_ssize_t at, end

    def __init__(self, data):
        self.data = data if type(data) is bytes else bytes(data)
        self.start = <const uint8_t*>PyBytes_AS_STRING(self.data)
        self.at = 0
        self.end = PyBytes_GET_SIZE(self.data)

    @property
    def position(self):
        """Bytes read so far."""
        return self.at

    @property
    def remaining(self):
        """Bytes not read yet."""
        return self.end - self.at

    cdef const uint8_t* take(self, int64_t size) except NULL:
        if size < 0 or size > self.end - self.at:
            raise errors.CorruptRecord(
                f"field has {size} bytes, but {self.end - self.at} are left", position=self.at)
        cdef const uint8_t* found = self.start + self.at
        self.at += size
        return found

    cdef object text(self, int64_t size):
        cdef const uint8_t* found = self.take(size)
        try:
            return PyUnicode_DecodeUTF8(<const char*>found, <Py_ssize_t>size, NULL)
        except UnicodeDecodeError as error:
            raise errors.CorruptRecord(f"string is not UTF-8: {error}", position=self.at) from None

    cdef object present(self, value):
        if value is None:
            raise errors.CorruptRecord("null where a value is required", position=self.at)
        return value

    cdef int64_t counted(self, int64_t count) except -2:
        # Every element takes at least a byte, so a larger count is a lie that would cost memory.
        if count < -1 or count > self.end - self.at:
            raise errors.CorruptRecord(
                f"array has {count} elements, but {self.end - self.at} bytes are left", position=self.at)
        return count

    cpdef bytes raw(self, int64_t size):
        """The next `size` bytes as they are."""
        cdef const uint8_t* found = self.take(size)
        return PyBytes_FromStringAndSize(<const char*>found, <Py_ssize_t>size)

    def unpack(self, form):
        """The next fields, by one format for all of them."""
        cdef Py_ssize_t start = self.at, size = form.size
        if size > self.end - start:
            raise errors.CorruptRecord(
                f"fields have {size} bytes, but {self.end - start} are left", position=start)
        self.at = start + size
        return form.unpack_from(self.data, start)

    def i8(self):
        """A signed byte."""
        return <int8_t>self.take(1)[0]

    cpdef int16_t i16(self) except? -1:
        """A signed 16-bit integer."""
        return load_i16(self.take(2))

    cpdef int32_t i32(self) except? -1:
        """A signed 32-bit integer."""
        return load_i32(self.take(4))

    def i64(self):
        """A signed 64-bit integer."""
        return load_i64(self.take(8))

    def boolean(self):
        """One byte, anything but 0 is true."""
        return self.take(1)[0] != 0

    cpdef int64_t uvarint(self) except -1:
        """An unsigned 32-bit integer of 1 to 5 bytes."""
        cdef uint64_t value = 0
        cdef uint8_t byte
        cdef int shift
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= <uint64_t>(byte & 0x7F) << shift
            if byte < 0x80:
                if value > <uint64_t>0xFFFFFFFF:
                    break
                return <int64_t>value
        raise errors.CorruptRecord("uvarint has more than 32 bits", position=self.at)

    cpdef nullable_string(self):
        """A classic string or null."""
        cdef int16_t size = self.i16()
        return None if size == -1 else self.text(size)

    def string(self):
        """A classic string."""
        return self.present(self.nullable_string())

    cpdef nullable_bytes(self):
        """Classic bytes or null."""
        cdef int32_t size = self.i32()
        return None if size == -1 else self.raw(size)

    def bytes_(self):
        """Classic bytes."""
        return self.present(self.nullable_bytes())

    def uuid(self):
        """Sixteen bytes."""
        return self.raw(16)

    cpdef compact_nullable_bytes(self):
        """Flexible bytes or null."""
        cdef int64_t size = self.uvarint()
        return None if size == 0 else self.raw(size - 1)

    def compact_bytes(self):
        """Flexible bytes."""
        return self.present(self.compact_nullable_bytes())

    cpdef compact_nullable_string(self):
        """A flexible string or null."""
        cdef int64_t size = self.uvarint()
        return None if size == 0 else self.text(size - 1)

    def compact_string(self):
        """A flexible string."""
        return self.present(self.compact_nullable_string())

    def array(self):
        """The count that opens a classic array, -1 for null."""
        return self.counted(self.i32())

    def compact_array(self):
        """The count that opens a flexible array, -1 for null."""
        return self.counted(self.uvarint() - 1)

    def tagged(self):
        """The tagged fields that close a flexible structure."""
        cdef int64_t last = -1, tag
        cdef dict fields = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            if tag <= last:
                raise errors.CorruptRecord(
                    f"tag {tag} follows tag {last}; tags must rise", position=self.at)
            last = tag
            fields[tag] = self.raw(self.uvarint())
        return fields
