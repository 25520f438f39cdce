"""A producer in a transaction of the package `transaction`.

Zope and Pyramid use this package.

Source: the interface `IDataManager` of https://transaction.readthedocs.io.
"""

from __future__ import annotations

from typing import Any

from eoslog._util.arguments import shown
from eoslog.client.prepared import described, resolve
from eoslog.client.producer.producer import Producer
from eoslog.client.producer.transactions.transaction import Transaction
from eoslog.errors import ConfigError, EoslogError, IllegalState, OutcomeConflict, UnknownToken
from eoslog.model import Outcome
from eoslog.storage.fs.files import failpoint
from eoslog.tpc.participants import check_can_take_part

__all__ = ["DataManager"]


class DataManager:
    """A producer that takes part in a transaction of the package `transaction`.

    Create one for each transaction, and join it::

        with transaction.manager as current:
            current.join(eoslog.tpc.DataManager(producer))
            producer.produce("orders", "3 apples", key="ada")

    The creation begins a transaction of the producer. The records become visible when the
    transaction commits. If another data manager votes no, or the block raises, they never do.

    The package `transaction` does not store its decision. If the process dies between the vote and
    the end, the records stay prepared: `Log.pending` lists them, and `Log.resolve` decides.

    Args:
        producer: a producer with a `transactional.id` that is in no transaction.
        resolver: the name of the resolver that eoslog asks for the outcome if the process dies.
        meta: a value for the resolver, as for `Producer.prepare_transaction`.

    Raises:
        ConfigError: if `producer` is not a producer with a `transactional.id`, or has a `name`, or
            its log has `durability="os"`.
        IllegalState: if the producer is in a transaction.
        PreparedTransactionPending: if an earlier transaction of the producer is undecided.
    """

    transaction_manager: Any = None
    """The transaction manager; the package `transaction` may set it."""

    def __init__(self, producer: Producer, resolver: str | None = None, meta: Any = None) -> None:
        """Begin a transaction of the producer."""
        if not isinstance(producer, Producer) or producer.transactional_id is None:
            raise ConfigError(
                "DataManager: expected a producer with a transactional.id, got "
                f"{shown(producer)}; create it with log.producer(transactional_id=...)"
            )
        check_can_take_part("DataManager", producer)
        self._producer = producer
        self._resolver = resolver
        self._meta = meta
        self._token: str | None = None
        self._ended = False
        if producer.transaction_state == "UNINITIALIZED":
            producer.init_transactions()
        self._open = Transaction(producer)
        self._open.__enter__()

    def __repr__(self) -> str:
        return f"<DataManager of {self._producer.transactional_id!r}>"

    def sortKey(self) -> str:  # noqa: N802
        """Return the key that orders data managers; the order does not matter here."""
        return f"eoslog:{self._producer.transactional_id}:{id(self)}"

    def abort(self, transaction: Any) -> None:
        """Abort the records; the transaction calls it if it is aborted before a commit."""
        self.tpc_abort(transaction)

    def tpc_begin(self, transaction: Any) -> None:
        """Begin the commit; does nothing.

        Raises:
            IllegalState: if this data manager has taken part in a commit before.
        """
        self._check("tpc_begin", prepared=False)

    def commit(self, transaction: Any) -> None:
        """Send what is buffered.

        Raises:
            EoslogError: if a record failed.
        """
        self._check("commit", prepared=False)
        self._producer.flush()

    def tpc_vote(self, transaction: Any) -> None:
        """Prepare the records; an exception aborts the transaction.

        Raises:
            EoslogError: as `Producer.prepare_transaction`.

        Durability:
            The records survive power loss when the call returns.
        """
        self._check("tpc_vote", prepared=False)
        prepared = self._producer.prepare_transaction(self._meta, self._resolver)
        self._token = prepared.token
        failpoint("tpc.voted")

    def tpc_finish(self, transaction: Any) -> None:
        """Commit the records, which are prepared.

        Raises:
            OutcomeConflict: if another process has aborted them.
            RequestTimedOut: if the decision is written, but markers are missing for a minute.
        """
        self._check("tpc_finish", prepared=True)
        assert self._token is not None
        self._ended = True
        try:
            self._producer.commit_transaction()
        except (OutcomeConflict, UnknownToken):
            raise
        except EoslogError:  # fenced, for example: the token decides without the id
            resolve(self._producer._engine, self._token, Outcome.COMMIT)
        self._open._state = "committed"

    def tpc_abort(self, transaction: Any) -> None:
        """Abort the records, and rewind the consumers that take part.

        Raises:
            OutcomeConflict: if another process has committed them.
        """
        if self._ended:
            return
        self._ended = True
        self._open._undo()
        if self._token is not None:
            resolve(self._producer._engine, self._token, Outcome.ABORT)

    @property
    def prepared(self) -> Any:
        """The prepared transaction between `tpc_vote` and the end; otherwise None."""
        if self._token is None or self._ended:
            return None
        return described(self._producer._engine, self._token)

    def _check(self, what: str, *, prepared: bool) -> None:
        if self._ended:
            raise IllegalState(
                f"{what}: the data manager has ended; create a new one for each transaction"
            )
        if prepared != (self._token is not None):
            asked = "tpc_vote was not called" if prepared else "tpc_vote was called already"
            raise IllegalState(f"{what}: {asked}; let the package `transaction` call the methods")
