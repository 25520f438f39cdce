"""Reads of topics that are deleted and re-created while they run."""

import pytest

import eoslog
from eoslog.client.scan.same_topics import of_same_topics
from eoslog.errors import OffsetOutOfRange, UnknownTopicOrPartition


@pytest.fixture
def log(tmp_path):
    with eoslog.open(tmp_path / "log", durability="os") as log:
        log.create_topic("t", 2)
        log.create_topic("other", 1)
        yield log


def recreate(log, partitions=1):
    log.delete_topic("t")
    log.create_topic("t", partitions)


def test_a_read_of_topics_that_stay_runs_once(log):
    calls = []
    assert of_same_topics(log._engine, ["t", "other"], lambda: calls.append(1) or "read") == "read"
    assert calls == [1]


def test_a_read_during_a_recreation_is_repeated(log):
    changes = [lambda: recreate(log), lambda: recreate(log, 3)]
    seen = []

    def read():
        if changes:
            changes.pop()()
        seen.append(log.topic_id("t"))
        return seen[-1]

    assert of_same_topics(log._engine, ["other", "t"], read) == log.topic_id("t")
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


def test_a_topic_that_is_deleted_during_a_read_is_named(log):
    with pytest.raises(UnknownTopicOrPartition, match="'t'"):
        of_same_topics(log._engine, ["other", "t"], lambda: log.delete_topic("t"))
    with pytest.raises(UnknownTopicOrPartition, match="'t'"):
        of_same_topics(log._engine, ["t"], lambda: pytest.fail("the topic does not exist"))
