"""Rows F: the coordinators and their internal topics."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import TopicPartition, _core
from eoslog.errors import EoslogError, KafkaError
from tests.faults.harness import Child, live, start
from tests.rows.tools import (
    assigned,
    locked_elsewhere,
    put,
    reader,
    transact,
    transactional,
    values,
)

T0 = TopicPartition("t", 0)


def test_F01_the_coordinator_assigns_ids_and_describes_transactions(log: Any, engine: Any) -> None:
    pid, epoch, outcome = engine.transactions.init_producer_id("a", 60_000)
    assert pid >= 0 and epoch >= 0 and outcome is None
    (row,) = engine.transactions.describe_transactions(["a"])
    assert (row.transactional_id, row.producer_id, row.producer_epoch) == ("a", pid, epoch)


def test_F02_the_transaction_log_contains_every_state_in_order(
    log: Any, engine: Any, directory: Path
) -> None:
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


def test_F05_a_partition_of_an_internal_topic_is_chosen_by_its_id(log: Any, engine: Any) -> None:
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
def test_F06_shards_follow_javas_hash(name: str, shard: int) -> None:
    assert abs(_core.java_hash(name)) % 50 == shard


def test_F08_the_steps_of_a_transaction_are_traced_in_order(log: Any) -> None:
    events: list[dict[str, Any]] = []
    log.trace(events.append)
    with transactional(log) as producer:
        transact(producer, "a")
    story = [event["request"] for event in events if event["transactional_id"] == "tx"]
    assert story == [
        "FindCoordinator", "InitProducerId", "AddPartitionsToTxn", "WriteTxnMarkers", "EndTxn"
    ]  # fmt: skip


def test_F09_a_consume_transform_produce_loop_makes_each_request(log: Any) -> None:
    events: list[str] = []
    with log.producer() as plain:
        put(plain, "a")
    log.trace(lambda event: events.append(event["request"]))
    with transactional(log) as producer, reader(log, "g") as consumer:
        consumer.subscribe(["t"])
        records = consumer.consume(1, 60)
        with producer.transaction() as tx:
            tx.produce("two", records[0].value, partition=0)
            producer.flush()
            tx.commit_offsets(consumer)
    assert events == [
        "FindCoordinator", "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn",
        "TxnOffsetCommit", "WriteTxnMarkers", "WriteTxnMarkers", "EndTxn",
    ]  # fmt: skip


def test_F09_each_request_has_one_documented_method(log: Any, engine: Any) -> None:
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


def test_F10_the_group_coordinator_lists_and_describes_its_groups(log: Any) -> None:
    with reader(log, "g") as consumer:
        consumer.subscribe(["t"])
        consumer.poll(0.1)
        assert "g" in [getattr(row, "group_id", row) for row in log.groups()]
        described = log.describe_group("g")
        assert [list(member.assigned) for member in described.members] == [[T0]]


def test_F11_a_committed_position_is_a_record_in_a_topic(log: Any, engine: Any) -> None:
    with reader(log, "g") as consumer:
        consumer.subscribe(["t"])
        consumer.poll(0.1)
        consumer.commit({T0: 0})
    shown = eoslog.inspect(engine.group_partition("g").path)
    keys = [r["key"] for s in shown["segments"] for b in s["batches"] for r in b["records"]]
    assert "000100016700017400000000" in keys  # version 1, group "g", topic "t", partition 0


def test_F12_a_locked_shard_blocks_no_other_shard(log: Any, engine: Any) -> None:
    assert engine.transaction_partition("tx-1").partition != (
        engine.transaction_partition("foo").partition
    )
    with transactional(log, "tx-1"), transactional(log, "foo") as other:
        with locked_elsewhere(engine.transaction_partition("tx-1")):
            transact(other, "goes on")
        assert values(log) == [b"goes on"]


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
        records = [
            r for b in partition.batches(0, partition.log_end) if not b.control for r in b.records()
        ]
        assert records and all(key is not None for _, _, key, _, _ in records)
        newest = {key: value for _, _, key, value, _ in records}  # what compaction would leave
        assert len(newest) == 1 < len(records) or partition.topic == "__consumer_offsets"
        assert all(value is not None for value in newest.values())


def test_F07_every_handle_does_the_work_of_the_coordinator(log: Any, directory: Path) -> None:
    with eoslog.open(directory) as second, transactional(second, "other") as producer:
        transact(producer, "from the second handle")
    assert values(log) == [b"from the second handle"]


@pytest.mark.process
def test_F07_another_process_ends_the_transaction_of_a_dead_one(tmp_path: Path) -> None:
    def begin(child: Child, path: Path) -> None:
        with eoslog.open(path) as log:
            producer = transactional(log, transaction_timeout_ms=900_000)
            producer.begin_transaction()
            put(producer, "half")
            child.tell("begun", 1)
            time.sleep(600)

    def follow(child: Child, path: Path) -> None:
        with eoslog.open(path) as log:
            child.tell("open", len(log.transactions()))
            with assigned(log, isolation_level="read_committed") as consumer:
                while not consumer.poll(0.1):
                    pass
            child.tell("open", len(log.transactions()))

    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t")
    dying = start(begin, path)
    dying.heard("begun")
    follower = start(follow, path)
    follower.heard("open")
    assert dying.kill().killed
    live(lambda child, path: put(eoslog.open(path).producer(), "behind"), path).fine()
    assert follower.end().fine().of("open") == [1, 0]
