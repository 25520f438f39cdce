"""The partitions that this process has open: found, made, recovered, forgotten.

A partition is opened at its first use. All of `__transaction_state` comes before any data: the fate
of open data is read from it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping

from eoslog.errors import CorruptRecord, IllegalState, StorageError, UnknownTopicOrPartition
from eoslog.model import CLUSTER_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from eoslog.storage import checkpoints, files, log_loader
from eoslog.storage.directory import remove_partition
from eoslog.storage.last_run import LastRun
from eoslog.storage.metadata import MetadataLog
from eoslog.storage.metadata_fold import PartitionInfo
from eoslog.storage.partition_log import LOCK_TIMEOUT_S, LogSettings, PartitionLog
from eoslog.storage.segment_swap import CleanerLock
from eoslog.storage.segments import LOG, file_name
from eoslog.storage.session import Session


def _ignore(log: PartitionLog) -> None:
    """Until somebody listens."""


class OpenPartitions:
    """The open partitions of a directory, by name and by slot. Thread-safe.

    Invariants:
        - one PartitionLog a partition and process, of the topic id that the metadata names;
        - when a data partition opens, all transaction logs that exist are open and folded.
    """

    metadata: MetadataLog
    """Set once the metadata log, which is opened here too, can be read."""

    def __init__(
        self,
        session: Session,
        *,
        strict: bool,
        transaction_partitions: int,
        producer_expiration_ms: int,
        check: Callable[[], None],
    ) -> None:
        """Nothing is open yet; `check` raises when the directory was closed."""
        self.last_run = LastRun(clean=False)
        self.session = session
        self._strict = strict
        self._transaction_partitions = transaction_partitions
        self._producer_expiration_ms = producer_expiration_ms
        self._check = check
        self._mutex = threading.RLock()
        self._partitions: dict[tuple[str, int], PartitionLog] = {}
        self._slots: dict[int, PartitionLog] = {}
        self._cleaner_locks: dict[int, CleanerLock] = {}  # of deleted partitions
        self._coordinators_ready = False
        self._gated = False
        self._closed = False
        self.on_append: Callable[[PartitionLog], None] | None = None
        self.on_log_start: Callable[[PartitionLog], None] = _ignore
        self.on_recovered: Callable[[PartitionLog], object] = _ignore
        self.on_forget: Callable[[PartitionLog], None] = _ignore

    def __iter__(self) -> Iterator[PartitionLog]:
        return iter(list(self._partitions.values()))

    def known(self, topic: str, partition: int) -> PartitionLog | None:
        """The partition if it is open already."""
        return self._partitions.get((topic, partition))

    def partition(self, topic: str, partition: int) -> PartitionLog:
        """An open partition, recovered at the session's first use.

        Raises:
            UnknownTopicOrPartition: there is none, or it was deleted.
            CorruptRecord, StorageError: it cannot be opened as it is.
        """
        log = self._partitions.get((topic, partition))
        if log is not None and not log.core.deleted:
            return log
        self._check()
        info = self.metadata.topic(topic)
        return self.open(topic, partition, info.partition(partition), info.topic_id, info.config)

    def settled(self, topic: str, partition: int) -> PartitionLog:
        """The partition with its topic's settings as they are now, whoever altered them: for who
        takes something away by them.

        Raises: as `partition`.
        """
        log = self.partition(topic, partition)
        settings = LogSettings.of(dict(self.metadata.topic(topic).config))
        if settings != log.settings:
            log.configure(settings)
        return log

    def partition_by_slot(self, slot: int) -> PartitionLog:
        """The partition that owns a slot of the control file."""
        log = self._slots.get(slot)
        if log is not None:
            return log
        found = self.metadata.by_slot(slot)
        if found is None or found[0].deleted:
            raise UnknownTopicOrPartition(f"no partition has slot {slot}")
        return self.partition(found[0].name, found[1].partition)

    def open(
        self,
        topic: str,
        partition: int,
        info: PartitionInfo,
        topic_id: bytes,
        config: Mapping[str, str],
    ) -> PartitionLog:
        """Open a partition whose place is known already: recover it if this session has not yet."""
        if (
            topic not in (CLUSTER_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)
            and not self._coordinators_ready
            and not self.session.read_only
        ):
            self._open_coordinators()
        found = self._living(topic, partition)
        if found is not None:
            return found
        self._await_cleaners(topic, partition, topic_id)
        with self._mutex:
            found = self._living(topic, partition)
            if found is not None:
                return found
            if self._closed:
                raise IllegalState("the log is closed")
            self.session.ensure_slot(info.slot)
            log = PartitionLog(
                self.session,
                topic,
                partition,
                slot=info.slot,
                topic_id=topic_id,
                strict=self._strict,
                settings=LogSettings.of(dict(config)),
                # An adopted log goes on behind the epochs that it has had.
                leader_epoch=max(info.leader_epoch, self._last_epoch(topic, partition)),
            )
            made = False
            try:
                self.session.refuse_outdated()
                self._check_not_deleted(log, made)
                last = self.last_run.partition(topic, partition)
                made = self._make_directory(log)
                if made:
                    files.failpoint("partition.made")
                    last = log_loader.LastSession(clean=False)
                elif self._made_by_another(log):
                    # Who made it took out what the checkpoints said of the deleted topic.
                    now = LastRun.read(self.session.path, self.session)
                    last = now.partition(topic, partition)
                recovered = log_loader.open_partition(
                    log, last, producer_expiration_ms=self._producer_expiration_ms
                )
                # Recovery publishes the slot as of a living topic; whoever deletes it after this
                # marks it again, and before an append.
                self._check_not_deleted(log, made)
                self.session.refuse_outdated()  # a scan met what is not, or not yet, in the log
            except BaseException as error:
                log.close()
                self.session.refuse_outdated()
                if isinstance(error, StorageError):
                    self._check_not_deleted(log, made)
                raise
            log.on_append = self.on_append
            log.on_log_start = self.on_log_start
            if self._gated:
                log.core.gate()
            self._partitions[topic, partition] = log
            self._slots[info.slot] = log
        if recovered and self._coordinators_ready:
            self.on_recovered(log)
        return log

    def _living(self, topic: str, partition: int) -> PartitionLog | None:
        """The open partition, unless its topic was deleted meanwhile."""
        with self._mutex:
            log = self._partitions.get((topic, partition))
            if log is not None and log.core.deleted:
                self._forget(log)
                return None
            return log

    def _check_not_deleted(self, log: PartitionLog, made: bool) -> None:
        """Raise UnknownTopicOrPartition where the topic that is being opened was deleted meanwhile.

        A directory that the opening made goes again. One that stood is left to whoever finishes
        the deletion: while it stands, groups may still know the topic.
        """
        if log.topic == CLUSTER_METADATA_TOPIC or self.session.read_only:
            return
        self.metadata.refresh()
        if log.topic_id in self.metadata.deleted:
            self.session.control.mark_deleted(log.slot)
            if made:
                remove_partition(self.session.path, log.topic, log.partition, log.topic_id)
            raise UnknownTopicOrPartition(f"{log.name}: the topic was deleted")

    def _last_epoch(self, topic: str, partition: int) -> int:
        name = os.path.join(f"{topic}-{partition}", checkpoints.LEADER_EPOCH_CHECKPOINT)
        try:
            entries = checkpoints.read_leader_epochs(os.path.join(self.session.path, name))
        except CorruptRecord:
            return 0
        return max((epoch for epoch, _ in entries), default=0)

    def _make_directory(self, log: PartitionLog) -> bool:
        """Make the partition's directory at first use, with Kafka's small files; True if it did."""
        if self.session.read_only:
            if not files.is_dir(log.path):
                raise StorageError(f"{log.path} is missing", path=log.path)
            return False
        if files.exists(os.path.join(log.path, checkpoints.LEADER_EPOCH_CHECKPOINT)):
            found = checkpoints.read_partition_metadata(log.path)
            if found == log.topic_id:
                return False
            if log.topic == CLUSTER_METADATA_TOPIC or found not in self.metadata.deleted:
                raise StorageError(
                    f"topic id {checkpoints.id_text(found or bytes(16))}, "
                    f"the metadata says {checkpoints.id_text(log.topic_id)}",
                    path=log.path,
                )
            files.remove_tree(log.path)
        recreated = self._recreated(log)
        point = self.last_run.partition(log.topic, log.partition).recovery_point
        if point > 0 and not recreated and not files.is_dir(log.path):
            raise StorageError(
                f"the directory of {log.name} is missing; it held offsets up to {point}: "
                "put it back from a backup, or delete the topic",
                path=log.path,
            )
        with self.session.bootstrap():
            if files.exists(os.path.join(log.path, checkpoints.LEADER_EPOCH_CHECKPOINT)):
                return False
            if recreated:  # checkpoints know names only: what they say is of the deleted topic
                checkpoints.forget(self.session.path, (log.topic, log.partition))
            log_loader.make_directory(log)
            checkpoints.write_partition_metadata(log.path, log.topic_id)
            checkpoints.write_leader_epochs(
                os.path.join(log.path, checkpoints.LEADER_EPOCH_CHECKPOINT), [(log.leader_epoch, 0)]
            )
        return True

    def _recreated(self, log: PartitionLog) -> bool:
        """Whether a deleted topic had the name."""
        return log.topic != CLUSTER_METADATA_TOPIC and any(
            topic.name == log.topic for topic in self.metadata.deleted.values()
        )

    def _made_by_another(self, log: PartitionLog) -> bool:
        """Whether the directory may have been made for this topic since this process read the
        checkpoints: it is empty then, for nobody writes before it is recovered.
        """
        first = files.status(os.path.join(log.path, file_name(0, LOG)))
        return first is not None and first.st_size == 0 and self._recreated(log)

    def _await_cleaners(self, topic: str, partition: int, topic_id: bytes) -> None:
        """Wait for who is at the segments of a deleted topic: by names, which another gets here.

        Whoever takes a cleaner lock of a deleted topic after this lets go of it at once. Without
        the mutex: who has such a lock may need it.

        Raises:
            LockTimeout: somebody is stopped there, or copies them for a backup.
        """
        if topic == CLUSTER_METADATA_TOPIC or self.session.read_only:
            return
        namesakes = [one for one in self.metadata.deleted.values() if one.name == topic]
        name = f"{topic}-{partition}"
        if not namesakes or self._stands(name, topic_id):
            return
        for one in namesakes:
            info = one.partitions.get(partition)
            if info is None:
                continue
            self.session.ensure_slot(info.slot)
            self.session.control.mark_deleted(info.slot)
            lock = self._cleaner_locks.get(info.slot)
            if lock is None:
                lock = CleanerLock(self.session.append_lock(info.slot)[0], info.slot)
            with lock.held(name, LOCK_TIMEOUT_S):
                pass

    def _stands(self, name: str, topic_id: bytes) -> bool:
        """Whether the directory of that very topic is there."""
        try:
            found = checkpoints.read_partition_metadata(os.path.join(self.session.path, name))
        except (CorruptRecord, StorageError, FileNotFoundError):
            return False
        return found == topic_id

    def _open_coordinators(self) -> None:
        """All transaction logs come first: the fate of open data is read from them."""
        with self._mutex:
            if self._coordinators_ready:
                return
            for log in self.existing(TRANSACTION_STATE_TOPIC, self._transaction_partitions):
                log.fold()
            self._coordinators_ready = True

    def drop(self, topic: str, partition: int) -> None:
        """Close a partition whose topic is gone."""
        with self._mutex:
            log = self._partitions.get((topic, partition))
            if log is not None:
                self._forget(log)

    @contextlib.contextmanager
    def last_look(self) -> Iterator[None]:
        """For a clean close: no other thread opens a partition within it, nor behind it.

        Taken before the bootstrap lock, which an opening asks for under the mutex.
        """
        with self._mutex:
            try:
                yield
            finally:
                self._closed = True

    def gate(self) -> None:
        """Within `last_look`: no thread of this process appends any more, and what is appended is
        published. Partitions that are opened yet are gated from the beginning.
        """
        self._gated = True
        for log in self._partitions.values():
            log.core.gate()

    def close(self) -> None:
        """Close all partitions; whoever opens one from now on is refused."""
        with self._mutex:
            self._closed = True
            for log in self._partitions.values():
                log.close()

    def _forget(self, log: PartitionLog) -> None:
        self._cleaner_locks[log.slot] = log.cleaner_lock  # a thread may be under it yet
        self._partitions.pop((log.topic, log.partition), None)
        self._slots.pop(log.slot, None)
        self.on_forget(log)
        log.close(deleted=True)

    def existing(self, topic: str, count: int) -> list[PartitionLog]:
        """The partitions of an internal topic that were ever used."""
        return [
            self.partition(topic, number)
            for number in range(count)
            if (topic, number) in self._partitions
            or files.is_dir(os.path.join(self.session.path, f"{topic}-{number}"))
        ]
