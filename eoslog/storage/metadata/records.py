"""The records of `__cluster_metadata-0`, in KRaft's own formats.

    frame    uvarint 1, uvarint api key, uvarint version, body, tagged fields
    2  TopicRecord v0        name, topic id
    3  PartitionRecord v1    partition, topic id, replicas, isr, removing, adding, leader,
                             leader epoch, partition epoch, directories; tag 10000: slot (i32)
    4  ConfigRecord v0       resource type (2 = topic), resource name, key, value (null: unset)
    9  RemoveTopicRecord v0  topic id
    15 ProducerIdsRecord v0  broker id, broker epoch, next producer id

All bodies are flexible. Records of other api keys belong to Kafka and are skipped.

Source: Kafka metadata/src/main/resources/common/metadata, KIP-631, KIP-858.
"""

from __future__ import annotations

from dataclasses import dataclass

from eoslog.errors import CorruptRecord
from eoslog.storage.format.serde import Reader, Writer

FRAME_VERSION = 1
SLOT_TAG = 10_000
TOPIC_RESOURCE = 2

_TOPIC, _PARTITION, _CONFIG, _REMOVE_TOPIC, _PRODUCER_IDS = 2, 3, 4, 9, 15


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic exists from here on."""

    name: str
    topic_id: bytes

    def encode(self) -> bytes:
        """The record's value."""
        return _frame(_TOPIC, 0).compact_string(self.name).uuid(self.topic_id).tagged().take()


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition exists from here on. `slot` is None in a log that Kafka wrote."""

    partition: int
    topic_id: bytes
    slot: int | None
    leader_epoch: int = 0
    node_id: int = 0
    directory_id: bytes = bytes(16)

    def encode(self) -> bytes:
        """The record's value: one replica, in sync, leading."""
        out = _frame(_PARTITION, 1).i32(self.partition).uuid(self.topic_id)
        out.compact_array(1).i32(self.node_id).compact_array(1).i32(self.node_id)
        out.compact_array(0).compact_array(0)
        out.i32(self.node_id).i32(self.leader_epoch).i32(0)
        out.compact_array(1).uuid(self.directory_id)
        tagged = {} if self.slot is None else {SLOT_TAG: Writer().i32(self.slot).take()}
        return out.tagged(tagged).take()


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """A topic's key has this value from here on; None resets it to the default."""

    topic: str
    key: str
    value: str | None

    def encode(self) -> bytes:
        """The record's value."""
        out = _frame(_CONFIG, 0).i8(TOPIC_RESOURCE).compact_string(self.topic)
        return out.compact_string(self.key).compact_nullable_string(self.value).tagged().take()


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    """A topic and its partitions no longer exist."""

    topic_id: bytes

    def encode(self) -> bytes:
        """The record's value."""
        return _frame(_REMOVE_TOPIC, 0).uuid(self.topic_id).tagged().take()


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord:
    """Producer ids below `next_producer_id` are allocated."""

    next_producer_id: int
    broker_id: int = 0
    broker_epoch: int = -1

    def encode(self) -> bytes:
        """The record's value."""
        out = _frame(_PRODUCER_IDS, 0).i32(self.broker_id).i64(self.broker_epoch)
        return out.i64(self.next_producer_id).tagged().take()


MetadataRecord = (
    TopicRecord | PartitionRecord | ConfigRecord | RemoveTopicRecord | ProducerIdsRecord
)


def _frame(key: int, version: int) -> Writer:
    return Writer().uvarint(FRAME_VERSION).uvarint(key).uvarint(version)


def decode(value: bytes | None) -> MetadataRecord | None:
    """Return the record in a value, None if it is of a kind that eoslog does not use.

    Raises:
        CorruptRecord: if the bytes do not match their frame.
    """
    if value is None:
        raise CorruptRecord("metadata record has no value")
    reader = Reader(value)
    frame = reader.uvarint()
    if frame != FRAME_VERSION:
        raise CorruptRecord("metadata frame version", expected=FRAME_VERSION, found=frame)
    key, version = reader.uvarint(), reader.uvarint()
    if key == _TOPIC:
        return TopicRecord(reader.compact_string(), reader.uuid())
    if key == _PARTITION:
        return _partition(reader, version)
    if key == _CONFIG:
        resource, name = reader.i8(), reader.compact_string()
        setting, text = reader.compact_string(), reader.compact_nullable_string()
        return ConfigRecord(name, setting, text) if resource == TOPIC_RESOURCE else None
    if key == _REMOVE_TOPIC:
        return RemoveTopicRecord(reader.uuid())
    if key == _PRODUCER_IDS:
        broker, epoch = reader.i32(), reader.i64()
        return ProducerIdsRecord(reader.i64(), broker, epoch)
    return None


def _partition(reader: Reader, version: int) -> PartitionRecord:
    partition, topic_id = reader.i32(), reader.uuid()
    for _ in range(4):
        for _ in range(max(reader.compact_array(), 0)):
            reader.i32()
    node_id, leader_epoch, _ = reader.i32(), reader.i32(), reader.i32()
    directories = []
    if version >= 1:
        directories = [reader.uuid() for _ in range(max(reader.compact_array(), 0))]
    slot = reader.tagged().get(SLOT_TAG)
    return PartitionRecord(
        partition,
        topic_id,
        None if slot is None else Reader(slot).i32(),
        leader_epoch,
        node_id,
        directories[0] if directories else bytes(16),
    )
