"""Committed offsets as records of `__consumer_offsets`.

    key    i16 version (0 or 1; 1 is written) | group str | topic str | partition i32
    value  i16 version | offset i64 | leader epoch i32 (3+) | metadata str
           | commit timestamp i64 (1+) | expire timestamp i64 (1 only)
           version 4: metadata compact, then tagged fields (tag 0: topic id)

A null value deletes the offset. Version 3 is written, 1 where an expiry was asked for.

Source: Kafka OffsetCommitKey/OffsetCommitValue, KIP-211, KIP-320.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from eoslog.errors import CorruptRecord
from eoslog.model import OffsetAndMetadata, TopicPartition
from eoslog.storage.serde import Reader, Writer

KEY_VERSIONS = (0, 1)
NO_EXPIRY = -1
# The greatest value version that the layout above covers; later ones only add tagged fields.
NEWEST_VALUE_VERSION = 4


_V3_HEAD = struct.Struct(">hqih")
_I64 = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """Whose offset it is."""

    group_id: str
    topic: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition without the group."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class OffsetValue:
    """A committed offset as stored; times in ms, -1 where there is none."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int = -1
    expire_timestamp: int = NO_EXPIRY

    def public(self) -> OffsetAndMetadata:
        """What a caller gets to see."""
        return OffsetAndMetadata(self.offset, self.leader_epoch, self.metadata)


def _utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptRecord(f"metadata of a committed offset is not UTF-8: {error}") from None


def encode_offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """The key of a group's offset in a partition."""
    return Writer().i16(1).string(group_id).string(topic).i32(partition).take()


def decode_offset_key(reader: Reader) -> OffsetKey:
    """The rest of a key whose version has been read."""
    return OffsetKey(reader.string(), reader.string(), reader.i32())


def encode_offset_value(value: OffsetValue) -> bytes:
    """Version 3, or 1 when the offset bears its own expiry."""
    writer = Writer()
    if value.expire_timestamp != NO_EXPIRY:
        writer.i16(1).i64(value.offset).string(value.metadata)
        return writer.i64(value.commit_timestamp).i64(value.expire_timestamp).take()
    writer.i16(3).i64(value.offset).i32(value.leader_epoch).string(value.metadata)
    return writer.i64(value.commit_timestamp).take()


def decode_offset_value(data: bytes) -> OffsetValue:
    """Any version from 0 to 4.

    Raises:
        CorruptRecord: the bytes are short, or the version is unknown.
    """
    if data[:2] == b"\x00\x03" and len(data) >= _V3_HEAD.size + 8:
        # What almost every record of the topic is, and a fold reads them all.
        _, offset, leader_epoch, size = _V3_HEAD.unpack_from(data)
        if len(data) == _V3_HEAD.size + size + 8 and size >= 0:
            text = _utf8(data[_V3_HEAD.size : _V3_HEAD.size + size]) if size else ""
            return OffsetValue(offset, leader_epoch, text, _I64.unpack_from(data, len(data) - 8)[0])
    reader = Reader(data)
    version = reader.i16()
    if not 0 <= version <= NEWEST_VALUE_VERSION:
        raise CorruptRecord("version of a committed offset", expected="0 to 4", found=version)
    offset = reader.i64()
    leader_epoch = reader.i32() if version >= 3 else -1
    metadata = reader.compact_string() if version >= 4 else reader.string()
    commit_timestamp = reader.i64() if version >= 1 else -1
    expire_timestamp = reader.i64() if version == 1 else NO_EXPIRY
    if version >= 4:
        reader.tagged()
    return OffsetValue(offset, leader_epoch, metadata, commit_timestamp, expire_timestamp)
