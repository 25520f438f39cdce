"""The states of a transactional id, which may follow which, and what each transition changes.

Pure values: nothing here reads a clock, a log or a lock. The coordinator decides on these values,
appends the record of the decision, and gets the same value back from the fold of its log.

    Empty --add--> Ongoing --end--> Prepare{Commit,Abort} --markers--> Complete{Commit,Abort}
      ^              ^                                                        |        |
      +--init--------|--------------------------------------------------------+        |
                     +------------------------------add--------------------------------+

The epoch grows at every init and, with transaction version 2 (the only one written), at every
end: PREPARE_* and its markers carry the data's epoch + 1, which fences whatever comes late.

Source: Kafka `TransactionMetadata`, KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from eoslog.errors import IllegalState, ProducerFenced
from eoslog.model import TopicPartition

NO_ID = -1
NO_EPOCH = -1
MAX_EPOCH = 32767
LAST_DATA_EPOCH = MAX_EPOCH - 1
"""The last epoch that may bear data; the one after it is kept for the marker that ends it."""
TRANSACTION_VERSION = 2


class TransactionState(IntEnum):
    """The state of a transactional id, numbered as Kafka stores it.

    PREPARED and PARKED lie outside Kafka's range: they are named for staged transactions, and
    nothing writes them yet.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7
    PREPARED = 64
    PARKED = 65
    BEGIN = 1  # the books' name for Ongoing

    __hash__ = int.__hash__  # Enum's own is a Python call for each look into a table

    @property
    def wire_name(self) -> str:
        """Kafka's spelling, as `CompleteCommit`."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    preparing: bool
    """Whether an end is decided and its markers are still to be written."""
    complete: bool
    """Whether the last transaction has ended and its markers are written."""

    @property
    def expirable(self) -> bool:
        """Whether an idle id may be forgotten from here."""
        return self is TransactionState.EMPTY or self.complete


_S = TransactionState
EMPTY, ONGOING = _S.EMPTY, _S.ONGOING  # a look into an enum takes ten times as long
_PREPARE_COMMIT, _PREPARE_ABORT = _S.PREPARE_COMMIT, _S.PREPARE_ABORT
_COMPLETE_COMMIT, _COMPLETE_ABORT = _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT
for _state in _S:  # told once: both are asked for by every record
    _state.preparing = _state in (_S.PREPARE_COMMIT, _S.PREPARE_ABORT)
    _state.complete = _state in (_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)
VALID_PREVIOUS: Mapping[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING, _S.PREPARED, _S.PARKED}),
    _S.PREPARE_ABORT: frozenset(
        {
            _S.ONGOING, _S.PREPARE_EPOCH_FENCE, _S.PREPARED, _S.PARKED,
            # An abort of nothing bumps the epoch all the same (Kafka 4.0).
            _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT,
        }
    ),
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
    _S.PREPARED: frozenset({_S.ONGOING}),
    _S.PARKED: frozenset({_S.PREPARED}),
}  # fmt: skip
"""The legal graph: each state with the states it may follow."""


class Cause(IntEnum):
    """Why a transaction ended; kept with the decision, for people and for the next instance."""

    REQUEST = 0
    FENCED = 1
    TIMED_OUT = 2
    OWNER_DEAD = 3
    OPERATOR = 4
    RECOVERY = 5


class Answer(Enum):
    """What EndTxn does or says."""

    DECIDE = "write PREPARE_*"
    DONE = "success: it is done already"
    WAIT = "CONCURRENT_TRANSACTIONS"
    FENCED = "PRODUCER_FENCED"
    INVALID = "INVALID_TXN_STATE"


def _answers() -> dict[tuple[TransactionState, bool, bool], Answer]:
    a = Answer
    rows = {
        #                   commit now, retried   abort now, retried
        _S.ONGOING:         (a.DECIDE,  a.FENCED,  a.DECIDE, a.FENCED),
        _S.EMPTY:           (a.INVALID, a.FENCED,  a.DECIDE, a.FENCED),
        _S.COMPLETE_COMMIT: (a.INVALID, a.DONE,    a.DECIDE, a.INVALID),
        # Kafka before KAFKA-20785 says INVALID_TXN_STATE to the retried commit here.
        _S.COMPLETE_ABORT:  (a.INVALID, a.FENCED,  a.DECIDE, a.DONE),
        _S.PREPARE_COMMIT:  (a.FENCED,  a.WAIT,    a.WAIT,   a.INVALID),
        _S.PREPARE_ABORT:   (a.FENCED,  a.INVALID, a.WAIT,   a.WAIT),
    }  # fmt: skip
    columns = ((True, False), (True, True), (False, False), (False, True))
    return {
        (state, commit, retried): answer
        for state, row in rows.items()
        for (commit, retried), answer in zip(columns, row, strict=True)
    }


END_TXN_ANSWERS = _answers()
"""(state, commit, retried) to answer: Kafka 4.0 `TransactionCoordinator.endTransaction`.

`retried` = the request bears the epoch before the bump; otherwise it bears the current one.
"""


class Span(NamedTuple):
    """A transaction's part of one partition; `first` and `last` are -1 where it wrote nothing."""

    first: int = -1
    last: int = -1
    topic_id: bytes = bytes(16)

    @property
    def empty(self) -> bool:
        """Whether the partition was added but holds no record of the transaction."""
        return self.first < 0


class Decided(NamedTuple):
    """Which transaction was decided, and how: (producer id, epoch of its data) names it."""

    producer_id: int
    data_epoch: int
    commit: bool
    cause: Cause = Cause.REQUEST

    @property
    def key(self) -> tuple[int, int]:
        """What decisions are looked up by: never the id, whose next transaction may have begun."""
        return self[:2]


_new = tuple.__new__  # of a named tuple whose fields are all there
NO_PARTITIONS: frozenset[TopicPartition] = frozenset()
NOTHING: Mapping[TopicPartition, Any] = MappingProxyType({})
"""Empty and shared: nearly all ids are idle, and an empty set of its own takes 232 bytes."""


class TransactionMetadata(NamedTuple):
    """A transactional id as one record of `__transaction_state` states it.

    Invariants:
        * Empty has no partitions; PREPARE_* has exactly the spans of its partitions.
        * `producer_epoch` of PREPARE_* = `decided.data_epoch` + 1.
        * `next_producer_id` is set only while an exhausted epoch's end is being completed.
        * `offset` is the record's in C; -1 while it is only proposed.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = NO_PARTITIONS
    start_timestamp: int = -1
    last_update_timestamp: int = -1
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    last_producer_epoch: int = NO_EPOCH
    client_version: int = TRANSACTION_VERSION
    spans: Mapping[TopicPartition, Span] = NOTHING
    owner: tuple[int, int] | None = None
    markers: Mapping[TopicPartition, int] = NOTHING
    decided: Decided | None = None
    offset: int = -1

    # -- what may be asked

    @property
    def exhausted(self) -> bool:
        """Whether the epoch can bear no further end: the producer id has to be rotated."""
        return self.producer_epoch >= LAST_DATA_EPOCH

    def is_retry_of(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a request bears the id and epoch that the last end has replaced."""
        if producer_id == self.producer_id:
            return producer_epoch + 1 == self.producer_epoch
        return (
            producer_id == self.previous_producer_id != NO_ID
            and producer_epoch == LAST_DATA_EPOCH
            and self.producer_epoch == 0
        )

    # -- transitions: each returns the record to append

    def check(self, state: TransactionState) -> None:
        """The graph allows the step to `state`.

        Raises:
            IllegalState: it does not; a bug in the caller, never a user's mistake.
        """
        if self.state not in VALID_PREVIOUS[state]:
            raise IllegalState(
                f"{self.transactional_id}: {state.wire_name} may not follow {self.state.wire_name}"
            )

    def placed(self, offset: int) -> TransactionMetadata:
        """This record, no longer only proposed: it was appended at `offset`."""
        return _new(TransactionMetadata, (*self[:-1], offset))

    def needs_new_id(self, expected_epoch: int) -> bool:
        """Whether `initialised` has to rotate the producer id.

        An id whose epoch is used up rotates; so does a retry that would be handed the one epoch
        that bears markers only.
        """
        if self.producer_epoch >= MAX_EPOCH:
            return True
        return self.exhausted and expected_epoch in (NO_EPOCH, self.producer_epoch)

    def initialised(
        self,
        timeout_ms: int,
        now_ms: int,
        *,
        expected_epoch: int = NO_EPOCH,
        new_id: int = NO_ID,
        owner: tuple[int, int] | None = None,
    ) -> TransactionMetadata:
        """Empty with the epoch for the next session.

        Args:
            timeout_ms: transaction.timeout.ms from now on.
            now_ms: wall clock, for show.
            expected_epoch: the epoch the caller believes in, -1 for none.
            new_id: a fresh producer id if `needs_new_id`.
            owner: number and nonce of the process that holds the id from now on.

        Raises:
            ProducerFenced: `expected_epoch` is neither the current nor the last one.
        """
        identity: dict[str, Any]
        if expected_epoch not in (NO_EPOCH, self.producer_epoch, self.last_producer_epoch):
            raise ProducerFenced(
                f"{self.transactional_id}: epoch {expected_epoch} was expected, "
                f"the current one is {self.producer_epoch}"
            )
        if self.needs_new_id(expected_epoch):
            identity = {
                "producer_id": new_id,
                "producer_epoch": 0,
                "previous_producer_id": self.producer_id,
                # As if the last epoch that bore data had been bumped: a retry names that one.
                "last_producer_epoch": NO_EPOCH
                if expected_epoch == NO_EPOCH
                else min(self.producer_epoch, LAST_DATA_EPOCH),
            }
        elif expected_epoch == NO_EPOCH or expected_epoch == self.producer_epoch:
            identity = {
                "producer_epoch": self.producer_epoch + 1,
                "last_producer_epoch": expected_epoch,
                "previous_producer_id": NO_ID,
            }
        else:  # the answer to the last bump was lost: the same one again
            identity = {}
        self.check(TransactionState.EMPTY)
        return self._replace(
            state=TransactionState.EMPTY, timeout_ms=timeout_ms, partitions=NO_PARTITIONS,
            start_timestamp=-1, last_update_timestamp=now_ms, next_producer_id=NO_ID,
            spans=NOTHING, owner=owner, markers=NOTHING, offset=-1, **identity,
        )  # fmt: skip

    # The three steps of each transaction name every field, in order: `_replace` takes longer.

    def ongoing(
        self, partitions: Iterable[TopicPartition], owner: tuple[int, int] | None, now_ms: int
    ) -> TransactionMetadata:
        """Ongoing with these partitions added; the first ones start the transaction."""
        self.check(ONGOING)
        (
            name, producer_id, epoch, timeout_ms, state, listed, start, _,
            previous_id, next_id, last_epoch, version, *_,
        ) = self  # fmt: skip
        named = frozenset(partitions)
        if state is ONGOING:
            named |= listed
        else:
            start = now_ms
        return _new(TransactionMetadata, (
            name, producer_id, epoch, timeout_ms, ONGOING, named, start, now_ms,
            previous_id, next_id, last_epoch, version, NOTHING, owner, NOTHING, None, -1,
        ))  # fmt: skip

    def prepared(
        self, commit: bool, spans: Mapping[TopicPartition, Span], now_ms: int, *,
        cause: Cause = Cause.REQUEST, new_id: int = NO_ID,
    ) -> TransactionMetadata:  # fmt: skip
        """PREPARE_COMMIT or PREPARE_ABORT with the epoch bumped: once durable, the decision.

        Args:
            commit: the decision.
            spans: every partition with what the transaction wrote there.
            now_ms: wall clock, for show.
            cause: why.
            new_id: a fresh producer id if the epoch is exhausted and the producer goes on.
        """
        if self.producer_epoch >= MAX_EPOCH:
            raise IllegalState(f"{self.transactional_id}: epoch {MAX_EPOCH} cannot be bumped")
        state = _PREPARE_COMMIT if commit else _PREPARE_ABORT
        self.check(state)
        name, producer_id, epoch, timeout_ms, _, _, start, _, _, _, _, version, _, owner, *_ = self
        return _new(TransactionMetadata, (
            name, producer_id, epoch + 1, timeout_ms, state, frozenset(spans),
            now_ms if start < 0 else start, now_ms, NO_ID, new_id, epoch, version, dict(spans),
            owner, NOTHING, Decided(producer_id, epoch, commit, cause), -1,
        ))  # fmt: skip

    def completed(self, markers: Mapping[TopicPartition, int], now_ms: int) -> TransactionMetadata:
        """COMPLETE_* after every marker is published; a rotation takes effect here."""
        state = _COMPLETE_COMMIT if self.state is _PREPARE_COMMIT else _COMPLETE_ABORT
        self.check(state)
        (
            name, producer_id, epoch, timeout_ms, _, _, start, _,
            previous_id, next_id, last_epoch, version, _, owner, _, decided, _,
        ) = self  # fmt: skip
        if next_id != NO_ID:
            producer_id, epoch, previous_id, next_id = next_id, 0, producer_id, NO_ID
        return _new(TransactionMetadata, (
            name, producer_id, epoch, timeout_ms, state, NO_PARTITIONS, start, now_ms,
            previous_id, next_id, last_epoch, version, NOTHING, owner, dict(markers), decided, -1,
        ))  # fmt: skip
