# Compression of a batch's records. The codecs are Python libraries, which the layer above binds with
# `set_codecs`.

cdef tuple CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
cdef object _compress = None
cdef object _decompress = None


def set_codecs(compress, decompress):
    """Bind `compress(name, data, level) -> bytes` and `decompress(name, data, room=...) -> buffer`.

    `room(size)` returns writable memory, and `decompress` may return a view of that memory.
    """
    global _compress, _decompress
    _compress = compress
    _decompress = decompress


cdef int codec_id(str name) except -1:
    """Return the codec's id in a batch's attributes."""
    if name not in CODECS:
        raise errors.ConfigError(f"compression type {name!r} is none of {', '.join(CODECS)}")
    return CODECS.index(name)


cdef bytes compress_records(int codec, const uint8_t* data, size_t size, object level):
    cdef bytes plain = PyBytes_FromStringAndSize(<const char*>data, <Py_ssize_t>size)
    if _compress is None:
        raise errors.IllegalState("no codecs are bound: import eoslog.storage.format.codecs")
    return _compress(CODECS[codec], plain, level)


cdef object decompress_records(int codec, object data):
    if _decompress is None:
        raise errors.IllegalState("no codecs are bound: import eoslog.storage.format.codecs")
    return _decompress(CODECS[codec], data, room=writable_memory)
