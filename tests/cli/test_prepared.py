"""`eoslog txn pending`, `resolve` and `recheck`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import eoslog


@pytest.fixture
def prepare(shop: Callable, place: Path) -> Callable[..., str]:
    """Prepares a transaction with one record; returns its token."""

    def run(mode: str = "inline", name: str = "tx", **arguments: object) -> str:
        with eoslog.open(place) as log:
            producer = log.producer(transactional_id=name)
            producer.init_transactions()
            producer.begin_transaction(mode=mode)
            producer.produce("orders", f"of {name}", partition=0)
            return producer.prepare_transaction(**arguments).token  # type: ignore[arg-type]

    return run


def values(shop: Callable) -> list[str]:
    return [row["value"] for row in shop("consume", "orders").rows]


def test_a_clock_that_was_set_back_gives_no_negative_age(shop, place):
    with eoslog.open(place) as log:
        ahead = log._engine.clock() + 3600
        log._engine.use_clock(lambda: ahead)
        producer = log.producer(transactional_id="tx")
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("orders", "v", partition=0)
        producer.prepare_transaction()
    (row,) = shop("txn", "list").rows
    assert row["age_s"] == 0


def test_pending_lists_what_is_not_decided_with_the_oldest_first(shop, prepare):
    assert shop("txn", "pending").rows == []
    inline = prepare("inline", "a", meta={"order": 7}, resolver="orders-db")
    staged = prepare("staged", "b", meta=b"\x00", resolver="other")
    first, second = shop("txn", "pending").rows
    assert (first["token"], first["state"], first["mode"], first["checks"]) == (
        inline, "PREPARED", "inline", 0,
    )  # fmt: skip
    assert (first["meta"], first["resolver"], first["age_s"] >= 0) == (
        {"order": 7}, "orders-db", True,
    )  # fmt: skip
    assert (second["token"], second["mode"], second["meta"]) == (staged, "staged", "00")
    assert [row["token"] for row in shop("txn", "pending", "--resolver", "other").rows] == [staged]
    assert shop("txn", "pending", "--resolver", "none").rows == []
    assert inline in shop("txn", "pending", form="table").out


@pytest.mark.parametrize("mode", ["inline", "staged"])
@pytest.mark.parametrize(("outcome", "other"), [("commit", "abort"), ("abort", "commit")])
def test_resolve_decides_once_and_answers_4_to_the_opposite(shop, prepare, mode, outcome, other):
    token = prepare(mode)
    assert values(shop) == []
    for _ in range(2):
        done = shop("txn", "resolve", token, outcome)
        assert (done.code, done.err) == (0, f"{outcome}: {token}\n")
    conflict = shop("txn", "resolve", token, other)
    assert conflict.code == 4
    assert f"was decided to {outcome}" in conflict.err
    assert values(shop) == (["of tx"] if outcome == "commit" else [])
    assert shop("txn", "pending").rows == []


def test_resolve_answers_3_to_an_unknown_token_and_2_to_an_unknown_outcome(shop, prepare):
    token = prepare()
    for unknown in ("nonsense", "x:1:2:3", token.rpartition(":")[0] + ":49", f"{token}0"):
        assert shop("txn", "resolve", unknown, "commit").code == 3
        assert shop("txn", "recheck", unknown).code == 3
    assert shop("txn", "resolve", token, "unknown").code == 2
    assert [row["token"] for row in shop("txn", "pending").rows] == [token]


def test_recheck_unparks_a_transaction_and_answers_4_to_a_decided_one(shop, prepare, place):
    token = prepare("staged")
    with eoslog.open(place) as log:
        transactions = log._engine.transactions.prepared
        _, entry = transactions.index.find(token)
        assert transactions.note_check(token, entry, 15, 0, parked=True)
    (row,) = shop("txn", "pending").rows
    assert (row["state"], row["checks"]) == ("PARKED", 15)
    assert shop("txn", "recheck", token).code == 0
    (row,) = shop("txn", "pending").rows
    assert (row["state"], row["checks"]) == ("PREPARED", 0)
    assert shop("txn", "resolve", token, "abort").code == 0
    assert shop("txn", "recheck", token).code == 4


def test_list_and_describe_show_the_state_and_the_token_of_a_prepared_id(shop, prepare):
    token = prepare()
    (row,) = shop("txn", "list").rows
    assert (row["transactional_id"], row["state"], row["token"]) == ("tx", "Prepared", token)
    (about,) = shop("txn", "describe", "tx").rows
    assert (about["state"], about["token"], about["timeout_ms"]) == ("Prepared", token, 60_000)
    refused = shop("txn", "abort", "tx")
    assert refused.code == 4
    assert token in refused.err


def test_why_names_the_token_and_the_command_that_decides(shop, prepare, place):
    token = prepare()
    (row,) = shop("why").rows
    assert (row["kind"], row["token"]) == ("prepared_transaction", token)
    assert row["remedy"].startswith(f"eoslog -d {place} txn resolve {token} commit")
    terminal = shop("why", form="table")
    assert f"txn resolve {token} commit" in terminal.out
