"""What a planner asks of a directory: topics, ends, times, aborted transactions, files.

Two kinds of directory answer: an eoslog directory, through a `Log`, and the data directory of a
Kafka broker (`layout` = kafka), from its files alone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from eoslog import _core
from eoslog.client.staging import STAGING
from eoslog.errors import (
    ConfigError,
    CorruptRecord,
    LockTimeout,
    StorageError,
    UnknownTopicOrPartition,
)
from eoslog.model import INTERNAL_TOPICS, TopicPartition
from eoslog.storage import checkpoints, running_broker, segment_files
from pyspark_eoslog.segments import PartitionFiles

if TYPE_CHECKING:
    from eoslog.log import Log
    from pyspark_eoslog.options import Options, PartitionKey

Aborted = tuple[tuple[int, int, int], ...]


class Catalog(Protocol):
    """A directory of topics, as far as reading them needs."""

    path: str

    def topics(self) -> list[str]:
        """Names, internal ones too."""

    def partitions(self, topic: str) -> list[int]:
        """Partition numbers, ascending; raises UnknownTopicOrPartition."""

    def earliest(self, topic: str, partition: int) -> int:
        """The first offset that may be read."""

    def latest(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
        """Where to read up to, exclusive."""

    def end(self, topic: str, partition: int) -> int:
        """The offset behind the last record there is, visible or not."""

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset whose timestamp is at or after a time."""

    def topic_id(self, topic: str, partition: int) -> bytes | None:
        """What tells a topic from another of the same name; None where nothing says it."""

    def aborted(self, topic: str, partition: int, start: int, end: int) -> Aborted:
        """(producer id, first offset, marker) of aborted transactions that touch a range; nothing
        where aborted records are to be read.
        """


@contextmanager
def open_catalog(options: Options) -> Iterator[Catalog]:
    """The directory of the option `path`, closed at the end.

    Raises:
        ConfigError: It is not there, or not of the layout that the options say.
    """
    if options.layout == "kafka":
        yield KafkaCatalog(options.path, options.isolation)
    else:
        with open_for_planning(options.path) as log:
            yield LogCatalog(log, options.isolation)


@contextmanager
def open_for_planning(path: str) -> Iterator[Log]:
    """The directory, writable where it may be: a snapshot can then finish transactions that a dead
    process left.

    Raises:
        ConfigError: No eoslog directory at `path`.
    """
    log = open_log(path)
    try:
        yield log
    finally:
        log.close()


def open_log(path: str) -> Log:
    """As `open_for_planning`, to be closed by the caller."""
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
                f"option 'path' = {path!r}: the user that the driver on {os.uname().nodename} runs "
                f"as may not read it ({error})"
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
        """Whole transactions under read_committed, else the high watermarks."""
        if not self._committed:
            return {key: self.log.offsets(*key).high_watermark for key in keys}
        own = [key for key in keys if key[0] in INTERNAL_TOPICS]  # a snapshot has none of them
        found = {key: self.log.offsets(*key).last_stable for key in own}
        if len(own) < len(keys):
            cut = self.log.snapshot(sorted({topic for topic, _ in keys} - INTERNAL_TOPICS))
            found |= {key: cut[TopicPartition(*key)] for key in keys if key not in found}
        return found

    def end(self, topic: str, partition: int) -> int:
        """The log end."""
        return self.log.offsets(topic, partition).log_end

    def readable(self, topic: str, partition: int) -> int:
        """Where what may be read ends, in the midst of a transaction or not."""
        offsets = self.log.offsets(topic, partition)
        return offsets.last_stable if self._committed else offsets.log_end

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """As the time index has it."""
        return self.log.offset_for_time(topic, partition, timestamp_ms)

    def topic_id(self, topic: str, partition: int) -> bytes | None:
        """As the metadata log has it."""
        return self.log.engine.topic(topic).topic_id

    def aborted(self, topic: str, partition: int, start: int, end: int) -> Aborted:
        """Of the transaction index."""
        if not self._committed or start >= end:
            return ()
        return tuple(self.log.engine.partition(topic, partition).aborted(start, end))


class KafkaCatalog:
    """The data directory of a broker that does not run.

    Aborted transactions come from the `.txnindex` files of sealed segments; from the newest
    producer snapshot on, batches are folded.
    """

    def __init__(self, path: str, isolation: str) -> None:
        self.path = path
        self._committed = isolation == "read_committed"
        self._known: dict[PartitionKey, _KafkaPartition] = {}
        try:
            running_broker.refuse(path)
        except LockTimeout:
            raise ConfigError(
                f"option 'path' = {path!r}: a Kafka broker runs on it; stop it or read a copy"
            ) from None
        self._topics: dict[str, list[int]] = {}
        try:
            names = sorted(os.listdir(path))
        except OSError as error:
            raise ConfigError(
                f"option 'path' = {path!r}: {error.strerror} on {os.uname().nodename}"
            ) from None
        # One partition directory is as good as a directory of them.
        if segment_files.partition_of_path(path)[1] >= 0 and any(n.endswith(".log") for n in names):
            self.path, names = os.path.dirname(path), [os.path.basename(path)]
        for name in names:
            topic, partition = segment_files.partition_of_path(name)
            directory = os.path.join(self.path, name)
            if partition >= 0 and os.path.isdir(directory) and name != STAGING:
                self._topics.setdefault(topic, []).append(partition)
        if not self._topics:
            raise ConfigError(
                f"option 'path' = {path!r} with layout = 'kafka': "
                "no directory in it is named TOPIC-PARTITION"
            )
        starts = os.path.join(self.path, checkpoints.LOG_START_CHECKPOINT)
        self._starts = checkpoints.read_offsets(starts, lenient=True)

    def topics(self) -> list[str]:
        """Names, sorted."""
        return sorted(self._topics)

    def partitions(self, topic: str) -> list[int]:
        """Numbers, ascending."""
        if topic not in self._topics:
            raise UnknownTopicOrPartition(f"{self.path} holds no partition of a topic {topic!r}")
        return sorted(self._topics[topic])

    def earliest(self, topic: str, partition: int) -> int:
        """The log start."""
        first = self._partition(topic, partition).files.bases[0]
        return max(first, self._starts.get((topic, partition), 0))

    def latest(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
        """The last stable offsets, or the ends."""
        return {
            key: self._partition(*key).stable_end if self._committed else self.end(*key)
            for key in keys
        }

    def end(self, topic: str, partition: int) -> int:
        """The log end."""
        return self._partition(topic, partition).end

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """As the time index has it."""
        return self._partition(topic, partition).offset_at(
            self.earliest(topic, partition), timestamp_ms
        )

    def topic_id(self, topic: str, partition: int) -> bytes | None:
        """As the partition's own file has it; brokers before 2.8 made none."""
        directory = os.path.join(self.path, f"{topic}-{partition}")
        try:
            return checkpoints.read_partition_metadata(directory)
        except CorruptRecord:
            return None

    def aborted(self, topic: str, partition: int, start: int, end: int) -> Aborted:
        """Of the transaction index."""
        if not self._committed:
            return ()
        found = self._partition(topic, partition).aborted
        return tuple(one for one in found if one[2] >= start and one[1] < end)

    def _partition(self, topic: str, partition: int) -> _KafkaPartition:
        key = (topic, partition)
        if key not in self._known:
            self._known[key] = _KafkaPartition(os.path.join(self.path, f"{topic}-{partition}"))
        return self._known[key]


class _KafkaPartition:
    """One partition directory: its end, its stable end and what was aborted."""

    def __init__(self, directory: str) -> None:
        self.files = PartitionFiles(directory)
        self._segments = self.files.segments
        first = self._first_to_fold(directory)
        sealed, tail = self._segments[:first], self._segments[first:]
        fold = _core.TransactionFold(segment_files.open_before(tail))
        segment_files.feed_transactions(fold, tail)
        self.end = max(fold.next_offset, tail[0].base_offset)
        # Of an empty last segment the fold knows no offset: its own end would be 0.
        self.stable_end = min([*fold.open.values(), self.end])
        self.aborted = [
            (entry.producer_id, entry.first_offset, entry.last_offset)
            for segment in sealed
            for entry in segment_files.read_txn_index(segment.beside("txnindex"))
        ]
        self.aborted += fold.aborted

    def _first_to_fold(self, directory: str) -> int:
        """Number of the segment at whose base the newest readable producer snapshot stands."""
        snapshots = {
            segment_files.offset_of_name(n) for n in segment_files.list_snapshots(directory)
        }
        for number in range(len(self._segments) - 1, 0, -1):
            segment = self._segments[number]
            if segment.base_offset in snapshots:
                try:
                    segment_files.read_snapshot(segment.beside("snapshot"))
                except CorruptRecord:
                    continue
                return number
        return 0

    def offset_at(self, start: int, timestamp_ms: int) -> int | None:
        """As the time index has it."""
        for number, segment in enumerate(self._segments):
            following = self._segments[number + 1 : number + 2]
            stop = following[0].base_offset if following else self.end
            if stop <= start:
                continue
            entries = segment_files.read_time_index(
                segment.beside("timeindex"), segment.base_offset
            )
            if following and entries and entries[-1][0] < timestamp_ms:
                continue
            for batch in segment.batches():
                if batch.control or batch.max_timestamp < timestamp_ms:
                    continue
                for offset, timestamp, *_ in batch.records():
                    if timestamp >= timestamp_ms and start <= offset < self.end:
                        return int(offset)
        return None
