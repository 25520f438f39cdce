"""Appends of one partition's batches: in groups, with retries, splits and expiry.

The state of a batch decides how it is retried:

    rejected     The log did not write it. Its sequence is free for another batch. If the batch is
                 too large for the topic, it is split into two batches with sequences of their own.
    doubtful     An append may have happened without an answer. The same bytes are sent again with
                 the same id, epoch and sequence, before newer batches of the partition.
    expired      A rejected batch is dropped. The sequence of a doubtful batch stays unresolved, so
                 an idempotent producer continues with a new epoch, and a transaction must abort.

For tests: `eoslog.test.lose.acks` (a probability) or the failpoint `producer.ack_lost` (armed with
`trip`) makes the dispatch act as if an acknowledgement had been lost after the append.

Source: KIP-98, KIP-91 (delivery timeout), KIP-360 (epoch bump); Kafka Sender, TransactionManager.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eoslog._core import RecordAccumulator
from eoslog.client.producer.acknowledger import Acknowledger, DeliveryErrors
from eoslog.client.producer.batch import ProducerBatch
from eoslog.client.producer.encoded_batch import can_split, split
from eoslog.client.producer.identity import Identity, Place, next_sequence
from eoslog.client.producer.transactions.manager import TransactionManager
from eoslog.config.keys import ProducerConfig
from eoslog.errors import (
    ConfigError,
    EoslogError,
    InvalidProducerEpoch,
    KafkaError,
    OutOfOrderSequence,
    RecordTooLarge,
    UnknownTopicOrPartition,
)
from eoslog.model import AppendResult
from eoslog.shown_paths import get_logger
from eoslog.storage.fs import files

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

__all__ = ["GROUP_BYTES", "BatchDispatch", "check_test_keys"]

logger = get_logger("eoslog.client.sender")

GROUP_BYTES = 1 << 20  # appended under one lock: held for no longer than about a millisecond
_new = tuple.__new__  # creates a named tuple without its slower constructor
_MAX_BUMPS = 5  # per batch: a log that rejected five epochs rejects the sixth as well


def check_test_keys(config: ProducerConfig) -> None:
    """Reject the test key that loses acknowledgements, unless a failpoint is armed.

    Raises:
        ConfigError: if `eoslog.test.lose.acks` is set and no failpoint is armed.
    """
    if config.eoslog_test_lose_acks and not files.failpoints_armed():
        raise ConfigError(
            f"eoslog.test.lose.acks: {config.eoslog_test_lose_acks:g} is for tests only, and no "
            "failpoint is armed; remove the key (a test arms one with EOSLOG_FAILPOINTS)"
        )


class BatchDispatch:
    """Appends the pending batches of partitions. The sender's lock guards it."""

    def __init__(
        self,
        accumulator: RecordAccumulator,
        engine: Engine,
        config: ProducerConfig,
        identity: Identity,
        transactions: TransactionManager | None,
        pending: dict[Place, deque[ProducerBatch]],
        acks: Acknowledger,
    ) -> None:
        """Keep the producer's parts.

        Args:
            accumulator: refreshed when a topic's limits may have changed.
            engine: the open directory.
            config: the producer's configuration.
            identity: the ids that batches carry; without an allocator, batches carry no ids.
            transactions: the producer's transaction manager, or None.
            pending: the batches of each partition, in order. A batch leaves the queue when it
                failed, or when it is in the log and `acks` has it.
            acks: receives the result of each batch.
        """
        self._accumulator = accumulator
        self._engine = engine
        self._config = config
        self._identity = identity
        self._transactions = transactions
        self._pending = pending
        self._acks = acks
        self._stats = acks.stats
        self._errors = DeliveryErrors()
        self._idempotent = config.enable_idempotence and transactions is None
        self._waits_for_flush = config.acks == -1 and transactions is None
        # An interrupt of the flush leaves the batch in doubt. Sent again, it must be recognised.
        self._flushes_now = self._waits_for_flush and self._idempotent
        self._delivery_ns = config.delivery_timeout_ms * 1_000_000
        self._lose_acks = config.eoslog_test_lose_acks

    def send(self, place: Place, patience_s: float) -> None:
        """Append the partition's batches, in order, until one has to wait.

        Args:
            place: the partition.
            patience_s: the longest wait for its lock, in seconds.
        """
        while queue := self._pending[place]:
            now = time.monotonic_ns()
            head = queue[0]
            if self._transactions is not None and self._transactions.error is not None:
                self._acks.settle(queue.popleft(), self._transactions.error, None, quiet=True)
                continue
            if now - head.created_ns >= self._delivery_ns:
                self._expire(queue.popleft())
                continue
            if head.retry_at_ns > now:
                return
            if not self._attempt(place, queue, patience_s):
                return

    def _attempt(self, place: Place, queue: deque[ProducerBatch], patience_s: float) -> bool:
        """Append the head of the queue; return False if it has to wait."""
        group = self._next_group(queue)
        doubtful = group[0].doubtful
        try:
            log = self._engine.partition(*place)
            self._identity.ensure()
            if not doubtful:
                self._stamp(place, group)
            for batch in group:
                batch.attempts += 1
                batch.doubtful = True  # until the log has answered
            with memoryview(_joined(group)) as data:
                result = self._append(log, place, data, patience_s)
        except EoslogError as error:
            for batch in group:
                batch.doubtful = doubtful
            return self._refused(queue, group, error)
        except Exception as bug:  # a bug must not stop other partitions; the outcome is unknown
            logger.exception("%s-%d: append failed, reporting a delivery error", *place)
            for batch in group:
                batch.doubtful = True
            return self._refused(queue, group, KafkaError(message=f"append failed: {bug!r}"))
        if self._ack_is_lost():
            self._stats.acks_lost += 1
            return True
        if self._flushes_now:
            alone = len(group) == len(queue) and len(self._pending) == 1 and not self._acks.waiting
            if alone:  # several partitions are flushed together
                log.try_flush(result.last_offset + 1)
        self._appended(log, place, queue, group, result)
        return True

    def _next_group(self, queue: deque[ProducerBatch]) -> list[ProducerBatch]:
        head = queue[0]
        if head.attempts or len(queue) == 1:
            return [head]
        group: list[ProducerBatch] = []
        size = 0
        for batch in queue:
            if batch.attempts or (group and size + len(batch) > GROUP_BYTES):
                break
            group.append(batch)
            size += len(batch)
        return group

    def _stamp(self, place: Place, group: list[ProducerBatch]) -> None:
        identity = self._identity
        sequence = identity.sequence(place)
        for batch in group:
            batch.stamp(
                identity.producer_id,
                identity.producer_epoch,
                sequence,
                self._transactions is not None,
            )
            if sequence >= 0:
                sequence = next_sequence(sequence, batch.count)

    def _append(self, log: Any, place: Place, data: memoryview, patience_s: float) -> AppendResult:
        if self._transactions is not None:
            return self._transactions.append(log, place, data, patience_s)
        result = log.append(data, timeout=patience_s, flushes=self._waits_for_flush)
        assert result is not None  # nothing was expected
        return result  # type: ignore[no-any-return]

    def _ack_is_lost(self) -> bool:
        if self._lose_acks and random.random() < self._lose_acks:
            return True
        return files.failpoint("producer.ack_lost")

    def _appended(
        self,
        log: Any,
        place: Place,
        queue: deque[ProducerBatch],
        group: list[ProducerBatch],
        result: AppendResult,
    ) -> None:
        self._errors.forget(place)
        stats, offset = self._stats, result.base_offset
        last, duplicate = result.last_offset, result.duplicate
        # With CreateTime, each record keeps its own timestamp.
        timestamp = result.timestamp if log.settings.log_append_time else -1
        waits = self._waits_for_flush and log.strict
        durable = log.durable_end if waits and offset >= 0 else -1
        if self._transactions is not None:
            self._transactions.note_span(log, place, result)
        identity = self._identity
        mine = (identity.producer_id, identity.producer_epoch)
        for batch in group:
            count = batch.count
            if batch.producer_id >= 0 and mine == (batch.producer_id, batch.producer_epoch):
                identity.advance(place, batch.base_sequence, count)
            stats.batches += batch.batches
            stats.records += count
            stats.bytes += len(batch)
            stats.duplicates += duplicate
            stats.retries += batch.attempts > 1
            result = _new(AppendResult, (offset, last, duplicate, timestamp))
            if waits and (durable < 0 or durable < offset + count):
                self._acks.wait_for_flush(log, batch, result)
            else:
                self._acks.settle(batch, None, result)
            queue.popleft()
            if offset >= 0:
                offset += count

    # Failures.

    def _refused(
        self, queue: deque[ProducerBatch], group: list[ProducerBatch], error: EoslogError
    ) -> bool:
        head = group[0]
        again = getattr(error, "retriable", False) and head.attempts <= self._config.retries
        again = again and not self._is_deleted(head, error)
        self._errors.note(head, error, again)
        if again:
            pause = min(self._config.retry_backoff_ms * 2 ** min(head.attempts, 10), 1000)
            pause *= random.uniform(0.8, 1.2)
            head.retry_at_ns = time.monotonic_ns() + int(pause * 1e6)
            head.attempts = max(head.attempts, 1)
            return False
        if len(group) > 1:
            for batch in group:
                batch.attempts = max(batch.attempts, 1)  # retried alone, so only the bad one fails
            return True
        if self._transactions is None and self._idempotent and head.attempts <= _MAX_BUMPS:
            # The log answered that it did not write the batch, so new numbers cannot duplicate it.
            if isinstance(error, OutOfOrderSequence):
                return self._start_over(head, self._identity.bump)
            if isinstance(error, InvalidProducerEpoch):
                return self._start_over(head, self._identity.renew)
        if isinstance(error, RecordTooLarge) and can_split(head):
            rest = itertools.islice(queue, 1, None)
            self._pending[head.topic, head.partition] = deque([*split(head), *rest])
            self._accumulator._refresh_topics()  # the topic's limit was lowered: build smaller ones
            return True
        queue.popleft()
        if self._transactions is not None:
            self._transactions.fail(error := self._transactions.explained(error))
        elif head.doubtful and self._idempotent:
            self._identity.bump()
            self._stats.epoch_bumps += 1
        self._acks.settle(head, error, None)
        return True

    def _is_deleted(self, batch: ProducerBatch, error: EoslogError) -> bool:
        """Whether the metadata does not have the partition, so that no retry can succeed.

        Kafka's clients retry, because their metadata may be stale. Here metadata is current.
        """
        if not isinstance(error, UnknownTopicOrPartition):
            return False
        try:
            return batch.partition not in self._engine.topic(batch.topic).partitions
        except UnknownTopicOrPartition:
            return True

    def _start_over(self, head: ProducerBatch, change: Callable[[], None]) -> bool:
        change()
        head.doubtful = False
        self._stats.epoch_bumps += 1
        return True

    def _expire(self, batch: ProducerBatch) -> None:
        error = self._errors.timeout(batch, self._config.delivery_timeout_ms)
        if self._transactions is not None:
            self._transactions.fail(error)
        elif batch.doubtful and self._idempotent:
            self._identity.bump()
            self._stats.epoch_bumps += 1
        self._acks.settle(batch, error, None)


def _joined(group: list[ProducerBatch]) -> Any:
    """The bytes of a group of batches; a single batch is not copied."""
    if len(group) == 1:
        return group[0].data
    return bytearray().join([batch.data for batch in group])
