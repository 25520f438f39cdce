"""Topics, their partitions and configurations, and blocks of producer ids: a fold of one log.

`__cluster_metadata-0` is the only place that says which topics exist. Changing it is what every
change is here: fold, decide, append if the log still ends where the decision was made, flush.

Source: KIP-631; `metadata_records` for the bytes.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from eoslog._core import MAX_SLOTS, build_batch
from eoslog.config import TopicConfig
from eoslog.errors import (
    InvalidPartitions,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from eoslog.model import (
    INTERNAL_TOPICS,
    STAGING_TOPIC,
    AppendOrigin,
    AppendResult,
)
from eoslog.storage.checkpoints import new_id
from eoslog.storage.metadata_fold import MetadataFold, PartitionInfo, TopicInfo, internal_topics
from eoslog.storage.metadata_records import (
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
# One topic's creation is one batch, so that it is all there or not at all, and a batch is 1 MiB.
MAX_PARTITIONS = 10_000
_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class FoldedLog(Protocol):
    """What a state that is the fold of a log needs of it; `storage.PartitionLog` is one.

    Thread-safe. The ends are read from the shared page at each access.
    """

    @property
    def log_start(self) -> int:
        """First offset that is kept."""

    @property
    def log_end(self) -> int:
        """Next offset to be written."""

    @property
    def high_watermark(self) -> int:
        """What counts as durable ends here: the flushed end, in an `os` directory the log's."""

    def batches(self, start: int, end: int) -> Iterator[Any]:
        """Every batch of [start, end), control batches too."""

    def append(
        self, batch: bytes | bytearray, *, expect: Sequence[tuple[Any, int]] = ...,
        origin: AppendOrigin = ..., timeout: float | None = ...,
    ) -> AppendResult | None:  # fmt: skip
        """Append, or None if one of the logs in `expect` no longer ends where said."""

    def flush(self, up_to: int | None = None) -> None:
        """Everything below `up_to` counts as durable on return."""


class SyncedLog(FoldedLog, Protocol):
    """A log that can be made durable whatever the directory's durability."""

    def sync(self) -> None:
        """What is published is on the disk on return, in an `os` directory too."""


def check_topic_name(name: object) -> str:
    """The name, if it is legal.

    Raises:
        InvalidTopic: empty, longer than 249, `.` or `..`, or with other characters than letters
            and digits of ASCII, dot, underscore and dash; or the folder's of staged writes.
    """
    if not isinstance(name, str):
        raise InvalidTopic(f"a topic name is a str, not {type(name).__name__}")
    if name in (".", ".."):
        raise InvalidTopic(f"topic name {name!r} is a directory's")
    if not 0 < len(name) <= MAX_NAME:
        raise InvalidTopic(f"a topic name has 1 to {MAX_NAME} characters, this one {len(name)}")
    if _NAME.fullmatch(name) is None:
        raise InvalidTopic(f"topic name {name!r}: only letters, digits, '.', '_' and '-'")
    if name == STAGING_TOPIC:
        raise InvalidTopic(f"topic name {name!r} is the folder's of staged writes")
    return name


def _check_partitions(count: object, low: int, topic: str) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not low <= count <= MAX_PARTITIONS:
        raise InvalidPartitions(
            f"topic {topic!r}: expected {low}..{MAX_PARTITIONS} partitions, got {count!r}"
        )
    return count


class MetadataLog:
    """The fold of `__cluster_metadata-0`, and the only way to add to it.

    Args:
        log: the partition log.
        internal: the internal topics; their slots come before those of all user topics.
        clock_ms: wall clock for record timestamps.
        read_only: flush nothing.

    Thread-safety: every method may be called from any thread.

    Invariants:
        - a slot belongs to one partition for ever, also after its topic was deleted
        - what `topics` shows is durable, or, in an "os" directory, published
    """

    def __init__(
        self,
        log: SyncedLog,
        internal: Mapping[str, TopicInfo] | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        *,
        read_only: bool = False,
    ) -> None:
        """Start at the log's beginning; `refresh` reads it."""
        self._log = log
        self._clock_ms = clock_ms
        self._read_only = read_only
        self._mutex = threading.Lock()
        self._position = 0
        self._topics: dict[str, TopicInfo] = {}
        self._deleted: dict[bytes, TopicInfo] = {}
        self._next_producer_id = 0
        self.internal_topics = internal or internal_topics(50, 50)
        self._next_slot = sum(len(topic.partitions) for topic in self.internal_topics.values())

    @property
    def topics(self) -> Mapping[str, TopicInfo]:
        """User topics by name, as of the last refresh."""
        return self._topics

    @property
    def deleted(self) -> Mapping[bytes, TopicInfo]:
        """Deleted topics by id, as of the last refresh: their directories may be removed."""
        return self._deleted

    @property
    def position(self) -> int:
        """The offset up to which the log is folded (exclusive)."""
        return self._position

    @property
    def next_producer_id(self) -> int:
        """The first producer id of no block."""
        return self._next_producer_id

    def refresh(self) -> None:
        """Fold what was appended since, making it durable first if nobody has.

        A reader cannot: it sees what is durable.
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
        """A user or internal topic, None if there is none; refreshes."""
        self.refresh()
        return self._topics.get(name) or self.internal_topics.get(name)

    def topic(self, name: str) -> TopicInfo:
        """A user or internal topic; refreshes.

        Raises:
            UnknownTopicOrPartition: there is none.
        """
        found = self.find(name)
        if found is None:
            raise UnknownTopicOrPartition(
                f"no topic {name!r}; topics are not made by writing: create_topic({name!r})"
            )
        return found

    def by_slot(self, slot: int) -> tuple[TopicInfo, PartitionInfo] | None:
        """The partition that owns a slot, deleted or not; None if no one does."""
        self.refresh()
        for topics in (self.internal_topics, self._topics, self._deleted):
            for info in topics.values():
                for partition in info.partitions.values():
                    if partition.slot == slot:
                        return info, partition
        return None

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
            name: its name.
            partitions: how many.
            config: what differs from the defaults.
            settled: the deleted topics of which nothing is left; None: do not ask.

        Raises:
            InvalidTopic, InvalidPartitions, ConfigError: an argument is wrong.
            TopicAlreadyExists: the name is taken.

        Durability: durable on return.
        """
        check_topic_name(name)
        if name in INTERNAL_TOPICS:
            raise InvalidTopic(f"{name!r} is an internal topic")
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
        """Take over a topic that another log made: its id, and by partition the epoch to go on in.

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
            if name in self._topics:
                raise TopicAlreadyExists(f"topic {name!r} exists")
            if settled is not None and any(
                info.name == name and topic_id not in settled
                for topic_id, info in self._deleted.items()
            ):
                raise TopicAlreadyExists(f"topic {name!r} is just being deleted")
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
        """Never hand out a producer id below this: others have.

        Durability: on the disk on return, in an "os" directory too.
        """

        def decide() -> list[MetadataRecord]:
            return [ProducerIdsRecord(below)] if below > self._next_producer_id else []

        self._change(decide)
        self._log.sync()

    def create_partitions(self, name: str, total: int) -> TopicInfo:
        """Grow a topic to `total` partitions.

        Raises:
            InvalidPartitions: `total` is not more than there are, or no slots are left for them.
            UnknownTopicOrPartition, InvalidTopic: no such user topic.

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
        """Set keys of a topic's configuration; None takes a key back to its default.

        Raises:
            ConfigError: a key or value is wrong, or they conflict with those that are set.
            UnknownTopicOrPartition, InvalidTopic: no such user topic.

        Durability: durable on return.
        """
        unset = {key.replace("_", ".") for key, value in config.items() if value is None}
        changed = {key: value for key, value in config.items() if value is not None}
        known = TopicConfig.parsers()
        # An unknown key to unset is refused like one to set; a known one needs no value.
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
            UnknownTopicOrPartition, InvalidTopic: no such user topic.

        Durability: durable on return.
        """
        gone: list[bytes] = []

        def decide() -> list[MetadataRecord]:
            gone[:] = [self._user_topic(name).topic_id]
            return [RemoveTopicRecord(gone[0])]

        self._change(decide)
        return self._deleted[gone[0]]

    def allocate_producer_ids(self) -> range:
        """Take a block of producer ids that no one else has or will have.

        Durability: on the disk on return, in an "os" directory too: a crash wastes ids and never
        repeats one. A power cut keeps any subset of what was not synced: where it kept an id's
        records and lost its block, who got the id again would be told that its records are
        duplicates of them.
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
                f"topic {topic!r}: {more} partitions are too many: a directory has {MAX_SLOTS} in "
                f"its life, those of deleted topics too, and {self._next_slot} are taken"
            )

    def _user_topic(self, name: str) -> TopicInfo:
        if name in INTERNAL_TOPICS:
            raise InvalidTopic(f"{name!r} is an internal topic")
        info = self._topics.get(name)
        if info is None:
            raise UnknownTopicOrPartition(f"no topic {name!r}")
        return info

    def _change(self, decide: Callable[[], list[MetadataRecord]]) -> None:
        """Append what `decide` says of the state at the log's end, and make it durable."""
        while True:
            self.refresh()
            with self._mutex:
                # The end that was decided on, not the log's: another thread may have folded on.
                end, records = self._position, decide()
            if not records:
                return
            now = self._clock_ms()
            batch = build_batch([(now, None, record.encode(), ()) for record in records])
            done = self._log.append(
                batch, expect=[(self._log, end)], origin=AppendOrigin.COORDINATOR
            )
            if done is not None:
                self.refresh()  # which makes durable what it shows
                return

    def _fold(self, end: int) -> None:
        start = max(self._position, self._log.log_start)
        if start >= end:
            return
        state = MetadataFold(dict(self._topics), dict(self._deleted), self._next_slot)
        state.next_producer_id = self._next_producer_id
        for batch in self._log.batches(start, end):
            if not batch.control and batch.last_offset >= start:
                for record in batch.records():
                    state.apply(decode(record[3]))
        # Published whole: readers of `topics` take no lock.
        self._topics, self._deleted = state.topics, state.deleted
        self._next_slot, self._next_producer_id = state.next_slot, state.next_producer_id
        self._position = end
