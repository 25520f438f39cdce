# The OS call table for Python. Only `storage/fs/files.py` calls these functions.

from cpython.bytearray cimport PyByteArray_FromStringAndSize

def os_open(str path, int flags, int mode=0o600):
    cdef bytes raw = path.encode("utf-8", "surrogateescape")
    cdef const char* p = raw
    cdef int fd
    with nogil:
        fd = eoslog_os.open(p, flags, mode)
    if fd < 0:
        raise OSError(errno, errno_text(errno), path)
    return fd


def os_pwrite(int fd, data, int64_t position):
    """Write all of `data`, continuing after a short write. An error may leave a prefix written."""
    cdef Py_buffer view
    cdef int rc
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            rc = eoslog_pwrite_all(fd, view.buf, <size_t>view.len, position)
        if rc < 0:
            raise OSError(errno, errno_text(errno))
    finally:
        PyBuffer_Release(&view)


cdef Py_ssize_t pread_most(int fd, char* p, Py_ssize_t size, int64_t position) except -1:
    """Read `size` bytes into memory, fewer at the end of the file. Returns the number of bytes."""
    cdef Py_ssize_t done = 0, n = 0
    with nogil:
        while done < size:
            n = eoslog_os.pread(fd, p + done, <size_t>(size - done), position + done)
            if n < 0 and errno == EINTR:
                continue
            if n <= 0:
                break
            done += n
    if n < 0:
        raise OSError(errno, errno_text(errno))
    return done


def os_pread(int fd, Py_ssize_t size, int64_t position):
    """Read up to size bytes; fewer at the end of the file."""
    # Not zeroed: for megabytes, zeroing costs as much as reading.
    cdef bytearray out = PyByteArray_FromStringAndSize(NULL, size)
    cdef Py_ssize_t done = pread_most(fd, out, size, position)
    if done < size:
        del out[done:]
    return out


def os_pread_into(int fd, buffer, int64_t position):
    """Fill a writable buffer. Returns the number of bytes, fewer at the end of the file."""
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        return pread_most(fd, <char*>view.buf, view.len, position)
    finally:
        PyBuffer_Release(&view)


def os_sync(int fd, *, bint data_only=True):
    cdef int rc
    with nogil:
        rc = eoslog_os.fdatasync(fd) if data_only else eoslog_os.fsync(fd)
    if rc < 0:
        raise OSError(errno, errno_text(errno))


def os_writeback(int fd, int64_t position, int64_t size):
    """Start writing a range of a file to the disk. Does not wait, and makes nothing durable."""
    cdef int rc
    with nogil:
        rc = eoslog_os.writeback(fd, position, size)
    if rc < 0 and errno not in (ENOSYS, EINVAL, ESPIPE, EOPNOTSUPP):
        raise OSError(errno, errno_text(errno))


def os_forget(int fd):
    """Drop a file from the page cache. Returns whether nothing stays that the disk may lack."""
    cdef int rc
    with nogil:
        rc = eoslog_os.forget(fd)
    if rc < 0:
        raise OSError(errno, errno_text(errno))
    return rc == 0


def os_truncate(int fd, int64_t size):
    cdef int rc
    with nogil:
        rc = eoslog_os.ftruncate(fd, size)
    if rc < 0:
        raise OSError(errno, errno_text(errno))


def os_rename(str source, str target):
    cdef bytes a = source.encode("utf-8", "surrogateescape"), b = target.encode("utf-8", "surrogateescape")
    if eoslog_os.rename(a, b) < 0:
        raise OSError(errno, errno_text(errno), source, None, target)


def os_unlink(str path):
    cdef bytes raw = path.encode("utf-8", "surrogateescape")
    cdef const char* name = raw
    cdef int rc
    with nogil:         # freeing the blocks of a large file may take a tenth of a second
        rc = eoslog_os.unlink(name)
    if rc < 0:
        raise OSError(errno, errno_text(errno), path)


def os_mkdir(str path, int mode):
    cdef bytes raw = path.encode("utf-8", "surrogateescape")
    if eoslog_os.mkdir(raw, mode) < 0:
        raise OSError(errno, errno_text(errno), path)


def os_rmdir(str path):
    cdef bytes raw = path.encode("utf-8", "surrogateescape")
    if eoslog_os.rmdir(raw) < 0:
        raise OSError(errno, errno_text(errno), path)


cdef errno_text(int code):
    import os
    return os.strerror(code)
