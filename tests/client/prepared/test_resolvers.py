"""Resolvers of dead processes' transactions, of closed handles, and that hang."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import Outcome, errors
from tests.client.prepared.helpers import created
from tests.waiting import until

COMMIT, ABORT, UNKNOWN = Outcome.COMMIT, Outcome.ABORT, Outcome.UNKNOWN
SOON: dict[str, Any] = {"first_check": 0, "interval": 0.05}
PREPARING = """
import os
import sys
import eoslog

log = eoslog.open(sys.argv[1])
producer = log.producer(transactional_id="till")
producer.init_transactions()
producer.begin_transaction(mode=sys.argv[2])
producer.produce("orders", b"1", key=b"a")
print(producer.prepare_transaction(resolver="db", meta={"order": 7}).token, flush=True)
os._exit(0)
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[eoslog.Log]:
    with eoslog.open(created(tmp_path / "d")) as opened:
        yield opened


def prepared(log: eoslog.Log, resolver: str = "db", name: str = "till") -> str:
    """Prepare an inline transaction with one record, and return its token."""
    producer = log.producer(transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("orders", b"1", key=b"a")
    return producer.prepare_transaction(resolver=resolver).token


def values(log: eoslog.Log) -> list[bytes]:
    return [record.value for record in log.read("orders")]


@pytest.mark.process
@pytest.mark.parametrize("mode", ["inline", "staged"])
@pytest.mark.parametrize("outcome", [COMMIT, ABORT])
def test_row_N07_a_dead_process_is_settled_by_registering_its_resolver(
    tmp_path: Path, mode: str, outcome: Outcome
) -> None:
    path = created(tmp_path / "d")
    program = [sys.executable, "-c", PREPARING, path, mode]
    token = subprocess.run(program, capture_output=True, text=True, check=True).stdout.strip()
    asked: list[Any] = []

    def database(transaction: eoslog.PreparedTransaction) -> Outcome:
        records = [(record.topic, record.key, record.value) for record in transaction.records]
        asked.append((transaction.token, transaction.meta, records))
        return outcome

    with eoslog.open(path) as log:
        log.register_resolver("db", database, first_check=0.1)
        until(lambda: log.pending() == [])
        assert log.outcome(token) is outcome
        until(lambda: values(log) == ([b"1"] if outcome is COMMIT else []))
    assert asked == [(token, {"order": 7}, [("orders", b"a", b"1")])]


def test_an_unregistered_function_is_not_called(log: eoslog.Log) -> None:
    called: list[str] = []
    unregister = log.register_resolver("db", lambda found: called.append(found.token), **SOON)
    unregister()
    unregister()
    prepared(log)
    other = prepared(log, "other", "other")
    log.register_resolver("other", lambda found: COMMIT, **SOON)
    until(lambda: log.outcome(other) is COMMIT)
    assert called == []


def test_a_handle_that_closes_takes_its_resolver_with_it(log: eoslog.Log) -> None:
    token = prepared(log)
    asked: list[str] = []

    def first(found: eoslog.PreparedTransaction) -> Outcome:
        asked.append("first")
        return UNKNOWN

    with eoslog.open(log.path) as second:
        second.register_resolver("db", first, **SOON)
        until(lambda: asked)
    count = len(asked)
    log.recheck(token)
    log.register_resolver("db", lambda found: COMMIT, **SOON)
    until(lambda: log.outcome(token) is COMMIT)
    assert len(asked) <= count + 1  # a call may have been running


def test_a_newer_resolver_stays_when_an_older_handle_closes(log: eoslog.Log) -> None:
    with eoslog.open(log.path) as second:
        second.register_resolver("db", lambda found: ABORT, first_check=1000)
        log.register_resolver("db", lambda found: COMMIT, **SOON)
    token = prepared(log)
    until(lambda: log.outcome(token) is COMMIT)


def test_a_log_closes_while_a_resolver_hangs(tmp_path: Path) -> None:
    path = created(tmp_path / "d")
    entered, free = threading.Event(), threading.Event()

    def hang(found: eoslog.PreparedTransaction) -> Outcome:
        entered.set()
        free.wait()
        return COMMIT

    log = eoslog.open(path)
    token = prepared(log)
    log.register_resolver("db", hang, timeout=1000, **SOON)
    entered.wait()
    log.close()
    free.set()
    with eoslog.open(path) as again:
        assert again.outcome(token) is UNKNOWN
        assert again.check().ok


def test_a_parked_transaction_is_asked_again_after_recheck(log: eoslog.Log) -> None:
    answer = [UNKNOWN]
    token = prepared(log)
    log.register_resolver("db", lambda found: answer[0], max_checks=2, **SOON)
    until(lambda: log.pending()[0].state == "PARKED")
    answer[0] = COMMIT
    assert log.recheck(token)
    until(lambda: values(log) == [b"1"])
    assert not log.recheck(token)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", lambda found: COMMIT), "register_resolver: name: expected a name, got ''"),
        (("db", "commit"), "register_resolver: fn: expected a function of a PreparedTransaction"),
    ],
)
def test_invalid_arguments_are_rejected(
    log: eoslog.Log, arguments: tuple[Any, Any], message: str
) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        log.register_resolver(*arguments)


def test_a_read_only_log_registers_no_resolver(tmp_path: Path) -> None:
    with eoslog.open(created(tmp_path / "d"), read_only=True) as log:
        with pytest.raises(errors.IllegalState, match="opened with read_only=True"):
            log.register_resolver("db", lambda found: COMMIT)
