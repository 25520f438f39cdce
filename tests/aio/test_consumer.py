"""An async consumer reads, moves and commits like a consumer."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import anyio
import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import ConfigError, IllegalState, NoOffset, UnknownTopicOrPartition
from tests.aio.conftest import Run, client_threads
from tests.paths import ROOT

READING = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
IN = [TopicPartition("in", 0), TopicPartition("in", 1)]


def fill(log: eoslog.Log, count: int, first: int = 0) -> list[bytes]:
    values = [str(number).encode() for number in range(first, first + count)]
    with log.producer() as producer:
        for number, value in enumerate(values):
            producer.produce("in", value, partition=number % 2)
    return values


def values_of(records: Any) -> list[bytes]:
    return sorted((record.value for record in records), key=int)


def test_an_iteration_returns_every_record_until_the_consumer_stops(
    log: eoslog.Log, run: Run
) -> None:
    written = fill(log, 300)

    async def main() -> None:
        got: list[Any] = []
        async with log.async_consumer("in", group_id="g", **READING) as consumer:
            async with anyio.create_task_group() as tasks:

                async def read() -> None:
                    async for record in consumer:
                        got.append(record)
                        if len(got) == 300:
                            tasks.start_soon(consumer.stop)

                tasks.start_soon(read)
            with pytest.raises(IllegalState, match="closed"):
                aiter(consumer)
        assert values_of(got) == written

    run(main)


@pytest.mark.parametrize("batch_format", ["records", "arrow"])
def test_batches_have_at_most_the_given_number_of_records(
    log: eoslog.Log, run: Run, batch_format: str
) -> None:
    if batch_format == "arrow":
        pytest.importorskip("pyarrow")
    fill(log, 100)

    async def main() -> None:
        sizes = []
        async with log.async_consumer("in", **READING) as consumer:
            async for batch in consumer.batches(7, batch_format=batch_format):
                sizes.append(len(batch))
                if sum(sizes) == 100:
                    break
        assert max(sizes) == 7
        assert min(sizes) > 0

    run(main)


def test_getmany_returns_records_by_partition_or_an_empty_dict(log: eoslog.Log, run: Run) -> None:
    fill(log, 10)

    async def main() -> None:
        async with log.async_consumer("in", **READING) as consumer:
            found: dict[TopicPartition, list[Any]] = {}
            while sum(map(len, found.values())) < 10:
                for place, records in (await consumer.getmany(timeout_ms=5000)).items():
                    found.setdefault(place, []).extend(records)
            assert {place: [r.offset for r in rs] for place, rs in found.items()} == {
                place: list(range(5)) for place in IN
            }
            assert await consumer.getmany() == {}
            assert await consumer.getmany(timeout_ms=20) == {}

    run(main)


def test_position_commit_and_seek_follow_the_records_that_were_returned(
    log: eoslog.Log, run: Run
) -> None:
    fill(log, 10)

    async def main() -> None:
        async with log.async_consumer(group_id="g", **READING) as consumer:
            await consumer.assign(IN)
            await consumer.pause(IN[1])
            assert consumer.paused() == [IN[1]]
            assert [(await consumer.getone()).offset for _ in range(3)] == [0, 1, 2]
            assert await consumer.position(IN[0]) == 3, "four are fetched, and none of them passed"
            await consumer.commit()
            assert await consumer.committed(IN[0]) == 3
            assert await consumer.current_lag(IN[0]) == 2
            await consumer.seek(IN[0], 1)
            assert (await consumer.getone()).offset == 1
            await consumer.rewind()
            assert (await consumer.getone()).offset == 3
            await consumer.seek_to_beginning(IN[0])
            assert (await consumer.getone()).offset == 0
            await consumer.seek_to_end(IN[0])
            await consumer.resume(IN[1])
            assert (await consumer.getone()).partition == 1
            assert consumer.assignment() == IN
            assert (await consumer.group_metadata()).group_id == "g"
            await consumer.unsubscribe()
            assert consumer.assignment() == []
            await consumer.subscribe(["in"])
            assert consumer.subscription() == ["in"]
            assert (await consumer.getone()).offset in (0, 3)

    run(main)


def test_stop_ends_a_read_that_waits_in_another_task(log: eoslog.Log, run: Run) -> None:
    async def main() -> None:
        async with log.async_consumer("in", **READING) as consumer:
            errors: list[IllegalState] = []

            async def read() -> None:
                with pytest.raises(IllegalState, match="the consumer was closed during the call"):
                    await consumer.getone()
                errors.append(IllegalState("seen"))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                await anyio.sleep(0.05)
                tasks.start_soon(consumer.stop)
                tasks.start_soon(consumer.stop)
            assert errors
            assert consumer.closed
            assert client_threads() == []
            with pytest.raises(IllegalState, match="closed; create a new one"):
                await consumer.getone()

    run(main)


def test_a_waiting_read_lets_calls_of_other_tasks_pass(log: eoslog.Log, run: Run) -> None:
    fill(log, 2)

    async def main() -> None:
        got: list[bytes] = []
        async with (
            log.async_consumer("in", group_id="g", **READING) as consumer,
            anyio.create_task_group() as tasks,
        ):

            async def read() -> None:
                async for record in consumer:
                    got.append(record.value)
                    if len(got) == 4:
                        return

            async def many() -> None:
                assert len(await consumer.getmany(timeout_ms=50_000)) == 1
                tasks.cancel_scope.cancel()

            tasks.start_soon(read)
            while len(got) < 2:
                await anyio.sleep(0.001)
            for _ in range(3):
                await consumer.commit()
                await consumer.seek(IN[0], 1)
            assert [await consumer.committed(place) for place in IN] == [1, 1]
            await anyio.to_thread.run_sync(fill, log, 2, 2)
            while len(got) < 4:
                await anyio.sleep(0.001)
            tasks.start_soon(many)
            await anyio.sleep(0.01)
            assert (await consumer.positions())[IN[0]] == 2
            await anyio.to_thread.run_sync(fill, log, 1, 4)
        assert sorted(got) == [b"0", b"1", b"2", b"3"]

    run(main)


def test_the_interrupt_of_a_read_does_not_end_a_later_call(log: eoslog.Log, run: Run) -> None:
    fill(log, 2)

    async def main() -> None:
        async with log.async_consumer("in", **READING) as consumer:
            for _ in range(2):
                await consumer.call(lambda c: c.wakeup())
                assert len(await consumer.call(lambda c: c.consume(1, 60))) == 1

    run(main)


def test_auto_commit_commits_at_stop_and_not_after_an_exception(log: eoslog.Log, run: Run) -> None:
    fill(log, 6)

    async def read(count: int) -> list[int]:
        async with log.async_consumer("in", group_id="g", auto_offset_reset="earliest") as consumer:
            return [int((await consumer.getone()).value) for _ in range(count)]

    async def fail() -> None:
        with pytest.raises(ZeroDivisionError):
            async with log.async_consumer("in", group_id="g") as consumer:
                await consumer.getone()
                raise ZeroDivisionError

    async def main() -> None:
        first = await read(2)
        await fail()
        assert sorted(first + await read(4)) == list(range(6))

    run(main)


def test_a_consumer_that_is_not_started_says_how_to_start_it(log: eoslog.Log) -> None:
    async def main() -> None:
        consumer = log.async_consumer("in")
        assert repr(consumer) == "<AsyncConsumer, not started>"
        with pytest.raises(IllegalState, match="not started; use `async with`, or await start"):
            await consumer.getone()
        await consumer.stop()
        with pytest.raises(IllegalState, match="closed; create a new one"):
            await consumer.start()

    asyncio.run(main())


def test_start_and_stop_by_hand_do_what_a_block_does(log: eoslog.Log, run: Run) -> None:
    fill(log, 1)

    async def main() -> None:
        consumer = log.async_consumer("in", **READING)
        await consumer.start()
        await consumer.start()
        assert (await consumer.getone()).value == b"0"
        assert "Consumer no group" in repr(consumer)
        await consumer.stop()
        await consumer.stop()

    run(main)


def test_a_failed_start_leaves_no_thread_and_can_be_repeated(log: eoslog.Log, run: Run) -> None:
    async def main() -> None:
        consumer = log.async_consumer("later", **READING)
        with pytest.raises(eoslog.errors.UnknownTopicOrPartition):
            await consumer.start()
        assert client_threads() == []
        log.create_topic("later")
        await consumer.start()
        await consumer.stop()

    run(main)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"auto_offset_rest": "earliest"}, "auto.offset.rest"),
        ({"producer": 5}, "producer: expected an AsyncProducer of this log, got 5"),
        ({"max_poll_records": "many"}, "max.poll.records"),
    ],
)
def test_a_wrong_setting_is_rejected_before_the_start(
    log: eoslog.Log, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        log.async_consumer("in", **options)


def test_a_wrong_argument_is_rejected_by_its_name(log: eoslog.Log) -> None:
    async def on_assign(consumer: Any, partitions: Any) -> None: ...

    async def main() -> None:
        async with log.async_consumer("in", group_id="g") as consumer:
            with pytest.raises(ConfigError, match="timeout_ms: expected 0 or more, got -1"):
                await consumer.getmany(timeout_ms=-1)
            with pytest.raises(ConfigError, match="num_messages: expected 1 or more, got 0"):
                await consumer.getmany(max_records=0)
            with pytest.raises(ConfigError, match="size: expected 1 or more, got 0"):
                consumer.batches(0)
            with pytest.raises(ConfigError, match="batch_format: expected"):
                consumer.batches(5, batch_format="rows")
            with pytest.raises(ConfigError, match="subscribe: on_assign: expected a function"):
                await consumer.subscribe(["in"], on_assign)
            with pytest.raises(ConfigError, match="call: expected a function, got 'poll'"):
                await consumer.call("poll")  # type: ignore[arg-type]
            with pytest.raises(IllegalState, match="not assigned"):
                await consumer.seek(TopicPartition("out", 0), 0)

    asyncio.run(main())


def test_an_error_of_a_read_is_raised_in_the_coroutine(log: eoslog.Log, run: Run) -> None:
    async def main() -> None:
        async with log.async_consumer("in", auto_offset_reset="none", group_id="g") as consumer:
            with pytest.raises(NoOffset):
                await consumer.getone()
            await consumer.seek_to_beginning()
            fill(log, 1)
            assert (await consumer.getone()).value == b"0"

    run(main)


def test_listeners_run_in_the_thread_of_the_consumer(log: eoslog.Log, run: Run) -> None:
    import threading

    fill(log, 1)
    seen: list[tuple[str, list[TopicPartition]]] = []

    def on_assign(consumer: eoslog.Consumer, partitions: list[TopicPartition]) -> None:
        seen.append((threading.current_thread().name, sorted(partitions)))

    async def main() -> None:
        async with log.async_consumer(group_id="g", **READING) as consumer:
            await consumer.subscribe(["in"], on_assign)
            await consumer.getone()

    run(main)
    assert seen == [("eoslog-consumer", IN)]


def test_closing_the_log_ends_the_thread_of_its_clients(log: eoslog.Log, tmp_path: Any) -> None:
    async def main() -> None:
        other = eoslog.open(tmp_path / "log")
        consumer = other.async_consumer("in", **READING)
        await consumer.start()
        iterating = asyncio.create_task(anext(aiter(consumer), None))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(other.close)
        assert await iterating is None
        assert client_threads() == []
        assert consumer.closed
        await consumer.stop()

    asyncio.run(main())


def test_a_dropped_consumer_leaves_no_thread(log: eoslog.Log) -> None:
    import gc
    import time

    async def main() -> None:
        consumer = log.async_consumer("in", **READING)
        await consumer.start()
        await consumer.positions()

    asyncio.run(main())
    gc.collect()
    for _ in range(6000):
        if not client_threads():
            break
        time.sleep(0.01)
    assert client_threads() == []


def test_offsets_of_any_partition_are_those_that_the_consumer_can_read(
    log: eoslog.Log, run: Run
) -> None:
    with log.producer(transactional_id="open") as producer:
        producer.init_transactions()
        for time_ms in (100, 200, 300):
            producer.begin_transaction()
            producer.produce("in", b"x", partition=0, timestamp=time_ms)
            producer.flush()
            if time_ms < 300:
                producer.commit_transaction()
        log.delete_records({IN[0]: 2})

        async def main() -> None:
            for isolation, end, at_300 in (
                ("read_committed", 4, None),
                ("read_uncommitted", 5, 4),
            ):
                async with log.async_consumer(isolation_level=isolation) as consumer:
                    assert await consumer.beginning_offsets(IN) == {IN[0]: 2, IN[1]: 0}
                    assert await consumer.end_offsets(IN) == {IN[0]: end, IN[1]: 0}
                    times = {IN[0]: 150, IN[1]: 0}
                    assert await consumer.offsets_for_times(times) == {IN[0]: 2, IN[1]: None}
                    assert await consumer.offsets_for_times({IN[0]: 300}) == {IN[0]: at_300}

        run(main)


def test_offsets_of_a_missing_partition_raise_an_error(log: eoslog.Log, run: Run) -> None:
    missing = TopicPartition("in", 2)

    async def main() -> None:
        async with log.async_consumer() as consumer:
            for call in (
                consumer.beginning_offsets([missing]),
                consumer.end_offsets([missing]),
                consumer.offsets_for_times({missing: 0}),
            ):
                with pytest.raises(UnknownTopicOrPartition, match="partition 2"):
                    await call

    run(main)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("AIOKafkaConsumer", eoslog.AsyncConsumer), ("AIOKafkaProducer", eoslog.AsyncProducer)],
)
def test_every_method_of_aiokafka_exists_or_is_a_documented_difference(
    theirs: str, ours: type
) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    page = (ROOT / "docs/how-to/asyncio.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`.*?) \|", page, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    names = {name for name in dir(getattr(aiokafka, theirs)) if not name.startswith("_")}
    assert {name for name in names if not hasattr(ours, name)} <= documented
