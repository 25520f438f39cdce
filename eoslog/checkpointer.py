"""What a session leaves for the next: recovery points, log starts, the mark of a clean end.

Checkpoints are written by whoever gets to it, under the bootstrap lock; the mark only by a process
that is alone. A crash anywhere here leaves older hints, or no mark: the next session scans more.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any

from eoslog.errors import StorageError, UnknownTopicOrPartition
from eoslog.model import CLUSTER_METADATA_TOPIC
from eoslog.open_partitions import OpenPartitions
from eoslog.storage import checkpoints, files
from eoslog.storage.partition_log import PartitionLog
from eoslog.storage.session import POISON_FILE, Session

logger = logging.getLogger("eoslog.checkpointer")


class Checkpointer:
    """Writes the checkpoint files of an open directory. Safe among threads and processes."""

    def __init__(self, session: Session, partitions: OpenPartitions) -> None:
        """Write into the session's directory."""
        self._session = session
        self._partitions = partitions

    def note_log_start(self, log: PartitionLog) -> None:
        """Write the log-start checkpoint, before segments below it go."""
        path = os.path.join(self._session.path, checkpoints.LOG_START_CHECKPOINT)
        with self._session.bootstrap():
            if log.core.deleted:  # the name may be another topic's by now
                return
            starts = checkpoints.read_offsets(path, lenient=True)
            starts[log.topic, log.partition] = log.log_start
            checkpoints.write_offsets(path, starts)

    def checkpoint(self) -> None:
        """Write recovery points: an unclean restart scans only what came after them."""
        path = os.path.join(self._session.path, checkpoints.RECOVERY_POINT_CHECKPOINT)
        with self._session.bootstrap():
            points = checkpoints.read_offsets(path, lenient=True)
            for log in self._partitions:
                _raise_point(points, log, log.durable_end)
            checkpoints.write_offsets(path, points)

    def close_clean(self, quiet: bool = True) -> None:
        """Flush what this process wrote; the last process out marks the directory clean, unless
        something of this process goes on (not `quiet`).
        """
        clean = quiet
        for log in self._partitions:
            try:
                if not log.core.deleted and not log.core.poisoned:
                    log.sync()
                clean &= not log.core.poisoned
            except OSError as error:  # StorageError is one
                logger.warning("%s-%s: not flushed at close: %s", log.topic, log.partition, error)
                clean = False
        with (
            contextlib.suppress(StorageError),
            self._partitions.last_look(),
            self._session.bootstrap(),
        ):
            if not self._session.try_alone():
                return
            # Threads of this process may be appending yet, a producer's among them: not behind the
            # sync of a partition, for the mark says that all of it is durable.
            self._partitions.gate()
            files.failpoint("close.alone")
            clean = self._settle_all() and clean
            if clean:
                with contextlib.suppress(FileNotFoundError):
                    files.remove(os.path.join(self._session.path, POISON_FILE))
                checkpoints.write_clean_shutdown(self._session.path)
        files.failpoint("close.left")  # still in the session, which may be over

    def _settle_all(self) -> bool:
        """Alone: flush what dead processes left published, write snapshots and recovery points."""
        self._session.map_all()  # or what a dead process added would pass for never used
        path = os.path.join(self._session.path, checkpoints.RECOVERY_POINT_CHECKPOINT)
        points = checkpoints.read_offsets(path, lenient=True)
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
                # Partitions that only other processes had open, and one that another process
                # created anew under its name; `partition` refuses at this stage.
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
        checkpoints.write_offsets(path, points)
        # partitions that no one opened in an unclean session keep their need for a scan
        return self._partitions.last_run.clean or all(
            self._used(p.slot) is not None
            for info in infos
            for p in info.partitions.values()
            if files.is_dir(os.path.join(self._session.path, f"{info.name}-{p.partition}"))
        )

    def _used(self, slot: int) -> dict[str, Any] | None:
        """What a slot says if anybody opened its partition in this session."""
        try:
            view = self._session.control.slot_view(slot)
        except IndexError:  # behind the end of the file
            return None
        return view if view["session"] == self._session.control.session else None


def _raise_point(points: dict[tuple[str, int], int], log: PartitionLog, end: int) -> None:
    """Move a recovery point up; the index files that it leaves behind are durable first.

    Not of a poisoned log: a sync that failed succeeds when it is tried again, over what was lost.
    Nor of a deleted one, whose name may be another topic's by now.
    """
    if log.core.poisoned or log.core.deleted:
        return
    key = (log.topic, log.partition)
    old = points.get(key, 0)
    with contextlib.suppress(UnknownTopicOrPartition):  # deleted just now
        log.flusher.sync_indexes(old, max(old, end))
        points[key] = max(old, end)
