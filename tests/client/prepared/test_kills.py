"""A process is killed at each step of a prepared transaction."""

from __future__ import annotations

from pathlib import Path

import pytest

import eoslog
from eoslog import Outcome
from tests.client.prepared.helpers import (
    NOTHING,
    RECORDS,
    created,
    of_transaction,
    offset_of_readers,
    run,
)

pytestmark = pytest.mark.process

PREPARING = [
    ("inline", "prepare.flushed", 1, False),
    ("inline", "prepare.appended", 1, True),
    ("inline", "prepare.durable", 1, True),
    ("staged", "stage.written", 1, False),
    ("staged", "stage.payload_durable", 1, False),
    ("staged", "stage.appended", 1, True),
    ("staged", "stage.durable", 1, True),
]
DECIDING = [
    ("inline", "txn.flushed", 1, None),
    *[("inline", point, 1, True) for point in ("txn.prepared", "txn.decided", "txn.completed")],
    *[("inline", "txn.marked", nth, True) for nth in (1, 2, 3, 4)],
    *[("staged", point, 1, True) for point in ("resolve.appended", "resolve.durable")],
    *[("staged", "deliver.appended", nth, True) for nth in (1, 2, 3)],
    *[
        ("staged", point, 1, True)
        for point in (
            "deliver.offsets", "txn.flushed", "txn.prepared", "txn.decided", "txn.completed",
            "deliver.decided",
        )
    ],
    *[("staged", "txn.marked", nth, True) for nth in (1, 2, 3, 4)],
]  # fmt: skip


@pytest.mark.parametrize(("mode", "point", "nth", "stands"), PREPARING)
def test_a_kill_while_preparing_leaves_a_prepared_transaction_or_none(
    tmp_path: Path, mode: str, point: str, nth: int, stands: bool
) -> None:
    """Rows 1 to 3 of the crash matrix."""
    path = created(tmp_path / "d")
    run(path, mode, point=point, nth=nth)
    with eoslog.open(path) as log:
        found = log.pending()
        assert len(found) == stands
        assert of_transaction(log) == NOTHING
        for state in found:
            log.resolve(state.token, Outcome.COMMIT)
        assert of_transaction(log) == (RECORDS if stands else NOTHING)
        assert offset_of_readers(log) == (1 if stands else None)


# An aborted staged transaction is not delivered.
CASES = [("COMMIT", *case) for case in DECIDING]
CASES += [("ABORT", *case) for case in DECIDING if case[0] == "inline" or "resolve." in case[1]]


@pytest.mark.parametrize(("word", "mode", "point", "nth", "decided"), CASES)
def test_row_N04_a_kill_while_deciding_leaves_one_decision_and_one_copy(
    tmp_path: Path, word: str, mode: str, point: str, nth: int, decided: bool | None
) -> None:
    """Rows 8 to 11 of the crash matrix: the same decision again completes it."""
    path = created(tmp_path / "d")
    token = run(path, mode, word, point=point, nth=nth)[0]
    with eoslog.open(path) as log:
        expected = Outcome[word] if decided else Outcome.UNKNOWN
        assert log.outcome(token) is expected
        for _ in range(2):
            log.resolve(token, Outcome[word])
            assert of_transaction(log) == (RECORDS if word == "COMMIT" else NOTHING)
            assert offset_of_readers(log) == (1 if word == "COMMIT" else None)
    with eoslog.open(path) as log:
        assert log.outcome(token) is Outcome[word]
        assert of_transaction(log) == (RECORDS if word == "COMMIT" else NOTHING)
        assert log.check().ok
