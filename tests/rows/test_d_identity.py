"""Rows D: transactional ids, epochs and fencing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import IllegalState, InvalidProducerEpoch, ProducerFenced
from tests.rows.tools import put, reader, transact, transactional, values


def test_D01_a_restart_keeps_the_producer_id(directory: Path) -> None:
    seen = []
    for life in range(3):
        with eoslog.open(directory) as log:
            if not life:
                log.create_topic("t")
            with transactional(log) as producer:
                seen.append((producer.producer_id, producer.producer_epoch))
                transact(producer, str(life))
    assert len({pid for pid, _ in seen}) == 1
    epochs = [epoch for _, epoch in seen]
    assert epochs == sorted(set(epochs))


def test_D03_the_old_instance_is_rejected_by_every_call(log: Any) -> None:
    old = transactional(log)
    old.begin_transaction()
    put(old, "before")
    with transactional(log):
        for call in (
            lambda: put(old, "late"),
            lambda: old.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g"),
            old.commit_transaction,
        ):
            with pytest.raises((ProducerFenced, InvalidProducerEpoch)):
                call()
    idle = transactional(log, "idle")
    with transactional(log, "idle"), pytest.raises(ProducerFenced):
        transact(idle, "late")
    assert values(log) == []
    assert values(log, isolation="read_uncommitted") == [b"before"]
    for zombie in (old, idle):
        zombie.close()


def test_D04_only_the_newer_of_two_open_instances_writes(log: Any) -> None:
    old = transactional(log)
    transact(old, "1")
    new = transactional(log)
    transact(new, "2")
    with pytest.raises(ProducerFenced):
        transact(old, "zombie")
    transact(new, "3")
    assert values(log) == [b"1", b"2", b"3"]
    old.close()
    new.close()


def test_D05_init_aborts_the_open_transaction_of_the_previous_instance(log: Any) -> None:
    old = transactional(log)
    old.begin_transaction()
    put(old, "half")
    new = log.producer(transactional_id="tx", linger_ms=0)
    outcome = new.init_transactions()
    assert outcome is not None and not outcome.committed
    assert log.transactions() == []
    transact(new, "whole")
    assert values(log) == [b"whole"]
    old.close()
    new.close()


def test_D06_init_needs_an_id_and_is_called_once(log: Any) -> None:
    with log.producer() as plain, pytest.raises((IllegalState, eoslog.errors.ConfigError)):
        plain.init_transactions()
    with transactional(log) as producer:
        with pytest.raises(IllegalState):
            producer.init_transactions()
        transact(producer, "still fine")
    assert values(log) == [b"still fine"]


def test_D07_instances_share_the_id_and_differ_in_epoch(log: Any) -> None:
    with transactional(log) as one, transactional(log) as two:
        assert one.producer_id == two.producer_id
        assert one.producer_epoch < two.producer_epoch


def test_D03_a_zombie_cannot_move_the_groups_position(log: Any) -> None:
    with log.producer() as producer:
        put(producer, "a")
    old = transactional(log)
    old.begin_transaction()
    with reader(log, "g") as consumer:
        consumer.subscribe(["t"])
        consumer.poll(60)
        with transactional(log):
            with pytest.raises((ProducerFenced, InvalidProducerEpoch)):
                old.send_offsets_to_transaction(
                    {TopicPartition("t", 0): 1}, consumer.group_metadata()
                )
        committed = consumer.committed([TopicPartition("t", 0)])[0].offset
        assert committed is None or committed < 0
    old.close()
