"""Groups D, E and F of regressions.md: ends of logs, offsets, times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import eoslog
from eoslog.model import TopicPartition

T0 = TopicPartition("t", 0)


def transact(producer: Any, commit: bool, *values: str) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce("t", value)
    producer.flush()
    producer.end_transaction(commit)


def test_R73_a_log_that_ends_in_aborted_records_is_read_to_its_end(log: Any) -> None:
    with log.producer(transactional_id="x", linger_ms=0) as producer:
        producer.init_transactions()
        transact(producer, True, "seen")
        for _ in range(40):
            transact(producer, False, *["hidden"] * 25)
    consumer = log.consumer(auto_offset_reset="earliest")
    consumer.assign([T0])
    found = []
    while consumer.position([T0])[0].offset < log.offsets("t", 0).last_stable:
        found += [r.value for r in consumer.consume(1000, timeout=0.1)]
    consumer.close()
    assert found == [b"seen"]


def test_R81_an_abort_restores_the_offset_that_was_committed_before(directory: Path) -> None:
    with eoslog.open(directory) as log:
        log.create_topic("t")
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            for offset, commit in ((3, True), (9, False)):
                producer.begin_transaction()
                producer.send_offsets_to_transaction({T0: offset}, "g")
                producer.end_transaction(commit)
        producer = log.producer(transactional_id="x")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({T0: 20}, "g")  # and dies here
        log.producer(transactional_id="x").init_transactions()
        with log.consumer(group_id="g") as reader:
            assert reader.committed([T0])[0].offset == 3


def test_R83_every_range_of_a_log_returns_its_committed_records(log: Any) -> None:
    with log.producer(transactional_id="x", linger_ms=0) as producer:
        producer.init_transactions()
        for number in range(6):
            transact(producer, number % 2 == 0, f"{number}a", f"{number}b")
    end = log.offsets("t", 0).last_stable
    rows = [
        (offset, value)
        for b in log.scan("t", columns=["offset", "value"])
        for offset, value in zip(b["offset"].to_pylist(), b["value"].to_pylist(), strict=True)
    ]
    assert [value for _, value in rows] == [b"%d%c" % (n, c) for n in (0, 2, 4) for c in b"ab"]
    for first in range(end):
        for last in range(first + 1, end + 1):
            found = [
                value
                for b in log.scan("t", start={T0: first}, end={T0: last}, columns=["value"])
                for value in b["value"].to_pylist()
            ]
            assert found == [value for offset, value in rows if first <= offset < last]


def test_R84_read_committed_seeks_to_the_last_stable_offset_as_its_end(log: Any) -> None:
    with log.producer(linger_ms=0) as plain:
        plain.send("t", "before").result(30)
    producer = log.producer(transactional_id="x", linger_ms=0)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", "open").result(30)
    log._engine.partition("t", 0).flush()
    for isolation, end in (("read_committed", 1), ("read_uncommitted", 2)):
        with log.consumer(isolation_level=isolation) as reader:
            reader.assign([T0])
            reader.seek_to_end([T0])
            assert reader.position([T0])[0].offset == end
    producer.abort_transaction()
    producer.close()
