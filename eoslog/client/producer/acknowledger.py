"""The last steps of a batch: flush, report of the delivery, release of memory."""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eoslog._core import RecordAccumulator
from eoslog.client.producer.batch import ProducerBatch
from eoslog.client.producer.delivery import Callbacks
from eoslog.client.producer.encoded_batch import EncodedBatches
from eoslog.client.producer.identity import Place
from eoslog.config.keys import ProducerConfig
from eoslog.errors import (
    DeliveryTimeout,
    DuplicateSequence,
    EoslogError,
    StorageError,
    UnknownTopicOrPartition,
)
from eoslog.model import AppendResult, RecordMetadata
from eoslog.shown_paths import get_logger

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

__all__ = ["Acknowledger", "DeliveryErrors", "SenderStats"]

logger = get_logger("eoslog.client.sender")


@dataclass
class SenderStats:
    """Counts since the producer was created."""

    batches: int = 0
    records: int = 0
    bytes: int = 0
    retries: int = 0
    duplicates: int = 0
    errors: int = 0
    epoch_bumps: int = 0
    acks_lost: int = 0


@dataclass(slots=True)
class _Waiting:
    """A batch that is in the log and not yet durable."""

    log: Any
    batch: ProducerBatch
    result: AppendResult


class Acknowledger:
    """Completes batches that were appended or failed; guarded by the sender's lock."""

    def __init__(
        self, accumulator: RecordAccumulator, engine: Engine, config: ProducerConfig
    ) -> None:
        """Keep the accumulator, which gets the memory of completed batches back."""
        self._accumulator = accumulator
        self._engine = engine
        self._config = config
        self._delivery_ns = config.delivery_timeout_ms * 1_000_000
        self.waiting: deque[_Waiting] = deque()
        self.callbacks = Callbacks()
        self.space = threading.Condition(threading.Lock())  # notified when memory is released
        self.hungry = 0  # threads that wait for memory; counted before they check it
        self.untold: EoslogError | None = None  # first failure that no callback received
        self.failed = 0  # records that were not delivered
        self.stats = SenderStats()

    def wait_for_flush(self, log: Any, batch: ProducerBatch, result: AppendResult) -> None:
        """Report this batch after the next flush, when it is durable."""
        self.waiting.append(_Waiting(log, batch, result))

    def flush(self) -> None:
        """Flush all partitions of waiting batches, and report the deliveries."""
        targets: dict[Any, int] = {}
        for item in self.waiting:
            end = item.result.base_offset + item.batch.count
            if item.result.base_offset < 0:
                end = item.log.log_end  # a duplicate that is too old to place
            targets[item.log] = max(targets.get(item.log, 0), end)
        failed: dict[Any, EoslogError] = {}
        try:
            self._engine.flush_many(list(targets.items()))
        except EoslogError:
            for log, end in targets.items():  # flush one by one, to find the partition that failed
                try:
                    log.flush(end)
                except EoslogError as error:
                    failed[log] = error
        now = time.monotonic_ns()
        for _ in range(len(self.waiting)):
            item = self.waiting[0]
            failure = failed.get(item.log)
            in_time = now - item.batch.created_ns < self._delivery_ns
            again = getattr(failure, "retriable", False)
            if again and in_time and not isinstance(failure, UnknownTopicOrPartition):
                self.waiting.rotate(-1)
                continue
            self.settle(item.batch, failure, None if failure else item.result)
            self.waiting.popleft()

    def flush_later(self) -> None:
        """Leave batches that could not be flushed to the log's background thread.

        This producer may time out or close before its next flush.
        """
        for log in {item.log for item in self.waiting}:
            log.flush_later()

    def settle(
        self,
        batch: ProducerBatch,
        error: EoslogError | None,
        result: AppendResult | None,
        *,
        quiet: bool = False,
    ) -> None:
        """Report the result of a batch to its callbacks and release its memory.

        Args:
            batch: the batch that was delivered or that failed.
            error: the reason of a failure; None if the batch was delivered.
            result: where the batch is in the log; None if it failed.
            quiet: do not keep the error for `flush`, because a transaction raises it.
        """
        if batch.settled:
            return  # a cycle that was interrupted has reported it already
        batch.settled = True
        if error is None and result is not None and result.duplicate:
            error = self._refuse_duplicate(batch)
        told = batch.callbacks or ()
        if error is not None:
            self.stats.errors += 1
            self.failed += batch.count
            result = None
            if self._config.acks == 0:
                error = None  # acks=0: the caller does not want to know
            elif not quiet and len(told) < batch.count and self.untold is None:
                self.untold = error
        base = -1 if result is None or self._config.acks == 0 else result.base_offset
        for delta, timestamp, target in told:
            offset = base + delta if base >= 0 else -1
            if result is not None and result.timestamp >= 0:
                timestamp = result.timestamp
            self.callbacks.put(
                target,
                error,
                RecordMetadata(
                    batch.topic,
                    batch.partition,
                    offset,
                    timestamp,
                    result is not None and result.duplicate,
                ),
            )
        origin = batch.origin
        if origin is not None:
            self._accumulator._release(origin)
        if self.hungry:
            with self.space:
                self.space.notify_all()

    def demand_delivered(self, batches: list[EncodedBatches]) -> None:
        """Raise the error of the first of these batches that failed, in place of `flush`."""
        for batch in batches:
            try:
                batch.delivery.result(0)
            except EoslogError as error:
                if self.untold is error:
                    self.untold = None
                raise

    def wait_for_space(self, enough: Callable[[], bool], timeout: float) -> None:
        """Wait at most `timeout` seconds for memory, unless there is enough."""
        with self.space:
            self.hungry += 1
            try:
                if not enough():
                    self.space.wait(timeout)
            finally:
                self.hungry -= 1

    def _refuse_duplicate(self, batch: ProducerBatch) -> EoslogError | None:
        if not self._config.strict_duplicates:
            return None
        return DuplicateSequence(
            f"{batch.topic}-{batch.partition}: sequence {batch.base_sequence} of producer "
            f"{batch.producer_id}, epoch {batch.producer_epoch}, is stored already; no action is "
            "needed, the log has the records once"
        )


class DeliveryErrors:
    """The last error of each partition since its last successful append.

    Logs the first of a series of storage errors. The sender's lock guards it.
    """

    def __init__(self) -> None:
        """Start without errors."""
        self._last: dict[Place, EoslogError] = {}

    def note(self, batch: ProducerBatch, error: EoslogError, again: bool) -> None:
        """Keep the error of a rejected batch; `again` says whether the batch is retried."""
        place = (batch.topic, batch.partition)
        known = isinstance(self._last.get(place), StorageError)
        # The copy has no traceback: frames of a traceback would keep the batches' memory alive.
        self._last[place] = copy.copy(error)
        if isinstance(error, StorageError) and not known:
            logger.warning(
                "%s-%d: append failed, %s: %s",
                *place,
                "retrying until delivery.timeout.ms" if again else "reporting delivery errors",
                error,
            )

    def forget(self, place: Place) -> None:
        """Drop the error of a partition that accepted a batch."""
        if self._last:
            self._last.pop(place, None)

    def timeout(self, batch: ProducerBatch, delivery_timeout_ms: int) -> DeliveryTimeout:
        """The error of a batch that waited too long; its cause is the last error."""
        state = "their outcome is unknown" if batch.doubtful else "they were not written"
        last = self._last.get((batch.topic, batch.partition))
        error = DeliveryTimeout(
            f"{batch.topic}-{batch.partition}: {batch.count} records not delivered within "
            f"delivery.timeout.ms = {delivery_timeout_ms} after {batch.attempts} attempts; {state}"
            + ("" if last is None else f"; last error: {type(last).__name__}: {last}")
        )
        error.__cause__ = last
        return error
