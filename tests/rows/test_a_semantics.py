"""Rows A: what at-most-once, at-least-once and exactly-once mean here. Their crashes are in tests/faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import CommitFailed, KafkaError, ProducerFenced
from tests.rows.tools import assigned, drain, put, reader, transact, transactional, values

DOCS = Path(__file__).parent.parent.parent / "docs"
T0 = TopicPartition("t", 0)


def test_A04_the_four_families_of_faults_have_a_suite_each() -> None:
    faults = Path(__file__).parent.parent / "faults"
    for family in ("producer", "consumer", "multi_consumer", "disk"):
        text = (faults / f"test_{family}.py").read_text()
        assert text.count("\ndef test_") >= 2, family


def test_A05_what_is_acknowledged_is_below_the_durable_end(log: Any, engine: Any) -> None:
    with log.producer(acks="all", linger_ms=0) as producer:
        offset = producer.send("t", "a").result(10).offset
        assert engine.partition("t", 0).durable_end > offset
        assert log.offsets("t", 0).high_watermark == engine.partition("t", 0).durable_end


@pytest.mark.parametrize(
    ("acks", "idempotent"), [(0, False), (1, False), ("all", False), ("all", True)]
)
def test_A06_guarantees_are_chosen_by_producer(log: Any, acks: Any, idempotent: bool) -> None:
    with log.producer(acks=acks, enable_idempotence=idempotent) as producer:
        put(producer, "a", "b")
        assert (producer.producer_id >= 0) is idempotent
    assert values(log) == [b"a", b"b"]


def test_A07_another_consumer_of_the_group_starts_at_the_committed_position(log: Any) -> None:
    with log.producer() as producer:
        put(producer, *"abcdef")
    with reader(log, "g") as first:
        first.subscribe(["t"])
        records = [first.poll(5) for _ in range(3)]
        first.commit()
    with reader(log, "g") as second:
        second.subscribe(["t"])
        assert records[-1].offset + 1 == second.poll(5).offset == 3


def test_A08_committing_before_processing_skips_what_a_crash_was_processing(log: Any) -> None:
    with log.producer() as producer:
        put(producer, *map(str, range(10)))
    settings: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest"}
    with log.consumer(
        "t", processing_guarantee="at_most_once", max_poll_records=1, **settings
    ) as first:
        for expected in range(6):
            assert first.poll(5).offset == expected
        committed = first.committed([T0])[0].offset
    assert committed == 6
    with log.consumer("t", processing_guarantee="at_most_once", **settings) as second:
        assert second.poll(5).offset == 6


def test_A09_committing_after_processing_repeats_what_a_crash_was_processing(log: Any) -> None:
    with log.producer() as producer:
        put(producer, *map(str, range(10)))
    with reader(log, "g") as first:
        first.subscribe(["t"])
        for expected in range(6):
            record = first.poll(5)
            assert record.offset == expected
            if expected < 5:
                first.commit({T0: expected + 1})
    with reader(log, "g") as second:
        second.subscribe(["t"])
        assert second.poll(5).offset == 5


def test_A10_a_handler_that_dedupes_runs_once_for_each_key(log: Any) -> None:
    with log.producer() as producer:
        for number in range(5):
            producer.produce("t", str(number), key=f"id-{number}")
    store: dict[Any, Any] = {}
    effects: list[bytes] = []
    for _ in range(2):
        with assigned(log) as consumer:
            for _ in range(5):
                record = consumer.poll(5)
                if eoslog.dedupe(store, record.key):
                    effects.append(record.value)
    assert effects == [b"0", b"1", b"2", b"3", b"4"]


def loop(log: Any, group: str, fail: bool) -> None:
    """Read what is there, write it in capitals, offsets in the transaction; fail before the end if asked."""
    with transactional(log, "loop-" + group) as producer, reader(log, group) as consumer:
        consumer.subscribe(["t"])
        records = consumer.consume(100, 5)
        try:
            with producer.transaction() as tx:
                for record in records:
                    tx.produce("two", record.value.upper(), partition=0)
                producer.flush()
                tx.commit_offsets(consumer)
                if fail:
                    raise RuntimeError("worker gives up")
        except RuntimeError:
            assert fail


@pytest.mark.slow
def test_A11_outputs_and_position_are_one_transaction(log: Any) -> None:
    with log.producer() as producer:
        put(producer, *"abc")
    loop(log, "g", fail=True)
    loop(log, "g", fail=False)
    with reader(log, "g") as consumer:
        consumer.subscribe(["t"])
        assert consumer.poll(0.5) is None
    assert values(log, "two") == [b"A", b"B", b"C"]


def test_A12_an_abort_puts_the_position_back_and_hides_the_outputs(log: Any) -> None:
    with log.producer() as producer:
        put(producer, *"abc")
    with reader(log, "g") as consumer:
        consumer.subscribe(["t"])
        consumer.poll(5)
        consumer.commit({T0: 1})
    loop(log, "g", fail=True)
    with reader(log, "g") as consumer:
        assert consumer.committed([T0])[0].offset == 1
    assert values(log, "two") == []
    assert values(log, "two", "read_uncommitted") == [b"B", b"C"]


@pytest.mark.slow
def test_A13_who_sees_what(log: Any) -> None:
    with log.producer() as plain, transactional(log, "a") as a, transactional(log, "b") as b:
        put(plain, "plain")
        transact(a, "committed")
        transact(a, "aborted", commit=False)
        b.begin_transaction()
        put(b, "open")
        put(plain, "behind the open one")
        everything = [b"plain", b"committed", b"aborted", b"open", b"behind the open one"]
        assert values(log) == [b"plain", b"committed"]
        assert values(log, isolation="read_uncommitted") == everything
        for isolation, expected in (
            ("read_committed", everything[:2]),
            ("read_uncommitted", everything),
        ):
            with assigned(log, isolation_level=isolation) as consumer:
                assert drain(consumer) == expected
        b.abort_transaction()
    assert values(log) == [b"plain", b"committed", b"behind the open one"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "expected"), [("offset first", [b"A"]), ("output first", [b"A", b"B", b"B"])]
)
def test_A14_two_commits_lose_or_repeat_and_one_does_neither(
    log: Any, order: str, expected: list[bytes]
) -> None:
    with log.producer() as producer:
        put(producer, "a", "b")
    died: list[str] = []
    for _ in range(2):  # two lives; the first one dies between the two steps of its second record
        with reader(log, "g") as consumer, log.producer(linger_ms=0) as producer:
            consumer.subscribe(["t"])
            while record := consumer.poll(0.5):
                steps = [
                    lambda r=record: consumer.commit({T0: r.offset + 1}),
                    lambda r=record: put(producer, r.value.decode().upper(), topic="two"),
                ]
                first, second = steps if order == "offset first" else steps[::-1]
                first()
                if record.value == b"b" and not died:
                    died.append(order)
                    break
                second()
    assert values(log, "two") == expected
    loop(log, "other", fail=True)
    loop(log, "other", fail=False)
    loop(log, "other", fail=False)
    assert values(log, "two")[len(expected) :] == [b"A", b"B"]


def test_A15_a_member_that_was_replaced_can_commit_nothing(log: Any) -> None:
    with log.producer() as producer:
        put(producer, *"abcd")
    with transactional(log, "old") as old, reader(log, "g", session_timeout_ms=6000) as stale:
        stale.subscribe(["t"])
        records = stale.consume(10, 5)
        metadata = stale.group_metadata()
        old.begin_transaction()
        put(old, *(r.value.decode() for r in records), topic="two")
        stale.unsubscribe()  # leaves the group; what it remembers of itself is stale from here on
        with reader(log, "g") as fresh:
            fresh.subscribe(["t"])
            assert fresh.poll(5).offset == 0
            with pytest.raises((CommitFailed, KafkaError)) as refused:
                old.send_offsets_to_transaction({T0: 4}, metadata)
            assert refused.value.name in (
                "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "STALE_MEMBER_EPOCH", "FENCED_MEMBER_EPOCH", "COMMIT_FAILED"
            ) or isinstance(refused.value, CommitFailed)  # fmt: skip
            old.abort_transaction()
            assert fresh.committed([T0])[0].offset in (None, -1001, -1)
    assert values(log, "two") == []


def test_A18_the_docs_tell_the_history() -> None:
    assert (
        "Before 0.11 Kafka knew at-most-once and at-least-once only"
        in (DOCS / "comparison.md").read_text()
    )


def test_A19_the_docs_offer_idempotent_processing_and_do_not_demand_it() -> None:
    text = " ".join((DOCS / "limits.md").read_text().split())
    assert "at-least-once delivery and an idempotent effect, for which `dedupe`" in text
    assert "eoslog does not demand it" in text


def test_A21_at_least_once_and_a_unique_key_are_exactly_once_in_effect(log: Any) -> None:
    with log.producer(enable_idempotence=False) as producer:
        for _ in range(2):  # a resend that nobody recognises
            producer.produce("t", "v", key="order-1")
    store: set[Any] = set()
    with assigned(log) as consumer:
        done = [r for r in consumer.consume(10, 2) if eoslog.dedupe(store, r.key)]
    assert len(done) == 1


def test_A22_an_effect_outside_can_repeat_and_the_docs_say_so(log: Any) -> None:
    with log.producer() as producer:
        put(producer, "a")
    calls: list[bytes] = []
    for fail in (True, False):
        with transactional(log, "loop") as producer, reader(log, "g") as consumer:
            consumer.subscribe(["t"])
            try:
                with producer.transaction() as tx:
                    for record in consumer.consume(10, 5):
                        calls.append(record.value)  # the world outside has no abort
                        tx.produce("two", record.value, partition=0)
                    tx.commit_offsets(consumer)
                    if fail:
                        raise RuntimeError
            except RuntimeError:
                pass
    assert values(log, "two") == [b"a"]
    assert len(calls) == 2
    assert "An effect outside the log" in (DOCS / "limits.md").read_text()


def test_A23_every_limit_names_the_test_that_shows_it() -> None:
    rows = [
        line for line in (DOCS / "limits.md").read_text().splitlines() if line.startswith("| L")
    ]
    assert len(rows) >= 10
    sources = "\n".join(
        path.read_text() for path in Path(__file__).parent.parent.rglob("test_*.py")
    )
    for row in rows:
        name = row.rstrip("| ").rsplit("`", 2)[1]
        assert f"def {name}(" in sources, row


def test_A24_run_transaction_is_all_or_nothing_and_repeats_what_may_be_repeated(log: Any) -> None:
    attempts: list[int] = []

    def work(tx: Any) -> str:
        attempts.append(1)
        tx.produce("two", "debit", partition=0)
        if len(attempts) < 3:
            raise eoslog.errors.TransactionAborted("once more")
        tx.produce("two", "credit", partition=1)
        return "done"

    assert log.run_transaction(work, transactional_id="book") == "done"
    assert values(log, "two") == [b"debit", b"credit"]

    def broken(tx: Any) -> None:
        tx.produce("two", "half", partition=0)
        raise ValueError("the caller's own mistake")

    with pytest.raises(ValueError, match="mistake"):
        log.run_transaction(broken, transactional_id="book")
    assert values(log, "two") == [b"debit", b"credit"]


@pytest.mark.slow
def test_A25_a_state_and_its_changelog_come_back_together(log: Any) -> None:
    counts: dict[str, int] = {}
    with log.producer() as producer:
        put(producer, *"abab")

    def count(fail: bool) -> None:
        with transactional(log, "count") as producer, reader(log, "count") as consumer:
            counts.clear()
            for batch in log.scan("two"):
                for key, value in zip(
                    batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True
                ):
                    counts[key.decode()] = int(value)
            consumer.subscribe(["t"])
            try:
                with producer.transaction() as tx:
                    for record in consumer.consume(100, 2):
                        word = record.value.decode()
                        counts[word] = counts.get(word, 0) + 1
                        tx.produce("two", str(counts[word]), key=word)
                    tx.commit_offsets(consumer)
                    if fail:
                        raise RuntimeError
            except RuntimeError:
                pass

    count(fail=True)
    count(fail=False)
    count(fail=False)
    assert counts == {"a": 2, "b": 2}


def test_A26_the_three_goals_are_headings_with_their_proof() -> None:
    text = (DOCS / "guarantees.md").read_text()
    for goal in ("Exactly once", "All or nothing", "State that recovers"):
        assert f"\n## {goal}\n" in text


def test_A03_a_second_instance_ends_the_first(log: Any) -> None:
    with transactional(log) as old, transactional(log) as new:
        with pytest.raises(ProducerFenced):
            transact(old, "zombie")
        transact(new, "alive")
    assert values(log) == [b"alive"]
