"""Reading a stopped broker's log directories: topics, ids, configurations, and clean or unclean
stop.

    meta.properties                        version 0 (ZooKeeper) or 1 (KRaft), cluster.id, node.id
    <topic>-<partition>/                   the logs
    __cluster_metadata-0/                  KRaft's log: topics, ids, configurations, producer ids
    __cluster_metadata-0/N-E.checkpoint    a snapshot of it up to offset N
    *-checkpoint, .kafka_cleanshutdown     where recovery begins, and whether it is necessary
    <topic>-<p>.<uuid>-delete, -future, -stray    to be removed: skipped, and listed

If the directory has no KRaft log (with ZooKeeper, or a separate metadata directory), only the
partition directories are read: ids come from partition.metadata, and there are no configurations.

Source: Kafka LogManager, KRaft records (KIP-631, KIP-868).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from eoslog.errors import ConfigError, CorruptRecord
from eoslog.model import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS
from eoslog.storage.directory import offset_checkpoints
from eoslog.storage.format import checkpoints
from eoslog.storage.format.serde import Reader
from eoslog.storage.fs import files
from eoslog.storage.metadata.records import (
    ConfigRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    decode,
)
from eoslog.storage.segment import segment_files
from eoslog.storage.segment.segment_files import SegmentFiles

__all__ = ["KafkaDirectory", "KafkaPartition", "KafkaTopic", "read_kafka_directory"]

_PARTITION = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)")
_GOING = re.compile(r".+-(delete|future|stray)")
_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_BEGIN, _END, _ABORT = 23, 24, 25  # records of a metadata transaction


@dataclass(frozen=True, slots=True)
class KafkaPartition:
    """One partition's directory, and its offsets in the checkpoint files."""

    topic: str
    partition: int
    path: str
    clean: bool
    recovery_point: int = 0
    log_start: int = 0


@dataclass
class KafkaTopic:
    """A topic; `topic_id` is None if a broker before 2.8 wrote it."""

    name: str
    topic_id: bytes | None = None
    config: dict[str, str] = field(default_factory=dict)
    count: int = 0
    """The number of partitions, in this directory or others."""


@dataclass
class KafkaDirectory:
    """All log directories of one broker.

    Attributes:
        next_producer_id: producer ids below it may be in use; 0 if unknown.
        passed_over: skipped directories.
        wrong_ids: topics with a partition that has another topic id; the error names the file.
    """

    cluster_id: str
    node_id: int
    topics: dict[str, KafkaTopic] = field(default_factory=dict)
    partitions: dict[tuple[str, int], KafkaPartition] = field(default_factory=dict)
    next_producer_id: int = 0
    passed_over: list[str] = field(default_factory=list)
    wrong_ids: dict[str, CorruptRecord] = field(default_factory=dict)


def is_kafka_directory(path: str) -> bool:
    """Whether a directory looks like a broker's log directory (and is not eoslog's)."""
    return checkpoints.read_foreign_properties(path) is not None


def read_kafka_directory(paths: Sequence[str], *, ours: bool = False) -> KafkaDirectory:
    """Read the metadata in a stopped broker's log directories, without reading the logs.

    Args:
        paths: all log directories of the broker.
        ours: the directories are eoslog's; their metadata does not include internal topics.

    Raises:
        ConfigError: if a path is not a broker's log directory, or of another broker.
        CorruptRecord: if two directories have the same partition, or KRaft's log is damaged; the
            message names the file.
    """
    found: KafkaDirectory | None = None
    for path in paths:
        properties = {} if ours else checkpoints.read_foreign_properties(path)
        if properties is None:
            raise ConfigError(
                f"{path} is not a Kafka broker's log directory: it has no meta.properties of "
                "Kafka's; give a directory from the broker's log.dirs"
            )
        identity = properties.get("cluster.id", ""), _node(properties, path)
        if found is None:
            found = KafkaDirectory(*identity)
        elif (found.cluster_id, found.node_id) != identity:
            raise ConfigError(
                f"{path} belongs to broker (cluster.id, node.id) {identity}, but the first "
                f"directory to {found.cluster_id, found.node_id}; give directories of one broker"
            )
        _partitions(found, path)
    if found is None:
        raise ConfigError("no log directory given; give at least one of the broker's log.dirs")
    for path in paths:
        metadata = os.path.join(path, f"{CLUSTER_METADATA_TOPIC}-0")
        if os.path.isdir(metadata):
            _fold_metadata(found, metadata, ours)
    if not ours:
        _compare_ids(found)
    return found


def _node(properties: dict[str, str], path: str) -> int:
    text = properties.get("node.id", properties.get("broker.id", "-1"))
    try:
        return int(text)
    except ValueError:
        raise CorruptRecord(
            f"node.id must be an integer, got {text!r}",
            path=os.path.join(path, checkpoints.META_PROPERTIES),
        ) from None


def _partitions(found: KafkaDirectory, path: str) -> None:
    clean = checkpoints.was_clean_shutdown(path)
    points, starts = (
        offset_checkpoints.read(path, name)
        for name in (checkpoints.RECOVERY_POINT_CHECKPOINT, checkpoints.LOG_START_CHECKPOINT)
    )
    for name in files.names(path):
        place = os.path.join(path, name)
        if not os.path.isdir(place):
            continue
        match = _PARTITION.fullmatch(name)
        if match is None or _GOING.fullmatch(name):
            found.passed_over.append(place)
            continue
        key = match[1], int(match[2])
        if key[0] == CLUSTER_METADATA_TOPIC:
            continue
        if key in found.partitions:
            raise CorruptRecord(
                f"{place} and {found.partitions[key].path} are both directories of partition "
                f"{key[0]}-{key[1]}; move the copy away that the broker does not use"
            )
        found.partitions[key] = KafkaPartition(
            *key, place, clean, points.get(key, 0), starts.get(key, 0)
        )
        topic = found.topics.setdefault(key[0], KafkaTopic(key[0]))
        topic.count = max(topic.count, key[1] + 1)


def _compare_ids(found: KafkaDirectory) -> None:
    """Compare each partition's topic id with its topic."""
    for (name, _), partition in sorted(found.partitions.items()):
        own = checkpoints.read_partition_metadata(partition.path)
        topic = found.topics[name]
        if topic.topic_id is None:
            topic.topic_id = own
        elif own is not None and own != topic.topic_id:
            found.wrong_ids.setdefault(name, CorruptRecord(
                f"topic {name!r}: a partition has another topic id",
                path=os.path.join(partition.path, checkpoints.PARTITION_METADATA),
                expected=checkpoints.id_text(topic.topic_id), found=checkpoints.id_text(own),
            ))  # fmt: skip


def _metadata_values(path: str) -> Iterator[bytes | None]:
    """Yield the values of KRaft's log from its newest snapshot on, in order."""
    snapshots = sorted(name for name in files.names(path) if _SNAPSHOT.fullmatch(name))
    start = 0
    if snapshots:
        start = int(snapshots[-1][:20])
        yield from _values(SegmentFiles(os.path.join(path, snapshots[-1]), 0), 0)
    for segment in segment_files.list_segments(path):
        yield from _values(segment, start)


def _values(segment: SegmentFiles, start: int) -> Iterator[bytes | None]:
    for batch in segment.batches():
        if not batch.valid:
            raise CorruptRecord(
                "batch does not match its CRC", path=segment.path, position=batch.position
            )
        if not batch.control and batch.last_offset >= start:
            for record in batch.records():
                if record[0] >= start:
                    yield record[3]


def _fold_metadata(found: KafkaDirectory, path: str, ours: bool) -> None:
    """Read topics and configurations from KRaft's log, and skip deleted topics."""
    names: dict[bytes, str] = {}
    topics: dict[str, KafkaTopic] = {}
    configs: dict[str, dict[str, str]] = {}
    for value in _committed(path):
        match decode(value):
            case TopicRecord(name, topic_id):
                names[topic_id] = name
                topics[name] = KafkaTopic(name, topic_id)
            case PartitionRecord(partition, topic_id):
                if topic_id in names:
                    topic = topics[names[topic_id]]
                    topic.count = max(topic.count, partition + 1)
            case ConfigRecord(name, key, text):
                if text is None:
                    configs.get(name, {}).pop(key, None)
                else:
                    configs.setdefault(name, {})[key] = text
            case RemoveTopicRecord(topic_id):
                gone = names.pop(topic_id, None)
                topics.pop(gone or "", None)
                configs.pop(gone or "", None)
            case ProducerIdsRecord(next_producer_id):
                found.next_producer_id = max(found.next_producer_id, next_producer_id)
    if ours:
        internal = {n: t for n, t in found.topics.items() if n in INTERNAL_TOPICS}
        topics = internal | topics
    for place in [place for place in found.partitions if place[0] not in topics]:
        found.passed_over.append(found.partitions.pop(place).path)
    found.topics = topics
    for name, config in configs.items():
        if name in topics:
            topics[name].config = config


def _committed(path: str) -> Iterator[bytes]:
    """Yield the values that are not in aborted metadata transactions."""
    held: list[bytes] | None = None
    for value in _metadata_values(path):
        if value is None:
            continue
        reader = Reader(value)
        reader.uvarint()
        kind = reader.uvarint()
        if kind == _BEGIN:
            held = []
        elif kind in (_END, _ABORT):
            if kind == _END:
                yield from held or ()
            held = None
        elif held is not None:
            held.append(value)
        else:
            yield value
