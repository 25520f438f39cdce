"""Cleaning a directory: compaction and retention of all partitions, by whichever process is due.

Every process looks now and then; who gets the lease (a byte of `eoslog.session`) while the last run
is long enough ago does a round, the others pass. When the last run was is the modification time of
`cleaner-offset-checkpoint`, which also says how far each partition was compacted. A process that
dies in a round lets go of the lease; what it left half done is finished by the next one that cleans
or reads the partition (`storage/segment_swap.py`).

The internal topics are compacted like others, `__transaction_state` only below the first decision
that something still depends on (protocol.md row 2).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from eoslog import _core
from eoslog.errors import (
    CorruptRecord,
    EoslogError,
    LockTimeout,
    StorageError,
    UnknownTopicOrPartition,
)
from eoslog.model import TRANSACTION_STATE_TOPIC
from eoslog.open_partitions import OpenPartitions
from eoslog.storage import checkpoints, files
from eoslog.storage.cleaner import clean_partition
from eoslog.storage.compaction import Cleaned, CleaningStopped, plan
from eoslog.storage.log_settings import FOR_EVER, LogSettings
from eoslog.storage.partition_log import PartitionLog
from eoslog.storage.segments import LOG
from eoslog.storage.session import SESSION_FILE, Session

logger = logging.getLogger("eoslog.cleaning")

_LEASE_AT = 2

Key = tuple[str, int]


class Cleaning:
    """The cleaner of an open directory. Safe among threads and processes.

    Invariants:
        - a partition's checkpoint rises only after its cleaned segments are durable;
        - a damaged partition is left alone until the directory is opened anew, others go on.
    """

    def __init__(
        self,
        session: Session,
        partitions: OpenPartitions,
        uncleanable_offset: Callable[[int], int],
        clock_ms: Callable[[], int],
    ) -> None:
        """Clean nothing yet.

        Args:
            session: whose directory it is.
            partitions: opens what is to be cleaned.
            uncleanable_offset: the first offset of a C partition that a decision needs.
            clock_ms: wall clock.
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
        self.uncleanable: dict[str, str] = {}
        self.totals = {"passes": 0, "bytes_before": 0, "bytes_after": 0, "bytes_deleted": 0,
                       "records_before": 0, "records_after": 0}  # fmt: skip

    # --- the background round -------------------------------------------------------------------

    def round(self, interval_s: float, retention_s: float = 0.0) -> bool:
        """Do a round if one is due and nobody is at it; whether it was done.

        Args:
            interval_s: seconds between two rounds, whose ever they are (`log.cleaner.backoff.ms`).
            retention_s: seconds between two of this process's looks at topics that are not
                compacted (`log.retention.check.interval.ms`); its first round is one.
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
                with contextlib.suppress(UnknownTopicOrPartition):
                    self._guarded(topic, partition)
            if deleting:
                self._retention_due = time.monotonic() + retention_s
            self._note({})
            self.rounds += 1
            return True

    def stop(self) -> None:
        """End the pass in hand at the next segment, and begin none."""
        self._stop.set()

    def _guarded(self, topic: str, partition: int) -> None:
        try:
            self.clean(topic, partition)
        except (LockTimeout, CleaningStopped):
            return  # somebody else is at it; or the directory is being closed
        except EoslogError as error:
            logger.warning("%s-%s is not cleaned: %s", topic, partition, error)
        except Exception:  # of our own making: it must not keep the others from being cleaned
            logger.exception("%s-%s is not cleaned", topic, partition)

    def _due(self, interval_s: float) -> bool:
        last = files.status(self._path)
        if last is None:
            return True
        age = time.time() - last.st_mtime
        return age >= interval_s or age < 0  # a clock that was set back must not stop it

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
        """Partitions that a policy says something about, and that were ever used."""
        metadata = self._partitions.metadata
        metadata.refresh()
        found = []
        for infos in (metadata.internal_topics, metadata.topics):
            for name, info in infos.items():
                settings = LogSettings.of(dict(info.config))
                limits = settings.retention_ms >= 0 or settings.retention_bytes >= 0
                if not settings.compacts and not (limits and deleting):
                    continue
                # An active segment alone is not cleaned: such a partition need not even be opened.
                least = 1 if limits or settings.max_compaction_lag_ms < FOR_EVER else 2
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
        """Compact and delete what the topic's policy says; bytes freed.

        Args:
            topic: its name.
            partition: its number.
            force: compact whatever the dirty ratio is.
            roll: seal the active segment first, so that it is cleaned too.

        Raises:
            CorruptRecord, StorageError: what it could not clean is as it was.
            LockTimeout: another process is cleaning the partition.
        """
        log = self._partitions.settled(topic, partition)
        if log.name in self.uncleanable and not force:
            return 0
        self.running = log.name
        try:
            freed = 0
            if log.settings.compacts:
                if roll or self._outlived(log):
                    log.roll()
                freed = self._compact(log, force)
                log = self._partitions.settled(topic, partition)  # that may have taken long
            deleted = log.apply_retention(self._clock_ms())
            self.totals["bytes_deleted"] += deleted
            return freed + deleted
        except CorruptRecord as error:
            self.uncleanable[log.name] = str(error)
            raise
        finally:
            self.running = None

    def _compact(self, log: PartitionLog, force: bool) -> int:
        key = (log.topic, log.partition)
        start = checkpoints.read_offsets(self._path, lenient=True).get(key, 0)
        if not force and not plan(log, start, self._clock_ms()).due:
            return 0
        done = clean_partition(
            log, start, self._clock_ms(), bound=self._bound(log), force=force,
            wait=30.0 if force else 0.0, stop=self._stop,
        )  # fmt: skip
        if done is None:
            return 0
        files.failpoint("clean.checkpoint")
        self._note({key: done.end}, log)
        self._count(done)
        return done.bytes_before - done.bytes_after

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
        """Write how far a log is clean; without one, only that a round was done."""
        with self._session.bootstrap():
            if log is not None and log.core.deleted:  # the name may be another topic's by now
                return
            known = checkpoints.read_offsets(self._path, lenient=True)
            checkpoints.write_offsets(self._path, {**known, **ends})

    # --- what it does ---------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """What this process has cleaned, is cleaning, and could not clean."""
        return {
            "running": self.running,
            "rounds": self.rounds,
            **self.totals,
            "uncleanable": dict(self.uncleanable),
        }

    def describe(self, log: PartitionLog) -> dict[str, Any]:
        """How far a partition is compacted; empty for a topic that is not."""
        if not log.settings.compacts:
            return {}
        start = checkpoints.read_offsets(self._path, lenient=True).get(
            (log.topic, log.partition), 0
        )
        found = plan(log, start, self._clock_ms())
        return {
            "cleaned_to": found.dirty_start,
            "dirty_bytes": found.dirty_bytes,
            "dirty_ratio": round(found.dirty_ratio, 3),
        }
