"""Rows A: at-most-once, at-least-once and exactly-once, without crashes."""

from __future__ import annotations

import re
from typing import Any

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import CommitFailed, KafkaError, ProducerFenced
from tests.paths import ROOT, TESTS
from tests.rows.tools import assigned, drain, put, reader, transact, transactional, values

DOCS = ROOT / "docs"
T0 = TopicPartition("t", 0)


def test_A04_each_of_the_four_families_of_faults_has_a_suite() -> None:
    faults = TESTS / "faults"
    for family in ("producer", "consumer", "multi_consumer", "disk"):
        text = (faults / f"test_{family}.py").read_text()
        assert text.count("\ndef test_") >= 2, family


def test_A05_an_acknowledged_record_is_below_the_durable_end(log: Any, engine: Any) -> None:
    with log.producer(acks="all", linger_ms=0) as producer:
        offset = producer.send("t", "a").result(60).offset
        assert engine.partition("t", 0).durable_end > offset
        assert log.offsets("t", 0).high_watermark == engine.partition("t", 0).durable_end


@pytest.mark.parametrize(
    ("acks", "idempotent"), [(0, False), (1, False), ("all", False), ("all", True)]
)
def test_A06_each_producer_chooses_its_guarantees(log: Any, acks: Any, idempotent: bool) -> None:
    with log.producer(acks=acks, enable_idempotence=idempotent) as producer:
        put(producer, "a", "b")
        assert (producer.producer_id >= 0) is idempotent
    assert values(log) == [b"a", b"b"]


def test_A07_another_consumer_of_the_group_starts_at_the_committed_position(log: Any) -> None:
    with log.producer() as producer:
        put(producer, *"abcdef")
    with reader(log, "g") as first:
        first.subscribe(["t"])
        records = [first.poll(60) for _ in range(3)]
        first.commit()
    with reader(log, "g") as second:
        second.subscribe(["t"])
        assert records[-1].offset + 1 == second.poll(60).offset == 3


def test_A08_commit_before_processing_skips_records_after_a_crash(log: Any) -> None:
    with log.producer() as producer:
        put(producer, *map(str, range(10)))
    settings: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest"}
    with log.consumer(
        "t", processing_guarantee="at_most_once", max_poll_records=1, **settings
    ) as first:
        for expected in range(6):
            assert first.poll(60).offset == expected
        committed = first.committed([T0])[0].offset
    assert committed == 6
    with log.consumer("t", processing_guarantee="at_most_once", **settings) as second:
        assert second.poll(60).offset == 6


def test_A09_commit_after_processing_repeats_records_after_a_crash(log: Any) -> None:
    with log.producer() as producer:
        put(producer, *map(str, range(10)))
    with reader(log, "g") as first:
        first.subscribe(["t"])
        for expected in range(6):
            record = first.poll(60)
            assert record.offset == expected
            if expected < 5:
                first.commit({T0: expected + 1})
    with reader(log, "g") as second:
        second.subscribe(["t"])
        assert second.poll(60).offset == 5


def test_A10_a_handler_that_deduplicates_runs_once_for_each_key(log: Any) -> None:
    with log.producer() as producer:
        for number in range(5):
            producer.produce("t", str(number), key=f"id-{number}")
    store: dict[Any, Any] = {}
    effects: list[bytes] = []
    for _ in range(2):
        with assigned(log) as consumer:
            for _ in range(5):
                record = consumer.poll(60)
                if eoslog.dedupe(store, record.key):
                    effects.append(record.value)
    assert effects == [b"0", b"1", b"2", b"3", b"4"]


def loop(log: Any, group: str, fail: bool, wait: float = 60) -> None:
    """Write the input in capitals, offsets in the transaction; fail if `fail` is set."""
    with transactional(log, "loop-" + group) as producer, reader(log, group) as consumer:
        consumer.subscribe(["t"])
        records = consumer.consume(100, wait)
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
        consumer.poll(60)
        consumer.commit({T0: 1})
    loop(log, "g", fail=True)
    with reader(log, "g") as consumer:
        assert consumer.committed([T0])[0].offset == 1
    assert values(log, "two") == []
    assert values(log, "two", "read_uncommitted") == [b"B", b"C"]


@pytest.mark.slow
def test_A13_each_isolation_level_shows_its_records(log: Any) -> None:
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
def test_A14_two_separate_commits_lose_or_repeat_and_one_does_neither(
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
    loop(log, "other", fail=False, wait=1)  # there is nothing left
    assert values(log, "two")[len(expected) :] == [b"A", b"B"]


def test_A15_a_member_that_was_replaced_cannot_commit(log: Any) -> None:
    with log.producer() as producer:
        put(producer, *"abcd")
    with transactional(log, "old") as old, reader(log, "g", session_timeout_ms=6000) as stale:
        stale.subscribe(["t"])
        records = stale.consume(10, 60)
        metadata = stale.group_metadata()
        old.begin_transaction()
        put(old, *(r.value.decode() for r in records), topic="two")
        stale.unsubscribe()  # leaves the group; its own generation is stale from now
        with reader(log, "g") as fresh:
            fresh.subscribe(["t"])
            assert fresh.poll(60).offset == 0
            with pytest.raises((CommitFailed, KafkaError)) as refused:
                old.send_offsets_to_transaction({T0: 4}, metadata)
            assert refused.value.name in (
                "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "STALE_MEMBER_EPOCH", "FENCED_MEMBER_EPOCH", "COMMIT_FAILED"
            ) or isinstance(refused.value, CommitFailed)  # fmt: skip
            old.abort_transaction()
            assert fresh.committed([T0])[0].offset in (None, -1001, -1)
    assert values(log, "two") == []


def test_A18_the_docs_describe_the_history_of_guarantees() -> None:
    assert (
        "Before 0.11 Kafka knew at-most-once and at-least-once only"
        in (DOCS / "explanation" / "comparison.md").read_text()
    )


def test_A19_the_docs_offer_idempotent_processing_and_do_not_require_it() -> None:
    text = " ".join((DOCS / "explanation" / "exactly-once.md").read_text().split())
    assert "process each record at least once, and make the effect idempotent" in text
    assert "`eoslog.dedupe`" in text
    assert "does not require this." in text


def test_A21_at_least_once_with_a_unique_key_has_an_exactly_once_effect(log: Any) -> None:
    with log.producer(enable_idempotence=False) as producer:
        for _ in range(2):  # a resend that is not recognised
            producer.produce("t", "v", key="order-1")
    store: set[Any] = set()
    with assigned(log) as consumer:
        done = [r for r in consumer.consume(10, 60) if eoslog.dedupe(store, r.key)]
    assert len(done) == 1


def test_A22_an_outside_effect_can_repeat_and_the_docs_say_so(log: Any) -> None:
    with log.producer() as producer:
        put(producer, "a")
    calls: list[bytes] = []
    for fail in (True, False):
        with transactional(log, "loop") as producer, reader(log, "g") as consumer:
            consumer.subscribe(["t"])
            try:
                with producer.transaction() as tx:
                    for record in consumer.consume(10, 60):
                        calls.append(record.value)  # the world outside has no abort
                        tx.produce("two", record.value, partition=0)
                    tx.commit_offsets(consumer)
                    if fail:
                        raise RuntimeError
            except RuntimeError:
                pass
    assert values(log, "two") == [b"a"]
    assert len(calls) == 2
    assert "An effect outside the log" in (DOCS / "reference" / "limits.md").read_text()


def test_A23_every_limit_names_its_test() -> None:
    listed = re.findall(
        r"^\| (L-\d+) \|", (DOCS / "reference" / "limits.md").read_text(), re.MULTILINE
    )
    page = (DOCS / "contributing" / "guarantee-tests.md").read_text()
    tests = dict(re.findall(r"^\| (L-\d+) \| `(test_\w+)` \|$", page, re.MULTILINE))
    assert len(listed) >= 10
    assert listed == list(tests)
    sources = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    for limit, name in tests.items():
        assert f"def {name}(" in sources, limit


def test_A24_run_transaction_is_atomic_and_repeats_retriable_failures(log: Any) -> None:
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
def test_A25_a_state_and_its_changelog_are_recovered_together(log: Any) -> None:
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


def test_A26_the_three_goals_are_headings_of_the_guarantees_page() -> None:
    text = (DOCS / "explanation" / "guarantees.md").read_text()
    for goal in ("Exactly once", "All or nothing", "State that recovers"):
        assert f"\n## {goal}\n" in text


def test_A03_a_second_instance_fences_the_first(log: Any) -> None:
    with transactional(log) as old, transactional(log) as new:
        with pytest.raises(ProducerFenced):
            transact(old, "zombie")
        transact(new, "alive")
    assert values(log) == [b"alive"]
