"""Engine: a directory open in this process, the one wiring place.

Everyone below receives collaborators; this file makes them. Many processes, and several handles of
one process, may have the directory open; handles of one process share the engine.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from eoslog import _core
from eoslog.arguments import as_directory
from eoslog.background import Background, Flushers
from eoslog.checkpointer import Checkpointer
from eoslog.cleaning import Cleaning
from eoslog.config import LogConfig
from eoslog.coordinator.group_coordinator import GroupCoordinator
from eoslog.coordinator.producer_ids import ProducerIds
from eoslog.coordinator.transaction_coordinator import TransactionCoordinator
from eoslog.errors import ConfigError, EoslogError, IllegalState
from eoslog.model import CLUSTER_METADATA_TOPIC, CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from eoslog.open_partitions import OpenPartitions
from eoslog.storage import checkpoints, files
from eoslog.storage.directory import prepare_directory, remove_partition, remove_renamed, stands
from eoslog.storage.filesystem import refuse_remote
from eoslog.storage.last_run import LastRun
from eoslog.storage.log_wait import wait_any
from eoslog.storage.metadata import MetadataLog
from eoslog.storage.metadata_fold import PartitionInfo, TopicInfo, internal_topics
from eoslog.storage.partition_log import LogSettings, PartitionLog
from eoslog.storage.producer_expiry import ProducerExpiry
from eoslog.storage.session import Session, WriterCame

logger = logging.getLogger("eoslog.engine")

_OFFSETS_CHECK_S = 600.0  # offsets.retention.check.interval.ms
_METADATA_SLOT = 0
_METADATA_ID = bytes(15) + b"\x01"  # Kafka's fixed id of __cluster_metadata

_open: dict[tuple[int, int, bool], Engine] = {}
_open_mutex = threading.Lock()
os.register_at_fork(after_in_child=lambda: _after_fork())


def _after_fork() -> None:
    global _open_mutex
    _open_mutex = threading.Lock()
    _open.clear()


@atexit.register
def _close_all() -> None:
    """A program that ends without closing its logs leaves them clean all the same."""
    for engine in list(_open.values()):
        engine._references = 1
        with contextlib.suppress(EoslogError, OSError):
            engine.close()


@lru_cache(maxsize=4096)
def shard_of(name: str, count: int) -> int:
    """The internal partition of a transactional id or group, of `count`, as Kafka places it.

    The hash without a positive twin is 0 there (`Utils.abs`), which Python's `abs` does not do.
    """
    code = _core.java_hash(name)
    return 0 if code == -(2**31) else abs(code) % count


class Engine:
    """A directory open in this process; `Engine.open` gives one to all. Counted, thread-safe."""

    def __init__(
        self,
        path: str,
        *,
        read_only: bool,
        properties: checkpoints.MetaProperties,
        config: LogConfig | None = None,
    ) -> None:
        """Join the directory's session and wire the floors."""
        self.path = path
        self.read_only = read_only
        self.config = config = config or LogConfig.of()
        self.properties = properties
        self.durability = properties.durability
        self.clock: Callable[[], float] = time.time
        # The consumers of this process, by id(): who is to hear of aborted transactions.
        self.consumers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._references = 0
        self._closed = False
        self._flushers = Flushers()
        self._asides: dict[str, threading.Thread] = {}
        self.session = Session(path, read_only=read_only)
        self._background: Background | None = None
        self.partitions = OpenPartitions(
            self.session,
            strict=self.durability == "strict",
            transaction_partitions=properties.transaction_partitions,
            producer_expiration_ms=config.producer_id_expiration_ms,
            check=self.check,
        )
        self._checkpointer = Checkpointer(self.session, self.partitions)
        self.partitions.on_log_start = self._checkpointer.note_log_start
        try:
            self.partitions.last_run = LastRun.read(path, self.session)
            metadata_log = self.partitions.open(
                CLUSTER_METADATA_TOPIC, 0, PartitionInfo(0, _METADATA_SLOT), _METADATA_ID, {}
            )
            self.metadata = MetadataLog(
                metadata_log,
                internal_topics(
                    properties.transaction_partitions,
                    properties.offsets_partitions,
                    (
                        config.transaction_state_log_segment_bytes,
                        config.offsets_topic_segment_bytes,
                    ),
                ),
                self.clock_ms,
                read_only=read_only,
            )
            self.metadata.refresh()
            self.partitions.metadata = self.metadata
            if not read_only:
                self._background = Background(os.path.basename(path), self._beat)
                if metadata_log.strict:  # else nothing waits to be flushed
                    metadata_log.on_append = self._background.note_append
                    self.partitions.on_append = self._background.note_append
                self.partitions.on_forget = self._background.forget
                self.schedule(
                    "checkpoint",
                    config.log_flush_offset_checkpoint_interval_ms / 1000,
                    self._checkpointer.checkpoint,
                )
            self.producer_ids = ProducerIds(
                self.metadata.allocate_producer_ids, lambda run: self._aside("ids", run)
            )
            self.transactions = TransactionCoordinator(
                self,
                max_timeout_ms=config.transaction_max_timeout_ms,
                id_expiration_ms=config.transactional_id_expiration_ms,
            )
            self.partitions.on_recovered = self.transactions.recover_partition
            self.groups = GroupCoordinator(self, config)
            kept = config.offsets_retention_minutes
            retention_ms = kept * 60_000 if kept >= 0 else -1
            if self.session.began:
                self._finish_deletions()
            self.schedule(
                "sweep",
                config.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000,
                self.transactions.abort_timed_out,
            )
            self.schedule(
                "sweep",
                config.transaction_remove_expired_transaction_cleanup_interval_ms / 1000,
                self.transactions.expire,
            )
            self.schedule(
                "offsets", _OFFSETS_CHECK_S, lambda: self.groups.expire_offsets(retention_ms)
            )
            expiry = ProducerExpiry(self.open_logs, config.producer_id_expiration_ms, self.clock_ms)
            self.schedule(
                "expire", config.producer_id_expiration_check_interval_ms / 1000, expiry.look
            )
            self.cleaning = Cleaning(
                self.session, self.partitions, self.transactions.uncleanable_offset, self.clock_ms
            )
            backoff_s = config.log_cleaner_backoff_ms / 1000
            retention_s = config.log_retention_check_interval_ms / 1000
            self.schedule("clean", backoff_s, lambda: self.cleaning.round(backoff_s, retention_s))
        except BaseException:
            self._release()
            raise

    # --- opening --------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        read_only: bool = False,
        durability: str | None = None,
        config: LogConfig | None = None,
    ) -> Engine:
        """Open a directory, or share the engine that this process has.

        Args:
            path: the directory.
            create: make it, with mode 0700, when it is missing.
            read_only: take no lock that writers notice; an unclean directory that nobody writes is
                scanned privately and not changed.
            durability: "strict" or "os"; None takes what is stored, "strict" for a new directory.
            config: timers and sizes; None leaves them to whoever opened it first in this process.

        Raises:
            ConfigError: another durability, or other counts of internal partitions, are stored;
                or this process has the directory open with other settings.
            StorageError: the directory is foreign, damaged or on a file system that is refused.
        """
        if durability not in (None, "strict", "os"):
            raise ConfigError(f"durability: {durability!r} is neither 'strict' nor 'os'")
        where = as_directory(path)
        create = create and not read_only
        if config is not None and "durability" in config.given:
            durability = durability or config.durability
        properties = prepare_directory(where, create=create, durability=durability, config=config)
        if durability is not None and properties.durability != durability:
            raise ConfigError(
                f"{where}: durability {durability!r} asked for, "
                f"the directory is {properties.durability!r}"
            )
        if not read_only:
            refuse_remote(where)
        with files.naming(where):
            status = os.stat(where)
        key = (status.st_dev, status.st_ino, read_only)
        with _open_mutex:
            engine = _open.get(key)
            while engine is None or engine.session.outdated:
                with contextlib.suppress(WriterCame):  # as a reader scanned: then beside it
                    engine = cls(where, read_only=read_only, properties=properties, config=config)
                    engine._key, _open[key] = key, engine
            if config is not None:
                engine._check_same(config)
            engine._references += 1
            return engine

    def _check_same(self, config: LogConfig) -> None:
        for key in sorted(config.given - {"durability"}):
            wanted, here = (getattr(c, key.replace(".", "_")) for c in (config, self.config))
            if wanted != here:
                raise ConfigError(
                    f"{key}: {wanted} asked for, but this process has {self.path} open with {here}"
                )

    _key: tuple[int, int, bool]

    def close(self) -> None:
        """Give the reference back; the last one flushes, checkpoints and lets go."""
        with _open_mutex:
            if self._closed:
                return
            self._references -= 1
            if self._references > 0:
                return
            if _open.get(self._key) is self:
                del _open[self._key]
            if self.session._generation != _core.fork_generation():
                self._closed = True
                return  # inherited through fork: everything of it belongs to the parent
            try:
                self.cleaning.stop()
                quiet = self._end_threads()  # nothing may follow the mark of a clean end
                if not self.read_only:
                    # Not closed yet: partitions that only other processes had open are opened now.
                    self._checkpointer.close_clean(quiet)
            finally:
                self._closed = True
                self._release()

    def check(self) -> None:
        """Raise IllegalState when closed, or inherited through fork."""
        if self._closed:
            raise IllegalState("the log is closed")
        self.session.check()

    def for_writing(self) -> Engine:
        """Itself. IllegalState when the log was opened read_only: at once, before any lock."""
        if self.read_only:
            raise IllegalState(f"{self.path}: the log was opened read_only")
        return self

    def _release(self) -> None:
        try:
            self._end_threads()
            self._flushers.close()
            self.partitions.close()
        finally:  # or its lock, perhaps the exclusive one, would keep everybody out
            self.session.close()

    def _end_threads(self) -> bool:
        """Whether the background thread and what it began have ended, each within a minute."""
        ended = self._background is None or self._background.close(60)
        return self._join_asides() and ended

    def _join_asides(self) -> bool:
        threads = list(self._asides.values())
        for thread in threads:
            thread.join(60)
        return not any(thread.is_alive() for thread in threads)

    # --- partitions -----------------------------------------------------------------------------

    def topic(self, name: str) -> TopicInfo:
        """A topic as the metadata says now. Raises UnknownTopicOrPartition."""
        return self.metadata.topic(name)

    def partition(self, topic: str, partition: int) -> PartitionLog:
        """An open partition, recovered at the session's first use.

        Raises:
            UnknownTopicOrPartition: there is none, or it was deleted.
            CorruptRecord, StorageError: it cannot be opened as it is.
        """
        return self.partitions.partition(topic, partition)

    def partition_by_slot(self, slot: int) -> PartitionLog:
        """The partition that owns a slot of the control file."""
        return self.partitions.partition_by_slot(slot)

    def transaction_partition(self, transactional_id: str) -> PartitionLog:
        """The `__transaction_state` partition of an id, made at first use."""
        number = shard_of(transactional_id, self.properties.transaction_partitions)
        return self.partitions.partition(TRANSACTION_STATE_TOPIC, number)

    def group_partition(self, group_id: str) -> PartitionLog:
        """The `__consumer_offsets` partition of a group, made at first use."""
        number = shard_of(group_id, self.properties.offsets_partitions)
        return self.partitions.partition(CONSUMER_OFFSETS_TOPIC, number)

    def transaction_partitions(self) -> list[PartitionLog]:
        """Every `__transaction_state` partition that exists."""
        return self.partitions.existing(
            TRANSACTION_STATE_TOPIC, self.properties.transaction_partitions
        )

    def group_partitions(self) -> list[PartitionLog]:
        """Every `__consumer_offsets` partition that exists."""
        return self.partitions.existing(CONSUMER_OFFSETS_TOPIC, self.properties.offsets_partitions)

    def open_logs(self) -> list[PartitionLog]:
        """Every partition that this process has open."""
        return list(self.partitions)

    def user_partitions(self) -> list[tuple[str, int]]:
        """(topic, partition) of every topic that is not internal."""
        self.metadata.refresh()
        return [
            (name, number)
            for name, info in self.metadata.topics.items()
            for number in info.partitions
        ]

    # --- topics ---------------------------------------------------------------------------------

    def alter_topic(self, name: str, config: dict[str, object]) -> None:
        """Change a topic's configuration here and, at their next open, in other processes. What is
        deleted or compacted goes by it at once; index.interval.bytes once all have closed.
        """
        info = self.metadata.alter_topic(name, config)
        for log in self.partitions:
            if log.topic == name:
                log.configure(LogSettings.of(dict(info.config)))

    def create_topic(self, name: str, partitions: int, config: Mapping[str, Any] | None) -> None:
        """Create a topic; an earlier one of its name whose deletion was cut short goes first."""
        self.metadata.refresh()
        deleted = dict(self.metadata.deleted)
        gone = [d for d in deleted.values() if d.name == name and name not in self.metadata.topics]
        half = [d for d in gone if stands(self.path, d)]
        for info in half:
            self._finish_deletion(info)
        if gone and not half:  # one that was never used leaves offsets, but no directory
            self.groups.forget_topic(name, gone[0].topic_id)
        self.metadata.create_topic(name, partitions, config, settled=deleted)

    def delete_topic(self, name: str) -> None:
        """Delete a topic: no append succeeds after the record of it is durable.

        A call that failed when the record was there already is finished by the next one.
        """
        self.metadata.refresh()
        half = [
            d for d in self.metadata.deleted.values() if d.name == name and stands(self.path, d)
        ]
        if name in self.metadata.topics or not half:
            half.append(self.metadata.delete_topic(name))
            files.failpoint("topic.deleted")
        for info in half:
            self._finish_deletion(info)

    def _finish_deletion(self, info: TopicInfo) -> None:
        """Directories go last: while one stands, groups may still know the topic."""
        for partition in info.partitions.values():
            self.session.ensure_slot(partition.slot)
            self.session.control.mark_deleted(partition.slot)
            self.partitions.drop(info.name, partition.partition)
        if info.name not in self.metadata.topics:
            self.groups.forget_topic(info.name, info.topic_id)
        files.failpoint("topic.forgotten")
        for partition in info.partitions.values():
            remove_partition(self.path, info.name, partition.partition, info.topic_id)

    def _finish_deletions(self) -> None:
        """What the last session did not come to."""
        remove_renamed(self.path)
        for info in list(self.metadata.deleted.values()):
            if stands(self.path, info):
                self._finish_deletion(info)

    # --- processes, time, work ------------------------------------------------------------------

    @property
    def process_number(self) -> int:
        """This process's entry in the shared process table; -1 for a reader."""
        return self.session.process_number

    @property
    def process_nonce(self) -> int:
        """Tells this process from an earlier one with the same number."""
        return self.session.process_nonce

    def process_alive(self, number: int, nonce: int) -> bool:
        """Whether that very process still holds its lock."""
        return self.session.process_alive(number, nonce)

    def process_heartbeat_age(self, number: int) -> float:
        """Seconds since that process last beat (CLOCK_MONOTONIC)."""
        return float(self.session.control.process_entry(number)[2])

    def _beat(self) -> None:
        self.session.control.beat(self.session.process_number)

    def _aside(self, what: str, run: Callable[[], object]) -> None:
        """Run on a thread of its own: it may wait for locks, and heartbeats must go on."""

        def guarded() -> None:
            try:
                run()
            except EoslogError as error:
                if not self._closed:
                    logger.warning("%s: %s", what, error)
            except Exception:
                if not self._closed:
                    logger.exception("%s", what)

        running = self._asides.get(what)
        if running is None or not running.is_alive():
            thread = threading.Thread(target=guarded, name=f"eoslog-{what}", daemon=True)
            with contextlib.suppress(RuntimeError):  # the program ends, and takes no more threads
                thread.start()
                self._asides[what] = thread

    def clock_ms(self) -> int:
        """Wall clock in ms; only for show and for timestamps."""
        return int(self.clock() * 1000)

    def schedule(self, what: str, interval_s: float, run: Callable[[], object]) -> None:
        """Call `run` every interval_s seconds, on a thread of its own: a heartbeat never waits
        for it. What has one name is never run twice at once: what is due meanwhile is left out.
        Readers schedule nothing.
        """
        if self._background is not None:
            self._background.schedule(interval_s, lambda: self._aside(what, run))

    @property
    def outdated(self) -> bool:
        """Whether it began where nobody wrote, and somebody has written since."""
        return self.session.outdated

    def refuse_outdated(self) -> None:
        """Raise IllegalState where it is outdated."""
        self.session.refuse_outdated()

    def flush_many(self, targets: Sequence[tuple[PartitionLog, int]]) -> None:
        """Flush several partitions in parallel, each up to its offset."""
        self._flushers.flush(targets)

    def wait_any(
        self,
        bounds: Sequence[tuple[PartitionLog, int]],
        timeout: float,
        *,
        of: str = "last_stable_offset",
    ) -> bool:
        """Block until one of the logs has a published end past its offset; False on timeout (s)."""
        return wait_any(bounds, timeout, of=of)
