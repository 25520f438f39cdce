"""Reads of topics that are deleted and re-created while they run."""

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.client.scan.same_topics import of_same_topics
from eoslog.errors import OffsetOutOfRange, UnknownTopicOrPartition


@pytest.fixture
def log(tmp_path):
    with eoslog.open(tmp_path / "log", durability="os") as log:
        log.create_topic("t", 2)
        log.create_topic("other", 1)
        fill(log, "old", 9)
        yield log


def fill(log, value, count):
    with log.producer() as producer:
        for _ in range(count):
            for partition in 0, 1:
                producer.produce("t", value, partition=partition)


def recreate(log, partitions=2):
    log.delete_topic("t")
    log.create_topic("t", partitions)


def at_the_second_partition(log, change):
    """Call a function when the partition t-1 is looked up for the first time."""
    look_up = log._engine.partition

    def changing(topic, partition):
        if (topic, partition) == ("t", 1):
            log._engine.partition = look_up
            change()
        return look_up(topic, partition)

    log._engine.partition = changing


def test_a_read_of_topics_that_stay_runs_once(log):
    calls = []
    assert of_same_topics(log._engine, ["t", "other"], lambda: calls.append(1) or "read") == "read"
    assert calls == [1]


@pytest.mark.parametrize("names", [["other", "t"], None], ids=["named", "all"])
def test_a_read_during_a_recreation_is_repeated(log, names):
    changes = [lambda: recreate(log), lambda: recreate(log, 3)]
    seen = []

    def read():
        if changes:
            changes.pop()()
        seen.append(log.topic_id("t"))
        return seen[-1]

    assert of_same_topics(log._engine, names, read) == log.topic_id("t")
    assert len(seen) == 3


@pytest.mark.parametrize("error", [OffsetOutOfRange("t-1"), KeyError("t-1")], ids=type)
def test_an_error_counts_only_if_the_topics_stayed(log, error):
    changes = [lambda: recreate(log)]

    def read():
        if changes:
            changes.pop()()
            raise error
        return "read"

    assert of_same_topics(log._engine, ["t"], read) == "read"
    changes.append(lambda: None)
    with pytest.raises(type(error)) as raised:
        of_same_topics(log._engine, ["t"], read)
    assert raised.value is error


def test_a_named_topic_that_is_deleted_during_a_read_is_an_error(log):
    with pytest.raises(UnknownTopicOrPartition, match="'t'"):
        of_same_topics(log._engine, ["other", "t"], lambda: log.delete_topic("t"))
    with pytest.raises(UnknownTopicOrPartition, match="'t'"):
        of_same_topics(log._engine, ["t"], lambda: pytest.fail("the topic does not exist"))


def test_a_read_of_all_topics_is_not_repeated_for_created_and_deleted_ones(log):
    calls = []

    def read():
        calls.append(1)
        log.create_topic("new")
        log.delete_topic("t")
        return "read"

    assert of_same_topics(log._engine, None, read) == "read"
    assert calls == [1]


def test_a_topic_that_is_re_created_in_each_read_is_named(log):
    with pytest.raises(UnknownTopicOrPartition, match="'t' was deleted and re-created in each"):
        of_same_topics(log._engine, ["other", "t"], lambda: recreate(log))


@pytest.mark.parametrize("topics", [["t"], ["other", "t"], None])
def test_a_snapshot_has_no_ends_of_a_topic_that_was_re_created(log, topics):
    at_the_second_partition(log, lambda: recreate(log, 3))
    ends = log.snapshot(topics)
    assert {tp.partition: end for tp, end in ends.items() if tp.topic == "t"} == {0: 0, 1: 0, 2: 0}


def test_a_snapshot_names_a_topic_that_is_deleted_during_the_call(log):
    at_the_second_partition(log, lambda: log.delete_topic("t"))
    with pytest.raises(UnknownTopicOrPartition, match="'t'"):
        log.snapshot(["t", "other"])
    assert log.snapshot() == {TopicPartition("other", 0): 0}


def test_a_statement_reads_only_the_new_topic(log):
    def change():
        recreate(log)
        fill(log, "new", 20)

    at_the_second_partition(log, change)
    found = log.query("select distinct decode(value) as v, count(*) as n from t group by v")
    assert found.to_pydict() == {"v": ["new"], "n": [40]}


def test_named_positions_of_a_reset_are_those_of_the_new_topic(log):
    def change():
        recreate(log)
        fill(log, "new", 4)

    at_the_second_partition(log, change)
    places = {TopicPartition("t", 0): "latest", TopicPartition("t", 1): "latest"}
    log.reset_offsets("g", places)
    offsets = log.describe_group("g").offsets
    assert {tp: one.offset for tp, one in offsets.items()} == dict.fromkeys(places, 4)
