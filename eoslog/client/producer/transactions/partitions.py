"""The partitions of a transaction.

A partition is added at the coordinator before its first batch, so that the end of the transaction
writes a marker to it. The offsets of the records are kept until the coordinator decides, which
checks that the records are still there.

Source: Kafka TransactionManager; KIP-98, KIP-890.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from eoslog.client.producer.identity import Identity, Place
from eoslog.client.producer.transactions.errors import explain_lost_epoch
from eoslog.errors import ErrorCode, InvalidProducerEpoch, UnknownTopicOrPartition
from eoslog.model import AppendResult, TopicPartition
from eoslog.storage.log.ingest import StagedSegment, adopt

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

__all__ = ["TransactionPartitions"]


class TransactionPartitions:
    """The partitions of the open transaction of one producer.

    The sender's lock guards it.

    Invariants:
        - `_appended`: partitions with batches of the transaction, with the ids of their topics. The
          coordinator's log lists each of them.
        - `listed`: partitions that the coordinator may list. If there is one, the coordinator must
          end the transaction.
        - `_confirmed`: partitions that the coordinator has confirmed. No other partition gets its
          first batch.
        - `coming`: partitions with batches in the sender's queues.
        - `spans`: first and last offset that this transaction wrote to each partition, and the id
          of the topic, because a re-created topic does not have the records.
        - `_expected`: condition on the coordinator's log, from the last listing; None: it does not
          cover all partitions.
    """

    def __init__(self, engine: Engine, transactional_id: str, identity: Identity) -> None:
        """Start without partitions."""
        self._engine = engine
        self._transactional_id = transactional_id
        self._identity = identity
        self.listed: set[TopicPartition] = set()
        self.coming: set[TopicPartition] = set()
        self.spans: dict[TopicPartition, tuple[int, int, bytes]] = {}
        self._appended: dict[TopicPartition, bytes] = {}
        self._confirmed: set[TopicPartition] = set()
        self._expected: Any = None
        self._names: dict[Place, TopicPartition] = {}

    def name(self, place: Place) -> TopicPartition:
        """The partition's name; one object each, so that `is` makes comparisons cheap."""
        found = self._names.get(place)
        if found is None:
            found = self._names[place] = TopicPartition(*place)
        return found

    def append(
        self, log: Any, place: Place, data: memoryview | StagedSegment, timeout: float | None
    ) -> AppendResult:
        """Append to a partition, or `adopt` a segment.

        The first append to a partition has a condition: the coordinator's log must still list the
        partition. Otherwise the transaction might have ended, and no marker would follow the batch.

        Source: protocol.md row 19.
        """
        partition = self.name(place)
        put: Any = partial(adopt, log) if isinstance(data, StagedSegment) else log.append
        if self._appended.get(partition) == log.topic_id:
            result = put(data, timeout=timeout)
            assert result is not None  # nothing was expected
            return result  # type: ignore[no-any-return]
        expected = self._expected
        while True:
            if expected is None or partition not in self._confirmed:
                expected = self._expected = self._list(partition)
            result = put(data, expect=[expected], timeout=timeout)
            if result is not None:
                self._appended[partition] = log.topic_id
                return result  # type: ignore[no-any-return]
            expected = None  # the coordinator's log has new records: list the partition again

    def _list(self, partition: TopicPartition) -> Any:
        """Add a partition and those of queued batches, in one AddPartitionsToTxn."""
        wanted = {partition, *(self.coming - self._appended.keys())}
        self.listed |= wanted
        self._expected = None  # the old condition does not cover the new partitions
        try:
            return self._add(wanted)
        except UnknownTopicOrPartition:
            if len(wanted) == 1:
                raise
            return self._add({partition})  # another topic is deleted; its own batches will fail
        except InvalidProducerEpoch as error:
            failure = explain_lost_epoch(
                self._engine.transactions, self._transactional_id, self._identity, error,
                ErrorCode.PRODUCER_FENCED,
            )  # fmt: skip
            raise failure from failure.__cause__

    def listed_early(self, places: Iterable[Place]) -> set[TopicPartition]:
        """The partitions that the coordinator can list together with another one."""
        found = set(map(self.name, places)) - self._appended.keys()
        self.listed |= found
        return found

    def confirm(self, partitions: set[TopicPartition], expected: Any) -> None:
        """Keep that partitions are listed, and the condition for appends to them.

        The sender may append at the same time. With an older condition its append fails, because
        the coordinator's log has changed.
        """
        self._expected = expected
        self._confirmed |= partitions

    def _add(self, partitions: set[TopicPartition]) -> Any:
        expected = self._engine.transactions.add_partitions_to_txn(
            self._transactional_id,
            self._identity.producer_id,
            self._identity.producer_epoch,
            partitions,
        )
        self._confirmed |= partitions
        return expected

    def note_span(self, log: Any, place: Place, result: AppendResult) -> None:
        """Keep the offsets of records that were appended."""
        partition = self.name(place)
        if result.base_offset >= 0:
            self.widen(partition, result.base_offset, result.last_offset, log.topic_id)
            return
        # A duplicate whose offset is no longer known: use the offsets of the open transaction.
        for producer_id, _, first, last in log.open_transactions():
            if producer_id == self._identity.producer_id:
                self.widen(partition, first, last, log.topic_id)

    def widen(self, partition: TopicPartition, first: int, last: int, topic_id: bytes) -> None:
        """Keep that the transaction has the records from one offset to another."""
        old = self.spans.get(partition)
        if old is not None and old[2] == topic_id:
            first, last = min(old[0], first), max(old[1], last)
        self.spans[partition] = (first, last, topic_id)

    def written(self) -> list[tuple[Any, int]]:
        """The logs with records of the transaction, each with its end."""
        found = []
        for partition, (_, last, topic_id) in list(self.spans.items()):
            try:
                log = self._engine.partition(partition.topic, partition.partition)
            except UnknownTopicOrPartition:
                continue  # the topic was deleted with its records; the commit ignores it too
            if log.topic_id == topic_id:
                found.append((log, last + 1))
        return found

    def clear(self) -> None:
        """Forget the transaction, because it has ended."""
        if not self.listed and not self.coming:
            return  # it has no partition
        self.listed.clear()
        self.coming.clear()
        self.spans.clear()
        self._appended.clear()
        self._confirmed.clear()
        self._expected = None
