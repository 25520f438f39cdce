"""`log.atomic`: rows of a database, records and offsets of a log, all or nothing.

The database decides:

1. The transaction of the log is prepared: durable, and undecided.
2. The transaction of the database inserts an outcome row C, and commits.
3. The transaction of the log is decided to commit.

After a crash, the outcome row decides. If there is none, a tombstone is inserted, so that no
suspended worker can commit later. Any process that has registered the database does so.

Source: KIP-939; "logging last resource" commits.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Self

from eoslog._util.arguments import shown
from eoslog.client.prepared import prepared_of
from eoslog.client.producer.named.producer import NamedProducer
from eoslog.client.producer.named.transaction import NamedTransaction
from eoslog.client.producer.producer import Producer
from eoslog.client.producer.transactions.transaction import InputConsumer, Transaction
from eoslog.descriptions import PreparedTransaction
from eoslog.errors import (
    ConfigError,
    DatabaseError,
    DatabaseUnavailable,
    EoslogError,
    IllegalState,
    OutcomeConflict,
    PreparedTransactionPending,
    TransactionAborted,
    UnknownToken,
)
from eoslog.model import Outcome
from eoslog.shown_paths import get_logger
from eoslog.sql.database import META_KEY, Database
from eoslog.sql.outcomes import TokenUsedError, insert_commit
from eoslog.sql.session import DatabaseSession
from eoslog.storage.fs.files import failpoint

__all__ = ["AtomicTransaction", "atomic_transaction"]

logger = get_logger("eoslog.sql")

_ASK_S = 5.0
_PAUSE_S = 0.1


class AtomicTransaction(Transaction):
    """A transaction of a log and of a database, as a context manager.

    `Log.atomic` returns it::

        with log.atomic(producer, database) as tx:
            tx.connection.execute("insert into orders values (7, 'ada')")
            tx.produce("orders", value="7", key="ada")

    The end of the block commits both. An exception in the block rolls back both, and rewinds the
    consumers that take part.
    """

    def __init__(
        self,
        log: Any,
        producer: Producer,
        database: Database,
        connection: Any = None,
        *,
        of_coroutines: bool = False,
    ) -> None:
        """Check the arguments; entering the block begins.

        Raises:
            ConfigError: if an argument is invalid.
        """
        super().__init__(producer)
        if not isinstance(producer, Producer) or producer.transactional_id is None:
            raise ConfigError(
                "atomic: the producer has no transactional.id; create it with "
                "log.producer(transactional_id=...)"
            )
        if not isinstance(database, Database):
            raise ConfigError(f"atomic: expected an eoslog.sql.Database, got {shown(database)}")
        if not of_coroutines:
            database._refuse_async("atomic")
        if producer._engine.path != log.path:
            raise ConfigError(
                f"atomic: the producer writes to {producer._engine.path}, the log is {log.path}; "
                "create the producer with log.producer(...)"
            )
        self._log = log
        self._of_log = producer
        self._database = database
        self._given = connection
        self._of_given: DatabaseSession | None = None
        self._session: DatabaseSession | None = None
        self._lease = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if self._given is not None:
            self._of_given = self._lease.enter_context(self._database._ending(self._given))
        try:
            self._decide_earlier()
            super().__enter__()
        except BaseException:
            self._roll_back()
            raise
        if self._given is not None:  # a connection in autocommit mode would commit each statement
            self._enter_database()
        return self

    def enter_connected(self) -> None:
        """Begin both transactions, for coroutines, whose `connection` must not wait."""
        self.__enter__()
        self._enter_database()

    def _enter_database(self) -> None:
        try:
            self._begun()
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Roll back both transactions, because the block was not entered."""
        error = TransactionAborted("the block was not entered")
        self.__exit__(type(error), error, None)

    @property
    def session(self) -> DatabaseSession | None:
        """The session with the open transaction of the database; None without one."""
        return self._session

    def _decide_earlier(self) -> None:
        """Decide what the transactional id of the producer has left prepared."""
        producer, database = self._of_log, self._database
        database._join_log(self._log)
        if producer.transaction_state in ("UNINITIALIZED", None):  # None: one with a name
            producer.init_transactions(keep_prepared=True)
        assert producer.transactional_id is not None
        for prepared in prepared_of(producer._engine, producer.transactional_id):
            if prepared.resolver == database.name:
                outcome = database._answer(prepared)
                if outcome is Outcome.UNKNOWN:
                    raise PreparedTransactionPending(
                        f"transactional id {producer.transactional_id!r}: token {prepared.token} "
                        f"was prepared with another database than {database!r}; use that database"
                    )
                self._log.resolve(prepared.token, outcome)
                if outcome is Outcome.COMMIT:
                    database._book.decided(prepared.token)

    @property
    def connection(self) -> Any:
        """The database connection; its transaction begins at the first access.

        The transaction of a given connection begins with the block. Do not end the transaction.

        Raises:
            IllegalState: if the block has not begun, or has ended, or was aborted.
            DatabaseUnavailable: if the database is down, or another connection holds its locks.
            ConfigError: if the settings of the database do not allow durable commits.
        """
        self._check_inside("connection")
        return self._begun().connection

    def _check_inside(self, what: str) -> None:
        """Refuse to begin a transaction of the database that no block ends.

        Raises:
            IllegalState: outside of the block, or after an abort in it.
        """
        if self._state != "open":
            raise IllegalState(
                f"atomic: {what}: the transaction is {self._state}, so rows would not be "
                "committed; use it inside of `with log.atomic(...)`, before an abort"
            )

    def _begun(self) -> DatabaseSession:
        if self._session is None:
            if self._of_given is not None:
                self._database._join(self._of_given, ends=True)
                self._session = self._of_given
            else:
                session = self._lease.enter_context(self._database._session())
                try:
                    session.begin()
                except BaseException:
                    self._lease.close()
                    raise
                self._session = session
        self._session.check_process()
        return self._session

    def commit_offsets(self, consumer: InputConsumer) -> None:
        """Add a consumer's positions to the transaction.

        They become offsets of the group in the log. If the database is the consumer's offset store,
        they become offsets in the database.

        Args:
            consumer: the consumer whose records this transaction processes.

        Raises:
            ConfigError: if the consumer commits in another way.
            CommitFailed: if the group rebalanced, or the positions do not cover all records that
                the consumer returned.
            IllegalState: if the consumer is closed, or is neither subscribed nor assigned.
        """
        if getattr(consumer, "_offset_store", None) is not self._database:
            super().commit_offsets(consumer)
            return
        self._check_inside("commit_offsets")
        self._consumers[consumer._link] = consumer
        self._database._store(self._begun(), consumer)

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is not None or self._aborted:
            self._roll_back()
            super().__exit__(kind, error, traceback)
            return
        meta = {META_KEY: self._database.id}
        try:
            self._join_database()
            prepared = self._of_log.prepare_transaction(meta=meta, resolver=self._database.name)
        except BaseException:
            self._roll_back()
            self._undo()
            raise
        interrupt: BaseException | None = None
        try:
            failpoint("atomic.prepared")
            self._commit_database(prepared.token)
        except TokenUsedError:  # the database would answer for the other transaction
            self._roll_back()
            self._abort(prepared.token)
            raise
        except BaseException as failure:
            self._roll_back()
            if self._answer(prepared, failure) is not Outcome.COMMIT:
                self._abort(prepared.token)
                raise
            logger.warning(
                "token %s: the answer to COMMIT was lost, the database has committed: %s",
                prepared.token,
                failure,
            )
            if not isinstance(failure, Exception):  # KeyboardInterrupt, for example
                interrupt = failure
        self._commit_log(prepared.token)
        if interrupt is not None:
            raise interrupt

    def _join_database(self) -> None:
        """Begin the transaction of the database before the log's part is prepared."""
        session = self._begun()
        session.flush()
        session.check_open()

    def _commit_database(self, token: str) -> None:
        database, session = self._database, self._begun()
        session.check_open()  # again: a delivery callback may have ended it
        if not insert_commit(session, database._tables, database.id, token):
            raise TransactionAborted(
                f"token {token}: a resolver has aborted the transaction before the database "
                "committed, so nothing was written; repeat the work"
            )
        with database._book.forgetting(session):
            session.check_mark()
            failpoint("atomic.outcome")
            session.commit(decision=True)
        failpoint("atomic.db_commit")
        self._session = None
        self._lease.close()

    def _roll_back(self) -> None:
        """Roll back the transaction of the database.

        The program may have written to a given connection whose transaction eoslog did not join.
        """
        session, self._session = self._session or self._of_given, None
        if session is not None:
            session.rollback()
        self._lease.close()

    def _answer(self, prepared: PreparedTransaction, failure: BaseException) -> Outcome:
        """Ask the database what it has committed, for a few seconds."""
        deadline = time.monotonic() + _ASK_S
        try:
            while True:
                try:
                    return self._database._answer(prepared)
                except DatabaseUnavailable:
                    if time.monotonic() >= deadline:
                        raise
                    time.sleep(_PAUSE_S)
        except BaseException as error:
            self._state = "outcome unknown"
            with self._rewinding():  # the committed offsets are undecided until then
                pass
            if not isinstance(error, DatabaseError):
                raise
            raise type(error)(
                f"token {prepared.token}: the database does not say whether it has committed "
                f"({error}); the log keeps the transaction prepared, and the next log.atomic "
                "or a resolver decides it when the database answers"
            ) from failure

    def _abort(self, token: str) -> None:
        self._state = "aborted"
        with self._rewinding():
            try:
                self._of_log.abort_transaction()
            except EoslogError:  # fenced, for example: the token decides without an identity
                self._log.resolve(token, Outcome.ABORT)

    def _commit_log(self, token: str) -> None:
        """Decide to commit; a failure only delays it, as the database has committed."""
        self._state = "committed"
        try:
            try:
                self._of_log.commit_transaction()
            except (OutcomeConflict, UnknownToken):
                raise
            except EoslogError:  # as in `_abort`
                self._log.resolve(token, Outcome.COMMIT)
        except (OutcomeConflict, UnknownToken):
            raise
        except EoslogError as error:
            logger.warning(
                "token %s: the database has committed, and the log's decision failed, a resolver "
                "will repeat it: %s",
                token,
                error,
            )
            return
        failpoint("atomic.decided")
        self._database._book.decided(token)


class NamedAtomicTransaction(AtomicTransaction, NamedTransaction):
    """The same of a `NamedProducer`; its records can have publishing ids."""


def atomic_transaction(
    log: Any, producer: Any, database: Database, connection: Any, *, of_coroutines: bool = False
) -> AtomicTransaction:
    """Return the transaction of `Log.atomic` for a producer of any kind."""
    named = isinstance(producer, NamedProducer)
    kind = NamedAtomicTransaction if named else AtomicTransaction
    return kind(log, producer, database, connection, of_coroutines=of_coroutines)
