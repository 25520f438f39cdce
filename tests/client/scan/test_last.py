"""`Log.last`: the end of a topic, read backwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog import TopicPartition, errors


@pytest.fixture
def log(tmp_path: Path) -> Iterator[eoslog.Log]:
    with eoslog.open(tmp_path / "log", durability="os") as log:
        log.create_topic("orders", partitions=3)
        yield log


def produce(log: eoslog.Log, *records: tuple[int, int, bytes]) -> None:
    """Produce (partition, timestamp, value), with the partition as the key."""
    with log.producer() as producer:
        for partition, timestamp, value in records:
            producer.produce(
                "orders", value, str(partition), partition=partition, timestamp=timestamp
            )


def values(records: list[eoslog.Record]) -> list[bytes]:
    return [record.value for record in records]


def test_the_last_records_are_ordered_by_time_partition_and_offset(log):
    produce(log, (2, 30, b"c"), (0, 10, b"a"), (1, 30, b"b"), (2, 30, b"d"), (0, 20, b"e"))
    assert values(log.last("orders", 4)) == [b"e", b"b", b"c", b"d"]
    assert values(log.last("orders")) == [b"d"]
    assert values(log.last("orders", 9)) == [b"a", b"e", b"b", b"c", b"d"]


def test_the_last_records_of_a_partition_or_a_key_are_only_theirs(log):
    produce(log, (0, 1, b"a"), (1, 2, b"b"), (0, 3, b"c"))
    assert values(log.last("orders", 2, 0)) == [b"a", b"c"]
    assert values(log.last("orders", 1, key="1")) == [b"b"]
    assert values(log.last("orders", 1, key=b"none")) == []


def test_aborted_records_between_do_not_hide_older_committed_ones(log):
    produce(log, (0, 1, b"old"))
    with log.producer(transactional_id="t", batch_size=200) as producer:
        producer.init_transactions()
        for _ in range(3):
            producer.begin_transaction()
            for _ in range(1000):
                producer.produce("orders", b"aborted", partition=0, timestamp=2)
            producer.flush()
            producer.abort_transaction()
    assert values(log.last("orders", 5)) == [b"old"]
    assert len(log.last("orders", 5, isolation="read_uncommitted")) == 5


def test_records_of_an_open_transaction_are_not_last(log):
    produce(log, (0, 1, b"old"))
    with log.producer(transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("orders", b"open", partition=0)
        producer.flush()
        assert values(log.last("orders")) == [b"old"]


def test_the_end_bounds_the_last_records(log):
    produce(log, *((0, number, b"%d" % number) for number in range(9)))
    assert values(log.last("orders", 2, end={TopicPartition("orders", 0): 5})) == [b"3", b"4"]
    assert values(log.last("orders", 2, 0, end=4)) == [b"2", b"3"]


def test_a_deleted_start_is_not_needed(log):
    produce(log, *((0, number, b"%d" % number) for number in range(2000)))
    log.delete_records({TopicPartition("orders", 0): 1990})
    assert values(log.last("orders", 50)) == [b"%d" % number for number in range(1990, 2000)]


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_below_one_is_refused(log, count):
    with pytest.raises(errors.ConfigError, match="n: expected 1 or more records"):
        log.last("orders", count)


def test_a_missing_topic_or_partition_is_named(log):
    with pytest.raises(errors.UnknownTopicOrPartition, match="'none'"):
        log.last("none")
    with pytest.raises(errors.UnknownTopicOrPartition, match="no partition 7"):
        log.last("orders", 1, 7)


def test_a_topic_that_is_not_a_name_is_a_configuration_error(log):
    with pytest.raises(errors.ConfigError, match=r"topic: expected the name .*, got \['orders'\]"):
        log.last(["orders"])


class Changing(bytes):
    """A key that calls a function at its first comparison."""

    __hash__ = bytes.__hash__

    def __eq__(self, other):
        for change in calls[:]:
            calls.remove(change)
            change()
        return bytes.__eq__(self, other)


calls = []


@pytest.mark.parametrize(("partitions", "count"), [(1, 2), (2, 2), (2, 90), (3, 90)])
def test_a_topic_recreated_during_the_call_gives_only_its_new_records(tmp_path, partitions, count):
    def fill(number, value):
        for at in range(number):
            producer.produce("t", value, "k", partition=at % partitions)
        producer.flush()

    def recreate():
        log.delete_topic("t")
        log.create_topic("t", partitions)
        fill(count, "new")

    with eoslog.open(tmp_path / "log") as log, log.producer() as producer:
        log.create_topic("t", 3)
        for at in range(30):
            producer.produce("t", "old", "k", partition=at % 3)
        producer.flush()
        calls.append(recreate)
        found = log.last("t", 100, key=Changing(b"k"))
        assert not calls
        assert [record.value for record in found] == [b"new"] * count
