"""Staged files that become segments of partitions in a producer's transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eoslog.client.producer.identity import Identity
from eoslog.client.producer.sender import Sender
from eoslog.client.producer.transactions.manager import TransactionManager
from eoslog.errors import EoslogError, IllegalState, KafkaError
from eoslog.storage.log.ingest import CannotAdopt, StagedSegment

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

__all__ = ["SegmentIngest"]


class SegmentIngest:
    """The part of a producer that adds complete segments; for `publishing`."""

    def __init__(
        self,
        engine: Engine,
        identity: Identity,
        sender: Sender,
        transactions: TransactionManager | None,
        request_timeout_ms: int,
    ) -> None:
        """Add segments under a producer's identity.

        Args:
            engine: the open directory.
            identity: the ids that segments carry.
            sender: the producer's sender, which sends buffered records first.
            transactions: the producer's transaction manager; None rejects all segments.
            request_timeout_ms: the longest wait for a partition's lock.
        """
        self._engine = engine
        self._identity = identity
        self._sender = sender
        self._transactions = transactions
        self._wait_s = request_timeout_ms / 1000

    def segment(self, topic: str, partition: int, segment: StagedSegment) -> int:
        """Make a staged file the partition's next segment, in the open transaction.

        The segment follows the records that are buffered for the partition. No batch is copied.

        Returns:
            The number of records in the segment.

        Raises:
            CannotAdopt: if the partition cannot take the file now. Nothing was changed, and the
                caller can produce its batches instead.
            EoslogError: if the step failed; the transaction can only be aborted.

        Durability:
            Durable when the transaction commits, as other records are.
        """
        transactions, identity = self._transactions, self._identity
        if transactions is None:
            raise IllegalState(
                "publish: a staged segment needs a transaction; use a producer with a "
                "transactional.id"
            )
        transactions.check_open("publish")
        if transactions.staging is not None:
            raise CannotAdopt(segment.path)  # its partition is not touched before the decision
        place = topic, partition
        with self._sender.in_order() as unsent:
            if unsent.get(place):  # rejected batches come first, to keep the order
                raise CannotAdopt(segment.path)
            sequence = identity.sequence(place)
            segment.bear(identity.producer_id, identity.producer_epoch, sequence, True)
            try:
                log = self._engine.partition(topic, partition)
                result = transactions.append(log, place, segment, self._wait_s)
            except CannotAdopt:
                raise
            except EoslogError as error:
                raise transactions.fail(error) from error
            except BaseException as error:  # the segment may be in the log
                transactions.fail(KafkaError(message=f"{segment.path}: {error!r}"))
                raise
            identity.advance(place, sequence, segment.count)
            transactions.note_span(log, place, result)
            stats = self._sender.stats
            stats.batches += segment.file.batches
            stats.records += segment.count
            stats.bytes += len(segment)
        return segment.count
