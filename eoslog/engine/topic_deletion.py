"""Deletion of a topic: metadata record, groups' offsets, files, in this order.

The record in the metadata log is the decision. If a crash interrupts the rest, the next call for
the name, or the first process of the next session, completes it.

A deletion must work on a full disk, because it makes room. The record and the tombstones of the
groups need some bytes. If the disk has none, the topic's own data is removed first. A crash after
that leaves a topic without data, which opens as damaged and can be deleted again.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from eoslog.engine.log_manager import OpenPartitions
from eoslog.engine.partition_directory import is_directory_of
from eoslog.errors import DiskFull
from eoslog.shown_paths import get_logger
from eoslog.storage.directory.directory import remove_partition, remove_renamed, still_existing
from eoslog.storage.directory.session import Session
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from eoslog.storage.metadata.image import TopicInfo
from eoslog.storage.metadata.metadata_log import MetadataLog

logger = get_logger("eoslog.engine")

_NAMES_THE_TOPIC = {checkpoints.PARTITION_METADATA, checkpoints.LEADER_EPOCH_CHECKPOINT}


class Deletion:
    """Deletes topics of an open directory. Safe with other threads and processes.

    Args:
        session: the session of the directory.
        partitions: the open partitions of this process.
        metadata: the topics.
        forget_topic: deletes a topic's offsets in all groups, by name and id.
    """

    def __init__(
        self,
        session: Session,
        partitions: OpenPartitions,
        metadata: MetadataLog,
        forget_topic: Callable[[str, bytes], object],
    ) -> None:
        """Keep the directory's parts."""
        self._session = session
        self._partitions = partitions
        self._metadata = metadata
        self._forget_topic = forget_topic

    def finish_namesakes(self, name: str) -> None:
        """Complete the deletion of an earlier topic, before one of its name is created."""
        deleted = dict(self._metadata.deleted)
        gone = [one for one in deleted.values() if one.name == name]
        gone = [] if name in self._metadata.topics else gone
        half = still_existing(self._session.path, gone)
        for info in half:
            self._finish(info)
        if gone and not half:  # a topic without records may have offsets, but has no directory
            self._forget_topic(name, gone[0].topic_id)

    def delete(self, name: str) -> None:
        """Delete a topic; no append succeeds after the record of the deletion is durable.

        If a call fails after the record, the next call completes the deletion. On a full disk it
        fails only if the topic's own files do not free enough room for the record.
        """
        self._metadata.refresh()
        deleted = dict(self._metadata.deleted)
        half = still_existing(
            self._session.path, (one for one in deleted.values() if one.name == name)
        )
        if name in self._metadata.topics or not half:
            half.append(self._record(name))
            files.failpoint("topic.deleted")
        for info in half:
            self._finish(info)

    def _record(self, name: str) -> TopicInfo:
        try:
            return self._metadata.delete_topic(name)
        except DiskFull:
            self._make_room(self._metadata.topic(name))
            return self._metadata.delete_topic(name)

    def _finish(self, info: TopicInfo) -> None:
        """Delete offsets and then directories: while one exists, groups may have offsets."""
        self._release(info)
        try:
            self._forget(info)
        except DiskFull:
            self._make_room(info)
            try:
                self._forget(info)
            except DiskFull as error:
                # The topic and its data are deleted; its empty directories mark the open work.
                logger.warning(
                    "topic %s: deleted, keeping its groups' offsets until the disk has room: %s",
                    info.name, error,
                )  # fmt: skip
                return
        files.failpoint("topic.forgotten")
        for number in info.partitions:
            remove_partition(self._session, info, number)
        files.fsync_dir(self._session.path)  # after a power loss, no directory is there again

    def _forget(self, info: TopicInfo) -> None:
        if info.name not in self._metadata.topics:
            self._forget_topic(info.name, info.topic_id)

    def _release(self, info: TopicInfo) -> None:
        """Mark the topic's slots as deleted, and close its open partitions."""
        for partition in info.partitions.values():
            try:
                self._session.ensure_slot(partition.slot)
            except DiskFull:  # the slot is beyond the end of the file, so no process has it open
                continue
            self._session.control.mark_deleted(partition.slot)
            self._partitions.drop(info.name, partition.partition)

    def _make_room(self, info: TopicInfo) -> None:
        """Remove the topic's data, but keep the files that identify the topic.

        A later call needs these.
        """
        self._release(info)
        for number in info.partitions:
            path = os.path.join(self._session.path, f"{info.name}-{number}")
            with self._session.bootstrap():  # as in `remove_partition`
                names = files.names(path) if is_directory_of(path, info.topic_id) else []
                for name in sorted(set(names) - _NAMES_THE_TOPIC):
                    files.remove(os.path.join(path, name))

    def finish_all(self) -> None:
        """Complete the deletions that the last session did not complete."""
        remove_renamed(self._session.path)
        for info in still_existing(self._session.path, list(self._metadata.deleted.values())):
            self._finish(info)
