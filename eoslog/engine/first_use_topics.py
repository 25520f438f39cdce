"""Internal topics that are created at their first use.

`__staged_transactions` and `__positions` have one partition each. Unlike the other internal topics,
they have records in the metadata log, so a directory of an older version needs no change. Their
topic ids are the same in every directory. Processes that create one at the same time append to the
metadata log on a condition: one succeeds, and the others find its topic.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from eoslog.engine.log_manager import OpenPartitions
from eoslog.errors import InvalidTopic, TopicAlreadyExists
from eoslog.storage.directory.session import Session
from eoslog.storage.fs import files
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.metadata.image import FIRST_USE_TOPICS, TopicInfo, internal_topic_id
from eoslog.storage.metadata.metadata_log import MetadataLog

_IDS = {name: internal_topic_id(name) or b"" for name in FIRST_USE_TOPICS}


class FirstUseTopics:
    """Opens and creates these topics. Safe with other threads and processes."""

    def __init__(
        self,
        session: Session,
        metadata: MetadataLog,
        partitions: OpenPartitions,
        for_writing: Callable[[], object],
    ) -> None:
        """Keep the directory's parts; nothing is created.

        Args:
            session: the session of the directory.
            metadata: the log of topics.
            partitions: the open partitions of this process.
            for_writing: raises if this process may not write.
        """
        self._session = session
        self._metadata = metadata
        self._partitions = partitions
        self._for_writing = for_writing

    def existing(self, name: str) -> PartitionLog | None:
        """Return partition 0 of a topic; None if it was never used.

        Raises:
            CorruptRecord, StorageError: if it cannot be opened, or its directory is missing and had
                records.
        """
        known = self._partitions.known(name, 0)
        if known is not None and not known.core.deleted and known.topic_id == _IDS[name]:
            return known
        self._metadata.refresh()
        info = self._metadata.first_use_topics.get(name)
        if info is None or self._never_opened(name):
            return None
        return self._partitions.open(name, 0, info.partition(0), info.topic_id, info.config)

    def exists(self, name: str) -> bool:
        """Whether a topic exists; it is not opened."""
        self._metadata.refresh()
        return name in self._metadata.first_use_topics

    def created(self, name: str) -> PartitionLog:
        """Return partition 0 of a topic, and create the topic if it does not exist.

        Raises:
            IllegalState: if the log was opened with read_only=True, and the topic does not exist.
            InvalidTopic: if an ordinary topic has the name.
            CorruptRecord, StorageError: if the partition cannot be created or opened.

        Durability:
            The topic is durable on return.
        """
        found = self.existing(name)
        if found is not None:
            return found
        self._for_writing()
        info = self._create(name)
        files.failpoint("topic.first_use")
        return self._partitions.open(name, 0, info.partition(0), info.topic_id, info.config)

    def _create(self, name: str) -> TopicInfo:
        try:
            return self._metadata.adopt_topic(name, _IDS[name], {0: 0}, FIRST_USE_TOPICS[name])
        except TopicAlreadyExists:
            found = self._metadata.first_use_topics.get(name)
            if found is not None:
                return found  # another process has created it just now
            raise InvalidTopic(
                f"topic {name!r} is an ordinary topic, but eoslog needs this name; copy its "
                f"records to another topic, then delete it with log.delete_topic({name!r})"
            ) from None

    def all(self) -> list[PartitionLog]:
        """Partition 0 of each of these topics that was used.

        Raises:
            CorruptRecord, StorageError: as `existing`.
        """
        self._metadata.refresh()
        found = [self.existing(name) for name in self._metadata.first_use_topics]
        return [log for log in found if log is not None]

    def _never_opened(self, name: str) -> bool:
        """Whether the topic's creation was interrupted before its directory was created."""
        if files.is_dir(os.path.join(self._session.path, f"{name}-0")):
            return False
        return self._partitions.last_run.partition(name, 0).recovery_point == 0
