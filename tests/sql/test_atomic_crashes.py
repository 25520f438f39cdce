"""`log.atomic` killed, suspended or cut off from its database.

The rows are those of the crash matrix of protocol D.
"""

from __future__ import annotations

import pytest

import eoslog
from eoslog import Outcome
from eoslog.errors import PreparedTransactionPending
from eoslog.sql import Database
from tests.sql.conftest import place_of
from tests.sql.databases import ASYNC_KINDS, KINDS, LOCK_TIMEOUT, Place
from tests.sql.processes.atomic import KILLED, STOPPED, Orders, start

pytestmark = [pytest.mark.process, pytest.mark.slow]

ABORTED, UNAVAILABLE = 10, 11


@pytest.fixture(scope="module")
def process():
    process = start()
    yield process
    process.stdin.close()
    process.wait(60)


@pytest.fixture(params=[*KINDS, *ASYNC_KINDS])
def place(request, tmp_path) -> Place:
    return place_of(request, tmp_path)


@pytest.fixture
def orders(process, place, path) -> Orders:
    place.run("create table placed (number integer)")
    with eoslog.open(path) as log:
        log.create_topic("orders", partitions=2)
    return Orders(process, path, place)


NEITHER = ["body", "prepare.flushed", "prepare.appended", "atomic.prepared", "atomic.outcome"]
BOTH = ["atomic.db_commit", "txn.flushed", "txn.decided", "txn.marked", "atomic.decided"]


def test_rows_1_2_3_a_death_before_the_database_commit_leaves_neither(orders):
    assert [orders.order(number, point) for number, point in enumerate(NEITHER)] == [KILLED] * 5
    assert orders.order(9) == 0
    assert orders.both() == [9]


def test_rows_8_10_11_N19_a_death_after_the_database_commit_leaves_both(orders):
    for number, point in enumerate(BOTH):
        assert orders.order(number, point) == KILLED
        assert orders.order(9) == 0
    assert orders.both() == [0, 1, 2, 3, 4, 9, 9, 9, 9, 9]


def test_a_death_at_every_statement_leaves_both_or_neither(orders):
    number = 0
    while orders.order(number, f"statement:{number + 1}") == KILLED:
        number += 1
    assert number > 10
    assert orders.order(number + 1) == 0
    assert set(orders.both()) >= {number, number + 1}


def test_row_4_a_suspended_worker_cannot_commit_after_the_tombstone(orders):
    assert orders.order(1, "atomic.prepared", "stop") == STOPPED
    worker = orders.pid
    if orders.place.postgresql:
        assert orders.order(2) == 0
        assert orders.resume(worker) == ABORTED
        assert orders.both() == [2]
    else:  # SQLite has one writer, and that is the worker
        assert orders.order(2) == UNAVAILABLE
        assert orders.resume(worker) == 0
        assert orders.both() == [1]


def test_row_4_an_open_commit_of_a_suspended_worker_gives_no_answer(orders):
    assert orders.order(1, "atomic.outcome", "stop") == STOPPED
    worker = orders.pid
    assert orders.order(2) == UNAVAILABLE  # the worker has the locks
    assert orders.resume(worker) == 0
    assert orders.order(3) == 0
    assert orders.both() == [1, 3]


def test_row_5_N19_a_suspended_worker_that_has_committed_counts_once(orders):
    assert orders.order(1, "atomic.db_commit", "stop") == STOPPED
    worker = orders.pid
    assert orders.order(2) == 0
    assert orders.both() == [1, 2]
    assert orders.resume(worker) == 0
    assert orders.both() == [1, 2]


def test_row_N19_a_late_resolver_leaves_no_tombstone_of_a_commit(orders):
    assert orders.order(1, "atomic.prepared", "stop") == STOPPED
    with eoslog.open(orders.path) as log, Database(orders.place.connect) as database:
        [prepared] = log.pending()
        assert orders.resume(orders.pid) == 0
        orders.place.run("delete from eoslog_outcome")  # as the next commits do
        assert database.resolve(prepared) is Outcome.COMMIT
        log.resolve(prepared.token, Outcome.COMMIT)
    assert orders.place.rows("select * from eoslog_outcome") == []
    assert orders.both() == [1]


def test_row_12_an_undecided_outcome_row_outlives_other_transactions(orders):
    assert orders.order(1, "atomic.db_commit") == KILLED
    for number in range(2, 5):
        assert orders.order(number, name="other") == 0  # each process deletes what it can
    assert len(orders.place.rows("select * from eoslog_outcome")) >= 1
    assert orders.order(5) == 0
    assert orders.both() == [1, 2, 3, 4, 5]


def test_row_13_a_plain_init_refuses_what_is_prepared(orders):
    assert orders.order(1, "atomic.db_commit") == KILLED
    with eoslog.open(orders.path) as log, log.producer(transactional_id="t") as producer:
        with pytest.raises(PreparedTransactionPending):
            producer.init_transactions()
    assert orders.order(2) == 0
    assert orders.both() == [1, 2]


@pytest.mark.parametrize(
    ("point", "code", "left"), [("atomic.outcome", UNAVAILABLE, []), ("atomic.db_commit", 0, [1])]
)
def test_row_7_a_crash_of_the_server_leaves_both_or_neither(
    process, server, path, point, code, left
):
    place = Place("postgresql", server.schema(LOCK_TIMEOUT))
    place.run("create table placed (number integer)")
    with eoslog.open(path) as log:
        log.create_topic("orders", partitions=2)
    orders = Orders(process, path, place)
    assert orders.order(1, point, "stop") == STOPPED
    worker = orders.pid
    server.stop("immediate")
    server.start()
    assert orders.resume(worker) == code
    assert orders.both() == left
    assert orders.order(2) == 0
    assert orders.both() == [*left, 2]


def test_a_server_that_is_down_leaves_the_transaction_prepared(process, server, path):
    place = Place("postgresql", server.schema(LOCK_TIMEOUT))
    place.run("create table placed (number integer)")
    with eoslog.open(path) as log:
        log.create_topic("orders", partitions=2)
    orders = Orders(process, path, place)
    assert orders.order(1, "atomic.outcome", "stop") == STOPPED
    worker = orders.pid
    server.stop("immediate")
    try:
        assert orders.resume(worker) == UNAVAILABLE
        assert orders.order(2) == UNAVAILABLE
        with eoslog.open(path) as log:
            assert [prepared.state for prepared in log.pending()] == ["PREPARED"]
    finally:
        server.start()
    assert orders.order(3) == 0
    assert orders.both() == [3]
