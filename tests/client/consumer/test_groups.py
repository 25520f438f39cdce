"""A consumer in a group: its notifications, its commits, and how it leaves."""

from __future__ import annotations

import pytest

from eoslog.client.consumer.consumer import Consumer
from eoslog.errors import (
    CommitFailed,
    ConfigError,
    NoOffset,
)
from eoslog.model import TopicPartition
from tests.client.consumer.helpers import T0, T1, FakeProducer, consumer, values
from tests.coordinator.fake_host import FakeHost


def member(host, **config) -> Consumer:
    c = consumer(host, assign=(), group_id="g", client_id=f"c{host.process_number}", **config)
    c.events = []
    c.subscribe(
        ["t"],
        on_assign=lambda who, ps: who.events.append(("+", [p.partition for p in ps])),
        on_revoke=lambda who, ps: who.events.append(("-", [p.partition for p in ps])),
    )
    return c


@pytest.fixture
def eager(monkeypatch):
    from eoslog.client.consumer import membership
    from eoslog.coordinator.groups import liveness as group_watch

    monkeypatch.setattr(membership, "_FOLLOW_EVERY_S", 0.0)
    monkeypatch.setattr(group_watch, "_WATCH_INTERVAL_S", 0.0)


def test_a_rebalance_commits_and_calls_on_revoke_before_a_partition_moves(host, log, eager):
    log.put(*"ab")
    host.partition("t", 1).put(*"xy")
    a = member(host)
    assert len(a.consume(3, 0)) == 3
    b = member(FakeHost(host.disk, 1))
    assert b.consume(9, 0) == []
    a.consume(9, 0)
    assert a.events == [("+", [0, 1]), ("-", [1])]
    assert b.consume(9, 0) is not None
    assert b.events == [("+", [1])]
    b.consume(9, 0)
    assert b.position(T1) == 2
    assert host.groups.fetch_offsets("g")[T1].offset in (1, 2)


def test_A15_a_removed_member_cannot_commit_and_joins_again(host, log, eager):
    log.put(*"ab")
    a = member(host, enable_auto_commit=False)
    a.poll(0)
    host.groups.remove_members("g", [a.group_metadata().member_id])
    with pytest.raises(CommitFailed):
        a.commit()
    old = a.group_metadata().member_id
    assert values([a.poll(0)]) == ["a"], "read again from the committed offset"
    assert a.events == [("+", [0, 1]), ("-", [0, 1]), ("+", [0, 1])]
    assert a.group_metadata().member_id != old


def test_on_lost_replaces_on_revoke_when_partitions_are_lost(host, log, eager):
    a = consumer(host, assign=(), group_id="g")
    told = []
    a.subscribe(
        "t", on_revoke=lambda *_: told.append("revoked"), on_lost=lambda *_: told.append("lost")
    )
    a.poll(0)
    host.groups.remove_members("g", [a.group_metadata().member_id])
    a.poll(0)
    assert told == ["lost"]


def test_a_partition_is_not_revoked_inside_an_open_transaction(host, log, eager):
    log.put("a")
    producer = FakeProducer()
    a = member(host, producer=producer)
    producer.transaction.open = True
    a.poll(0)
    member(FakeHost(host.disk, 1)).poll(0)
    a.poll(0)
    assert a.assignment() == [T0, T1]
    producer.transaction.open = False
    a.poll(0)
    assert a.assignment() == [T0]


def test_close_leaves_the_group(host, log, eager):
    a, b = member(host), member(FakeHost(host.disk, 1))
    for _ in range(2):
        a.poll(0), b.poll(0)
    with a:
        pass
    assert a.events[-1] == ("-", [0])
    b.poll(0)
    assert b.assignment() == [T0, T1]


def test_a_pattern_subscription_follows_new_topics(host, log, eager):
    a = consumer(host, assign=(), group_id="g")
    a.subscribe("^[tu].*")
    a.poll(0)
    host.metadata.create("u", 1)
    a.poll(0)
    assert TopicPartition("u") in a.assignment()
    with pytest.raises(ConfigError):
        a.subscribe("^(")


def test_on_assign_may_seek_to_the_starting_offsets(host, log, eager):
    log.put(*"abc")
    c = consumer(host, assign=(), group_id="g", auto_offset_reset="none")
    c.subscribe("t", on_assign=lambda who, ps: [who.seek(p, 2 if p == T0 else 0) for p in ps])
    assert values(c.consume(9, 0)) == ["c"]
    without = consumer(FakeHost(host.disk, 1), assign=(), group_id="h", auto_offset_reset="none")
    without.subscribe("t")
    for _ in range(2):
        with pytest.raises(NoOffset):
            without.poll(0)
    without.seek(T0, 1)
    without.seek(T1, 0)
    assert values([without.poll(0)]) == ["b"]


def test_a_member_with_a_wrong_epoch_leaves_and_joins_again(host, log, eager):
    log.put("a")
    a = member(host)
    a.poll(0)
    old = a.group_metadata().member_id
    a._member.epoch = 7
    a.poll(0)
    [only] = host.groups.describe_group("g").members
    assert only.member_id == a.group_metadata().member_id != old
    assert a.assignment() == [T0, T1]
    a.close()
    assert host.groups.describe_group("g").members == []


def test_commit_before_the_first_poll_says_to_poll_first(host):
    c = consumer(host, assign=(), group_id="g")
    c.subscribe("t")
    with pytest.raises(CommitFailed, match=r"has not joined yet; call poll\(\) first"):
        c.commit({T0: 1})


def test_subscribing_to_a_missing_topic_logs_a_warning(host, caplog):
    c = consumer(host, assign=(), group_id="g")
    c.subscribe(["t", "zz", "^later.*"])
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == ["topic 'zz': subscribed but missing, waiting for its creation"]
