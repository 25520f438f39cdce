"""Kafka's framing of snappy, lz4 and zstd for the reference codec.

It uses libraries that eoslog does not use. Snappy blocks are written as literals and read in pure
Python: the framing is under test.
"""

from __future__ import annotations

import struct

XERIAL = b"\x82SNAPPY\x00"
LITERAL_MAX = 1 << 15


def compress(codec: str, payload: bytes) -> bytes:
    """`payload` as a Kafka client may write it."""
    if codec == "snappy":
        out = XERIAL + struct.pack(">ii", 1, 1)
        for start in range(0, len(payload), LITERAL_MAX):
            block = snappy_literal(payload[start : start + LITERAL_MAX])
            out += struct.pack(">i", len(block)) + block
        return out
    if codec == "lz4":
        import lz4.frame

        return bytes(
            lz4.frame.compress(
                payload,
                block_linked=False,
                block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                store_size=False,
            )
        )
    if codec == "zstd":
        import zstandard

        return zstandard.ZstdCompressor().compress(payload)
    raise ValueError(codec)


def decompress(codec: str, payload: bytes) -> bytes:
    """The inverse."""
    if codec == "snappy":
        if not payload.startswith(XERIAL):
            return snappy_raw(payload)
        out, at = b"", 16
        while at < len(payload):
            (size,) = struct.unpack_from(">i", payload, at)
            if size < 0 or size > len(payload) - at - 4:
                raise ValueError(f"block of {size} bytes")
            out += snappy_raw(payload[at + 4 : at + 4 + size])
            at += 4 + size
        return out
    if codec == "lz4":
        import lz4.frame

        return bytes(lz4.frame.decompress(payload))
    if codec == "zstd":
        import zstandard

        return zstandard.ZstdDecompressor().decompressobj().decompress(payload)
    raise ValueError(codec)


def _uvarint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(0x80 | number & 0x7F)
        number >>= 7
    return bytes(out) + bytes([number])


def snappy_literal(data: bytes) -> bytes:
    """A legal raw snappy block that compresses nothing."""
    if not data:
        return b"\0"
    return _uvarint(len(data)) + bytes([61 << 2]) + struct.pack("<H", len(data) - 1) + data


def snappy_raw(data: bytes) -> bytes:
    """Decode one raw snappy block."""
    size = shift = at = 0
    while True:
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    out = bytearray()
    while at < len(data):
        tag = data[at]
        at += 1
        if tag & 3 == 0:
            length = (tag >> 2) + 1
            if length > 60:
                extra = length - 60
                length = int.from_bytes(data[at : at + extra], "little") + 1
                at += extra
            out += data[at : at + length]
            at += length
            continue
        if tag & 3 == 1:
            length, distance = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | data[at]
            at += 1
        else:
            width = 2 if tag & 3 == 2 else 4
            length, distance = (tag >> 2) + 1, int.from_bytes(data[at : at + width], "little")
            at += width
        if not 0 < distance <= len(out):
            raise ValueError(f"copy from {distance} bytes back of {len(out)}")
        for _ in range(length):
            out.append(out[-distance])
    if len(out) != size:
        raise ValueError(f"{len(out)} bytes instead of {size}")
    return bytes(out)
