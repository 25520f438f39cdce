"""Prepared transactions in blockers, stats, descriptions and warnings."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import Any

import pytest

import eoslog
from eoslog import Outcome, TopicPartition
from eoslog.engine.blocking.blocked_warnings import PreparedWarnings
from eoslog.log import Log

ONE = TopicPartition("one", 0)


def prepared(
    log: Log, mode: str = "inline", name: str = "x", **arguments: Any
) -> eoslog.PreparedTransaction:
    producer = log.producer(transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction(mode=mode)
    producer.produce("one", b"v", partition=0)
    return producer.prepare_transaction(**arguments)


def park(log: Log, token: str) -> None:
    transactions = log._engine.transactions.prepared
    _, entry = transactions.index.find(token)
    assert transactions.note_check(token, entry, 15, 0, parked=True)


def typed(remedy: str) -> None:
    """Run a remedy in a shell, with this environment's command line."""
    bin_ = os.path.dirname(sys.executable)
    environment = {**os.environ, "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["bash", "-ec", remedy], env=environment, capture_output=True, check=True)


@pytest.mark.parametrize("parked", [False, True])
def test_a_prepared_transaction_that_blocks_readers_is_a_blocker(log: Log, parked: bool) -> None:
    log.reset_offsets("g", {ONE: 0})
    state = prepared(log)
    with log.producer() as plain:
        plain.produce_many("one", ["a", "b"], partition=0)
    if parked:
        park(log, state.token)
    (found,) = log.blockers("g")
    assert (found.kind, found.group_id, found.topic, found.partition) == (
        "prepared_transaction", "g", "one", 0,
    )  # fmt: skip
    assert (found.token, found.transactional_id, found.waiting) == (state.token, "x", 3)
    assert found.since is not None
    resolve = f"eoslog -d {log.path} txn resolve {state.token}"
    assert found.remedy == f"{resolve} commit  # or: {resolve} abort"
    assert state.token in found.reason
    typed(found.remedy)
    assert log.blockers() == []
    assert [record.value for record in log.read("one")] == [b"v", b"a", b"b"]


def test_a_blocker_names_the_resolver_that_decides_it(log: Log) -> None:
    log.reset_offsets("g", {ONE: 0})
    prepared(log, resolver="shop")
    (found,) = log.blockers("g")
    assert "its resolver 'shop' decides it as soon as a program registers that" in found.reason


def test_offsets_of_a_prepared_transaction_block_their_group(log: Log) -> None:
    with log.producer() as plain:
        plain.produce("one", "a", partition=0)
    with log.consumer("one", group_id="g", auto_offset_reset="earliest") as consumer:
        assert consumer.poll(60) is not None
        producer = log.producer(transactional_id="x")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
        state = producer.prepare_transaction()
        consumer.close()
    blocking = [found for found in log.blockers("g") if found.token]
    assert [(found.kind, found.token) for found in blocking] == [
        ("prepared_transaction", state.token)
    ]


def test_a_staged_transaction_blocks_no_reader(log: Log) -> None:
    prepared(log, "staged")
    assert log.blockers() == []


def test_a_reader_without_write_access_names_the_token(log: Log) -> None:
    state = prepared(log)
    with eoslog.open(log.path, read_only=True) as reader:
        (found,) = reader.blockers()
        assert found.token == state.token
        assert [about.token for about in reader.transactions()] == [state.token]
        assert reader.pending() == [state]


def test_transactions_lists_a_prepared_id_as_open_with_its_token(log: Log) -> None:
    state = prepared(log)
    (about,) = log.transactions()
    assert (about.state, about.token, about.timeout_ms) == ("Prepared", state.token, 60_000)
    park(log, state.token)
    (about,) = log.transactions()
    assert (about.state, about.token) == ("Parked", state.token)
    log.resolve(state.token, Outcome.COMMIT)
    assert log.transactions() == []
    (about,) = log.transactions(open_only=False)
    assert (about.state, about.token) == ("CompleteCommit", None)


def test_stats_counts_the_prepared_transactions_and_the_age_of_the_oldest(log: Log) -> None:
    nothing = {"inline": 0, "staged": 0, "parked": 0, "bytes": 0, "oldest_age_s": None}
    assert log.stats()["prepared_transactions"] == nothing
    clock = log._engine.clock_ms
    states = [prepared(log, "inline", "a"), prepared(log, "staged", "b")]
    park(log, states[0].token)
    log._engine.clock_ms = lambda: clock() + 3_600_000  # type: ignore[method-assign]
    found = log.stats()["prepared_transactions"]
    assert (found["inline"], found["staged"], found["parked"]) == (1, 1, 1)
    assert found["bytes"] > 0
    assert 3600 <= found["oldest_age_s"] < 7200
    assert log.stats()["open_transactions"] == 1
    for state in states:
        log.resolve(state.token, Outcome.ABORT)
    assert log.stats()["prepared_transactions"] == nothing


def test_readers_that_wait_over_a_minute_get_one_warning(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    engine, past_s = log._engine, 0.0
    warnings = PreparedWarnings(
        engine.open_logs, engine.transactions, lambda: engine.clock_ms() + int(past_s * 1000)
    )
    inline, staged = prepared(log, "inline", "a"), prepared(log, "staged", "b")

    def warned() -> list[str]:
        caplog.clear()
        warnings.look()
        return [record.getMessage() for record in caplog.records]

    with caplog.at_level(logging.WARNING, "eoslog"):
        assert warned() == []
        past_s = 61.0
        (text,) = warned()
        assert text.startswith("one-0: readers wait at offset 0")
        assert f"`eoslog txn resolve {inline.token} commit`" in text
        assert staged.token not in text
        assert warned() == []
        log.resolve(inline.token, Outcome.COMMIT)
        assert warned() == []
