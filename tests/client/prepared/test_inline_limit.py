"""An inline prepared transaction that blocks readers is moved aside."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

import eoslog
from eoslog import Outcome, errors
from eoslog.engine.inline_limit import InlineLimit
from tests.client.prepared.helpers import (
    NOTHING,
    RECORDS,
    committed,
    created,
    of_transaction,
    offset_of_readers,
    run,
)

pytestmark = pytest.mark.process

MOVER = """
import sys
import eoslog
from eoslog.engine.inline_limit import InlineLimit
from eoslog.storage.fs import files

path, token, point, nth = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
log = eoslog.open(path)
log.pending()
files.arm_failpoint(point, "kill", nth)
InlineLimit(log._engine).set_aside(token)
"""


def moved(log: eoslog.Log, token: str) -> bool:
    return InlineLimit(log._engine).set_aside(token)


@pytest.mark.parametrize("outcome", [Outcome.COMMIT, Outcome.ABORT])
def test_row_16_a_moved_transaction_frees_readers_and_keeps_its_records(tmp_path, outcome):
    """The crash matrix: the database is down for long."""
    path = created(tmp_path / "d")
    (token,) = run(path, "inline")
    with eoslog.open(path) as log:
        with log.producer(transactional_id="plain") as producer:
            producer.init_transactions()
            with producer.transaction() as tx:
                tx.produce("orders", b"behind", partition=0)
        assert committed(log, "orders") == [b"before"]
        before = [record.value for record in log.pending()[0].records]
        assert moved(log, token)
        assert not moved(log, token)
        (state,) = log.pending()
        assert (state.token, state.mode, state.meta) == (token, "staged", {"order": 7})
        assert sorted(record.value for record in state.records) == sorted(before)
        assert committed(log, "orders") == [b"before", b"behind"]
        log.resolve(token, outcome)
        committing = outcome is Outcome.COMMIT
        assert committed(log, "orders")[2:] == (RECORDS["orders"] if committing else [])
        assert committed(log, "paid") == (RECORDS["paid"] if committing else [])
        assert offset_of_readers(log) == (1 if committing else None)


def test_a_transaction_that_set_a_position_is_not_moved_and_keeps_its_name(tmp_path, caplog):
    """The abort of its inline records would release the name before the decision."""
    with eoslog.open(tmp_path / "d", prepared_inline_max_ms=0) as log:
        log.create_topic("t")
        with (
            log.producer(transactional_id="one") as one,
            log.producer(transactional_id="two") as two,
        ):
            for producer in (one, two):
                producer.init_transactions()
            one.begin_transaction()
            one.produce("t", b"1")
            eoslog.Transaction(one).set_position("a", 1, expected=None)
            token = one.prepare_transaction().token
            with pytest.raises(errors.PolicyViolation, match="sets a named position"):
                moved(log, token)
            assert InlineLimit(log._engine).look() == 0
            assert "blocks readers of t-0" in caplog.text and "stays inline" in caplog.text
            assert [record.value for record in log.pending()[0].records] == [b"1"]
            with pytest.raises(errors.PositionConflict), two.transaction() as tx:
                tx.set_position("a", 2, expected=None)
            log.resolve(token, Outcome.COMMIT)
            assert (log.position("a"), committed(log, "t")) == (1, [b"1"])


def test_the_producer_of_a_moved_transaction_decides_it_and_continues(tmp_path):
    path = created(tmp_path / "d")
    with eoslog.open(path) as log, log.producer(transactional_id="till") as producer:
        producer.init_transactions()
        for value, commit in ((b"1", True), (b"2", False), (b"3", True)):
            producer.begin_transaction()
            producer.produce("orders", value, partition=0)
            assert moved(log, producer.prepare_transaction().token)
            producer.end_transaction(commit)
        assert committed(log, "orders") == [b"1", b"3"]


def test_the_background_moves_a_transaction_after_prepared_inline_max_ms(tmp_path):
    path = created(tmp_path / "d")
    (token,) = run(path, "inline")
    with eoslog.open(path, prepared_inline_max_ms=200) as log:
        deadline = time.monotonic() + 60
        while log.pending()[0].mode == "inline" and time.monotonic() < deadline:
            time.sleep(0.05)
        (state,) = log.pending()
        assert (state.token, state.mode) == (token, "staged")


def test_the_limit_of_undecided_transactions_keeps_none_inline(tmp_path):
    path = created(tmp_path / "d")
    (token,) = run(path, "inline")
    with eoslog.open(path, pending_max_count=1) as log:
        assert moved(log, token)


def test_a_clock_that_is_set_back_keeps_no_transaction_inline(tmp_path):
    path = created(tmp_path / "d")
    (token,) = run(path, "inline")
    with eoslog.open(path, prepared_inline_max_ms=200) as log:
        log._engine.use_clock(lambda: 1.0)
        deadline = time.monotonic() + 60
        while log.pending()[0].mode == "inline" and time.monotonic() < deadline:
            time.sleep(0.05)
        (state,) = log.pending()
        assert (state.token, state.mode) == (token, "staged")


@pytest.mark.parametrize(
    ("point", "nth", "stays"),
    [
        ("stage.written", 1, True), ("inline.copied", 1, True), ("txn.flushed", 1, True),
        ("txn.prepared", 1, False), ("txn.decided", 1, False), ("txn.marked", 1, False),
        ("txn.marked", 3, False), ("txn.completed", 1, False), ("inline.set_aside", 1, False),
    ],
)  # fmt: skip
def test_a_kill_while_moving_leaves_one_transaction_in_one_mode(tmp_path, point, nth, stays):
    path = created(tmp_path / "d")
    (token,) = run(path, "inline")
    killed = subprocess.run(
        [sys.executable, "-c", MOVER, path, token, point, str(nth)], check=False
    )
    assert killed.returncode == -9
    with eoslog.open(path) as log:
        (state,) = log.pending()
        assert (state.token, state.mode) == (token, "inline" if stays else "staged")
        assert of_transaction(log) == NOTHING
        log.resolve(token, Outcome.COMMIT)
        assert of_transaction(log) == RECORDS
        assert offset_of_readers(log) == 1
        log._engine.staged.sweep()
        assert of_transaction(log) == RECORDS
