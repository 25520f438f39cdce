"""A named producer stores a record once for each publishing id."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import errors
from eoslog._core import build_batch, partition_for_key
from eoslog.engine import engine
from eoslog.model import PUBLISHING_IDS_GROUP, TopicPartition
from eoslog.storage.fs import files


@pytest.fixture
def log(tmp_path: Path) -> Iterator[eoslog.Log]:
    with eoslog.open(tmp_path / "log") as opened:
        opened.create_topic("t", 4)
        yield opened


def values(log: eoslog.Log, partition: int = 0, topic: str = "t") -> list[bytes]:
    return [record.value for record in log.read(topic, partitions=[partition])]


def send(producer: Any, *ids: int, partition: int = 0) -> list[eoslog.RecordMetadata]:
    deliveries = [
        producer.send("t", b"%d" % number, partition=partition, publishing_id=number)
        for number in ids
    ]
    producer.flush()
    return [delivery.result(0) for delivery in deliveries]


def test_row_M03_a_repeated_publishing_id_is_reported_and_not_stored(log: eoslog.Log) -> None:
    with log.producer(name="relay") as producer:
        first = send(producer, 1, 5)
        again = send(producer, 1, 3, 5, 6)
    assert [m.duplicate for m in first] == [False, False]
    assert [(m.duplicate, m.offset >= 0) for m in again] == [
        (True, False), (True, False), (True, False), (False, True),
    ]  # fmt: skip
    assert values(log) == [b"1", b"5", b"6"]
    assert log.last_publishing_id("relay", "t", 0) == 6


def test_last_publishing_id_is_none_before_the_first_and_0_after_it(log: eoslog.Log) -> None:
    assert log.last_publishing_id("relay", "t", 0) is None
    with log.producer(name="relay") as producer:
        send(producer, 0)
    assert log.last_publishing_id("relay", "t", 0) == 0
    assert log.last_publishing_id("relay", "t", 1) is None
    assert log.last_publishing_id("other", "t", 0) is None


def test_an_id_that_is_repeated_within_one_transaction_is_stored_once(log: eoslog.Log) -> None:
    with log.producer(name="relay", linger_ms=60_000) as producer:
        found = send(producer, 7, 7, 6, 8, 8)
    assert [m.duplicate for m in found] == [False, True, True, False, True]
    assert values(log) == [b"7", b"8"]


def test_ids_of_names_and_partitions_are_independent(log: eoslog.Log) -> None:
    with log.producer(name="a") as a, log.producer(name="b") as b:
        send(a, 5)
        assert not send(a, 1, partition=1)[0].duplicate
        assert not send(b, 2)[0].duplicate
    assert [log.last_publishing_id(n, "t", p) for n in "ab" for p in (0, 1)] == [5, 1, 2, None]


def test_the_largest_id_ends_the_ids_of_a_partition(log: eoslog.Log) -> None:
    with log.producer(name="relay") as producer:
        largest = 2**63 - 1
        assert [m.duplicate for m in send(producer, largest, largest, 0)] == [False, True, True]
    assert log.last_publishing_id("relay", "t", 0) == largest


def test_a_key_chooses_the_partition_whose_ids_count(log: eoslog.Log) -> None:
    number = partition_for_key(b"ada", 4)
    with log.producer(name="relay") as producer:
        producer.produce("t", "1", key="ada", publishing_id=1)
        producer.produce("t", "again", key=b"ada", publishing_id=1)
        producer.produce("t", "again", partition=number, publishing_id=1)
    assert values(log, number) == [b"1"]
    assert log.last_publishing_id("relay", "t", number) == 1


def test_a_serialized_key_chooses_the_partition(log: eoslog.Log) -> None:
    with log.producer(name="relay", key_serializer="integer", value_serializer="json") as producer:
        producer.produce("t", {"a": 1}, key=7, publishing_id=1)
        producer.produce("t", {"a": 1}, key=7, publishing_id=1)
    assert values(log, partition_for_key((7).to_bytes(4, "big"), 4)) == [b'{"a":1}']


def test_a_partitioner_function_chooses_the_partition(log: eoslog.Log) -> None:
    with log.producer(name="relay", partitioner=lambda topic, key, count: key[0] % count) as p:
        p.produce("t", "v", key=b"\x03", publishing_id=1)
        p.produce("t", "v", key=b"\x07", publishing_id=1)
    assert values(log, 3) == [b"v"]


def test_records_without_an_id_are_always_stored(log: eoslog.Log) -> None:
    with log.producer(name="relay") as producer:
        for _ in range(2):
            producer.produce("t", "x", partition=0)
        send(producer, 1)
    assert values(log) == [b"x", b"x", b"1"]


def test_strict_ids_raise_and_keep_the_producer_usable(log: eoslog.Log) -> None:
    with log.producer(name="relay", strict_ids=True) as producer:
        send(producer, 4)
        with pytest.raises(errors.PublishingIdRegression, match="id 4 .*'relay'.* last one, 4"):
            producer.produce("t", "x", partition=0, publishing_id=4)
        with pytest.raises(ValueError, match="continue with a higher id"):
            producer.send("t", "x", partition=0, publishing_id=0)
        send(producer, 5)
    assert values(log) == [b"4", b"5"]


@pytest.mark.parametrize("number", [-1, 2**63, True, 1.0, "1", b"1"])
def test_an_id_that_is_not_an_int_of_63_bits_is_refused(log: eoslog.Log, number: Any) -> None:
    with log.producer(name="relay") as producer:
        with pytest.raises(errors.ConfigError, match="publishing_id: expected an int from 0"):
            producer.produce("t", "x", partition=0, publishing_id=number)
        send(producer, 1)
    assert values(log) == [b"1"]


def test_an_id_needs_a_key_or_a_partition(log: eoslog.Log) -> None:
    with log.producer(name="relay") as producer:
        with pytest.raises(errors.ConfigError, match="no key and no partition"):
            producer.produce("t", "x", publishing_id=1)
    with log.producer(name="relay", partitioner="random") as producer:
        with pytest.raises(errors.ConfigError, match="ignores the key"):
            producer.produce("t", "x", key="k", publishing_id=1)
        with pytest.raises(errors.UnknownTopicOrPartition, match="no partition 4 in topic 't'"):
            producer.produce("t", "x", partition=4, publishing_id=1)
        with pytest.raises(errors.UnknownTopicOrPartition, match="'none' does not exist"):
            producer.produce("none", "x", partition=0, publishing_id=1)
        with pytest.raises(errors.SerializationError, match="topic: expected str, got int"):
            producer.produce(3, "x", partition=0, publishing_id=1)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidTopic):
            producer.produce("__consumer_offsets", "x", partition=0, publishing_id=1)
        with pytest.raises(errors.SerializationError):
            producer.produce("t", object(), partition=0, publishing_id=1)
        send(producer, 1)
    assert values(log) == [b"1"]


def test_a_refused_record_does_not_use_its_id(log: eoslog.Log) -> None:
    log.create_topic("small", config={"max.message.bytes": 200})
    with log.producer(name="relay") as producer:
        with pytest.raises(errors.RecordTooLarge):
            producer.produce("small", b"x" * 500, partition=0, publishing_id=1)
        assert not producer.send("small", b"y", partition=0, publishing_id=1).result(30).duplicate
    assert values(log, topic="small") == [b"y"]


def test_a_producer_without_a_name_takes_no_ids(log: eoslog.Log) -> None:
    pa = pytest.importorskip("pyarrow")
    with log.producer() as producer:
        refused = pytest.raises(errors.ConfigError, match=r"with a name.*log.producer\(name=...\)")
        with refused:
            producer.produce("t", "x", publishing_id=1)
        with refused:
            producer.send("t", "x", publishing_id=1)
        with refused:
            producer.produce_many("t", ["x"], publishing_ids=[1])
        with pytest.raises(errors.SerializationError, match="column publishing_id: .* no name"):
            producer.produce_arrow("t", pa.table({"value": ["x"], "publishing_id": [1]}))
    with log.producer(transactional_id="tx") as producer:
        producer.init_transactions()
        with producer.transaction() as tx:
            for call in (tx.produce, tx.send):
                with refused:
                    call("t", "x", publishing_id=1)
            with refused:
                tx.produce_many("t", ["x"], publishing_ids=[1])
    assert values(log) == []
    with pytest.raises(errors.ConfigError, match="strict.ids=True needs a producer name"):
        log.producer(strict_ids=True)
    with pytest.raises(errors.ConfigError, match="'__name-relay': .* set name instead"):
        log.producer(transactional_id="__name-relay")
    with pytest.raises(errors.ConfigError, match=r"create the producer with log.producer\(name"):
        eoslog.Producer({"log.dir": log.path, "name": "relay"})
    with pytest.raises(errors.ConfigError, match="leave transactional.id out"):
        log.producer(name="relay", transactional_id="tx")
    with pytest.raises(errors.ConfigError, match="needs acks=all"):
        log.producer(name="relay", acks=1)


def test_produce_many_takes_an_id_for_each_value(log: eoslog.Log) -> None:
    with log.producer(name="relay") as producer:
        counts = [
            producer.produce_many("t", ["a", "b", "c"], partition=0, publishing_ids=ids)
            for ids in ([1, 2, 2], [1, 2, 3], range(4, 7))
        ]
        with pytest.raises(errors.ConfigError, match="2 publishing_ids for 1 values"):
            producer.produce_many("t", ["a"], partition=0, publishing_ids=[8, 9])
        with pytest.raises(errors.SerializationError, match="values: expected a sequence"):
            producer.produce_many("t", "abc", partition=0)
        assert producer.produce_many("t", ["x"], partition=1) == 1
    assert counts == [2, 1, 3]
    assert values(log) == [b"a", b"b", b"c", b"a", b"b", b"c"]


def test_an_arrow_column_has_the_ids(log: eoslog.Log) -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table(
        {
            "value": ["a", "b", "c", "d"],
            "partition": pa.array([0, 0, 0, 0], pa.int16()),
            "timestamp": [1, 2, 3, 4],
            "headers": pa.array([[("h", b"1")], None, [], None], pa.map_(pa.string(), pa.binary())),
            "publishing_id": pa.array([1, 1, None, 2], pa.uint8()),
        }
    )
    with log.producer(name="relay") as producer:
        assert producer.produce_arrow("t", table) == 3
        assert producer.produce_arrow("t", table) == 1  # the row without an id
        with pytest.raises(errors.SerializationError, match="column publishing_id has type"):
            producer.produce_arrow("t", pa.table({"value": ["x"], "publishing_id": ["1"]}))
        with pytest.raises(errors.SerializationError, match="expected each of value, key"):
            producer.produce_arrow("t", pa.table({"value": ["x"], "id": [1]}))
    found = list(log.read("t", partitions=[0]))
    assert [r.value for r in found] == [b"a", b"c", b"d", b"c"]
    assert [r.timestamp for r in found] == [1, 3, 4, 3] and list(found[0].headers) == [("h", b"1")]


def test_a_delivery_succeeds_without_flush_when_linger_has_passed(log: eoslog.Log) -> None:
    with log.producer(name="relay", linger_ms=1) as producer:
        assert producer.send("t", "a", partition=0, publishing_id=1).result(60).offset == 0
        assert log.last_publishing_id("relay", "t", 0) == 1
        told: list[Any] = []
        producer.produce(
            "t", "b", partition=0, publishing_id=2, on_delivery=lambda *said: told.append(said)
        )
        while not told:
            producer.poll(60)
        assert told[0][0] is None and told[0][1].offset == 2  # a marker is between them


def test_a_callback_runs_in_the_thread_that_polls_after_the_commit(log: eoslog.Log) -> None:
    seen: list[Any] = []
    with log.producer(name="relay", linger_ms=60_000) as producer:
        for number in (1, 1):
            producer.produce(
                "t", "a", partition=0, publishing_id=number,
                on_delivery=lambda _, m: seen.append((m.duplicate, values(log))),
            )  # fmt: skip
        assert producer.poll() == 0 and seen == []
        assert producer.flush() == 0
    assert seen == [(False, [b"a"]), (True, [b"a"])]


def test_readers_see_no_record_before_the_commit(log: eoslog.Log) -> None:
    with log.producer(name="relay", linger_ms=60_000) as producer:
        producer.produce("t", "a", partition=0, publishing_id=1)
        assert values(log) == []
        producer.flush()
        assert values(log) == [b"a"]


def test_batches_of_a_named_producer_are_committed_on_return(log: eoslog.Log) -> None:
    batch = build_batch([(1, None, b"raw", ())])
    with log.producer(name="relay") as producer:
        assert producer.produce_batches("t", 0, [bytes(batch)]) == 1
        assert values(log) == [b"raw"]


def test_lost_acknowledgements_store_each_id_once(log: eoslog.Log, disarmed: None) -> None:
    with log.producer(name="relay", linger_ms=0, batch_size=0, retry_backoff_ms=1) as producer:
        for _ in range(2):
            for number in range(60):
                if number % 7 == 0:
                    producer.flush()
                    files.arm_failpoint("producer.ack_lost", "trip")
                producer.produce("t", b"%d" % number, partition=0, publishing_id=number)
        producer.flush()
        assert producer.stats()["acks_lost"] == 9
    assert values(log) == [b"%d" % number for number in range(60)]


def test_a_second_producer_of_a_name_fences_the_first(log: eoslog.Log) -> None:
    first, second = log.producer(name="relay", linger_ms=60_000), log.producer(name="relay")
    send(first, 1)
    pending = first.send("t", b"2", partition=0, publishing_id=2)
    send(second, 2, 3)
    first.flush()
    with pytest.raises(errors.ProducerFenced, match="producer name 'relay': .* create a new one"):
        pending.result(60)
    with pytest.raises(errors.ProducerFenced, match="producer name 'relay': .* create a new one"):
        first.produce("t", "x", partition=0, publishing_id=9)
    send(second, 4)
    assert values(log) == [b"1", b"2", b"3", b"4"]
    first.close()
    second.close()


@pytest.mark.parametrize("end", ["flush", "close"])
def test_a_fenced_producer_reports_each_record_once(log: eoslog.Log, end: str) -> None:
    first, second = log.producer(name="relay", linger_ms=60_000), log.producer(name="relay")
    send(first, 1)
    failed: list[Any] = []
    first.produce("t", b"2", partition=0, publishing_id=2)
    first.produce(
        "t", b"3", partition=0, publishing_id=3, on_delivery=lambda error, _: failed.append(error)
    )
    send(second, 2)
    with pytest.raises(errors.ProducerFenced, match="producer name 'relay': .* create a new one"):
        getattr(first, end)()
    assert [type(error) for error in failed] == [errors.ProducerFenced]
    first.close()  # the failure is reported already
    second.close()


def test_a_failed_record_stops_the_producer_and_the_next_one_continues(log: eoslog.Log) -> None:
    log.create_topic("gone")
    producer = log.producer(name="relay", linger_ms=60_000)
    send(producer, 1)
    deliveries = [
        producer.send("t", b"2", partition=0, publishing_id=2),
        producer.send("gone", b"1", partition=0, publishing_id=1),
        producer.send("t", b"2", partition=0, publishing_id=2),
    ]
    log.delete_topic("gone")
    producer.flush()
    assert all(isinstance(d.exception(0), errors.EoslogError) for d in deliveries)
    with pytest.raises(errors.IllegalState, match="earlier record failed .* create it again"):
        producer.produce("t", b"3", partition=0, publishing_id=3)
    producer.close()
    assert log.last_publishing_id("relay", "t", 0) == 1
    with log.producer(name="relay") as producer:
        send(producer, 2, 3)
    assert values(log) == [b"1", b"2", b"3"]


def test_a_failure_without_a_callback_is_raised_by_flush_and_close(log: eoslog.Log) -> None:
    for end in ("flush", "close"):
        log.create_topic("gone")
        producer = log.producer(name=end, linger_ms=60_000)
        producer.produce("gone", b"1", partition=0, publishing_id=1)
        log.delete_topic("gone")
        with pytest.raises(errors.EoslogError):
            getattr(producer, end)()
        producer.close()


def test_a_re_created_topic_has_no_ids(log: eoslog.Log) -> None:
    with log.producer(name="relay") as producer:
        send(producer, 8)
        log.delete_topic("t")
        log.create_topic("t", 4)
        assert log.last_publishing_id("relay", "t", 0) is None
        assert not send(producer, 2)[0].duplicate
    assert log.last_publishing_id("relay", "t", 0) == 2
    assert values(log) == [b"2"]


def test_added_partitions_begin_without_ids(log: eoslog.Log) -> None:
    with log.producer(name="relay") as producer:
        send(producer, 3)
        log.create_partitions("t", 6)
        assert not send(producer, 1, partition=5)[0].duplicate
        assert send(producer, 3)[0].duplicate


def test_ids_survive_retention_compaction_and_reopening(tmp_path: Path) -> None:
    path = tmp_path / "log"
    config = {"segment.bytes": 1024, "cleanup.policy": "compact,delete", "retention.ms": 1}
    with eoslog.open(path, offsets_topic_segment_bytes=1024) as log:
        log.create_topic("t", config=config)
        with log.producer(name="relay") as producer:
            for number in range(40):
                producer.produce("t", b"x" * 100, key=b"k", timestamp=1, publishing_id=number)
                producer.flush()
        log.delete_records({TopicPartition("t", 0): -1})
        log.clean(roll=True)
        assert list(log.read("t")) == []
    with eoslog.open(path) as log:
        log.clean(roll=True)
        assert log.last_publishing_id("relay", "t", 0) == 39
        with log.producer(name="relay") as producer:
            assert producer.send("t", "x", "k", publishing_id=39).result(60).duplicate
            assert not producer.send("t", "y", "k", publishing_id=40).result(60).duplicate
        assert values(log) == [b"y"]
        assert log.check(full=True).problems == []


def test_a_backup_has_the_ids(log: eoslog.Log, tmp_path: Path) -> None:
    with log.producer(name="relay") as producer:
        send(producer, 8)
        log.backup(tmp_path / "copy")
    with eoslog.open(tmp_path / "copy") as copy, copy.producer(name="relay") as producer:
        assert copy.last_publishing_id("relay", "t", 0) == 8
        assert [m.duplicate for m in send(producer, 8, 9)] == [True, False]


def test_a_read_only_log_knows_the_ids(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        with log.producer(name="relay") as producer:
            send(producer, 8)
    with eoslog.open(tmp_path / "log", read_only=True) as log:
        assert log.last_publishing_id("relay", "t", 0) == 8
        with pytest.raises(errors.UnknownTopicOrPartition, match="no partition 9"):
            log.last_publishing_id("relay", "t", 9)


def test_ids_expire_only_if_that_is_configured(log: eoslog.Log) -> None:
    with log.producer(name="relay") as producer:
        send(producer, 8)
    groups, later = log._engine.groups, [log._engine.clock() + 3600]
    log._engine.clock = lambda: later[0]
    assert groups.expire_offsets(1) == 0
    assert groups.expire_offsets(1, 4_000_000) == 0
    assert log.last_publishing_id("relay", "t", 0) == 8
    assert groups.expire_offsets(-1, 3_000_000) > 0
    assert log.last_publishing_id("relay", "t", 0) is None
    with log.producer(name="relay") as producer:
        assert not send(producer, 1)[0].duplicate


def test_publishing_id_expiration_ms_forgets_ids_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_OFFSETS_CHECK_S", 0.05)
    with eoslog.open(tmp_path / "expiring", publishing_id_expiration_ms=1) as log:
        log.create_topic("t")
        with log.producer(name="relay") as producer:
            send(producer, 8)
        deadline = time.monotonic() + 60
        while log.last_publishing_id("relay", "t", 0) is not None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert log.last_publishing_id("relay", "t", 0) is None


def test_the_group_of_a_name_is_deleted_only_by_force(log: eoslog.Log) -> None:
    with log.producer(name="relay") as producer:
        send(producer, 8)
    group = PUBLISHING_IDS_GROUP + "relay"
    with pytest.raises(errors.PolicyViolation, match="publishing ids of the producer name 'relay'"):
        log.delete_group(group)
    with pytest.raises(errors.PolicyViolation):
        log.reset_offsets(group, {TopicPartition("t", 0): 1})
    log.delete_group(group, force=True)
    assert log.last_publishing_id("relay", "t", 0) is None


def test_producers_of_many_threads_share_one_name_without_losing_an_id(log: eoslog.Log) -> None:
    with log.producer(name="relay", linger_ms=0) as producer:

        def publish(partition: int) -> None:
            for number in range(200):
                for _ in range(2):
                    producer.produce("t", b"%d" % number, partition=partition, publishing_id=number)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(publish, range(4)))
    for partition in range(4):
        assert values(log, partition) == [b"%d" % number for number in range(200)]


def test_a_closed_producer_takes_no_record(log: eoslog.Log) -> None:
    producer = log.producer(name="relay")
    producer.close()
    producer.close()
    with pytest.raises(errors.IllegalState, match="closed"):
        producer.produce("t", "x", partition=0, publishing_id=1)
    with pytest.raises(errors.IllegalState, match="closed"):
        producer.flush()


def test_a_record_that_is_buffered_at_exit_is_committed(log: eoslog.Log) -> None:
    program = (
        "import eoslog, sys; log = eoslog.open(sys.argv[1]); "
        "log.producer(name='relay', linger_ms=60_000)"
        ".produce('t', 'x', partition=0, publishing_id=1)"
    )
    subprocess.run([sys.executable, "-c", program, log.path], check=True, timeout=60)
    assert values(log) == [b"x"] and log.last_publishing_id("relay", "t", 0) == 1


def test_a_forked_child_cannot_use_the_producer(log: eoslog.Log) -> None:
    with log.producer(name="relay", linger_ms=60_000) as producer:
        producer.produce("t", "x", partition=0, publishing_id=1)
        held = threading.Event()
        free = threading.Event()

        def hold() -> None:
            with producer._calls:
                held.set()
                free.wait(60)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(60)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for call in (
                    lambda: producer.produce("t", "y", partition=0, publishing_id=2),
                    producer.flush,
                    producer.poll,
                    producer.init_transactions,
                    producer.begin_transaction,
                    producer.commit_transaction,
                ):
                    with pytest.raises(errors.IllegalState, match="inherited through fork"):
                        call()
                producer.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        free.set()
        thread.join()
    assert values(log) == [b"x"]


def test_a_long_linger_does_not_outlast_the_transaction_timeout(log: eoslog.Log) -> None:
    with log.producer(
        name="relay", linger_ms=600_000, transaction_timeout_ms=10_000, delivery_timeout_ms=900_000
    ) as producer:
        assert producer.send("t", "x", partition=0, publishing_id=1).result(60).offset == 0
    assert values(log) == [b"x"]
