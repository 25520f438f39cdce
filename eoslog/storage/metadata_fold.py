"""What a pass over the metadata log's records makes of topics, slots and producer ids.

Live state and replayed state come out of the same function; it reads no clock.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from eoslog.config import TopicConfig
from eoslog.errors import UnknownTopicOrPartition
from eoslog.model import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
)
from eoslog.storage.metadata_records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition and the slot of the control file that is its own for ever."""

    partition: int
    slot: int
    leader_epoch: int = 0


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the log says; replaced, never changed, so that it may be kept and compared."""

    name: str
    topic_id: bytes
    partitions: Mapping[int, PartitionInfo] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    deleted: bool = False

    @property
    def settings(self) -> TopicConfig:
        """The configuration with its defaults."""
        return TopicConfig.of(self.config)

    def partition(self, number: int) -> PartitionInfo:
        """One partition; UnknownTopicOrPartition if there is none of that number."""
        info = self.partitions.get(number)
        if info is None:
            raise UnknownTopicOrPartition(
                f"topic {self.name!r} has partitions 0..{len(self.partitions) - 1}, not {number}"
            )
        return info


class MetadataFold:
    """One pass over new records, on copies of what the pass before left."""

    def __init__(
        self, topics: dict[str, TopicInfo], deleted: dict[bytes, TopicInfo], next_slot: int
    ) -> None:
        """Begin with topics by name and by id; the maps are changed."""
        self.topics = topics
        self.deleted = deleted
        self.next_slot = next_slot
        self.next_producer_id = 0
        self._names = {info.topic_id: name for name, info in topics.items()}
        self._own: dict[bytes, dict[int, PartitionInfo]] = {}
        self._early: dict[str, dict[str, str]] = {}

    def apply(self, record: MetadataRecord | None) -> None:
        """Fold one record; None is a record of a kind that is not used here."""
        match record:
            case TopicRecord(name, topic_id):
                self._names[topic_id] = name
                self.topics[name] = TopicInfo(name, topic_id, {}, self._early.pop(name, {}))
            case PartitionRecord():
                self._partition(record)
            case ConfigRecord():
                self._config(record)
            case RemoveTopicRecord(topic_id):
                gone = self._names.pop(topic_id, None)
                if gone is not None:
                    self.deleted[topic_id] = replace(self.topics.pop(gone), deleted=True)
            case ProducerIdsRecord(next_producer_id):
                self.next_producer_id = max(self.next_producer_id, next_producer_id)

    def _partition(self, record: PartitionRecord) -> None:
        # A log that Kafka wrote has no slots: they go by order of creation.
        slot = self.next_slot if record.slot is None else record.slot
        self.next_slot = max(self.next_slot, slot + 1)
        name = self._names.get(record.topic_id)
        if name is None:
            return
        info = self.topics[name]
        own = self._own.get(record.topic_id)
        if own is None:
            # Copied once a pass: others may hold the map of the pass before.
            own = self._own[record.topic_id] = dict(info.partitions)
            self.topics[name] = replace(info, partitions=own)
        own[record.partition] = PartitionInfo(record.partition, slot, max(record.leader_epoch, 0))

    def _config(self, record: ConfigRecord) -> None:
        info = self.topics.get(record.topic)
        if info is None:  # Kafka may write the configuration before the topic's own record
            config = self._early.setdefault(record.topic, {})
        else:
            config = dict(info.config)
        config.pop(record.key, None)
        if record.value is not None:
            config[record.key] = record.value
        if info is not None:
            self.topics[record.topic] = replace(info, config=config)


def internal_topic_id(name: str) -> bytes | None:
    """The id of an internal topic, the same in every directory; None for other topics."""
    if name == CLUSTER_METADATA_TOPIC:
        return bytes(15) + b"\x01"
    return uuid.uuid5(uuid.NAMESPACE_OID, name).bytes if name in INTERNAL_TOPICS else None


def internal_topics(
    transactions: int, offsets: int, segment_bytes: tuple[int, int] = (1 << 18, 1 << 18)
) -> dict[str, TopicInfo]:
    """The topics that need no record: their place follows from the counts in meta.properties.

    Args:
        transactions: partitions of `__transaction_state`.
        offsets: partitions of `__consumer_offsets`.
        segment_bytes: segment size of the one and of the other.
    """

    def compacted(size: int) -> dict[str, str]:
        return {"cleanup.policy": "compact", "segment.bytes": str(size)}

    layout = [
        (CLUSTER_METADATA_TOPIC, 0, 1, {}),
        (TRANSACTION_STATE_TOPIC, 1, transactions, compacted(segment_bytes[0])),
        (CONSUMER_OFFSETS_TOPIC, 1 + transactions, offsets, compacted(segment_bytes[1])),
    ]
    return {
        name: TopicInfo(
            name,
            internal_topic_id(name) or b"",
            {p: PartitionInfo(p, first + p) for p in range(count)},
            config,
        )
        for name, first, count, config in layout
    }  # fmt: skip
