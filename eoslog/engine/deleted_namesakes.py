"""Deleted topics whose name a new topic has.

Other processes may still clean, recover or append to them.

All three change files by name, and the new topic's directory has the same names. So a partition of
the new topic is opened only after they have ended.
"""

from __future__ import annotations

import os

from eoslog.engine.partition_directory import DeletedTopics, is_directory_of
from eoslog.model import CLUSTER_METADATA_TOPIC
from eoslog.storage.directory.cleaner_lock import CleanerLock
from eoslog.storage.directory.session import Session
from eoslog.storage.fs.timeouts import LOCK_TIMEOUT_S
from eoslog.storage.log.partition_log import PartitionLog


class DeletedNamesakes:
    """Waits for other users of deleted topics. Thread-safe."""

    def __init__(self, session: Session, topics: DeletedTopics) -> None:
        """Keep the session and the topics."""
        self._session = session
        self._topics = topics
        self._locks: dict[int, CleanerLock] = {}

    def keep_lock(self, log: PartitionLog) -> None:
        """Keep the cleaner lock of a deleted partition, which a thread may hold."""
        self._locks[log.slot] = log.cleaner_lock

    def await_users(self, topic: str, partition: int, topic_id: bytes) -> None:
        """Wait for users of deleted topics that had this partition's name.

        A process that takes a lock of a deleted topic after this changes nothing. The caller must
        not hold a mutex, because a thread with such a lock may need it.

        Raises:
            LockTimeout: if a process is suspended while it holds a lock, or copies the segments
                for a backup.
        """
        if topic == CLUSTER_METADATA_TOPIC or self._session.read_only:
            return
        namesakes = [one for one in self._topics.deleted.values() if one.name == topic]
        name = f"{topic}-{partition}"
        if not namesakes or is_directory_of(os.path.join(self._session.path, name), topic_id):
            return
        for one in namesakes:
            info = one.partitions.get(partition)
            if info is None:
                continue
            self._session.ensure_slot(info.slot)
            self._session.control.mark_deleted(info.slot)
            self._session.await_recovery(info.slot, appends=True)
            lock = self._locks.get(info.slot)
            if lock is None:
                lock = CleanerLock(self._session, info.slot)
            with lock.held(name, LOCK_TIMEOUT_S):
                pass
