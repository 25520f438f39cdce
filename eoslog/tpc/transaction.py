"""One transaction of a coordinator.

    1 record     the log knows a token, undecided and durable
    2 prepare    each participant prepares its part under the token
    3 decide     the log decides to commit, durably
    4 commit     each participant commits
    5 release    the log may forget the decision

An error before 3 decides to abort, and only then rolls back what is prepared. If the process dies,
a recovery does so. After 3, every part is committed, by this process or by a recovery.

Source: presumed abort, and KIP-939.
"""

from __future__ import annotations

from typing import Any, Protocol

from eoslog.errors import (
    EoslogError,
    IllegalState,
    OutcomeConflict,
    TransactionAborted,
    UnknownToken,
)
from eoslog.model import Outcome
from eoslog.shown_paths import get_logger
from eoslog.storage.fs.files import failpoint
from eoslog.tpc.participants import Participant

__all__ = ["TwoPhaseTransaction"]

logger = get_logger("eoslog.tpc")


class Decider(Protocol):
    """The part of a `Coordinator` that a transaction uses."""

    _log: Any

    def _look(self, participants: list[Participant]) -> None:
        """Check the resources, and complete what dead processes have left in them."""

    def _record(self, participants: list[Participant]) -> str:
        """Write an undecided transaction, and return its token."""

    def _release(self, token: str, places: set[str]) -> None:
        """Note that places have committed."""

    def _ended(self, token: str | None) -> None:
        """Note that the transaction no longer runs in this process."""


class TwoPhaseTransaction:
    """A transaction of several resources, as a context manager.

    `Coordinator.transaction` returns it::

        with coordinator.transaction(bank, shop, producer):
            bank.execute("update account set money = money - 5 where name = 'ada'")
            shop.execute("insert into sale values ('ada', 5)")
            producer.produce("sales", "5", key="ada")

    The end of the block commits all resources. An exception in the block rolls back all of them.
    Do not end a transaction of a resource inside the block.

    If the commit raises `TransactionAborted` or an error of a resource, nothing is committed
    anywhere. A resource that cannot commit after the decision is logged as a warning: the
    transaction is committed, and `Coordinator.recover` completes it there.
    """

    def __init__(self, coordinator: Decider, participants: list[Participant]) -> None:
        """Keep the participants; entering the block begins."""
        self._coordinator = coordinator
        self._participants = participants
        self._token: str | None = None
        self._state = "not begun"

    @property
    def token(self) -> str | None:
        """The token that decides the transaction, or None before its commit.

        `Log.outcome` returns what was decided.
        """
        return self._token

    def __repr__(self) -> str:
        return f"<TwoPhaseTransaction of {self._participants}, {self._state}>"

    def __enter__(self) -> TwoPhaseTransaction:
        if self._state != "not begun":
            raise IllegalState(
                f"transaction: it is {self._state}; create a new one with coordinator.transaction()"
            )
        self._coordinator._look(self._participants)
        self._state = "open"
        for count, participant in enumerate(self._participants):
            try:
                participant.begin()
            except BaseException:
                self._abort(self._participants[:count])
                raise
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is not None:
            self._abort(self._participants)
            return
        failure = self._decided()
        self._commit()
        if failure is not None:
            raise failure

    def _decided(self) -> BaseException | None:
        """Prepare and decide.

        Returns:
            An exception to raise after the commit, for example KeyboardInterrupt.
        """
        try:
            for participant in self._participants:
                participant.check()
            self._token = token = self._coordinator._record(self._participants)
            failpoint("tpc.recorded")
            for number, participant in enumerate(self._participants):
                failpoint("tpc.prepare")
                participant.prepare(token, number)
                failpoint("tpc.prepared")
            self._decide(token)
        except BaseException as failure:
            if not self._abandon():
                raise
            logger.warning(
                "token %s: the decision to commit was written before an error, committing: %s",
                self._token,
                failure,
            )
            return None if isinstance(failure, Exception) else failure
        return None

    def _decide(self, token: str) -> None:
        try:
            self._coordinator._log.resolve(token, Outcome.COMMIT)
        except (OutcomeConflict, UnknownToken) as error:
            raise TransactionAborted(
                f"token {token}: a recovery has aborted the transaction before it was decided, so "
                "nothing was committed; repeat the work"
            ) from error

    def _abandon(self) -> bool:
        """Abort after an error; return whether the log had decided to commit."""
        if self._token is not None:
            try:
                self._coordinator._log.resolve(self._token, Outcome.ABORT)
            except OutcomeConflict:
                return True
            except UnknownToken:
                pass  # aborted by a recovery, and forgotten since
            except Exception as error:
                logger.warning(
                    "token %s: not decided, leaving what is prepared to a recovery: %s",
                    self._token,
                    error,
                )
                self._leave()
                return False
        failpoint("tpc.aborted")
        self._abort(self._participants)
        return False

    def _abort(self, participants: list[Participant]) -> None:
        self._state = "aborted"
        for participant in participants:
            try:
                participant.abort()
                failpoint("tpc.rolled_back")
            except Exception as error:  # must not hide the first one
                logger.warning(
                    "%r: not rolled back, leaving it to a recovery: %s", participant, error
                )
        self._coordinator._ended(self._token)

    def _leave(self) -> None:
        self._state = "undecided"
        for participant in self._participants:
            try:
                participant.leave()
            except Exception as error:
                logger.warning("%r: not rolled back: %s", participant, error)
        self._coordinator._ended(self._token)

    def _commit(self) -> None:
        """Commit all participants, whose decision is durable."""
        token = self._token
        assert token is not None
        failpoint("tpc.decided")
        self._state = "committed"
        left: set[str] = set()
        conflict: EoslogError | None = None
        try:
            for participant in self._participants:
                failpoint("tpc.commit")
                try:
                    participant.commit()
                except OutcomeConflict as error:
                    conflict = error
                except Exception as error:
                    left.add(participant.place)
                    logger.warning(
                        "token %s: committed, but not in %r yet, leaving it to a recovery: %s",
                        token,
                        participant,
                        error,
                    )
                failpoint("tpc.committed")
            places = {participant.place for participant in self._participants}
            self._coordinator._release(token, places - left)
        finally:
            self._coordinator._ended(token)
        failpoint("tpc.released")
        if conflict is not None:
            raise conflict
