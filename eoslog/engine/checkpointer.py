"""The files that a session leaves for the next: checkpoints, and the clean mark.

Any process writes checkpoints (recovery points, log starts), under the bootstrap lock. Only a
process that is alone in the directory writes the mark. A crash at any point leaves older
checkpoints, or no mark, so the next session scans more.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from eoslog.engine.log_manager import OpenPartitions
from eoslog.errors import StorageError, UnknownTopicOrPartition
from eoslog.model import CLUSTER_METADATA_TOPIC
from eoslog.shown_paths import get_logger
from eoslog.storage.directory import offset_checkpoints
from eoslog.storage.directory.session import POISON_FILE, Session
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from eoslog.storage.log.partition_log import PartitionLog

logger = get_logger("eoslog.checkpointer")


class LogStarts:
    """Writes the log-start checkpoint; safe with other threads and processes."""

    def __init__(self, session: Session) -> None:
        """Write into the session's directory."""
        self._session = session

    def note(self, log: PartitionLog, log_start: int) -> None:
        """Write a log start, before it is published and segments are removed."""
        root, name = self._session.path, checkpoints.LOG_START_CHECKPOINT
        self._session.directory.require()
        with self._session.bootstrap():
            if log.core.deleted:  # another topic may have the name now
                return
            starts = offset_checkpoints.read(root, name)
            if starts.get((log.topic, log.partition), 0) == log_start:
                return
            starts[log.topic, log.partition] = log_start
            offset_checkpoints.write(root, name, starts)


class Checkpointer:
    """Writes recovery points and the clean mark; safe with other processes."""

    def __init__(self, session: Session, partitions: OpenPartitions) -> None:
        """Write into the session's directory."""
        self._session = session
        self._partitions = partitions

    def checkpoint(self) -> None:
        """Write recovery points, from which a session after a crash scans."""
        root, name = self._session.path, checkpoints.RECOVERY_POINT_CHECKPOINT
        self._session.directory.require()
        with self._session.bootstrap():
            points = offset_checkpoints.read(root, name)
            for log in self._partitions:
                _raise_point(points, log, log.durable_end)
            offset_checkpoints.write(root, name, points)

    def close_clean(self, quiet: bool = True) -> None:
        """Flush the writes of this process; the last process marks the directory clean.

        Args:
            quiet: False if background work of this process is still running, so that the mark must
                not be written.
        """
        clean = quiet
        for log in self._partitions:
            try:
                if not log.core.deleted and not log.core.poisoned:
                    log.sync()
                clean &= not log.core.poisoned
            except OSError as error:  # StorageError is one
                logger.warning(
                    "%s-%s: flush at close failed, leaving the directory unclean: %s",
                    log.topic,
                    log.partition,
                    error,
                )
                clean = False
        if not self._session.directory.own:  # another directory is at the path
            return
        try:
            self._mark_clean(clean)
        except StorageError as error:
            logger.warning("not closed properly, leaving the directory unclean: %s", error)
        files.failpoint("close.left")  # this process is still in the session, perhaps the last one

    def _mark_clean(self, clean: bool) -> None:
        """Write what the next session needs, if no other process has the directory open."""
        with self._partitions.last_look(), self._session.bootstrap():
            if not self._session.try_alone():
                return
            # Other threads of this process may still append, such as a producer's sender. The gate
            # stops them before the sync, because the mark says that everything is durable.
            self._partitions.gate()
            files.failpoint("close.alone")
            clean = self._settle_all() and clean
            if clean:
                with contextlib.suppress(FileNotFoundError):
                    files.remove(os.path.join(self._session.path, POISON_FILE))
                checkpoints.write_clean_shutdown(self._session.path)

    def _settle_all(self) -> bool:
        """Flush the appends of dead processes, and write snapshots and recovery points.

        The process must be alone in the directory.

        Returns:
            Whether the directory can be marked clean.
        """
        self._session.map_all()  # includes slots that a dead process added
        root, name = self._session.path, checkpoints.RECOVERY_POINT_CHECKPOINT
        points = offset_checkpoints.read(root, name)
        metadata = self._partitions.metadata
        metadata.refresh()
        infos = [*metadata.internal_topics.values(), *metadata.topics.values()]
        for info in infos:
            for partition in info.partitions.values():
                view = self._used(partition.slot)
                if view is None:
                    continue
                if view["poison"] or view["busy"] or view["cleaned_version"] & 1:
                    return False
                # Also opens partitions that only other processes had open, and re-created ones.
                # `partition` would raise at this stage of closing.
                log = self._partitions.open(
                    info.name, partition.partition, partition, info.topic_id, info.config
                )
                log.sync()
                log.write_snapshot()
                _raise_point(points, log, log.log_end)
        metadata_log = self._partitions.known(CLUSTER_METADATA_TOPIC, 0)
        assert metadata_log is not None  # opened with the directory
        metadata_log.sync()
        _raise_point(points, metadata_log, metadata_log.log_end)
        offset_checkpoints.write(root, name, points)
        # After an unclean session, a partition that no process has opened since still needs a scan.
        return self._partitions.last_run.clean or all(
            self._used(p.slot) is not None
            for info in infos
            for p in info.partitions.values()
            if files.is_dir(os.path.join(self._session.path, f"{info.name}-{p.partition}"))
        )

    def _used(self, slot: int) -> dict[str, Any] | None:
        """The state in a slot; None if no process opened its partition in this session."""
        try:
            view = self._session.control.slot_view(slot)
        except IndexError:  # beyond the end of the file
            return None
        return view if view["session"] == self._session.control.session else None


def _raise_point(points: dict[tuple[str, int], int], log: PartitionLog, end: int) -> None:
    """Raise a recovery point, after making the sealed segments below it durable.

    A poisoned log is left out, because after a failed sync the next one succeeds although pages are
    lost. A deleted log is left out, because another topic may have its name.
    """
    if log.core.poisoned or log.core.deleted:
        return
    key = (log.topic, log.partition)
    old = points.get(key, 0)
    with contextlib.suppress(UnknownTopicOrPartition):  # deleted just now
        log.flusher.sync_sealed(old, max(old, end))
        points[key] = max(old, end)
