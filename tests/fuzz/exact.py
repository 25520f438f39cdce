"""Buffers that end exactly at their last byte.

A Python `bytes` has a NUL after its last byte and its allocator rounds up, so a read past the end
is not noticed. Here it is a crash: under AddressSanitizer the memory is malloc'ed to the byte, without
it the bytes are directly before a page that must not be touched.
"""

from __future__ import annotations

import ctypes
import mmap
import os

_libc = ctypes.CDLL(None, use_errno=True)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

SANITIZED = "asan" in os.environ.get("LD_PRELOAD", "")
ROOM = 1 << 20
_PAGE = mmap.PAGESIZE
_region = mmap.mmap(-1, ROOM + _PAGE)
_base = ctypes.addressof(ctypes.c_char.from_buffer(_region))
if _libc.mprotect(_base + ROOM, _PAGE, 0) != 0:
    raise OSError(ctypes.get_errno(), "mprotect")
_last: list[int] = []


def exact(data: bytes) -> memoryview:
    """Return a writable copy of data with no byte after it, until the next call."""
    size = len(data)
    if size > ROOM:
        raise ValueError(f"{size} bytes, room for {ROOM}")
    if not SANITIZED or not size:
        address = _base + ROOM - size
    else:
        while _last:
            _libc.free(_last.pop())  # who still looks at it is reported
        address = _libc.malloc(size)
        _last.append(address)
    ctypes.memmove(address, data, size)
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
