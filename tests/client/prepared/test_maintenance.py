"""Maintenance leaves each prepared transaction to its token."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog import Outcome, TopicPartition, errors
from eoslog.engine.inline_limit import InlineLimit
from tests.client.prepared.helpers import committed
from tests.waiting import until

ORDERS = TopicPartition("orders", 0)
KINDS = ("inline", "staged", "moved", "parked")
"""`moved` was inline and is staged now; `parked` is inline."""
BOTH = pytest.mark.parametrize("outcome", [Outcome.COMMIT, Outcome.ABORT])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[eoslog.Log]:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("orders", config={"segment.bytes": 4096})
        log.create_topic("paid", 2)
        yield log


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def prepare(log: eoslog.Log, kind: str, name: str = "till") -> str:
    """Prepare a transaction with records in two topics; return its token."""
    producer = log.producer(transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction(mode="staged" if kind == "staged" else "inline")
    for number in range(3):
        producer.produce("orders", f"{name} {number}", key="k", partition=0)
    producer.produce("paid", name, partition=1)
    producer.send_offsets_to_transaction({TopicPartition("paid", 0): 7}, f"of {name}")
    token = producer.prepare_transaction(meta={"order": 7}).token
    producer.close()
    if kind == "moved":
        assert InlineLimit(log._engine).set_aside(token)
    if kind == "parked":
        transactions = log._engine.transactions.prepared
        _, entry = transactions.index.find(token)
        assert transactions.note_check(token, entry, 15, 0, parked=True)
    return token


def plain(log: eoslog.Log, topic: str, *values: str) -> None:
    with log.producer() as producer:
        producer.produce_many(topic, list(values), partition=0)


def decides(log: eoslog.Log, token: str, outcome: Outcome, name: str = "till") -> None:
    """Decide the transaction, and check what readers and its group see."""
    assert log.outcome(token) is Outcome.UNKNOWN
    assert [(state.token, state.meta) for state in log.pending()] == [(token, {"order": 7})]
    log.resolve(token, outcome)
    wanted = [f"{name} {number}".encode() for number in range(3)]
    found = [value for value in committed(log, "orders") if value.startswith(name.encode())]
    assert found == (wanted if outcome is Outcome.COMMIT else [])
    paid = [value for value in committed(log, "paid") if value == name.encode()]
    assert paid == ([name.encode()] if outcome is Outcome.COMMIT else [])
    offsets = {}
    if f"of {name}" in log.groups():
        offsets = log.committed(f"of {name}")
    assert [found.offset for found in offsets.values()] == (
        [7] if outcome is Outcome.COMMIT else []
    )


@BOTH
def test_a_backup_has_the_prepared_transaction_and_its_records(log, kind, outcome, tmp_path):
    token = prepare(log, kind)
    report = log.backup(tmp_path / "copy")
    assert list(report.problems) == []
    log.resolve(token, Outcome.COMMIT if outcome is Outcome.ABORT else Outcome.ABORT)
    with eoslog.open(tmp_path / "copy", create=False) as copy:
        decides(copy, token, outcome)


def test_a_backup_of_a_decided_transaction_has_its_outcome(log, kind, tmp_path):
    token = prepare(log, kind)
    log.resolve(token, Outcome.COMMIT)
    log.backup(tmp_path / "copy")
    with eoslog.open(tmp_path / "copy", create=False) as copy:
        assert copy.outcome(token) is Outcome.COMMIT
        with pytest.raises(errors.OutcomeConflict):
            copy.resolve(token, Outcome.ABORT)
        assert len(committed(copy, "orders")) == 3


def test_check_and_repair_change_nothing_of_a_prepared_transaction(log, kind):
    token = prepare(log, kind)
    assert log.check(full=True).ok
    log.close()
    for mode in ("report", "cut", "as-kafka"):
        report = eoslog.repair(log.path, mode)
        assert report.ok, report
    with eoslog.open(log.path) as again:
        decides(again, token, Outcome.COMMIT)


def test_check_reports_damage_in_the_payload_of_a_staged_transaction(log):
    token = prepare(log, "staged")
    log.close()
    (path,) = Path(log.path).glob("__staged_transactions-0/*.log")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"till 1", b"till X"))
    with eoslog.open(log.path) as again:
        assert [problem.path for problem in again.check().problems] == [str(path)]
        with pytest.raises(errors.CorruptRecord):
            again.resolve(token, Outcome.COMMIT)
        assert again.outcome(token) is Outcome.UNKNOWN
        again.resolve(token, Outcome.ABORT)
        assert committed(again, "orders") == []


@BOTH
@pytest.mark.parametrize("mode", ["cut", "skip"])
def test_repair_of_another_partition_leaves_a_prepared_transaction(log, kind, outcome, mode):
    token = prepare(log, kind)
    plain(log, "paid", "whole", "damaged", "after")
    log.close()
    (path,) = Path(log.path).glob("paid-0/*.log")
    path.write_bytes(path.read_bytes().replace(b"damaged", b"DAMAGED"))
    eoslog.repair(log.path, mode)
    with eoslog.open(log.path) as again:
        decides(again, token, outcome)


@pytest.mark.parametrize("mode", ["cut", "skip"])
@pytest.mark.parametrize(
    ("kind", "topic"), [("inline", "orders"), ("staged", "__staged_transactions")]
)
def test_a_commit_whose_records_a_repair_removed_is_refused(log, kind, topic, mode):
    token = prepare(log, kind)
    log.close()
    (path,) = Path(log.path).glob(f"{topic}-0/*.log")
    path.write_bytes(path.read_bytes().replace(b"till 2", b"till X"))
    report = eoslog.repair(log.path, mode)
    assert not report.ok
    with eoslog.open(log.path) as again:
        assert again.outcome(token) is Outcome.UNKNOWN
        with pytest.raises(errors.EoslogError):
            again.resolve(token, Outcome.COMMIT)
        assert again.outcome(token) is Outcome.UNKNOWN
        again.resolve(token, Outcome.ABORT)
        assert committed(again, "orders") == committed(again, "paid") == []


@BOTH
def test_a_topic_that_is_deleted_takes_its_part_of_a_prepared_transaction(log, kind, outcome):
    token = prepare(log, kind)
    log.delete_topic("orders")
    log.create_topic("orders")
    plain(log, "orders", "new")
    assert committed(log, "orders") == [b"new"]
    log.resolve(token, outcome)
    assert committed(log, "orders") == [b"new"]
    assert committed(log, "paid") == ([b"till"] if outcome is Outcome.COMMIT else [])


@BOTH
def test_delete_records_below_a_prepared_transaction_leaves_it(log, kind, outcome):
    plain(log, "orders", "a", "b")
    token = prepare(log, kind)
    log.delete_records({ORDERS: 2})
    decides(log, token, outcome)


@pytest.mark.parametrize("later", ["inline", "moved"])
def test_delete_records_takes_what_it_covers_of_an_inline_transaction(log, later):
    """As in Kafka, the call deletes records above the last stable offset."""
    token = prepare(log, "inline")
    log.delete_records({ORDERS: 3})
    plain(log, "orders", "after")
    (state,) = log.pending()
    assert [record.value for record in state.records] == [b"till"]
    if later == "moved":
        assert InlineLimit(log._engine).set_aside(token)
        assert committed(log, "orders") == [b"after"]
        (state,) = log.pending()
        assert [record.value for record in state.records] == [b"till"]
    log.resolve(token, Outcome.COMMIT)
    assert (committed(log, "orders"), committed(log, "paid")) == ([b"after"], [b"till"])


@pytest.mark.parametrize("kind", ["inline", "staged"])
def test_delete_records_takes_nothing_of_what_is_staged(log, kind):
    token = prepare(log, kind)
    if kind == "inline":
        assert InlineLimit(log._engine).set_aside(token)
    log.delete_records({ORDERS: -1})
    decides(log, token, Outcome.COMMIT)


@pytest.mark.parametrize("kind", ["inline", "staged", "moved"])
def test_the_records_of_a_deleted_topic_are_no_longer_listed(log, kind):
    prepare(log, kind)
    log.delete_topic("paid")
    (state,) = log.pending()
    listed = [record.value for record in state.records if record.topic == "orders"]
    assert listed == [b"till 0", b"till 1", b"till 2"]


def test_create_partitions_leaves_a_prepared_transaction(log, kind):
    token = prepare(log, kind)
    log.create_partitions("orders", 5)
    log.create_partitions("paid", 4)
    decides(log, token, Outcome.COMMIT)


@pytest.mark.parametrize(
    ("key", "value"), [("message.timestamp.before.max.ms", 0), ("cleanup.policy", "compact")]
)
def test_a_topic_takes_what_it_accepted_before_it_became_stricter(log, kind, key, value):
    token = prepare(log, kind)  # with a record without a key
    log.alter_topic("paid", {key: value})
    decides(log, token, Outcome.COMMIT)


@BOTH
def test_compaction_leaves_the_records_of_a_prepared_transaction(log, kind, outcome):
    for _ in range(3):
        log.resolve(prepare(log, kind, "other"), Outcome.COMMIT)
    log._engine.partition("orders", 0).roll()
    token = prepare(log, kind)
    log.alter_topic("orders", {"cleanup.policy": "compact"})
    cleaned: set[str] = set()

    def are_cleaned() -> bool:
        """Clean after one more transaction: a cleaner may leave out what is in use."""
        with log.producer(transactional_id="other") as producer:
            producer.init_transactions()
            with producer.transaction() as tx:
                tx.produce("paid", "more", partition=1)
        cleaned.update(tp.topic for tp, size in log.clean(roll=True).items() if size)
        return cleaned >= {"__transaction_state", "orders"}

    until(are_cleaned)
    log.clean(roll=True)
    decides_compacted(log, token, outcome)


def decides_compacted(log: eoslog.Log, token: str, outcome: Outcome) -> None:
    """As `decides`, where only the last record of a key may be left."""
    assert [state.token for state in log.pending()] == [token]
    log.resolve(token, outcome)
    last = committed(log, "orders")[-1]
    assert last == (b"till 2" if outcome is Outcome.COMMIT else b"other 2")


def test_retention_keeps_what_a_prepared_transaction_still_needs(log, kind):
    plain(log, "orders", *("x" * 1000 for _ in range(20)))
    token = prepare(log, kind)
    plain(log, "orders", *("x" * 1000 for _ in range(20)))
    log.alter_topic("orders", {"retention.bytes": "1"})
    segments = log.stats()["partitions"]["orders-0"]["segments"]
    log.clean(roll=True)
    assert log.stats()["partitions"]["orders-0"]["segments"] < segments
    with eoslog.open(log.path, read_only=True) as reader:
        assert [state.token for state in reader.pending()] == [token]
    log.resolve(token, Outcome.COMMIT)
    values = committed(log, "orders")
    assert [value for value in values if value.startswith(b"till")] == [
        b"till 0", b"till 1", b"till 2",
    ]  # fmt: skip


def test_a_copied_directory_that_was_killed_has_its_prepared_transactions(log, kind, tmp_path):
    token = prepare(log, kind)
    shutil.copytree(log.path, tmp_path / "copy")
    with eoslog.open(tmp_path / "copy") as copy:
        decides(copy, token, Outcome.COMMIT)
