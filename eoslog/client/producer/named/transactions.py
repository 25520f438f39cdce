"""The transactions of a named producer: take-over, commits with ids, the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from eoslog._util.arguments import as_seconds
from eoslog.client.offset_arguments import Offsets
from eoslog.client.producer.named.own_transactions import OwnTransactions
from eoslog.client.producer.named.publishing_ids import PublishingIds
from eoslog.client.producer.producer import Producer
from eoslog.client.producer.shutdown import GATES
from eoslog.client.producer.transactions.manager import ClientState, TransactionManager
from eoslog.client.producer.transactions.transaction import Group
from eoslog.config.keys import ProducerConfig
from eoslog.descriptions import GroupMetadata, PreparedTransaction
from eoslog.errors import ConfigError, IllegalState, TransactionAbortable
from eoslog.storage.fs import files

if TYPE_CHECKING:
    from eoslog.options import NamedProducerOptions

__all__ = ["NamedTransactions"]

_OPEN, _CLOSED, _FORKED, _NO_TRANSACTION = GATES


class NamedTransactions(Producer):
    """The part of a `NamedProducer` that begins and ends transactions."""

    def __init__(
        self, config: Mapping[str, Any] | None = None, /, **options: Unpack[NamedProducerOptions]
    ) -> None:
        """Check the configuration and open the directory; nothing is written."""
        keys: dict[str, Any] = {**options}
        super().__init__(config, **keys)
        self._ids = PublishingIds(self._engine, self._config)
        self._explicit = False  # the program called init_transactions
        self._own = OwnTransactions(
            self, self._own_manager, self._calls,
            min(self._config.linger_ms, self._config.transaction_timeout_ms / 2) / 1000,
            self._config.delivery_timeout_ms / 1000,
        )  # fmt: skip

    def _settings_of(
        self, config: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> ProducerConfig:
        settings = ProducerConfig.of(config, **options)
        if settings.name is None:
            raise ConfigError("name: a named producer needs a name; create it with name='...'")
        # The key decides about the partition, so this class serializes before the accumulator.
        self._key_serializer = settings.key_serializer
        self._value_serializer = settings.value_serializer
        return replace(settings, key_serializer=None, value_serializer=None)

    @property
    def name(self) -> str:
        """The name that owns the publishing ids."""
        return self._ids.name

    @property
    def transaction_state(self) -> str | None:
        """Kafka's name for the transaction state; None without `init_transactions`."""
        return super().transaction_state if self._explicit else None

    # -- the lock and the open transaction ----------------------------------------------------

    def _enter(self) -> None:
        """Make sure that a transaction is open; the caller holds the lock."""
        self._check_alive()  # again: the producer may have been closed in the meantime
        self._fail_if_doubtful()
        if not self._explicit:
            self._own.enter()
        elif self._gate or self._own_manager.error is not None:
            self._refuse()

    def _leave(self) -> None:
        """Let the producer's own transaction be committed."""
        if not self._explicit:
            self._own.wake()

    def _fail_if_doubtful(self) -> None:
        """Fail the transaction after an interrupt that left a record in doubt."""
        if self._ids.doubtful and self._own_manager.open:
            self._own_manager.fail(
                TransactionAbortable(
                    f"producer name {self.name!r}: an interrupt came while a record with a "
                    "publishing id was buffered; abort the transaction and produce its records "
                    "again"
                )
            )

    # -- the calls of `OwnTransactions` -------------------------------------------------------

    @property
    def _own_manager(self) -> TransactionManager:
        assert self._transactions is not None
        return self._transactions

    def _take_over(self) -> None:
        super().init_transactions()

    def _begin(self, mode: str = "inline") -> None:
        self._ids.begin()
        super().begin_transaction(mode)

    def _commit(self, deadline: float) -> None:
        self._fail_if_doubtful()
        self._write_ids(deadline, "commit_transaction")
        files.failpoint("ids.written")
        super().commit_transaction(max(deadline - time.monotonic(), 0.0))
        self._ids.committed()

    def _give_up(self, timeout: float | None) -> None:
        try:
            if timeout is not None:
                super()._abort(timeout)
        finally:
            if self._gate == _OPEN:
                self._gate = _NO_TRANSACTION
            self._sender.acks.untold = None  # `OwnTransactions` reports the failure
            self._ids.forget()

    def _end_of_wait(self) -> float:
        return self._deadline(None)

    @property
    def _ended(self) -> bool:
        return self._gate in (_CLOSED, _FORKED)

    # -- transactions of the program ----------------------------------------------------------

    def init_transactions(
        self, timeout: float | None = None, *, keep_prepared: bool = False
    ) -> Any:
        """Take over the name, for transactions that the program begins and ends.

        Call it before the first record. For arguments and results see `Producer.init_transactions`.

        Args:
            timeout: the longest wait in seconds; None means `max.block.ms`.
            keep_prepared: leave a prepared transaction of the name undecided.

        Raises:
            IllegalState: if it was called before, or records were produced.
            EoslogError: as `Producer.init_transactions`.
        """
        self._check_alive()
        with self._calls:
            if not self._explicit and self._own_manager.state is not ClientState.UNINITIALIZED:
                raise IllegalState(
                    f"init_transactions: producer name {self.name!r} commits its records "
                    "automatically; call init_transactions() before the first record"
                )
            if keep_prepared:
                found: Any = super().init_transactions(timeout, keep_prepared=True)
            else:
                found = super().init_transactions(timeout)
            self._ids.forget()
            self._explicit = True
            return found

    def begin_transaction(self, mode: str = "inline") -> None:
        """Begin a transaction, as `Producer.begin_transaction` does.

        Args:
            mode: "inline" or "staged". Records of a staged transaction have no publishing ids.

        Raises:
            EoslogError: as `Producer.begin_transaction`.
        """
        self._demand_explicit("begin_transaction")
        with self._calls:
            self._begin(mode)

    def prepare_transaction(
        self,
        meta: Any = None,
        resolver: str | None = None,
        deliver_at: int | None = None,
        *,
        timeout: float | None = None,
    ) -> PreparedTransaction:
        """Prepare the transaction with its publishing ids.

        Args:
            meta: a value for the resolver: bytes, or what JSON can encode; at most 4,096 bytes.
            resolver: the name of the resolver that eoslog asks for the outcome.
            deliver_at: the time in ms since the epoch before which no record appears; staged only.
            timeout: the longest wait in seconds; None means `max.block.ms`.

        Returns:
            The prepared transaction.

        Raises:
            EoslogError: as `Producer.prepare_transaction`.
        """
        self._demand_explicit("prepare_transaction")
        with self._calls:
            self._fail_if_doubtful()
            deadline = self._deadline(timeout)
            self._write_ids(deadline, "prepare_transaction")
            found = super().prepare_transaction(
                meta, resolver, deliver_at, timeout=max(deadline - time.monotonic(), 0.0)
            )
            self._ids.forget()  # any process may decide it
            return found

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Commit the records, offsets and publishing ids of the transaction together.

        Args:
            timeout: the longest wait in seconds; None means `max.block.ms`.

        Raises:
            EoslogError: as `Producer.commit_transaction`.
        """
        self._demand_explicit("commit_transaction")
        with self._calls:
            self._commit(self._deadline(timeout))

    def _write_ids(self, deadline: float, what: str) -> None:
        """Add the ids of the transaction's records to the transaction."""
        manager = self._own_manager
        if self._committing or manager.state is not ClientState.IN_TRANSACTION:
            return  # the call that follows raises, or the ids are written already
        self._committing = True
        try:
            # A delivery callback may produce more. The records are sent before their ids: their
            # topics are then those whose ids are written.
            while not self._ids.written and manager.error is None:
                self._send_all(deadline, what)
                if manager.error is None:
                    self._ids.write(
                        lambda ids: manager.add_offsets(
                            ids, GroupMetadata(self._ids.group), deadline
                        )
                    )
        finally:
            self._committing = False

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort the transaction; its publishing ids can be used again.

        Args:
            timeout: the longest wait in seconds; None means `max.block.ms`.

        Raises:
            EoslogError: as `Producer.abort_transaction`.
        """
        self._demand_explicit("abort_transaction")
        super().abort_transaction(timeout)

    def _abort(self, timeout: float | None) -> None:
        with self._calls:
            super()._abort(timeout)
            self._ids.forget()

    def send_offsets_to_transaction(
        self, offsets: Offsets, group_metadata: Group, timeout: float | None = None
    ) -> None:
        """Commit offsets of a consumer group as part of the transaction.

        For arguments and errors see `Producer.send_offsets_to_transaction`.

        Args:
            offsets: the next offset of each partition.
            group_metadata: `Consumer.group_metadata()`, or the consumer itself, or the group's id.
            timeout: the longest wait in seconds; None means `max.block.ms`.
        """
        self._demand_explicit("send_offsets_to_transaction")
        super().send_offsets_to_transaction(offsets, group_metadata, timeout)

    def _demand_explicit(self, what: str) -> None:
        self._check_alive()
        if not self._explicit:
            raise IllegalState(
                f"{what}: the producer is not initialized; call init_transactions() first"
            )

    # -- waiting and the end ------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> int:
        """Commit all buffered records, and run delivery callbacks.

        After `init_transactions`, it sends the records and commits nothing.

        Args:
            timeout: the longest wait in seconds; None waits until every record is delivered or
                has failed.

        Returns:
            The number of records that are not delivered yet.

        Raises:
            EoslogError: if a record failed that has no callback and no Delivery.

        Durability:
            The delivered records survive power loss, outside of the program's own transactions.
        """
        if self._explicit:
            return super().flush(timeout)
        self._check_alive()
        self._own.commit_until(
            None if timeout is None else time.monotonic() + as_seconds("flush", timeout)
        )
        self._own.told.serve()
        self._raise_untold()
        return self._own.unsettled

    def _raise_untold(self) -> None:
        error, self._own.untold = self._own.untold, None
        if error is not None:
            raise error

    def poll(self, timeout: float = 0) -> int:
        """Run delivery callbacks that are due.

        Args:
            timeout: the longest wait for the first callback, in seconds.

        Returns:
            The number of callbacks that ran.
        """
        if self._explicit:
            return super().poll(timeout)
        self._check_alive()
        timeout = as_seconds("poll", timeout)
        served = self._own.told.serve()
        if served == 0 and timeout > 0:
            self._own.told.wait(timeout)
            served = self._own.told.serve()
        return served

    def close(self, timeout: float | None = None) -> None:
        """Commit the buffered records, and close the producer.

        A transaction of the program is aborted. A second call does nothing.

        Args:
            timeout: the longest wait for the commit, in seconds; the rest then fails.

        Raises:
            EoslogError: as `flush`. The producer is closed in any case.
            Exception: if a delivery callback raised; the first such exception, after all callbacks
                ran.
        """
        if self._ended:
            return
        deadline = None if timeout is None else time.monotonic() + as_seconds("close", timeout)
        try:
            if not self._explicit:
                self._own.close(deadline)
        finally:
            self._own.end()
            super().close(timeout)
        self._own.told.serve_all()
        self._raise_untold()
