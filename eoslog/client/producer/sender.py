"""The sender: moves batches from the accumulator to the partitions' logs.

One cycle (`run_once`) has four steps:

1. Drain the batches that are full or whose linger has passed.
2. Append them, partition by partition (`batch_dispatch.py`).
3. Flush all partitions with batches that wait for durability, in one call (`acknowledger.py`).
4. Report the deliveries.

A background thread runs cycles when batches are due. A thread that waits for the result (`flush`, a
full buffer, a commit) runs a cycle itself instead of waiting for the background thread.

Source: Kafka Sender.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from eoslog._core import Bell, RecordAccumulator
from eoslog._util.locks import call_alone
from eoslog.client.producer.acknowledger import Acknowledger
from eoslog.client.producer.batch import ProducerBatch
from eoslog.client.producer.batch_dispatch import BatchDispatch
from eoslog.client.producer.encoded_batch import EncodedBatches
from eoslog.client.producer.identity import Identity, Place
from eoslog.client.producer.transactions.manager import TransactionManager
from eoslog.config.keys import ProducerConfig
from eoslog.errors import EoslogError, QueueFull
from eoslog.shown_paths import get_logger

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

__all__ = ["Sender"]

logger = get_logger("eoslog.client.sender")

_NEVER_NS = (1 << 63) - 1
_IDLE_S = 1.0
_ACTIVE_NS = 100_000_000
_PATIENCE_S = 0.1
"""Longest wait for one partition's lock in seconds: `close` and `flush` wait for the cycle."""
_REFRESH_NS = 5_000_000_000


class Sender:
    """Sends the records that one producer has buffered.

    Any thread may call `run_once`.
    """

    def __init__(
        self,
        accumulator: RecordAccumulator,
        engine: Engine,
        config: ProducerConfig,
        identity: Identity,
        transactions: TransactionManager | None = None,
    ) -> None:
        """Create the parts of the sender; the thread starts at the first `wake`.

        Args:
            accumulator: the producer's buffer.
            engine: the open directory.
            config: the producer's configuration.
            identity: the ids that batches carry; without an allocator, batches carry no ids.
            transactions: the producer's transaction manager, or None.
        """
        self._accumulator = accumulator
        self._config = config
        self._name = f"eoslog-sender {config.client_id}".rstrip()
        self._transactions = transactions
        # Invariant: a batch without a result is in one of these two, or in `acks.waiting`. Each
        # step adds the batch to the next queue before it removes it from the previous one, so an
        # interrupt cannot lose it.
        self._drained: deque[ProducerBatch] = deque()
        self._pending: dict[Place, deque[ProducerBatch]] = {}
        self._lock = threading.RLock()
        self._bell = Bell()
        self._thread: threading.Thread | None = None
        self._alone = False  # a start of the thread has failed
        self._closing = False
        self._patience_s = min(config.request_timeout_ms / 1000, _PATIENCE_S)
        self._refreshed_ns = time.monotonic_ns()
        self._linger_ns = int(config.linger_ms * 1e6)
        self._drained_ns = 0  # last drain by the thread, or by flushes more frequent than linger.ms
        self._forced_ns = 0
        self.acks = Acknowledger(accumulator, engine, config)
        self.stats = self.acks.stats
        self._dispatch = BatchDispatch(
            accumulator, engine, config, identity, transactions, self._pending, self.acks
        )
        accumulator._sleeping_until = _NEVER_NS

    # -- the background thread ----------------------------------------------------------------

    def wake(self) -> None:
        """Have the background thread run a cycle within 5 ms (`Bell`).

        The first call starts the thread.
        """
        if self._thread is None and not self._closing:
            self._start()
        self._bell.ring()

    def _start(self) -> None:
        """Start the thread; if it cannot start, send what is buffered from this one.

        An error would look as if the record of the call were not accepted.
        """
        with self._lock:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if not self._alone:
                    text = "%s: cannot start (%s); calls of the producer send its records instead"
                    logger.warning(text, self._name, error)
                self._alone = True
                self._guarded_cycle()
            else:
                self._thread = thread

    def _guarded_cycle(self) -> None:
        try:
            self._cycle(True)
        except Exception:
            logger.exception("%s: cycle failed", self._name)

    def _run(self) -> None:
        while not self._closing:
            strokes = self._bell.strokes
            if not self._bell.held:
                if self._accumulator.buffered:
                    self._bell.needed()
                try:
                    self.run_once()
                except Exception:
                    logger.exception("%s: cycle failed, retrying in 0.1 s", self._name)
                    time.sleep(0.1)
            # From here on, `produce` wakes this thread for each new deadline.
            self._accumulator._sleeping_until = _NEVER_NS
            now = time.monotonic_ns()
            due = now + int(_IDLE_S * 1e9) if self._bell.held else self._next_ns(now)
            if now - self._drained_ns < _ACTIVE_NS:
                # Records are arriving: check once per linger.ms. Otherwise the first record of each
                # batch would wake this thread, which costs more than the rest of `produce`.
                due = min(due, now + max(self._linger_ns, 1_000_000))
            self._accumulator._sleeping_until = max(due, 1)
            if due > now and not self._closing:
                self._bell.wait(strokes, (due - now) / 1e9)
            self._accumulator._sleeping_until = 0

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
        """Run a cycle.

        Args:
            force: send all batches, not only those that are full or due.
            deadline: on the monotonic clock, in seconds: the end of waits for a partition's lock
                and for another thread's cycle.

        Returns:
            Whether each drained batch has its result. False if another thread's cycle was still
            running at the deadline; nothing was sent.
        """
        wait_s = -1.0 if deadline is None else max(deadline - time.monotonic(), 0.0)
        return call_alone(self._lock, wait_s, lambda: self._cycle(force, deadline), False)

    def try_run_once(self, deadline: float) -> bool:
        """Run a cycle for all batches; return False if another thread is running one."""

        def cycle() -> bool:
            self._cycle(True, deadline)
            return True

        return call_alone(self._lock, 0.0, cycle, False)

    def _cycle(self, force: bool, deadline: float | None = None) -> bool:
        now = time.monotonic_ns()
        patience_s = self._patience_s
        if deadline is not None:
            patience_s = min(patience_s, max(deadline - now / 1e9, 0.0))
        if now - self._refreshed_ns > _REFRESH_NS:
            self._refreshed_ns = now
            self._accumulator._refresh_topics()
        self._collect(now, force)
        if self._transactions is not None:
            partitions = self._transactions.partitions
            partitions.coming = set(map(partitions.name, self._pending))
        try:
            for place in list(self._pending):
                self._dispatch.send(place, patience_s)
                if not self._pending[place]:
                    del self._pending[place]
            if self.acks.waiting:
                self.acks.flush()
        finally:
            if self.acks.waiting:
                self.acks.flush_later()
        return not self._pending and not self.acks.waiting

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
        """Run cycles until all records buffered at the call are delivered or failed.

        Args:
            deadline: on the monotonic clock, in seconds; None waits for delivery.timeout.ms.

        Returns:
            False if the deadline passed first.
        """
        try:
            self._bell.hold()  # inside `try`, because an interrupt may come as `hold` returns
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
            # Only a cycle of this thread is known to drain batches that are still being built; the
            # checks below do not see those.
            settled = self.run_once(force=True, deadline=deadline)
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
        """Send from the calling thread until the buffer has room for `size` more bytes.

        Args:
            size: the bytes that are needed.
            check: called between cycles; an exception from it ends the wait.

        Raises:
            QueueFull: if there is no room within `max.block.ms`.
        """
        accumulator, config = self._accumulator, self._config
        deadline = time.monotonic() + config.max_block_ms / 1000
        room = config.buffer_memory - size
        accumulator._exhausted = True
        try:
            while accumulator._used > room:
                check()
                if self.try_run_once(deadline) and accumulator._used <= room:
                    return
                left = deadline - time.monotonic()
                if left <= 0:
                    raise QueueFull(
                        f"buffer full for {config.max_block_ms} ms (max.block.ms): "
                        f"{accumulator._used} of {config.buffer_memory} bytes in use "
                        f"(buffer.memory), {size} more needed; produce more slowly, or raise "
                        "buffer.memory"
                    )
                self.acks.wait_for_space(lambda: accumulator._used <= room, min(left, 0.01))
        finally:
            accumulator._exhausted = False

    def send_encoded(self, batches: list[EncodedBatches]) -> None:
        """Send encoded batches, after the records that are buffered for their partition.

        Raises:
            EoslogError: if a batch failed; the error of the first one that did.
        """
        with self.in_order():
            for batch in batches:
                self._pending.setdefault((batch.topic, batch.partition), deque()).append(batch)
        while not all(batch.delivery.done() for batch in batches):
            self.flush(None)
        self.acks.demand_delivered(batches)

    @contextlib.contextmanager
    def in_order(self) -> Iterator[Mapping[Place, deque[ProducerBatch]]]:
        """Send what is buffered, then block other cycles inside the `with` block.

        Yields:
            The batches that are still unsent, by partition.
        """
        with self._lock:
            self._cycle(True)
            if self._accumulator._gate:  # closed while this thread waited for the lock
                self._accumulator._refuse()
            yield self._pending

    def discard(self, error: EoslogError) -> int:
        """Drop all batches that are not in the log; return the number of records."""
        with self._lock:
            dropped = 0
            self._collect(time.monotonic_ns(), True)
            for queue in self._pending.values():
                for batch in queue:
                    dropped += batch.count
                    self.acks.settle(batch, error, None, quiet=self._transactions is not None)
            self._pending.clear()
            return dropped
