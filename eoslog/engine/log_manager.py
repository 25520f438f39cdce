"""The open partitions of this process.

A partition is opened at its first use. All of `__transaction_state` is opened before any data
partition, because it decides what happens to the open transactions of that partition.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from eoslog.engine.deleted_namesakes import DeletedNamesakes
from eoslog.engine.partition_opener import PartitionOpener, Place
from eoslog.errors import CorruptRecord, IllegalState, StorageError, UnknownTopicOrPartition
from eoslog.model import CLUSTER_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from eoslog.shown_paths import get_logger
from eoslog.storage.directory.last_run import LastRun
from eoslog.storage.directory.session import Session
from eoslog.storage.fs import files
from eoslog.storage.log.partition_log import LogSettings, PartitionLog
from eoslog.storage.metadata.image import PartitionInfo
from eoslog.storage.metadata.metadata_log import MetadataLog
from eoslog.storage.segment.carried_batches import CarriedAbove, nothing_carried

logger = get_logger("eoslog.partitions")


@dataclass(frozen=True, slots=True)
class PartitionEvents:
    """The engine's callbacks for partitions that are opened or dropped."""

    recovered: Callable[[PartitionLog], object]
    """Called after the recovery of a data partition, to end its open transactions."""
    viewed: Callable[[PartitionLog], object]
    """Called after the scan of a data partition for a fixed view, which ends none."""
    carried: Callable[[TopicPartition, bytes], CarriedAbove]
    """Called before the recovery of a data partition with a topic id, for what decisions carry."""
    forgotten: Callable[[PartitionLog], object]
    """Called before a partition is closed because its topic was deleted."""


class OpenPartitions:
    """The open partitions of a directory, by name. Thread-safe.

    Args:
        session: the session of the directory.
        metadata: the topics of the directory.
        metadata_log: the open partition of the metadata.
        opener: opens one partition.
        transaction_partitions: the number of partitions of `__transaction_state`.
        check: raises if the directory is closed.
        events: the engine's callbacks.

    Invariants:
        - A process has one PartitionLog per partition, with the topic id in the metadata.
        - When a data partition opens, all existing transaction logs are open and folded.
    """

    def __init__(
        self,
        session: Session,
        metadata: MetadataLog,
        metadata_log: PartitionLog,
        opener: PartitionOpener,
        *,
        transaction_partitions: int,
        check: Callable[[], None],
        events: PartitionEvents,
    ) -> None:
        """Start with the metadata log only."""
        self.session = session
        self.metadata = metadata
        self._opener = opener
        self._transaction_partitions = transaction_partitions
        self._check = check
        self._events = events
        self._namesakes = DeletedNamesakes(session, metadata)
        self._mutex = threading.RLock()
        self._partitions = {(metadata_log.topic, metadata_log.partition): metadata_log}
        self._missing: dict[tuple[str, int], int] = {}  # internal ones, with their slots
        self._folded = False  # the transaction logs
        self._gated = False  # True: no append succeeds
        self._closed = False  # True: no partition is opened

    @property
    def last_run(self) -> LastRun:
        """The state that the last session left."""
        return self._opener.last_run

    def __iter__(self) -> Iterator[PartitionLog]:
        return iter(list(self._partitions.values()))

    def known(self, topic: str, partition: int) -> PartitionLog | None:
        """The partition, if it is open."""
        return self._partitions.get((topic, partition))

    def partition(self, topic: str, partition: int) -> PartitionLog:
        """Return an open partition, which the first use in a session recovers.

        Raises:
            UnknownTopicOrPartition: if it does not exist, or was deleted.
            CorruptRecord, StorageError: if it cannot be opened.
        """
        log = self._partitions.get((topic, partition))
        if log is not None and not log.core.deleted:
            return log
        self._check()
        info = self.metadata.topic(topic)
        return self.open(topic, partition, info.partition(partition), info.topic_id, info.config)

    def settled(self, topic: str, partition: int) -> PartitionLog:
        """Return a partition with the current settings of its topic.

        Cleaners use it, because another process may have altered the settings.

        Raises:
            EoslogError: as `partition`.
        """
        log = self.partition(topic, partition)
        settings = LogSettings.of(dict(self.metadata.topic(topic).config))
        if settings != log.settings:
            log.configure(settings)
        return log

    def open(
        self,
        topic: str,
        partition: int,
        info: PartitionInfo,
        topic_id: bytes,
        config: Mapping[str, str],
    ) -> PartitionLog:
        """Open a partition with known metadata; recover it at the first use."""
        self._fold_transaction_logs_before(topic)
        self.session.directory.require_often()
        found = self._living(topic, partition)
        if found is not None:
            return found
        self._namesakes.await_users(topic, partition, topic_id)
        carried: CarriedAbove = nothing_carried
        if self._may_lack_batches(topic, info.slot):
            carried = self._events.carried(TopicPartition(topic, partition), topic_id)
        with self._mutex:
            found = self._living(topic, partition)
            if found is not None:
                return found
            if self._closed:
                raise IllegalState("the log is closed; open it again")
            log, recovered = self._opener.open(
                Place(topic, info, topic_id, config), self.metadata, carried
            )
            if self._gated:
                log.core.gate()
            self._partitions[topic, partition] = log
        if topic != TRANSACTION_STATE_TOPIC:
            if recovered:
                self._events.recovered(log)
            elif self.session.private:
                self._events.viewed(log)
        return log

    def _may_lack_batches(self, topic: str, slot: int) -> bool:
        """Whether a partition may lack batches that a decision carries."""
        if self.last_run.clean or topic in (CLUSTER_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
            return False
        return self.session.private or self.session.control.published_ends((slot,))[0] < 0

    def _living(self, topic: str, partition: int) -> PartitionLog | None:
        """The open partition, unless its topic was deleted."""
        with self._mutex:
            log = self._partitions.get((topic, partition))
            if log is not None and log.core.deleted:
                self._forget(log)
                return None
            return log

    def _fold_transaction_logs_before(self, topic: str) -> None:
        """Open and fold all transaction logs before the first data partition."""
        internal = topic in (CLUSTER_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)
        if internal or self._folded or self.session.read_only:
            return
        with self._mutex:
            if self._folded:
                return
            for log in self.existing(TRANSACTION_STATE_TOPIC, self._transaction_partitions):
                log.fold()
            self._folded = True

    def drop(self, topic: str, partition: int) -> None:
        """Close a partition whose topic was deleted."""
        with self._mutex:
            log = self._partitions.get((topic, partition))
            if log is not None and log.core.deleted:  # else another topic has the name now
                self._forget(log)

    def holding_removed(self) -> list[PartitionLog]:
        """The partitions with open files that another process has removed."""
        if self.session.outdated:  # all files of the old view can be released
            return [log for log in self if log.segments.holds_removed(True)]
        return [log for log in self if log.core.deleted or log.holds_removed]

    def release_removed(self) -> None:
        """Close files that other processes have removed; views of them stay valid."""
        outdated = self.session.outdated
        for log in self.holding_removed():
            try:
                if outdated:
                    log.segments.clear()
                elif not log.core.deleted:
                    log.release_removed()
                else:
                    with self._mutex:
                        if self._partitions.get((log.topic, log.partition)) is log:
                            self._forget(log)
            except (CorruptRecord, StorageError, UnknownTopicOrPartition) as error:
                # The next reader gets the error. A topic may be deleted in the meantime.
                logger.debug("%s: releasing removed files failed, retrying: %s", log.name, error)

    @contextlib.contextmanager
    def last_look(self) -> Iterator[None]:
        """Prevent other threads from opening partitions, from the block on.

        A clean close uses it. The mutex is taken before the bootstrap lock, in the same order as by
        an opening.
        """
        with self._mutex:
            try:
                yield
            finally:
                self._closed = True

    def gate(self) -> None:
        """Stop all appends of this process, and publish what is appended.

        Call it inside `last_look`. Partitions that are opened later are gated too.
        """
        self._gated = True
        for log in list(self._partitions.values()):
            log.core.gate()

    def close(self) -> None:
        """Close all partitions; later openings raise IllegalState."""
        with self._mutex:
            self._closed = True
            for log in self._partitions.values():
                log.close()

    def _forget(self, log: PartitionLog) -> None:
        self._namesakes.keep_lock(log)
        self._partitions.pop((log.topic, log.partition), None)
        self._events.forgotten(log)
        log.close(deleted=True)

    def existing(self, topic: str, count: int, *, first: int = 0) -> list[PartitionLog]:
        """The existing partitions of an internal topic, from number `first` on.

        Raises:
            CorruptRecord, StorageError: if one cannot be opened, or its directory is missing and
                had records.
        """
        points = self.last_run.recovery_points
        return [
            self.partition(topic, number)
            for number in range(first, first + count)
            if (topic, number) in self._partitions
            or points.get((topic, number), 0) > 0
            or self._has_directory(topic, number)
        ]

    def _has_directory(self, topic: str, number: int) -> bool:
        """Whether an internal partition has a directory.

        A process that creates one publishes its slot before it appends a record. So a directory
        that was missing is not looked for again until the slot is published.
        """
        slot = self._missing.get((topic, number))
        if slot is not None and self.session.control.published_ends((slot,))[0] < 0:
            return False
        if files.is_dir(os.path.join(self.session.path, f"{topic}-{number}")):
            self._missing.pop((topic, number), None)
            return True
        if not self.session.read_only:
            info = self.metadata.internal_topics[topic].partition(number)
            self._missing[topic, number] = info.slot
        return False
