"""The partitions of tables that a worker owns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from eoslog.app.tables.memory import MemoryStore
from eoslog.app.tables.partition import Store, TablePartition
from eoslog.app.tables.restoring import restore
from eoslog.config.topic_keys import TopicConfig
from eoslog.model import Offsets, TopicPartition
from eoslog.shown_paths import get_logger
from eoslog.storage.fs.files import failpoint

if TYPE_CHECKING:
    from eoslog.app.clients import OutputTransaction
    from eoslog.app.tables.sqlite import SQLiteStore
    from eoslog.app.tables.table import AppTable
    from eoslog.log import Log

__all__ = ["OwnedTables"]

logger = get_logger("eoslog.app")


class OwnedTables:
    """The rows of the partitions that a worker owns; used by one thread."""

    def __init__(self, log: Log, app_id: str, folder: str, stopping: Callable[[], bool]) -> None:
        """Own nothing yet."""
        self._log = log
        self._app_id = app_id
        self._folder = folder
        self._stopping = stopping
        self._partitions: dict[tuple[str, int], TablePartition] = {}
        self._used: set[tuple[str, int]] = set()
        """Partitions that calls of the transaction have used."""

    # Partitions.

    def has(self, tables: Sequence[AppTable], number: int) -> bool:
        """Whether these tables are restored for a partition."""
        return all((table.topic, number) in self._partitions for table in tables)

    def take(self, tables: Sequence[AppTable], number: int) -> bool:
        """Restore a partition of tables, outside of a transaction.

        Returns:
            False if the application stops.
        """
        for table in tables:
            key = (table.topic, number)
            if key in self._partitions:
                continue
            store = self._open(table, number)
            place = TopicPartition(*key)
            try:
                if not restore(self._log, self._app_id, place, store, self._stopping):
                    store.close()
                    return False
            except BaseException:
                store.close()
                raise
            description = self._log.describe_topic(table.topic)
            largest = TopicConfig.of(dict(description.config)).max_message_bytes
            self._partitions[key] = TablePartition(
                table.topic, number, len(description.partitions), largest, store
            )
        return True

    def _open(self, table: AppTable, number: int) -> Store:
        if table.store == "memory":
            return MemoryStore()
        from eoslog.app.tables.sqlite import SQLiteStore, path_in

        topic = table.topic
        path = path_in(self._folder, topic, number)
        log_start = self._log.offsets(topic, number).log_start
        store = SQLiteStore(path, topic, self._log.topic_id(topic), number, log_start)
        try:
            if store.applied > 0 and not self._continues(store, TopicPartition(topic, number)):
                logger.warning(
                    "%s: not as the topic was left, reading the table from its topic", path
                )
                store.start_again()
        except BaseException:
            store.close()
            raise
        return store

    def _continues(self, store: SQLiteStore, place: TopicPartition) -> bool:
        """Whether the topic still has what the file was filled from.

        A topic that was restored from a backup, or that was repaired, may be shorter, or may have
        other records. Changes may be missing in the file, if the last owner was killed, or if
        others have changed the topic since. Tombstones among them are removed after
        `delete.retention.ms`.
        """
        from eoslog.app.tables.sqlite import mark_of

        offsets = self._log.offsets(place.topic, place.partition)
        if not store.settled or self._goes_on(place, store.applied, offsets):
            config = self._log.describe_topic(place.topic).config
            kept_ms = TopicConfig.of(dict(config)).delete_retention_ms
            age_ms = time.time() * 1000 - store.at_ms
            if abs(age_ms) > kept_ms / 2:  # negative after the clock was set back
                return False
        if store.applied > offsets.log_end:
            return False
        before = store.applied - 1
        if before < offsets.log_start or store.applied > offsets.last_stable:
            return True
        ends = {place: store.applied}
        for record in self._log.read(
            place.topic, partitions=[place.partition], start={place: before}, end=ends
        ):
            return bool(mark_of(record.key, record.value) == store.last)
        return True  # compaction has removed it

    def _goes_on(self, place: TopicPartition, last: int, offsets: Offsets) -> bool:
        """Whether others have changed the topic after the last change of a file."""
        if offsets.log_end != last + 1:
            return offsets.log_end > last
        log = self._log._engine.partition(place.topic, place.partition)
        after = log.batches(max(last, offsets.log_start), offsets.log_end)
        # A marker follows the change of a transaction. Compaction may have removed a record.
        return not any(batch.control for batch in after)

    def release(self, tables: Sequence[AppTable], number: int) -> None:
        """Drop a partition of tables, which another worker may own now."""
        for table in tables:
            self._used.discard((table.topic, number))
            partition = self._partitions.pop((table.topic, number), None)
            if partition is not None:
                if not partition.pending:
                    partition.store.settle()
                partition.store.close()

    def release_all(self) -> None:
        """Drop all partitions; they are restored again when they are needed."""
        partitions, self._partitions = self._partitions, {}
        self._used.clear()
        for partition in partitions.values():
            partition.store.close()

    # Calls of tasks.

    @contextlib.contextmanager
    def call(self, tables: Sequence[AppTable], number: int) -> Iterator[None]:
        """Let a call of a task use these tables; `keep` or `forget` its changes then."""
        for table in tables:
            table._current = self._partitions[table.topic, number]
            self._used.add((table.topic, number))
        try:
            yield
        finally:
            for table in tables:
                table._current = None

    def keep(self, tables: Sequence[AppTable], number: int) -> None:
        """Add the changes of a call that has succeeded to the transaction."""
        for table in tables:
            self._partitions[table.topic, number].keep()

    def forget(self, tables: Sequence[AppTable], number: int) -> None:
        """Drop the changes of a call that has failed."""
        for table in tables:
            self._partitions[table.topic, number].forget()

    # Transactions.

    def send(self, transaction: OutputTransaction) -> None:
        """Send the changes of the transaction to the topics of the tables.

        Raises:
            TransactionAbortable: if another worker has taken over the rows of a table.
        """
        for key in self._used:
            used = self._partitions[key]
            try:
                used.store.check_owner()
            except BaseException:
                self._partitions.pop(key)
                used.store.close()
                raise
        for partition in self._partitions.values():
            if partition.pending:
                _send(partition, transaction)

    def roll_back(self) -> None:
        """Drop the changes of the transaction."""
        self._used.clear()
        for partition in self._partitions.values():
            partition.roll_back()

    def apply(self) -> None:
        """Take over the changes of the committed transaction."""
        self._used.clear()
        for key, partition in list(self._partitions.items()):
            if partition.pending:
                failpoint("app.applying")
                if not partition.apply():
                    logger.warning(
                        "app %s: table %s-%d: another worker has taken over the rows, reading them "
                        "again",
                        self._app_id, *key,
                    )  # fmt: skip
                    self._partitions.pop(key)
                    partition.store.close()
        failpoint("app.applied")


def _send(partition: TablePartition, transaction: OutputTransaction) -> None:
    def sent(error: Any, metadata: Any) -> None:
        if error is None:
            partition.end = metadata.offset + 1

    *most, last = partition.pending.items()
    topic, number = partition.topic, partition.number
    if most:
        keys, values = zip(*most, strict=True)
        transaction.produce_many(topic, values, keys, partition=number)
    key, value = last
    transaction.produce(topic, value, key, partition=number, on_delivery=sent)
