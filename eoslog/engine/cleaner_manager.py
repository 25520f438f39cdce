"""The cleaner of a directory: compaction and retention of all partitions.

Every process checks periodically whether a round is due. The process that gets the lease (a byte of
`eoslog.session`) does the round. The modification time of `cleaner-offset-checkpoint` is the time
of the last round; the file has the offset up to which each partition is compacted. A process that
dies during a round releases the lease. The next process that cleans or reads the partition
completes the interrupted swap (`storage/log/segment_swap.py`).

Internal topics are compacted too; `__transaction_state` only below the first decision that is still
needed (protocol.md row 2).
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from eoslog import _core
from eoslog.engine.log_manager import OpenPartitions
from eoslog.errors import (
    CorruptRecord,
    EoslogError,
    LockTimeout,
    StorageError,
    UnknownTopicOrPartition,
)
from eoslog.model import TRANSACTION_STATE_TOPIC
from eoslog.shown_paths import get_logger
from eoslog.storage.compaction.cleaner import clean_partition
from eoslog.storage.compaction.compactor import Cleaned, CleaningStopped, plan
from eoslog.storage.directory import offset_checkpoints
from eoslog.storage.directory.session import SESSION_FILE, Session
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from eoslog.storage.fs.timeouts import LOCK_TIMEOUT_S
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.log.retention import apply_retention
from eoslog.storage.log.settings import FOR_EVER, LogSettings
from eoslog.storage.segment.segment import LOG

logger = get_logger("eoslog.cleaning")

_LEASE_AT = 2

Key = tuple[str, int]


class Cleaning:
    """The cleaner of an open directory. Safe with other threads and processes.

    Invariants:
        - A partition's checkpoint rises only after its cleaned segments are durable.
        - A damaged partition is not cleaned again until the directory is reopened. Others are.
    """

    def __init__(
        self,
        session: Session,
        partitions: OpenPartitions,
        uncleanable_offset: Callable[[int], int],
        clock_ms: Callable[[], int],
    ) -> None:
        """Keep the directory's parts.

        Args:
            session: the session of the directory.
            partitions: opens the partitions to clean.
            uncleanable_offset: the first offset of a `__transaction_state` partition that a
                decision needs.
            clock_ms: the wall clock in milliseconds.
        """
        self._session = session
        self._partitions = partitions
        self._uncleanable_offset = uncleanable_offset
        self._clock_ms = clock_ms
        self._path = os.path.join(session.path, checkpoints.CLEANER_CHECKPOINT)
        self._lease = threading.Lock()
        self._stop = threading.Event()
        self.running: str | None = None
        self.rounds = 0
        self._retention_due = 0.0
        self._uncleanable: dict[str, tuple[bytes, str]] = {}  # topic id and error, by name
        self.totals = {"passes": 0, "bytes_before": 0, "bytes_after": 0, "bytes_deleted": 0,
                       "records_before": 0, "records_after": 0}  # fmt: skip

    # --- the background round -------------------------------------------------------------------

    def round(self, interval_s: float, retention_s: float = 0.0) -> bool:
        """Do a round if one is due and no other process is doing it.

        Returns whether it was done.

        Args:
            interval_s: seconds between two rounds of all processes (`log.cleaner.backoff.ms`).
            retention_s: seconds between two checks of topics that are not compacted, by this
                process (`log.retention.check.interval.ms`). Its first round checks them.
        """
        deleting = time.monotonic() >= self._retention_due
        if not self._due(interval_s) or not self._wanted(deleting):
            return False
        with self._leased() as mine:
            if not mine or not self._due(interval_s):
                return False
            for topic, partition in self._wanted(deleting):
                if self._stop.is_set():
                    return False
                self._guarded(topic, partition)
            if deleting:
                self._retention_due = time.monotonic() + retention_s
            self._note({})
            self.rounds += 1
            return True

    def stop(self) -> None:
        """End the current pass at the next segment, and begin no other."""
        self._stop.set()

    def _guarded(self, topic: str, partition: int) -> None:
        try:
            self.clean(topic, partition)
        except (LockTimeout, CleaningStopped, UnknownTopicOrPartition):
            return  # another process is cleaning it, the directory is being closed, or it is gone
        except EoslogError as error:
            logger.warning(
                "%s-%s: cleaning failed, skipping the partition: %s", topic, partition, error
            )
        except Exception:  # a bug must not stop the cleaning of other partitions
            logger.exception("%s-%s: cleaning failed, skipping the partition", topic, partition)

    def _due(self, interval_s: float) -> bool:
        last = files.status(self._path)
        if last is None:
            return True
        age = time.time() - last.st_mtime
        return age >= interval_s or age < 0  # negative after the clock was set back

    @contextlib.contextmanager
    def _leased(self) -> Iterator[bool]:
        if not self._lease.acquire(blocking=False):
            yield False
            return
        try:
            fd = files.open_file(os.path.join(self._session.path, SESSION_FILE))
            _core.guard_across_fork(fd)
            try:
                mine = _core.try_lock(fd, _LEASE_AT)
                try:
                    yield mine
                finally:
                    if mine:
                        _core.unlock(fd, _LEASE_AT)
            finally:
                _core.release_guard(fd)
                files.close(fd)
        finally:
            self._lease.release()

    def _wanted(self, deleting: bool) -> list[Key]:
        """The partitions with a cleanup policy that have segments to clean."""
        metadata = self._partitions.metadata
        metadata.refresh()
        found = []
        for infos in (metadata.internal_topics, metadata.topics):
            for name, info in infos.items():
                settings = LogSettings.of(dict(info.config))
                if not settings.compacts and not (settings.has_limits and deleting):
                    continue
                # The active segment is not cleaned, so a partition with one segment is skipped.
                least = 1 if settings.has_limits or settings.max_compaction_lag_ms < FOR_EVER else 2
                found += [
                    (name, number)
                    for number in info.partitions
                    if self._segments(name, number) >= least
                ]
        return found

    def _segments(self, topic: str, partition: int) -> int:
        folder = os.path.join(self._session.path, f"{topic}-{partition}")
        try:
            names = files.names(folder)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return 0
            raise
        return sum(name.endswith(LOG) for name in names)

    # --- one partition --------------------------------------------------------------------------

    def clean(self, topic: str, partition: int, *, force: bool = False, roll: bool = False) -> int:
        """Compact and delete by the topic's policy, and return the bytes that were freed.

        Args:
            topic: the topic.
            partition: the partition number.
            force: compact at any dirty ratio.
            roll: seal the active segment first, so that it is cleaned too.

        Raises:
            CorruptRecord, StorageError: if a segment could not be cleaned; it is unchanged.
            LockTimeout: if another process is cleaning the partition.
            UnknownTopicOrPartition: if the topic was deleted.
        """
        self._session.directory.require()
        log = self._partitions.settled(topic, partition)
        if not force and self._uncleanable.get(log.name, (b"",))[0] == log.topic_id:
            return 0
        self.running = log.name
        try:
            freed = 0
            if log.settings.compacts:
                if roll or self._outlived(log):
                    log.roll()
                freed = self._compact(log, force)
                log = self._partitions.settled(topic, partition)  # compaction may have taken long
            deleted = apply_retention(log, self._clock_ms())
            self.totals["bytes_deleted"] += deleted
            self._uncleanable.pop(log.name, None)  # it was of a deleted topic, or is repaired
            return freed + deleted
        except (CorruptRecord, StorageError) as error:
            log.context.check_not_deleted()  # a deletion removes files of a running pass
            if isinstance(error, CorruptRecord):
                self._uncleanable[log.name] = log.topic_id, str(error)
            raise
        finally:
            self.running = None

    def _compact(self, log: PartitionLog, force: bool) -> int:
        start = self._cleaned_to(log)
        if not force and not plan(log, start, self._clock_ms()).due:
            return 0
        done = clean_partition(
            log, start, self._clock_ms(), bound=self._bound(log), force=force,
            wait=LOCK_TIMEOUT_S if force else 0.0, stop=self._stop,
        )  # fmt: skip
        if done is None:
            return 0
        files.failpoint("clean.checkpoint")
        # An adopted log may have gaps further up, in its active segment; `start` covers them. The
        # next pass begins at the base of that segment all the same (`plan`).
        end = max(done.end, start) if start <= log.log_end else done.end
        self._note({(log.topic, log.partition): end}, log)
        self._count(done)
        return done.bytes_before - done.bytes_after

    def _cleaned_to(self, log: PartitionLog) -> int:
        """The offset at which the last pass over a partition ended."""
        cleaned = offset_checkpoints.read(self._session.path, checkpoints.CLEANER_CHECKPOINT)
        return cleaned.get((log.topic, log.partition), 0)

    def _bound(self, log: PartitionLog) -> int | None:
        if log.topic == TRANSACTION_STATE_TOPIC:
            return self._uncleanable_offset(log.partition)
        return None

    def _outlived(self, log: PartitionLog) -> bool:
        """Whether the active segment's first record is older than max.compaction.lag.ms."""
        horizon = self._clock_ms() - log.settings.max_compaction_lag_ms
        base = log.core.active_base
        if horizon <= 0 or log.log_end <= base:
            return False
        first = next(iter(log.batches(max(base, log.log_start), log.log_end)), None)
        return first is not None and 0 <= first.max_timestamp < horizon

    def _count(self, done: Cleaned) -> None:
        self.totals["passes"] += 1
        for name in ("bytes_before", "bytes_after", "records_before", "records_after"):
            self.totals[name] += getattr(done, name)

    def _note(self, ends: dict[Key, int], log: PartitionLog | None = None) -> None:
        """Write the offsets up to which a log is clean; else only touch the file."""
        with self._session.bootstrap():
            if log is not None and log.core.deleted:  # another topic may have the name now
                return
            root, name = self._session.path, checkpoints.CLEANER_CHECKPOINT
            offset_checkpoints.write(root, name, {**offset_checkpoints.read(root, name), **ends})

    # --- statistics -----------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """What this process has cleaned, is cleaning, and could not clean."""
        return {
            "running": self.running,
            "rounds": self.rounds,
            **self.totals,
            "uncleanable": {name: text for name, (_, text) in list(self._uncleanable.items())},
        }

    def describe(self, log: PartitionLog) -> dict[str, Any]:
        """The progress of a partition's compaction; empty if the topic is not compacted."""
        if not log.settings.compacts:
            return {}
        start = self._cleaned_to(log)
        found = plan(log, start, self._clock_ms())
        return {
            "cleaned_to": found.dirty_start,
            "dirty_bytes": found.dirty_bytes,
            "dirty_ratio": round(found.dirty_ratio, 3),
        }
