"""A coroutine that is cancelled at any wait loses and repeats no record."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
import pytest

import eoslog
from eoslog import TopicPartition
from tests.aio.cancelling import Cancelled
from tests.aio.conftest import client_threads

pytestmark = pytest.mark.slow

READING = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
ONE_BATCH = {"fetch_max_bytes": 1, "max_partition_fetch_bytes": 1}
"""A fetch returns one batch, so that every record is waited for."""


def fill(log: eoslog.Log, count: int, *, at_once: bool = False) -> list[bytes]:
    """Write records, each in a batch of its own; return their values."""
    values = [str(number).encode() for number in range(count)]
    with log.producer(linger_ms=0) as producer:
        for number, value in enumerate(values):
            producer.produce("in", value, partition=number % 2)
            if not at_once:
                producer.flush()
    return values


class ByAsyncio:
    """Cancels tasks of asyncio, as `Task.cancel` does."""

    def __init__(self, **kind: bool) -> None:
        self.kind = kind

    def __call__(self, nth: int) -> tuple[Cancelled, Callable[[Any], Awaitable[Any]]]:
        cancelled = Cancelled(nth, **self.kind)
        return cancelled, cancelled.of_asyncio

    def run(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run(main())


class ByScope(ByAsyncio):
    """Cancels a scope of anyio, which raises at every wait until it ends."""

    def __init__(self, backend: str) -> None:
        self.kind = {}
        self.backend = backend

    def __call__(self, nth: int) -> tuple[Cancelled, Callable[[Any], Awaitable[Any]]]:
        cancelled = Cancelled(nth)
        return cancelled, cancelled.by_scope

    def run(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return anyio.run(main, backend=self.backend)


WAYS = [
    pytest.param(ByAsyncio(), id="cancelled"),
    pytest.param(ByAsyncio(late=True), id="cancelled-late"),
    pytest.param(ByAsyncio(twice=True), id="cancelled-twice"),
    pytest.param(ByScope("asyncio"), id="scope-asyncio"),
    pytest.param(ByScope("trio"), id="scope-trio"),
]


async def one(consumer: Any) -> list[Any]:
    return [await consumer.getone()]


async def many(consumer: Any) -> list[Any]:
    found = await consumer.getmany(timeout_ms=5000, max_records=2)
    return [record for records in found.values() for record in records]


async def batch(consumer: Any) -> list[Any]:
    return await anext(aiter(consumer.batches(2)))


async def moved_and_one(consumer: Any) -> list[Any]:
    """Other calls that wait, then a read."""
    await consumer.positions()
    await consumer.commit()
    return await one(consumer)


@pytest.mark.parametrize("read", [one, many, batch, moved_and_one])
@pytest.mark.parametrize("way", WAYS)
def test_a_read_cancelled_at_any_wait_loses_and_repeats_no_record(
    log: eoslog.Log, way: ByAsyncio, read: Callable[[Any], Any]
) -> None:
    written = fill(log, 12)

    async def main() -> None:
        got: list[bytes] = []
        cancellations = 0
        async with log.async_consumer("in", group_id="g", **READING, **ONE_BATCH) as consumer:
            with anyio.move_on_after(300):  # a lost record would be waited for
                for nth in itertools.cycle(range(1, 5)):
                    if len(got) == len(written):
                        break
                    _, run = way(nth)
                    records = await run(read(consumer))
                    cancellations += records is None
                    got += [record.value for record in records or ()]
                    if records:
                        where = TopicPartition("in", records[-1].partition)
                        assert await consumer.position(where) == records[-1].offset + 1
            await consumer.commit()
        assert sorted(got, key=int) == written
        assert cancellations
        committed = log.committed("g")
        assert sum(at.offset for at in committed.values()) == len(written)

    way.run(main)


@pytest.mark.parametrize("way", WAYS)
def test_a_program_cancelled_at_any_wait_copies_each_record_once(
    log: eoslog.Log, way: ByAsyncio
) -> None:
    written = fill(log, 60)

    async def program() -> int:
        """Copy records in transactions, until there are none."""
        copied = 0
        async with (
            log.async_producer(transactional_id="copy") as producer,
            log.async_consumer("in", group_id="g", **READING) as consumer,
        ):
            while True:
                found = await consumer.getmany(timeout_ms=50, max_records=4)
                if not found and copied:
                    return copied
                async with producer.transaction() as tx:
                    for record in itertools.chain.from_iterable(found.values()):
                        await tx.send("out", record.value)
                        copied += 1
                    await tx.commit_offsets(consumer)
                if copied >= 8:
                    return copied

    async def main() -> None:
        for nth in itertools.count(1):
            cancelled, run = way(nth)
            done = await run(program())
            assert client_threads() == [], f"cancelled at wait {nth}"
            if not cancelled.reached:
                break
            assert done is None or done <= 8
        assert nth > 12, "a program has so many waits at least"
        _, run = way(10**9)
        with anyio.move_on_after(300):  # a lost record would be waited for
            while sum(at.offset for at in log.committed("g").values()) < len(written):
                await run(drain())

    async def drain() -> int:
        async with (
            log.async_producer(transactional_id="copy") as producer,
            log.async_consumer("in", group_id="g", **READING) as consumer,
            producer.transaction() as tx,
        ):
            found = await consumer.getmany(timeout_ms=200)
            for record in itertools.chain.from_iterable(found.values()):
                await tx.send("out", record.value)
            await tx.commit_offsets(consumer)
        return len(found)

    way.run(main)
    assert sorted((r.value for r in log.read("out")), key=int) == written
    assert sum(at.offset for at in log.committed("g").values()) == len(written)


@pytest.mark.parametrize("way", WAYS)
def test_a_transaction_cancelled_at_any_wait_leaves_the_clients_usable(
    log: eoslog.Log, way: ByAsyncio
) -> None:
    written = fill(log, 30)

    async def main() -> None:
        async with (
            log.async_producer(transactional_id="copy") as producer,
            log.async_consumer("in", group_id="g", producer=producer, **READING) as consumer,
        ):
            ended: list[str] = []

            async def copy() -> int:
                tx = producer.transaction()
                try:
                    async with tx:
                        # Inside, so that an abort rewinds the consumer.
                        records = await many(consumer)
                        for record in records:
                            await tx.send("out", record.value)
                        await tx.commit_offsets(consumer)
                finally:
                    ended.append(tx.state)
                return len(records)

            for nth in range(1, 14):
                _, run = way(nth)
                await run(copy())
                assert producer.transaction_state == "READY"
            assert set(ended) <= {"committed", "aborted", "not begun"}
            assert "committed" in ended
            while sum(at.offset for at in log.committed("g").values()) < len(written):
                await copy()

    way.run(main)
    assert sorted((r.value for r in log.read("out")), key=int) == written


@pytest.mark.parametrize("way", WAYS)
def test_a_send_cancelled_at_any_wait_is_stored_at_most_once(
    log: eoslog.Log, way: ByAsyncio
) -> None:
    async def main() -> list[bytes]:
        known: list[bytes] = []
        async with log.async_producer(linger_ms=0) as producer:
            for nth in range(1, 9):
                value = str(nth).encode()
                _, run = way(nth % 4 + 1)
                if await run(producer.send_and_wait("out", value)) is not None:
                    known.append(value)
        return known

    known = way.run(main)
    stored = [record.value for record in log.read("out")]
    assert len(stored) == len(set(stored))
    assert set(known) <= set(stored)


READS = {"one": lambda c: c.getone(), "many": lambda c: c.getmany(timeout_ms=5000)}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("before", [1, 5])
def test_a_cancelled_read_repeats_no_record_of_an_earlier_one(
    log: eoslog.Log, before: int, read: str
) -> None:
    """Another call ends the read without a record, or the record was fetched by an earlier read."""
    with log.producer() as producer:
        producer.produce_many("in", [b"%d" % number for number in range(10)], partition=0)

    async def main() -> list[bytes]:
        async with log.async_consumer("in", group_id="g", **READING) as consumer:
            found = [(await consumer.getone()).value for _ in range(before)]
            for interrupts in (True, False):
                running = asyncio.Event()
                loop = asyncio.get_running_loop()
                go_on = threading.Event()

                def hold(
                    _: Any, running: Any = running, go_on: Any = go_on, loop: Any = loop
                ) -> None:
                    loop.call_soon_threadsafe(running.set)
                    go_on.wait(60)

                held = asyncio.create_task(consumer.call(hold))
                await running.wait()
                cancelled = asyncio.ensure_future(READS[read](consumer))
                await asyncio.sleep(0)
                other = asyncio.create_task(consumer.positions()) if interrupts else None
                await asyncio.sleep(0)
                go_on.set()
                while consumer._thread.waiting:  # all calls end, and no coroutine knows it
                    time.sleep(0.001)
                cancelled.cancel()
                await asyncio.wait([held, cancelled, *([other] if other else [])])
                assert cancelled.cancelled()
            return [*found, *[(await consumer.getone()).value for _ in range(10 - before)]]

    assert asyncio.run(main()) == [b"%d" % number for number in range(10)]
