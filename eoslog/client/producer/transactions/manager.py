"""The state machine of a transactional producer.

    UNINITIALIZED --init--> INITIALIZING --> READY --begin--> IN_TRANSACTION
    IN_TRANSACTION --commit--> COMMITTING --> READY
    IN_TRANSACTION --abort--> ABORTING --> READY
    IN_TRANSACTION --prepare--> PREPARED --commit, abort, or a decision from outside--> READY
    any failure: ABORTABLE_ERROR (abort, then continue) or FATAL_ERROR (close)

After a timeout in COMMITTING or ABORTING, only the same call is allowed again.

Source: Kafka TransactionManager; KIP-98, KIP-447, KIP-890.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from eoslog.client.consumer_registry import ConsumerRegistry
from eoslog.client.producer.identity import Identity, Place
from eoslog.client.producer.transactions.coordinator_calls import CoordinatorCalls
from eoslog.client.producer.transactions.errors import as_abortable, explain_lost_epoch
from eoslog.client.producer.transactions.partitions import TransactionPartitions
from eoslog.client.producer.transactions.staged_offsets import (
    GROUP_MOVED_ON,
    NOT_OFFSETS,
    StagedOffsets,
    moved_on,
    with_topic_ids,
)
from eoslog.client.producer.transactions.staging_buffer import StagingBuffer
from eoslog.coordinator.positions.records import PositionChange
from eoslog.descriptions import GroupMetadata, TransactionOutcome
from eoslog.errors import (
    AuthorizationFailed,
    CommitFailed,
    CommitOutcomeUnknown,
    EoslogError,
    ErrorCode,
    IllegalState,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    OutcomeConflict,
    PreparedTransactionPending,
    ProducerFenced,
    RequestTimedOut,
    TransactionAbortable,
    TransactionTimedOut,
    UnknownToken,
    UnknownTopicOrPartition,
)
from eoslog.model import (
    POSITIONS_TOPIC,
    AppendResult,
    OffsetAndMetadata,
    Outcome,
    TopicPartition,
)
from eoslog.storage.fs.files import failpoint
from eoslog.storage.log.ingest import StagedSegment

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

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
    PREPARED = "PREPARED_TRANSACTION"
    ABORTABLE_ERROR = "ABORTABLE_ERROR"
    FATAL_ERROR = "FATAL_ERROR"

    __hash__ = object.__hash__  # Enum's own hash is a Python call for each table lookup


_S = ClientState
# Bound once, as each transaction needs them.
_READY, _IN_TRANSACTION, _PREPARED = _S.READY, _S.IN_TRANSACTION, _S.PREPARED

PREDECESSORS: Mapping[ClientState, frozenset[ClientState]] = {
    _S.UNINITIALIZED: frozenset({_S.INITIALIZING}),  # a failed init may be retried
    _S.INITIALIZING: frozenset({_S.UNINITIALIZED}),
    _S.READY: frozenset({_S.INITIALIZING, _S.COMMITTING, _S.ABORTING, _S.PREPARED}),
    _S.IN_TRANSACTION: frozenset({_S.READY}),
    _S.COMMITTING: frozenset({_S.IN_TRANSACTION, _S.COMMITTING, _S.PREPARED}),
    _S.ABORTING: frozenset({_S.IN_TRANSACTION, _S.ABORTABLE_ERROR, _S.ABORTING, _S.PREPARED}),
    _S.PREPARED: frozenset({_S.IN_TRANSACTION, _S.INITIALIZING}),
    _S.ABORTABLE_ERROR: frozenset({_S.IN_TRANSACTION, _S.COMMITTING, _S.ABORTABLE_ERROR}),
    _S.FATAL_ERROR: frozenset(_S),
}

_OPEN = frozenset({_S.IN_TRANSACTION, _S.COMMITTING, _S.ABORTING, _S.ABORTABLE_ERROR})
_FATAL = (ProducerFenced, AuthorizationFailed, CommitOutcomeUnknown)
# From a partition, InvalidProducerEpoch is only abortable: the abort then asks the coordinator
# whether this producer is fenced. InvalidProducerIdMapping is abortable too: the abort gets a new
# producer id, unless the transactional id has a new owner.
_FATAL_AT_COORDINATOR = (*_FATAL, InvalidProducerEpoch, InvalidTxnState)
_BEGIN = "call begin_transaction(), or use `with producer.transaction()`"
_MAY_BE_PREPARED = (
    "prepare_transaction has not returned, so the transaction may be prepared; call "
    "prepare_transaction() again, or abort it"
)


class TransactionManager:
    """The state of one transactional id in this process.

    The caller's thread uses `initialize` to `add_offsets`. The sender uses `append`, `note_span`
    and `fail`, and holds its lock.

    Invariant: `error` is set in the states ABORTABLE_ERROR and FATAL_ERROR, and in no other.
    """

    def __init__(
        self,
        engine: Engine,
        transactional_id: str,
        timeout_ms: int,
        identity: Identity,
        consumers: ConsumerRegistry,
    ) -> None:
        """Start uninitialized; `consumers` are notified of the end of transactions."""
        self._engine = engine
        self._consumers = consumers
        self._identity = identity
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.state = ClientState.UNINITIALIZED
        self.error: EoslogError | None = None
        self.asked = False  # the coordinator was asked to end the transaction and may have decided
        self.partitions = TransactionPartitions(engine, transactional_id, identity)
        # The arguments of a `prepare` that has not returned: the transaction may be prepared.
        self.preparing: tuple[str | None, bytes | None, int] | None = None
        self.begun_by = 0  # the thread (`threading.get_ident`) of the last `begin`
        self._sent: list[tuple[str, Mapping[TopicPartition, OffsetAndMetadata]]] = []  # (group, ..)
        self.staging: StagingBuffer | None = None  # set in a staged transaction
        self.token: str | None = None  # of an undecided inline transaction of this id
        self.takeovers = 0  # of that transaction, up to the one by this producer
        self.calls = CoordinatorCalls()
        self._coordinate = self.calls.until
        self._staged = StagedOffsets(engine, consumers, self.calls)

    # -- states -------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether a transaction has begun and has not ended."""
        return self.state in _OPEN

    @property
    def fatal(self) -> bool:
        """Whether no transaction can follow."""
        return self.state is ClientState.FATAL_ERROR

    def transition(self, to: ClientState, what: str) -> None:
        """Change the state, or raise and change nothing.

        Raises:
            EoslogError: if the state is FATAL_ERROR; the error that led to it.
            IllegalState: if the call is out of order.
        """
        if self.error is not None and self.state is ClientState.FATAL_ERROR:
            raise self.error
        if self.state not in PREDECESSORS[to]:
            if self.error is not None:
                raise IllegalState(
                    f"{what}: the state is {self.state.value} after an error ({self.error}); "
                    "call abort_transaction() first"
                ) from self.error
            raise IllegalState(self._out_of_order(to, what))
        self.state = to

    def _out_of_order(self, to: ClientState, what: str) -> str:
        """The message for a call that is out of order."""
        if to is ClientState.INITIALIZING:
            return "init_transactions: called already; call it once per producer"
        if self.state is ClientState.UNINITIALIZED:
            return f"{what}: the producer is not initialized; call init_transactions() first"
        if self.state is _READY:
            return f"{what}: no transaction is open; {_BEGIN}"
        if self.state is _IN_TRANSACTION:
            return f"{what}: a transaction is open already; commit or abort it first"
        allowed = ", ".join(sorted(s.value for s in PREDECESSORS[to]))
        return f"{what}: the state is {self.state.value}, but must be one of {allowed}"

    def fail(
        self, error: EoslogError, fatal: tuple[type[EoslogError], ...] = _FATAL
    ) -> EoslogError:
        """Enter ABORTABLE_ERROR or FATAL_ERROR, depending on the error.

        Returns:
            The error that the failed call must raise; it says what the caller can do in that state.
        """
        if self.state is ClientState.FATAL_ERROR:
            return self.error or error
        # A TransactionTimedOut from an append is abortable, although it is a ProducerFenced too.
        abortable = isinstance(error, TransactionTimedOut) and error.abortable
        if isinstance(error, fatal) and not abortable:
            self._give_up(error)
        elif self.state in PREDECESSORS[ClientState.ABORTABLE_ERROR]:
            self.state = ClientState.ABORTABLE_ERROR
            self.error = self.error or as_abortable(self.transactional_id, error)
        return self.error or error

    def check_open(self, what: str) -> None:
        """Raise unless records and offsets can be added now."""
        if self.error is not None:
            raise self.error
        if self.preparing and what != "prepare_transaction":
            raise IllegalState(f"{what}: {_MAY_BE_PREPARED}")
        if self.state is not _IN_TRANSACTION:
            if self.state in (ClientState.UNINITIALIZED, _READY):
                raise IllegalState(self._out_of_order(_IN_TRANSACTION, what))
            raise IllegalState(
                f"{what}: no transaction is open, the state is {self.state.value}; {_BEGIN}"
            )

    # -- the user's calls ---------------------------------------------------------------------

    def take_over(self) -> bool:
        """Take over the undecided inline transaction of the id, if it has one.

        Earlier producers of the id are fenced. The next `begin` raises the epoch, once that
        transaction is decided.
        """
        self.transition(ClientState.INITIALIZING, "init_transactions")
        try:
            taken = self._engine.transactions.prepared.take_over(self.transactional_id)
        except BaseException:
            self.state = ClientState.UNINITIALIZED
            raise
        if taken is None:
            self.state = ClientState.UNINITIALIZED
            return False
        self.token, entry = taken
        self.takeovers = entry.takeovers
        self._identity.take(*entry.key)
        self.state = ClientState.PREPARED
        return True

    def initialize(self, deadline: float) -> TransactionOutcome | None:
        """Fence the previous producer, end its transaction, and get an id and epoch.

        Kafka's InitProducerId.
        """
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
            # An earlier producer in this process may have consumers that read its input.
            self._consumers.aborted(self)
        return outcome

    def begin(self, deadline: float, *, staged: bool = False) -> None:
        """Begin locally; the coordinator learns of it with the first partition.

        The coordinator learns of a staged transaction when it is prepared.
        """
        if self.state is _PREPARED:
            self._take_next_identity(deadline, "begin_transaction")
        if self.state is _READY:
            self._staged.begin(deadline)
        self.transition(_IN_TRANSACTION, "begin_transaction")
        self.begun_by = threading.get_ident()
        self._forget()
        self.staging = StagingBuffer() if staged else None

    def prepare(
        self, deadline: float, resolver: str | None, meta: bytes | None, deliver_at_ms: int
    ) -> str:
        """Prepare the transaction, whose records are all sent; return its token.

        Kafka's `prepareTransaction`, but durable.
        """
        what = "prepare_transaction"
        arguments = (resolver, meta, deliver_at_ms)
        if self.preparing not in (None, arguments):
            raise IllegalState(
                f"{what}: an earlier call had other values of meta, resolver or deliver_at, and "
                "may have prepared the transaction with them; call it with the values of that "
                "call, or abort the transaction"
            )
        prepared, identity = self._engine.transactions.prepared, self._identity
        mine = (self.transactional_id, identity.producer_id, identity.producer_epoch)
        staging, check_members = self.staging, self._staged.check_members
        try:
            self._staged.check_earlier(self._sent, deadline, what)
            self.preparing = arguments
            if staging is None:
                token, _ = self._coordinate(
                    lambda: prepared.prepare(
                        *mine, dict(self.partitions.spans), resolver=resolver, meta=meta
                    ),
                    deadline,
                    what,
                )
            else:
                entry = staging.entry  # of an earlier call, which may have prepared it
                if entry is None:
                    check_members(staging, None, deadline)  # before the payload is written
                    entry = staging.entry = self._engine.staged.write(
                        self.transactional_id, staging.parts, staging.offsets, resolver=resolver,
                        meta=meta, deliver_at_ms=deliver_at_ms,
                    )  # fmt: skip
                check = partial(check_members, staging, None, deadline)
                token, _ = self._coordinate(
                    lambda: prepared.stage(*mine, entry, check), deadline, what
                )
                try:
                    check_members(staging, token, deadline)
                except (CommitFailed, PreparedTransactionPending):
                    # A resolver may have committed it since, and then no abort follows.
                    if prepared.outcome(token) is not Outcome.COMMIT:
                        raise
        except RequestTimedOut:
            raise
        except (CommitFailed, PreparedTransactionPending) as refused:
            self.fail(refused)
            raise
        except EoslogError as error:
            error = self.explained(error, ErrorCode.PRODUCER_FENCED)
            failure = self.fail(error, _FATAL_AT_COORDINATOR)
            if staging is not None and self.state is ClientState.ABORTABLE_ERROR:
                raise error  # a limit or a full disk: it says what the caller can do
            raise failure from failure.__cause__
        self.preparing = None
        if staging is None:
            self.state, self.token = ClientState.PREPARED, token
        else:
            self._staged.prepared(token, self._sent)
            self._forget()
            self.state = _READY
        return token

    def _take_next_identity(self, deadline: float, what: str) -> None:
        """Get the identity after the prepared transaction, and become READY.

        Raises:
            PreparedTransactionPending: if the transaction is undecided.
        """
        transactions, identity = self._engine.transactions, self._identity

        def follow() -> tuple[int, int]:
            found = transactions.prepared.identity_after(
                self.transactional_id,
                identity.producer_id,
                identity.producer_epoch,
                self.takeovers,
            )
            if self.takeovers == 0:
                return found
            # The producer that prepared it would continue with the same epoch.
            failpoint("takeover.identified")
            result = transactions.init_producer_id(self.transactional_id, self.timeout_ms, *found)
            return result.producer_id, result.producer_epoch

        try:
            identity.take(*self._coordinate(follow, deadline, what))
        except (ProducerFenced, InvalidProducerIdMapping) as error:
            self._give_up(error)
            raise
        token, self.token, self.takeovers = self.token, None, 0
        if token is not None and transactions.prepared.outcome(token) is not Outcome.COMMIT:
            # Another process may have aborted it, so what it has read must be read again.
            self._consumers.aborted(self)
        self._forget()
        self.state = _READY

    def withdraw_commit(self) -> bool:
        """Return to IN_TRANSACTION if the coordinator has not received the commit.

        Returns:
            Whether there was such a commit.
        """
        if self.state is not ClientState.COMMITTING or self.asked or self.error is not None:
            return False
        self.state = ClientState.IN_TRANSACTION
        return True

    def end(self, commit: bool, deadline: float) -> None:
        """Have the coordinator decide the transaction.

        The state is COMMITTING or ABORTING.

        A transaction that added no partition ends without a write.
        """
        what = "commit_transaction" if commit else "abort_transaction"
        if self.preparing and not commit and self.token is None and self.staging is None:
            self.token = self._token_of_mine()
        if self.token is not None:
            self._decide(commit, deadline, what)
            self.error = None
            return
        if commit and not self.asked:
            try:
                self._staged.check_earlier(self._sent, deadline, what)
            except (CommitFailed, PreparedTransactionPending) as error:
                self.fail(error)
                raise
            except BaseException as error:
                self._fail_before_commit(error, what)
                raise
        if self.staging is not None:
            if commit:
                self._append_staged(deadline, what)
            else:
                self._withdraw_staged(deadline, what)
        if self.partitions.listed:
            self.asked = True
            identity = self._identity
            try:
                producer_id, epoch = self._coordinate(
                    lambda: self._engine.transactions.end_txn(
                        self.transactional_id,
                        identity.producer_id,
                        identity.producer_epoch,
                        commit,
                        dict(self.partitions.spans),
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
                producer_id, epoch = self._initialize_again(deadline, what)
            except EoslogError as error:
                error = self.explained(error, ErrorCode.PRODUCER_FENCED)
                failure = self.fail(error, _FATAL_AT_COORDINATOR)
                if self.error is None:  # an abort failed: no call can end the transaction
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
                    "its decision may be written; close the producer, and call "
                    "init_transactions() on a new one, which returns the outcome"
                )
                self.fail(unknown)
                raise unknown from interrupt
            identity.take(producer_id, epoch)
        for group, offsets in self._sent if commit else ():
            self._consumers.committed(group, offsets)
        self._forget()
        self._end_well(what)

    def _end_well(self, what: str) -> None:
        """Enter READY; raise the fatal error that the sender has met in the meantime."""
        if not self.fatal:
            self.error = None
        self.transition(_READY, what)

    def _token_of_mine(self) -> str | None:
        """Return the token of the inline transaction, if a `prepare` has written it."""
        key = self._identity.producer_id, self._identity.producer_epoch
        found = self._engine.transactions.prepared.index.of_id(self.transactional_id)
        return next((token for token, entry in found if entry.key == key), None)

    def _decide(self, commit: bool, deadline: float, what: str) -> None:
        """Decide the prepared transaction of this id."""
        token, prepared = self.token, self._engine.transactions.prepared
        assert token is not None
        try:
            self._coordinate(
                lambda: prepared.resolve(token, commit, self.takeovers), deadline, what
            )
        except (OutcomeConflict, UnknownToken):
            self.state = ClientState.PREPARED
            raise
        except ProducerFenced as error:
            self._give_up(error)
            raise
        sent = list(self._sent) if commit else []
        self.state = ClientState.PREPARED
        self._take_next_identity(deadline, what)
        for group, offsets in sent:
            self._consumers.committed(group, offsets)

    def _append_staged(self, deadline: float, what: str) -> None:
        """Make the staged transaction an ordinary one that the coordinator commits.

        So its commit fences and checks the members of groups, and a crash leaves nothing to decide.
        """
        staging, self.staging = self.staging, None
        assert staging is not None
        self._sent.clear()
        try:
            if staging.entry is not None:
                raise TransactionAbortable(f"{what}: {_MAY_BE_PREPARED}")
            for part in staging.parts:
                tp = part.partition
                place = (tp.topic, tp.partition)
                log = self._engine.partition(*place)
                if log.topic_id != part.topic_id:
                    raise UnknownTopicOrPartition(
                        f"{what}: the topic {tp.topic!r} was deleted and created again after the "
                        "records were produced; abort the transaction and produce them again"
                    )
                result = self._coordinate(
                    partial(self.append, log, place, memoryview(part.data)), deadline, what
                )
                self.note_span(log, place, result)
            for group, offsets in staging.groups:
                self._add_offsets(offsets, group, deadline)
        except BaseException as error:
            self.staging = staging
            self._fail_before_commit(error, what)
            raise

    def _fail_before_commit(self, error: BaseException, what: str) -> None:
        """Let the transaction only abort; the coordinator was not asked to commit it."""
        if not isinstance(error, EoslogError):
            self.fail(TransactionAbortable(f"{what}: interrupted before the commit; abort it"))
            return
        failure = self.fail(error)
        raise failure from failure.__cause__

    def _withdraw_staged(self, deadline: float, what: str) -> None:
        """Abort the staged transaction where a failed `prepare` may have written it."""
        entry = None if self.staging is None else self.staging.entry
        if entry is not None:
            try:
                self._coordinate(
                    partial(self._engine.transactions.prepared.withdraw, entry), deadline, what
                )
            except OutcomeConflict:  # a resolver has committed it, so nothing is left to abort
                for group, offsets in self._sent:
                    self._consumers.committed(group, offsets)
                self._forget()
                self._end_well(what)
                raise

    def _initialize_again(self, deadline: float, what: str) -> tuple[int, int]:
        """Get a new producer id for an abort, because the old one is unknown.

        The old id has expired, or another producer took over the transactional id. The call names
        the old id and epoch, and succeeds only if the id has expired (KIP-360).
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
        coming: Iterable[Place] = (),
    ) -> None:
        """Commit a group's offsets in the transaction.

        These are Kafka's AddOffsetsToTxn and TxnOffsetCommit. The same record of the coordinator
        lists the partitions `coming`, whose records are buffered.
        """
        self.check_open("send_offsets_to_transaction")
        if not offsets:
            return
        if self.staging is not None:
            offsets = with_topic_ids(self._engine, offsets)
            self.staging.add_offsets(self._engine, group, offsets)
            self._sent.append((group.group_id, offsets))
            return
        self._add_offsets(offsets, group, deadline, coming)

    def _add_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupMetadata,
        deadline: float,
        coming: Iterable[Place] = (),
    ) -> None:
        identity = self._identity
        log = self._engine.group_partition(group.group_id)
        self.partitions.listed.add(TopicPartition(log.topic, log.partition))
        also = self.partitions.listed_early(coming)
        try:
            named = with_topic_ids(self._engine, offsets)
            place = self._coordinate(
                lambda: self._engine.groups.txn_offset_commit(
                    group.group_id,
                    self.transactional_id,
                    identity.producer_id,
                    identity.producer_epoch,
                    group.member_id,
                    group.generation_id,
                    group.instance_id,
                    named,
                    also,
                    partial(self.partitions.confirm, also),
                ),
                deadline,
                "send_offsets_to_transaction",
                final=NOT_OFFSETS,
            )
        except RequestTimedOut as error:
            failure = self.fail(error)  # the offsets may be in the log, so only an abort is safe
            raise failure from failure.__cause__
        except EoslogError as error:
            if isinstance(error, GROUP_MOVED_ON):
                moved = moved_on(group, error)
                self.fail(moved)
                raise moved from error
            error = self.explained(error, ErrorCode.PRODUCER_FENCED)
            failure = self.fail(error, _FATAL_AT_COORDINATOR)
            raise failure from failure.__cause__
        self._sent.append((group.group_id, named))
        if place.offset is not None and place.offset >= 0:
            name = self.partitions.name((place.topic, place.partition))
            self.partitions.widen(name, place.offset, place.offset + len(offsets) - 1, log.topic_id)

    def set_position(self, change: PositionChange, deadline: float) -> None:
        """Set a named position in the transaction; a conflict means that it must abort."""
        self.check_open("set_position")
        if self.staging is not None:
            raise IllegalState(
                "set_position: a staged transaction cannot set positions, because it holds no name "
                'until its delivery; begin the transaction with mode="inline"'
            )
        identity = self._identity
        log = self._engine.internal_topic(POSITIONS_TOPIC)
        partition = self.partitions.name((log.topic, log.partition))
        self.partitions.listed.add(partition)
        try:
            place = self._coordinate(
                lambda: self._engine.positions.set(
                    self.transactional_id, identity.producer_id, identity.producer_epoch, change
                ),
                deadline,
                "set_position",
            )
        except EoslogError as error:
            if not isinstance(error, RequestTimedOut):
                error = self.explained(error, ErrorCode.PRODUCER_FENCED)
            failure = self.fail(error, _FATAL_AT_COORDINATOR)
            raise failure from failure.__cause__
        self.partitions.widen(partition, place.base_offset, place.last_offset, log.topic_id)

    # -- the sender's calls -------------------------------------------------------------------

    def append(
        self,
        log: Any,
        place: Place,
        data: memoryview | StagedSegment,
        timeout: float | None = None,
    ) -> AppendResult:
        """Append to a partition, or keep the data of a staged transaction."""
        if self.staging is not None:
            assert not isinstance(data, StagedSegment)  # `SegmentIngest` does not pass one
            return self.staging.add(log, self.partitions.name(place), data)
        return self.partitions.append(log, place, data, timeout)

    def note_span(self, log: Any, place: Place, result: AppendResult) -> None:
        """Keep the offsets of the transaction's records."""
        if self.staging is None:
            self.partitions.note_span(log, place, result)

    # -- helpers ------------------------------------------------------------------------------

    def _forget(self) -> None:
        self.asked, self.preparing = False, None
        self.partitions.clear()
        self._sent.clear()
        if self.staging is not None:
            self.staging = None
            # Staged batches took sequences of this epoch, but no partition has them.
            self._identity.take(self._identity.producer_id, self._identity.producer_epoch)

    def _give_up(self, error: EoslogError) -> None:
        """Enter FATAL_ERROR, and mark the error as fatal whatever its class says."""
        self.state = ClientState.FATAL_ERROR
        self.error = error
        self._consumers.aborted(self)
        error.__dict__.update(retriable=False, abortable=False, fatal=True)

    def explained(
        self, error: EoslogError, code: ErrorCode = ErrorCode.INVALID_PRODUCER_EPOCH
    ) -> EoslogError:
        """The error; for a stale epoch, one that says how the transaction was lost."""
        transactions = self._engine.transactions
        return explain_lost_epoch(transactions, self.transactional_id, self._identity, error, code)
