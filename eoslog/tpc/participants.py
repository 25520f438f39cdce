"""Participants of a two-phase commit: PostgreSQL connections and producers."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

from eoslog.client.prepared import prepared_of, resolve
from eoslog.client.producer.named.producer import NamedProducer
from eoslog.client.producer.producer import Producer
from eoslog.client.producer.transactions.transaction import Transaction
from eoslog.errors import ConfigError, EoslogError, OutcomeConflict, UnknownToken
from eoslog.model import Outcome
from eoslog.tpc.prepared_xacts import PreparedXacts
from eoslog.tpc.records import branch_meta, gid_of

__all__ = ["DatabaseParticipant", "Participant", "ProducerParticipant", "check_can_take_part"]


class Participant(Protocol):
    """One resource in a transaction."""

    @property
    def place(self) -> str:
        """Where its data are; the same for two resources in one database or log."""

    def begin(self) -> None:
        """Begin its transaction."""

    def check(self) -> None:
        """Check that its transaction is open."""

    def prepare(self, token: str, number: int) -> None:
        """Prepare its transaction, which the token decides."""

    def commit(self) -> None:
        """Commit the prepared transaction. A failure can be repeated."""

    def abort(self) -> None:
        """Abort the transaction, which may be prepared. A failure can be repeated."""

    def leave(self) -> None:
        """Leave a prepared transaction as it is, and abort one that is not prepared."""


def check_can_take_part(what: str, producer: Producer) -> None:
    """Check that a producer can prepare durably.

    Args:
        what: the call or argument in messages.
        producer: the producer.

    Raises:
        ConfigError: if it has a name, or its log does not survive power loss.
    """
    if isinstance(producer, NamedProducer):
        raise ConfigError(
            f"{what}: a producer with a name cannot take part; create one with "
            "log.producer(transactional_id=...)"
        )
    if producer._engine.durability != "strict":
        raise ConfigError(
            f"{what}: {producer._engine.path} has durability={producer._engine.durability!r}, so "
            "power loss can take prepared records; use a log with durability='strict'"
        )


class DatabaseParticipant:
    """A connection to PostgreSQL."""

    def __init__(self, connection: Any) -> None:
        """Check the type of the connection."""
        self.xacts = PreparedXacts(connection)
        self._gid: str | None = None

    def __repr__(self) -> str:
        return self.xacts.text

    @property
    def place(self) -> str:
        """The id of the server, and the name of the database."""
        return self.xacts.place

    def begin(self) -> None:
        """See `Participant.begin`."""
        self.xacts.begin()

    def check(self) -> None:
        """See `Participant.check`."""
        self.xacts.check()

    def prepare(self, token: str, number: int) -> None:
        """See `Participant.prepare`."""
        gid = gid_of(token, number)
        self.xacts.prepare(gid)
        self._gid = gid

    def commit(self) -> None:
        """See `Participant.commit`."""
        assert self._gid is not None
        self.xacts.finish(self._gid, True)

    def abort(self) -> None:
        """See `Participant.abort`."""
        if self._gid is None:
            self.xacts.rollback()
        else:
            self.xacts.finish(self._gid, False)

    def leave(self) -> None:
        """See `Participant.leave`."""
        if self._gid is None:
            self.xacts.rollback()


class ProducerParticipant:
    """A producer of any log."""

    def __init__(self, producer: Producer, resolver: str) -> None:
        """Keep the producer; `resolver` is that of the log that decides."""
        self.producer = producer
        self.engine = producer._engine
        self.place = f"log {self.engine.properties.cluster_id}"
        self._resolver = resolver
        self._transaction = Transaction(producer)
        self._token: str | None = None

    def __repr__(self) -> str:
        return repr(self.producer.transactional_id)

    def has_prepared(self) -> bool:
        """Whether the transactional id has an undecided transaction."""
        assert self.producer.transactional_id is not None
        return bool(prepared_of(self.engine, self.producer.transactional_id))

    def begin(self) -> None:
        """See `Participant.begin`."""
        if self.producer.transaction_state == "UNINITIALIZED":
            self.producer.init_transactions()
        self._transaction.__enter__()

    def check(self) -> None:
        """See `Participant.check`."""
        self.producer._manager("prepare").check_open("prepare")

    def prepare(self, token: str, number: int) -> None:
        """See `Participant.prepare`."""
        self._token = self.producer.prepare_transaction(
            meta=branch_meta(token), resolver=self._resolver
        ).token

    def commit(self) -> None:
        """See `Participant.commit`."""
        assert self._token is not None
        try:
            self.producer.commit_transaction()
        except (OutcomeConflict, UnknownToken):
            raise
        except EoslogError:  # fenced or closed, for example: the token decides without the id
            resolve(self.engine, self._token, Outcome.COMMIT)
        self._transaction._state = "committed"

    def abort(self) -> None:
        """See `Participant.abort`."""
        self._transaction._undo()  # and rewinds the consumers
        if self._token is not None:
            with contextlib.suppress(UnknownToken):
                resolve(self.engine, self._token, Outcome.ABORT)

    def leave(self) -> None:
        """See `Participant.leave`."""
        if self._token is None:
            self._transaction._undo()
