"""Committed offsets as records of `__consumer_offsets`.

    key    i16 version (0 or 1; 1 is written) | group str | topic str | partition i32
    value  i16 version | offset i64 | leader epoch i32 (3+) | metadata str
           | commit timestamp i64 (1+) | expire timestamp i64 (1 only)
           version 4: metadata compact, then tagged fields (tag 0: topic id)

A null value deletes the offset. Version 3 is written, or 1 if the offset has an expiry time.

Source: Kafka OffsetCommitKey/OffsetCommitValue, KIP-211, KIP-320.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from eoslog.errors import CorruptRecord
from eoslog.model import OffsetAndMetadata, TopicPartition
from eoslog.storage.format.serde import Reader, Writer

KEY_VERSIONS = (0, 1)
NO_EXPIRY = -1
# The highest value version of the layout above; later versions only add tagged fields.
NEWEST_VALUE_VERSION = 4


_V3_HEAD = struct.Struct(">hqih")
_I64 = struct.Struct(">q")


class OffsetKey(NamedTuple):
    """The group and partition of a committed offset."""

    group_id: str
    topic: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition without the group."""
        return TopicPartition(self.topic, self.partition)


class OffsetValue(NamedTuple):
    """A committed offset as stored; times in ms, or -1."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int = -1
    expire_timestamp: int = NO_EXPIRY

    def public(self) -> OffsetAndMetadata:
        """The part that public calls return."""
        return OffsetAndMetadata(self.offset, self.leader_epoch, self.metadata)


def _utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptRecord(f"committed offset: its metadata is not UTF-8: {error}") from None


def encode_offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """Encode the key of a group's offset in a partition."""
    group, name = group_id.encode(), topic.encode()
    form = f">hh{len(group)}sh{len(name)}si"
    return struct.pack(form, 1, len(group), group, len(name), name, partition)


def decode_offset_key(reader: Reader) -> OffsetKey:
    """Decode the rest of a key after its version."""
    return OffsetKey(reader.string(), reader.string(), reader.i32())


def encode_offset_value(value: OffsetValue) -> bytes:
    """Encode a value, in version 3, or 1 if the offset has its own expiry time."""
    if value.expire_timestamp != NO_EXPIRY:
        writer = Writer().i16(1).i64(value.offset).string(value.metadata)
        return writer.i64(value.commit_timestamp).i64(value.expire_timestamp).take()
    text = value.metadata.encode()
    head = _V3_HEAD.pack(3, value.offset, value.leader_epoch, len(text))
    return head + text + _I64.pack(value.commit_timestamp)


def decode_offset_value(data: bytes) -> OffsetValue:
    """Decode a value of any version from 0 to 4.

    Raises:
        CorruptRecord: if the bytes are too short, or the version is unknown.
    """
    if data[:2] == b"\x00\x03" and len(data) >= _V3_HEAD.size + 8:
        # The fast path for almost every record of the topic, because a fold reads them all.
        _, offset, leader_epoch, size = _V3_HEAD.unpack_from(data)
        if len(data) == _V3_HEAD.size + size + 8 and size >= 0:
            text = _utf8(data[_V3_HEAD.size : _V3_HEAD.size + size]) if size else ""
            return OffsetValue(offset, leader_epoch, text, _I64.unpack_from(data, len(data) - 8)[0])
    reader = Reader(data)
    version = reader.i16()
    if not 0 <= version <= NEWEST_VALUE_VERSION:
        raise CorruptRecord("committed offset: unknown version", expected="0 to 4", found=version)
    offset = reader.i64()
    leader_epoch = reader.i32() if version >= 3 else -1
    metadata = reader.compact_string() if version >= 4 else reader.string()
    commit_timestamp = reader.i64() if version >= 1 else -1
    expire_timestamp = reader.i64() if version == 1 else NO_EXPIRY
    if version >= 4:
        reader.tagged()
    return OffsetValue(offset, leader_epoch, metadata, commit_timestamp, expire_timestamp)
