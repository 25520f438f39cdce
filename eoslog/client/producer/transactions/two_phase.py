"""Two-phase commit by another system's coordinator, with the names of PEP 249.

The id of a transaction is stored in the value of its prepared transaction, so that any process
finds it again:

    {"eoslog.xid": [FORMAT ID, GLOBAL TRANSACTION ID, BRANCH QUALIFIER]}

The outcome is kept for `outcome.retention.ms`, so a repeated decision succeeds, and the opposite
one raises OutcomeConflict.

Source: https://peps.python.org/pep-0249/#optional-two-phase-commit-extensions; X/Open XA for the
lengths.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from eoslog._util.arguments import as_int, shown
from eoslog.client.prepared import pending, resolve
from eoslog.engine.prepared_view import decode_meta
from eoslog.errors import ConfigError, EoslogError, IllegalState, OutcomeConflict, UnknownToken
from eoslog.model import Outcome
from eoslog.storage.fs.files import failpoint

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

__all__ = ["TwoPhase", "Xid"]

_KEY = "eoslog.xid"
_MOST_BYTES = 64
_MOST_FORMAT = 2**31 - 1


class Xid(NamedTuple):
    """The id of a transaction that another system coordinates, as in PEP 249.

    `Producer.xid` creates it::

        xid = producer.xid(7, "order-42", "log")

    Attributes:
        format_id: the number of the format, which the coordinator chooses; 0 to 2^31-1.
        global_transaction_id: the id of the transaction, the same in all systems.
        branch_qualifier: the part of the transaction.
    """

    format_id: int
    global_transaction_id: str
    branch_qualifier: str

    @classmethod
    def of(cls, format_id: Any, global_transaction_id: Any, branch_qualifier: Any) -> Xid:
        """Check the parts.

        Raises:
            ConfigError: if a part has another type, or no legal length.
        """
        number = as_int("xid: format_id", format_id, "an int from 0 to 2^31-1")
        if not 0 <= number <= _MOST_FORMAT:
            raise ConfigError(f"xid: format_id: expected an int from 0 to 2^31-1, got {number}")
        names = ("global_transaction_id", "branch_qualifier")
        for name, text in zip(names, (global_transaction_id, branch_qualifier), strict=True):
            least = 1 if name == names[0] else 0
            if not isinstance(text, str) or not _encodable(text):
                raise ConfigError(f"xid: {name}: expected a text, got {shown(text)}")
            if not least <= len(text.encode()) <= _MOST_BYTES:
                raise ConfigError(
                    f"xid: {name}: expected {least} to {_MOST_BYTES} bytes as UTF-8, got "
                    f"{len(text.encode())}"
                )
        return cls(number, global_transaction_id, branch_qualifier)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class PreparingProducer(Protocol):
    """The part of a `Producer` that two-phase commit uses."""

    @property
    def transaction_state(self) -> str | None:
        """Kafka's name for the transaction state."""

    @property
    def init_transactions(self) -> Callable[..., Any]:
        """Fence earlier producers."""

    def begin_transaction(self, mode: str = ...) -> None:
        """Begin a transaction."""

    @property
    def prepare_transaction(self) -> Callable[..., Any]:
        """Prepare the transaction."""

    def end_transaction(self, commit: bool = ...) -> None:
        """Commit or abort the transaction."""


class TwoPhase:
    """The calls of PEP 249 for one producer.

    States: none, begun (`xid` is set), prepared (`token` is set, too).
    """

    def __init__(self, producer: PreparingProducer, engine: Engine) -> None:
        """Keep the producer."""
        self._producer = producer
        self._engine = engine
        self.xid: Xid | None = None
        self.token: str | None = None
        self._inside = False  # the calls of the producer come from here

    def refuse(self, what: str) -> None:
        """Reject a call that would end a transaction of `tpc_begin`.

        Raises:
            IllegalState: if there is one.
        """
        if self.xid is not None and not self._inside:
            instead = (
                "tpc_prepare()"
                if what == "prepare_transaction"
                else "tpc_commit() or tpc_rollback()"
            )
            raise IllegalState(
                f"{what}: the transaction {tuple(self.xid)} was begun by tpc_begin(); call "
                f"{instead}"
            )

    @contextlib.contextmanager
    def _own(self) -> Iterator[None]:
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def begin(self, xid: Any, mode: str) -> None:
        """See `Producer.tpc_begin`."""
        known = _checked("tpc_begin", xid)
        if self.xid is not None:
            raise IllegalState(
                f"tpc_begin: the transaction {tuple(self.xid)} has not ended; call tpc_commit() or "
                "tpc_rollback() first"
            )
        if any(found == known for _, found in _undecided(self._engine)):
            raise IllegalState(
                f"tpc_begin: a transaction with the id {tuple(known)} is prepared; decide it with "
                "tpc_commit(xid) or tpc_rollback(xid), or use another id"
            )
        if self._producer.transaction_state == "UNINITIALIZED":
            self._producer.init_transactions()
        self._producer.begin_transaction(mode)
        self.xid = known

    def prepare(self) -> None:
        """See `Producer.tpc_prepare`."""
        xid = self._begun("tpc_prepare")
        if self.token is not None:
            raise IllegalState(
                f"tpc_prepare: the transaction {tuple(xid)} is prepared already; call tpc_commit() "
                "or tpc_rollback()"
            )
        with self._own():
            self.token = self._producer.prepare_transaction(meta={_KEY: list(xid)}).token
        failpoint("tpc.xid_prepared")

    def end(self, xid: Any, commit: bool) -> None:
        """See `Producer.tpc_commit` and `Producer.tpc_rollback`."""
        what = "tpc_commit" if commit else "tpc_rollback"
        if xid is not None:
            self._recovered(what, xid, commit)
            return
        self._begun(what)
        producer, token = self._producer, self.token
        outcome = Outcome.COMMIT if commit else Outcome.ABORT
        try:
            if producer.transaction_state == "READY" and token is not None:  # a staged one
                resolve(self._engine, token, outcome)
            else:
                with self._own():
                    producer.end_transaction(commit)
        except (OutcomeConflict, UnknownToken):
            self._forget()
            raise
        except EoslogError:
            if token is None:
                if producer.transaction_state in ("READY", "FATAL_ERROR"):
                    self._forget()
                raise
            resolve(self._engine, token, outcome)  # fenced, for example: the token decides
        self._forget()

    def _recovered(self, what: str, xid: Any, commit: bool) -> None:
        known = _checked(what, xid)
        if self.xid is not None:
            raise IllegalState(
                f"{what}: the transaction {tuple(self.xid)} has not ended; call {what}() without "
                "an id first, or use another producer"
            )
        token = _find(self._engine, known)
        if token is None:
            raise UnknownToken(
                f"{what}: no prepared transaction has the id {tuple(known)}; it never existed, or "
                "its outcome is older than outcome.retention.ms (tpc_recover() lists the undecided "
                "ones)"
            )
        resolve(self._engine, token, Outcome.COMMIT if commit else Outcome.ABORT)

    def recover(self) -> list[Xid]:
        """See `Producer.tpc_recover`."""
        return [xid for _, xid in _undecided(self._engine)]

    def _begun(self, what: str) -> Xid:
        if self.xid is None:
            raise IllegalState(
                f"{what}: no two-phase transaction is open; call tpc_begin(xid) first"
            )
        return self.xid

    def _forget(self) -> None:
        self.xid = self.token = None


def _checked(what: str, xid: Any) -> Xid:
    """Return the id, which may be one of another driver.

    Raises:
        ConfigError: if it is not an id.
    """
    try:
        parts = tuple(islice(xid, 4))  # a longer value may be endless
    except TypeError:
        parts = ()
    if isinstance(xid, str | bytes) or len(parts) != 3:
        raise ConfigError(f"{what}: expected an id of producer.xid(...), got {shown(xid)}")
    return Xid.of(*parts)


def _xid_of(meta: Any) -> Xid | None:
    parts = meta.get(_KEY) if isinstance(meta, dict) else None
    return Xid(*parts) if isinstance(parts, list) and len(parts) == 3 else None


def _undecided(engine: Engine) -> list[tuple[str, Xid]]:
    return [
        (prepared.token, xid)
        for prepared in pending(engine, None)
        if (xid := _xid_of(prepared.meta)) is not None
    ]


def _find(engine: Engine, xid: Xid) -> str | None:
    """Return the token of an id: the undecided one, or else the newest."""
    for token, found in _undecided(engine):
        if found == xid:
            return token
    decided = [
        (entry.prepared_at_ms, token)
        for token, entry in engine.transactions.prepared.index.decided()
        if _xid_of(decode_meta(entry.meta)) == xid
    ]
    return max(decided)[1] if decided else None
