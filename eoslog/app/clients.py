"""The clients of a worker, and its transaction, for each guarantee.

* exactly_once: output, tables and positions commit in one transaction of the log.
* at_least_once: output is flushed, then positions are committed.
* at_most_once: positions are committed, then the records are processed.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from eoslog._util.arguments import shown
from eoslog.client.consumer.subscription import Listener
from eoslog.config.producer_keys import TRANSACTION_MAX_TIMEOUT_MS
from eoslog.errors import CommitFailed, ConfigError, EoslogError, RequestTimedOut
from eoslog.model import TopicPartition
from eoslog.shown_paths import get_logger
from eoslog.storage.fs.files import failpoint

if TYPE_CHECKING:
    from eoslog._core import Record
    from eoslog.client.consumer.consumer import Consumer
    from eoslog.client.producer.producer import Producer
    from eoslog.descriptions import TransactionOutcome
    from eoslog.log import Log

__all__ = [
    "LARGEST_REQUEST",
    "Clients",
    "OutputTransaction",
    "clients_of",
    "guarantee_of",
    "longest_step_s",
]

logger = get_logger("eoslog.app")

_GUARANTEES = {
    "exactly_once": "exactly_once",
    "exactly_once_v2": "exactly_once",
    "exact_once": "exactly_once",
    "at_least_once": "at_least_once",
    "at_most_once": "at_most_once",
}
_MARGIN_S = 30.0
"""Added to the longest call and the commit interval, for a commit on a busy disk."""
_RESTORE_MS = 300_000
"""The least time between polls of a worker that restores tables."""
_COMMITS = 5
LARGEST_REQUEST = (1 << 31) - 1
"""No other limit of a record than `max.message.bytes` of its topic."""


class OutputTransaction(Protocol):
    """Where the output of a transaction goes."""

    def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Any = None,
    ) -> None:
        """Buffer a record; it becomes visible with the positions."""
        ...

    def produce_many(
        self, topic: str, values: Any, keys: Any = None, partition: int | None = None
    ) -> int:
        """Buffer records; return their number."""
        ...


def longest_step_s(guarantee: str) -> float:
    """Return the most seconds of a `commit_interval` and a `task_timeout` together.

    A longer step would exceed the largest timeout of a transaction, or of a member of a group.
    """
    most_ms = TRANSACTION_MAX_TIMEOUT_MS if guarantee == "exactly_once" else LARGEST_REQUEST
    return most_ms / 1000 - _MARGIN_S


def guarantee_of(value: Any) -> str:
    """Return the one name of a processing guarantee.

    Raises:
        ConfigError: if there is no such guarantee.
    """
    name = value.lower().replace("-", "_") if isinstance(value, str) else value
    found = _GUARANTEES.get(name) if isinstance(name, str) else None
    if found is None:
        raise ConfigError(
            f"processing_guarantee: expected {', '.join(_GUARANTEES)}, got {shown(value)}"
        )
    return found


class Clients:
    """A consumer in the group of the application, and a producer; used by one thread."""

    def __init__(
        self,
        log: Log,
        app_id: str,
        number: int,
        topics: list[str],
        longest_s: float,
        restores: bool,
        max_records: int,
        on_assign: Listener,
        on_revoke: Listener,
    ) -> None:
        """Join the group at the next poll.

        Args:
            log: the log.
            app_id: the id of the application, and of its group.
            number: the number of this worker.
            topics: the input topics.
            longest_s: the longest time that a transaction may take without its commit.
            restores: whether the worker restores tables between transactions.
            max_records: the most records of a transaction.
            on_assign: called with the partitions that this worker gets.
            on_revoke: called with the partitions that it loses.
        """
        self._max_records = max_records
        milliseconds = round(1000 * (longest_s + _MARGIN_S))
        self.producer = self._producer(log, f"{app_id}-{number}", milliseconds)
        try:
            self.consumer: Consumer = log.consumer(
                group_id=app_id,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                max_poll_interval_ms=max(milliseconds, _RESTORE_MS if restores else 0),
                client_id=f"{app_id}-{number}",
                producer=self.producer if self.producer.transactional_id else None,
            )
            self.consumer.subscribe(topics, on_assign=on_assign, on_revoke=on_revoke)
        except BaseException:
            self.producer.close()
            raise

    def _producer(self, log: Log, transactional_id: str, timeout_ms: int) -> Producer:
        return log.producer(client_id=transactional_id, max_request_size=LARGEST_REQUEST)

    def next(self, timeout: float) -> Record | None:
        """Return the next record to process, or None after a timeout or a wakeup."""
        return self.consumer.poll(timeout)

    @property
    def usable(self) -> bool:
        """Whether another transaction may begin."""
        return True

    @property
    def failed(self) -> bool:
        """Whether an error has ended the open transaction before its commit."""
        return False

    def put_back(self, records: list[Record]) -> None:
        """Read these records of a partition, and those after them, again later."""
        first = records[0]
        self.consumer.seek(TopicPartition(first.topic, first.partition, first.offset))

    def know_committed(self, before: Clients) -> bool:
        """Whether the last transaction of earlier clients is known as committed."""
        return False

    @contextlib.contextmanager
    def transaction(self) -> Iterator[OutputTransaction]:
        """Commit output and positions at the end of the block, or neither."""
        try:
            yield self.producer
            failpoint("app.processed")
            self.producer.flush()
        except BaseException:
            self.consumer.rewind()
            raise
        self._commit_positions()

    @property
    def fenced(self) -> bool:
        """Whether a commit checks the membership: it does if a partition has a position."""
        return bool(self.consumer.positions())

    def begin_attempt(self, store: Callable[[], object]) -> bool:
        """Prepare another attempt of a record; `store` sends that it begins.

        Only `at_most_once` does anything: else a crash repeats the attempt.

        Returns:
            False if another worker may try the record.
        """
        return True

    def keep(self, records: list[Record]) -> None:
        """Process these records again, whose positions may be committed already.

        Only `at_most_once` does anything: else an abort reads them again.
        """

    def output_first(self) -> None:
        """Have the output in the log before what is sent after this call."""
        self.producer.flush()
        failpoint("app.output_first")

    def positions_last(self) -> None:
        """Have all records in the log before the positions, which check the membership.

        The next owner then waits for the transaction before it tries a record again.
        """

    def _commit_positions(self) -> None:
        self.consumer.commit()

    def close(self) -> None:
        """Leave the group, and close both clients."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.producer.close)
            stack.callback(self.consumer.close)


class _ExactlyOnce(Clients):
    """Output and positions are one transaction of the log."""

    _outcome: TransactionOutcome | None
    """Of the last transaction of an earlier worker with this number."""

    def _producer(self, log: Log, transactional_id: str, timeout_ms: int) -> Producer:
        producer = log.producer(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            max_request_size=LARGEST_REQUEST,
        )
        try:
            # Completes or aborts what an earlier worker has left.
            self._outcome = producer.init_transactions()
        except BaseException:
            producer.close()
            raise
        return producer

    def output_first(self) -> None:
        """Do nothing: a transaction has no order."""

    def positions_last(self) -> None:
        self.producer.flush()

    @property
    def usable(self) -> bool:
        return self.producer.transaction_state == "READY"

    @property
    def failed(self) -> bool:
        return self.producer.transaction_state == "ABORTABLE_ERROR"

    def know_committed(self, before: Clients) -> bool:
        outcome = self._outcome
        if outcome is None or not outcome.committed:
            return False
        last = (before.producer.producer_id, before.producer.producer_epoch)
        return (outcome.producer_id, outcome.producer_epoch) == last

    @contextlib.contextmanager
    def transaction(self) -> Iterator[OutputTransaction]:
        try:
            with self.producer.transaction() as tx:
                yield tx
                failpoint("app.processed")
                tx.commit_offsets(self.consumer)
                failpoint("app.offsets")
        except RequestTimedOut:
            # Only the coordinator knows whether it has decided: nothing but a commit is allowed.
            if self.producer.transaction_state != "COMMITTING_TRANSACTION":
                raise
            self._commit_again()

    def _commit_again(self) -> None:
        for left in reversed(range(_COMMITS)):
            try:
                self.producer.commit_transaction()
            except RequestTimedOut:
                if not left:
                    raise
            else:
                return


class _AtMostOnce(Clients):
    """Positions are committed before the records are processed.

    A poll may release partitions, so none follows until what the records have left is in the log.
    """

    _processing = False

    def __init__(self, log: Log, app_id: str, *arguments: Any) -> None:
        self._app_id = app_id
        self._records: deque[Record] = deque()
        """Records that are committed and not processed yet."""
        super().__init__(log, app_id, *arguments)

    def next(self, timeout: float) -> Record | None:
        if not self._records and not self._processing:
            records = self.consumer.consume(self._max_records, timeout)
            if records:
                try:
                    self.consumer.commit()
                except BaseException:
                    self.consumer.rewind()  # else the next commit drops records that nothing names
                    raise
                self._records.extend(records)
        return self._records.popleft() if self._records else None

    def put_back(self, records: list[Record]) -> None:
        self.keep(records)

    def keep(self, records: list[Record]) -> None:
        self._records.extendleft(reversed(records))

    def begin_attempt(self, store: Callable[[], object]) -> bool:
        try:
            self.consumer.commit()  # else what is stored may replace what a later owner has stored
            store()
            self.producer.flush()
            failpoint("app.attempt_begun")
            self.consumer.commit()  # a later owner of the partition finds what was stored
        except CommitFailed:
            return False  # the next poll joins again
        return True

    @contextlib.contextmanager
    def transaction(self) -> Iterator[OutputTransaction]:
        self._processing = True
        try:
            yield self.producer
            self.producer.flush()
        finally:
            self._processing = False

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(super().close)
            stack.callback(self._give_back)
            self.producer.flush()

    def _give_back(self) -> None:
        """Commit the positions of the records that are left, for the next owner."""
        first: dict[TopicPartition, int] = {}
        for record in self._records:
            first.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        if not first:
            return
        try:
            for at, offset in first.items():
                self.consumer.seek(at, offset)
            self.consumer.commit()
        except EoslogError as error:  # another worker may have read on
            left = ", ".join(f"{at} from offset {offset}" for at, offset in first.items())
            logger.warning(
                "app %r: %s; at_most_once does not repeat the records that are left, so they are "
                "dropped: %s",
                self._app_id, error, left,
            )  # fmt: skip


_KINDS: dict[str, Callable[..., Clients]] = {
    "exactly_once": _ExactlyOnce,
    "at_least_once": Clients,
    "at_most_once": _AtMostOnce,
}


def clients_of(guarantee: str, *arguments: Any) -> Clients:
    """Create the clients of a guarantee; see `Clients`."""
    return _KINDS[guarantee](*arguments)
