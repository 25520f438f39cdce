"""The sender: takes batches out of the accumulator and into the partitions' logs.

One cycle (`run_once`) drains what is full or due, appends it partition by partition, flushes all
that waits for durability at once, and tells the callbacks. A background thread runs cycles when
there is something to do; whoever waits (`flush`, a full buffer, a commit) runs one itself instead
of waiting for that thread.

What is known of a batch decides how it is sent again:

    refused      the log says that nothing was written: its sequence stays free
    doubtful     an append may have happened unheard: the same bytes go again, under the same id,
                 epoch and sequence, before anything newer of the partition
    expired      refused: dropped; doubtful: its sequence is unresolved, so an idempotent producer
                 goes on under a new epoch and a transaction must be aborted

For tests: `eoslog.test.lose.acks` (a probability) or the failpoint `producer.ack_lost` (armed with
`trip`) lets the sender act as if an acknowledgement had been lost after the append.

Source: KIP-98, KIP-91 (delivery timeout), KIP-360 (epoch bump); Kafka Sender, TransactionManager.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from eoslog import _core
from eoslog.client.delivery import Callbacks
from eoslog.client.identity import Identity, Place, next_sequence
from eoslog.config import ProducerConfig
from eoslog.errors import (
    CorruptRecord,
    DeliveryTimeout,
    DuplicateSequence,
    EoslogError,
    InvalidProducerEpoch,
    OutOfOrderSequence,
)
from eoslog.model import AppendResult, RecordMetadata, TopicPartition
from eoslog.storage import files

__all__ = ["EncodedBatch", "Sender", "SenderStats"]

GROUP_BYTES = 1 << 20  # appended under one lock: held for no longer than about a millisecond
_NEVER_NS = (1 << 63) - 1
_IDLE_S = 1.0
_REFRESH_NS = 5_000_000_000
_MAX_BUMPS = 5  # of one batch: a log that refuses every epoch is not helped by another


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


class EncodedBatch:
    """A batch that somebody else encoded; the sender stamps a copy of it.

    Args:
        topic, partition: where it goes.
        data: exactly one v2 batch.
        on_delivery: told once, of the batch's first record.

    Raises:
        CorruptRecord: `data` is not one whole, valid batch of data.
    """

    __slots__ = (
        "attempts", "base_sequence", "callbacks", "count", "created_ns", "data", "doubtful",
        "partition", "producer_epoch", "producer_id", "retry_at_ns", "topic",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, data: Any, on_delivery: Any) -> None:
        """Look at the header."""
        found = _core.iter_batches(data)
        if len(found) != 1 or found[0].size != len(data) or found[0].control:
            raise CorruptRecord(
                f"{topic}-{partition}: {len(data)} bytes hold {len(found)} whole batches"
            )
        self.topic = topic
        self.partition = partition
        self.count = found[0].count
        self.data = data
        self.callbacks = [(0, found[0].max_timestamp, on_delivery)]
        self.created_ns = time.monotonic_ns()
        self.attempts = self.retry_at_ns = 0
        self.doubtful = False
        self.producer_id = self.producer_epoch = self.base_sequence = -1

    def __len__(self) -> int:
        return len(self.data)

    def stamp(self, producer_id: int, epoch: int, sequence: int, transactional: bool) -> None:
        """As `SealedBatch.stamp`."""
        self.data = _core.stamp_batch(
            self.data,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        self.producer_id, self.producer_epoch, self.base_sequence = producer_id, epoch, sequence


@dataclass(slots=True)
class _Waiting:
    """A batch that is in the log and not yet durable."""

    log: Any
    batch: Any
    result: AppendResult


class Sender:
    """Sends what one producer has buffered. `run_once` is safe from any thread."""

    def __init__(
        self,
        accumulator: Any,
        engine: Any,
        config: ProducerConfig,
        identity: Identity,
        transactions: Any = None,
    ) -> None:
        """Wire it.

        Args:
            accumulator: a `RecordAccumulator`.
            engine: the open directory.
            config: of the producer.
            identity: whose ids batches bear; without an id it allocates, they bear none.
            transactions: the client's transaction manager, or None.
        """
        self._accumulator = accumulator
        self._engine = engine
        self._config = config
        self._identity = identity
        self._transactions = transactions
        self._idempotent = config.enable_idempotence and transactions is None
        self._waits_for_flush = config.acks == -1 and transactions is None
        self._delivery_ns = config.delivery_timeout_ms * 1_000_000
        self._lose_acks = config.eoslog_test_lose_acks
        self._pending: dict[Place, deque[Any]] = {}
        self._waiting: list[_Waiting] = []
        self._lock = threading.RLock()
        self._event = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._refreshed_ns = time.monotonic_ns()
        self.space = threading.Condition(threading.Lock())
        self.callbacks = Callbacks()
        self.untold: EoslogError | None = None  # first failure that no callback heard of
        self.stats = SenderStats()
        accumulator.sleeping_until = _NEVER_NS

    # -- the background thread --

    def wake(self) -> None:
        """Have the background thread look now; starts it at the first call."""
        if self._thread is None and not self._closing:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="eoslog-sender", daemon=True
                    )
                    self._thread.start()
        self._event.set()

    def _run(self) -> None:
        while not self._closing:
            self.run_once()
            self._event.clear()
            self._accumulator.sleeping_until = _NEVER_NS  # from here on every new deadline wakes us
            now = time.monotonic_ns()
            due = self._next_ns(now)
            self._accumulator.sleeping_until = max(due, 1)
            if due > now and not self._closing:
                self._event.wait((due - now) / 1e9)
            self._accumulator.sleeping_until = 0

    def _next_ns(self, now: int) -> int:
        with self._lock:
            times = [queue[0].retry_at_ns for queue in self._pending.values() if queue]
            if self._waiting:
                times.append(now + self._config.retry_backoff_ms * 1_000_000)
        due = self._accumulator._next_due_ns()
        if due is not None:
            times.append(due)
        return min(times, default=now + int(_IDLE_S * 1e9))

    def stop(self) -> None:
        """End the background thread."""
        self._closing = True
        self._event.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # -- cycles --

    def run_once(self, force: bool = False) -> None:
        """Send what is full or due; everything with `force`."""
        with self._lock:
            self._cycle(force)

    def try_run_once(self) -> bool:
        """Send everything, unless another thread does so just now."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._cycle(True)
        finally:
            self._lock.release()
        return True

    def _cycle(self, force: bool) -> None:
        now = time.monotonic_ns()
        if now - self._refreshed_ns > _REFRESH_NS:
            self._refreshed_ns = now
            self._accumulator._refresh_topics()
        for batch in self._accumulator._drain(now, force):
            self._pending.setdefault((batch.topic, batch.partition), deque()).append(batch)
        if self._transactions is not None:
            self._transactions.coming = {TopicPartition(*place) for place in self._pending}
        for place in list(self._pending):
            self._send(place, self._pending[place])
            if not self._pending[place]:
                del self._pending[place]
        if self._waiting:
            self._acknowledge()

    def flush(self, deadline: float | None) -> bool:
        """Run cycles until all that was buffered at the call has met its fate.

        Args:
            deadline: on the monotonic clock, in seconds; None to wait for delivery.timeout.ms.

        Returns:
            False when the deadline passed first.
        """
        while True:
            self.run_once(force=True)
            with self._lock:
                settled = not self._pending and not self._waiting
            if settled and self._accumulator._next_due_ns() != 0:
                return True
            now = time.monotonic_ns()
            if deadline is not None and now >= deadline * 1e9:
                return False
            pause = min(max(self._next_ns(now) - now, 100_000), 20_000_000) / 1e9
            if deadline is not None:
                pause = min(pause, max(deadline - now / 1e9, 0))
            time.sleep(pause)

    def drain_for_batches(self, batches: list[EncodedBatch]) -> None:
        """Queue batches that are encoded already, behind what is buffered for their partition."""
        with self._lock:
            self._cycle(True)
            for batch in batches:
                self._pending.setdefault((batch.topic, batch.partition), deque()).append(batch)

    def discard(self, error: EoslogError) -> int:
        """Drop all that is not in the log yet; the number of records dropped."""
        with self._lock:
            dropped = 0
            for batch in self._accumulator._drain(time.monotonic_ns(), True):
                self._pending.setdefault((batch.topic, batch.partition), deque()).append(batch)
            for queue in self._pending.values():
                for batch in queue:
                    dropped += batch.count
                    self._settle(batch, error, None, quiet=True)
            self._pending.clear()
            return dropped

    # -- one partition --

    def _send(self, place: Place, queue: deque[Any]) -> None:
        while queue:
            now = time.monotonic_ns()
            head = queue[0]
            if self._transactions is not None and self._transactions.error is not None:
                self._settle(queue.popleft(), self._transactions.error, None, quiet=True)
                continue
            if now - head.created_ns >= self._delivery_ns:
                self._expire(queue.popleft())
                continue
            if head.retry_at_ns > now:
                return
            if not self._attempt(place, queue):
                return

    def _attempt(self, place: Place, queue: deque[Any]) -> bool:
        """Append the head of the queue; False when it has to wait."""
        group = self._next_group(queue)
        doubtful = group[0].doubtful
        try:
            log = self._engine.partition(*place)
            self._identity.ensure()
            if not doubtful:
                self._stamp(place, group)
            data = bytearray().join([batch.data for batch in group])
            for batch in group:
                batch.attempts += 1
                batch.doubtful = True  # until the log has answered
            result = self._append(log, place, data)
        except EoslogError as error:
            for batch in group:
                batch.doubtful = doubtful
            return self._refused(queue, group, error)
        if self._ack_is_lost():
            self.stats.acks_lost += 1
            return True
        for batch in group:
            queue.popleft()
            self._take(place, batch)
            self._appended(log, place, batch, result)
            if result.base_offset >= 0:
                result = result._replace(base_offset=result.base_offset + batch.count)
        return True

    def _next_group(self, queue: deque[Any]) -> list[Any]:
        head = queue[0]
        if head.attempts or len(queue) == 1:
            return [head]
        group: list[Any] = []
        size = 0
        for batch in queue:
            if batch.attempts or (group and size + len(batch) > GROUP_BYTES):
                break
            group.append(batch)
            size += len(batch)
        return group

    def _stamp(self, place: Place, group: list[Any]) -> None:
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

    def _append(self, log: Any, place: Place, data: bytearray) -> AppendResult:
        if self._transactions is not None:
            return self._transactions.append(log, place, data)  # type: ignore[no-any-return]
        result = log.append(data, timeout=self._config.request_timeout_ms / 1000)
        assert result is not None  # nothing was expected
        return result  # type: ignore[no-any-return]

    def _ack_is_lost(self) -> bool:
        if self._lose_acks and random.random() < self._lose_acks:
            return True
        return files.failpoint("producer.ack_lost")

    def _take(self, place: Place, batch: Any) -> None:
        identity = self._identity
        mine = (batch.producer_id, batch.producer_epoch)
        if batch.producer_id >= 0 and mine == (identity.producer_id, identity.producer_epoch):
            identity.advance(place, batch.base_sequence, batch.count)

    def _appended(self, log: Any, place: Place, batch: Any, result: AppendResult) -> None:
        self.stats.batches += 1
        self.stats.records += batch.count
        self.stats.bytes += len(batch)
        self.stats.duplicates += result.duplicate
        self.stats.retries += batch.attempts > 1
        if not log.settings.log_append_time:
            result = result._replace(timestamp=-1)  # each record has its own
        if self._transactions is not None:
            self._transactions.note_span(log, place, batch.count, result)
        if self._waits_for_flush and log.strict:
            self._waiting.append(_Waiting(log, batch, result))
        else:
            self._settle(batch, None, result)

    # -- failures --

    def _refused(self, queue: deque[Any], group: list[Any], error: EoslogError) -> bool:
        head = group[0]
        if getattr(error, "retriable", False) and head.attempts <= self._config.retries:
            pause = min(self._config.retry_backoff_ms * 2 ** min(head.attempts, 10), 1000)
            pause *= random.uniform(0.8, 1.2)
            head.retry_at_ns = time.monotonic_ns() + int(pause * 1e6)
            head.attempts = max(head.attempts, 1)
            return False
        if len(group) > 1:
            for batch in group:
                batch.attempts = max(batch.attempts, 1)  # one by one: only the one at fault fails
            return True
        if self._transactions is None and self._idempotent and head.attempts <= _MAX_BUMPS:
            # The log says that the batch is not in it, so sending it under other numbers is safe.
            if isinstance(error, OutOfOrderSequence):
                return self._start_over(head, self._identity.bump)
            if isinstance(error, InvalidProducerEpoch):
                return self._start_over(head, self._identity.renew)
        queue.popleft()
        if self._transactions is not None:
            self._transactions.fail(error)
        elif head.doubtful and self._idempotent:
            self._identity.bump()
            self.stats.epoch_bumps += 1
        self._settle(head, error, None)
        return True

    def _start_over(self, head: Any, change: Any) -> bool:
        change()
        head.doubtful = False
        self.stats.epoch_bumps += 1
        return True

    def _expire(self, batch: Any) -> None:
        state = "its outcome is unknown" if batch.doubtful else "it was not written"
        error = DeliveryTimeout(
            f"{batch.topic}-{batch.partition}: {batch.count} records not delivered within "
            f"delivery.timeout.ms = {self._config.delivery_timeout_ms} after {batch.attempts} "
            f"attempts; {state}"
        )
        if self._transactions is not None:
            self._transactions.fail(error)
        elif batch.doubtful and self._idempotent:
            self._identity.bump()
            self.stats.epoch_bumps += 1
        self._settle(batch, error, None)

    # -- acknowledgements --

    def _acknowledge(self) -> None:
        waiting, self._waiting = self._waiting, []
        targets: dict[Any, int] = {}
        for item in waiting:
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
        for item in waiting:
            failure = failed.get(item.log)
            if failure is None:
                self._settle(item.batch, None, item.result)
            elif getattr(failure, "retriable", False) and (
                now - item.batch.created_ns < self._delivery_ns
            ):
                self._waiting.append(item)
            else:
                self._settle(item.batch, failure, None)

    def _settle(
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
        if error is None and result is not None and result.duplicate:
            error = self._refuse_duplicate(batch)
        told = batch.callbacks or ()
        if error is not None:
            self.stats.errors += 1
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
        if not isinstance(batch, EncodedBatch):
            self._accumulator._release(batch)
        with self.space:
            self.space.notify_all()

    def _refuse_duplicate(self, batch: Any) -> EoslogError | None:
        if not self._config.strict_duplicates:
            return None
        return DuplicateSequence(
            f"{batch.topic}-{batch.partition}: sequence {batch.base_sequence} of producer "
            f"{batch.producer_id}, epoch {batch.producer_epoch}, is stored already"
        )
