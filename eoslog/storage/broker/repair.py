"""`repair --as-kafka`: the recovery that a broker would do at its next start (`recovery.py`).

The path is a broker's log directory, one partition directory, or an eoslog directory. Recovery runs
from the recovery point on, even if the last stop was clean.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from eoslog import _core
from eoslog.config.keys import TopicConfig
from eoslog.errors import UNWRITABLE, ConfigError, LockTimeout, StorageError
from eoslog.model import CLUSTER_METADATA_TOPIC
from eoslog.reports import Problem, RepairReport
from eoslog.storage.broker import lock as running_broker
from eoslog.storage.broker.directory import KafkaPartition, is_kafka_directory, read_kafka_directory
from eoslog.storage.broker.recovery import recover
from eoslog.storage.check.truncation import keep_producer_ids
from eoslog.storage.directory import offset_checkpoints, processes
from eoslog.storage.directory.offset_jumps import gap_before_damage
from eoslog.storage.directory.session import CLEAN_SHUTDOWN_FILE, SESSION_FILE
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from eoslog.storage.segment import segment_files
from eoslog.storage.segment.segment import SEAL, file_path, offsets_in

__all__ = ["PRODUCER_EXPIRY_MS", "index_interval_of", "repair_as_kafka"]

PRODUCER_EXPIRY_MS = 86_400_000
"""Kafka's default of producer.id.expiration.ms."""


def index_interval_of(config: dict[str, str]) -> int:
    """Return a topic's index.interval.bytes, or the broker's default."""
    return int(config.get("index.interval.bytes", TopicConfig.of({}).index_interval_bytes))


def repair_as_kafka(path: str, *, now_ms: int | None = None) -> RepairReport:
    """Recover every partition under a path as Kafka does.

    Args:
        path: a broker's log directory, a partition directory of one, or an eoslog directory.
        now_ms: wall clock time in ms; producers that were inactive for a day expire, as in Kafka.

    Raises:
        LockTimeout: if a broker or another process has the directory open.
        ConfigError: if the path is none of the three.
        CorruptRecord: if KRaft's log is damaged.
    """
    try:
        return _repair_as_kafka(path, time.time_ns() // 1_000_000 if now_ms is None else now_ms)
    except StorageError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise unwritable(path, error) from error


def unwritable(path: str, error: StorageError) -> StorageError:
    """Return the error for a repair that is not allowed to write."""
    return StorageError(
        f"{path}: the directory cannot be written, so it cannot be repaired; repair it as its "
        "owner where it is mounted for writing, or repair a copy (mode 'report' only reads)",
        error.errno or 0,
        error.filename,
    )


def _repair_as_kafka(path: str, now: int) -> RepairReport:
    problems: list[Problem] = []
    kept: list[str] = []
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
                keep_ms=now,
            )
            kept += found.kept
            problems += found.problems
            cut += found.bytes_cut
        if any(partition.topic == CLUSTER_METADATA_TOPIC for partition, _ in targets):
            problems += keep_producer_ids(path)[1]
    return RepairReport("as-kafka", len(targets), problems, cut, kept=kept)


def _targets(path: str, held: ExitStack) -> list[tuple[KafkaPartition, int]]:
    if is_kafka_directory(path):
        held.enter_context(running_broker.hold(path))
        found = read_kafka_directory([path])
        return [
            (partition, index_interval_of(found.topics[partition.topic].config))
            for _, partition in sorted(found.partitions.items())
        ]
    if checkpoints.read_meta_properties(path) is not None:
        held.enter_context(alone(path, create=True))
        found = read_kafka_directory([path], ours=True)
        targets = [
            (partition, index_interval_of(found.topics[partition.topic].config))
            for _, partition in sorted(found.partitions.items())
        ]
        metadata = os.path.join(path, f"{CLUSTER_METADATA_TOPIC}-0")
        targets.append(
            (KafkaPartition(CLUSTER_METADATA_TOPIC, 0, metadata, False), index_interval_of({}))
        )
        # A cut may make a compacted segment the last one, where recovery accepts known gaps only.
        known = offset_checkpoints.read(path, checkpoints.CLEANER_CHECKPOINT)
        for target, _ in targets:
            gap = gap_before_damage(target.path)
            if gap > known.get((target.topic, target.partition), 0):
                known[target.topic, target.partition] = gap
        offset_checkpoints.write(path, checkpoints.CLEANER_CHECKPOINT, known)
        # Make the next opening recover every partition.
        files.remove(os.path.join(path, CLEAN_SHUTDOWN_FILE))
        offset_checkpoints.write(path, checkpoints.RECOVERY_POINT_CHECKPOINT, {})
        for target, _ in targets:  # a broker's recovery does not update seals: remove them
            for offset in offsets_in(target.path, SEAL):
                files.remove(file_path(target.path, offset, SEAL))
        return targets
    parent = os.path.dirname(os.path.abspath(path))
    segment_files.list_segments(path)
    topic, number = segment_files.partition_of_path(path)
    if os.path.exists(os.path.join(parent, SESSION_FILE)):
        raise ConfigError(f"{path} belongs to the eoslog directory {parent}; repair that directory")
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
def alone(path: str, *, create: bool = False, read_only: bool = False) -> Iterator[None]:
    """Hold an eoslog directory exclusively.

    Args:
        path: the directory.
        create: create the lock file if it is missing.
        read_only: the caller changes nothing. If the directory cannot be written, the lock is
            not held, and other processes are only looked up once.

    Raises:
        StorageError: if the path is not an eoslog directory, or cannot be written.
        LockTimeout: if a process has the directory open.
    """
    name, fd = os.path.join(path, SESSION_FILE), -1
    try:
        fd = files.open_file(name, create=create)
    except FileNotFoundError:
        raise StorageError(f"not an eoslog directory: {SESSION_FILE} is missing", 2, path) from None
    except StorageError as error:
        if error.errno not in UNWRITABLE:
            raise
        if not read_only:
            raise unwritable(path, error) from error
    try:
        if processes.is_locked(path, SESSION_FILE, 1) if fd < 0 else not _core.try_lock(fd, 1):
            holders = processes.openers_text(path)
            raise LockTimeout(
                f"{path}: a process has the directory open: {holders}; close the log in "
                "that process first"
            )
        yield
    finally:
        files.close(fd)
