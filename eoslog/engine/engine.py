"""The engine: a directory that this process has open, with all its parts.

This module creates the parts and passes them to each other. Many processes, and several handles of
one process, may have a directory open. The handles of one process share the engine.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from eoslog.config.keys import LogConfig
from eoslog.coordinator.checks.checks import Checks
from eoslog.coordinator.groups.coordinator import GroupCoordinator
from eoslog.coordinator.host import HEARTBEAT_INTERVAL_S
from eoslog.coordinator.positions.positions import Positions
from eoslog.coordinator.producer_ids import ProducerIds
from eoslog.coordinator.transactions.coordinator import TransactionCoordinator
from eoslog.coordinator.transactions.deadlines import LOOK_EVERY_S, Deadlines
from eoslog.engine import registry
from eoslog.engine.blocking.blocked_warnings import LOOK_EVERY_S as WARNINGS_EVERY_S
from eoslog.engine.blocking.blocked_warnings import FixedViewWarnings, PreparedWarnings
from eoslog.engine.checkpointer import Checkpointer, LogStarts
from eoslog.engine.cleaner_manager import Cleaning
from eoslog.engine.dropped_clients import DroppedClients
from eoslog.engine.first_use_topics import FirstUseTopics
from eoslog.engine.inline_limit import InlineLimit
from eoslog.engine.log_manager import OpenPartitions, PartitionEvents
from eoslog.engine.parallel_flush import flush_in_parallel
from eoslog.engine.partition_opener import PartitionOpener, Place
from eoslog.engine.scheduler import Background, UnlessJumped
from eoslog.engine.shards import shard_of
from eoslog.engine.staged_transactions import StagedTransactions
from eoslog.engine.topic_deletion import Deletion
from eoslog.engine.topics import TopicManager
from eoslog.errors import ConfigError, IllegalState
from eoslog.model import CLUSTER_METADATA_TOPIC, CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from eoslog.storage.directory.last_run import LastRun
from eoslog.storage.directory.processes import Processes
from eoslog.storage.directory.session import Session
from eoslog.storage.format.checkpoints import MetaProperties
from eoslog.storage.fs import files
from eoslog.storage.fs.opened_directory import OpenedDirectory
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.log.producer_expiry import ProducerExpiry
from eoslog.storage.log.published_end import PublishedEnd
from eoslog.storage.log.waiter import wait_any
from eoslog.storage.metadata.image import TopicInfo, internal_topics
from eoslog.storage.metadata.metadata_log import MetadataLog

_RELEASE_EVERY_S = 2.0
"""Seconds between two releases of open files that another process has removed."""
_STAGED_CHECK_S = 3600.0
_INLINE_CHECK_S = 10.0
_OFFSETS_CHECK_S = 600.0  # offsets.retention.check.interval.ms


def _internal_topics(properties: MetaProperties, config: LogConfig) -> dict[str, TopicInfo]:
    return internal_topics(
        properties.transaction_partitions,
        properties.offsets_partitions,
        (config.transaction_state_log_segment_bytes, config.offsets_topic_segment_bytes),
    )


def _place_of_metadata(internal: Mapping[str, TopicInfo]) -> Place:
    info = internal[CLUSTER_METADATA_TOPIC]
    return Place(info.name, info.partition(0), info.topic_id, info.config)


class Engine:
    """A directory that this process has open.

    `Engine.open` returns the same engine to all handles, and counts them. Thread-safe.
    """

    def __init__(
        self,
        directory: OpenedDirectory,
        references: registry.References,
        *,
        read_only: bool,
        properties: MetaProperties,
        config: LogConfig | None = None,
    ) -> None:
        """Join the directory's session, open its metadata, and start background work."""
        self.path = directory.path
        self.references = references
        self.read_only = read_only
        self.config = config = config or LogConfig.of()
        self.properties = properties
        self.durability = properties.durability
        self.clock: Callable[[], float] = time.time
        self._closed = False
        with contextlib.ExitStack() as held:
            self.session = Session(directory.path, read_only=read_only, directory=directory)
            held.callback(self.session.close)
            self._background = Background(os.path.basename(directory.path))
            strict = properties.durability == "strict"
            opener = PartitionOpener(
                self.session,
                LastRun.read(self.session.path, self.session),
                strict=strict,
                producer_expiration_ms=config.producer_id_expiration_ms,
                # In an "os" directory, no append needs a flush.
                on_append=self._background.note_append if strict and not read_only else None,
                on_log_start=LogStarts(self.session).note,
            )
            internal = _internal_topics(properties, config)
            metadata_log = opener.open(_place_of_metadata(internal)).log
            self.metadata = MetadataLog(
                metadata_log,
                internal,
                self.clock_ms,
                read_only=read_only,
                before_change=self.session.directory.require,
            )
            self.partitions = OpenPartitions(
                self.session,
                self.metadata,
                metadata_log,
                opener,
                transaction_partitions=properties.transaction_partitions,
                check=self.check,
                events=PartitionEvents(
                    # The coordinator opens partitions, and each opening calls the coordinator.
                    recovered=lambda log: self.transactions.recover_partition(log),
                    viewed=lambda log: self._view_warnings.look(log),
                    carried=lambda tp, topic_id: self.transactions.logs.carried(tp, topic_id),
                    forgotten=self._background.forget,
                ),
            )
            self.first_use = FirstUseTopics(
                self.session, self.metadata, self.partitions, self.for_writing
            )
            held.callback(self.partitions.close)
            held.callback(self._background.close)
            self.metadata.refresh()
            transactions = sorted(internal[TRANSACTION_STATE_TOPIC].partitions.items())
            self._transaction_slots = [info.slot for _, info in transactions]
            self.producer_ids = ProducerIds(
                self.metadata.allocate_producer_ids,
                lambda run: self._background.tasks.begin("ids", run),
            )
            self.staged = StagedTransactions(self)
            self.transactions: TransactionCoordinator = TransactionCoordinator(
                self,
                max_timeout_ms=config.transaction_max_timeout_ms,
                id_expiration_ms=config.transactional_id_expiration_ms,
                outcome_retention_ms=config.outcome_retention_ms,
                cluster_id=properties.cluster_id,
                staged=self.staged,
            )
            self._view_warnings = FixedViewWarnings(
                self.transactions, self.clock_ms, clean=self.partitions.last_run.clean
            )
            self._deadlines = Deadlines(
                self,
                self.transactions.logs,
                self.transactions.resolver,
                lambda name, error: self.transactions.events.emit("Sweep", name, error=error),
            )
            self.groups: GroupCoordinator = GroupCoordinator(self, config)
            self.positions = Positions(self)
            self.checks = Checks(self, self.transactions.prepared)
            self.dropped = DroppedClients(self.groups.leave, self.close)
            deletion = Deletion(
                self.session, self.partitions, self.metadata, self.groups.forget_topic
            )
            self.topics = TopicManager(
                self.session.directory, self.metadata, self.partitions, deletion, config.for_topic
            )
            self.cleaning = Cleaning(
                self.session, self.partitions, self.transactions.uncleanable_offset, self.clock_ms
            )
            self._checkpointer = Checkpointer(self.session, self.partitions)
            self._background.schedule(HEARTBEAT_INTERVAL_S, self._beat, first_s=0.0)
            self._background.schedule(_RELEASE_EVERY_S, self._release_removed)
            self._background.start()
            if self.session.began:
                deletion.finish_all()
            if not read_only:
                self._schedule_work()
            self._held = held.pop_all()

    def _schedule_work(self) -> None:
        """Schedule the background work of this process, at the configured intervals."""
        config = self.config
        self.schedule(
            "checkpoint",
            config.log_flush_offset_checkpoint_interval_ms / 1000,
            self._checkpointer.checkpoint,
        )
        sweep = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
        sweep_s = config.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000
        self.schedule("sweep", sweep_s, self.transactions.abort_timed_out)
        if sweep not in config.given:
            self._background.schedule(LOOK_EVERY_S, self._keep_deadlines)
        self._background.schedule(LOOK_EVERY_S, self._keep_checks)
        self.schedule(
            "expire-ids",
            config.transaction_remove_expired_transaction_cleanup_interval_ms / 1000,
            UnlessJumped(self.transactions.expire, self.clock_ms),
        )
        self.schedule("staged", _STAGED_CHECK_S, self.staged.sweep)
        inline_s = min(max(config.prepared_inline_max_ms / 4000, 0.25), _INLINE_CHECK_S)
        self.schedule("inline", inline_s, InlineLimit(self).look)
        warnings = PreparedWarnings(self.open_logs, self.transactions, self.clock_ms)
        self.schedule("warn", WARNINGS_EVERY_S, warnings.look)
        retention_ms = max(config.offsets_retention_minutes * 60_000, -1)
        ids_ms = config.publishing_id_expiration_ms
        offsets = partial(self.groups.expire_offsets, retention_ms, ids_ms)
        self.schedule("offsets", _OFFSETS_CHECK_S, UnlessJumped(offsets, self.clock_ms))
        expiry = ProducerExpiry(self.open_logs, config.producer_id_expiration_ms, self.clock_ms)
        check_s = config.producer_id_expiration_check_interval_ms / 1000
        self.schedule("expire", check_s, expiry.look)
        backoff_s = config.log_cleaner_backoff_ms / 1000
        retention_s = config.log_retention_check_interval_ms / 1000
        clean = UnlessJumped(lambda: self.cleaning.round(backoff_s, retention_s), self.clock_ms)
        self.schedule("clean", backoff_s, clean)

    # --- opening and closing --------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        read_only: bool = False,
        durability: str | None = None,
        config: LogConfig | None = None,
        mode: int | None = None,
    ) -> Engine:
        """Open a directory, or share the engine that this process has for it.

        Args:
            path: the directory.
            create: create the directory if it is missing.
            read_only: take no lock that writers notice. An unclean directory without writers is
                scanned in private memory and not changed.
            durability: "strict" or "os"; None takes the stored one, or "strict" for a new
                directory.
            config: timers and sizes; None takes those of the first open in this process.
            mode: permissions of a new directory; None takes the stored ones, or 0o700.

        Raises:
            ConfigError: if another durability, mode or count of internal partitions is stored, or
                this process has the directory open with other settings.
            StorageError: if the directory is not a log, is damaged, or is on an unsupported file
                system.
        """
        directory, properties = registry.open_directory(
            path, create=create, read_only=read_only, durability=durability, config=config,
            mode=mode,
        )  # fmt: skip

        def make(references: registry.References) -> Engine:
            with files.naming(directory.path):  # no descriptor is free, or the disk fails now
                own = directory.duplicate()
            return cls(
                own,
                references,
                read_only=read_only,
                properties=properties,
                config=config,
            )

        with contextlib.closing(directory):
            return registry.share((*directory.identity, read_only), make, config)

    def check_config(self, config: LogConfig) -> None:
        """Raise ConfigError for settings that differ from those of this process."""
        for key in sorted(config.given - {"durability"}):
            wanted, here = (getattr(c, key.replace(".", "_")) for c in (config, self.config))
            if wanted != here:
                raise ConfigError(
                    f"{key}: expected {here}, with which this process has {self.path} open, got "
                    f"{wanted}; open it with the same value, or close the other handles first"
                )

    @property
    def moved(self) -> bool:
        """Whether the directory is no longer at its path."""
        return self.session.directory.look() is not None

    @property
    def outdated(self) -> bool:
        """Whether a writer came after this read-only view was opened without one."""
        return self.session.outdated

    def close(self, references: int = 1) -> None:
        """Release references; the last one flushes, writes checkpoints and closes."""
        references += self.dropped.end()
        with self.references.given_back(references) as last:
            if self._closed or not last:
                return
            if self.session.inherited:
                self._closed = True
                return  # a forked child: everything belongs to the parent
            try:
                self.session.directory.leave()
                self.cleaning.stop()
                # Nothing may be written after the clean mark.
                quiet = self.checks.close()
                quiet = self._background.close() and quiet
                if not self.read_only:
                    # `_closed` is still False, so partitions of other processes can be opened here.
                    self._checkpointer.close_clean(quiet)
            finally:
                self._closed = True
                self._background.tasks.mute()
                self._held.close()

    def check(self) -> None:
        """Raise IllegalState if the engine is closed, or was inherited through a fork."""
        if self._closed:
            raise IllegalState(f"{self.path}: the log is closed; open it again")
        self.session.check()

    @property
    def is_fixed(self) -> bool:
        """Whether it is a fixed view: read-only, and opened while there was no writer."""
        return self.session.private

    def refuse_outdated(self) -> None:
        """Raise IllegalState if this read-only view is outdated."""
        self.session.refuse_outdated()

    def for_writing(self) -> Engine:
        """Return the engine, before any lock is taken.

        Raises:
            IllegalState: if the log was opened with read_only=True.
        """
        if self.read_only:
            raise IllegalState(
                f"{self.path}: the log was opened with read_only=True; open it for writing"
            )
        return self

    def in_place(self) -> Engine:
        """Return the engine, before a client of it opens its path.

        Raises:
            DirectoryReplaced: if the path does not lead to this directory.
        """
        self.session.directory.require()
        return self

    # --- partitions -----------------------------------------------------------------------------

    def topic(self, name: str) -> TopicInfo:
        """Return a topic from the current metadata.

        Raises:
            UnknownTopicOrPartition: if it does not exist.
        """
        return self.metadata.topic(name)

    def partition(self, topic: str, partition: int) -> PartitionLog:
        """Return an open partition, which the first use in a session recovers.

        Raises:
            UnknownTopicOrPartition: if it does not exist, or was deleted.
            CorruptRecord, StorageError: if it cannot be opened.
        """
        return self.partitions.partition(topic, partition)

    def transaction_partition(self, transactional_id: str) -> PartitionLog:
        """The `__transaction_state` partition of an id, created at first use."""
        number = shard_of(transactional_id, self.properties.transaction_partitions)
        return self.partitions.partition(TRANSACTION_STATE_TOPIC, number)

    def group_partition(self, group_id: str) -> PartitionLog:
        """The `__consumer_offsets` partition of a group, created at first use."""
        number = shard_of(group_id, self.properties.offsets_partitions)
        return self.partitions.partition(CONSUMER_OFFSETS_TOPIC, number)

    def transaction_partition_at(self, number: int) -> PartitionLog:
        """A `__transaction_state` partition by its number, created at first use."""
        return self.partitions.partition(TRANSACTION_STATE_TOPIC, number)

    def transaction_ends(self) -> list[int]:
        """The published log end of each of them; -1 if this session has not used it."""
        return self.session.control.published_ends(self._transaction_slots)

    def transaction_partitions(self) -> list[PartitionLog]:
        """All existing `__transaction_state` partitions."""
        return self.partitions.existing(
            TRANSACTION_STATE_TOPIC, self.properties.transaction_partitions
        )

    def group_partitions(self) -> list[PartitionLog]:
        """All existing `__consumer_offsets` partitions."""
        return self.partitions.existing(CONSUMER_OFFSETS_TOPIC, self.properties.offsets_partitions)

    def internal_topic(self, name: str) -> PartitionLog:
        """Partition 0 of an internal topic that is created at its first use.

        Raises:
            IllegalState: if the log was opened with read_only=True, and the topic does not exist.
            InvalidTopic: if an ordinary topic has the name.
            CorruptRecord, StorageError: if the partition cannot be created or opened.
        """
        return self.first_use.created(name)

    def existing_internal_topic(self, name: str) -> PartitionLog | None:
        """The same, without creating it: None if the topic was never used."""
        return self.first_use.existing(name)

    def has_internal_topic(self, name: str) -> bool:
        """Whether such a topic exists; it is not opened."""
        return self.first_use.exists(name)

    def open_logs(self) -> list[PartitionLog]:
        """All partitions that this process has open."""
        return list(self.partitions)

    def user_partitions(self) -> list[tuple[str, int]]:
        """(topic, partition) of all topics that are not internal."""
        self.metadata.refresh()
        return [
            (name, number)
            for name, info in self.metadata.topics.items()
            for number in info.partitions
        ]

    # --- processes, time, work ------------------------------------------------------------------

    @property
    def process_number(self) -> int:
        """This process's entry in the shared process table; -1 for a read-only process."""
        return self.session.process_number

    @property
    def process_nonce(self) -> int:
        """A number that distinguishes this process from earlier ones with the same entry."""
        return self.session.process_nonce

    def process_alive(self, number: int, nonce: int) -> bool:
        """Whether the process with that number and nonce still holds its lock."""
        return self.session.process_alive(number, nonce)

    def process_heartbeat_age(self, number: int) -> float:
        """Seconds since the last heartbeat of that process (CLOCK_MONOTONIC)."""
        return float(self.session.control.process_entry(number)[2])

    def process_pid(self, number: int, nonce: int) -> int | None:
        """The process id at its registration; None if another process has the entry now."""
        entry = self.session.control.process_entry(number) if number >= 0 else (None, 0, 0)
        return int(entry[1]) if entry[0] == nonce else None

    def process_text(self, owner: tuple[int, int]) -> str:
        """Describe a process by its number and nonce, for messages."""
        process = Processes(self.session).of_owner(owner)
        return "a process that has exited since" if process is None else process.text

    def note_idle_member(self, member: int, since_ms: int) -> None:
        """Publish the member of this process with the oldest poll; 0: none."""
        self.session.control.note_idle_member(self.process_number, member, since_ms)

    def _beat(self) -> None:
        if not self.read_only:
            self.session.control.beat(self.session.process_number)
        self.dropped.look()
        if self.moved:
            self.partitions.gate()  # a log that is not at its path must not acknowledge records

    def _release_removed(self) -> None:
        if self.partitions.holding_removed():
            self._background.tasks.begin("release", self.partitions.release_removed)

    def _keep_deadlines(self) -> None:
        if self._deadlines.wanted():
            begin = self._background.tasks.begin
            begin("deadlines", lambda: self._deadlines.look(begin))

    def _keep_checks(self) -> None:
        if self.checks.wanted():
            begin = self._background.tasks.begin
            begin("checks", lambda: self.checks.look(begin))

    def clock_ms(self) -> int:
        """The wall clock in ms; only for display and timestamps."""
        return int(self.clock() * 1000)

    def use_clock(self, clock: Callable[[], float]) -> None:
        """Take the wall clock from a function of a test, in seconds since the epoch."""
        self.clock = clock

    def schedule(self, what: str, interval_s: float, run: Callable[[], object]) -> None:
        """Call `run` every `interval_s` seconds in a thread of the given name.

        Heartbeats do not wait for it. A call is skipped while the previous one of that name runs.
        Read-only processes schedule nothing.
        """
        if not self.read_only:
            self._background.schedule_task(what, interval_s, run)

    def flush_many(self, targets: Sequence[tuple[PartitionLog, int]]) -> None:
        """Flush several partitions in parallel, each up to its offset."""
        flush_in_parallel(targets)

    def wait_any(
        self,
        bounds: Sequence[tuple[PartitionLog, int]],
        timeout: float,
        *,
        of: PublishedEnd = PublishedEnd.LAST_STABLE_OFFSET,
        on_unflushed: Callable[[], None] | None = None,
    ) -> bool:
        """Wait until a log has a published end beyond its offset; see `waiter.wait_any`.

        Returns False after `timeout` seconds.
        """
        return wait_any(bounds, timeout, of=of, on_unflushed=on_unflushed)
