"""What an application supplies for half messages, and what it gets back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from eoslog._util.arguments import shown
from eoslog.descriptions import PreparedTransaction
from eoslog.errors import ConfigError
from eoslog.model import Outcome, RecordMetadata

__all__ = ["TransactionListener", "TransactionSendResult", "checker_of", "method_of"]


class TransactionListener:
    """What an application does for its half messages; subclass it.

    Both methods receive the half as a `PreparedTransaction`: its token, its meta and its records::

        class Orders(eoslog.TransactionListener):
            def execute_local_transaction(self, msg, arg):
                with database:
                    database.execute("insert into orders values (?, ?)", (msg.token, arg))
                return eoslog.Outcome.COMMIT

            def check_local_transaction(self, msg):
                query = "select 1 from orders where token = ?"
                known = database.execute(query, (msg.token,)).fetchone()
                return eoslog.Outcome.COMMIT if known else eoslog.Outcome.UNKNOWN

    "No row" does not mean ABORT while the local transaction may still commit. See the how-to page
    about local transactions.
    """

    def execute_local_transaction(self, msg: PreparedTransaction, arg: Any) -> Outcome:
        """Run the local transaction, and return its outcome.

        It runs once, in the thread that sends, after the half is durable. An exception means
        `Outcome.UNKNOWN`.

        Args:
            msg: the half.
            arg: the value that was passed to `send_message_in_transaction`.
        """
        raise NotImplementedError(f"{type(self).__name__}.execute_local_transaction")

    def check_local_transaction(self, msg: PreparedTransaction) -> Outcome:
        """Return the outcome of a local transaction that another process may have run.

        `check_local_transaction_state` is the same method under its older name.

        Args:
            msg: the half.
        """
        old = type(self).check_local_transaction_state
        if old is TransactionListener.check_local_transaction_state:
            raise NotImplementedError(f"{type(self).__name__}.check_local_transaction")
        return self.check_local_transaction_state(msg)

    def check_local_transaction_state(self, msg: PreparedTransaction) -> Outcome:
        """Call `check_local_transaction`.

        Args:
            msg: the half.
        """
        return self.check_local_transaction(msg)


@dataclass(frozen=True, slots=True)
class TransactionSendResult:
    """The result of sending a half message.

    `HalfProducer.send_message_in_transaction` returns it::

        result = half_producer.send_message_in_transaction(("orders", "3 apples"), arg=7)
        print(result.status, result.transaction_id, result.outcome)

    Attributes:
        status: "SEND_OK": the half is durable.
        transaction_id: the token of the half; it never changes.
        local_state: what `execute_local_transaction` returned; UNKNOWN after an exception.
        outcome: the decision at the end of the call; UNKNOWN while there is none.
        metadata: topic and partition of each record. The offset is -1, because the records get
            theirs at the commit.
        error: the exception because of which `local_state` or `outcome` is UNKNOWN, or None.
    """

    status: str
    transaction_id: str
    local_state: Outcome
    outcome: Outcome
    metadata: Sequence[RecordMetadata] = ()
    error: BaseException | None = field(default=None, compare=False)


def method_of(listener: Any, name: str) -> Callable[..., Any]:
    """Return a method that a listener defines.

    Raises:
        ConfigError: if it does not define it.
    """
    method: Callable[..., Any] | None = getattr(listener, name, None)
    if method is None or not callable(method) or isinstance(listener, type):
        raise ConfigError(
            f"half_producer: listener: expected an object with the method {name}, got "
            f"{shown(listener)}"
        )
    if getattr(method, "__func__", None) is getattr(TransactionListener, name):
        raise ConfigError(
            f"half_producer: listener: {type(listener).__name__} does not define {name}; define it"
        )
    return method


def checker_of(listener: Any) -> Callable[..., Any]:
    """Return the listener's check, which may have the older name.

    Raises:
        ConfigError: if it has none.
    """
    old: Callable[..., Any] | None = getattr(listener, "check_local_transaction_state", None)
    inherited = TransactionListener.check_local_transaction_state
    if old is not None and getattr(old, "__func__", None) is not inherited:
        new = getattr(listener, "check_local_transaction", None)
        if getattr(new, "__func__", None) in (None, TransactionListener.check_local_transaction):
            return old
    return method_of(listener, "check_local_transaction")
