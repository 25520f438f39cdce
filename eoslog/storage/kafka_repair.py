"""`repair` as a broker would do it at its next start; the work is `kafka_recovery.py`'s.

It takes a broker's log directory, one partition directory, or a directory of eoslog's own, and runs
also where a clean stop says that there is nothing to do, from the recovery point on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from eoslog import _core
from eoslog.config import TopicConfig
from eoslog.errors import ConfigError, LockTimeout
from eoslog.model import CLUSTER_METADATA_TOPIC, Problem, RepairReport
from eoslog.storage import checkpoints, files, running_broker, segment_files
from eoslog.storage.kafka_directory import (
    KafkaPartition,
    is_kafka_directory,
    read_kafka_directory,
)
from eoslog.storage.kafka_recovery import recover
from eoslog.storage.log_cut import keep_producer_ids
from eoslog.storage.session import CLEAN_SHUTDOWN_FILE, SESSION_FILE

__all__ = ["PRODUCER_EXPIRY_MS", "index_interval_of", "repair_as_kafka"]

PRODUCER_EXPIRY_MS = 86_400_000
"""Kafka's default of producer.id.expiration.ms."""


def index_interval_of(config: dict[str, str]) -> int:
    """A topic's index.interval.bytes; the broker's own default where the topic says nothing."""
    return int(config.get("index.interval.bytes", TopicConfig.of({}).index_interval_bytes))


def repair_as_kafka(path: str, *, now_ms: int | None = None) -> RepairReport:
    """Recover every partition under a path as Kafka does.

    Args:
        path: a broker's log directory, a partition directory of one, or an eoslog directory.
        now_ms: wall clock; producers silent for a day are forgotten as Kafka forgets them.

    Raises:
        LockTimeout: a broker or another process has the directory open.
        ConfigError: neither of the three. CorruptRecord: KRaft's log is damaged.
    """
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    problems: list[Problem] = []
    cut = 0
    with ExitStack() as held:
        targets = _targets(path, held)
        for partition, interval in targets:
            found = recover(
                partition.path,
                recovery_point=partition.recovery_point,
                log_start=partition.log_start,
                index_interval=interval,
                expire_before_ms=now - PRODUCER_EXPIRY_MS,
            )
            problems += found.problems
            cut += found.bytes_cut
        if any(partition.topic == CLUSTER_METADATA_TOPIC for partition, _ in targets):
            problems += keep_producer_ids(path)[1]
    return RepairReport("as-kafka", len(targets), problems, cut)


def _targets(path: str, held: ExitStack) -> list[tuple[KafkaPartition, int]]:
    if is_kafka_directory(path):
        held.enter_context(running_broker.hold(path))
        found = read_kafka_directory([path])
        return [
            (partition, index_interval_of(found.topics[partition.topic].config))
            for _, partition in sorted(found.partitions.items())
        ]
    if checkpoints.read_meta_properties(path) is not None:
        held.enter_context(_alone(path))
        found = read_kafka_directory([path], ours=True)
        targets = [
            (partition, index_interval_of(found.topics[partition.topic].config))
            for _, partition in sorted(found.partitions.items())
        ]
        metadata = os.path.join(path, f"{CLUSTER_METADATA_TOPIC}-0")
        targets.append(
            (KafkaPartition(CLUSTER_METADATA_TOPIC, 0, metadata, False), index_interval_of({}))
        )
        # The next opening looks at everything itself.
        files.remove(os.path.join(path, CLEAN_SHUTDOWN_FILE))
        files.remove(os.path.join(path, checkpoints.RECOVERY_POINT_CHECKPOINT))
        return targets
    parent = os.path.dirname(os.path.abspath(path))
    segment_files.list_segments(path)
    topic, number = segment_files.partition_of_path(path)
    if os.path.exists(os.path.join(parent, SESSION_FILE)):
        raise ConfigError(f"{path} belongs to an eoslog directory: repair {parent} as a whole")
    held.enter_context(running_broker.hold(parent))
    config: dict[str, str] = {}
    if is_kafka_directory(parent):
        broker = read_kafka_directory([parent])
        if (topic, number) in broker.partitions:
            return [
                (broker.partitions[topic, number], index_interval_of(broker.topics[topic].config))
            ]
    return [(KafkaPartition(topic, number, path, False), index_interval_of(config))]


@contextmanager
def _alone(path: str) -> Iterator[None]:
    fd = files.open_file(os.path.join(path, SESSION_FILE), create=True)
    try:
        if not _core.try_lock(fd, 1):
            raise LockTimeout(f"{path}: a process has the directory open")
        yield
    finally:
        files.close(fd)
