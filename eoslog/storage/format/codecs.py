"""Compression of record batches: Kafka's four codecs in Kafka's framing.

| codec | framing written | read |
|---|---|---|
| gzip | one RFC 1952 member | any number of members |
| snappy | xerial: magic, version 1, then blocks of [i32 size][raw snappy] | the same, and raw |
| lz4 | one LZ4 frame, independent blocks of 64 KiB, no checksums, no content size | one frame |
| zstd | one frame | any number of frames |

Kafka's Java clients ignore some bytes after a payload, and so does this module. After gzip it
ignores bytes that do not begin with a member's header, after snappy fewer than 4 (a block's size),
after lz4 all, after zstd an incomplete frame without output. Other bytes are corrupt.

Output is bounded: a payload that decompresses to more than `limit` bytes is corrupt, and no more
than that is allocated. Importing this module binds the codecs to the compiled core.

If the reader provides memory, common frames of lz4 and zstd are decompressed directly into it,
because allocating memory for each batch costs more than decompressing lz4. For uncommon or damaged
frames, the library's own frame reader is used, which also reports what is wrong.

Thread-safe. gzip has no dependencies; the other codecs need the extra `codecs`.
"""

from __future__ import annotations

import functools
import importlib
import struct
import threading
import zlib
from collections.abc import Callable
from typing import Any, cast

from eoslog import _core
from eoslog._util.extras import to_install
from eoslog.config.keys import CODECS, check_codec_level
from eoslog.errors import ConfigError, CorruptRecord, RecordTooLarge

__all__ = ["CODECS", "MAX_DECOMPRESSED", "compress", "decompress", "require"]

MAX_DECOMPRESSED: int = _core.MAX_DECOMPRESSED

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 << 10
_GZIP_WINDOW = 31  # 15 bits and a gzip wrapper
_GZIP_HEADER = 10  # bytes, without the fields that the flags announce
_GZIP_LEAST = 19  # smallest member in bytes
_GZIP_MAGIC = b"\x1f\x8b\x08"  # and the method, deflate
_GZIP_HEADER_CRC, _GZIP_EXTRA, _GZIP_NAME, _GZIP_COMMENT = 2, 4, 8, 16
_LZ4_FAST_LEVEL = 9  # Kafka's default level, which means the fast compressor
_LZ4_USUAL = bytes.fromhex("04224d18604082")  # header of frames with the options of the table
_LZ4_BLOCK = 64 << 10
_LZ4_PLAIN = 1 << 31  # flag in the size of a block that is not compressed
_ZSTD_EXPANSION = 1 << 15  # at most: a block of 128 KiB from 4 bytes
_ZSTD_STEP = 64
_ZSTD_KIND = 6  # bits of a block's header
_ZSTD_RUN = 2  # a block of one repeated byte

_PACKAGES = {"snappy": "cramjam", "lz4": "lz4.frame", "zstd": "zstandard"}
_LZ4_SIZE = struct.Struct("<I").unpack_from
_local = threading.local()  # threads cannot share (de)compression contexts


def require(name: str) -> Any:
    """Return the library of a codec (None for `none` and `gzip`).

    Raises:
        ConfigError: if the codec is unknown, or its library is not installed.
    """
    if name not in CODECS:
        raise ConfigError(f"compression type must be one of {', '.join(CODECS)}, got {name!r}")
    package = _PACKAGES.get(name)
    if package is None:
        return None
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"compression type {name!r} needs the package {package.split('.')[0]!r}: "
            + to_install("codecs", package.split(".")[0])
        ) from error


def compress(name: str, data: bytes, level: int | None = None) -> bytes:
    """Compress `data` as the payload of a batch.

    Args:
        name: one of `CODECS`.
        data: encoded records.
        level: within `config.CODEC_LEVELS`; None: the codec's default.

    Raises:
        ConfigError: if the codec or level is unknown, or the library is missing.
        RecordTooLarge: if `decompress` would reject the result.
    """
    if name not in CODECS:
        raise ConfigError(f"compression type must be one of {', '.join(CODECS)}, got {name!r}")
    if level is not None:
        check_codec_level("level", name, level)
    if name != "none" and len(data) > MAX_DECOMPRESSED:
        raise RecordTooLarge(
            f"the records of a batch have {len(data)} bytes, and at most {MAX_DECOMPRESSED} can be "
            "compressed; send smaller batches, or do not compress them"
        )
    return _COMPRESS[name](data, level)


Room = Callable[[int], Any]
"""Returns a writable buffer of the given size, which is reused after its last view is dropped."""


def decompress(
    name: str, data: Any, limit: int = MAX_DECOMPRESSED, room: Room | None = None
) -> Any:
    """Decompress the payload of a batch, to bytes or a read-only view of memory from `room`.

    Args:
        name: one of `CODECS`.
        data: a contiguous buffer.
        limit: largest allowed output in bytes.
        room: provides memory, for codecs whose library can write into existing memory.

    Raises:
        CorruptRecord: if the payload is not of this codec, truncated, or larger than `limit`.
        ConfigError: if the codec is unknown, or the library is missing.
    """
    if name not in CODECS:
        raise ConfigError(f"compression type must be one of {', '.join(CODECS)}, got {name!r}")
    if room is not None and name in _INTO:
        found = _INTO[name](memoryview(data), limit, room)
        if found is not None:
            return found
    return _DECOMPRESS[name](data, limit)


def _too_large(name: str, limit: int) -> CorruptRecord:
    return CorruptRecord(f"{name} payload decompresses to more than {limit} bytes")


def _gzip(data: bytes, level: int | None) -> bytes:
    packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WINDOW)
    return packer.compress(data) + packer.flush()


def _gunzip(data: Any, limit: int) -> bytes:
    parts: list[bytes] = []
    left = limit
    rest: Any = bytes(data)
    while True:
        member = zlib.decompressobj(_GZIP_WINDOW)
        try:
            part = member.decompress(rest, left + 1)
        except zlib.error as error:
            raise CorruptRecord(f"gzip payload: {error}") from error
        left -= len(part)
        if left < 0:
            raise _too_large("gzip", limit)
        if not member.eof:
            raise CorruptRecord("gzip payload is truncated")
        parts.append(part)
        rest = member.unused_data
        if not _is_gzip_header(rest):
            return _joined(parts)


def _is_gzip_header(data: bytes) -> bool:
    """Whether another member follows, by the rules of Java's `GZIPInputStream`."""
    if len(data) < _GZIP_LEAST or data[:3] != _GZIP_MAGIC:
        return False
    flags, at = data[3], _GZIP_HEADER
    if flags & _GZIP_EXTRA:
        at += 2 + int.from_bytes(data[at : at + 2], "little")
    for flag in (_GZIP_NAME, _GZIP_COMMENT):
        if flags & flag:
            at = data.find(b"\0", at) + 1
            if at == 0:
                return False
    if flags & _GZIP_HEADER_CRC:
        stated = data[at : at + 2]
        if stated != (zlib.crc32(data[:at]) & 0xFFFF).to_bytes(2, "little"):
            return False
        at += 2
    return at <= len(data)


def _snappy(data: bytes, _level: int | None) -> bytes:
    pack = require("snappy").snappy.compress_raw
    view = memoryview(data)
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(pack(view[start : start + _XERIAL_BLOCK]))
        out += struct.pack(">i", len(block)) + block
    return bytes(out)


def _unsnappy(data: Any, limit: int) -> bytes:
    library = require("snappy")
    view = memoryview(data).cast("B")
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _unsnappy_block(library, view, limit, limit)
    parts: list[bytes] = []
    at, left = len(_XERIAL_HEADER), limit
    if len(view) < at:
        raise CorruptRecord("snappy payload ends within its header")
    while len(view) - at >= 4:
        if bytes(view[at : at + 4]) == _XERIAL_MAGIC[:4]:  # as a block's size it is negative
            if bytes(view[at : at + 8]) != _XERIAL_MAGIC or len(view) - at < len(_XERIAL_HEADER):
                raise CorruptRecord("snappy payload has an incomplete header after its blocks")
            at += len(_XERIAL_HEADER)
            continue
        (size,) = struct.unpack_from(">i", view, at)
        at += 4
        if size < 0 or size > len(view) - at:
            raise CorruptRecord(
                "snappy block is longer than the rest of the payload",
                expected=size,
                found=len(view) - at,
            )
        part = _unsnappy_block(library, view[at : at + size], left, limit)
        parts.append(part)
        left -= len(part)
        at += size
    if at < len(view) and not parts:
        raise CorruptRecord("snappy payload ends within the size of a block")
    return _joined(parts)


def _unsnappy_block(library: Any, block: memoryview, left: int, limit: int) -> bytes:
    size = shift = 0  # a raw block begins with its decompressed size as a varint
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise CorruptRecord("snappy block has no size")
    if size > left:
        raise _too_large("snappy", limit)
    try:
        part = bytes(library.snappy.decompress_raw(block))
    except Exception as error:  # the library's own error class
        raise CorruptRecord(f"snappy payload: {error}") from error
    if len(part) != size:
        raise CorruptRecord(
            "snappy block decompresses to a wrong size", expected=size, found=len(part)
        )
    return part


def _lz4(data: bytes, level: int | None) -> bytes:
    library = require("lz4")
    if level is None or level == _LZ4_FAST_LEVEL:
        level = 0
    return bytes(
        library.compress(
            data,
            compression_level=level,
            block_size=library.BLOCKSIZE_MAX64KB,
            block_linked=False,
            content_checksum=False,
            block_checksum=False,
            store_size=False,
        )
    )


def _unlz4(data: Any, limit: int) -> bytes:
    frame = require("lz4").LZ4FrameDecompressor()
    parts: list[bytes] = []
    left = limit + 1
    try:
        while left and not frame.eof and (not parts or (parts[-1] and not frame.needs_input)):
            # The library allocates the size that it may return: begin with a guess, then more.
            size = min(left, _guess(len(data), len(parts)))
            parts.append(frame.decompress(b"" if parts else bytes(data), max_length=size))
            left -= len(parts[-1])
    except (RuntimeError, ValueError) as error:
        raise CorruptRecord(f"lz4 payload: {error}") from error
    if not left:
        raise _too_large("lz4", limit)
    if not frame.eof:
        raise CorruptRecord("lz4 payload is truncated")
    return _joined(parts)


@functools.cache
def _lz4_block_reader() -> Callable[[memoryview, memoryview, int], int] | None:
    """Return a function that decompresses one block, or None if its library is missing."""
    try:
        from cramjam import lz4
    except ImportError:
        return None
    return cast("Callable[[memoryview, memoryview, int], int]", lz4.decompress_block_into)


def _unlz4_into(data: memoryview, limit: int, room: Room) -> Any:
    """Decompress a common frame; None for other frames and damaged ones."""
    unfold = _lz4_block_reader()
    if unfold is None or data[: len(_LZ4_USUAL)] != _LZ4_USUAL:
        return None
    blocks: list[tuple[int, int]] = []
    at = len(_LZ4_USUAL)
    while at + 4 <= len(data):
        (size,) = _LZ4_SIZE(data, at)
        at += 4
        if not size:
            break
        blocks.append((at, size))
        at += size & ~_LZ4_PLAIN
    else:
        return None
    if at != len(data) or not 0 < len(blocks) * _LZ4_BLOCK <= limit:
        return None
    memory = room(len(blocks) * _LZ4_BLOCK)
    target = memoryview(memory)
    end = 0
    try:
        for at, size in blocks:
            if size & _LZ4_PLAIN:
                size ^= _LZ4_PLAIN
                if size > _LZ4_BLOCK:
                    return None
                target[end : end + size] = data[at : at + size]
                end += size
            else:
                end += unfold(data[at : at + size], target[end : end + _LZ4_BLOCK], _LZ4_BLOCK)
    except Exception:  # the library's own error class
        return None
    return _used(target, end)


def _zstd(data: bytes, level: int | None) -> bytes:
    packers = _local.__dict__.setdefault("zstd_packers", {})
    packer = packers.get(level)
    if packer is None:
        library = require("zstd")
        packer = packers[level] = library.ZstdCompressor(level=3 if level is None else level)
    return bytes(packer.compress(data))


def _unzstd(data: Any, limit: int) -> bytes:
    library = require("zstd")
    unpacker = _zstd_unpacker(library)
    parts: list[bytes] = []
    left = limit
    rest: Any = bytes(data)
    while True:
        frame = unpacker.decompressobj()
        at, before = 0, left
        try:
            while not frame.eof and at < len(rest):
                # Limit the output of one call to about what is left.
                step = max(_ZSTD_STEP, left // _ZSTD_EXPANSION)
                part = frame.decompress(rest[at : at + step])
                at += step
                left -= len(part)
                if left < 0:
                    raise _too_large("zstd", limit)
                parts.append(part)
        except library.ZstdError as error:
            raise CorruptRecord(f"zstd payload: {error}") from error
        if not frame.eof:
            if len(rest) < len(data) and left == before:
                return _joined(parts)
            raise CorruptRecord("zstd payload is truncated")
        rest = frame.unused_data + rest[at:]
        if not rest:
            return _joined(parts)


def _zstd_unpacker(library: Any) -> Any:
    """Return this thread's decompressor."""
    unpacker = _local.__dict__.get("zstd_unpacker")
    if unpacker is None:
        unpacker = _local.zstd_unpacker = library.ZstdDecompressor()
    return unpacker


def _unzstd_into(data: memoryview, limit: int, room: Room) -> Any:
    """Decompress a single frame that states its size; None for other frames and damaged ones."""
    library = require("zstd")
    try:
        frame = library.get_frame_parameters(data)
        if not 0 < frame.content_size <= min(limit, _guess(len(data), 0)):
            return None
        at, last = library.frame_header_size(data), 0
        while not last and at + 3 <= len(data):  # the library would accept an incomplete frame
            block = int.from_bytes(data[at : at + 3], "little")
            last = block & 1
            at += 3 + (1 if block & _ZSTD_KIND == _ZSTD_RUN else block >> 3)
        if not last or at + 4 * frame.has_checksum != len(data):
            return None
        target = memoryview(room(frame.content_size))
        with _zstd_unpacker(library).stream_reader(data) as reader:
            end = reader.readinto(target)
    except library.ZstdError:
        return None
    return _used(target, end) if end == frame.content_size else None


def _used(target: memoryview, end: int) -> Any:
    """Return the first bytes of memory from `room`, as a copy if less than half of it is used."""
    return target[:end].toreadonly() if end * 2 >= len(target) else bytes(target[:end])


def _guess(packed: int, tries: int) -> int:
    """Return the number of output bytes to allow in one call."""
    return (8 << 3 * tries) * packed + (64 << 10)


def _joined(parts: list[bytes]) -> bytes:
    return parts[0] if len(parts) == 1 else b"".join(parts)


_COMPRESS: dict[str, Callable[[bytes, int | None], bytes]] = {
    "none": lambda data, _level: data,
    "gzip": _gzip,
    "snappy": _snappy,
    "lz4": _lz4,
    "zstd": _zstd,
}
_DECOMPRESS: dict[str, Callable[[Any, int], bytes]] = {
    "none": lambda data, _limit: bytes(data),
    "gzip": _gunzip,
    "snappy": _unsnappy,
    "lz4": _unlz4,
    "zstd": _unzstd,
}

_INTO: dict[str, Callable[[memoryview, int, Room], Any]] = {
    "lz4": _unlz4_into,
    "zstd": _unzstd_into,
}

_core.set_codecs(compress, decompress)
