"""Half messages, whose records wait for the decision of a local transaction.

    1 prepare     the records are durable and invisible: the half
    2 execute     the application's own transaction, for example in its database
    3 resolve     commit or abort, as it answered
    4 check       if 3 does not come, some process of the group asks what became of 2

Nothing is decided by default. An exception in 2 means that the answer is not known, because the
local transaction may have committed before it. So does a crash.

Source: RocketMQ 4 `TransactionMQProducer`, `TransactionListener`; RocketMQ 5 `beginTransaction`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eoslog._core import Record
from eoslog._util.argument_types import explained_calls
from eoslog._util.arguments import shown
from eoslog._util.closing import Closing
from eoslog.client.producer.numbered_ids import NumberedId
from eoslog.client.transaction_listener import (
    TransactionListener,
    TransactionSendResult,
    checker_of,
    method_of,
)
from eoslog.descriptions import PreparedTransaction
from eoslog.engine.engine import Engine
from eoslog.errors import ConfigError, EoslogError, IllegalState, OutcomeConflict
from eoslog.model import Outcome, RecordMetadata
from eoslog.shown_paths import get_logger

if TYPE_CHECKING:
    from eoslog.client.producer.producer import Producer

__all__ = ["HalfProducer", "HalfTransaction", "TransactionListener", "TransactionSendResult"]

logger = get_logger("eoslog.client.half")

_FIELDS = ("topic", "value", "key", "headers", "partition", "timestamp")
_STATES_THAT_ABORT = frozenset({"IN_TRANSACTION", "ABORTABLE_ERROR"})


@explained_calls()
class HalfProducer(Closing):
    """Sends records whose visibility a local transaction decides.

    Use `Log.half_producer` to create one::

        class Shop(eoslog.TransactionListener):
            def execute_local_transaction(self, msg, arg):
                return eoslog.Outcome.COMMIT  # after a transaction in the shop's database

            def check_local_transaction(self, msg):
                return eoslog.Outcome.UNKNOWN  # what the database says about msg.token

        with log.half_producer("shop", Shop()) as producer:
            producer.send_message_in_transaction(("orders", "3 apples", "ada"), arg=7)

    The group is the name of the resolver. Every process that creates a half producer of the group
    answers for halves of dead processes too.

    Thread-safe. Any number of processes may use the same group.

    Args:
        log: the open log.
        group: the name of the group.
        listener: runs the local transactions, and answers how they ended.
        settings: when the listener is asked, as for `Log.register_resolver`.

    Raises:
        ConfigError: if `group` is not a name, the listener lacks a method, or a setting is invalid.
    """

    def __init__(self, log: Any, group: str, listener: Any, **settings: Any) -> None:
        """Register the listener; the producer is created with the first half."""
        if not isinstance(group, str) or not group:
            raise ConfigError(f"half_producer: group: expected a name, got {shown(group)}")
        self._group = group
        if not isinstance(getattr(log, "_engine", None), Engine):
            raise ConfigError(
                f"half_producer: log: expected an open log, got {shown(log)}; use log.half_producer"
            )
        self._execute = method_of(listener, "execute_local_transaction")
        self._answer = checker_of(listener)
        self._log = log
        self._engine: Engine = log._engine.for_writing()
        self._sending = threading.Lock()
        self._producer: Producer | None = None
        self._executing: set[str] = set()  # a token is added before any check can read it
        self._closed = False
        self._id = NumberedId(self._engine, f"{group}-half")
        try:
            self._unregister: Callable[[], None] = log.register_resolver(
                group, self._check, **settings
            )
        except BaseException:
            self._id.free()
            raise
        self._engine.checks.executing[id(self)] = self._executes

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._group

    def __repr__(self) -> str:
        return f"<HalfProducer of {self._group!r}{', closed' if self._closed else ''}>"

    def send_message_in_transaction(
        self, records: Any, arg: Any = None, *, meta: Any = None, deliver_at: int | None = None
    ) -> TransactionSendResult:
        """Prepare records, run the local transaction, and decide as it answers.

        If it raises, or answers UNKNOWN, or this process is killed, the half stays undecided. The
        listener's check then decides it.

        Args:
            records: one record or several: a mapping of the arguments of `Producer.produce`, a
                tuple (topic, value, key), or a `Record`. All become visible together.
            arg: any value, for `execute_local_transaction`.
            meta: a value that is stored with the half, for the check; as for
                `Producer.prepare_transaction`.
            deliver_at: the time in ms since the epoch before which no record appears; None means
                at the commit.

        Returns:
            The token, the answer and the decision.

        Raises:
            OutcomeConflict: if a check has decided the other way in the meantime. Undo the local
                transaction.
            ConfigError: if a record is invalid; nothing is sent.
            EoslogError: as `Producer.produce` and `Producer.prepare_transaction`. The local
                transaction has not run.

        Durability:
            The half survives power loss before the local transaction begins. A decision survives
            power loss once the call returns.
        """
        half, metadata = self._prepare(records, meta, deliver_at)
        try:
            local, error = self._local_state(half, arg)
            if local is not Outcome.UNKNOWN:
                error = self._decide(half.token, local)
        finally:
            self._executing.discard(half.token)
        outcome = self._log.outcome(half.token) or Outcome.UNKNOWN
        return TransactionSendResult("SEND_OK", half.token, local, outcome, metadata, error)

    def _local_state(self, half: PreparedTransaction, arg: Any) -> tuple[Outcome, Exception | None]:
        error: Exception
        try:
            answer = self._execute(half, arg)
        except Exception as raised:
            error = raised
        else:
            if isinstance(answer, Outcome):
                return answer, None
            error = ConfigError(
                f"execute_local_transaction: expected an eoslog.Outcome, got {shown(answer)}; "
                "return Outcome.COMMIT, Outcome.ABORT or Outcome.UNKNOWN"
            )
        logger.error(
            "%s: the local transaction of group %r has no answer, leaving the half to its check",
            half.token,
            self._group,
            exc_info=error,
        )
        return Outcome.UNKNOWN, error

    def _decide(self, token: str, outcome: Outcome) -> EoslogError | None:
        try:
            self._log.resolve(token, outcome)
        except OutcomeConflict:
            raise
        except EoslogError as error:
            logger.warning(
                "%s: not decided, leaving the half of group %r to its check: %s",
                token,
                self._group,
                error,
            )
            return error
        return None

    def begin_transaction(self) -> HalfTransaction:
        """Create a transaction that the caller decides, without a listener's execute.

        Use it as a context manager, send the records, run the local transaction, and commit::

            with producer.begin_transaction() as transaction:
                producer.send(("orders", "3 apples"), transaction)
                save_order()
                transaction.commit()
        """
        self._check_open()
        return HalfTransaction(self)

    def send(
        self, records: Any, transaction: HalfTransaction, *, meta: Any = None,
        deliver_at: int | None = None,
    ) -> PreparedTransaction:  # fmt: skip
        """Prepare all records of a transaction.

        Args:
            records: as for `send_message_in_transaction`; one call takes all of them.
            transaction: a transaction of `begin_transaction`.
            meta: a value that is stored with the half, for the check.
            deliver_at: the time in ms since the epoch before which no record appears.

        Returns:
            The half. Its token is `transaction.transaction_id`, too.

        Raises:
            IllegalState: if the transaction has its records already, or has ended.
            EoslogError: as `send_message_in_transaction`.

        Durability:
            The half survives power loss once the call returns.
        """
        if not isinstance(transaction, HalfTransaction) or transaction._producer is not self:
            raise ConfigError(
                f"send: transaction: expected one of this producer's begin_transaction(), got "
                f"{shown(transaction)}"
            )
        return transaction._send(records, meta, deliver_at)

    def close(self) -> None:
        """Close the producer and stop answering checks. A second call does nothing.

        Undecided halves stay undecided. Other processes of the group decide them, or the next one
        that creates a half producer.
        """
        with self._sending:
            if self._closed:
                return
            self._closed = True
            self._engine.checks.executing.pop(id(self), None)
            self._unregister()
            producer, self._producer = self._producer, None
            try:
                if producer is not None:
                    producer.close()
            finally:
                self._id.free()

    # -- the half

    def _check_open(self) -> None:
        if self._closed:
            raise IllegalState(
                f"half producer of group {self._group!r}: it is closed; create a new one with "
                "log.half_producer()"
            )

    def _prepare(
        self, records: Any, meta: Any, deliver_at: int | None
    ) -> tuple[PreparedTransaction, Sequence[RecordMetadata]]:
        rows = _rows(records)
        with self._sending:
            self._check_open()
            producer = self._open_producer()
            try:
                producer.begin_transaction(mode="staged")
                deliveries = [producer.send(**row) for row in rows]
                half = producer.prepare_transaction(meta, self._group, deliver_at)
                self._executing.add(half.token)
                try:
                    metadata = [delivery.result() for delivery in deliveries]
                except BaseException:
                    self._executing.discard(half.token)  # a check decides it
                    raise
            except BaseException:
                self._abort(producer)
                raise
        return half, metadata

    def _open_producer(self) -> Producer:
        if self._producer is None:
            producer: Producer = self._log.producer(transactional_id=str(self._id))
            producer.init_transactions()
            self._producer = producer
        return self._producer

    def _abort(self, producer: Producer) -> None:
        """End the transaction of a half that was not prepared."""
        try:
            if producer.transaction_state in _STATES_THAT_ABORT:
                producer.abort_transaction()
        except EoslogError as error:
            logger.warning("half producer of group %r: abort failed: %s", self._group, error)
        if producer.transaction_state != "READY":
            self._producer = None  # the next half gets a new one
            try:
                producer.close(0)
            except EoslogError as error:
                logger.warning("half producer of group %r: close failed: %s", self._group, error)

    # -- checks

    def _executes(self, group: str, token: str) -> bool:
        if group != self._group:
            return False
        with self._sending:
            return token in self._executing

    def _check(self, half: PreparedTransaction) -> Outcome:
        executing = [*self._engine.checks.executing.values()]
        if any(executes(self._group, half.token) for executes in executing):
            return Outcome.UNKNOWN  # its local transaction runs in this process
        answer: Outcome = self._answer(half)
        return answer


class HalfTransaction:
    """A half that its caller decides; `HalfProducer.begin_transaction` creates it.

    The end of its block decides nothing. If neither `commit` nor `rollback` was called, or an
    exception ended the block, the listener's check decides.
    """

    def __init__(self, producer: HalfProducer) -> None:
        """Keep the producer; nothing is sent."""
        self._producer = producer
        self._half: PreparedTransaction | None = None
        self._entered = False
        self._ended = False

    @property
    def transaction_id(self) -> str | None:
        """The token of the half, or None before `send`."""
        return None if self._half is None else self._half.token

    def _send(self, records: Any, meta: Any, deliver_at: int | None) -> PreparedTransaction:
        if self._half is not None or self._ended:
            raise IllegalState(
                f"send: this transaction {'has ended' if self._ended else 'has its records'}; pass "
                "all records in one list, or begin another transaction"
            )
        self._half, _ = self._producer._prepare(records, meta, deliver_at)
        if not self._entered:  # then no end of a block would let the check answer again
            self._producer._executing.discard(self._half.token)
        return self._half

    def commit(self) -> None:
        """Make the records visible.

        Raises:
            OutcomeConflict: if a check has decided to abort.
            IllegalState: if nothing was sent.
        """
        self._resolve("commit", Outcome.COMMIT)

    def rollback(self) -> None:
        """Drop the records.

        Raises:
            OutcomeConflict: if a check has decided to commit.
            IllegalState: if nothing was sent.
        """
        self._resolve("rollback", Outcome.ABORT)

    def _resolve(self, what: str, outcome: Outcome) -> None:
        if self._half is None:
            raise IllegalState(f"{what}: nothing was sent; call send(records, transaction) first")
        self._producer._log.resolve(self._half.token, outcome)
        self._end()

    def _end(self) -> None:
        self._ended = True
        if self._half is not None:
            self._producer._executing.discard(self._half.token)

    def __enter__(self) -> HalfTransaction:
        self._entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


def _rows(records: Any) -> list[dict[str, Any]]:
    """Return the arguments of `produce` for each record."""
    one = isinstance(records, Mapping | Record) or (
        isinstance(records, tuple) and bool(records) and isinstance(records[0], str)
    )
    if not one and (isinstance(records, str | bytes) or not isinstance(records, Iterable)):
        raise ConfigError(_expected(records))
    rows = [_row(record) for record in ([records] if one else records)]
    if not rows:
        raise ConfigError("records: expected at least one record, got none")
    return rows


def _row(record: Any) -> dict[str, Any]:
    if isinstance(record, Record):
        return {name: getattr(record, name) for name in ("topic", "value", "key", "headers")}
    if isinstance(record, tuple) and 1 < len(record) <= 3:
        record = dict(zip(_FIELDS, record, strict=False))
    if not isinstance(record, Mapping) or not isinstance(record.get("topic"), str):
        raise ConfigError(_expected(record))
    unknown = sorted(str(name) for name in record if name not in _FIELDS)
    if unknown:
        raise ConfigError(f"records: unknown field {unknown[0]!r}; expected one of {_FIELDS}")
    return dict(record)


def _expected(value: Any) -> str:
    return (
        "records: expected a mapping such as {'topic': 'orders', 'value': '7'}, a tuple (topic, "
        f"value, key) or a Record, or several of them, got {shown(value)}"
    )
