"""Manual and automatic commits of offsets, and the guarantees of each."""

from __future__ import annotations

import warnings

import pytest

from eoslog.descriptions import GroupMetadata
from eoslog.errors import (
    ConfigError,
    IllegalState,
)
from eoslog.model import OffsetAndMetadata, TopicPartition
from tests.client.consumer.helpers import T0, T1, FakeProducer, consumer, drain, values
from tests.coordinator.fake_host import FakeLog


def test_H05_commit_stores_the_next_offset_to_read(host, log):
    log.put(*"abcd")
    c = consumer(host, group_id="g", enable_auto_commit=False)
    first = c.poll(0)
    c.commit()
    assert c.committed(T0) == 1
    c.commit([TopicPartition("t", 0, 3)])
    assert [p.offset for p in c.committed([T0, T1])] == [3, None]
    c.commit({T0: 2, T1: OffsetAndMetadata(0, metadata="m")})
    assert c.committed(T0) == 2
    c.commit_sync(first)
    assert c.committed(T0) == 1
    c.commit_async()
    assert c.positions() == {T0: 1}


def test_H05_committing_the_offset_of_the_last_record_logs_a_warning(host, log):
    log.put(*"abcd")
    c = consumer(host, group_id="g", enable_auto_commit=False)
    record = c.consume(3, 0)[-1]
    with pytest.warns(RuntimeWarning, match="commit 3"):
        c.commit({T0: record.offset})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c.commit({T0: record.offset + 1})


def test_A07_a_second_consumer_resumes_at_the_committed_offset(host, log):
    log.put(*"abcd")
    a = consumer(host, group_id="g", enable_auto_commit=False)
    a.consume(2, 0)
    a.commit()
    a.consume(1, 0)
    assert drain(consumer(host, group_id="g")) == ["c", "d"]


def test_A08_commit_before_processing_skips_unprocessed_records(host, log):
    log.put(*"0123456")
    c = consumer(host, group_id="g", processing_guarantee="at_most_once")
    done = []
    for _ in range(6):
        record = c.poll(0)
        if record.offset == 5:
            break  # Dies here: record 5 was returned and not processed.
        done.append(record.value)
    assert drain(consumer(host, group_id="g")) == ["6"]
    assert len(done) == 5


def test_A01_at_most_once_returns_no_record_whose_commit_failed(host, log, monkeypatch):
    log.put(*"ab")
    c = consumer(host, group_id="g", processing_guarantee="at_most_once")
    with monkeypatch.context() as patched:
        patched.setattr(FakeLog, "flush", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            c.poll(0)
    assert values([c.poll(0)]) == ["a"]


def test_A09_commit_after_processing_repeats_processed_records(host, log):
    log.put(*"0123456")
    c = consumer(host, group_id="g", enable_auto_commit=False)
    for _ in range(6):
        record = c.poll(0)
        if record.offset < 5:
            c.commit()
    assert drain(consumer(host, group_id="g")) == ["5", "6"]


def test_H01_auto_commit_covers_what_earlier_polls_returned(host, log):
    log.put(*"abc")
    c = consumer(host, group_id="g", auto_commit_interval_ms=0)
    c.poll(0)
    assert c.committed(T0) == 0, "the record just returned is not processed yet"
    c.poll(0)
    assert c.committed(T0) == 1
    c.close()
    assert host.groups.fetch_offsets("g")[T0].offset == 2


def test_H01_auto_commit_waits_for_its_interval(host, log):
    log.put(*"abc")
    c = consumer(host, group_id="g", auto_commit_interval_ms=60_000)
    c.poll(0), c.poll(0)
    assert c.committed(T0) is None


def test_H02_close_commits_nothing_without_auto_commit(host, log):
    log.put(*"abc")
    c = consumer(host, group_id="g", enable_auto_commit=False)
    drain(c)
    c.close()
    assert host.groups.fetch_offsets("g") == {}


@pytest.mark.parametrize("value", ["exactly_once", "exactly_once_v2", "exact_once"])
def test_H03_exactly_once_needs_a_transactional_producer(host, log, value):
    with pytest.raises(ConfigError, match="producer"):
        consumer(host, group_id="g", processing_guarantee=value)
    with pytest.raises(ConfigError, match="group.id"):
        consumer(host, processing_guarantee=value, producer=FakeProducer())
    with pytest.raises(ConfigError, match="read_committed"):
        consumer(
            host, group_id="g", processing_guarantee=value, producer=FakeProducer(),
            isolation_level="read_uncommitted",
        )  # fmt: skip
    c = consumer(host, group_id="g", processing_guarantee=value, producer=FakeProducer())
    log.put("a")
    c.poll(0)
    with pytest.raises(IllegalState, match="transaction"):
        c.commit()
    c.close()
    assert host.groups.fetch_offsets("g") == {}


def test_H07_a_bound_consumer_does_not_commit_automatically(host, log):
    with pytest.raises(ConfigError, match="enable.auto.commit"):
        consumer(host, group_id="g", enable_auto_commit=True, producer=FakeProducer())
    c = consumer(host, group_id="g", auto_commit_interval_ms=0, producer=FakeProducer())
    log.put("a")
    c.poll(0), c.poll(0)
    assert c.committed(T0) is None


def test_auto_commit_covers_partitions_that_assign_drops(host, log):
    log.put(*"ab")
    c = consumer(host, group_id="g")
    c.poll(0)
    c.assign([T1])
    assert host.groups.fetch_offsets("g")[T0].offset == 1
    c.assign([T0])
    assert drain(c) == ["b"]
    c.assign([])
    assert host.groups.fetch_offsets("g")[T0].offset == 2


def test_assign_commits_nothing_without_auto_commit(host, log):
    log.put(*"ab")
    c = consumer(host, group_id="g", enable_auto_commit=False)
    c.poll(0)
    c.assign([T1])
    assert host.groups.fetch_offsets("g") == {}


def test_commit_includes_a_seek_that_no_poll_has_followed(host, log):
    log.put(*"abcd")
    c = consumer(host, group_id="g", enable_auto_commit=False)
    c.consume(2, 0)
    c.seek_to_end()
    c.commit()
    assert c.committed(T0) == 4
    c.seek_to_beginning()
    c.commit()
    assert c.committed(T0) == 0


def test_auto_commit_at_close_includes_a_seek_that_no_poll_has_followed(host, log):
    log.put(*"abcd")
    with consumer(host, group_id="g", auto_commit_interval_ms=10**6) as c:
        c.consume(2, 0)
        c.seek_to_end()
    assert host.groups.fetch_offsets("g")[T0].offset == 4


def test_at_most_once_commits_what_it_returns_after_a_reset_by_others(host, log):
    log.put(*"abcd")
    c = consumer(host, group_id="g", processing_guarantee="at_most_once")
    c.consume(4, 0)
    host.groups.commit_offsets("g", "", -1, {T0: OffsetAndMetadata(2)})
    c.seek(T0, 2)
    assert values(c.consume(2, 0)) == ["c", "d"]
    assert host.groups.fetch_offsets("g")[T0].offset == 4


def test_A12_rewind_goes_back_to_the_committed_offsets(host, log):
    log.put(*"abcd")
    host.partition("t", 1).put("x")
    c = consumer(host, group_id="g", enable_auto_commit=False, assign=(T0, T1))
    c.consume(9, 0)
    host.groups.commit_offsets("g", "", -1, {T0: OffsetAndMetadata(2)})
    c.rewind()
    assert sorted(drain(c)) == ["c", "d", "x"]


def test_H08_group_metadata_names_the_member(host, log):
    c = consumer(host, group_id="g")
    assert c.group_metadata() == GroupMetadata("g", "", -1, None)
    c.unsubscribe()
    c.subscribe(["t"])
    c.poll(0)
    found = c.group_metadata()
    assert (found.group_id, found.generation_id) == ("g", 1)
    assert found.member_id
