"""Groups and their members as records of `__consumer_offsets`.

Keys are classic: i16 type | group str | member str (types 5, 7, 8). Values are i16 version 0,
then flexible:

    3 group             epoch i32
    4 its topics        [topic id, name, partitions i32, [racks]]
    5 member            instance? rack? client id, client host, [topics], regex?,
                        rebalance timeout i32, assignor?
    6 target            assignment epoch i32
    7 member's target   [topic id, [partition i32]]
    8 member's current  epoch i32, previous epoch i32, state i8,
                        [assigned: topic id, [partition]], [pending revocation: the same]

eoslog adds tagged fields to type 5: 10000 process number i32, 10001 process nonce i64,
10002 session timeout i32 (ms). They name the process of the member; Kafka skips them. A null value
deletes. Type 2 (a group of the classic protocol) is read, but not written.

Source: Kafka ConsumerGroup*Key/Value, GroupMetadataValue, KIP-848.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from eoslog.coordinator.groups.offset_records import KEY_VERSIONS, OffsetKey, decode_offset_key
from eoslog.errors import CorruptRecord
from eoslog.storage.format.serde import Reader, Writer

TAG_PROCESS_NUMBER, TAG_PROCESS_NONCE, TAG_SESSION_TIMEOUT = 10000, 10001, 10002
STATIC_LEAVE_EPOCH = -2

# A partition by topic id: a name may be reused by another topic, an id is never reused.
OwnedPartition = tuple[bytes, int]
Owned = frozenset[OwnedPartition]
NOTHING: Owned = frozenset()


class RecordType(IntEnum):
    """The first i16 of a key."""

    CLASSIC_GROUP = 2
    GROUP = 3
    TOPICS = 4
    MEMBER = 5
    TARGET = 6
    MEMBER_TARGET = 7
    MEMBER_CURRENT = 8


class MemberState(IntEnum):
    """The progress of a member towards its target, with Kafka's numbers."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


@dataclass(frozen=True, slots=True)
class GroupKey:
    """A key of types 2, 3, 4 and 6."""

    type: RecordType
    group_id: str


@dataclass(frozen=True, slots=True)
class MemberKey:
    """A key of types 5, 7 and 8."""

    type: RecordType
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A subscribed topic at the time when the target was computed."""

    topic_id: bytes
    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """The metadata of a join, and the member's process (-1: not a process of eoslog)."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    process_number: int = -1
    process_nonce: int = 0
    session_timeout_ms: int = 45_000


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """The partitions of a member, which owns `pending` until it releases them."""

    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Owned = NOTHING
    pending: Owned = NOTHING


@dataclass(frozen=True, slots=True)
class ClassicGroup:
    """A group of the classic protocol, from an imported log."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int = -1
    members: tuple[str, ...] = field(default=())


RecordKey = OffsetKey | GroupKey | MemberKey


def encode_group_key(record_type: RecordType, group_id: str) -> bytes:
    """Encode a key of types 2, 3, 4 and 6."""
    return Writer().i16(record_type).string(group_id).take()


def encode_member_key(record_type: RecordType, group_id: str, member_id: str) -> bytes:
    """Encode a key of types 5, 7 and 8."""
    return Writer().i16(record_type).string(group_id).string(member_id).take()


@functools.lru_cache(maxsize=4096)
def decode_key(data: bytes | None) -> RecordKey | None:
    """Decode any key of the topic; None for unknown types, which readers skip.

    Raises:
        CorruptRecord: if the type is known and the bytes are invalid.
    """
    if data is None:
        return None
    reader = Reader(data)
    version = reader.i16()
    if version in KEY_VERSIONS:
        return decode_offset_key(reader)
    try:
        record_type = RecordType(version)
    except ValueError:
        return None
    if record_type in (RecordType.MEMBER, RecordType.MEMBER_TARGET, RecordType.MEMBER_CURRENT):
        return MemberKey(record_type, reader.string(), reader.string())
    return GroupKey(record_type, reader.string())


def _value_reader(data: bytes, what: str) -> Reader:
    reader = Reader(data)
    version = reader.i16()
    if version != 0:
        raise CorruptRecord(f"{what}: unknown version", expected=0, found=version)
    return reader


def encode_epoch(epoch: int) -> bytes:
    """Encode the value of types 3 and 6."""
    return Writer().i16(0).i32(epoch).tagged().take()


def decode_epoch(data: bytes) -> int:
    """Decode the epoch in a value of types 3 and 6."""
    return _value_reader(data, "group epoch").i32()


def encode_topics(topics: Iterable[TopicMetadata]) -> bytes:
    """Encode the value of type 4, ordered by name."""
    ordered = sorted(topics, key=lambda topic: topic.name)
    writer = Writer().i16(0).compact_array(len(ordered))
    for topic in ordered:
        writer.uuid(topic.topic_id).compact_string(topic.name).i32(topic.partitions)
        writer.compact_array(0).tagged()
    return writer.tagged().take()


def decode_topics(data: bytes) -> dict[str, TopicMetadata]:
    """Decode the topics of a value of type 4, by name."""
    reader = _value_reader(data, "topics of a group")
    topics = {}
    for _ in range(reader.compact_array()):
        topic = TopicMetadata(reader.uuid(), reader.compact_string(), reader.i32())
        for _ in range(reader.compact_array()):
            reader.i32()
            for _ in range(reader.compact_array()):
                reader.compact_string()
            reader.tagged()
        reader.tagged()
        topics[topic.name] = topic
    return topics


def _process_tags(member: MemberMetadata) -> dict[int, bytes]:
    if member.process_number < 0:
        return {}
    return {
        TAG_PROCESS_NUMBER: struct.pack(">i", member.process_number),
        TAG_PROCESS_NONCE: struct.pack(">Q", member.process_nonce & 0xFFFFFFFFFFFFFFFF),
        TAG_SESSION_TIMEOUT: struct.pack(">i", member.session_timeout_ms),
    }


def encode_member(member: MemberMetadata) -> bytes:
    """Encode the value of type 5."""
    writer = Writer().i16(0)
    writer.compact_nullable_string(member.instance_id).compact_nullable_string(member.rack_id)
    writer.compact_string(member.client_id).compact_string(member.client_host)
    writer.compact_array(len(member.topics))
    for topic in member.topics:
        writer.compact_string(topic)
    writer.compact_nullable_string(member.regex).i32(member.rebalance_timeout_ms)
    writer.compact_nullable_string(member.assignor)
    return writer.tagged(_process_tags(member)).take()


def decode_member(data: bytes) -> MemberMetadata:
    """Decode a value of type 5."""
    reader = _value_reader(data, "member of a group")
    member = MemberMetadata(
        instance_id=reader.compact_nullable_string(),
        rack_id=reader.compact_nullable_string(),
        client_id=reader.compact_string(),
        client_host=reader.compact_string(),
        topics=tuple(reader.compact_string() for _ in range(reader.compact_array())),
        regex=reader.compact_nullable_string(),
        rebalance_timeout_ms=reader.i32(),
        assignor=reader.compact_nullable_string(),
    )
    tags = reader.tagged()
    if TAG_PROCESS_NUMBER not in tags:
        return member
    return replace(
        member,
        process_number=Reader(tags[TAG_PROCESS_NUMBER]).i32(),
        process_nonce=int.from_bytes(tags.get(TAG_PROCESS_NONCE, b"\0"), "big"),
        session_timeout_ms=Reader(tags[TAG_SESSION_TIMEOUT]).i32()
        if TAG_SESSION_TIMEOUT in tags
        else member.session_timeout_ms,
    )


def _by_topic(owned: Iterable[OwnedPartition]) -> Mapping[bytes, list[int]]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(owned):
        topics.setdefault(topic_id, []).append(partition)
    return topics


def _write_owned(writer: Writer, owned: Iterable[OwnedPartition]) -> None:
    topics = _by_topic(owned)
    writer.compact_array(len(topics))
    for topic_id, partitions in topics.items():
        writer.uuid(topic_id).compact_array(len(partitions))
        for partition in partitions:
            writer.i32(partition)
        writer.tagged()


def _read_owned(reader: Reader) -> Owned:
    owned: set[OwnedPartition] = set()
    for _ in range(reader.compact_array()):
        topic_id = reader.uuid()
        owned.update((topic_id, reader.i32()) for _ in range(reader.compact_array()))
        reader.tagged()
    return frozenset(owned)


def encode_member_target(target: Iterable[OwnedPartition]) -> bytes:
    """Encode the value of type 7."""
    writer = Writer().i16(0)
    _write_owned(writer, target)
    return writer.tagged().take()


def decode_member_target(data: bytes) -> Owned:
    """Decode a value of type 7."""
    return _read_owned(_value_reader(data, "target of a member"))


def encode_member_current(current: CurrentAssignment) -> bytes:
    """Encode the value of type 8."""
    writer = Writer().i16(0).i32(current.epoch).i32(current.previous_epoch).i8(current.state)
    _write_owned(writer, current.assigned)
    _write_owned(writer, current.pending)
    return writer.tagged().take()


def decode_member_current(data: bytes) -> CurrentAssignment:
    """Decode a value of type 8."""
    reader = _value_reader(data, "assignment of a member")
    epoch, previous, state = reader.i32(), reader.i32(), reader.i8()
    try:
        known = MemberState(state)
    except ValueError:
        raise CorruptRecord(
            "assignment of a member: unknown state", expected="0 to 2", found=state
        ) from None
    return CurrentAssignment(epoch, previous, known, _read_owned(reader), _read_owned(reader))


def decode_classic_group(data: bytes) -> ClassicGroup:
    """Decode a value of type 2, versions 0 to 4; keep the fields for display."""
    reader = Reader(data)
    version = reader.i16()
    if not 0 <= version <= 4:
        raise CorruptRecord("classic group: unknown version", expected="0 to 4", found=version)
    flexible = version >= 4
    string = reader.compact_string if flexible else reader.string
    nullable = reader.compact_nullable_string if flexible else reader.nullable_string
    blob = reader.compact_bytes if flexible else reader.bytes_
    protocol_type, generation, protocol, leader = string(), reader.i32(), nullable(), nullable()
    timestamp = reader.i64() if version >= 2 else -1
    members = []
    for _ in range(reader.compact_array() if flexible else reader.array()):
        members.append(string())
        if version >= 3:
            nullable()
        string(), string()
        if version >= 1:
            reader.i32()
        reader.i32()
        blob(), blob()
        if flexible:
            reader.tagged()
    return ClassicGroup(protocol_type, generation, protocol, leader, timestamp, tuple(members))
