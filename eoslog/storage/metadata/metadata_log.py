"""Topics, their partitions and configurations, and blocks of producer ids: the fold of one log.

`__cluster_metadata-0` decides which topics exist. Every change has the same four steps: fold the
log, decide, append on the condition that the log end has not moved since, and flush. If it has
moved, the change starts again.

Source: KIP-631. For the record formats, see `records.py`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from eoslog._core import MAX_SLOTS, build_batch
from eoslog._util.arguments import shown
from eoslog.config.keys import TopicConfig
from eoslog.errors import (
    InvalidPartitions,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from eoslog.model import INTERNAL_TOPICS, STAGING_TOPIC, AppendOrigin, AppendResult
from eoslog.storage.format.checkpoints import new_id
from eoslog.storage.metadata.image import (
    MetadataFold,
    TopicInfo,
    internal_topics,
    is_first_use_topic,
)
from eoslog.storage.metadata.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    decode,
)

PRODUCER_ID_BLOCK = 1_000
MAX_NAME = 249
# The creation of a topic is one batch, so that it is atomic, and a batch has at most 1 MiB.
MAX_PARTITIONS = 10_000
_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class FoldedLog(Protocol):
    """A log whose fold is some state; `PartitionLog` is one.

    Thread-safe. Each access to an end reads the control file.
    """

    @property
    def log_start(self) -> int:
        """The first offset of the log."""

    @property
    def log_end(self) -> int:
        """The offset of the next record to be appended."""

    @property
    def high_watermark(self) -> int:
        """The durable end, or the log end in an `os` directory."""

    def batches(self, start: int, end: int) -> Iterator[Any]:
        """Yield every batch of [start, end), including control batches."""

    def append(
        self, batch: bytes | bytearray, *, expect: Sequence[tuple[Any, int]] = ...,
        origin: AppendOrigin = ..., timeout: float | None = ...,
    ) -> AppendResult | None:  # fmt: skip
        """Append a batch; return None if a log in `expect` does not end at the given offset."""

    def flush(self, up_to: int | None = None) -> None:
        """Make everything below `up_to` durable, unless this is an `os` directory."""


class SyncedLog(FoldedLog, Protocol):
    """A log that can be made durable in an `os` directory too."""

    def sync(self) -> None:
        """Make everything published durable, in an `os` directory too."""


def check_topic_name(name: object) -> str:
    """Return a topic name if it is valid.

    Raises:
        InvalidTopic: if the name is empty, longer than 249 characters or reserved, or has other
            characters than ASCII letters and digits, dot, underscore and dash.
    """
    name = _as_text(name)
    if name in (".", ".."):
        raise InvalidTopic(f"topic name {shown(name)} is reserved; choose another name")
    if not 0 < len(name) <= MAX_NAME:
        raise InvalidTopic(f"topic name must have 1 to {MAX_NAME} characters, got {len(name)}")
    if _NAME.fullmatch(name) is None:
        raise InvalidTopic(
            f"topic name {shown(name)} has other characters than letters, digits, '.', '_' and "
            "'-'; use only these"
        )
    if name == STAGING_TOPIC:
        raise InvalidTopic(
            f"topic name {shown(name)} is reserved for staged writes; choose another name"
        )
    return name


def _as_text(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidTopic(f"topic name must be a str, got {type(name).__name__}")
    return name


def _check_partitions(count: object, low: int, topic: str) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not low <= count <= MAX_PARTITIONS:
        raise InvalidPartitions(
            f"topic {shown(topic)}: number of partitions must be {low} to {MAX_PARTITIONS}, got "
            f"{shown(count)}"
        )
    return count


def _ignore() -> None:
    """Check nothing before a change."""


class MetadataLog:
    """The fold of `__cluster_metadata-0`, and the only way to add to it.

    Thread-safe.

    Args:
        log: the partition log.
        internal: the internal topics without records; their slots come before all others.
        clock_ms: returns the wall clock time in ms, for record timestamps.
        read_only: never flush.
        before_change: called before each change; may raise an error to reject it.

    Invariants:
        - `internal_topics` has those without records and those of `first_use_topics`
        - a slot belongs to one partition forever, even after its topic was deleted
        - `topics` shows only durable changes, or, in an "os" directory, published ones
    """

    def __init__(
        self,
        log: SyncedLog,
        internal: Mapping[str, TopicInfo] | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        *,
        read_only: bool = False,
        before_change: Callable[[], None] = _ignore,
    ) -> None:
        """Start with an empty fold at the beginning of the log; `refresh` reads the log."""
        self._log = log
        self._clock_ms = clock_ms
        self._read_only = read_only
        self._mutex = threading.Lock()
        self._position = 0
        self._topics: dict[str, TopicInfo] = {}
        self._deleted: dict[bytes, TopicInfo] = {}
        self._next_producer_id = 0
        self._fixed = dict(internal or internal_topics(50, 50))
        self._first_use: dict[str, TopicInfo] = {}
        self.internal_topics: Mapping[str, TopicInfo] = self._fixed
        self._before_change = before_change
        self._next_slot = sum(len(topic.partitions) for topic in self.internal_topics.values())

    @property
    def topics(self) -> Mapping[str, TopicInfo]:
        """User topics by name, at the last refresh."""
        return self._topics

    @property
    def first_use_topics(self) -> Mapping[str, TopicInfo]:
        """Internal topics that were created at their first use, at the last refresh."""
        return self._first_use

    @property
    def deleted(self) -> Mapping[bytes, TopicInfo]:
        """Deleted topics by id, at the last refresh; their directories can be removed."""
        return self._deleted

    @property
    def position(self) -> int:
        """The offset up to which the log is folded (exclusive)."""
        return self._position

    @property
    def next_producer_id(self) -> int:
        """The first producer id that no block contains."""
        return self._next_producer_id

    @property
    def log(self) -> Any:
        """The partition log that this object folds."""
        return self._log

    @property
    def outdated(self) -> bool:
        """Whether records were appended since the last refresh."""
        return self._log.log_end != self._position

    def refresh(self) -> None:
        """Fold the records appended since the last refresh, flushing them first if necessary.

        A read-only log cannot flush, and folds only durable records.
        """
        end = self._log.log_end
        if end == self._position:
            return
        if end > self._log.high_watermark and not self._read_only:
            self._log.flush(end)
        end = min(end, self._log.high_watermark)
        with self._mutex:
            self._fold(end)

    def find(self, name: str) -> TopicInfo | None:
        """Refresh, and return a user or internal topic; None if it does not exist."""
        _as_text(name)
        self.refresh()
        return self._topics.get(name) or self.internal_topics.get(name)

    def topic(self, name: str) -> TopicInfo:
        """Refresh, and return a user or internal topic.

        Raises:
            UnknownTopicOrPartition: if the topic does not exist.
        """
        found = self.find(name)
        if found is None:
            raise UnknownTopicOrPartition(
                f"topic {shown(name)} does not exist; create it with log.create_topic({name!r}) "
                "(producing does not create topics)"
            )
        return found

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, Any] | None = None,
        *,
        settled: Collection[bytes] | None = None,
    ) -> TopicInfo:
        """Create a topic.

        Args:
            name: topic name.
            partitions: number of partitions.
            config: configuration that differs from the defaults.
            settled: ids of deleted topics that are removed completely; None skips that check.

        Raises:
            InvalidTopic, InvalidPartitions, ConfigError: if an argument is invalid.
            TopicAlreadyExists: if the topic exists or is being deleted.

        Durability: durable on return.
        """
        check_topic_name(name)
        _as_text(name)
        if name in INTERNAL_TOPICS:
            raise InvalidTopic(f"topic {shown(name)} is internal; choose another name")
        _check_partitions(partitions, 1, name)
        epochs = dict.fromkeys(range(partitions), 0)
        return self._add_topic(name, new_id(), epochs, config, settled)

    def adopt_topic(
        self,
        name: str,
        topic_id: bytes,
        leader_epochs: Mapping[int, int],
        config: Mapping[str, Any] | None = None,
    ) -> TopicInfo:
        """Create a topic with a given id, for example that of another log's topic.

        Args:
            name: topic name.
            topic_id: id of the topic.
            leader_epochs: leader epoch for new batches, by partition.
            config: configuration that differs from the defaults.

        Raises and durability: as `create_topic`.
        """
        check_topic_name(name)
        _check_partitions(len(leader_epochs), 1, name)
        return self._add_topic(name, topic_id, leader_epochs, config)

    def _add_topic(
        self,
        name: str,
        topic_id: bytes,
        leader_epochs: Mapping[int, int],
        config: Mapping[str, Any] | None,
        settled: Collection[bytes] | None = None,
    ) -> TopicInfo:
        stored = TopicConfig.of(config).as_strings()

        def decide() -> list[MetadataRecord]:
            if name in self._topics or name in self._first_use:
                raise TopicAlreadyExists(
                    f"topic {shown(name)} already exists; choose another name, or use it"
                )
            if settled is not None and any(
                info.name == name and topic_id not in settled
                for topic_id, info in self._deleted.items()
            ):
                raise TopicAlreadyExists(f"topic {shown(name)} is being deleted; retry")
            self._check_slots(name, len(leader_epochs))
            return [
                TopicRecord(name, topic_id),
                *(ConfigRecord(name, key, value) for key, value in stored.items()),
                *(PartitionRecord(p, topic_id, self._next_slot + p, leader_epochs[p])
                  for p in range(len(leader_epochs))),
            ]  # fmt: skip

        self._change(decide)
        return self.topic(name)

    def reserve_producer_ids(self, below: int) -> None:
        """Never allocate a producer id below this one, because it may be in use.

        Durability: durable on return, in an "os" directory too.
        """

        def decide() -> list[MetadataRecord]:
            return [ProducerIdsRecord(below)] if below > self._next_producer_id else []

        self._change(decide)
        self._log.sync()

    def create_partitions(self, name: str, total: int) -> TopicInfo:
        """Increase the number of partitions of a topic to `total`.

        Raises:
            InvalidPartitions: if `total` is not above the current number, or no slots are left.
            UnknownTopicOrPartition, InvalidTopic: if there is no such user topic.

        Durability: durable on return.
        """

        def decide() -> list[MetadataRecord]:
            info = self._user_topic(name)
            have = len(info.partitions)
            _check_partitions(total, have + 1, name)
            self._check_slots(name, total - have)
            return [
                PartitionRecord(have + i, info.topic_id, self._next_slot + i)
                for i in range(total - have)
            ]

        self._change(decide)
        return self.topic(name)

    def alter_topic(self, name: str, config: Mapping[str, Any]) -> TopicInfo:
        """Set keys of a topic's configuration; None resets a key to its default.

        Raises:
            ConfigError: if a key or value is invalid, or keys conflict.
            UnknownTopicOrPartition, InvalidTopic: if there is no such user topic.

        Durability: durable on return.
        """
        unset = {str(key).replace("_", ".") for key, value in config.items() if value is None}
        changed = {key: value for key, value in config.items() if value is not None}
        known = TopicConfig.parsers()
        # Reject unknown keys to reset in the same way as unknown keys to set.
        TopicConfig.of(dict.fromkeys(unset - set(known)))
        stored = TopicConfig.of(changed).as_strings()

        def decide() -> list[MetadataRecord]:
            info = self._user_topic(name)
            kept = {key: value for key, value in info.config.items() if key not in unset}
            TopicConfig.of({**kept, **stored})
            return [
                *(ConfigRecord(name, key, value) for key, value in stored.items()
                  if info.config.get(key) != value),
                *(ConfigRecord(name, key, None) for key in sorted(unset & set(info.config))),
            ]  # fmt: skip

        self._change(decide)
        return self.topic(name)

    def delete_topic(self, name: str) -> TopicInfo:
        """Delete a topic; its slots are not used again.

        Raises:
            UnknownTopicOrPartition, InvalidTopic: if there is no such user topic.

        Durability: durable on return.
        """
        gone: list[bytes] = []

        def decide() -> list[MetadataRecord]:
            gone[:] = [self._user_topic(name).topic_id]
            return [RemoveTopicRecord(gone[0])]

        self._change(decide)
        return self._deleted[gone[0]]

    def allocate_producer_ids(self) -> range:
        """Allocate a block of producer ids that no other call gets.

        Durability: durable on return, in an "os" directory too. A crash may waste ids but never
        reuses one. Otherwise a power loss could keep the records of an id and lose the allocation;
        a new producer would get the id, and its records would be treated as duplicates.
        """
        taken: list[int] = []

        def decide() -> list[MetadataRecord]:
            taken[:] = [self._next_producer_id]
            return [ProducerIdsRecord(self._next_producer_id + PRODUCER_ID_BLOCK)]

        self._change(decide)
        self._log.sync()
        return range(taken[0], taken[0] + PRODUCER_ID_BLOCK)

    def _check_slots(self, topic: str, more: int) -> None:
        if self._next_slot + more > MAX_SLOTS:
            raise InvalidPartitions(
                f"topic {topic!r}: cannot add {more} partitions: a log can have {MAX_SLOTS} over "
                f"its lifetime, deleted ones included, and {self._next_slot} are used; start a "
                "new log"
            )

    def _user_topic(self, name: str) -> TopicInfo:
        info = self._topics.get(name)
        if info is None and name in INTERNAL_TOPICS:
            raise InvalidTopic(f"topic {shown(name)} is internal and cannot be changed")
        if info is None:
            raise UnknownTopicOrPartition(
                f"topic {shown(name)} does not exist; log.topics() lists the topics"
            )
        return info

    def _change(self, decide: Callable[[], list[MetadataRecord]]) -> None:
        """Append the records that `decide` returns for the current state, and make them durable."""
        self._before_change()
        while True:
            self.refresh()
            with self._mutex:
                # The end of the fold, not of the log: another thread may fold more after this.
                end, records = self._position, decide()
            if not records:
                return
            now = self._clock_ms()
            batch = build_batch([(now, None, record.encode(), ()) for record in records])
            done = self._log.append(
                batch, expect=[(self._log, end)], origin=AppendOrigin.COORDINATOR
            )
            if done is not None:
                self.refresh()  # flushes
                return

    def _fold(self, end: int) -> None:
        start = max(self._position, self._log.log_start)
        if start >= end:
            return
        before = {**self._first_use, **self._topics}
        state = MetadataFold(before, dict(self._deleted), self._next_slot)
        state.next_producer_id = self._next_producer_id
        for batch in self._log.batches(start, end):
            if not batch.control and batch.last_offset >= start:
                for record in batch.records():
                    state.apply(decode(record[3]))
        # Replaced by assignment: readers of `topics` take no lock.
        self._first_use = {n: t for n, t in state.topics.items() if is_first_use_topic(t)}
        self.internal_topics = {**self._fixed, **self._first_use}
        user = {n: t for n, t in state.topics.items() if n not in self._first_use}
        self._topics, self._deleted = user, state.deleted
        self._next_slot, self._next_producer_id = state.next_slot, state.next_producer_id
        self._position = end
