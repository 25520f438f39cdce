"""A prepared transaction is ended by its token alone, once, in both modes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog import Outcome, errors
from tests.client.prepared.helpers import (
    NOTHING,
    RECORDS,
    committed,
    created,
    of_transaction,
    offset_of_readers,
    run,
)

MODES = ("inline", "staged")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[eoslog.Log]:
    with eoslog.open(created(tmp_path / "d")) as log:
        yield log


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def initialised(log: eoslog.Log, transactional_id: str = "till") -> eoslog.Producer:
    producer = log.producer(transactional_id=transactional_id)
    producer.init_transactions()
    return producer


def prepared(
    producer: eoslog.Producer, mode: str, *values: bytes, **arguments: object
) -> eoslog.PreparedTransaction:
    producer.begin_transaction(mode=mode)
    for value in values:
        producer.produce("orders", value, partition=0)
    return producer.prepare_transaction(**arguments)  # type: ignore[arg-type]


def test_a_prepared_transaction_is_listed_and_invisible_until_its_commit(log, mode):
    state = prepared(initialised(log), mode, b"1", b"2", meta={"order": 7}, resolver="db")
    assert log.pending() == [state]
    assert (state.state, state.mode, state.meta, state.resolver, state.checks) == (
        "PREPARED", mode, {"order": 7}, "db", 0,
    )  # fmt: skip
    assert [record.value for record in state.records] == [b"1", b"2"]
    assert log.outcome(state.token) is Outcome.UNKNOWN
    assert committed(log, "orders") == []
    log.resolve(str(state), Outcome.COMMIT)
    assert committed(log, "orders") == [b"1", b"2"]
    assert log.pending() == []
    assert log.outcome(state.token) is Outcome.COMMIT


def test_an_aborted_prepared_transaction_shows_no_record(log, mode):
    state = prepared(initialised(log), mode, b"1")
    log.resolve(state.token, Outcome.ABORT)
    assert committed(log, "orders") == []
    assert log.outcome(state.token) is Outcome.ABORT


@pytest.mark.parametrize("outcome", [Outcome.COMMIT, Outcome.ABORT])
def test_row_N03_a_repeated_decision_succeeds_and_the_opposite_conflicts(log, mode, outcome):
    state = prepared(initialised(log), mode, b"1")
    opposite = Outcome.ABORT if outcome is Outcome.COMMIT else Outcome.COMMIT
    for _ in range(3):
        log.resolve(state.token, outcome)
    with pytest.raises(errors.OutcomeConflict, match=f"decided to {outcome.value}"):
        log.resolve(state.token, opposite)
    assert committed(log, "orders") == ([b"1"] if outcome is Outcome.COMMIT else [])


def test_readers_wait_for_an_inline_transaction_but_not_for_a_staged_one(log):
    """Row L14 of docs/contributing/mission-rows.md, and N01 for all isolation levels."""
    prepared(initialised(log, "staged"), "staged", b"half")
    with initialised(log, "plain").transaction() as tx:
        tx.produce("orders", b"after", partition=0)
    assert committed(log, "orders") == [b"after"]
    uncommitted = log.scan("orders", isolation="read_uncommitted").to_table()
    assert uncommitted["value"].to_pylist() == [b"after"]
    prepared(initialised(log, "inline"), "inline", b"open")
    with initialised(log, "plain").transaction() as tx:
        tx.produce("orders", b"behind", partition=0)
    assert committed(log, "orders") == [b"after"]


def test_an_inline_transaction_blocks_the_next_one_until_it_is_decided(log):
    producer = initialised(log)
    state = prepared(producer, "inline", b"1")
    for _ in range(2):
        with pytest.raises(errors.PreparedTransactionPending, match=state.token):
            producer.begin_transaction()
    program = (
        "import eoslog, sys; eoslog.open(sys.argv[1]).resolve(sys.argv[2], eoslog.Outcome.ABORT)"
    )
    subprocess.run([sys.executable, "-c", program, log.path, state.token], check=True)
    with producer.transaction() as tx:  # without another init
        tx.produce("orders", b"2", partition=0)
    assert committed(log, "orders") == [b"2"]


def test_a_staged_transaction_is_detached_from_its_producer(log):
    producer = initialised(log)
    states = [prepared(producer, "staged", b"%d" % number) for number in range(5)]
    with producer.transaction() as tx:
        tx.produce("orders", b"now", partition=0)
    for state in reversed(states):
        log.resolve(state.token, Outcome.COMMIT)
    assert committed(log, "orders") == [b"now", b"4", b"3", b"2", b"1", b"0"]


def test_row_N03_a_payload_of_another_transaction_is_not_delivered(tmp_path):
    path, copy = Path(created(tmp_path / "d")), tmp_path / "copy"
    shutil.copytree(path, copy)
    with eoslog.open(path) as log:
        lost = prepared(initialised(log, "lost"), "staged", b"lost").token
    with eoslog.open(copy) as log:
        initialised(log, "first")  # takes a producer id
        prepared(initialised(log, "kept"), "staged", b"kept")
    payload = "__staged_transactions-0"
    shutil.rmtree(path / payload)
    shutil.copytree(copy / payload, path / payload)
    with eoslog.open(path) as log:
        with pytest.raises(errors.CorruptRecord, match="are missing"):
            log.resolve(lost, Outcome.COMMIT)
        log.resolve(lost, Outcome.ABORT)
        kept = prepared(initialised(log, "kept"), "staged", b"kept").token
        log.resolve(kept, Outcome.COMMIT)
        assert committed(log, "orders") == [b"kept"]


def test_a_delivery_that_fails_blocks_no_reader_of_the_other_topics(log):
    producer = initialised(log)
    producer.begin_transaction(mode="staged")
    producer.produce("orders", b"1", partition=0)
    producer.produce("paid", b"x" * 500, partition=0)
    state = producer.prepare_transaction()
    log.alter_topic("paid", {"max.message.bytes": 300})
    with pytest.raises(errors.RecordTooLarge):
        log.resolve(state.token, Outcome.COMMIT)
    with producer.transaction() as tx:
        tx.produce("orders", b"2", partition=0)
    assert committed(log, "orders") == [b"2"]
    log.alter_topic("paid", {"max.message.bytes": 1000})
    log.resolve(state.token, Outcome.COMMIT)
    assert committed(log, "orders") == [b"2", b"1"]


def test_the_producer_commits_or_aborts_what_it_prepared_inline(log):
    producer = initialised(log)
    prepared(producer, "inline", b"1")
    producer.commit_transaction()
    prepared(producer, "inline", b"2")
    producer.abort_transaction()
    with producer.transaction() as tx:
        tx.produce("orders", b"3", partition=0)
    assert committed(log, "orders") == [b"1", b"3"]


def test_a_staged_transaction_is_visible_after_its_commit(log):
    producer = initialised(log)
    with producer.transaction(mode="staged") as tx:
        tx.produce("orders", b"1", partition=0)
        producer.flush()
        assert log.scan("orders", isolation="read_uncommitted").to_table().num_rows == 0
    with pytest.raises(ZeroDivisionError), producer.transaction(mode="staged") as tx:
        tx.produce("orders", b"2", partition=0)
        raise ZeroDivisionError
    assert committed(log, "orders") == [b"1"]
    assert log.pending() == []


def test_L12_a_staged_transaction_keeps_the_batches_of_all_flushes(log):
    producer = initialised(log)
    values = [str(number).encode() for number in range(4)]
    producer.begin_transaction(mode="staged")
    for value in values:  # each flush ends the batches of both partitions
        producer.produce("orders", value, partition=0)
        producer.produce("paid", value, partition=0)
        producer.flush()
    log.resolve(producer.prepare_transaction().token, Outcome.COMMIT)
    assert committed(log, "orders") == values
    assert committed(log, "paid") == values


def timed_out(log, mode):
    """A producer whose `prepare_transaction` has prepared, and did not return."""
    producer = initialised(log)
    transactions = log._engine.transactions.prepared
    name = "prepare" if mode == "inline" else "stage"
    prepare = getattr(transactions, name)

    def unanswered(*given, **named):
        prepare(*given, **named)
        raise errors.ConcurrentTransactions("busy")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transactions, name, unanswered)
        producer.begin_transaction(mode=mode)
        producer.produce("orders", b"1", partition=0)
        producer.flush()  # so that only the answer is missing
        with pytest.raises(errors.RequestTimedOut):
            producer.prepare_transaction(timeout=0.1)
    return producer


def test_a_prepare_that_timed_out_accepts_no_more_records(log, mode):
    """The transaction may be prepared without them."""
    producer = timed_out(log, mode)
    with pytest.raises(errors.IllegalState, match="call prepare_transaction.. again"):
        producer.produce("orders", b"2", partition=0)
    with pytest.raises(errors.IllegalState, match="call prepare_transaction.. again"):
        producer.send_offsets_to_transaction({eoslog.TopicPartition("orders", 0): 1}, "readers")
    log.resolve(producer.prepare_transaction().token, Outcome.COMMIT)
    assert committed(log, "orders") == [b"1"]
    producer.begin_transaction(mode=mode)
    producer.produce("orders", b"2", partition=0)
    producer.commit_transaction()
    assert committed(log, "orders") == [b"1", b"2"]


def test_a_prepare_that_timed_out_is_repeated_with_its_own_arguments(log, mode):
    """The transaction may be prepared with these."""
    producer = timed_out(log, mode)
    for other in ({"meta": b"2"}, {"resolver": "shop"}):
        with pytest.raises(errors.IllegalState, match="call it with the values of that call"):
            producer.prepare_transaction(**other)
    state = producer.prepare_transaction()
    assert (state.meta, state.resolver) == (None, None)
    log.resolve(state.token, Outcome.COMMIT)
    assert committed(log, "orders") == [b"1"]


def test_an_abort_after_a_prepare_that_timed_out_leaves_nothing_undecided(log, mode):
    producer = timed_out(log, mode)
    producer.abort_transaction()
    assert log.pending() == []
    with producer.transaction(mode=mode) as tx:
        tx.produce("orders", b"2", partition=0)
    assert committed(log, "orders") == [b"2"]


def test_an_exception_after_prepare_in_a_with_block_decides_nothing(log, mode):
    producer = initialised(log)
    with pytest.raises(ZeroDivisionError), producer.transaction(mode=mode) as tx:
        tx.produce("orders", b"1", partition=0)
        producer.prepare_transaction()
        raise ZeroDivisionError
    producer.close()
    assert [state.state for state in log.pending()] == ["PREPARED"]


def test_no_init_close_timeout_or_operator_ends_a_prepared_transaction(log, mode):
    producer = log.producer(transactional_id="till", transaction_timeout_ms=6000)
    producer.init_transactions()
    producer.begin_transaction(mode=mode)
    producer.produce("orders", b"1", partition=0)
    state = producer.prepare_transaction()
    producer.close()
    if mode == "inline":
        with pytest.raises(errors.PreparedTransactionPending, match=state.token):
            log.abort_transaction("till")
        with pytest.raises(errors.PreparedTransactionPending, match=state.token):
            initialised(log)
    time.sleep(6.5)  # past the timeout
    log._engine.transactions.abort_timed_out()
    assert log.outcome(state.token) is Outcome.UNKNOWN
    log.resolve(state.token, Outcome.COMMIT)
    assert committed(log, "orders") == [b"1"]


def test_a_producer_that_keeps_a_prepared_transaction_continues_after_it(log):
    state = prepared(initialised(log), "inline", b"1")
    second = log.producer(transactional_id="till")
    assert second.init_transactions(keep_prepared=True) == [state]
    with pytest.raises(errors.PreparedTransactionPending):
        second.begin_transaction()
    second.complete_transaction(state)
    with second.transaction() as tx:
        tx.produce("orders", b"2", partition=0)
    assert committed(log, "orders") == [b"1", b"2"]


def test_complete_transaction_aborts_for_the_token_of_another_transaction(log):
    first = prepared(initialised(log, "other"), "inline", b"other")
    log.resolve(first.token, Outcome.COMMIT)
    producer = initialised(log)
    prepared(producer, "inline", b"1")
    producer.complete_transaction(first)
    assert committed(log, "orders") == [b"other"]
    with pytest.raises(errors.IllegalState, match="no prepared transaction"):
        producer.complete_transaction(first)
    with pytest.raises(errors.UnknownToken):
        producer.complete_transaction("nothing:1:2:3")


@pytest.mark.parametrize("token", ["", "x", "a:1:2", "a:b:c:d", None, 7])
def test_a_value_other_than_a_token_is_unknown(log, token):
    with pytest.raises(errors.UnknownToken):
        log.resolve(token, Outcome.ABORT)
    assert log.outcome(token) is None


def test_the_token_of_another_log_is_unknown_and_named(log, tmp_path, mode):
    with eoslog.open(created(tmp_path / "other")) as other:
        state = prepared(initialised(other), mode, b"1")
        with pytest.raises(errors.UnknownToken, match=other.cluster_id):
            log.resolve(state.token, Outcome.COMMIT)
        known = state.token.replace(other.cluster_id, log.cluster_id)
        with pytest.raises(errors.UnknownToken):
            log.resolve(known, Outcome.COMMIT)


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, None, "commit", True])
def test_only_commit_and_abort_are_decisions(log, outcome):
    state = prepared(initialised(log), "inline", b"1")
    with pytest.raises(errors.ConfigError, match="COMMIT or Outcome.ABORT"):
        log.resolve(state.token, outcome)
    assert log.outcome(state.token) is Outcome.UNKNOWN


@pytest.mark.parametrize("meta", [b"x" * 4097, "x" * 5000, {1, 2}, float("nan")])
def test_an_invalid_meta_is_refused_and_the_transaction_stays_open(log, meta):
    producer = initialised(log)
    producer.begin_transaction()
    producer.produce("orders", b"1", partition=0)
    with pytest.raises(errors.ConfigError, match="meta"):
        producer.prepare_transaction(meta=meta)
    producer.commit_transaction()
    assert committed(log, "orders") == [b"1"]


@pytest.mark.parametrize("meta", [b"", b"\xff" * 4096, None, {"a": [1, "é"]}, 5, "text"])
def test_a_meta_comes_back_as_it_was_given(log, mode, meta):
    state = prepared(initialised(log), mode, b"1", meta=meta)
    assert (state.meta, log.pending()[0].meta) == (meta, meta)


def test_an_unknown_mode_is_refused(log):
    producer = initialised(log)
    with pytest.raises(errors.ConfigError, match="'inline' or 'staged'"):
        producer.begin_transaction(mode="half")
    with pytest.raises(errors.ConfigError, match="'inline' or 'staged'"):
        producer.transaction(mode="half")


def test_an_empty_transaction_can_be_prepared_and_decided(log, mode):
    producer = initialised(log)
    for outcome in (Outcome.COMMIT, Outcome.ABORT):
        state = prepared(producer, mode)
        log.resolve(state.token, outcome)
    with producer.transaction() as tx:
        tx.produce("orders", b"1", partition=0)
    assert committed(log, "orders") == [b"1"]


def test_offsets_are_committed_with_the_decision(log, mode):
    tp = eoslog.TopicPartition("orders", 0)
    producer = initialised(log)
    for outcome, expected in ((Outcome.ABORT, None), (Outcome.COMMIT, 1)):
        producer.begin_transaction(mode=mode)
        producer.produce("orders", b"1", partition=0)
        producer.send_offsets_to_transaction({tp: 1}, "readers")
        state = producer.prepare_transaction()
        assert offset_of_readers(log) is None
        log.resolve(state.token, outcome)
        assert offset_of_readers(log) == expected


@pytest.mark.process
def test_a_prepared_transaction_survives_its_process_in_the_next_session(tmp_path, mode):
    path = created(tmp_path / "d")
    (token,) = run(path, mode)
    with eoslog.open(path) as log:
        assert [state.token for state in log.pending()] == [token]
        assert of_transaction(log) == NOTHING
        log.resolve(token, Outcome.COMMIT)
        assert of_transaction(log) == RECORDS
        assert offset_of_readers(log) == 1


@pytest.mark.process
def test_many_processes_decide_once(tmp_path, mode):
    path = created(tmp_path / "d")
    (token,) = run(path, mode)
    program = (
        "import eoslog, sys\n"
        "with eoslog.open(sys.argv[1]) as log:\n"
        "    try:\n"
        "        log.resolve(sys.argv[2], eoslog.Outcome[sys.argv[3]])\n"
        "        print(sys.argv[3])\n"
        "    except eoslog.errors.OutcomeConflict:\n"
        "        print('conflict')\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, path, token, word], stdout=subprocess.PIPE, text=True
        )
        for word in ("COMMIT", "ABORT", "COMMIT", "ABORT")
    ]
    said = [child.communicate()[0].strip() for child in children]
    with eoslog.open(path) as log:
        outcome = log.outcome(token)
        assert outcome is not None
        loser = "ABORT" if outcome is Outcome.COMMIT else "COMMIT"
        assert sorted(said) == sorted(["conflict"] * 2 + [outcome.name] * 2), said
        assert loser not in said
        assert of_transaction(log) == (RECORDS if outcome is Outcome.COMMIT else NOTHING)


@pytest.mark.process
def test_a_stopped_decider_that_wakes_meets_the_decision_of_another(tmp_path, mode):
    path = created(tmp_path / "d")
    (token,) = run(path, mode)
    program = (
        "import eoslog, os, signal, sys\n"
        "with eoslog.open(sys.argv[1]) as log:\n"
        "    log.pending()\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    try:\n"
        "        log.resolve(sys.argv[2], eoslog.Outcome.COMMIT)\n"
        "    except eoslog.errors.OutcomeConflict:\n"
        "        print('conflict')\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, path, token], stdout=subprocess.PIPE, text=True
    )
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    with eoslog.open(path) as log:
        log.resolve(token, Outcome.ABORT)
        child.send_signal(signal.SIGCONT)
        assert child.communicate()[0].strip() == "conflict"
        assert of_transaction(log) == NOTHING
