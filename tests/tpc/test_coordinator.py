"""`eoslog.tpc.Coordinator` in one process; deaths are in `test_kills.py`."""

from __future__ import annotations

import sqlite3
import threading

import pytest

import eoslog
from eoslog.coordinator.transactions.prepared import PreparedTransactions
from eoslog.errors import (
    ConfigError,
    DatabaseError,
    IllegalState,
    OutcomeConflict,
    PreparedTransactionPending,
    StorageError,
    TransactionAborted,
)
from eoslog.storage.fs.files import arm_failpoint, disarm_failpoints
from tests.sql.server import Server
from tests.tpc.banks import MONEY, connect, hanging, money, move, settled, visible

pytestmark = pytest.mark.slow


@pytest.fixture
def coordinator(log):
    with eoslog.tpc.Coordinator(log) as coordinator:
        yield coordinator


@pytest.fixture
def producer(log):
    with log.producer(transactional_id="mover") as producer:
        yield producer


@pytest.fixture(autouse=True)
def no_failpoints():
    yield
    disarm_failpoints()


def test_row_L05_a_move_between_two_databases_is_whole(
    coordinator, first, second, producer, banks, path
):
    with coordinator.transaction(first, second, producer) as transaction:
        move(first, second, producer, 5)
        assert transaction.token is None
    assert coordinator._log.outcome(transaction.token) is eoslog.Outcome.COMMIT
    assert settled(path, *banks) == [5]


@pytest.mark.parametrize("commit", [True, False])
def test_row_L05_each_step_in_a_database_follows_a_durable_one_in_the_log(
    coordinator, second, producer, banks, path, commit
):
    import psycopg

    steps: list[tuple[str, object, bool]] = []

    def note(step: str) -> None:
        clog, entry = coordinator._engine.transactions.prepared.index.find(transaction.token)
        steps.append((step, entry.commit, clog.is_durable(entry.offset)))

    class Noting(psycopg.Connection):
        def execute(self, query, *args, **options):
            if str(query).startswith("PREPARE"):
                note("prepare")
            return super().execute(query, *args, **options)

        def tpc_commit(self, xid=None):
            note("commit")
            super().tpc_commit(xid)

        def tpc_rollback(self, xid=None):
            note("roll back")
            super().tpc_rollback(xid)

    with Noting.connect(banks[0]) as first:
        transaction = coordinator.transaction(first, second, producer)
        if commit:
            with transaction:
                move(first, second, producer, 5)
        else:
            with pytest.raises(Exception, match="temporary"), transaction:
                move(first, second, producer, 5)
                second.execute("create temporary table scratch (i int)")
    assert steps == [
        ("prepare", None, True),
        ("commit", True, True) if commit else ("roll back", False, True),
    ]
    assert settled(path, *banks) == ([5] if commit else [])


def test_an_exception_in_the_block_rolls_back_all(
    coordinator, first, second, producer, banks, path
):
    with pytest.raises(ZeroDivisionError):
        with coordinator.transaction(first, second, producer):
            move(first, second, producer, 5)
            1 / 0
    assert settled(path, *banks) == []


def test_row_L05_a_resource_that_cannot_prepare_aborts_all(
    coordinator, first, second, producer, banks, path
):
    with pytest.raises(Exception, match="temporary"):
        with coordinator.transaction(producer, first, second):
            move(first, second, producer, 5)
            second.execute("create temporary table scratch (i int)")
    assert settled(path, *banks) == []
    with coordinator.transaction(first, second, producer):
        move(first, second, producer, 7)
    assert settled(path, *banks) == [7]


def test_a_close_inside_the_block_is_rejected(coordinator, first, second, producer, banks, path):
    with pytest.raises(IllegalState, match="the program closed the connection"):
        with coordinator.transaction(first, second, producer):
            second.execute("update account set money = money + 0")
            second.close()
    assert settled(path, *banks) == []


def test_a_commit_inside_the_block_is_rejected(coordinator, first, second, producer, banks, path):
    with pytest.raises(IllegalState, match="the program ended the transaction"):
        with coordinator.transaction(first, second, producer):
            move(first, second, producer, 5)
            second.rollback()
    assert settled(path, *banks) == []


def test_a_failed_statement_whose_error_was_caught_aborts_all(
    coordinator, first, second, producer, banks, path
):
    with pytest.raises(IllegalState, match="an earlier statement"):
        with coordinator.transaction(first, second, producer):
            move(first, second, producer, 5)
            with pytest.raises(Exception, match="no_such_table"):
                first.execute("select * from no_such_table")
    assert settled(path, *banks) == []


def test_autocommit_connections_take_part(coordinator, banks, producer, path):
    with connect(banks[0], autocommit=True) as first, connect(banks[1], autocommit=True) as second:
        with coordinator.transaction(first, second, producer):
            move(first, second, producer, 5)
        with pytest.raises(ZeroDivisionError):
            with coordinator.transaction(first, second, producer):
                move(first, second, producer, 7)
                1 / 0
    assert settled(path, *banks) == [5]


def test_the_token_names_the_transaction_in_the_database(
    coordinator, first, second, producer, banks, log
):
    arm_failpoint("tpc.prepare", "interrupt", 3)
    with pytest.raises(KeyboardInterrupt):
        with coordinator.transaction(first, second, producer) as transaction:
            move(first, second, producer, 5)
            with pytest.raises(IllegalState):
                transaction.__enter__()
    assert transaction.token.startswith(f"{log.cluster_id}:")
    assert log.outcome(transaction.token) is eoslog.Outcome.ABORT
    assert hanging(*banks) == []


def test_max_prepared_transactions_of_0_is_reported_before_anything_begins(log, producer):
    server = Server()
    try:
        server.start()
        with connect(server.dsn) as connection, eoslog.tpc.Coordinator(log) as coordinator:
            with pytest.raises(ConfigError, match="max_prepared_transactions=0"):
                with coordinator.transaction(producer, connection):
                    pytest.fail("the block must not run")
            assert connection.info.transaction_status == 0
        assert producer.transaction_state == "UNINITIALIZED"
        assert log.pending() == []
    finally:
        server.remove()


def test_two_logs_with_one_database_leave_each_other_alone(
    coordinator, first, second, banks, tmp_path
):
    arm_failpoint("tpc.decided", "interrupt")
    with pytest.raises(KeyboardInterrupt):
        with coordinator.transaction(first, second):
            first.execute("update account set money = 1")
    [one, two] = hanging(*banks)
    with eoslog.open(tmp_path / "other") as other, eoslog.tpc.Coordinator(other) as stranger:
        with connect(banks[0]) as third, connect(banks[1]) as fourth:
            assert stranger.recover(third, fourth, older_than=0) == {}
            assert hanging(*banks) == [one, two]
            with stranger.transaction(fourth):
                fourth.execute("create table elsewhere (i int)")
            assert hanging(*banks) == [one, two]
    assert list(coordinator.recover(first, second).values()) == [eoslog.Outcome.COMMIT]
    assert hanging(*banks) == []
    assert money(banks[0]) == 1
    second.execute("drop table elsewhere")
    second.commit()


def test_names_that_other_programs_have_prepared_stay(coordinator, log, first, banks):
    for gid in ("order-7", f"eoslog/{log.cluster_id}:x/0", f"eoslog/{log.cluster_id}:1:0:2"):
        first.execute("select 1")
        first.execute(f"prepare transaction '{gid}'")
    assert coordinator.recover(first, older_than=0) == {}
    assert len(hanging(*banks)) == 3


def test_an_unknown_token_was_not_committed(coordinator, log, first, banks):
    """Because a commit is kept until all participants have it."""
    token = f"{log.cluster_id}:999:0:0"
    first.execute("update account set money = 1")
    first.execute(f"prepare transaction 'eoslog/{token}/0'")
    assert coordinator.recover(first) == {token: eoslog.Outcome.ABORT}
    assert hanging(*banks) == []
    assert money(banks[0]) == MONEY


def test_a_commit_is_kept_until_all_participants_have_it(
    coordinator, log, first, second, banks, path
):
    arm_failpoint("tpc.decided", "interrupt")
    with pytest.raises(KeyboardInterrupt):
        with coordinator.transaction(first, second) as transaction:
            first.execute("update account set money = 1")
            second.execute("update account set money = 2")
    prepared: PreparedTransactions = coordinator._engine.transactions.prepared
    prepared._retention_ms = 0
    prepared.expire()
    assert coordinator.recover(first) == {transaction.token: eoslog.Outcome.COMMIT}
    prepared.expire()
    assert coordinator.recover(second) == {transaction.token: eoslog.Outcome.COMMIT}
    assert (money(banks[0]), money(banks[1])) == (1, 2)
    assert coordinator._held() == []
    prepared.expire()
    assert log.outcome(transaction.token) is None


def test_a_database_that_is_down_commits_at_the_next_recovery(
    coordinator, first, second, producer, banks, path, caplog
):
    original = coordinator._log.resolve

    def resolve(token, outcome):
        original(token, outcome)
        second.close()

    coordinator._log.resolve = resolve
    try:
        with coordinator.transaction(first, second, producer):
            move(first, second, producer, 5)
    finally:
        del coordinator._log.resolve
    assert "committed, but not in" in caplog.text
    assert visible(path) == [5]
    assert len(hanging(*banks)) == 1
    with connect(banks[1]) as again:
        assert list(coordinator.recover(again).values()) == [eoslog.Outcome.COMMIT]
    assert settled(path, *banks) == [5]


def test_a_sweep_that_aborts_first_wins(coordinator, first, second, producer, banks, path):
    original = coordinator._record

    def record(participants):
        token = original(participants)
        coordinator._log.resolve(token, eoslog.Outcome.ABORT)
        return token

    coordinator._record = record
    with pytest.raises(TransactionAborted, match="repeat the work"):
        with coordinator.transaction(first, second, producer):
            move(first, second, producer, 5)
    assert settled(path, *banks) == []


def test_a_running_transaction_of_this_process_is_left_alone(
    coordinator, log, first, second, producer, banks, path
):
    original = coordinator._record

    def record(participants):
        token = original(participants)
        with connect(banks[0]) as third, eoslog.tpc.Coordinator(log) as other:
            assert other.recover(third) == {}
        return token

    coordinator._record = record
    with coordinator.transaction(first, second, producer):
        move(first, second, producer, 5)
    assert settled(path, *banks) == [5]


def test_threads_commit_their_own_transactions(coordinator, banks, log, path):
    def work(number: int) -> None:
        with (
            connect(banks[0]) as first,
            connect(banks[1]) as second,
            log.producer(transactional_id=f"mover-{number}") as producer,
        ):
            for _ in range(4):
                with coordinator.transaction(first, second, producer):
                    move(first, second, producer, 1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert settled(path, *banks) == [1] * 16


def test_a_producer_of_another_log_takes_part(coordinator, first, banks, tmp_path, path):
    other_path = str(tmp_path / "other")
    with eoslog.open(other_path) as other, other.producer(transactional_id="p") as producer:
        other.create_topic("moves")
        for amount in (3, 4):
            with coordinator.transaction(first, producer):
                first.execute("update account set money = money - %s", (amount,))
                producer.produce("moves", f"{amount}")
        arm_failpoint("tpc.decided", "interrupt")
        with pytest.raises(KeyboardInterrupt):
            with coordinator.transaction(first, producer):
                first.execute("update account set money = money - 5")
                producer.produce("moves", "5")
        assert visible(other_path) == [3, 4]
        coordinator.recover(first, producer)
        assert visible(other_path) == [3, 4, 5]
    assert money(banks[0]) == MONEY - 12
    assert coordinator._held() == []


def test_readers_of_a_dead_transaction_are_freed_by_any_coordinator(
    coordinator, first, second, producer, log, banks, path, monkeypatch
):
    arm_failpoint("tpc.decided", "interrupt")
    with pytest.raises(KeyboardInterrupt):
        with coordinator.transaction(first, second, producer):
            move(first, second, producer, 5)
    [prepared] = log.pending()
    assert coordinator._answer(prepared) is eoslog.Outcome.COMMIT
    coordinator.recover(first, second)
    assert settled(path, *banks) == [5]


def test_the_outcome_of_a_part_that_was_decided_by_hand_conflicts(
    coordinator, log, first, producer, banks
):
    original = coordinator._log.resolve

    def resolve(token, outcome):
        [part] = [one for one in log.pending() if one.token != token]
        original(part.token, eoslog.Outcome.ABORT)
        original(token, outcome)

    coordinator._log.resolve = resolve
    with pytest.raises(OutcomeConflict):
        with coordinator.transaction(first, producer):
            first.execute("update account set money = 1")
            producer.produce("moves", "5")
    del coordinator._log.resolve
    assert money(banks[0]) == 1  # the others follow the decision all the same
    assert hanging(*banks) == []


def test_a_log_that_fails_at_the_decision_leaves_the_parts_to_a_recovery(
    coordinator, first, second, producer, banks, path
):
    def resolve(token, outcome):
        raise StorageError(5, "Input/output error", "x")

    coordinator._log.resolve = resolve
    with pytest.raises(StorageError):
        with coordinator.transaction(first, second, producer):
            move(first, second, producer, 5)
    assert len(hanging(*banks)) == 2
    del coordinator._log.resolve
    assert set(coordinator.recover(first, second).values()) == {eoslog.Outcome.ABORT}
    assert settled(path, *banks) == []


def test_a_transaction_of_another_user_is_reported(coordinator, first, banks, server):
    arm_failpoint("tpc.decided", "interrupt")
    with pytest.raises(KeyboardInterrupt):
        with coordinator.transaction(first):
            first.execute("update account set money = 1")
    with connect(server.dsn, autocommit=True) as admin:
        admin.execute("drop role if exists guest")
        admin.execute("create role guest login")
    with connect(banks[0].replace("user=eoslog", "user=guest")) as guest:
        with pytest.raises(DatabaseError, match="prepared by another user"):
            coordinator.recover(guest)
    assert len(coordinator.recover(first)) == 1


@pytest.mark.parametrize("what", ["nothing", "text", "sqlite", "plain producer", "twice", "closed"])
def test_a_resource_that_cannot_take_part_is_rejected(coordinator, log, first, banks, what):
    closed = connect(banks[0])
    closed.close()
    with log.producer() as plain:
        resources = {
            "nothing": (), "text": ("bank",), "sqlite": (sqlite3.connect(":memory:"),),
            "plain producer": (plain,), "twice": (first, first), "closed": (closed,),
        }  # fmt: skip
        with pytest.raises(ConfigError):
            with coordinator.transaction(*resources[what]):
                pass


def test_a_resource_that_is_in_a_transaction_is_rejected(coordinator, first, second, producer):
    first.execute("select 1")
    with pytest.raises(IllegalState, match="open transaction"):
        with coordinator.transaction(second, first):
            pass
    first.rollback()
    producer.init_transactions()
    producer.begin_transaction()
    with pytest.raises(IllegalState):
        with coordinator.transaction(first, producer):
            pass
    assert first.info.transaction_status == 0
    producer.abort_transaction()


def test_a_producer_with_a_prepared_transaction_is_rejected(coordinator, log, first):
    with log.producer(transactional_id="busy") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("moves", "1")
        producer.prepare_transaction()
    with log.producer(transactional_id="busy") as producer:
        with pytest.raises(PreparedTransactionPending):
            with coordinator.transaction(first, producer):
                pass
    assert first.info.transaction_status == 0


def test_a_closed_coordinator_rejects_calls(log, first):
    coordinator = eoslog.tpc.Coordinator(log)
    coordinator.close()
    coordinator.close()
    for call in (coordinator.transaction, coordinator.recover):
        with pytest.raises(IllegalState, match="closed"):
            call(first)


def test_a_log_whose_decisions_power_loss_can_take_is_rejected(tmp_path):
    with eoslog.open(tmp_path / "loose", durability="os") as loose:
        with pytest.raises(ConfigError, match="durability='os'"):
            eoslog.tpc.Coordinator(loose)


@pytest.mark.parametrize("what", ["producer of durability os", "named producer"])
def test_a_producer_that_cannot_prepare_durably_is_rejected(coordinator, log, tmp_path, what):
    durability = "os" if what == "producer of durability os" else "strict"
    settings = {"name": "n"} if what == "named producer" else {"transactional_id": "q"}
    with eoslog.open(tmp_path / "other", durability=durability) as other:
        with other.producer(**settings) as made:
            match = "with a name|durability='os'"
            with pytest.raises(ConfigError, match=match):
                coordinator.transaction(made)
            with pytest.raises(ConfigError, match=match):
                eoslog.tpc.DataManager(made)


@pytest.mark.parametrize("kind", ["connection", "session", "text"])
def test_a_resource_of_another_type_is_named_in_the_error(coordinator, kind):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy.orm import Session

    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection, Session(engine) as session:
        resource = {"connection": connection, "session": session, "text": "bank"}[kind]
        for call in (coordinator.transaction, coordinator.recover):
            with pytest.raises(ConfigError, match=r"^resources: expected a connection of psycopg"):
                call(resource)


def test_a_coordinator_needs_an_open_log_that_it_can_write(path, log):
    with pytest.raises(ConfigError, match="expected an open log"):
        eoslog.tpc.Coordinator(path)
    with eoslog.open(path, read_only=True) as reader:
        with pytest.raises(Exception, match="read"):
            eoslog.tpc.Coordinator(reader)
