"""Rows F: the coordinators and their internal topics."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import TopicPartition, _core
from eoslog.errors import EoslogError, KafkaError
from tests.rows.tools import put, reader, transact, transactional, values

T0 = TopicPartition("t", 0)


def test_F01_the_coordinator_gives_ids_and_ends_transactions(log: Any, engine: Any) -> None:
    pid, epoch, outcome = engine.transactions.init_producer_id("a", 60_000)
    assert pid >= 0 and epoch >= 0 and outcome is None
    (row,) = engine.transactions.describe_transactions(["a"])
    assert (row.transactional_id, row.producer_id, row.producer_epoch) == ("a", pid, epoch)


def test_F02_the_transaction_log_tells_the_story(log: Any, engine: Any, directory: Path) -> None:
    with transactional(log) as producer:
        transact(producer, "a")
    internal = engine.transaction_partition("tx")
    shown = eoslog.inspect(internal.path)
    records = [
        record
        for segment in shown["segments"]
        for batch in segment["batches"]
        for record in batch["records"]
    ]
    states = [bytes.fromhex(r["value"])[2 + 8 + 2 + 4] for r in records]
    story = [s for i, s in enumerate(states) if not i or s != states[i - 1]]
    assert story == [0, 1, 2, 4]  # Empty, Ongoing, PrepareCommit, CompleteCommit


@pytest.mark.parametrize(
    "topic", ["__transaction_state", "__consumer_offsets", "__cluster_metadata"]
)
def test_F03_users_cannot_write_internal_topics(log: Any, topic: str) -> None:
    with log.producer() as producer, pytest.raises(EoslogError):
        producer.produce(topic, "x", partition=0)
        producer.flush()


def test_F05_one_place_says_which_shard_has_an_id(log: Any, engine: Any) -> None:
    assert engine.transaction_partition("tx-1").partition == 20
    assert engine.group_partition("my-group").partition == 12


@pytest.mark.parametrize(
    ("name", "shard"),
    [
        ("my-txn", 45),
        ("tx-1", 20),
        ("payments-0", 22),
        ("transactional-id", 31),
        ("foo", 24),
        ("group", 47),
        ("my-group", 12),
    ],
)
def test_F06_shards_are_those_of_javas_hash(name: str, shard: int) -> None:
    assert abs(_core.java_hash(name)) % 50 == shard


def test_F08_the_steps_of_a_transaction_are_traced_in_their_order(log: Any) -> None:
    events: list[dict[str, Any]] = []
    log.trace(events.append)
    with transactional(log) as producer:
        transact(producer, "a")
    story = [event["request"] for event in events if event["transactional_id"] == "tx"]
    wanted = ["InitProducerId", "AddPartitionsToTxn", "EndTxn"]
    assert [name for name in story if name in wanted] == wanted


def test_F09_one_method_for_each_request(log: Any, engine: Any) -> None:
    for name in (
        "init_producer_id",
        "add_partitions_to_txn",
        "add_offsets_to_txn",
        "end_txn",
        "describe_transactions",
        "list_transactions",
    ):
        method = getattr(engine.transactions, name)
        assert callable(method) and method.__doc__, name
    assert engine.groups.txn_offset_commit.__doc__


def test_F10_the_group_coordinator_knows_its_groups(log: Any) -> None:
    with reader(log, "g") as consumer:
        consumer.subscribe(["t"])
        consumer.poll(0.1)
        assert "g" in [getattr(row, "group_id", row) for row in log.groups()]
        described = log.describe_group("g")
        assert [list(member.assigned) for member in described.members] == [[T0]]


def test_F11_a_position_is_a_record_in_a_topic(log: Any, engine: Any) -> None:
    with reader(log, "g") as consumer:
        consumer.subscribe(["t"])
        consumer.poll(0.1)
        consumer.commit({T0: 0})
    shown = eoslog.inspect(engine.group_partition("g").path)
    keys = [r["key"] for s in shown["segments"] for b in s["batches"] for r in b["records"]]
    assert "000100016700017400000000" in keys  # version 1, group "g", topic "t", partition 0


def test_F12_two_shards_commit_at_the_same_time(log: Any) -> None:
    log.create_topic("wide", partitions=2)
    errors: list[BaseException] = []

    def work(name: str, partition: int) -> None:
        try:
            with transactional(log, name) as producer:
                for _ in range(20):
                    transact(producer, name, topic="wide", partition=partition)
        except KafkaError as error:
            errors.append(error)

    assert abs(_core.java_hash("tx-1")) % 50 != abs(_core.java_hash("foo")) % 50
    threads = [threading.Thread(target=work, args=pair) for pair in (("tx-1", 0), ("foo", 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(values(log, "wide")) == [b"foo"] * 20 + [b"tx-1"] * 20


def test_F04_both_internal_topics_are_keyed_logs_of_the_same_kind(log: Any, engine: Any) -> None:
    with transactional(log) as producer:
        producer.begin_transaction()
        put(producer, "a")
        producer.send_offsets_to_transaction({T0: 1}, "g")
        producer.commit_transaction()
    for partition in (engine.transaction_partition("tx"), engine.group_partition("g")):
        assert partition.topic in ("__transaction_state", "__consumer_offsets")
        assert type(partition) is type(engine.partition("t", 0))


def test_F07_a_coordinators_work_is_done_by_whoever_holds_its_shard(
    log: Any, directory: Path
) -> None:
    with eoslog.open(directory) as second, transactional(second, "other") as producer:
        transact(producer, "from the second handle")
    assert values(log) == [b"from the second handle"]
