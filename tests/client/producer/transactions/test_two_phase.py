"""PEP 249's two-phase commit on a producer, tested as `dbapi20_tpc.py` does."""

from __future__ import annotations

import os
import signal

import pytest

import eoslog
from eoslog import Outcome
from eoslog.errors import (
    ConfigError,
    IllegalState,
    OutcomeConflict,
    PreparedTransactionPending,
    UnknownToken,
)
from eoslog.storage.fs.files import arm_failpoint
from tests.sql.processes.sink import child, ended

MODES = ["inline", "staged"]


@pytest.fixture
def log(path):
    with eoslog.open(path) as log:
        log.create_topic("t")
        yield log


@pytest.fixture
def producer(log):
    with log.producer(transactional_id="p") as producer:
        yield producer


@pytest.fixture
def other(log):
    with log.producer(transactional_id="other") as producer:
        yield producer


def visible(log) -> list[bytes]:
    return [record.value for record in log.read("t")]


def test_row_L08_an_id_has_the_parts_of_pep_249(producer):
    xid = producer.xid(42, "global", "branch")
    assert (xid.format_id, xid.global_transaction_id, xid.branch_qualifier) == tuple(xid)
    assert (xid[0], xid[1], xid[2]) == (42, "global", "branch")
    assert producer.xid(0, "g", "") == (0, "g", "")


@pytest.mark.parametrize(
    "parts",
    [
        (-1, "g", "b"), (2**31, "g", "b"), ("1", "g", "b"), (1.5, "g", "b"), (True, "g", "b"),
        (1, "", "b"), (1, "g" * 65, "b"), (1, "g", "ä" * 33), (1, b"g", "b"), (1, "g", None),
        (1, "\ud800", "b"),
    ],
)  # fmt: skip
def test_an_id_with_an_illegal_part_is_rejected(producer, parts):
    with pytest.raises(ConfigError, match="xid"):
        producer.xid(*parts)


@pytest.mark.parametrize("mode", MODES)
def test_row_L08_two_phases_commit(log, producer, mode):
    producer.tpc_begin(producer.xid(1, "g", "b"), mode)
    producer.produce("t", "1")
    producer.tpc_prepare()
    assert visible(log) == []
    assert producer.tpc_recover() == [(1, "g", "b")]
    producer.tpc_commit()
    assert visible(log) == [b"1"]
    assert producer.tpc_recover() == []
    assert log.pending() == []


@pytest.mark.parametrize("mode", MODES)
def test_row_L08_two_phases_roll_back(log, producer, mode):
    producer.tpc_begin(producer.xid(1, "g", "b"), mode)
    producer.produce("t", "1")
    producer.tpc_prepare()
    producer.tpc_rollback()
    assert visible(log) == []
    assert producer.tpc_recover() == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("commit", [True, False])
def test_row_L08_a_transaction_that_is_not_prepared_ends_in_one_phase(log, producer, mode, commit):
    producer.tpc_begin(producer.xid(1, "g", "b"), mode)
    producer.produce("t", "1")
    (producer.tpc_commit if commit else producer.tpc_rollback)()
    assert visible(log) == ([b"1"] if commit else [])
    assert log.pending() == []
    producer.tpc_begin(producer.xid(1, "g", "b"), mode)
    producer.tpc_rollback()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("commit", [True, False])
def test_row_L08_another_producer_ends_a_recovered_transaction(log, producer, other, mode, commit):
    producer.tpc_begin(producer.xid(1, "g", "b"), mode)
    producer.produce("t", "1")
    producer.tpc_prepare()
    [xid] = other.tpc_recover()
    (other.tpc_commit if commit else other.tpc_rollback)(xid)
    assert visible(log) == ([b"1"] if commit else [])
    assert other.tpc_recover() == []
    # The first one decides the same.
    (producer.tpc_commit if commit else producer.tpc_rollback)()
    producer.tpc_begin(producer.xid(1, "next", ""))
    producer.tpc_rollback()


def test_row_L08_a_plain_producer_recovers_too(log, producer):
    producer.tpc_begin(producer.xid(1, "g", "b"))
    producer.produce("t", "1")
    producer.tpc_prepare()
    with log.producer() as plain:
        plain.tpc_commit(plain.tpc_recover()[0])
    assert visible(log) == [b"1"]


@pytest.mark.parametrize("mode", MODES)
def test_row_L08_a_repeated_decision_succeeds_and_the_opposite_conflicts(
    log, producer, other, mode
):
    xid = producer.xid(1, "g", "b")
    producer.tpc_begin(xid, mode)
    producer.produce("t", "1")
    producer.tpc_prepare()
    other.tpc_commit(xid)
    other.tpc_commit(xid)
    with pytest.raises(OutcomeConflict):
        other.tpc_rollback(xid)
    with pytest.raises(OutcomeConflict):
        producer.tpc_rollback()
    assert visible(log) == [b"1"]
    producer.tpc_begin(producer.xid(2, "g", "b"))  # the conflict has ended the first one
    producer.tpc_rollback()


def test_an_id_can_be_used_again_after_the_decision(log, producer):
    xid = producer.xid(1, "g", "b")
    for value in ("1", "2"):
        producer.tpc_begin(xid)
        producer.produce("t", value)
        producer.tpc_prepare()
        producer.tpc_commit(None)
    assert visible(log) == [b"1", b"2"]


def test_an_id_that_is_prepared_cannot_be_begun(producer, other):
    xid = producer.xid(1, "g", "b")
    producer.tpc_begin(xid)
    producer.produce("t", "1")
    producer.tpc_prepare()
    with pytest.raises(IllegalState, match="is prepared"):
        other.tpc_begin(xid)
    other.tpc_begin(other.xid(1, "g", "other branch"))
    other.tpc_rollback()


def test_an_id_of_another_driver_is_understood(producer):
    psycopg = pytest.importorskip("psycopg")
    xid = psycopg.Xid.from_parts(1, "g", "b")
    producer.tpc_begin(xid)
    producer.tpc_prepare()
    assert producer.tpc_recover() == [(1, "g", "b")]
    producer.tpc_rollback()


def test_a_transaction_without_records_can_be_prepared(producer):
    producer.tpc_begin(producer.xid(1, "g", "b"))
    producer.tpc_prepare()
    producer.tpc_commit()


@pytest.mark.parametrize("bad", [None, 7, "g", b"1gb", (1, "g"), (1, "g", "b", "x"), (1, 2, 3)])
def test_a_value_that_is_not_an_id_is_rejected(producer, bad):
    with pytest.raises(ConfigError):
        producer.tpc_begin(bad)
    if bad is not None:
        with pytest.raises(ConfigError):
            producer.tpc_commit(bad)
    assert producer.transaction_state == "UNINITIALIZED"


def test_an_unknown_mode_begins_nothing(producer):
    with pytest.raises(ConfigError, match="mode"):
        producer.tpc_begin(producer.xid(1, "g", "b"), "sideways")
    producer.tpc_begin(producer.xid(1, "g", "b"))
    producer.tpc_rollback()


def test_calls_without_a_two_phase_transaction_are_rejected(producer):
    for call in (producer.tpc_prepare, producer.tpc_commit, producer.tpc_rollback):
        with pytest.raises(IllegalState, match="tpc_begin"):
            call()
    producer.init_transactions()
    producer.begin_transaction()
    for call in (producer.tpc_prepare, producer.tpc_commit, producer.tpc_rollback):
        with pytest.raises(IllegalState, match="tpc_begin"):
            call()
    with pytest.raises(IllegalState, match="open already"):
        producer.tpc_begin(producer.xid(1, "g", "b"))
    producer.abort_transaction()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prepared", [False, True])
def test_row_L08_a_two_phase_transaction_rejects_other_ends(log, producer, mode, prepared):
    xid = producer.xid(1, "g", "b")
    producer.tpc_begin(xid, mode)
    producer.produce("t", "1")
    if prepared:
        producer.tpc_prepare()
        with pytest.raises(IllegalState, match="prepared already"):
            producer.tpc_prepare()
    calls = [
        producer.commit_transaction, producer.abort_transaction, producer.prepare_transaction,
        lambda: producer.tpc_begin(producer.xid(2, "g", "b")), lambda: producer.tpc_commit(xid),
        lambda: producer.tpc_rollback(xid),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(IllegalState):
            call()
    producer.tpc_commit()
    assert visible(log) == [b"1"]


def test_an_unknown_id_is_neither_committed_nor_rolled_back(producer):
    for call in (producer.tpc_commit, producer.tpc_rollback):
        with pytest.raises(UnknownToken, match="no prepared transaction"):
            call(producer.xid(1, "never", ""))


def test_a_producer_without_a_transactional_id_cannot_begin(log):
    with log.producer() as plain:
        with pytest.raises(IllegalState, match=r"transactional\.id"):
            plain.tpc_begin(plain.xid(1, "g", "b"))


def test_a_closed_producer_rejects_the_calls(log):
    producer = log.producer(transactional_id="p")
    producer.close()
    for call in (producer.tpc_prepare, producer.tpc_commit, producer.tpc_recover):
        with pytest.raises(IllegalState, match="closed"):
            call()


def test_a_fenced_producer_still_ends_what_it_has_prepared(log, producer):
    producer.tpc_begin(producer.xid(1, "g", "b"))
    producer.produce("t", "1")
    producer.tpc_prepare()
    with log.producer(transactional_id="p") as successor:
        successor.init_transactions(keep_prepared=True)
        with pytest.raises(PreparedTransactionPending):
            successor.tpc_begin(successor.xid(2, "g", "b"))
        producer.tpc_commit()
        assert visible(log) == [b"1"]
        successor.tpc_begin(successor.xid(2, "g", "b"))
        successor.tpc_rollback()


def test_other_prepared_transactions_are_not_listed(log, producer, other):
    other.init_transactions()
    other.begin_transaction()
    other.produce("t", "1")
    prepared = other.prepare_transaction(meta={"order": 7})
    assert producer.tpc_recover() == []
    log.resolve(prepared.token, Outcome.ABORT)


def test_a_named_producer_takes_part(log):
    with log.producer(name="till") as producer:
        producer.init_transactions()
        producer.tpc_begin(producer.xid(1, "g", "b"))
        producer.produce("t", "1", key="k", publishing_id=7)
        producer.tpc_prepare()
        producer.tpc_commit()
        assert visible(log) == [b"1"]
        assert log.last_publishing_id("till", "t", 0) == 7


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prepared", [False, True])
def test_row_L08_a_prepared_transaction_survives_its_process(path, mode, prepared):
    with eoslog.open(path) as log:
        log.create_topic("t")

    def work() -> int:
        with eoslog.open(path) as log:
            producer = log.producer(transactional_id="p")
            producer.tpc_begin(producer.xid(1, "g", "b"), mode)
            producer.produce("t", "1")
            producer.flush()
            if prepared:
                arm_failpoint("tpc.xid_prepared", "kill")
                producer.tpc_prepare()
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    assert ended(child(work)) == -signal.SIGKILL
    with eoslog.open(path) as log, log.producer(transactional_id="p") as producer:
        found = producer.tpc_recover()
        assert found == ([(1, "g", "b")] if prepared else [])
        for xid in found:
            producer.tpc_commit(xid)
        producer.init_transactions()
        assert visible(log) == ([b"1"] if prepared else [])
