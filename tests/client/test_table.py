"""`Log.table`: the last value of each key, as of a snapshot."""

from __future__ import annotations

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.client.table import Table
from eoslog.errors import ConfigError, SerializationError, UnknownTopicOrPartition


@pytest.fixture
def log(path):
    with eoslog.open(path, durability="os") as log:
        log.create_topic("totals", partitions=2)
        with log.producer() as producer:
            for key, value in (("a", "1"), ("b", "2"), ("c", "3"), ("a", "4")):
                producer.produce("totals", value, key)
            producer.produce("totals", None, "b")
        yield log


def send(log, value, key, **options):
    with log.producer(**options) as producer:
        producer.produce("totals", value, key)


def test_a_table_has_the_last_value_of_each_key(log):
    table = log.table("totals")
    assert dict(table) == {"a": 4, "c": 3}
    assert (len(table), "a" in table, "b" in table, 7 in table) == (2, True, False, False)
    with pytest.raises(KeyError):
        table["b"]
    assert repr(table) == "<Table 'totals', 2 keys>"


def test_a_table_stays_as_it_was_until_it_is_refreshed(log):
    table, following = log.table("totals"), log.table("totals", follow=True)
    send(log, "5", "d")
    send(log, None, "a")
    assert dict(table) == {"a": 4, "c": 3}
    assert dict(following) == {"c": 3, "d": 5}
    table.refresh()
    assert dict(table) == {"c": 3, "d": 5}


def test_a_table_has_complete_transactions_only(log):
    with log.producer(transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("totals", "9", "a")
        producer.flush()
        following = log.table("totals", follow=True)
        assert following["a"] == 4
        producer.commit_transaction()
        assert following["a"] == 9


def test_a_table_of_a_topic_that_was_created_again_is_that_of_the_new_topic(log):
    table = log.table("totals", follow=True)
    log.delete_topic("totals")
    with pytest.raises(UnknownTopicOrPartition):
        table["a"]
    log.create_topic("totals", partitions=2)
    send(log, "7", "z")
    assert dict(table) == {"z": 7}


def test_a_table_is_read_again_if_records_were_deleted(log):
    table = log.table("totals", follow=True)
    ends = log.snapshot(["totals"])
    send(log, "8", "a")
    send(log, "9", "c")
    log.delete_records(dict.fromkeys(ends, -1))
    send(log, "7", "z")
    assert dict(table) == {"z": 7}


def test_a_table_drops_rows_whose_records_were_deleted(log):
    table, following = log.table("totals"), log.table("totals", follow=True)
    send(log, "5", "d")
    table.refresh()
    place = next(record for record in log.read("totals") if record.key == b"d")
    log.delete_records({TopicPartition("totals", place.partition): -1})
    expected = dict(log.table("totals"))
    assert "d" not in expected and len(expected) < 3
    assert dict(following) == expected
    table.refresh()
    assert dict(table) == expected


def test_each_access_returns_a_value_of_its_own(log):
    send(log, "[1]", "list")
    table = log.table("totals")
    table["list"].append(2)
    assert table["list"] == [1]


def test_formats_of_keys_and_values(log):
    assert log.table("totals", "bytes", "bytes")[b"a"] == b"4"
    assert log.table("totals", "bytes", float)[b"a"] == 4.0
    with pytest.raises(SerializationError, match=r"totals-\d at offset \d: .*log.table\('totals'"):
        log.table("totals", value="double")["a"]
    with pytest.raises(ConfigError, match="value: expected a callable or one of"):
        log.table("totals", value="xml")
    with pytest.raises(UnknownTopicOrPartition):
        log.table("others")


def test_to_arrow_has_a_column_for_keys_and_one_for_values(log):
    pytest.importorskip("pyarrow")
    table = log.table("totals").to_arrow()
    assert sorted(zip(*table.to_pydict().values(), strict=True)) == [("a", 4), ("c", 3)]
    send(log, '{"x": 1}', "d")
    with pytest.raises(SerializationError, match="no common type"):
        log.table("totals").to_arrow()


@pytest.mark.parametrize("partitions", [1, 2, 3])
@pytest.mark.parametrize("first", [True, False], ids=["before the snapshot", "after it"])
def test_a_refresh_during_a_recreation_has_only_rows_of_the_new_topic(log, partitions, first):
    changes = []

    def recreate():
        log.delete_topic("totals")
        log.create_topic("totals", partitions)
        for value in range(9):
            send(log, str(value), f"new {value % 2}")

    def snapshot(topics):
        if first and changes:
            changes.pop()()
        ends = log.snapshot(topics)
        if changes:
            changes.pop()()
        return ends

    table = Table(log._engine, snapshot, "totals", "string", "json", False)
    changes.append(recreate)
    table.refresh()
    assert dict(table) == {"new 0": 8, "new 1": 7}


def test_a_refresh_that_fails_leaves_the_table_as_it_was(log):
    table = log.table("totals")
    log.delete_topic("totals")
    with pytest.raises(UnknownTopicOrPartition):
        table.refresh()
    assert dict(table) == {"a": 4, "c": 3}
