"""Calls with arguments of a wrong type raise a typed error and do nothing.

The error names the argument.
"""

from __future__ import annotations

import math
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from eoslog._util.arguments import as_mode
from eoslog.client.producer.delivery import Delivery
from eoslog.client.producer.transactions.transaction import Transaction
from eoslog.client.scan.segment_scan import read_segments
from eoslog.errors import ConfigError, PolicyViolation
from eoslog.kafka.adopt_directory import import_kafka_dir
from eoslog.model import OffsetAndMetadata, TopicPartition
from eoslog.opening import open as open_log


@pytest.fixture
def log(path: str) -> Any:
    with open_log(path) as opened:
        opened.create_topic("t")
        with opened.producer() as producer:
            producer.produce_many("t", [b"0", b"1", b"2"])
        yield opened


WRONG: dict[str, tuple[Any, str]] = {
    "delete_records of no mapping": (lambda log: log.delete_records([1]), "offsets.*dict"),
    "delete_records of names": (lambda log: log.delete_records({"t": 0}), "TopicPartition"),
    "delete_records before a word": (lambda log: log.delete_records({("t", 0): "x"}), "an offset"),
    "reset_offsets of no mapping": (lambda log: log.reset_offsets("g", 3), "offsets.*dict"),
    "reset_offsets of names": (lambda log: log.reset_offsets("g", {"t": 0}), "TopicPartition"),
    "reset_offsets to a word": (lambda log: log.reset_offsets("g", {("t", 0): "x"}), "an offset"),
    "reset_offsets to nowhere": (lambda log: log.reset_offsets("g", {("t", 0): -1}), "0 or more"),
    "reset_offsets above 64 bits": (
        lambda log: log.reset_offsets("g", {("t", 0): 2**70}),
        "t-0.*above 64 bits",
    ),
    "a committed offset above 64 bits": (
        lambda log: log.reset_offsets("g", {("t", 0): OffsetAndMetadata(2**63)}),
        "t-0.*64 bits",
    ),
    "a time above 64 bits": (lambda log: log.offset_for_time("t", 0, 2**70), "above 64 bits"),
    "seek_to_time above 64 bits": (
        lambda log: log.consumer("t").seek_to_time(None, 2**70),
        "above 64 bits",
    ),
    "alter_topic": (lambda log: log.alter_topic("t", None), "config.*dict"),
    "consumer": (lambda log: log.consumer(["t"]), "topics.*one by one"),
    "consumer of a group": (lambda log: log.consumer(["t"], group_id="g"), "topics.*one by one"),
    "producer": (lambda log: log.producer("t"), "config.*dict"),
    "producer elsewhere": (lambda log: log.producer(log_dir="o"), "log_dir: this log is .*'o'"),
    "producer by key": (lambda log: log.producer({"log.dir": "o"}), "log.dir: this log is .*'o'"),
    "consumer elsewhere": (lambda log: log.consumer("t", log_dir="o"), "log_dir: this log is"),
    "snapshot of a string": (lambda log: log.snapshot("t"), "topics: expected a list of names"),
    "trace": (lambda log: log.trace(5), "trace: expected a function, got 5"),
    "time as text": (
        lambda log: log.offset_for_time("t", 0, "1005"),
        "ms since 1970 as int.*'1005'",
    ),
    "time as datetime": (
        lambda log: log.offset_for_time("t", 0, datetime.now(UTC)),
        r"timestamp_ms: expected ms since 1970 as int, got datetime",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_named_and_changes_nothing(log: Any, name: str) -> None:
    call, match = WRONG[name]
    with pytest.raises(ConfigError, match=match):
        call(log)
    assert log.offsets("t", 0) == (0, 3, 3, 3)
    assert log.groups() == []


def test_a_partition_may_be_a_plain_tuple(log: Any) -> None:
    assert log.delete_records({("t", 0): 2}) == {TopicPartition("t", 0): 2}
    log.reset_offsets("g", {("t", 0): 3})
    assert log._engine.groups.fetch_offsets("g")[TopicPartition("t", 0)].offset == 3


def test_write_versions_of_spark_cannot_be_moved_or_deleted_by_accident(log: Any) -> None:
    group, version = "__eoslog-spark-app", {TopicPartition("t", 0): OffsetAndMetadata(7)}
    log._engine.groups.commit_offsets(group, "", -1, version)
    for call in (lambda: log.delete_group(group), lambda: log.reset_offsets(group, {("t", 0): 0})):
        with pytest.raises(PolicyViolation, match=f"{group}' stores Spark write versions"):
            call()
    assert log.describe_group(group).offsets[TopicPartition("t", 0)].offset == 7
    log.delete_group(group, force=True)
    assert log.groups() == []


def test_a_group_can_be_set_to_an_end_by_its_name(log: Any) -> None:
    log.delete_records({("t", 0): 1})
    for name, offset in (("earliest", 1), ("latest", 3)):
        log.reset_offsets("g", {TopicPartition("t", 0): name})
        assert log.describe_group("g").offsets[TopicPartition("t", 0)].offset == offset


def test_a_client_accepts_its_own_directory_as_log_dir(log: Any) -> None:
    log.producer({"log.dir": log.path}).close()
    log.consumer("t", log_dir=Path(log.path)).close()


def test_the_directory_of_a_client_can_be_named_by_a_link(log: Any, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(log.path)
    with log.producer({"log.dir": link}) as producer:
        producer.produce("t", b"3")
    with log.consumer("t", log_dir=str(link), auto_offset_reset="earliest") as consumer:
        assert [record.value for record in consumer.consume(4, 60)] == [b"0", b"1", b"2", b"3"]


PRODUCER: dict[str, tuple[Any, str]] = {
    "poll": (lambda p: p.poll(None), "poll: expected a timeout in seconds, got None"),
    "flush": (lambda p: p.flush("1"), "flush: expected a timeout in seconds, got '1'"),
    "flush for nan": (lambda p: p.flush(float("nan")), "flush: .*seconds, got nan"),
    "result": (
        lambda p: Delivery().result("1"),
        "timeout: expected a timeout in seconds, got '1'",
    ),
    "close": (lambda p: p.close("1"), "close: expected a timeout in seconds, got '1'"),
    "init": (lambda p: p.init_transactions("1"), "timeout: expected a timeout in seconds, got '1'"),
}


@pytest.mark.parametrize("name", PRODUCER)
def test_a_wrong_argument_of_a_producer_is_named_and_it_stays_usable(log: Any, name: str) -> None:
    call, match = PRODUCER[name]
    with log.producer(transactional_id="x") as producer:
        with pytest.raises(ConfigError, match=match):
            call(producer)
        producer.init_transactions()


CONSUMER: dict[str, tuple[Any, str]] = {
    "consume": (lambda c: c.consume("5"), "num_messages: expected 1 or more, got '5'"),
    "consume_arrow": (lambda c: c.consume_arrow("5"), "num_messages: expected 1 or more, got '5'"),
    "poll": (lambda c: c.poll("1"), "timeout: expected a timeout in seconds, got '1'"),
    "seek": (
        lambda c: c.seek(TopicPartition("t", 0), "0"),
        r"""seek: expected an offset of 0 to 2\^63 - 1, "earliest" or "latest", got '0'""",
    ),
    "seek to a negative offset": (lambda c: c.seek(("t", 0), -2), '"earliest" or .* got -2'),
    "seek in names": (lambda c: c.seek("t", 0), "expected a TopicPartition, got 't'"),
    "assign at a negative offset": (
        lambda c: c.assign([TopicPartition("t", 0, -2)]),
        r't-0: expected an offset of .*, "earliest" or "latest", got -2',
    ),
    "assign at a word": (lambda c: c.assign([TopicPartition("t", 0, "start")]), "got 'start'"),
    "committed in names": (lambda c: c.committed("t"), "expected TopicPartitions, got 't'"),
    "committed": (
        lambda c: c.committed([], "1"),
        "timeout: expected a timeout in seconds, got '1'",
    ),
    "lag in names": (lambda c: c.current_lag("t"), "expected TopicPartitions, got 't'"),
    "seek_to_time": (
        lambda c: c.seek_to_time(None, "1005"),
        "timestamp_ms: expected ms since 1970 as int, got '1005'",
    ),
    "subscribe to None": (lambda c: c.subscribe(None), "subscribe: expected topic names .*None"),
    "subscribe to 5": (lambda c: c.subscribe(5), "subscribe: expected topic names .*got 5"),
}


@pytest.mark.parametrize("name", CONSUMER)
def test_a_wrong_argument_of_a_consumer_is_named_and_it_stays_usable(log: Any, name: str) -> None:
    call, match = CONSUMER[name]
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        with pytest.raises(ConfigError, match=match):
            call(consumer)
        assert [record.value for record in consumer.consume(3, 60)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("place", ["", "a\0b", b"here", 3, None])
def test_open_rejects_an_argument_that_is_not_a_path(
    place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="path: expected the path of a directory, got"):
        open_log(place)
    assert os.listdir() == []


@pytest.mark.parametrize("timeout", [math.nan, -1, -math.inf, True, "1"])
def test_every_call_rejects_an_invalid_timeout(log: Any, timeout: Any) -> None:
    with log.producer(transactional_id="x") as producer, log.consumer("t") as consumer:
        calls = [
            producer.init_transactions,
            producer.flush,
            producer.poll,
            producer.close,
            lambda t: consumer.consume(1, t),
            consumer.poll,
            Delivery().result,
        ]
        for call in calls:
            with pytest.raises(ConfigError, match="expected a timeout in seconds"):
                call(timeout)


@pytest.mark.parametrize("timeout", [math.inf, 1e10, 10**400])
def test_a_timeout_larger_than_any_clock_is_accepted(log: Any, timeout: Any) -> None:
    with log.producer(transactional_id="x", linger_ms=60_000) as producer:
        producer.init_transactions(timeout)
        producer.begin_transaction()
        sent = producer.send("t", "v")
        flush = threading.Timer(0.05, producer.flush, (timeout,))
        flush.start()
        assert sent.result(timeout).offset == 3
        flush.join()
        producer.commit_transaction(timeout)
    with log.consumer(group_id="g") as consumer:
        consumer.assign([TopicPartition("t", 0, 3)])
        assert consumer.poll(timeout).value == b"v"
        threading.Timer(0.05, consumer.wakeup).start()
        assert consumer.poll(timeout) is None
        assert consumer.committed(TopicPartition("t", 0), timeout) is None


MISSPELT: dict[str, tuple[Any, str, str]] = {
    "scan": (lambda log: log.scan("t", partition=[0]), "partition", "partitions"),
    "scan by Kafka's name": (
        lambda log: log.scan("t", isolation_level="x"), "isolation_level", "isolation"
    ),
    "create_topic": (lambda log: log.create_topic("u", partition=3), "partition", "partitions"),
    "check": (lambda log: log.check(Full=True), "Full", "full"),
    "a missing one": (
        lambda log: log.run_transaction(print, transaction_id="x"),
        "transaction_id",
        "transactional_id",
    ),
    "options of a move": (
        lambda log: log.export_kafka("h:1", ["t"], recrods=1), "recrods", "records"
    ),
    "a function": (lambda log: read_segments(log.path, isolaton="x"), "isolaton", "isolation"),
    "a constructor": (lambda log: Transaction(producr=1), "producr", "producer"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISSPELT)
def test_field_C7_a_misspelt_keyword_gets_a_suggestion(log: Any, kind: str) -> None:
    call, given, meant = MISSPELT[kind]
    with pytest.raises(TypeError, match=f"did you mean '{meant}' instead of '{given}'"):
        call(log)


@pytest.mark.parametrize(
    "call", [lambda log: log.scan("t", zzz=1), lambda log: log.scan(), lambda log: log.scan("t", 1)]
)
def test_field_C7_other_wrong_calls_get_no_suggestion(log: Any, call: Any) -> None:
    with pytest.raises(TypeError) as raised:
        call(log)
    assert "did you mean" not in str(raised.value)


def test_a_relative_path_in_a_removed_directory_raises_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    with pytest.raises(ConfigError, match="'shop' is relative, and the current directory was rem"):
        open_log("shop")
    open_log(tmp_path / "shop").close()


def test_an_import_rejects_one_string_as_its_topics_and_an_empty_source(tmp_path: Path) -> None:
    source = tmp_path / "kafka"
    (source / "a-0").mkdir(parents=True)
    (source / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    with pytest.raises(ConfigError, match="topics: expected .*, got 'a'"):
        import_kafka_dir(source, tmp_path / "log", topics="a")
    with pytest.raises(ConfigError, match="expected the path of a directory, got ''"):
        import_kafka_dir("", tmp_path / "log")
    assert import_kafka_dir(source, tmp_path / "log", topics=["a"]).topics == ("a",)


@pytest.mark.parametrize(
    ("mode", "advice"), [(770, "0o770"), (755, "0o755"), (0, "0o770"), (444, "0o770")]
)
def test_an_error_about_a_mode_advises_one_that_is_accepted(mode, advice):
    with pytest.raises(ConfigError, match=f"write {advice}$"):
        as_mode(mode)
    assert as_mode(int(advice, 8)) == int(advice, 8)
