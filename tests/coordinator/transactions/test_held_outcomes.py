"""Decisions to commit that are kept until they are released."""

from __future__ import annotations

import pytest

import eoslog
from eoslog import Outcome
from eoslog.coordinator.transactions.held_outcomes import HELD_UNTIL_MS, held, release
from eoslog.errors import OutcomeConflict


@pytest.fixture
def log(path):
    with eoslog.open(path) as log:
        yield log


@pytest.fixture
def prepared(log):
    found = log._engine.for_writing().transactions.prepared
    found._retention_ms = 0
    return found


@pytest.fixture
def token(log):
    with log.producer(transactional_id="p") as producer:
        producer.init_transactions()
        producer.begin_transaction(mode="staged")
        return producer.prepare_transaction(b"ab", "r", HELD_UNTIL_MS).token


def less(meta: bytes | None) -> bytes | None:
    assert meta is not None
    return meta[:-1] if len(meta) > 2 else None


def test_a_held_commit_does_not_expire(log, prepared, token):
    log.resolve(token, Outcome.COMMIT)
    prepared.expire()
    assert log.outcome(token) is Outcome.COMMIT
    with pytest.raises(OutcomeConflict):
        log.resolve(token, Outcome.ABORT)
    assert [found for found, _ in held(prepared, "r")] == [token]
    assert held(prepared, "other") == []


def test_a_released_commit_expires(log, prepared, token):
    log.resolve(token, Outcome.COMMIT)
    release(prepared, token, less, 7)
    prepared.expire()
    assert [entry.meta for _, entry in held(prepared, "r")] == [b"ba"]
    assert log.outcome(token) is Outcome.COMMIT
    release(prepared, token, less, 7)
    assert held(prepared, "r") == []
    assert log.outcome(token) is Outcome.COMMIT
    prepared.expire()
    assert log.outcome(token) is None


def test_an_abort_is_not_held(log, prepared, token):
    log.resolve(token, Outcome.ABORT)
    assert held(prepared, "r") == []
    prepared.expire()
    assert log.outcome(token) is None


def test_a_transaction_that_is_not_a_held_commit_is_not_released(log, prepared, token):
    release(prepared, token, less, 7)
    assert log.outcome(token) is Outcome.UNKNOWN
    log.resolve(token, Outcome.COMMIT)
    release(prepared, token, lambda meta: meta, 7)
    assert len(held(prepared, "r")) == 1
    release(prepared, token, lambda meta: None, 7)
    release(prepared, token, lambda meta: None, 7)
    assert log.outcome(token) is Outcome.COMMIT


def test_a_held_commit_survives_a_restart(path, log, token):
    log.resolve(token, Outcome.COMMIT)
    log.close()
    with eoslog.open(path) as again:
        prepared = again._engine.for_writing().transactions.prepared
        assert [found for found, _ in held(prepared, "r")] == [token]
        assert again.outcome(token) is Outcome.COMMIT
