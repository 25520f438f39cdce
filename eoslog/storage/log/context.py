"""LogContext: the identity, core and settings of a partition, shared by the parts of its log."""

from __future__ import annotations

from dataclasses import dataclass

from eoslog import _core
from eoslog.errors import UnknownTopicOrPartition
from eoslog.storage.directory import offset_checkpoints
from eoslog.storage.directory.session import Session
from eoslog.storage.format import checkpoints
from eoslog.storage.log.settings import LogSettings

__all__ = ["LogContext"]


@dataclass(slots=True, eq=False)
class LogContext:
    """One partition of an open directory: its names, core and settings.

    Attributes:
        session: session of the directory in this process.
        core: the compiled part: appends, folds and published ends.
        name: name of the partition's directory: topic and partition.
        path: path of the partition's directory.
        slot: number of its slot in the control file.
        strict: whether acknowledged records must be durable.
        settings: the topic's settings; the only attribute that changes (`PartitionLog.configure`).
    """

    session: Session
    core: _core.Partition
    topic: str
    partition: int
    topic_id: bytes
    slot: int
    name: str
    path: str
    strict: bool
    settings: LogSettings

    def new_fold(self) -> _core.Partition:
        """Return an empty fold of the partition, which cannot append."""
        return _core.Partition(self.session.control, self.slot, -1, 0, self.path)

    def cleaned_by_a_broker(self) -> int:
        """Return the offset below which a broker's cleaner may have left gaps between segments."""
        cleaned = offset_checkpoints.read(self.session.path, checkpoints.CLEANER_CHECKPOINT)
        return cleaned.get((self.topic, self.partition), 0)

    def topic_deleted(self) -> UnknownTopicOrPartition:
        """Return the error for a deleted topic."""
        return UnknownTopicOrPartition(f"{self.name}: the topic was deleted")

    def check_not_deleted(self) -> None:
        """Raise an error if the topic was deleted.

        A deletion is published before the first file is deleted. File names may belong to a new
        topic with the same name, so a caller that changes files holds the cleaner lock.

        Raises:
            UnknownTopicOrPartition: if the topic was deleted.
        """
        if self.core.deleted:
            raise self.topic_deleted()
