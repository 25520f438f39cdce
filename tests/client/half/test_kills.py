"""A service dies at each step of a half message; check-back settles it."""

from __future__ import annotations

from pathlib import Path

import pytest

import eoslog
from tests.client.half.helpers import (
    QUICK,
    Orders,
    created,
    expected,
    run,
    settled,
    visible,
)
from tests.waiting import until

pytestmark = pytest.mark.process

NEITHER = [("stage.written", 1), ("stage.payload_durable", 1), ("stage.appended", 1)]
BOTH = [
    ("resolve.appended", 1), ("resolve.durable", 1), ("deliver.appended", 1),
    ("deliver.appended", 3), ("txn.prepared", 1), ("txn.decided", 1), ("txn.marked", 2),
    ("txn.completed", 1), ("deliver.decided", 1),
]  # fmt: skip


def settle(path: str) -> dict[str, list[int]]:
    """Settle everything in a new process that only registers the listener."""
    with (
        eoslog.open(path) as log,
        log.half_producer("service", Orders(path), **QUICK),
    ):
        until(lambda: settled(log))
        assert log.pending() == []
        assert log.check().ok
        return visible(log)


def test_a_service_that_does_not_die_publishes_its_orders(tmp_path: Path) -> None:
    path = created(tmp_path / "d")
    assert run(path)[1] == "COMMIT"
    assert settle(path) == expected(path) == {"orders": [0, 1], "paid": [1, 1]}


@pytest.mark.parametrize(("point", "nth"), NEITHER)
def test_row_N19_a_death_before_the_local_transaction_leaves_neither(
    tmp_path: Path, point: str, nth: int
) -> None:
    path = created(tmp_path / "d")
    run(path, point=point, nth=nth)
    assert settle(path) == expected(path) == {"orders": [0], "paid": []}


@pytest.mark.parametrize("die", ["execute", "inserted"])
def test_row_N19_R8_a_death_in_the_local_transaction_leaves_neither(
    tmp_path: Path, die: str
) -> None:
    path = created(tmp_path / "d")
    run(path, die=die)
    with eoslog.open(path) as log:
        assert len(log.pending("service")) == 1  # the half was durable before
    assert settle(path) == expected(path)


def test_row_N19_r14_a_death_after_the_local_commit_publishes_the_order(tmp_path: Path) -> None:
    """The process that is asked knows nothing but the database."""
    path = created(tmp_path / "d")
    run(path, die="committed")
    assert settle(path) == expected(path) == {"orders": [0], "paid": []}


@pytest.mark.parametrize(("point", "nth"), BOTH)
def test_row_N19_R7_a_death_while_deciding_publishes_one_copy(
    tmp_path: Path, point: str, nth: int
) -> None:
    path = created(tmp_path / "d")
    run(path, point=point, nth=nth)
    assert settle(path) == expected(path) == {"orders": [0, 1], "paid": [1, 1]}


def test_R85_a_settled_half_is_not_asked_about_after_a_restart(tmp_path: Path) -> None:
    path = created(tmp_path / "d")
    token = run(path, point="resolve.durable")[0]
    settle(path)

    class Never(Orders):
        def check_local_transaction(self, msg: eoslog.PreparedTransaction) -> eoslog.Outcome:
            raise AssertionError("asked")

    with eoslog.open(path) as log, log.half_producer("service", Never(path), **QUICK) as producer:
        assert log.outcome(token) is eoslog.Outcome.COMMIT
        producer.send_message_in_transaction(("orders", b"2"), 2)
        assert visible(log)["orders"] == expected(path)["orders"] == [0, 1, 2]
