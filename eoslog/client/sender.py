"""The sender: takes batches out of the accumulator and into the partitions' logs.

One cycle (`run_once`) drains what is full or due, appends it partition by partition, flushes all
that waits for durability at once, and tells the callbacks. A background thread runs cycles when
there is something to do; whoever waits (`flush`, a full buffer, a commit) runs one itself instead
of waiting for that thread.

What is known of a batch decides how it is sent again:

    refused      the log says that nothing was written: its sequence stays free; where the topic
                 takes no batch so large, its records go in two, under sequences of their own
    doubtful     an append may have happened unheard: the same bytes go again, under the same id,
                 epoch and sequence, before anything newer of the partition
    expired      refused: dropped; doubtful: its sequence is unresolved, so an idempotent producer
                 goes on under a new epoch and a transaction must be aborted

For tests: `eoslog.test.lose.acks` (a probability) or the failpoint `producer.ack_lost` (armed with
`trip`) lets the sender act as if an acknowledgement had been lost after the append.

Source: KIP-98, KIP-91 (delivery timeout), KIP-360 (epoch bump); Kafka Sender, TransactionManager.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from eoslog._core import Bell
from eoslog.client.acknowledger import Acknowledger
from eoslog.client.encoded_batch import EncodedBatches, can_split, split
from eoslog.client.identity import Identity, Place, next_sequence
from eoslog.client.refusals import Refusals
from eoslog.config import ProducerConfig
from eoslog.errors import (
    EoslogError,
    InvalidProducerEpoch,
    KafkaError,
    OutOfOrderSequence,
    QueueFull,
    RecordTooLarge,
    UnknownTopicOrPartition,
)
from eoslog.model import AppendResult
from eoslog.storage import files

__all__ = ["GROUP_BYTES", "Sender"]

logger = logging.getLogger("eoslog.client.sender")

GROUP_BYTES = 1 << 20  # appended under one lock: held for no longer than about a millisecond
_NEVER_NS = (1 << 63) - 1
_IDLE_S = 1.0
_ACTIVE_NS = 100_000_000
_TURN_S = 0.1
"""Longest wait for a partition's lock at a stretch: who closes or flushes waits for this one."""
_REFRESH_NS = 5_000_000_000
_MAX_BUMPS = 5  # of one batch: a log that refuses every epoch is not helped by another


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
        self._name = f"eoslog-sender {config.client_id}".rstrip()
        self._identity = identity
        self._transactions = transactions
        self._idempotent = config.enable_idempotence and transactions is None
        self._waits_for_flush = config.acks == -1 and transactions is None
        self._delivery_ns = config.delivery_timeout_ms * 1_000_000
        self._lose_acks = config.eoslog_test_lose_acks
        # A batch is in one of these until its fate is known, whatever interrupts a cycle: each step
        # puts it into the next place before it takes it out of the last.
        self._drained: deque[Any] = deque()
        self._pending: dict[Place, deque[Any]] = {}
        self._lock = threading.RLock()
        self._bell = Bell()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._patience_s = config.request_timeout_ms / 1000
        self._refreshed_ns = time.monotonic_ns()
        self._linger_ns = int(config.linger_ms * 1e6)
        self._drained_ns = 0  # by the background thread, or by flushes that leave nothing to linger
        self._forced_ns = 0
        self._refusals = Refusals()
        self.acks = Acknowledger(accumulator, engine, config)
        self.stats = self.acks.stats
        accumulator.sleeping_until = _NEVER_NS

    # -- the background thread ----------------------------------------------------------------

    def wake(self) -> None:
        """Have the background thread look, within 5 ms (`Bell`); starts it at the first call."""
        if self._thread is None and not self._closing:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
        self._bell.ring()

    def _run(self) -> None:
        while not self._closing:
            strokes = self._bell.strokes
            if not self._bell.held:
                try:
                    self.run_once()
                except Exception:
                    logger.exception("the sender goes on after an error")
                    time.sleep(0.1)
            self._accumulator.sleeping_until = _NEVER_NS  # from here on every new deadline wakes us
            now = time.monotonic_ns()
            due = now + int(_IDLE_S * 1e9) if self._bell.held else self._next_ns(now)
            if now - self._drained_ns < _ACTIVE_NS:
                # Looking once a linger while records come spares each first record of a batch the
                # waking of this thread, which costs more than the rest of its way.
                due = min(due, now + max(self._linger_ns, 1_000_000))
            self._accumulator.sleeping_until = max(due, 1)
            if due > now and not self._closing:
                self._bell.wait(strokes, (due - now) / 1e9)
            self._accumulator.sleeping_until = 0

    def _next_ns(self, now: int) -> int:
        with self._lock:
            times = [queue[0].retry_at_ns for queue in self._pending.values() if queue]
            if self.acks.waiting:
                times.append(now + self._config.retry_backoff_ms * 1_000_000)
        due = self._accumulator._next_due_ns()
        if due is not None:
            times.append(due)
        return min(times, default=now + int(_IDLE_S * 1e9))

    def stop(self) -> None:
        """End the background thread."""
        self._closing = True
        self._bell.end()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # -- cycles -------------------------------------------------------------------------------

    def run_once(self, force: bool = False, deadline: float | None = None) -> bool:
        """Send what is full or due; everything with `force`.

        Neither a partition's lock nor another thread's cycle is waited for beyond the deadline
        (CLOCK_MONOTONIC, s): False where such a cycle outlasts it. Nothing was sent then.
        """
        wait = -1.0 if deadline is None else max(deadline - time.monotonic(), 0.0)
        if not self._lock.acquire(timeout=min(wait, threading.TIMEOUT_MAX)):
            return False
        try:
            self._cycle(force, deadline)
        finally:
            self._lock.release()
        return True

    def try_run_once(self, deadline: float) -> bool:
        """Send everything, unless another thread does so just now."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._cycle(True, deadline)
        finally:
            self._lock.release()
        return True

    def _cycle(self, force: bool, deadline: float | None = None) -> None:
        now = time.monotonic_ns()
        self._patience_s = min(self._config.request_timeout_ms / 1000, _TURN_S)
        if deadline is not None:
            self._patience_s = min(self._patience_s, max(deadline - now / 1e9, 0.0))
        if now - self._refreshed_ns > _REFRESH_NS:
            self._refreshed_ns = now
            self._accumulator._refresh_topics()
        self._collect(now, force)
        if self._transactions is not None:
            self._transactions.coming = set(map(self._transactions.name, self._pending))
        try:
            for place in list(self._pending):
                self._send(place)
                if not self._pending[place]:
                    del self._pending[place]
            if self.acks.waiting:
                self.acks.flush()
        finally:
            if self.acks.waiting:
                self.acks.hand_over()

    def _collect(self, now: int, force: bool) -> None:
        self._accumulator._drain(now, force, self._drained)
        if self._drained:
            if not force or now - self._forced_ns < self._linger_ns:
                self._drained_ns = now
            if force:
                self._forced_ns = now
        while self._drained:
            batch = self._drained[0]
            queue = self._pending.setdefault((batch.topic, batch.partition), deque())
            if not queue or queue[-1] is not batch:
                queue.append(batch)
            self._drained.popleft()

    def flush(self, deadline: float | None) -> bool:
        """Run cycles until all that was buffered at the call has met its fate.

        Args:
            deadline: on the monotonic clock, in seconds; None to wait for delivery.timeout.ms.

        Returns:
            False when the deadline passed first.
        """
        try:
            self._bell.hold()  # in here: an interrupt may come as it returns
            return self._run_until_settled(deadline)
        finally:
            try:
                self._bell.let_go()
            finally:
                if self._accumulator.buffered:
                    self._bell.ring()

    def _run_until_settled(self, deadline: float | None) -> bool:
        start = time.monotonic_ns()
        while True:
            # What no cycle of ours has drained may stand in open builders, unseen below.
            if settled := self.run_once(force=True, deadline=deadline):
                with self._lock:
                    settled = not self._pending and not self.acks.waiting
            since = self._accumulator._ready_since_ns()  # another thread is compressing it
            if settled and (since is None or since > start):
                return True
            now = time.monotonic_ns()
            if deadline is not None and now >= deadline * 1e9:
                return False
            pause = min(max(self._next_ns(now) - now, 100_000), 20_000_000) / 1e9
            if deadline is not None:
                pause = min(pause, max(deadline - now / 1e9, 0))
            time.sleep(pause)

    def make_room(self, size: int, check: Callable[[], None]) -> None:
        """Send, here and now, until there is room for so many bytes more.

        Args:
            size: of what is to be buffered.
            check: raises what ends the waiting early.

        Raises:
            QueueFull: there was none within `max.block.ms`.
        """
        accumulator, config = self._accumulator, self._config
        deadline = time.monotonic() + config.max_block_ms / 1000
        room = config.buffer_memory - size
        accumulator.exhausted = True
        try:
            while accumulator.used > room:
                check()
                if self.try_run_once(deadline) and accumulator.used <= room:
                    return
                left = deadline - time.monotonic()
                if left <= 0:
                    raise QueueFull(
                        f"{accumulator.used} of buffer.memory = {config.buffer_memory} bytes "
                        f"stayed taken for max.block.ms = {config.max_block_ms}; {size} more wanted"
                    )
                self.acks.wait_for_space(lambda: accumulator.used <= room, min(left, 0.01))
        finally:
            accumulator.exhausted = False

    def drain_for_batches(self, batches: list[EncodedBatches]) -> None:
        """Queue batches that are encoded already, behind what is buffered for their partition."""
        with self.in_order():
            for batch in batches:
                self._pending.setdefault((batch.topic, batch.partition), deque()).append(batch)

    @contextlib.contextmanager
    def in_order(self) -> Iterator[Mapping[Place, deque[Any]]]:
        """Hold other cycles back, behind one that sends what is buffered; what it left unsent."""
        with self._lock:
            self._cycle(True)
            if self._accumulator.gate:  # closed while this thread waited for the lock
                self._accumulator._refuse()
            yield self._pending

    def discard(self, error: EoslogError) -> int:
        """Drop all that is not in the log yet; the number of records dropped."""
        with self._lock:
            dropped = 0
            self._collect(time.monotonic_ns(), True)
            for queue in self._pending.values():
                for batch in queue:
                    dropped += batch.count
                    self.acks.settle(batch, error, None, quiet=self._transactions is not None)
            self._pending.clear()
            return dropped

    # -- one partition ------------------------------------------------------------------------

    def _send(self, place: Place) -> None:
        while queue := self._pending[place]:
            now = time.monotonic_ns()
            head = queue[0]
            if self._transactions is not None and self._transactions.error is not None:
                self.acks.settle(queue.popleft(), self._transactions.error, None, quiet=True)
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
            for batch in group:
                batch.attempts += 1
                batch.doubtful = True  # until the log has answered
            with memoryview(_joined(group)) as data:
                result = self._append(log, place, data)
        except EoslogError as error:
            for batch in group:
                batch.doubtful = doubtful
            return self._refused(queue, group, error)
        except Exception as bug:  # what it left behind is unknown; the others must not wait for it
            logger.exception("%s-%d: append failed", *place)
            for batch in group:
                batch.doubtful = True
            return self._refused(queue, group, KafkaError(message=f"append failed: {bug!r}"))
        if self._ack_is_lost():
            self.stats.acks_lost += 1
            return True
        self._appended(log, place, queue, group, result)
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

    def _append(self, log: Any, place: Place, data: memoryview) -> AppendResult:
        wait = self._patience_s
        if self._transactions is not None:
            return self._transactions.append(log, place, data, wait)  # type: ignore[no-any-return]
        result = log.append(data, timeout=wait, flushes=self._waits_for_flush)
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

    def _appended(
        self, log: Any, place: Place, queue: deque[Any], group: list[Any], result: AppendResult
    ) -> None:
        self._refusals.forget(place)
        stats, offset = self.stats, result.base_offset
        last, duplicate = result.last_offset, result.duplicate
        # Where the log does not stamp them, each record has its own time.
        timestamp = result.timestamp if log.settings.log_append_time else -1
        waits = self._waits_for_flush and log.strict
        if self._transactions is not None:
            self._transactions.note_span(log, place, result)
        for batch in group:
            self._take(place, batch)
            stats.batches += batch.batches
            stats.records += batch.count
            stats.bytes += len(batch)
            stats.duplicates += duplicate
            stats.retries += batch.attempts > 1
            result = AppendResult(offset, last, duplicate, timestamp)
            if waits:
                self.acks.wait_for_flush(log, batch, result)
            else:
                self.acks.settle(batch, None, result)
            queue.popleft()
            if offset >= 0:
                offset += batch.count

    # -- failures -----------------------------------------------------------------------------

    def _refused(self, queue: deque[Any], group: list[Any], error: EoslogError) -> bool:
        head = group[0]
        again = getattr(error, "retriable", False) and head.attempts <= self._config.retries
        again = again and not self._gone_for_good(head, error)
        self._refusals.note(head, error, again)
        if again:
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
        if isinstance(error, RecordTooLarge) and can_split(head):
            rest = itertools.islice(queue, 1, None)
            self._pending[head.topic, head.partition] = deque([*split(head), *rest])
            self._accumulator._refresh_topics()  # its limit was lowered: what follows is to fit
            return True
        queue.popleft()
        if self._transactions is not None:
            self._transactions.fail(error)
        elif head.doubtful and self._idempotent:
            self._identity.bump()
            self.stats.epoch_bumps += 1
        self.acks.settle(head, error, None)
        return True

    def _gone_for_good(self, batch: Any, error: EoslogError) -> bool:
        """Whether the partition is missing from the metadata, which nobody here has a stale copy of
        (Kafka's clients do, and try again).
        """
        if not isinstance(error, UnknownTopicOrPartition):
            return False
        try:
            return batch.partition not in self._engine.topic(batch.topic).partitions
        except UnknownTopicOrPartition:
            return True

    def _start_over(self, head: Any, change: Any) -> bool:
        change()
        head.doubtful = False
        self.stats.epoch_bumps += 1
        return True

    def _expire(self, batch: Any) -> None:
        error = self._refusals.timeout(batch, self._config.delivery_timeout_ms)
        if self._transactions is not None:
            self._transactions.fail(error)
        elif batch.doubtful and self._idempotent:
            self._identity.bump()
            self.stats.epoch_bumps += 1
        self.acks.settle(batch, error, None)


def _joined(group: list[Any]) -> Any:
    """The bytes of batches that go together; those of one alone are not copied."""
    if len(group) == 1:
        return group[0].data
    return bytearray().join([batch.data for batch in group])
