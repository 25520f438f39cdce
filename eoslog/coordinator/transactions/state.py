"""The states of a transactional id, and the transitions between them.

This module has pure values: it uses no clock, log or lock. The coordinator decides from these
values, appends the record of its decision, and gets the same value back from the fold of its log.

    Empty --add--> Ongoing --end--> Prepare{Commit,Abort} --markers--> Complete{Commit,Abort}
      ^              ^                                                        |        |
      +--init--------|--------------------------------------------------------+        |
                     +------------------------------add--------------------------------+

Every init raises the epoch. With transaction version 2, the only one that is written, every end
raises it too: PREPARE_* and its markers have the data's epoch + 1, which fences late batches.

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
"""The last epoch for data; the next one is reserved for the marker that ends it."""
TRANSACTION_VERSION = 2


class TransactionState(IntEnum):
    """The state of a transactional id, with Kafka's numbers.

    PREPARED and PARKED are outside Kafka's range: a transaction that only `Log.resolve` ends. Their
    records say Ongoing to Kafka, with a timeout that never passes (tag 10006 in `records.py`).
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
    BEGIN = 1  # a common name for Ongoing in books

    __hash__ = int.__hash__  # Enum's own hash is a Python call for each table lookup

    @property
    def wire_name(self) -> str:
        """Kafka's spelling, for example `CompleteCommit`."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    preparing: bool
    """Whether the end is decided, but markers may be missing."""
    complete: bool
    """Whether the last transaction has ended and its markers are written."""
    undecided: bool
    """Whether the transaction is prepared and waits for a decision from outside."""

    @property
    def expirable(self) -> bool:
        """Whether an idle id in this state can expire."""
        return self is TransactionState.EMPTY or self.complete


_S = TransactionState
EMPTY, ONGOING = _S.EMPTY, _S.ONGOING  # bound once: enum attribute lookup takes ten times as long
_PREPARE_COMMIT, _PREPARE_ABORT = _S.PREPARE_COMMIT, _S.PREPARE_ABORT
_COMPLETE_COMMIT, _COMPLETE_ABORT = _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT
PREPARED, PARKED = _S.PREPARED, _S.PARKED
for _state in _S:  # computed once, because every record needs both
    _state.preparing = _state in (_S.PREPARE_COMMIT, _S.PREPARE_ABORT)
    _state.complete = _state in (_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)
    _state.undecided = _state in (_S.PREPARED, _S.PARKED)
VALID_PREVIOUS: Mapping[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING, _S.PREPARED, _S.PARKED}),
    _S.PREPARE_ABORT: frozenset(
        {
            _S.ONGOING, _S.PREPARE_EPOCH_FENCE, _S.PREPARED, _S.PARKED,
            # An abort of an empty transaction raises the epoch too (Kafka 4.0).
            _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT,
        }
    ),
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
    # After itself: another process takes over the id. After PARKED: the checks start again. After
    # the others: the transaction has no records, and its row in a database is all that it decides.
    _S.PREPARED: frozenset(
        {
            _S.ONGOING, _S.PREPARED, _S.PARKED,
            _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT,
        }
    ),
    _S.PARKED: frozenset({_S.PREPARED, _S.PARKED}),
}  # fmt: skip
"""The legal transitions: the possible previous states of each state."""


class Cause(IntEnum):
    """Why a transaction ended; stored with the decision."""

    REQUEST = 0
    FENCED = 1
    TIMED_OUT = 2
    OWNER_DEAD = 3
    OPERATOR = 4
    RECOVERY = 5


class Answer(Enum):
    """The action or the answer of EndTxn."""

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
        # Before KAFKA-20785, Kafka answers INVALID_TXN_STATE to this retried commit.
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

`retried`: the request has the epoch before the last raise; otherwise it has the current one.
"""


class OffsetSpan(NamedTuple):
    """A transaction's part of a partition; -1 if it wrote nothing."""

    first: int = -1
    last: int = -1
    topic_id: bytes = bytes(16)

    @property
    def empty(self) -> bool:
        """Whether the partition was added but has no record of the transaction."""
        return self.first < 0


class Decided(NamedTuple):
    """A decision about the transaction (producer id, epoch of its data)."""

    producer_id: int
    data_epoch: int
    commit: bool
    cause: Cause = Cause.REQUEST

    @property
    def key(self) -> tuple[int, int]:
        """The key of a decision: not the id, because its next transaction may have begun."""
        return self[:2]


_new = tuple.__new__  # creates a named tuple from a complete tuple of fields
NO_PARTITIONS: frozenset[TopicPartition] = frozenset()
NO_ENTRIES: Mapping[TopicPartition, Any] = MappingProxyType({})
"""Empty and shared: nearly all ids are idle, and an empty set takes 232 bytes."""


class TransactionMetadata(NamedTuple):
    """The state of a transactional id, from one record of `__transaction_state`.

    Invariants:
        * Empty has no partitions; PREPARE_* has exactly the spans of its partitions.
        * `producer_epoch` of PREPARE_* is `decided.data_epoch` + 1.
        * `next_producer_id` is set only in PREPARE_* of an exhausted epoch.
        * `offset` is the offset of the record in C; -1 before the append.
        * `opened_ns` is set in Ongoing only: CLOCK_MONOTONIC of the machine at the begin.
        * Prepared and Parked have the epoch of the data, which is durable.
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
    spans: Mapping[TopicPartition, OffsetSpan] = NO_ENTRIES
    owner: tuple[int, int] | None = None
    decided: Decided | None = None
    opened_ns: int = -1
    offset: int = -1

    # -- properties

    @property
    def exhausted(self) -> bool:
        """Whether no epoch is left, so that the producer id must rotate."""
        return self.producer_epoch >= LAST_DATA_EPOCH

    def is_retry_of(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a request has the id and epoch that the last end has replaced."""
        if producer_id == self.producer_id:
            return producer_epoch + 1 == self.producer_epoch
        return (
            producer_id == self.previous_producer_id != NO_ID
            and producer_epoch == LAST_DATA_EPOCH
            and self.producer_epoch == 0
        )

    # -- transitions: each returns the record to append

    def check(self, state: TransactionState) -> None:
        """Check that the transition to `state` is legal.

        Raises:
            IllegalState: if it is not, which is a bug in eoslog, not a mistake of the user.
        """
        if self.state not in VALID_PREVIOUS[state]:
            raise IllegalState(
                f"transactional id {self.transactional_id!r}: {state.wire_name} cannot follow "
                f"{self.state.wire_name}; this is a bug in eoslog, report it"
            )

    def needs_new_id(self, expected_epoch: int) -> bool:
        """Whether `initialised` must rotate the producer id.

        It must if all epochs are used, and if the next epoch is the last one, which is for markers
        only.
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
        """Return the Empty record with the next epoch, for a new producer.

        Args:
            timeout_ms: transaction.timeout.ms from now on.
            now_ms: the wall clock, for display.
            expected_epoch: the caller's epoch; -1 for a new producer.
            new_id: a new producer id if `needs_new_id`.
            owner: number and nonce of the process that holds the id from now on.

        Raises:
            ProducerFenced: if `expected_epoch` is neither the current nor the previous epoch.
        """
        identity: dict[str, Any]
        if expected_epoch not in (NO_EPOCH, self.producer_epoch, self.last_producer_epoch):
            raise ProducerFenced(
                f"transactional id {self.transactional_id!r} is fenced: this producer has epoch "
                f"{expected_epoch}, the current epoch is {self.producer_epoch}; close this "
                "producer and create a new one"
            )
        if self.needs_new_id(expected_epoch):
            identity = {
                "producer_id": new_id,
                "producer_epoch": 0,
                "previous_producer_id": self.producer_id,
                # A retry names the last epoch with data, as if that one had been raised.
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
        else:  # the caller did not get the last answer: return the same epoch again
            identity = {}
        self.check(TransactionState.EMPTY)
        return self._replace(
            state=TransactionState.EMPTY, timeout_ms=timeout_ms, partitions=NO_PARTITIONS,
            start_timestamp=-1, last_update_timestamp=now_ms, next_producer_id=NO_ID,
            spans=NO_ENTRIES, owner=owner, opened_ns=-1, offset=-1, **identity,
        )  # fmt: skip

    # The three steps of each transaction list every field in order, because `_replace` is slower.

    def ongoing(
        self, partitions: Iterable[TopicPartition], owner: tuple[int, int] | None, now_ms: int,
        clock_ns: int = -1,
    ) -> TransactionMetadata:  # fmt: skip
        """Return the Ongoing record with these partitions added.

        The first partitions start the transaction.

        `clock_ns` is CLOCK_MONOTONIC, which all processes of the machine share.
        """
        self.check(ONGOING)
        (
            name, producer_id, epoch, timeout_ms, state, listed, start, _,
            previous_id, next_id, last_epoch, version, _, _, _, opened_ns, _,
        ) = self  # fmt: skip
        named = frozenset(partitions)
        if state is ONGOING:
            named |= listed
        else:
            start = now_ms
            opened_ns = clock_ns
        return _new(TransactionMetadata, (
            name, producer_id, epoch, timeout_ms, ONGOING, named, start, now_ms,
            previous_id, next_id, last_epoch, version, NO_ENTRIES, owner, None, opened_ns, -1,
        ))  # fmt: skip

    def prepared(
        self, commit: bool, spans: Mapping[TopicPartition, OffsetSpan], now_ms: int, *,
        cause: Cause = Cause.REQUEST, new_id: int = NO_ID,
    ) -> TransactionMetadata:  # fmt: skip
        """Return PREPARE_* with a raised epoch: the decision, once it is durable.

        Args:
            commit: the decision.
            spans: every partition, with the offsets that the transaction wrote.
            now_ms: the wall clock, for display.
            cause: the reason of the decision.
            new_id: a new producer id if the epoch is exhausted and the producer continues.
        """
        if self.producer_epoch >= MAX_EPOCH:
            raise IllegalState(
                f"transactional id {self.transactional_id!r}: epoch {MAX_EPOCH} cannot be raised; "
                "call init_transactions() on a new producer"
            )
        state = _PREPARE_COMMIT if commit else _PREPARE_ABORT
        self.check(state)
        name, producer_id, epoch, timeout_ms, _, _, start, _, _, _, _, version, _, owner, *_ = self
        return _new(TransactionMetadata, (
            name, producer_id, epoch + 1, timeout_ms, state, frozenset(spans),
            now_ms if start < 0 else start, now_ms, NO_ID, new_id, epoch, version, dict(spans),
            owner, _new(Decided, (producer_id, epoch, commit, cause)), -1, -1,
        ))  # fmt: skip

    def undecided(
        self, state: TransactionState, now_ms: int, owner: tuple[int, int] | None
    ) -> TransactionMetadata:
        """Return PREPARED or PARKED, which only a decision from outside can end.

        Args:
            state: PREPARED or PARKED.
            now_ms: the wall clock, for display.
            owner: number and nonce of the process that holds the id from now on.
        """
        self.check(state)
        begun = now_ms if self.start_timestamp < 0 or self.state.complete else self.start_timestamp
        return self._replace(
            state=state, start_timestamp=begun, last_update_timestamp=now_ms, owner=owner,
            previous_producer_id=NO_ID, next_producer_id=NO_ID, spans=NO_ENTRIES,
            decided=None, opened_ns=-1, offset=-1,
        )  # fmt: skip

    def completed(self, now_ms: int) -> TransactionMetadata:
        """Return COMPLETE_*, after every marker is published.

        A rotation of the producer id takes effect here.
        """
        state = _COMPLETE_COMMIT if self.state is _PREPARE_COMMIT else _COMPLETE_ABORT
        self.check(state)
        (
            name, producer_id, epoch, timeout_ms, _, _, start, _,
            previous_id, next_id, last_epoch, version, _, owner, decided, _, _,
        ) = self  # fmt: skip
        if next_id != NO_ID:
            producer_id, epoch, previous_id, next_id = next_id, 0, producer_id, NO_ID
        return _new(TransactionMetadata, (
            name, producer_id, epoch, timeout_ms, state, NO_PARTITIONS, start, now_ms,
            previous_id, next_id, last_epoch, version, NO_ENTRIES, owner, decided, -1, -1,
        ))  # fmt: skip
