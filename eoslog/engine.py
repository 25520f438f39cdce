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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from eoslog import _core
from eoslog.background import Background
from eoslog.coordinator.group_coordinator import GroupCoordinator
from eoslog.coordinator.producer_ids import ProducerIds
from eoslog.coordinator.transaction_coordinator import TransactionCoordinator
from eoslog.errors import (
    ConfigError,
    EoslogError,
    IllegalState,
    StorageError,
    UnknownTopicOrPartition,
)
from eoslog.model import CLUSTER_METADATA_TOPIC, CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from eoslog.storage import checkpoints, files, log_loader
from eoslog.storage.filesystem import refuse_remote
from eoslog.storage.metadata import MetadataLog, PartitionInfo, TopicInfo
from eoslog.storage.partition_log import LogSettings, PartitionLog
from eoslog.storage.session import POISON_FILE, SESSION_FILE, Session

logger = logging.getLogger("eoslog.engine")

_METADATA_SLOT = 0
_METADATA_ID = bytes(15) + b"\x01"  # Kafka's fixed id of __cluster_metadata
_CHECKPOINT_S = 60.0
_SWEEP_S = 10.0  # transaction.abort.timed.out.transaction.cleanup.interval.ms
_EXPIRY_S = 3600.0  # transaction.remove.expired.transaction.cleanup.interval.ms
_FLUSHERS = 8
_OWN_PREFIXES = ("eoslog.", "meta.properties.tmp")

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


class Engine:
    """A directory open in this process.

    Use `Engine.open`; one instance a directory, reference-counted. Thread-safe.
    """

    def __init__(
        self, path: str, *, read_only: bool, properties: checkpoints.MetaProperties
    ) -> None:
        """Join the directory's session and wire the floors."""
        self.path = path
        self.read_only = read_only
        self.properties = properties
        self.durability = properties.durability
        self.clock: Callable[[], float] = time.time
        self._references = 0
        self._closed = False
        self._mutex = threading.RLock()
        self._partitions: dict[tuple[str, int], PartitionLog] = {}
        self._slots: dict[int, PartitionLog] = {}
        self._flushers: ThreadPoolExecutor | None = None
        self._coordinators_ready = False
        self._sweeper: threading.Thread | None = None
        self.session = Session(path, read_only=read_only)
        self._background: Background | None = None
        try:
            self._read_last_session()
            self.session.ensure_slot(_METADATA_SLOT)
            metadata_log = self._open_partition(
                CLUSTER_METADATA_TOPIC, 0, PartitionInfo(0, _METADATA_SLOT), _METADATA_ID, {}
            )
            self.metadata = MetadataLog(
                metadata_log,
                properties.transaction_partitions,
                properties.offsets_partitions,
                self.clock_ms,
            )
            self.metadata.refresh()
            if not read_only:
                self._background = Background(os.path.basename(path), self._beat)
                for log in self._partitions.values():
                    log.on_append = self._background.note_append
                if self.session.began:
                    self._remove_deleted_topics()
                self.schedule(_CHECKPOINT_S, self._checkpoint)
            self.producer_ids = ProducerIds(self.metadata.allocate_producer_ids)
            self.transactions = TransactionCoordinator(self)
            self.groups = GroupCoordinator(self)
            self.schedule(_SWEEP_S, lambda: self._aside(self.transactions.abort_timed_out))
            self.schedule(_EXPIRY_S, lambda: self._aside(self.transactions.expire))
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
    ) -> Engine:
        """Open a directory, or share the engine that this process has.

        Args:
            path: the directory.
            create: make it, with mode 0700, when it is missing.
            read_only: take no lock that writers notice; an unclean directory that nobody writes is
                scanned privately and not changed.
            durability: "strict" or "os"; None takes what is stored, "strict" for a new directory.

        Raises:
            ConfigError: another durability is stored.
            StorageError: the directory is foreign, damaged or on a file system that is refused.
        """
        if durability not in (None, "strict", "os"):
            raise ConfigError(f"durability: {durability!r} is neither 'strict' nor 'os'")
        where = os.path.abspath(os.fspath(path))
        properties = _prepare_directory(
            where, create=create and not read_only, durability=durability
        )
        if durability is not None and properties.durability != durability:
            raise ConfigError(
                f"{where}: durability {durability!r} asked for, "
                f"the directory is {properties.durability!r}"
            )
        if not read_only:
            refuse_remote(where)
        status = os.stat(where)
        key = (status.st_dev, status.st_ino, read_only)
        with _open_mutex:
            engine = _open.get(key)
            if engine is None:
                engine = cls(where, read_only=read_only, properties=properties)
                _open[key] = engine
                engine._key = key
            engine._references += 1
            return engine

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
                if self._sweeper is not None:
                    self._sweeper.join(timeout=10)
                if not self.read_only:
                    # Not closed yet: partitions that only other processes had open are opened now.
                    self._close_clean()
            finally:
                self._closed = True
                self._release()

    def check(self) -> None:
        """Raise IllegalState when closed, or inherited through fork."""
        if self._closed:
            raise IllegalState("the log is closed")
        self.session.check()

    def _release(self) -> None:
        if self._background is not None:
            self._background.close()
        if self._flushers is not None:
            self._flushers.shutdown(wait=True)
        for log in list(self._partitions.values()):
            log.close()
        self.session.close()

    def _read_last_session(self) -> None:
        path = os.path.join(self.path, checkpoints.RECOVERY_POINT_CHECKPOINT)
        self._recovery_points = checkpoints.read_offsets(path, lenient=True)
        path = os.path.join(self.path, checkpoints.LOG_START_CHECKPOINT)
        self._log_starts = checkpoints.read_offsets(path, lenient=True)
        if self.session.private:
            self._clean = checkpoints.was_clean_shutdown(self.path)
        else:
            self._clean = bool(self.session.control.clean)
        self._poisoned: set[tuple[str, int]] = set()
        with contextlib.suppress(FileNotFoundError):
            for line in files.read_file(os.path.join(self.path, POISON_FILE)).decode().splitlines():
                topic, _, partition = line.rpartition(" ")
                self._poisoned.add((topic, int(partition)))

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
        log = self._partitions.get((topic, partition))
        if log is not None and not log.core.deleted:
            return log
        self.check()
        info = self.metadata.topic(topic)
        return self._open_partition(
            topic, partition, info.partition(partition), info.topic_id, info.config
        )

    def partition_by_slot(self, slot: int) -> PartitionLog:
        """The partition that owns a slot of the control file."""
        log = self._slots.get(slot)
        if log is not None:
            return log
        found = self.metadata.by_slot(slot)
        if found is None or found[0].deleted:
            raise UnknownTopicOrPartition(f"no partition has slot {slot}")
        return self.partition(found[0].name, found[1].partition)

    def _open_partition(
        self, topic: str, partition: int, info: PartitionInfo, topic_id: bytes, config: object
    ) -> PartitionLog:
        if (
            topic not in (CLUSTER_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)
            and not self._coordinators_ready
            and not self.read_only
        ):
            self._open_coordinators()
        with self._mutex:
            log = self._partitions.get((topic, partition))
            if log is not None:
                if not log.core.deleted:
                    return log
                self._forget(log)
            self.session.ensure_slot(info.slot)
            log = PartitionLog(
                self.session,
                topic,
                partition,
                slot=info.slot,
                topic_id=topic_id,
                strict=self.durability == "strict",
                settings=LogSettings.of(config if isinstance(config, dict) else dict(config or {})),  # type: ignore[call-overload]
                leader_epoch=info.leader_epoch,
            )
            key = (topic, partition)
            self._make_directory(log)
            recovered = log_loader.open_partition(
                log,
                log_loader.LastSession(
                    self._clean,
                    self._recovery_points.get(key, 0),
                    self._log_starts.get(key, 0),
                    key in self._poisoned,
                ),
            )
            if self._background is not None:
                log.on_append = self._background.note_append
            log.on_log_start = self._log_start_moved  # type: ignore[method-assign]
            self._partitions[key] = log
            self._slots[info.slot] = log
        if recovered and self._coordinators_ready:
            self.transactions.recover_partition(log)
        return log

    def _make_directory(self, log: PartitionLog) -> None:
        """Make the partition's directory at first use, with Kafka's small files."""
        if self.read_only:
            if not os.path.isdir(log.path):
                raise StorageError(f"{log.path} is missing", path=log.path)
            return
        if os.path.exists(os.path.join(log.path, checkpoints.LEADER_EPOCH_CHECKPOINT)):
            found = checkpoints.read_partition_metadata(log.path)
            if found == log.topic_id:
                return
            if found not in self.metadata.deleted:
                raise StorageError(
                    f"topic id {checkpoints.id_text(found or bytes(16))}, "
                    f"the metadata says {checkpoints.id_text(log.topic_id)}",
                    path=log.path,
                )
            files.remove_tree(log.path)
        point = self._recovery_points.get((log.topic, log.partition), 0)
        if point > 0 and not os.path.isdir(log.path):
            raise StorageError(
                f"{log.path} is missing; it held offsets up to {point}", path=log.path
            )
        with self.session.bootstrap():
            if os.path.exists(os.path.join(log.path, checkpoints.LEADER_EPOCH_CHECKPOINT)):
                return
            log_loader.make_directory(log)
            checkpoints.write_partition_metadata(log.path, log.topic_id)
            checkpoints.write_leader_epochs(
                os.path.join(log.path, checkpoints.LEADER_EPOCH_CHECKPOINT), [(log.leader_epoch, 0)]
            )

    def _open_coordinators(self) -> None:
        """All transaction logs come first: the fate of open data is read from them."""
        with self._mutex:
            if self._coordinators_ready:
                return
            for log in self.transaction_partitions():
                log.fold()
            self._coordinators_ready = True

    def _forget(self, log: PartitionLog) -> None:
        self._partitions.pop((log.topic, log.partition), None)
        self._slots.pop(log.slot, None)
        if self._background is not None:
            self._background.forget(log)
        log.close()

    def transaction_partition(self, transactional_id: str) -> PartitionLog:
        """The `__transaction_state` partition of an id, made at first use."""
        number = abs(_core.java_hash(transactional_id)) % self.properties.transaction_partitions
        return self.partition(TRANSACTION_STATE_TOPIC, number)

    def group_partition(self, group_id: str) -> PartitionLog:
        """The `__consumer_offsets` partition of a group, made at first use."""
        number = abs(_core.java_hash(group_id)) % self.properties.offsets_partitions
        return self.partition(CONSUMER_OFFSETS_TOPIC, number)

    def transaction_partitions(self) -> list[PartitionLog]:
        """Every `__transaction_state` partition that exists."""
        return self._existing(TRANSACTION_STATE_TOPIC, self.properties.transaction_partitions)

    def group_partitions(self) -> list[PartitionLog]:
        """Every `__consumer_offsets` partition that exists."""
        return self._existing(CONSUMER_OFFSETS_TOPIC, self.properties.offsets_partitions)

    def _existing(self, topic: str, count: int) -> list[PartitionLog]:
        return [
            self.partition(topic, number)
            for number in range(count)
            if (topic, number) in self._partitions
            or os.path.isdir(os.path.join(self.path, f"{topic}-{number}"))
        ]

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
        """Change a topic's configuration here and, at their next open, in other processes."""
        info = self.metadata.alter_topic(name, config)
        for log in list(self._partitions.values()):
            if log.topic == name:
                log.configure(LogSettings.of(dict(info.config)))

    def delete_topic(self, name: str) -> None:
        """Delete a topic: no append succeeds after the record of it is durable."""
        info = self.metadata.delete_topic(name)
        files.failpoint("topic.deleted")
        for partition in info.partitions.values():
            self.session.ensure_slot(partition.slot)
            self.session.control.mark_deleted(partition.slot)
            with self._mutex:
                log = self._partitions.get((name, partition.partition))
                if log is not None:
                    self._forget(log)
            self._remove_partition(name, partition.partition, info.topic_id)

    def _remove_partition(self, topic: str, partition: int, topic_id: bytes) -> None:
        path = os.path.join(self.path, f"{topic}-{partition}")
        if not os.path.isdir(path) or checkpoints.read_partition_metadata(path) != topic_id:
            return
        gone = f"{path[: len(self.path) + 1]}{topic[:200]}-{partition}.{topic_id.hex()}-delete"
        files.rename(path, gone)
        files.remove_tree(gone)

    def _remove_deleted_topics(self) -> None:
        for name in files.names(self.path):
            if name.endswith("-delete"):
                files.remove_tree(os.path.join(self.path, name))
        for info in self.metadata.deleted.values():
            for number in info.partitions:
                self._remove_partition(info.name, number, info.topic_id)

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

    def _aside(self, run: Callable[[], object]) -> None:
        """Run on a thread of its own: it may wait for locks, and heartbeats must go on."""

        def guarded() -> None:
            try:
                run()
            except EoslogError as error:
                if not self._closed:
                    logger.warning("sweep of transactions: %s", error)
            except Exception:
                if not self._closed:
                    logger.exception("sweep of transactions")

        if self._sweeper is None or not self._sweeper.is_alive():
            self._sweeper = threading.Thread(target=guarded, name="eoslog-sweep", daemon=True)
            self._sweeper.start()

    def clock_ms(self) -> int:
        """Wall clock in ms; only for show and for timestamps."""
        return int(self.clock() * 1000)

    def schedule(self, interval_s: float, fn: Callable[[], None]) -> None:
        """Call `fn` every interval_s seconds on the background thread; readers have none."""
        if self._background is not None:
            self._background.schedule(interval_s, fn)

    def flush_many(self, targets: Sequence[tuple[PartitionLog, int]]) -> None:
        """Flush several partitions in parallel, each up to its offset."""
        due = [(log, end) for log, end in targets if log.strict and log.durable_end < end]
        if len(due) <= 1:
            for log, end in due:
                log.flush(end)
            return
        if self._flushers is None:
            with self._mutex:
                if self._flushers is None:
                    self._flushers = ThreadPoolExecutor(_FLUSHERS, "eoslog-flush")
        pending = [self._flushers.submit(log.flush, end) for log, end in due[1:]]
        try:
            due[0][0].flush(due[0][1])
        finally:
            errors = [error for future in pending if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def wait_any(
        self,
        bounds: Sequence[tuple[PartitionLog, int]],
        timeout: float,
        *,
        of: str = "last_stable_offset",
    ) -> bool:
        """Block until one of the logs has a published end past its offset; False on timeout (s)."""
        if len(bounds) == 1:
            return bounds[0][0].wait(bounds[0][1], timeout, of=of)
        control = self.session.control
        deadline = time.monotonic() + timeout
        while True:
            counters = control.wake_counters(log.slot for log, _ in bounds)
            if any(getattr(log, of) > beyond for log, beyond in bounds):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if not self.read_only and of != "log_end":
                waiting = [log for log, _ in bounds if log.strict and log.durable_end < log.log_end]
                if waiting:
                    control.wait(
                        counters, min(left, min(log.settings.flush_ms for log in waiting) / 1000)
                    )
                    for log in waiting:
                        if log.durable_end < log.log_end:
                            log.flush()
                    continue
            control.wait(counters, left)

    # --- checkpoints ----------------------------------------------------------------------------

    def _log_start_moved(self, log: PartitionLog) -> None:
        path = os.path.join(self.path, checkpoints.LOG_START_CHECKPOINT)
        with self.session.bootstrap():
            starts = checkpoints.read_offsets(path, lenient=True)
            starts[log.topic, log.partition] = log.log_start
            checkpoints.write_offsets(path, starts)

    def _checkpoint(self) -> None:
        """Write recovery points: an unclean restart scans only what came after them."""
        path = os.path.join(self.path, checkpoints.RECOVERY_POINT_CHECKPOINT)
        with self.session.bootstrap():
            points = checkpoints.read_offsets(path, lenient=True)
            for key, log in list(self._partitions.items()):
                points[key] = max(points.get(key, 0), log.durable_end)
            checkpoints.write_offsets(path, points)

    def _close_clean(self) -> None:
        """Flush what this process wrote; the last process out marks the directory clean."""
        clean = True
        for log in self._partitions.values():
            try:
                if not log.core.deleted and not log.core.poisoned:
                    log.sync()
                clean &= not log.core.poisoned
            except OSError as error:  # StorageError is one
                logger.warning("%s-%s: not flushed at close: %s", log.topic, log.partition, error)
                clean = False
        with contextlib.suppress(StorageError), self.session.bootstrap():
            if not self.session.try_alone():
                return
            files.failpoint("close.alone")
            clean = self._settle_all() and clean
            if clean:
                with contextlib.suppress(FileNotFoundError):
                    files.remove(os.path.join(self.path, POISON_FILE))
                checkpoints.write_clean_shutdown(self.path)

    def _settle_all(self) -> bool:
        """Alone: flush what dead processes left published, write snapshots and recovery points."""
        session = self.session.control.session
        path = os.path.join(self.path, checkpoints.RECOVERY_POINT_CHECKPOINT)
        points = checkpoints.read_offsets(path, lenient=True)
        self.metadata.refresh()
        infos = [*self.metadata.internal_topics.values(), *self.metadata.topics.values()]
        for info in infos:
            for partition in info.partitions.values():
                try:
                    view = self.session.control.slot_view(partition.slot)
                except IndexError:
                    continue
                if view["session"] != session:
                    continue
                if view["poison"] or view["busy"]:
                    return False
                # Partitions that only other processes had open; `partition` refuses at this stage.
                known = self._partitions.get((info.name, partition.partition))
                log = known or self._open_partition(
                    info.name, partition.partition, partition, info.topic_id, info.config
                )
                log.sync()
                log.write_snapshot()
                points[info.name, partition.partition] = log.log_end
        metadata_log = self._partitions[CLUSTER_METADATA_TOPIC, 0]
        metadata_log.sync()
        points[CLUSTER_METADATA_TOPIC, 0] = metadata_log.log_end
        checkpoints.write_offsets(path, points)
        # partitions that no one opened in an unclean session keep their need for a scan
        return self._clean or all(
            self.session.control.slot_view(p.slot)["session"] == session
            for info in infos
            for p in info.partitions.values()
            if os.path.isdir(os.path.join(self.path, f"{info.name}-{p.partition}"))
        )


def _prepare_directory(
    path: str, *, create: bool, durability: str | None
) -> checkpoints.MetaProperties:
    """Read meta.properties, or make a new directory.

    A crash in between leaves a directory with eoslog's own files and no meta.properties: it is
    taken as new.
    """
    if not os.path.isdir(path):
        if os.path.exists(path):
            raise StorageError("not a directory", 20, path)
        if not create:
            raise StorageError("no such directory", 2, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        files.make_dir(path)
    properties = checkpoints.read_meta_properties(path)
    if properties is not None:
        return properties
    foreign = [name for name in files.names(path) if not name.startswith(_OWN_PREFIXES)]
    if foreign:
        raise StorageError(
            f"{path} is not an eoslog directory (no meta.properties) and not empty: {foreign[0]!r}",
            path=path,
        )
    if not create:
        raise StorageError("no meta.properties: not an eoslog directory", 2, path)
    fd = files.open_file(os.path.join(path, SESSION_FILE), create=True)
    try:
        while not _core.try_lock(fd, 0):
            time.sleep(0.001)
        properties = checkpoints.read_meta_properties(path)
        if properties is None:
            properties = checkpoints.MetaProperties.new(durability or "strict")
            checkpoints.write_meta_properties(path, properties)
        return properties
    finally:
        files.close(fd)
