"""Staged files that become segments of partitions, in a producer's transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eoslog.errors import EoslogError, IllegalState, KafkaError
from eoslog.storage.adoption import CannotAdopt, StagedSegment

if TYPE_CHECKING:
    from eoslog.client.identity import Identity
    from eoslog.client.sender import Sender
    from eoslog.client.transactions import TransactionManager
    from eoslog.config import ProducerConfig

__all__ = ["SegmentAdoption"]


class SegmentAdoption:
    """The part of a producer that hands over whole segments; for `publishing`."""

    config: ProducerConfig
    _engine: Any
    _identity: Identity
    _sender: Sender
    _transactions: TransactionManager | None

    def adopt_segment(self, topic: str, partition: int, segment: StagedSegment) -> int:
        """Make a staged file the partition's next segment, in the open transaction, instead of
        appending its batches; it comes behind what is buffered.

        Returns:
            How many records it holds.

        Raises:
            CannotAdopt: the partition does not take it as it is, or not now: nothing was done, and
                its batches can be produced.
            EoslogError: why it failed; the transaction can only be aborted.

        **Durability:** as that of other records of a transaction: when it is committed.
        """
        transactions, identity = self._transactions, self._identity
        if transactions is None:
            raise IllegalState("adopt_segment: only in a transaction")
        transactions.check_open("adopt_segment")
        place = topic, partition
        with self._sender.in_order() as unsent:
            if unsent.get(place):  # refused, and to be sent again first
                raise CannotAdopt(segment.path)
            sequence = identity.sequence(place)
            segment.bear(identity.producer_id, identity.producer_epoch, sequence, True)
            try:
                log = self._engine.partition(topic, partition)
                wait = self.config.request_timeout_ms / 1000
                result = transactions.append(log, place, segment, wait)
            except CannotAdopt:
                raise
            except EoslogError as error:
                raise transactions.fail(error) from error
            except BaseException as error:  # it may be in the log
                transactions.fail(KafkaError(message=f"{segment.path}: {error!r}"))
                raise
            identity.advance(place, sequence, segment.count)
            transactions.note_span(log, place, result)
            stats = self._sender.stats
            stats.batches += segment.file.batches
            stats.records += segment.count
            stats.bytes += len(segment)
        return segment.count
