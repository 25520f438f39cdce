"""What becomes of batches that are in the log, or never will be: flushed, told, let go."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eoslog.client.delivery import Callbacks
from eoslog.client.encoded_batch import EncodedBatches
from eoslog.config import ProducerConfig
from eoslog.errors import DuplicateSequence, EoslogError, UnknownTopicOrPartition
from eoslog.model import AppendResult, RecordMetadata

__all__ = ["Acknowledger", "SenderStats"]

_SETTLED = -1  # in the place of a batch's next attempt


@dataclass
class SenderStats:
    """Counts since the producer was made."""

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
    batch: Any
    result: AppendResult


class Acknowledger:
    """The last steps of a batch. Guarded by the sender's lock."""

    def __init__(self, accumulator: Any, engine: Any, config: ProducerConfig) -> None:
        """Wire it; memory goes back to the accumulator."""
        self._accumulator = accumulator
        self._engine = engine
        self._config = config
        self._delivery_ns = config.delivery_timeout_ms * 1_000_000
        self.waiting: deque[_Waiting] = deque()
        self.callbacks = Callbacks()
        self.space = threading.Condition(threading.Lock())  # notified when memory is given back
        self.hungry = 0  # how many wait for it; raised before they look, so that none is missed
        self.untold: EoslogError | None = None  # first failure that no callback heard of
        self.failed = 0  # records that were not delivered
        self.stats = SenderStats()

    def wait_for_flush(self, log: Any, batch: Any, result: AppendResult) -> None:
        """Tell of this batch when it is durable."""
        self.waiting.append(_Waiting(log, batch, result))

    def flush(self) -> None:
        """Flush what waits, all partitions at once, and tell."""
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
            for log, end in targets.items():  # who is at fault?
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

    def hand_over(self) -> None:
        """Have the directory's background thread flush what was appended and could not be flushed:
        this producer may give up, or go.
        """
        for log in {item.log for item in self.waiting}:
            if log.on_append is not None:
                log.on_append(log)

    def settle(
        self,
        batch: Any,
        error: EoslogError | None,
        result: AppendResult | None,
        *,
        quiet: bool = False,
    ) -> None:
        """Tell the callbacks and give the memory back.

        Args:
            batch: its fate is known now.
            error: why it was not delivered.
            result: where it is.
            quiet: a transaction tells the error itself; `flush` need not raise it.
        """
        if batch.retry_at_ns == _SETTLED:
            return  # an interrupted cycle did it before
        batch.retry_at_ns = _SETTLED
        if error is None and result is not None and result.duplicate:
            error = self._refuse_duplicate(batch)
        told = batch.callbacks or ()
        if error is not None:
            self.stats.errors += 1
            self.failed += batch.count
            result = None
            if self._config.acks == 0:
                error = None  # at most once: nobody asked
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
        origin = batch.origin if isinstance(batch, EncodedBatches) else batch
        if origin is not None:
            self._accumulator._release(origin)
        if self.hungry:
            with self.space:
                self.space.notify_all()

    def demand_delivered(self, batches: list[EncodedBatches]) -> None:
        """Raise why the first of these that failed did: then `flush` need not."""
        for batch in batches:
            try:
                batch.delivery.result(0)
            except EoslogError as error:
                if self.untold is error:
                    self.untold = None
                raise

    def wait_for_space(self, enough: Callable[[], bool], timeout: float) -> None:
        """Wait (s) until memory was given back, unless there is enough of it already."""
        with self.space:
            self.hungry += 1
            try:
                if not enough():
                    self.space.wait(timeout)
            finally:
                self.hungry -= 1

    def _refuse_duplicate(self, batch: Any) -> EoslogError | None:
        if not self._config.strict_duplicates:
            return None
        return DuplicateSequence(
            f"{batch.topic}-{batch.partition}: sequence {batch.base_sequence} of producer "
            f"{batch.producer_id}, epoch {batch.producer_epoch}, is stored already"
        )
