"""The directory of a partition: found, created or re-created.

A partition's directory is created at its first use, with Kafka's small files. A directory of a
deleted topic of the same name is removed first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

from eoslog.errors import CorruptRecord, DiskFull, StorageError, UnknownTopicOrPartition
from eoslog.model import INTERNAL_TOPICS
from eoslog.storage.directory import offset_checkpoints
from eoslog.storage.directory.directory import NeverUsed, NotMade, remove_partition
from eoslog.storage.directory.last_run import LastRun, LastSession
from eoslog.storage.directory.session import Session
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from eoslog.storage.log import loader as log_loader
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.metadata.image import TopicInfo
from eoslog.storage.segment.segment import LOG, file_path, offsets_in


class DeletedTopics(Protocol):
    """The deleted topics; `storage.MetadataLog` implements it."""

    @property
    def deleted(self) -> Mapping[bytes, TopicInfo]:
        """Deleted topics by id, as of the last refresh."""

    @property
    def outdated(self) -> bool:
        """Whether there are changes since the last refresh."""

    def refresh(self) -> None:
        """Read the changes since the last refresh."""


class NoDeletedTopics:
    """No deleted topics, for the opening of the metadata log itself."""

    deleted: Mapping[bytes, TopicInfo] = {}
    outdated = False

    def refresh(self) -> None:
        """Do nothing."""


class PartitionDirectory:
    """The directory of one partition, while it is opened.

    Args:
        session: the session of the log directory.
        log: the partition, which is not in use yet.
        last_run: the state that the last session left.
        topics: the deleted topics.
    """

    def __init__(
        self, session: Session, log: PartitionLog, last_run: LastRun, topics: DeletedTopics
    ) -> None:
        """Keep the partition; nothing is changed."""
        self._session = session
        self._log = log
        self._last_run = last_run
        self._topics = topics
        self._made = False

    def check_not_deleted(self) -> None:
        """Raise UnknownTopicOrPartition if the topic was deleted during this opening.

        A directory that this opening created is removed. An older one is left to the process that
        completes the deletion: while it exists, groups may still have offsets of the topic.
        """
        if self._session.read_only:
            return
        log = self._log
        try:
            self.refuse_deleted()
        except UnknownTopicOrPartition:
            self._session.control.mark_deleted(log.slot)
            if self._made:
                topic = self._topics.deleted[log.topic_id]
                remove_partition(self._session, topic, log.partition)
            raise

    @property
    def outdated(self) -> bool:
        """Whether topics have changed since the last `refuse_deleted`."""
        return self._topics.outdated

    def refuse_deleted(self) -> None:
        """Raise UnknownTopicOrPartition if the topic was deleted; change nothing."""
        log = self._log
        self._topics.refresh()
        if log.topic_id in self._topics.deleted:
            raise UnknownTopicOrPartition(
                f"{log.name}: the topic was deleted; create it again with "
                f"log.create_topic({log.topic!r})"
            )

    def prepare(self) -> LastSession:
        """Create the directory if needed; return what the last session left.

        Raises:
            NotMade: if the disk has no room for a new directory.
            StorageError: if the directory belongs to another topic, or is missing and had records.
            CorruptRecord: if its files are missing, and it had records.
        """
        try:
            self._made = self._make()
        except DiskFull as error:
            raise NotMade("", error.errno or 0, error.filename) from error
        log = self._log
        if self._made:
            files.failpoint("partition.made")
            return LastSession(clean=False)
        last_run = self._last_run
        if self._made_by_another():
            # The process that created it has removed the deleted topic from the checkpoints.
            last_run = LastRun.read(self._session.path, self._session)
        return last_run.partition(log.topic, log.partition)

    def _make(self) -> bool:
        """Create the directory if it is missing; return whether this call did."""
        log = self._log
        if self._session.read_only:
            if not files.is_dir(log.path):
                self._refuse_missing()
                raise NeverUsed(
                    f"{log.name}: the partition's directory is missing; if the partition is new, "
                    "open the log for writing once, else restore the directory from a backup",
                    path=log.path,
                )
            return False
        if self._topic_id() == log.topic_id:
            return False
        with self._session.bootstrap():
            found = self._topic_id()
            if found == log.topic_id:
                return False
            if found is not None:
                if found not in self._topics.deleted:
                    raise StorageError(
                        f"{log.name}: the directory has topic id {checkpoints.id_text(found)}, but "
                        f"the metadata has {checkpoints.id_text(log.topic_id)}; restore the "
                        "directory from a backup",
                        path=log.path,
                    )
                files.remove_tree(log.path)
            self._refuse_missing()
            if self._lacks_epochs_only():  # otherwise its creation was interrupted, and it is empty
                self._write_epochs()
                return False
            if self._recreated():  # the checkpoints have names only: their entries are older
                offset_checkpoints.forget(self._session.path, (log.topic, log.partition))
            log_loader.make_directory(log)
            checkpoints.write_partition_metadata(log.path, log.topic_id)
            self._write_epochs()
        return True

    def _topic_id(self) -> bytes | None:
        """Return the topic id of the complete directory; None if there is none."""
        path = self._log.path
        if not files.exists(os.path.join(path, checkpoints.LEADER_EPOCH_CHECKPOINT)):
            return None
        return checkpoints.read_partition_metadata(path) or bytes(16)

    def _refuse_missing(self) -> None:
        """Raise if the files of a partition that had records are missing.

        Raises:
            CorruptRecord: if the directory exists.
            StorageError: if it is missing.
        """
        log = self._log
        point = self._last_run.partition(log.topic, log.partition).recovery_point
        if point == 0 or self._recreated() or self._lacks_epochs_only():
            return
        if files.is_dir(log.path):
            raise CorruptRecord(
                f"{log.name}: files of the partition are missing, it had offsets up to {point}; "
                "run `eoslog repair`",
                path=log.path,
            )
        other = "delete the topic"
        if log.topic in INTERNAL_TOPICS:
            other = "create it empty and run `eoslog repair --cut`, which loses its records"
        raise StorageError(
            f"{log.name}: the partition's directory is missing, it had offsets up to {point}; "
            f"restore it from a backup, or {other}",
            path=log.path,
        )

    def _lacks_epochs_only(self) -> bool:
        """Whether the directory is this topic's, with segments and valid checkpoints."""
        path = self._log.path
        if not files.is_dir(path) or not offsets_in(path, LOG):
            return False
        return checkpoints.read_partition_metadata(path) == self._log.topic_id

    def _write_epochs(self) -> None:
        checkpoints.write_leader_epochs(
            os.path.join(self._log.path, checkpoints.LEADER_EPOCH_CHECKPOINT),
            # With a higher epoch, the partition was adopted, and the start of its epochs is lost.
            [] if self._log.leader_epoch else [(0, 0)],
        )

    def _recreated(self) -> bool:
        """Whether a deleted topic had the name."""
        return any(topic.name == self._log.topic for topic in self._topics.deleted.values())

    def _made_by_another(self) -> bool:
        """Whether another process may have created the directory in the meantime.

        The log is empty then, because no process writes before the partition is recovered.
        """
        first = files.status(file_path(self._log.path, 0, LOG))
        return (first is None or first.st_size == 0) and self._recreated()


def is_directory_of(path: str, topic_id: bytes) -> bool:
    """Whether a partition directory exists and belongs to this topic."""
    try:
        found = checkpoints.read_partition_metadata(path)
    except (CorruptRecord, StorageError, FileNotFoundError):
        return False
    return found == topic_id
