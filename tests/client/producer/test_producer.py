"""The producer on real directories: delivery, refusals, acks, fork, closing."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import _core
from eoslog.client.producer.producer import Producer
from eoslog.client.producer.sender import Sender
from eoslog.engine import registry
from eoslog.errors import (
    ConfigError,
    DeliveryTimeout,
    IllegalState,
    InvalidTopic,
    KafkaError,
    LockTimeout,
    QueueFull,
    RecordTooLarge,
    SerializationError,
    StorageError,
    UnknownTopicOrPartition,
)
from eoslog.log import Log
from eoslog.model import RecordMetadata
from eoslog.storage.format import codecs
from eoslog.storage.log.published_end import PublishedEnd
from tests.client.helpers import Refusing, batches, stored
from tests.descriptors import opened_files

# --- delivery -------------------------------------------------------------------------------


def test_records_are_stored_in_order_and_callbacks_get_their_offsets(log: Log) -> None:
    told: list[tuple[Any, RecordMetadata]] = []
    with log.producer() as producer:
        for i in range(1000):
            producer.produce("one", b"v%d" % i, on_delivery=lambda e, m: told.append((e, m)))
        assert producer.flush() == 0
        assert [m.offset for _, m in told] == list(range(1000))
        assert all(e is None and not m.duplicate for e, m in told)
    assert [value for _, _, value in stored(log)] == [b"v%d" % i for i in range(1000)]
    assert log._engine.partition("one", 0).durable_end == 1000


def test_a_delivery_resolves_without_poll_or_flush(log: Log) -> None:
    with log.producer() as producer:
        delivery = producer.send("one", b"v", b"k", timestamp=1234)
        assert delivery.result(60) == RecordMetadata("one", 0, 0, 1234)
        assert delivery.done() and delivery.exception() is None


def test_result_raises_at_its_timeout_and_can_be_called_again(log: Log) -> None:
    with log.producer(linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        delivery = producer.send("one", b"v")
        with pytest.raises(DeliveryTimeout):
            delivery.result(0.01)
        producer.flush()
        assert delivery.result(0).offset == 0


@pytest.mark.slow
def test_linger_ms_is_kept_without_calls_to_poll(log: Log) -> None:
    with log.producer(linger_ms=1500) as producer:
        part = log._engine.partition("one", 0)
        producer.produce("one", b"v")
        assert part.log_end == 0
        assert part.wait(0, 60, of=PublishedEnd.LOG_END)


def test_callbacks_run_only_in_the_thread_that_polls(log: Log) -> None:
    threads: list[Any] = []
    with log.producer(linger_ms=0) as producer:
        producer.produce(
            "one", b"v", on_delivery=lambda e, m: threads.append(threading.get_ident())
        )
        assert producer.poll(60) == 1
    assert threads == [threading.get_ident()]


def test_an_error_in_a_callback_is_raised_and_loses_no_other_callback(log: Log) -> None:
    told: list[int] = []

    def broken(error: Any, metadata: RecordMetadata) -> None:
        raise ZeroDivisionError

    with log.producer() as producer:
        producer.produce("one", b"a", on_delivery=broken)
        producer.produce("one", b"b", on_delivery=lambda e, m: told.append(m.offset))
        with pytest.raises(ZeroDivisionError):
            producer.flush()
        producer.poll()
        assert told == [1]


def test_a_buffer_without_bytes_and_a_dict_of_values_are_rejected(log: Log) -> None:
    released = memoryview(b"gone")
    released.release()
    with log.producer() as producer:
        with pytest.raises(SerializationError, match="got memoryview"):
            producer.produce("one", released)
        with pytest.raises(SerializationError, match="expected a sequence of values, got dict"):
            producer.produce_many("one", {"key": "value"})
    assert stored(log) == []


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_stored(log: Log, codec: str) -> None:
    with log.producer(compression_type=codec) as producer:
        producer.produce_many("one", [b'{"order":%d}' % i for i in range(2000)])
    assert [value for _, _, value in stored(log)] == [b'{"order":%d}' % i for i in range(2000)]
    assert {batch.compression for batch in batches(log)} == {codec}


def test_a_compressed_record_that_readers_would_reject_is_too_large(log: Log) -> None:
    """Zeros of any length fit into a small batch."""
    huge = bytes(codecs.MAX_DECOMPRESSED)
    most = (1 << 31) - 1
    with log.producer(compression_type="gzip", max_request_size=most, buffer_memory=most) as p:
        with pytest.raises(RecordTooLarge):
            p.produce("one", huge)
        p.produce("one", b"small")
    assert [value for _, _, value in stored(log)] == [b"small"]


def test_a_record_too_large_for_the_codec_of_its_topic_is_rejected(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codecs, "MAX_DECOMPRESSED", 1000)
    log.alter_topic("one", {"compression.type": "gzip"})
    with log.producer() as producer:
        large = producer.send("one", bytes(2000))
        with pytest.raises(RecordTooLarge):
            large.result(60)
        producer.produce_many("one", [bytes(100)] * 50)
    assert [value for _, _, value in stored(log)] == [bytes(100)] * 50


def test_headers_and_timestamps_are_stored(log: Log) -> None:
    with log.producer() as producer:
        producer.produce("one", "ä", headers={"a": b"1", "b": None}, timestamp=77)
    (batch,) = batches(log)
    assert batch.records() == [(0, 77, None, "ä".encode(), [("a", b"1"), ("b", None)])]


OF_HUGE_HEADERS = """
import mmap, resource, sys
import eoslog

log = eoslog.open(sys.argv[1])
producer = log.producer()
huge = mmap.mmap(-1, 1 << 31)  # pages that are never touched take no memory
used = int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
for headers in ([("a", huge)], {"a": "x" * (64 << 20)}, {"x" * (64 << 20): b""}):
    try:
        producer.produce("one", b"v", headers=headers)
    except eoslog.errors.RecordTooLarge as error:
        print(error)
"""


@pytest.mark.process
def test_headers_above_the_limit_of_a_record_are_not_copied(log: Log) -> None:
    log.close()
    command = [sys.executable, "-c", OF_HUGE_HEADERS, log.path]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert [line.rpartition(" bytes ")[2] for line in run.stdout.splitlines()] == [
        "exceeds max.request.size = 1048576"
    ] * 3


def test_metadata_contains_the_log_append_time(log: Log) -> None:
    log.create_topic("stamped", 1, {"message.timestamp.type": "LogAppendTime"})
    with log.producer() as producer:
        metadata = producer.send("stamped", b"v", timestamp=5).result(60)
    assert metadata.timestamp > 1_600_000_000_000


def test_keys_keep_their_partition_and_order(log: Log) -> None:
    with log.producer(linger_ms=0) as producer:
        for i in range(600):
            producer.produce("t", b"%d" % i, b"key%d" % (i % 7))
    for partition in range(3):
        seen: dict[bytes, list[int]] = {}
        for _, key, value in stored(log, "t", partition):
            assert _core.partition_for_key(key, 3) == partition
            seen.setdefault(key, []).append(int(value))
        assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_produce_finds_new_partitions(log: Log) -> None:
    with log.producer() as producer:
        producer.produce("t", b"v", partition=0)
        log.create_partitions("t", 4)
        producer.produce("t", b"v", partition=3)
    assert len(stored(log, "t", 3)) == 1


def test_partitions_for_returns_the_current_partitions(log: Log) -> None:
    with log.producer() as producer:
        before = producer.partitions_for("t")
        assert before == list(range(len(log.partitions_of("t"))))
        log.create_partitions("t", len(before) + 1)
        assert producer.partitions_for("t") == [*before, len(before)]
        with pytest.raises(UnknownTopicOrPartition, match="nope"):
            producer.partitions_for("nope")
    with pytest.raises(IllegalState):
        producer.partitions_for("t")


def test_threads_can_share_a_producer(log: Log) -> None:
    with log.producer(buffer_memory=200_000, batch_size=4000) as producer:

        def work(name: int) -> None:
            for i in range(3000):
                producer.produce("t", b"%d %d" % (name, i), b"%d" % name)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for name in range(4):
        numbers = [
            int(value.split()[1])
            for partition in range(3)
            for _, key, value in stored(log, "t", partition)
            if key == b"%d" % name
        ]
        assert numbers == list(range(3000))


# --- what is refused ------------------------------------------------------------------------


def test_unknown_and_internal_topics_raise_in_produce(log: Log) -> None:
    with log.producer() as producer:
        with pytest.raises(UnknownTopicOrPartition):
            producer.produce("nope", b"v")
        with pytest.raises(InvalidTopic):
            producer.produce("__transaction_state", b"v")
        with pytest.raises(UnknownTopicOrPartition):
            producer.produce("t", b"v", partition=3)


def test_a_record_that_is_too_large_raises_in_produce(log: Log) -> None:
    log.create_topic("small", 1, {"max.message.bytes": 1000})
    with log.producer(max_request_size=5000) as producer:
        with pytest.raises(RecordTooLarge, match="max.request.size = 5000"):
            producer.produce("one", bytes(5000))
        with pytest.raises(RecordTooLarge, match="max.message.bytes = 1000"):
            producer.produce("small", bytes(1000))
        producer.produce("one", bytes(4000))


@pytest.mark.parametrize(
    "config",
    [
        {"acks": 1, "enable.idempotence": True},
        {"retries": 0, "transactional.id": "x"},
        {"enable.idempotence": False, "transactional.id": "x"},
        {"max.in.flight.requests.per.connection": 6},
        {"linger_msec": 5},
        {"compression.type": "brotli"},
    ],
)
def test_conflicting_configuration_keys_are_rejected(log: Log, config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        log.producer(config)


def test_a_producer_requires_a_directory() -> None:
    with pytest.raises(ConfigError, match=r"log\.dir"):
        Producer({"acks": "all"})


def test_a_java_style_configuration_works_without_a_broker(log: Log) -> None:
    config = {
        "bootstrap.servers": "localhost:9092",
        "log.dir": log.path,
        "acks": "all",
        "key.serializer": "org.apache.kafka.common.serialization.IntegerSerializer",
        "value.serializer": "org.apache.kafka.common.serialization.StringSerializer",
    }
    with Producer(config) as producer:
        producer.produce("one", "v", 7)
    assert stored(log) == [(0, b"\x00\x00\x00\x07", b"v")]


def test_a_full_buffer_blocks_and_then_raises(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Refusing(log, monkeypatch)
    refusing.errors = [LockTimeout("held by process 1")] * 1000
    producer = log.producer(buffer_memory=3000, max_block_ms=100)
    with pytest.raises(QueueFull, match=r"buffer full for 100 ms \(max\.block\.ms\)"):
        for _ in range(100):
            producer.produce("one", bytes(100))
    refusing.errors.clear()
    producer.flush()
    producer.close()
    with log.producer(buffer_memory=3000, max_block_ms=60_000) as patient:
        for _ in range(100):
            patient.produce("one", bytes(100))  # waits for room, and continues


# --- acks -----------------------------------------------------------------------------------


def test_acks_0_resolves_immediately_and_ignores_errors(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(log, monkeypatch)
    refusing.errors = [StorageError("broken")]
    told: list[Any] = []
    with log.producer(acks=0, batch_size=0) as producer:
        assert not producer._config.enable_idempotence
        delivery = producer.send("one", b"a")
        assert delivery.result(0).offset == -1
        producer.flush()
        producer.produce("one", b"b", on_delivery=lambda e, m: told.append((e, m.offset)))
        producer.flush()
        assert told == [(None, -1)]
        assert producer.stats()["errors"] == 1
    assert [value for _, _, value in stored(log)] == [b"b"]
    assert batches(log)[0].producer_id == -1


def test_acks_1_does_not_wait_for_the_disk(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    part = log._engine.partition("one", 0)
    monkeypatch.setattr(log._engine, "flush_many", None)
    with log.producer(acks=1) as producer:
        assert producer.send("one", b"v").result(60).offset == 0
    assert part.log_end == 1


def test_acks_all_resolves_only_after_the_flush(log: Log) -> None:
    with log.producer() as producer:
        for i in range(20):
            metadata = producer.send("one", b"v").result(60)
            assert log._engine.partition("one", 0).durable_end > metadata.offset == i


# --- the end --------------------------------------------------------------------------------


def test_close_sends_buffered_records_and_is_idempotent(log: Log) -> None:
    producer = log.producer(linger_ms=60_000, delivery_timeout_ms=120_000)
    producer.produce("one", b"v")
    producer.close()
    producer.close()
    assert len(stored(log)) == 1
    for call in (lambda: producer.produce("one", b"v"), producer.flush, producer.poll):
        with pytest.raises(IllegalState, match="closed"):
            call()


@pytest.mark.parametrize(
    ("call", "hook"),
    [("send", "serializer"), ("send", "partitioner"), ("produce_many", "serializer"),
     ("produce_many", "partitioner"), ("produce_arrow", "partitioner")],
)  # fmt: skip
@pytest.mark.parametrize("end", ["close", "commit", "abort"])
def test_a_record_added_after_close_commit_or_abort_is_rejected(
    log: Log, hook: str, call: str, end: str
) -> None:
    """The producer ends while the caller's code runs.

    That is after the call began and before the record is added.
    """
    armed = []

    def ends(value: Any) -> Any:
        if armed:
            armed.clear()
            {
                "close": producer.close,
                "commit": producer.commit_transaction,
                "abort": producer.abort_transaction,
            }[end]()
        return value

    hooks: dict[str, Any] = {
        "serializer": {"value_serializer": ends},
        "partitioner": {"partitioner": lambda topic, key, count: ends(0)},
    }
    options = {} if end == "close" else {"transactional_id": "late"}
    with log.producer(
        linger_ms=60_000, delivery_timeout_ms=120_000, **options, **hooks[hook]
    ) as producer:
        if options:
            producer.init_transactions()
            producer.begin_transaction()
        producer.produce("one", b"in time")
        armed.append(True)
        with pytest.raises(IllegalState):
            if call == "send":
                producer.send("one", b"late")
            elif call == "produce_many":
                producer.produce_many("one", [b"late", b"later"])
            else:
                pa = pytest.importorskip("pyarrow")
                producer.produce_arrow("one", pa.table({"value": [b"late", b"later"]}))
        assert producer.buffered == 0
    assert [value for _, _, value in stored(log)] == [b"in time"] * (end != "abort")


def test_close_fails_the_records_left_at_its_timeout(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(log, monkeypatch)
    refusing.errors = [LockTimeout("busy")] * 1000
    producer = log.producer()
    delivery = producer.send("one", b"v")
    producer.produce("one", b"nobody asks for it")
    with pytest.raises(IllegalState, match="closed before this record was sent"):
        producer.close(0.05)
    with pytest.raises(IllegalState):
        delivery.result(0)
    assert producer.buffered == 0


def test_a_forked_child_cannot_use_a_producer_and_the_parent_continues(log: Log) -> None:
    producer = log.producer(linger_ms=60_000, delivery_timeout_ms=120_000)
    producer.produce("one", b"parent")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            producer.produce("one", b"child")
        except IllegalState:
            try:
                producer.flush()
            except IllegalState:
                producer.close()
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    producer.produce("one", b"still")
    producer.close()
    assert [value for _, _, value in stored(log)] == [b"parent", b"still"]


def test_close_leaves_no_thread_running(log: Log) -> None:
    def senders() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith("eoslog-sender")]

    with log.producer(linger_ms=0) as producer:
        producer.send("one", b"v").result(60)
        assert len(senders()) == 1
    assert senders() == []


def test_an_interrupt_at_any_step_neither_loses_nor_duplicates_records(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = log._engine.partition("one", 0)
    real_append, real_flush = part.append, log._engine.flush_many
    armed = [""]

    def append(data: Any, **keywords: Any) -> Any:
        result = real_append(data, **keywords)
        if armed[0] == "append":
            armed[0] = ""
            raise KeyboardInterrupt  # after the log has it
        return result

    def flush(targets: Any) -> None:
        if armed[0] == "flush":
            armed[0] = ""
            raise KeyboardInterrupt
        real_flush(targets)

    monkeypatch.setattr(part, "append", append)
    monkeypatch.setattr(log._engine, "flush_many", flush)
    monkeypatch.setattr(Sender, "wake", lambda self: None)  # signals reach the main thread only
    told: list[int] = []
    with log.producer(linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        for i in range(6):
            producer.produce("one", b"%d" % i, on_delivery=lambda e, m: told.append(m.offset))
            armed[0] = ("append", "flush")[i % 2]
            with pytest.raises(KeyboardInterrupt):
                producer.flush()
        producer.flush()
        assert (producer._used, producer.buffered) == (0, 0)
    assert [value for _, _, value in stored(log)] == [b"%d" % i for i in range(6)]
    assert sorted(told) == list(range(6))


def test_an_unexpected_error_fails_its_batch_but_not_the_sender(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(log, monkeypatch)
    refusing.errors = [ZeroDivisionError()]
    with log.producer(linger_ms=0) as producer:
        with pytest.raises(KafkaError, match="ZeroDivisionError"):
            producer.send("one", b"a").result(60)
        assert producer.send("one", b"b").result(60).offset == 0
        assert producer.producer_epoch == 1  # the first one's outcome is unknown


def test_records_go_to_existing_partitions_after_a_topic_shrinks(log: Log) -> None:
    with log.producer(linger_ms=0) as producer:
        producer.send("t", b"v", b"k", partition=2).result(60)
        log.delete_topic("t")
        log.create_topic("t", 1)
        producer._refresh_topics()
        for i in range(20):
            producer.produce("t", b"v", b"%d" % i)
        producer.flush()
    assert len(stored(log, "t", 0)) == 20


def test_a_collected_producer_does_not_keep_the_directory_open(
    tmp_path: Path,
) -> None:
    with eoslog.open(tmp_path / "d") as log:
        engine = log._engine
        producer = log.producer(transactional_id="tx")  # without a thread, which would keep it
        producer.init_transactions()
        dropped = weakref.ref(producer)
        del producer
        deadline = time.monotonic() + 60
        while dropped() is not None and time.monotonic() < deadline:
            gc.collect()
        assert dropped() is None
    assert engine not in registry._open.values()
    assert opened_files(tmp_path) == []
