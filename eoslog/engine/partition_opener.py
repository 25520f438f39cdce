"""Opening one partition, in three steps: its slot, its directory, its recovery.

The table of open partitions (`log_manager.py`) calls this under its mutex. The metadata log is
opened first, before the table exists, because it describes the other partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from eoslog.engine.partition_directory import DeletedTopics, NoDeletedTopics, PartitionDirectory
from eoslog.errors import StorageError, UnknownTopicOrPartition
from eoslog.storage.directory.last_run import LastRun
from eoslog.storage.directory.session import Session
from eoslog.storage.fs import files
from eoslog.storage.log import loader as log_loader
from eoslog.storage.log.partition_log import LogSettings, PartitionLog
from eoslog.storage.metadata.image import PartitionInfo
from eoslog.storage.segment.carried_batches import CarriedAbove, nothing_carried

OnAppend = Callable[[PartitionLog], None]
OnLogStart = Callable[[PartitionLog, int], None]


class Place(NamedTuple):
    """The metadata of a partition."""

    topic: str
    info: PartitionInfo
    topic_id: bytes
    config: Mapping[str, str]


class Opened(NamedTuple):
    """An open partition, and whether this opening has recovered it."""

    log: PartitionLog
    recovered: bool


class PartitionOpener:
    """Opens partitions of a directory.

    Args:
        session: the session of the log directory.
        last_run: the state that the last session left.
        strict: whether acknowledged records are durable.
        producer_expiration_ms: the time after which an inactive producer's state expires.
        on_append: called after an append that its caller does not flush.
        on_log_start: called before a log start moves and files are removed.
    """

    def __init__(
        self,
        session: Session,
        last_run: LastRun,
        *,
        strict: bool,
        producer_expiration_ms: int,
        on_append: OnAppend | None,
        on_log_start: OnLogStart,
    ) -> None:
        """Keep the parts; nothing is opened."""
        self.last_run = last_run
        self._session = session
        self._strict = strict
        self._producer_expiration_ms = producer_expiration_ms
        self._on_append = on_append
        self._on_log_start = on_log_start

    def open(
        self,
        place: Place,
        topics: DeletedTopics | None = None,
        carried: CarriedAbove = nothing_carried,
    ) -> Opened:
        """Open a partition, and recover it if this session has not done so.

        Args:
            place: the partition.
            topics: the deleted topics; None for the metadata log, which lists them.
            carried: the batches that decisions of earlier sessions carry.

        Raises:
            UnknownTopicOrPartition: if the topic was deleted.
            CorruptRecord, StorageError: if it cannot be opened.
        """
        session = self._session
        session.ensure_slot(place.info.slot)
        log = PartitionLog(
            session,
            place.topic,
            place.info.partition,
            slot=place.info.slot,
            topic_id=place.topic_id,
            strict=self._strict,
            settings=LogSettings.of(dict(place.config)),
            leader_epoch=place.info.leader_epoch,
            on_append=self._on_append,
            on_log_start=self._on_log_start,
        )
        directory = PartitionDirectory(session, log, self.last_run, topics or NoDeletedTopics())
        try:
            session.refuse_outdated()
            directory.check_not_deleted()
            last = directory.prepare()
            recovered = log_loader.open_partition(
                log,
                last,
                producer_expiration_ms=self._producer_expiration_ms,
                carried=carried,
                topic=directory,
            )
            # Recovery publishes the slot without a deletion mark. A process that deletes the topic
            # after this check marks the slot again, before any append.
            directory.check_not_deleted()
            session.refuse_outdated()  # the scan may have read records of a writer that came since
        except BaseException as error:
            log.close()
            session.refuse_outdated()
            if isinstance(error, StorageError | FileNotFoundError | UnknownTopicOrPartition):
                directory.check_not_deleted()
            if isinstance(error, FileNotFoundError):  # its folder was removed
                raise files.storage_error(error, log.path) from error
            raise
        return Opened(log, recovered)
