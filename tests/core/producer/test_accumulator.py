"""Records in, batches out: the fast path decoded by the reference codec."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from eoslog import _core
from eoslog.errors import (
    ConfigError,
    IllegalState,
    QueueFull,
    RecordTooLarge,
    SerializationError,
    UnknownTopicOrPartition,
)
from eoslog.storage.format import codecs  # noqa: F401 (binds the codecs)
from tests.reference import codec as reference


class Accumulator(_core.RecordAccumulator):
    """Topic t with some partitions; counts wake-ups."""

    partitions = 1
    max_message_bytes = 1_048_588
    woken = 0

    def _describe_topic(self, topic: str) -> tuple[int, int]:
        if topic != "t":
            raise UnknownTopicOrPartition(f"no topic {topic!r}")
        return self.partitions, self.max_message_bytes

    def _wake(self) -> None:
        self.woken += 1


def make(partitions: int = 1, **config: Any) -> Accumulator:
    accumulator = Accumulator(**config)
    accumulator.partitions = partitions
    return accumulator


def records(accumulator: Accumulator) -> Iterator[tuple[int, reference.RefRecord]]:
    for batch in accumulator._drain(0, True):
        batch.stamp(7, 0, 0, False)
        for record in reference.decode_batch(bytes(batch)).records:
            yield batch.partition, record


@pytest.mark.parametrize("count", [1, 2000])
def test_a_produce_that_waits_for_memory_raises_when_the_producer_closes(count: int) -> None:
    class Waiting(Accumulator):
        def _wait_for_space(self, size: int) -> None:
            for batch in self._drain(0, True):
                self._release(batch)
            self._gate = 1

    a = Waiting(buffer_memory=50_000, batch_size=1_000_000)
    a.produce("t", bytes(48_000))
    with pytest.raises(IllegalState):
        if count == 1:
            a.produce("t", bytes(10_000))
        else:
            a.produce_many("t", [b"v"] * count)
    assert (a._used, a.buffered, a.produced) == (0, 0, 1)


@pytest.mark.parametrize("keys", [None, [b"k"]])
def test_a_produce_whose_serializer_closes_the_producer_raises(keys: list[bytes] | None) -> None:
    def closing(value: bytes) -> bytes:
        a._gate = 1
        return value

    a = make(value_serializer=closing)
    for call in (lambda: a.produce("t", b"v"), lambda: a.produce_many("t", [b"v"], keys)):
        a._gate = 0
        with pytest.raises(IllegalState):
            call()
        assert (a._used, a.buffered, list(records(a))) == (0, 0, [])


def test_a_drained_record_equals_the_one_that_was_produced() -> None:
    a = make()
    a.produce("t", b"v", b"k", headers=[("h", b"x"), ("n", None), ("s", "ä")], timestamp=1000)
    a.produce("t", "ä", timestamp=999)
    a.produce("t", None, "k2", timestamp=2000, headers={"a": memoryview(b"12")[1:]})
    a.produce("t", bytearray(), memoryview(b""), timestamp=0)
    (batch,) = a._drain(0, True)
    batch.stamp(42, 3, 17, True)
    decoded = reference.decode_batch(bytes(batch))
    assert (decoded.producer_id, decoded.producer_epoch, decoded.base_sequence) == (42, 3, 17)
    assert decoded.max_timestamp == 2000
    assert decoded.attributes == 0x10
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in decoded.records] == [
        (1000, b"k", b"v", [("h", b"x"), ("n", None), ("s", "ä".encode())]),
        (999, None, "ä".encode(), []),
        (2000, b"k2", None, [("a", b"2")]),
        (0, b"", b"", []),
    ]


def test_the_clock_stamps_records_without_a_timestamp() -> None:
    a = make()
    before = int(time.time() * 1000)
    a.produce("t", b"v")
    ((_, record),) = records(a)
    assert before <= record.timestamp <= int(time.time() * 1000)


def test_keys_go_to_the_partition_that_every_kafka_client_chooses() -> None:
    a = make(12)
    for i in range(500):
        a.produce("t", b"v", str(i))
    for partition, record in records(a):
        assert partition == _core.partition_for_key(record.key, 12)


def test_keyless_records_stay_in_a_partition_until_its_batch_is_full() -> None:
    a = make(4, batch_size=1000)
    for _ in range(1000):
        a.produce("t", bytes(100))
    batches = a._drain(0, True)
    assert len({batch.partition for batch in batches}) == 4
    assert all(batch.count == 8 for batch in batches[:-4])
    assert all(len(batch) <= 1000 for batch in batches)


def test_keyless_records_sent_one_by_one_move_on_after_the_bytes_of_a_batch() -> None:
    a = make(partitions=3, batch_size=1000)
    sent: list[tuple[int, int]] = []
    for _ in range(400):
        a.produce("t", bytes(100))
        (batch,) = a._drain(0, True)
        sent.append((batch.partition, len(batch)))
        a._release(batch)
    stays = [
        sum(size for _, size in stay)
        for _, stay in itertools.groupby(sent, key=lambda item: item[0])
    ]
    assert {partition for partition, _ in sent} == {0, 1, 2}
    assert min(stays[:-1]) >= 1000
    assert max(stays) < 20 * 1000


@pytest.mark.parametrize(
    ("partitioner", "expected"),
    [
        ("round_robin", [0, 1, 2, 0, 1, 2]),
        (lambda topic, key, n: n - 1 if topic == "t" else 0, [2] * 6),
    ],
)
def test_random_and_java_partitioners_choose_kafkas_partitions(
    partitioner: Any, expected: list[int]
) -> None:
    a = make(3, partitioner=partitioner)
    for i in range(6):
        a.produce("t", bytes([i]))
    chosen = {record.value[0]: partition for partition, record in records(a) if record.value}
    assert [chosen[i] for i in range(6)] == expected


def test_an_explicit_partition_overrides_the_partitioner_and_must_exist() -> None:
    a = make(3)
    a.produce("t", b"v", b"k", partition=2)
    for wrong in (3, -1):
        with pytest.raises(UnknownTopicOrPartition):
            a.produce("t", b"v", partition=wrong)
    a.partitions = 4  # added after the start: the producer looks it up before it rejects the record
    a.produce("t", b"v", partition=3)
    assert sorted(partition for partition, _ in records(a)) == [2, 3]


def test_batch_size_0_puts_each_record_into_its_own_batch() -> None:
    a = make(batch_size=0)
    for _ in range(3):
        a.produce("t", b"v")
    assert [batch.count for batch in a._drain(0, True)] == [1, 1, 1]


def test_only_due_batches_are_drained() -> None:
    a = make(linger_ms=1000)
    a.produce("t", b"v")
    assert a._drain(time.monotonic_ns(), False) == []
    due = a._next_due_ns()
    assert due is not None and 0 < due - time.monotonic_ns() <= 1_000_000_000
    assert len(a._drain(due, False)) == 1
    assert a._next_due_ns() is None


def test_places_are_those_of_records_that_are_not_drained() -> None:
    a = make(partitions=3, batch_size=1000)
    assert a._buffered_places() == set()
    a.produce("t", b"v", partition=1)
    a.produce("t", b"v" * 2000, partition=2)  # full
    assert a._buffered_places() == {("t", 1), ("t", 2)}
    a._drain(0, True)
    assert a._buffered_places() == set()


def test_the_sender_is_woken_only_for_a_full_batch_and_a_new_deadline() -> None:
    a = make(batch_size=1000, linger_ms=10_000)
    a.produce("t", b"v")
    assert a.woken == 0  # awake: the sender looks without a wake-up
    a._sleeping_until = time.monotonic_ns() + 10**12
    a.produce("t", b"v")
    assert a.woken == 0  # the open batch is known
    for _ in range(9):
        a.produce("t", bytes(100))
    assert a.woken == 1


def test_memory_is_counted_until_release() -> None:
    a = make(buffer_memory=4096)
    with pytest.raises(QueueFull):
        for _ in range(100):
            a.produce("t", bytes(100))
    assert 3500 < a._used <= 4096 and a.buffered == len(a) > 30
    for batch in a._drain(0, True):
        a._release(batch)
    assert (a._used, a.buffered) == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (dict(topic="nope"), UnknownTopicOrPartition),
        (dict(topic=5), SerializationError),
        (dict(topic="t", value=5), SerializationError),
        (dict(topic="t", key=[b"k"]), SerializationError),
        (dict(topic="t", value="\ud800"), SerializationError),
        (dict(topic="t", headers=[("a",)]), (SerializationError, ConfigError)),
        (dict(topic="t", headers=[(b"a", b"b")]), SerializationError),
        (dict(topic="t", timestamp=-5), SerializationError),
        (dict(topic="t", timestamp="now"), SerializationError),
        (dict(topic="t", partition="0"), SerializationError),
        (dict(topic="t", on_delivery=5), ConfigError),
        (dict(topic="t", value=bytes(1_048_577)), RecordTooLarge),
    ],
)
def test_a_wrong_argument_raises_at_the_call_and_buffers_nothing(
    arguments: dict[str, Any], error: Any
) -> None:
    a = make()
    with pytest.raises(error):
        a.produce(**arguments)
    assert (a._used, a.buffered) == (0, 0)


def test_the_max_message_bytes_of_the_topic_limits_records_and_batches() -> None:
    a = make()
    a.max_message_bytes = 500
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes = 500"):
        a.produce("t", bytes(500))
    for _ in range(100):
        a.produce("t", bytes(100))
    assert max(len(batch) for batch in a._drain(0, True)) <= 500


def test_a_closed_gate_rejects_records() -> None:
    a = make()
    a._gate = 1
    with pytest.raises(IllegalState):
        a.produce("t", b"v")
    with pytest.raises(IllegalState):
        a.produce_many("t", [b"v"])


def test_serializers_run_and_their_failures_are_typed() -> None:
    a = make(value_serializer=lambda v: str(v).encode(), key_serializer=lambda k: k[0])
    a.produce("t", 17, [b"k"])
    ((_, record),) = records(a)
    assert (record.key, record.value) == (b"k", b"17")
    with pytest.raises(SerializationError, match="key.serializer"):
        a.produce("t", 17, 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", codecs.CODECS)
def test_compressed_batches_contain_the_same_records(name: str) -> None:
    a = make(compression=name)
    for i in range(3000):
        a.produce("t", b'{"order":%d,"amount":"10.00"}' % i)
    values = [record.value for _, record in records(a)]
    assert values == [b'{"order":%d,"amount":"10.00"}' % i for i in range(3000)]


def test_records_that_compression_does_not_shrink_are_sent_plain() -> None:
    import os

    a = make(compression="gzip")
    a.produce("t", os.urandom(5000))
    (batch,) = a._drain(0, True)
    batch.stamp(-1, -1, -1, False)
    assert reference.decode_batch(bytes(batch)).attributes == 0


def test_produce_many_fills_batches_to_the_topics_limit() -> None:
    a = make(1)
    a.max_message_bytes = 10_000
    values = [b"%04d" % i * 10 for i in range(1000)]
    assert a.produce_many("t", values, [None] * 1000) == 1000
    batches = a._drain(0, True)
    assert len(batches) < 7
    got = []
    for batch in batches:
        batch.stamp(1, 0, 0, False)
        got += [record.value for record in reference.decode_batch(bytes(batch)).records]
    assert got == values


def test_produce_many_accepts_keys_like_produce() -> None:
    a = make(5)
    assert a.produce_many("t", iter(["a", "b", None]), keys=("x", b"y", None)) == 3
    for partition, record in records(a):
        assert record.key is None or partition == _core.partition_for_key(record.key, 5)
    with pytest.raises(ConfigError, match="1 keys for 2 values"):
        a.produce_many("t", [b"a", b"b"], [b"k"])


def test_callbacks_are_kept_with_their_batch() -> None:
    a = make()
    told: list[Any] = []
    for i in range(3):
        a.produce("t", b"v", timestamp=100 + i, on_delivery=told.append if i != 1 else None)
    (batch,) = a._drain(0, True)
    assert [(delta, stamp) for delta, stamp, _ in batch.callbacks] == [(0, 100), (2, 102)]


def test_concurrent_producing_threads_lose_no_record() -> None:
    a = make(3, batch_size=2000, compression="gzip")

    def work(name: str) -> None:
        for i in range(2000):
            a.produce("t", f"{name}-{i}")

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
    drained: list[Any] = []
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        drained += a._drain(0, True)
        time.sleep(0.001)
    drained += a._drain(0, True)
    seen: dict[str, list[int]] = {}
    for batch in drained:
        batch.stamp(-1, -1, -1, False)
        for record in reference.decode_batch(bytes(batch)).records:
            name, number = record.value.decode().split("-")
            seen.setdefault(name + str(batch.partition), []).append(int(number))
    assert sum(map(len, seen.values())) == 8000
    assert all(numbers == sorted(numbers) for numbers in seen.values())  # in order per partition


def test_threads_that_a_garbage_collection_lets_in_lose_no_record() -> None:
    """Creating an object may run a collection, which lets other threads in (3.11)."""
    import gc

    class Litter:
        """A cycle whose end runs Python code in the middle of whatever made an object."""

        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            time.sleep(0)

    def collecting(phase: str, info: dict[str, int]) -> None:
        time.sleep(0)

    a = make(2, batch_size=150, linger_ms=0)
    old = gc.get_threshold()
    gc.callbacks.append(collecting)
    gc.set_threshold(2, 2, 2)
    try:

        def work(name: int) -> None:
            for i in range(400):
                Litter()
                a.produce("t", b"%d %d" % (name, i), on_delivery=print if i % 3 == 0 else None)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        drained: list[Any] = []
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            a._drain(time.monotonic_ns(), False, drained)
            time.sleep(0.0005)
        a._drain(0, True, drained)
    finally:
        gc.callbacks.remove(collecting)
        gc.set_threshold(*old)
    seen: dict[tuple[int, int], list[int]] = {}
    told = 0
    for batch in drained:
        told += len(batch.callbacks or ())
        batch.stamp(-1, -1, -1, False)
        decoded = reference.decode_batch(bytes(batch))
        assert [r.offset for r in decoded.records] == list(range(batch.count))
        for record in decoded.records:
            name, number = map(int, record.value.split())
            seen.setdefault((name, batch.partition), []).append(number)
    assert sum(map(len, seen.values())) == a.buffered == 1600
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert told == 4 * 134


@pytest.mark.slow
def test_the_memory_of_a_batch_is_reused_only_after_its_last_reference() -> None:
    """Bytes that a retry or a view still references are never overwritten.

    R46 of docs/contributing/regressions.md.
    """
    a = make(batch_size=1 << 18)
    views, kept, wanted = [], [], []
    for turn in range(12):
        a.produce_many("t", [b"%06d-%06d" % (turn, i) * 8 for i in range(2500)])
        for batch in a._drain(0, True):
            batch.stamp(7, 0, 0, False)
            a._release(batch)
            if turn % 3 == 0:
                views.append(memoryview(batch))
                wanted.append(bytes(batch))
            elif turn % 3 == 1:
                kept.append((batch, bytes(batch)))
        del batch
    assert [bytes(view) for view in views] == wanted
    assert all(bytes(batch) == data for batch, data in kept)
    assert all(reference.decode_batch(data).valid for data in wanted)


def resident_mib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4 // 1024


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_held_compressed_batches_use_no_more_memory_than_their_bytes(codec: str) -> None:
    """Tasks of Spark hold batches until they have some MiB of compressed bytes."""
    before, held = resident_mib(), []
    accumulator = make(batch_size=1 << 20, compression=codec, buffer_memory=1 << 28)
    for _ in range(300):
        accumulator.produce_many("t", [b"x" * 1000] * 1000)
        for batch in accumulator._drain(0, True):
            accumulator._release(batch)
            held.append(batch)
    assert sum(map(len, held)) < 10 << 20
    assert resident_mib() - before < 100  # 300 plain; 32 stay with the pool
