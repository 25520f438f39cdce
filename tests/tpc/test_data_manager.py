"""`eoslog.tpc.DataManager` in transactions of the real package `transaction`."""

from __future__ import annotations

import os
import signal

import pytest

import eoslog
from eoslog import Outcome
from eoslog.errors import ConfigError, IllegalState, OutcomeConflict, PreparedTransactionPending
from eoslog.storage.fs.files import arm_failpoint, disarm_failpoints
from tests.sql.processes.sink import child, ended

transaction = pytest.importorskip("transaction")


class Voter:
    """Another resource, whose vote the test sets."""

    def __init__(self, manager, key: str, vote: bool = True) -> None:
        self.transaction_manager = manager
        self._key = key
        self._vote = vote
        self.calls: list[str] = []

    def sortKey(self) -> str:
        return self._key

    def tpc_vote(self, current) -> None:
        self.calls.append("tpc_vote")
        if not self._vote:
            raise RuntimeError("no")

    def __getattr__(self, name: str):
        if name not in ("abort", "tpc_begin", "commit", "tpc_finish", "tpc_abort"):
            raise AttributeError(name)
        return lambda current: self.calls.append(name)


@pytest.fixture
def log(path):
    with eoslog.open(path) as log:
        log.create_topic("t")
        yield log
    disarm_failpoints()


@pytest.fixture
def producer(log):
    with log.producer(transactional_id="p") as producer:
        yield producer


@pytest.fixture
def manager():
    return transaction.TransactionManager(explicit=True)


def visible(log) -> list[bytes]:
    return [record.value for record in log.read("t")]


def test_row_L08_a_transaction_commits_the_records(log, producer, manager):
    for value in ("1", "2"):
        with manager as current:
            current.join(eoslog.tpc.DataManager(producer))
            producer.produce("t", value)
            assert b"2" not in visible(log)
    assert visible(log) == [b"1", b"2"]
    assert log.pending() == []


def test_an_exception_in_the_block_drops_the_records(log, producer, manager):
    with pytest.raises(ZeroDivisionError):
        with manager as current:
            current.join(eoslog.tpc.DataManager(producer))
            producer.produce("t", "1")
            1 / 0
    assert visible(log) == []
    assert producer.transaction_state == "READY"


@pytest.mark.parametrize("key", ["a", "~"])
def test_row_L03_a_vote_against_drops_the_records(log, producer, manager, key):
    voter = Voter(manager, key, vote=False)
    with pytest.raises(RuntimeError, match="no"):
        with manager as current:
            current.join(eoslog.tpc.DataManager(producer))
            current.join(voter)
            producer.produce("t", "1")
    assert visible(log) == []
    assert log.pending() == []
    assert "tpc_abort" in voter.calls
    manager.abort()
    with manager as current:
        current.join(eoslog.tpc.DataManager(producer))
        producer.produce("t", "2")
    assert visible(log) == [b"2"]


def test_row_L08_records_that_cannot_be_prepared_abort_the_others(log, producer, manager):
    voter = Voter(manager, "a")
    with pytest.raises(eoslog.EoslogError):
        with manager as current:
            current.join(eoslog.tpc.DataManager(producer))
            current.join(voter)
            arm_failpoint("prepare.flushed", "EIO")
            producer.produce("t", "1")
    assert "tpc_finish" not in voter.calls
    assert visible(log) == []


def test_the_records_are_prepared_when_the_vote_returns(log, producer, manager):
    class Looker(Voter):
        def tpc_vote(self, current) -> None:
            self.found = log.pending(resolver="shop")

    looker = Looker(manager, "~")
    with manager as current:
        current.join(eoslog.tpc.DataManager(producer, resolver="shop", meta={"order": 7}))
        current.join(looker)
        producer.produce("t", "1")
    assert [prepared.meta for prepared in looker.found] == [{"order": 7}]
    assert visible(log) == [b"1"]


def test_two_producers_take_part(log, producer, manager):
    with log.producer(transactional_id="q") as other:
        with manager as current:
            current.join(eoslog.tpc.DataManager(producer))
            current.join(eoslog.tpc.DataManager(other))
            producer.produce("t", "1")
            other.produce("t", "2")
    assert sorted(visible(log)) == [b"1", b"2"]


def test_a_decision_of_another_process_conflicts(log, producer, manager):
    class Decider(Voter):
        def tpc_vote(self, current) -> None:
            [prepared] = log.pending()
            log.resolve(prepared.token, Outcome.ABORT)

    with pytest.raises(OutcomeConflict):
        with manager as current:
            current.join(eoslog.tpc.DataManager(producer))
            current.join(Decider(manager, "~"))
            producer.produce("t", "1")
    assert visible(log) == []


def test_an_interrupted_finish_leaves_the_records_prepared(log, producer, manager):
    arm_failpoint("tpc.voted", "interrupt")
    with pytest.raises(KeyboardInterrupt):
        with manager as current:
            current.join(eoslog.tpc.DataManager(producer))
            producer.produce("t", "1")
    assert visible(log) == []
    assert log.pending() == []


def test_a_data_manager_is_used_once(log, producer, manager):
    one = eoslog.tpc.DataManager(producer)
    assert isinstance(one.sortKey(), str)
    with pytest.raises(IllegalState, match="tpc_vote was not called"):
        one.tpc_finish(None)
    with manager as current:
        current.join(one)
        producer.produce("t", "1")
    one.tpc_abort(None)
    one.abort(None)
    for call in (one.tpc_begin, one.commit, one.tpc_vote, one.tpc_finish):
        with pytest.raises(IllegalState, match="has ended"):
            call(None)
    assert visible(log) == [b"1"]


def test_a_data_manager_needs_a_free_producer_with_an_id(log, producer):
    for wrong in (None, "p", log):
        with pytest.raises(ConfigError, match=r"transactional\.id"):
            eoslog.tpc.DataManager(wrong)
    with log.producer() as plain:
        with pytest.raises(ConfigError, match=r"transactional\.id"):
            eoslog.tpc.DataManager(plain)
    eoslog.tpc.DataManager(producer)
    with pytest.raises(IllegalState, match="open already"):
        eoslog.tpc.DataManager(producer)
    producer.produce("t", "1")
    producer.prepare_transaction()
    with pytest.raises(PreparedTransactionPending):
        eoslog.tpc.DataManager(producer)
    producer.abort_transaction()


@pytest.mark.process
@pytest.mark.slow
def test_row_L08_records_of_a_vote_survive_the_process(path, log, manager):
    def work() -> int:
        with eoslog.open(path) as mine, mine.producer(transactional_id="dead") as producer:
            arm_failpoint("tpc.voted", "kill")
            with manager as current:
                current.join(eoslog.tpc.DataManager(producer, resolver="shop"))
                producer.produce("t", "1")
        return os.getpid()

    assert ended(child(work)) == -signal.SIGKILL
    [prepared] = log.pending(resolver="shop")
    log.resolve(prepared.token, Outcome.COMMIT)
    assert visible(log) == [b"1"]
