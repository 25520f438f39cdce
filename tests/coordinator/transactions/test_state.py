"""The legal graph and the table of answers, against an independent second copy."""

from __future__ import annotations

import itertools

import pytest

from eoslog import errors
from eoslog.coordinator.transactions.state import (
    END_TXN_ANSWERS,
    VALID_PREVIOUS,
    Answer,
    Decided,
    TransactionMetadata,
    TransactionState,
)
from eoslog.coordinator.transactions.validation import end_txn_answer

S = TransactionState

# Kafka's ids and spellings (TransactionState.java), and which states may follow each, as text.
NAMES = {
    0: "Empty", 1: "Ongoing", 2: "PrepareCommit", 3: "PrepareAbort",
    4: "CompleteCommit", 5: "CompleteAbort", 6: "Dead", 7: "PrepareEpochFence",
}  # fmt: skip
FOLLOWERS = {
    "Empty": "Empty Ongoing PrepareAbort Dead Prepared",
    "Ongoing": "Ongoing PrepareCommit PrepareAbort PrepareEpochFence Prepared",
    "PrepareCommit": "CompleteCommit",
    "PrepareAbort": "CompleteAbort",
    "CompleteCommit": "Empty Ongoing PrepareAbort Dead Prepared",
    "CompleteAbort": "Empty Ongoing PrepareAbort Dead Prepared",
    "Dead": "",
    "PrepareEpochFence": "PrepareAbort",
    "Prepared": "Prepared Parked PrepareCommit PrepareAbort",
    "Parked": "Prepared Parked PrepareCommit PrepareAbort",
}


def test_states_have_the_ids_and_names_of_kafka() -> None:
    assert {int(s): s.wire_name for s in S if s < 8} == NAMES
    assert S.BEGIN is S.ONGOING


@pytest.mark.parametrize(("before", "after"), list(itertools.product(S, S)))
def test_every_transition_is_allowed_or_rejected_as_in_the_table(before: S, after: S) -> None:
    metadata = TransactionMetadata("t", 1, 5, 1000, before)
    if after.wire_name in FOLLOWERS[before.wire_name].split():
        metadata.check(after)
        assert before in VALID_PREVIOUS[after]
    else:
        with pytest.raises(errors.IllegalState, match=after.wire_name):
            metadata.check(after)


# Kafka 4.0 TransactionCoordinator.endTransaction, and KAFKA-20785 (mission row 1.Y): the answer to a request.
# C = the current epoch, R = the epoch before the last bump.
OK, CT, FENCED, INVALID, MAP = "decide", "CONCURRENT", "FENCED", "INVALID_TXN_STATE", "done"
TABLE = """
state           commit.C  commit.R  abort.C  abort.R
Ongoing         decide    FENCED    decide   FENCED
Empty           INVALID   FENCED    decide   FENCED
CompleteCommit  INVALID   done      decide   INVALID
CompleteAbort   INVALID   FENCED    decide   done
PrepareCommit   FENCED    wait      wait     INVALID
PrepareAbort    FENCED    INVALID   wait     wait
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]
CELLS = [
    (row[0], column.split(".")[0] == "commit", column.endswith("R"), cell)
    for row in ROWS[1:]
    for column, cell in zip(ROWS[0][1:], row[1:], strict=True)
]
RAISES = {"FENCED": errors.ProducerFenced, "INVALID": errors.InvalidTxnState}
RETURNS = {"decide": Answer.DECIDE, "done": Answer.DONE, "wait": Answer.WAIT}


@pytest.mark.parametrize(("state", "commit", "retried", "cell"), CELLS)
def test_end_txn_answers_as_kafka_does(state: str, commit: bool, retried: bool, cell: str) -> None:
    found = next(s for s in S if s.wire_name == state)
    current = TransactionMetadata("t", 1, 5, 1000, found, decided=Decided(1, 4, True))
    epoch = 4 if retried else 5
    if cell in RAISES:
        with pytest.raises(RAISES[cell]):
            end_txn_answer("t", current, 1, epoch, commit)
    else:
        assert end_txn_answer("t", current, 1, epoch, commit) is RETURNS[cell]


def test_the_table_of_answers_is_complete() -> None:
    assert len(END_TXN_ANSWERS) == len(CELLS)


@pytest.mark.parametrize("epoch", [3, 6, -1, 32767])
@pytest.mark.parametrize("state", [S.EMPTY, S.ONGOING, S.COMPLETE_ABORT, S.PREPARE_COMMIT])
def test_any_other_epoch_is_fenced(state: S, epoch: int) -> None:
    current = TransactionMetadata("t", 1, 5, 1000, state)
    for commit in (True, False):
        with pytest.raises(errors.ProducerFenced):
            end_txn_answer("t", current, 1, epoch, commit)


def test_a_wrong_or_missing_producer_id_is_an_invalid_mapping() -> None:
    current = TransactionMetadata("t", 1, 5, 1000, S.ONGOING, previous_producer_id=7)
    for metadata, producer_id in ((current, 2), (current, 7), (None, 1)):
        with pytest.raises(errors.InvalidProducerIdMapping):
            end_txn_answer("t", metadata, producer_id, 5, True)


def test_the_holder_of_the_next_producer_id_waits_for_the_rotation() -> None:
    current = TransactionMetadata("t", 1, 32767, 1000, S.PREPARE_COMMIT, next_producer_id=9)
    with pytest.raises(errors.ConcurrentTransactions):
        end_txn_answer("t", current, 9, 0, True)
    assert end_txn_answer("t", current, 1, 32766, True) is Answer.WAIT


def test_a_retry_across_a_rotation_is_recognised_by_the_previous_id() -> None:
    current = TransactionMetadata("t", 9, 0, 1000, S.COMPLETE_COMMIT, previous_producer_id=1)
    assert end_txn_answer("t", current, 1, 32766, True) is Answer.DONE
    with pytest.raises(errors.InvalidProducerIdMapping):
        end_txn_answer("t", current, 1, 32765, True)


def test_a_clock_that_goes_back_does_not_change_a_decision() -> None:
    current = TransactionMetadata("t", 1, 5, 1000, last_update_timestamp=900)
    ongoing = current.ongoing([], None, 100)
    assert ongoing.start_timestamp == 100
    done = ongoing.prepared(False, {}, 50).completed(10)
    assert (done.last_update_timestamp, done.state) == (10, S.COMPLETE_ABORT)


def test_an_epoch_is_never_bumped_beyond_the_last() -> None:
    with pytest.raises(errors.IllegalState):
        TransactionMetadata("t", 1, 32767, 1000, S.ONGOING).prepared(False, {}, 0)
