"""Rows G: control records, the last stable offset, and what read_committed shows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import TopicPartition
from tests.rows.tools import SCALE, assigned, drain, markers, put, transact, transactional, values

T0 = TopicPartition("t", 0)


def test_G01_markers_have_offsets_and_are_never_returned(log: Any) -> None:
    with transactional(log) as producer:
        for value in "ab":
            transact(producer, value)
        transact(producer, "x", commit=False)
    with assigned(log) as consumer:
        records = consumer.consume(10, 60)
        assert [(r.offset, r.value) for r in records] == [(0, b"a"), (2, b"b")]
        while consumer.position([T0])[0].offset < 6:  # the last marker is flushed late
            assert consumer.consume(1, 0.2) == []
    with assigned(log, isolation_level="read_uncommitted") as consumer:
        assert [r.offset for r in consumer.consume(10, 60)] == [0, 2, 4]


def test_G02_markers_have_the_78_bytes_of_kafkas(log: Any, engine: Any) -> None:
    with transactional(log) as producer:
        transact(producer, "a")
        transact(producer, "b", commit=False)
    commit, abort = markers(engine)
    assert (commit.size, commit.control_type, abort.size, abort.control_type) == (78, 1, 78, 0)
    assert commit.transactional and commit.base_sequence == -1 and commit.coordinator_epoch >= 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_G03_read_committed_hides_aborted_records(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    expected, everything = [], []
    with eoslog.open(tmp_path / "log", durability="os") as log:
        log.create_topic("t", config={"segment.bytes": 4000})
        producers = [transactional(log, f"p{i}") for i in range(50)]
        held: dict[int, list[bytes]] = {}
        for step in range(600):
            index = rng.randrange(50)
            if index not in held:
                producers[index].begin_transaction()
                held[index] = []
            if rng.random() < 0.6:
                put(producers[index], f"{index}-{step}")
                held[index].append(b"%d-%d" % (index, step))
                everything.append(held[index][-1])
            else:
                commit = rng.random() < 0.5
                producers[index].commit_transaction() if commit else producers[
                    index
                ].abort_transaction()
                expected += held.pop(index) if commit else held.pop(index)[:0]
        for index in held:
            producers[index].abort_transaction()
        wanted = set(expected)
        in_order = [v for v in everything if v in wanted]
        assert values(log) == in_order
        with assigned(log) as consumer:
            assert drain(consumer) == in_order
        for producer in producers:
            producer.close()
        assert values(log, isolation="read_uncommitted") == everything


@pytest.mark.slow
def test_G05_an_open_transaction_stops_readers_at_its_first_offset(log: Any) -> None:
    with log.producer() as plain, transactional(log) as producer, assigned(log) as consumer:
        put(plain, "before")
        producer.begin_transaction()
        put(producer, *(f"{n}" * 1000 for n in range(50)))
        put(plain, "behind")
        assert log.offsets("t", 0).last_stable == 1
        assert drain(consumer, 0.2) == [b"before"]
        producer.commit_transaction()
        assert log.offsets("t", 0).last_stable >= 52
        assert len(drain(consumer)) == 51


def private_memory() -> int:
    """Bytes of memory that belong to this process alone; mapped files do not count."""
    line = next(li for li in Path("/proc/self/status").open() if li.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def with_topic(log: Any) -> Any:
    log.create_topic("t")
    return log


@pytest.mark.slow
def test_G05_a_blocked_reader_keeps_no_records_in_memory(tmp_path: Path) -> None:
    size = (32 << 20) * SCALE
    with (
        eoslog.open(tmp_path / "log", durability="os") as log,
        transactional(log) as producer,
        assigned(with_topic(log)) as consumer,
    ):
        producer.begin_transaction()
        for _ in range(size >> 16):
            producer.produce("t", bytes(1 << 16))
        producer.flush()
        before = private_memory()
        assert drain(consumer, 0.5) == []
        assert private_memory() - before < size / 8
        producer.abort_transaction()
        assert drain(consumer, 0.5) == []
        assert private_memory() - before < size / 8


def test_G07_retention_never_deletes_an_open_transaction(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "log", durability="os") as log:
        log.create_topic("t", config={"segment.bytes": 2000, "retention.bytes": 4000})
        with log.producer() as plain, transactional(log) as producer:
            put(plain, *("x" * 500 for _ in range(10)))
            producer.begin_transaction()
            put(producer, "open")
            first = log.transactions()[0]
            (row,) = [r for r in log.producers("t", 0) if r.producer_id == first.producer_id]
            put(plain, *("y" * 500 for _ in range(20)))
            log.clean("t")
            assert log.offsets("t", 0).log_start <= row.current_txn_first_offset
            producer.commit_transaction()
            start = log.offsets("t", 0).log_start
            log.clean("t")
            assert log.offsets("t", 0).log_start > start
        with assigned(log, auto_offset_reset="earliest") as consumer:
            consumer.seek_to_beginning([T0])
            assert consumer.poll(60).value == b"y" * 500


@pytest.mark.slow
def test_G08_a_seek_to_any_offset_still_hides_aborted_records(log: Any) -> None:
    with log.producer() as plain, transactional(log) as producer:
        for number in range(4):
            put(plain, f"plain {number}")
            transact(producer, f"a {number}", f"b {number}", f"c {number}", commit=bool(number % 2))
    committed: list[tuple[int, bytes]] = []
    for batch in log.scan("t"):
        committed += zip(
            batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
        )
    end = log.offsets("t", 0).log_end
    with assigned(log) as consumer:
        for offset in range(end):
            consumer.seek(T0, offset)
            wanted = [v for o, v in committed if o >= offset]
            assert drain(consumer, 0.05) == wanted, offset


def test_G10_a_second_marker_changes_nothing(log: Any, engine: Any) -> None:
    from eoslog import _core
    from eoslog.model import AppendOrigin

    with transactional(log) as producer:
        pid = producer.producer_id
        transact(producer, "a")
        transact(producer, "b", commit=False)
        last = markers(engine)[-1]
        again = _core.build_marker(pid, last.producer_epoch, False, timestamp=last.max_timestamp)
        engine.partition("t", 0).append(again, origin=AppendOrigin.COORDINATOR)
        assert values(log) == [b"a"]
        transact(producer, "c")
    assert values(log) == [b"a", b"c"]


def test_G04_read_uncommitted_shows_all_records(log: Any) -> None:
    with transactional(log) as producer:
        transact(producer, "a", commit=False)
        transact(producer, "b")
    assert values(log, isolation="read_uncommitted") == [b"a", b"b"]


def test_G06_delete_records_removes_only_the_front(log: Any) -> None:
    with transactional(log) as producer:
        for number in range(6):
            transact(producer, str(number), commit=number % 2 == 0)
    log.delete_records({T0: 5})
    assert log.offsets("t", 0).log_start == 5
    assert values(log) == [b"4"]
