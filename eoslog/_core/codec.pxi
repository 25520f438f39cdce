# Compression of a batch's records. The codecs are Python libraries, bound from above by set_codecs:
# the core calls them and knows none of them.

cdef tuple CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
cdef object _compress = None
cdef object _decompress = None


def set_codecs(compress, decompress):
    """Bind `compress(name, data, level) -> bytes` and `decompress(name, data, room=...) -> buffer`.

    `room(size)` gives writable memory; a view of it may be what `decompress` returns.
    """
    global _compress, _decompress
    _compress = compress
    _decompress = decompress


cdef int codec_id(str name) except -1:
    """The id in a batch's attributes."""
    if name not in CODECS:
        raise errors.ConfigError(f"compression type {name!r} is none of {', '.join(CODECS)}")
    return CODECS.index(name)


cdef bytes compress_records(int codec, const uint8_t* data, size_t size, object level):
    cdef bytes plain = PyBytes_FromStringAndSize(<const char*>data, <Py_ssize_t>size)
    if _compress is None:
        raise errors.IllegalState("no codecs are bound: import eoslog.storage.codecs")
    return _compress(CODECS[codec], plain, level)


cdef object decompress_records(int codec, object data):
    if _decompress is None:
        raise errors.IllegalState("no codecs are bound: import eoslog.storage.codecs")
    return _decompress(CODECS[codec], data, room=writable_memory)
