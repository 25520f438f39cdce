"""The planner's view of a directory: topics, ends, times, aborted transactions.

There are two kinds of directory: an eoslog directory, read through a `Log`, and the data directory
of a Kafka broker (`layout` = kafka), read from its files alone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from eoslog.connector import (
    STAGING,
    aborted_transactions,
    partition_of_path,
    read_partition_metadata,
    refuse_running_broker,
)
from eoslog.errors import (
    ConfigError,
    CorruptRecord,
    LockTimeout,
    StorageError,
    UnknownTopicOrPartition,
)
from eoslog.model import INTERNAL_TOPICS, TopicPartition
from pyspark_eoslog.read.kafka_partition import KafkaLayoutPartition

if TYPE_CHECKING:
    from eoslog import Log
    from pyspark_eoslog.options.options import Options, PartitionKey

Aborted = tuple[tuple[int, int, int], ...]


class Catalog(Protocol):
    """The interface of a directory of topics for reads."""

    path: str

    def topics(self) -> list[str]:
        """Return the topic names, including internal ones."""

    def partitions(self, topic: str) -> list[int]:
        """Return the partition numbers in ascending order.

        Raises:
            UnknownTopicOrPartition: if the topic does not exist.
        """

    def earliest(self, topic: str, partition: int) -> int:
        """Return the first readable offset."""

    def latest(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
        """Return the offsets up to which to read, exclusive."""

    def end(self, topic: str, partition: int) -> int:
        """Return the offset after the last record, visible or not."""

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Return the first offset whose timestamp is at or after a time."""

    def topic_id(self, topic: str, partition: int) -> bytes | None:
        """Return the topic's id, or None if no file has it."""

    def aborted(self, topic: str, partition: int, start: int, end: int) -> Aborted:
        """Return the aborted transactions that touch a range.

        Returns:
            (producer id, first offset, marker offset) of each; empty if aborted records are read.
        """


@contextmanager
def open_catalog(options: Options) -> Iterator[Catalog]:
    """Open the directory of the option `path`, and close it at the end.

    Raises:
        ConfigError: if it does not exist, or does not have the layout of the options.
    """
    if options.layout == "kafka":
        yield KafkaCatalog(options.path, options.isolation)
    else:
        with open_for_planning(options.path) as log:
            yield LogCatalog(log, options.isolation)


@contextmanager
def open_for_planning(path: str) -> Iterator[Log]:
    """Open the directory, for writing if this is permitted.

    With write access a snapshot can complete the transactions of dead processes.

    Raises:
        ConfigError: if there is no eoslog directory at `path`.
    """
    log = open_log(path)
    try:
        yield log
    finally:
        log.close()


def open_log(path: str) -> Log:
    """Open a directory as `open_for_planning` does; the caller closes it."""
    import eoslog

    try:
        return eoslog.open(path, create=False)
    except StorageError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return _open_read_only(path)
        if error.errno == errno.ENOENT:
            raise ConfigError(
                f"option 'path' = {path!r}: "
                f"there is no eoslog directory on {os.uname().nodename} ({error})"
            ) from None
        foreign = type(error) is StorageError and error.errno is None
        if foreign or error.errno == errno.ENOTDIR:
            raise ConfigError(f"option 'path' = {path!r}: {error}") from None
        raise


def _open_read_only(path: str) -> Log:
    import eoslog

    try:
        return eoslog.open(path, create=False, read_only=True)
    except StorageError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            raise ConfigError(
                f"option 'path' = {path!r}: the user of the driver on {os.uname().nodename} has no "
                f"permission to read it ({error})"
            ) from None
        raise


class LogCatalog:
    """An eoslog directory; ends are those of `Log.snapshot()`."""

    def __init__(self, log: Log, isolation: str) -> None:
        self.log = log
        self.path = log.path
        self._committed = isolation == "read_committed"

    def topics(self) -> list[str]:
        """Names, sorted."""
        return self.log.topics()

    def partitions(self, topic: str) -> list[int]:
        """Numbers, ascending."""
        return sorted(one.partition for one in self.log.describe_topic(topic).partitions)

    def earliest(self, topic: str, partition: int) -> int:
        """The log start."""
        return self.log.offsets(topic, partition).log_start

    def latest(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
        """Return the ends of a snapshot under read_committed, else the high watermarks."""
        if not self._committed:
            return {key: self.log.offsets(*key).high_watermark for key in keys}
        own = [key for key in keys if key[0] in INTERNAL_TOPICS]  # a snapshot has none of them
        found = {key: self.log.offsets(*key).last_stable for key in own}
        if len(own) < len(keys):
            cut = self.log.snapshot(sorted({topic for topic, _ in keys} - INTERNAL_TOPICS))
            for key in keys:
                if key not in found and TopicPartition(*key) not in cut:
                    raise UnknownTopicOrPartition(f"{key[0]}-{key[1]} was deleted")
            found |= {key: cut[TopicPartition(*key)] for key in keys if key not in found}
        return found

    def end(self, topic: str, partition: int) -> int:
        """The log end."""
        return self.log.offsets(topic, partition).log_end

    def readable(self, topic: str, partition: int) -> int:
        """Return the end of the readable records, even in the middle of a transaction."""
        offsets = self.log.offsets(topic, partition)
        return offsets.last_stable if self._committed else offsets.log_end

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Look up a time in the time index."""
        return self.log.offset_for_time(topic, partition, timestamp_ms)

    def topic_id(self, topic: str, partition: int) -> bytes | None:
        """Return the topic id in the metadata log."""
        return self.log.topic_id(topic)

    def aborted(self, topic: str, partition: int, start: int, end: int) -> Aborted:
        """Return the aborted transactions in the transaction index."""
        if not self._committed or start >= end:
            return ()
        return tuple(aborted_transactions(self.log, topic, partition, start, end))


class KafkaCatalog:
    """The data directory of a stopped broker.

    Aborted transactions are found in the batches: each partition's headers are read once.
    """

    def __init__(self, path: str, isolation: str) -> None:
        self.path = path
        self._committed = isolation == "read_committed"
        self._known: dict[PartitionKey, KafkaLayoutPartition] = {}
        try:
            refuse_running_broker(path)
        except LockTimeout:
            raise ConfigError(
                f"option 'path' = {path!r}: a Kafka broker is running on it; "
                "stop it, or read a copy"
            ) from None
        self._topics: dict[str, list[int]] = {}
        try:
            names = sorted(os.listdir(path))
        except OSError as error:
            raise ConfigError(
                f"option 'path' = {path!r}: {error.strerror} on {os.uname().nodename}"
            ) from None
        # The path may also be a single partition directory.
        if partition_of_path(path)[1] >= 0 and any(n.endswith(".log") for n in names):
            self.path, names = os.path.dirname(path), [os.path.basename(path)]
        for name in names:
            topic, partition = partition_of_path(name)
            directory = os.path.join(self.path, name)
            if partition >= 0 and os.path.isdir(directory) and name != STAGING:
                self._topics.setdefault(topic, []).append(partition)
        if not self._topics:
            raise ConfigError(
                f"option 'path' = {path!r} with layout = 'kafka': "
                "no directory in it is named TOPIC-PARTITION"
            )

    def topics(self) -> list[str]:
        """Names, sorted."""
        return sorted(self._topics)

    def partitions(self, topic: str) -> list[int]:
        """Numbers, ascending."""
        if topic not in self._topics:
            raise UnknownTopicOrPartition(f"{self.path} has no partition of topic {topic!r}")
        return sorted(self._topics[topic])

    def earliest(self, topic: str, partition: int) -> int:
        """The log start."""
        return self._partition(topic, partition).start

    def latest(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
        """Return the last stable offsets under read_committed, else the log ends."""
        return {key: self._stable(*key) if self._committed else self.end(*key) for key in keys}

    def _stable(self, topic: str, partition: int) -> int:
        """Return the last stable offset, never below the log start."""
        found = self._partition(topic, partition)
        return max(found.stable_end, min(self.earliest(topic, partition), found.end))

    def end(self, topic: str, partition: int) -> int:
        """The log end."""
        return self._partition(topic, partition).end

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """By the batches."""
        return self._partition(topic, partition).offset_at(timestamp_ms)

    def topic_id(self, topic: str, partition: int) -> bytes | None:
        """Return the id in the partition's metadata file; brokers before 2.8 wrote none."""
        directory = os.path.join(self.path, f"{topic}-{partition}")
        try:
            return read_partition_metadata(directory)
        except CorruptRecord:
            return None

    def aborted(self, topic: str, partition: int, start: int, end: int) -> Aborted:
        """By the batches."""
        found = self._partition(topic, partition)
        if self._committed:
            return found.aborted(start, end)
        found.check(start, end)
        return ()

    def _partition(self, topic: str, partition: int) -> KafkaLayoutPartition:
        key = (topic, partition)
        if key not in self._known:
            self._known[key] = KafkaLayoutPartition(os.path.join(self.path, f"{topic}-{partition}"))
        return self._known[key]
