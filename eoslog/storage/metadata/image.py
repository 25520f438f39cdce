"""The fold of metadata records into topics, slots and producer ids.

Live updates and replay use the same function, which does not read a clock.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from eoslog._util.arguments import as_int
from eoslog.config.keys import TopicConfig
from eoslog.errors import UnknownTopicOrPartition
from eoslog.model import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    POSITIONS_TOPIC,
    STAGED_TRANSACTIONS_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from eoslog.storage.metadata.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
)

_MAX_STAGED_BATCH = (64 << 20) + (1 << 20)
FIRST_USE_TOPICS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        STAGED_TRANSACTIONS_TOPIC: {
            "cleanup.policy": "compact",
            "segment.bytes": str(64 << 20),
            "max.message.bytes": str(_MAX_STAGED_BATCH),
        },
        POSITIONS_TOPIC: {
            "cleanup.policy": "compact",
            "segment.bytes": str(16 << 20),
            "max.message.bytes": str(_MAX_STAGED_BATCH),
        },
    }
)
"""Configurations of the internal topics with one partition that are created at first use.

A batch of `max.message.bytes` holds a record with a payload of 64 MiB.
"""


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition and its slot in the control file, which no other partition ever gets."""

    partition: int
    slot: int
    leader_epoch: int = 0


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic according to the metadata log. Immutable, so that callers can keep and compare it."""

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
        """Return one partition.

        Raises:
            ConfigError: if the number is not an int.
            UnknownTopicOrPartition: if there is no such partition.
        """
        info = self.partitions.get(number)
        if info is None:
            as_int("partition", number)
            raise UnknownTopicOrPartition(
                f"topic {self.name!r}: partition {number} does not exist; use 0 to "
                f"{len(self.partitions) - 1}, or add partitions"
            )
        return info


class MetadataFold:
    """One pass over new records, on copies of the state after the previous pass."""

    def __init__(
        self, topics: dict[str, TopicInfo], deleted: dict[bytes, TopicInfo], next_slot: int
    ) -> None:
        """Begin with topics by name and deleted topics by id; the pass changes both maps."""
        self.topics = topics
        self.deleted = deleted
        self.next_slot = next_slot
        self.next_producer_id = 0
        self._names = {info.topic_id: name for name, info in topics.items()}
        self._own: dict[bytes, dict[int, PartitionInfo]] = {}
        self._early: dict[str, dict[str, str]] = {}

    def apply(self, record: MetadataRecord | None) -> None:
        """Fold one record; None is a record of a kind that eoslog does not use."""
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
        # A log that Kafka wrote has no slots: number them in the order of creation.
        slot = self.next_slot if record.slot is None else record.slot
        self.next_slot = max(self.next_slot, slot + 1)
        name = self._names.get(record.topic_id)
        if name is None:
            return
        info = self.topics[name]
        own = self._own.get(record.topic_id)
        if own is None:
            # Copied once per pass: readers may hold the map of the previous pass.
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
    """Return the id of an internal topic, the same in every directory; None for other topics."""
    if name == CLUSTER_METADATA_TOPIC:
        return bytes(15) + b"\x01"
    return uuid.uuid5(uuid.NAMESPACE_OID, name).bytes if name in INTERNAL_TOPICS else None


def is_first_use_topic(info: TopicInfo) -> bool:
    """Whether a topic is one of `FIRST_USE_TOPICS`, by its name and its id."""
    return info.name in FIRST_USE_TOPICS and info.topic_id == internal_topic_id(info.name)


def internal_topics(
    transactions: int, offsets: int, segment_bytes: tuple[int, int] = (1 << 20, 1 << 18)
) -> dict[str, TopicInfo]:
    """Return the internal topics of every directory, which have no metadata records.

    meta.properties has their numbers of partitions.

    Args:
        transactions: number of partitions of `__transaction_state`.
        offsets: number of partitions of `__consumer_offsets`.
        segment_bytes: segment sizes of both topics.
    """

    def compacted(size: int) -> dict[str, str]:
        return {"cleanup.policy": "compact", "preallocate": "true", "segment.bytes": str(size)}

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
