"""The client's side of transactions: what a transactional producer may do now, and with what ids.

    UNINITIALIZED --init--> INITIALIZING --> READY --begin--> IN_TRANSACTION
    IN_TRANSACTION --commit--> COMMITTING --> READY
    IN_TRANSACTION --abort--> ABORTING --> READY
    any failure: ABORTABLE_ERROR (abort, go on) or FATAL_ERROR (close)

After a timeout in COMMITTING or ABORTING the same call may be made again, and no other.

Source: Kafka TransactionManager; KIP-98, KIP-447, KIP-890.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from eoslog.client.bound_consumers import tell_of_abort, tell_of_commit
from eoslog.client.identity import Identity, Place
from eoslog.errors import (
    AuthorizationFailed,
    CommitFailed,
    CommitOutcomeUnknown,
    ConcurrentTransactions,
    EoslogError,
    FencedMemberEpoch,
    IllegalGeneration,
    IllegalState,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
    RequestTimedOut,
    StaleMemberEpoch,
    TransactionAbortable,
    UnknownMember,
    UnknownTopicOrPartition,
)
from eoslog.model import (
    AppendResult,
    GroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
    TransactionOutcome,
)
from eoslog.storage.adoption import StagedSegment

__all__ = ["ClientState", "TransactionManager"]

T = TypeVar("T")


class ClientState(Enum):
    """States of a transactional producer, under Kafka's names."""

    UNINITIALIZED = "UNINITIALIZED"
    INITIALIZING = "INITIALIZING"
    READY = "READY"
    IN_TRANSACTION = "IN_TRANSACTION"
    COMMITTING = "COMMITTING_TRANSACTION"
    ABORTING = "ABORTING_TRANSACTION"
    ABORTABLE_ERROR = "ABORTABLE_ERROR"
    FATAL_ERROR = "FATAL_ERROR"

    __hash__ = object.__hash__  # Enum's own is a Python call for each look into a table


_S = ClientState
_READY, _IN_TRANSACTION = _S.READY, _S.IN_TRANSACTION  # looked up at each transaction

PREDECESSORS: Mapping[ClientState, frozenset[ClientState]] = {
    _S.UNINITIALIZED: frozenset({_S.INITIALIZING}),  # an init that failed may be tried again
    _S.INITIALIZING: frozenset({_S.UNINITIALIZED}),
    _S.READY: frozenset({_S.INITIALIZING, _S.COMMITTING, _S.ABORTING}),
    _S.IN_TRANSACTION: frozenset({_S.READY}),
    _S.COMMITTING: frozenset({_S.IN_TRANSACTION, _S.COMMITTING}),
    _S.ABORTING: frozenset({_S.IN_TRANSACTION, _S.ABORTABLE_ERROR, _S.ABORTING}),
    _S.ABORTABLE_ERROR: frozenset({_S.IN_TRANSACTION, _S.COMMITTING, _S.ABORTABLE_ERROR}),
    _S.FATAL_ERROR: frozenset(_S),
}

_OPEN = frozenset({_S.IN_TRANSACTION, _S.COMMITTING, _S.ABORTING, _S.ABORTABLE_ERROR})
_FATAL = (ProducerFenced, AuthorizationFailed, CommitOutcomeUnknown)
# A newer epoch refuses a batch: abortable, the abort then tells whether this instance is fenced.
# An id that expired is got again by the abort, which also tells whether it has a new owner.
_FATAL_AT_COORDINATOR = (*_FATAL, InvalidProducerEpoch, InvalidTxnState)
_BEGIN = "call begin_transaction(), or use `with producer.transaction()`"
_GROUP_MOVED_ON = (UnknownMember, IllegalGeneration, StaleMemberEpoch, FencedMemberEpoch)


class TransactionManager:
    """One transactional id's state in this process.

    The user's thread calls `initialize` to `add_offsets`; the sender, under its lock, calls
    `append`, `note_span` and `fail`.

    Invariants:
        - `partitions` hold batches of the open transaction, so the coordinator's log lists them;
        - `listed` holds what the coordinator may list: if not empty, it must end the transaction;
        - `_confirmed` holds what it said that it lists: no other partition gets a first batch;
        - `spans` names first and last offset of what this transaction wrote, per partition, and
          the topic's id: what was written to a topic that was made again is gone;
        - `error` is set exactly in ABORTABLE_ERROR and FATAL_ERROR.
    """

    def __init__(
        self, engine: Any, transactional_id: str, timeout_ms: int, identity: Identity
    ) -> None:
        """Start uninitialized."""
        self._engine = engine
        self._identity = identity
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.state = ClientState.UNINITIALIZED
        self.error: EoslogError | None = None
        self.asked = False  # for the end of the open transaction: it may have been decided
        self.partitions: dict[TopicPartition, bytes] = {}  # each with its topic's id
        self.listed: set[TopicPartition] = set()
        self._confirmed: set[TopicPartition] = set()
        self.coming: set[TopicPartition] = set()  # partitions with batches on their way
        self.spans: dict[TopicPartition, tuple[int, int, bytes]] = {}
        self.begun_by = 0  # the thread (`threading.get_ident`) of the last `begin`
        self._sent: list[tuple[str, Mapping[TopicPartition, OffsetAndMetadata]]] = []  # by groups
        self._expected: Any = None  # what the last listing says about the coordinator's log
        self._names: dict[Place, TopicPartition] = {}

    # -- states -------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether a transaction has begun and its end is not known."""
        return self.state in _OPEN

    def transition(self, to: ClientState, what: str) -> None:
        """Change the state; an illegal step raises and changes nothing.

        Raises:
            EoslogError: the error that was fatal: no step leads on from there.
            IllegalState: the step is out of order.
        """
        if self.state is ClientState.FATAL_ERROR and self.error is not None:
            raise self.error
        if self.state not in PREDECESSORS[to]:
            if self.error is not None:
                raise IllegalState(
                    f"{what}: {self.state.value} after: {self.error}"
                ) from self.error
            raise IllegalState(self._out_of_order(to, what))
        self.state = to

    def _out_of_order(self, to: ClientState, what: str) -> str:
        """Why a step is out of order, and what is to come first."""
        if to is ClientState.INITIALIZING:
            return "init_transactions was called already"
        if self.state is ClientState.UNINITIALIZED:
            return f"{what}: call init_transactions() first"
        if self.state is _READY:
            return f"{what}: no transaction is open: {_BEGIN}"
        if self.state is _IN_TRANSACTION:
            return f"{what}: a transaction is open already: commit or abort it first"
        allowed = ", ".join(sorted(s.value for s in PREDECESSORS[to]))
        return f"{what}: the state is {self.state.value}, must be one of {allowed}"

    def fail(
        self, error: EoslogError, fatal: tuple[type[EoslogError], ...] = _FATAL
    ) -> EoslogError:
        """Enter the error state that the error calls for.

        Returns:
            What the call that failed is to raise: it says what the caller may do in that state.
        """
        if self.state is ClientState.FATAL_ERROR:
            return self.error or error
        if isinstance(error, fatal):
            self._give_up(error)
        elif self.state in PREDECESSORS[ClientState.ABORTABLE_ERROR]:
            self.state = ClientState.ABORTABLE_ERROR
            self.error = self.error or self._abortable(error)
        return self.error or error

    def check_open(self, what: str) -> None:
        """Raise unless records and offsets may be added now."""
        if self.error is not None:
            raise self.error
        if self.state is not ClientState.IN_TRANSACTION:
            if self.state in (ClientState.UNINITIALIZED, _READY):
                raise IllegalState(self._out_of_order(_IN_TRANSACTION, what))
            raise IllegalState(f"{what}: no transaction is open, the state is {self.state.value}")

    # -- the user's calls ---------------------------------------------------------------------

    def initialize(self, deadline: float) -> TransactionOutcome | None:
        """InitProducerId: fence the previous instance, settle what it left, get id and epoch."""
        self.transition(ClientState.INITIALIZING, "init_transactions")
        try:
            self._engine.transactions.find_coordinator(self.transactional_id)
            result = self._coordinate(
                lambda: self._engine.transactions.init_producer_id(
                    self.transactional_id, self.timeout_ms
                ),
                deadline,
                "init_transactions",
            )
        except BaseException:
            self.state = ClientState.UNINITIALIZED
            raise
        self._identity.take(result.producer_id, result.producer_epoch)
        self.transition(ClientState.READY, "init_transactions")
        outcome: TransactionOutcome | None = result.outcome
        if outcome is not None and not outcome.committed:
            self.note_abort()  # of what an instance in this process may have read input for
        return outcome

    def begin(self) -> None:
        """Local only: the coordinator hears of the transaction with its first partition."""
        self.transition(_IN_TRANSACTION, "begin_transaction")
        self.begun_by = threading.get_ident()
        self._forget()

    def withdraw_commit(self) -> bool:
        """A commit that the coordinator was not asked for is none; whether there was one."""
        if self.state is not ClientState.COMMITTING or self.asked or self.error is not None:
            return False
        self.state = ClientState.IN_TRANSACTION
        return True

    def end(self, commit: bool, deadline: float) -> None:
        """Have the coordinator decide; in COMMITTING or ABORTING. A transaction that touched
        nothing ends without a write.
        """
        what = "commit_transaction" if commit else "abort_transaction"
        if self.listed:
            self.asked = True
            identity = self._identity
            try:
                producer_id, epoch = self._coordinate(
                    lambda: self._engine.transactions.end_txn(
                        self.transactional_id,
                        identity.producer_id,
                        identity.producer_epoch,
                        commit,
                        dict(self.spans),
                    ),
                    deadline,
                    what,
                )
            except RequestTimedOut:
                raise
            except InvalidProducerIdMapping as error:
                if commit:
                    self.fail(error)
                    raise
                producer_id, epoch = self._initialize_anew(deadline, what)
            except EoslogError as error:
                if isinstance(error, InvalidProducerEpoch):
                    error = self._fenced(error)
                failure = self.fail(error, _FATAL_AT_COORDINATOR)
                if self.error is None:  # an abort that failed: it can only be given up
                    self._give_up(error)
                if not commit:
                    raise error from None
                raise failure from failure.__cause__
            except BaseException as interrupt:
                if not commit:
                    raise
                unknown = CommitOutcomeUnknown(
                    f"transactional id {self.transactional_id!r}: the commit of epoch "
                    f"{identity.producer_epoch} was interrupted by {type(interrupt).__name__}, "
                    "its decision may be written; the next init_transactions tells"
                )
                self.fail(unknown)
                raise unknown from interrupt
            identity.take(producer_id, epoch)
        for group, offsets in self._sent if commit else ():
            tell_of_commit(self._engine, group, offsets)
        self._forget()
        self.error = None
        self.transition(_READY, what)

    def _initialize_anew(self, deadline: float, what: str) -> tuple[int, int]:
        """The coordinator knows our producer id no more: it expired, or somebody took the id over.

        Naming the old identity tells them apart: only an expired id is given out again (KIP-360).
        """
        old = self._identity
        try:
            result = self._coordinate(
                lambda: self._engine.transactions.init_producer_id(
                    self.transactional_id, self.timeout_ms, old.producer_id, old.producer_epoch
                ),
                deadline,
                what,
            )
        except RequestTimedOut:
            raise
        except EoslogError as error:
            self._give_up(error)
            raise
        return result.producer_id, result.producer_epoch

    def add_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupMetadata,
        deadline: float,
    ) -> None:
        """AddOffsetsToTxn and TxnOffsetCommit."""
        self.check_open("send_offsets_to_transaction")
        if not offsets:
            return
        identity = self._identity
        log = self._engine.group_partition(group.group_id)
        self.listed.add(TopicPartition(log.topic, log.partition))
        try:
            place = self._coordinate(
                lambda: self._engine.groups.txn_offset_commit(
                    group.group_id,
                    self.transactional_id,
                    identity.producer_id,
                    identity.producer_epoch,
                    group.member_id,
                    group.generation_id,
                    group.instance_id,
                    offsets,
                ),
                deadline,
                "send_offsets_to_transaction",
                final=(CommitOutcomeUnknown, UnknownTopicOrPartition),  # no wait makes a topic
            )
        except RequestTimedOut as error:
            failure = self.fail(error)  # the offsets may be in the log: only an abort is safe
            raise failure from failure.__cause__
        except EoslogError as error:
            if isinstance(error, _GROUP_MOVED_ON):
                moved = CommitFailed(f"group {group.group_id!r} moved on: {error}", abortable=True)
                self.fail(moved)
                raise moved from error
            if isinstance(error, InvalidProducerEpoch):
                error = self._fenced(error)
            failure = self.fail(error, _FATAL_AT_COORDINATOR)
            raise failure from failure.__cause__
        self._sent.append((group.group_id, offsets))
        if place.offset is not None and place.offset >= 0:
            name = self.name((place.topic, place.partition))
            self._widen(name, place.offset, place.offset + len(offsets) - 1, log.topic_id)

    # -- the sender's calls -------------------------------------------------------------------

    def append(
        self,
        log: Any,
        place: Place,
        data: memoryview | StagedSegment,
        timeout: float | None = None,
    ) -> AppendResult:
        """Append to a partition (a segment: `adopt`); at first only while the coordinator lists it.

        Source: protocol.md row 19.
        """
        partition = self.name(place)
        put = log.adopt if isinstance(data, StagedSegment) else log.append
        if self.partitions.get(partition) == log.topic_id:
            result = put(data, timeout=timeout)
            assert result is not None  # nothing was expected
            return result  # type: ignore[no-any-return]
        expected = self._expected
        while True:
            if expected is None or partition not in self._confirmed:
                expected = self._expected = self._list(partition)
            result = put(data, expect=[expected], timeout=timeout)
            if result is not None:
                self.partitions[partition] = log.topic_id
                return result  # type: ignore[no-any-return]
            expected = None  # the coordinator's log went on: look again

    def _list(self, partition: TopicPartition) -> Any:
        """AddPartitionsToTxn for a partition and for what comes next, in one record."""
        wanted = {partition, *(self.coming - self.partitions.keys())}
        self.listed |= wanted
        self._expected = None  # what it said before names none of these
        try:
            return self._add(wanted)
        except UnknownTopicOrPartition:
            if len(wanted) == 1:
                raise
            return self._add({partition})  # a topic of the others is gone: they fail by themselves
        except InvalidProducerEpoch as error:
            raise self._fenced(error) from error

    def _add(self, partitions: set[TopicPartition]) -> Any:
        expected = self._engine.transactions.add_partitions_to_txn(
            self.transactional_id,
            self._identity.producer_id,
            self._identity.producer_epoch,
            partitions,
        )
        self._confirmed |= partitions
        return expected

    def note_span(self, log: Any, place: Place, result: AppendResult) -> None:
        """Remember where the transaction's records lie."""
        partition = self.name(place)
        if result.base_offset >= 0:
            self._widen(partition, result.base_offset, result.last_offset, log.topic_id)
            return
        for producer_id, _, first, last in log.open_transactions():  # a duplicate too old to place
            if producer_id == self._identity.producer_id:
                self._widen(partition, first, last, log.topic_id)

    def written(self) -> list[tuple[Any, int]]:
        """The logs that hold the transaction's records, each with the end of these."""
        found = []
        for partition, (_, last, topic_id) in list(self.spans.items()):
            try:
                log = self._engine.partition(partition.topic, partition.partition)
            except UnknownTopicOrPartition:
                continue  # deleted with what it held; the commit does without it too
            if log.topic_id == topic_id:
                found.append((log, last + 1))
        return found

    # -- helpers ------------------------------------------------------------------------------

    def name(self, place: Place) -> TopicPartition:
        """The partition's name, one object for each: such are told to be equal without a call."""
        found = self._names.get(place)
        if found is None:
            found = self._names[place] = TopicPartition(*place)
        return found

    def _widen(self, partition: TopicPartition, first: int, last: int, topic_id: bytes) -> None:
        old = self.spans.get(partition)
        if old is not None and old[2] == topic_id:
            first, last = min(old[0], first), max(old[1], last)
        self.spans[partition] = (first, last, topic_id)

    def _forget(self) -> None:
        self.asked = False
        self.partitions.clear()
        self.listed.clear()
        self._confirmed.clear()
        self.coming.clear()
        self.spans.clear()
        self._sent.clear()
        self._expected = None

    def note_abort(self) -> None:
        """A transaction is aborted, or nothing else can become of it."""
        tell_of_abort(self._engine, self)

    def _give_up(self, error: EoslogError) -> None:
        """No call can help any more; elsewhere the same error may be a lesser one."""
        self.state = ClientState.FATAL_ERROR
        self.error = error
        self.note_abort()
        error.__dict__.update(retriable=False, abortable=False, fatal=True)

    def _abortable(self, error: EoslogError) -> EoslogError:
        """The error, or, where it does not say that the transaction ends, one that does."""
        if getattr(error, "fatal", False) or getattr(error, "abortable", False):
            return error
        ended = TransactionAbortable(
            f"transactional id {self.transactional_id!r}: the transaction cannot commit, call "
            f"abort_transaction: {type(error).__name__}: {error}"
        )
        ended.__cause__ = error
        return ended

    def _fenced(self, error: EoslogError) -> EoslogError:
        return ProducerFenced(
            f"transactional id {self.transactional_id!r}: another instance took over from producer "
            f"id {self._identity.producer_id}, epoch {self._identity.producer_epoch}: {error}"
        )

    def _coordinate(
        self,
        call: Callable[[], T],
        deadline: float,
        what: str,
        final: tuple[type[EoslogError], ...] = (CommitOutcomeUnknown,),
    ) -> T:
        """Call until it is not told to come again, or the deadline has passed."""
        pause = 0.005
        while True:
            try:
                return call()
            except EoslogError as error:
                if not getattr(error, "retriable", False) or isinstance(error, final):
                    raise
                if time.monotonic() + pause > deadline:
                    raise RequestTimedOut(
                        f"{what}: not done within max.block.ms: {error}"
                    ) from error
                limit = 0.02 if isinstance(error, ConcurrentTransactions) else 0.5
            time.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(pause * 2, limit)
