"""Async clients never block the loop's thread, and leave no thread."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import IllegalState
from tests.aio.conftest import Run, client_threads

READING = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
BELOW = ("eoslog.storage", "eoslog.engine", "eoslog.coordinator")


class Ticker:
    """A task that ticks, and what a blocking thread needs to wait for it."""

    def __init__(self) -> None:
        self.ticks = 0
        self.seen = threading.Event()

    async def run(self) -> None:
        while True:
            self.ticks += 1
            if self.ticks == 20:
                self.seen.set()
            await anyio.sleep(0.001)

    def wait(self) -> None:
        """Block this thread until the ticker has ticked, or fail."""
        assert self.seen.wait(60), "the event loop is blocked"


def test_a_task_runs_while_a_consumer_waits_for_a_record(log: eoslog.Log, run: Run) -> None:
    async def main() -> None:
        ticker = Ticker()
        async with (
            log.async_consumer("in", **READING) as consumer,
            log.async_producer() as producer,
            anyio.create_task_group() as tasks,
        ):

            async def answer() -> None:
                await anyio.to_thread.run_sync(ticker.wait)
                await producer.send_and_wait("in", b"1")

            tasks.start_soon(ticker.run)
            tasks.start_soon(answer)
            assert (await consumer.getone()).value == b"1"
            tasks.cancel_scope.cancel()

    run(main)


def test_a_task_runs_while_a_commit_and_a_deserializer_are_slow(log: eoslog.Log, run: Run) -> None:
    async def main() -> None:
        committing, reading = Ticker(), Ticker()

        def slow(value: bytes) -> bytes:
            reading.wait()
            return value

        async with (
            log.async_producer(transactional_id="x") as producer,
            log.async_consumer("out", value_deserializer=slow, **READING) as consumer,
        ):
            held, release = threading.Event(), threading.Event()

            def hold() -> None:  # like another thread that commits, whose flush takes long
                with producer._client()._calls:  # type: ignore[attr-defined]
                    held.set()
                    committing.wait()
                    release.set()

            async with anyio.create_task_group() as tasks:
                async with producer.transaction() as tx:
                    await tx.send("out", b"1")
                    threading.Thread(target=hold).start()
                    await anyio.to_thread.run_sync(held.wait)
                    tasks.start_soon(committing.run)
                assert release.is_set()
                tasks.cancel_scope.cancel()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(reading.run)
                assert (await consumer.getone()).value == b"1"
                tasks.cancel_scope.cancel()

    run(main)


def test_the_thread_of_the_loop_enters_no_layer_that_opens_files(log: eoslog.Log, run: Run) -> None:
    entered: set[str] = set()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith(BELOW) and frame.f_code.co_name != "<lambda>":
            entered.add(f"{module}.{frame.f_code.co_name}")

    async def main() -> None:
        consumer = log.async_consumer("in", group_id="g", **READING)
        producer = log.async_producer(transactional_id="x", linger_ms=0)
        gc.collect()
        gc.disable()  # finalizers of what earlier tests left are calls, too
        sys.setprofile(note)
        try:
            async with producer, consumer:
                await work(consumer, producer)
        finally:
            sys.setprofile(None)
            gc.enable()

    async def work(consumer: Any, producer: Any) -> None:
        async with producer.transaction() as tx:
            for number in range(200):
                await tx.send("in", str(number))
        for _ in range(50):
            await consumer.getone()
        await consumer.commit()
        place = TopicPartition("in", 0)
        await consumer.committed(place)
        await consumer.current_lag()
        await consumer.seek_to_end(place)
        await consumer.position(place)
        await consumer.seek_to_beginning()
        async for _batch in consumer.batches(100):
            break
        async with producer.transaction() as tx:
            await consumer.getmany(timeout_ms=1000)
            await tx.send("out", b"1")
            await tx.commit_offsets(consumer)
        async with producer.transaction() as tx:
            await tx.send("out", b"2")
            await tx.abort()
        await producer.flush()
        await producer.partitions_for("in")

    run(main)
    assert entered == set()


def test_tasks_run_between_reads_and_sends_that_need_not_wait(log: eoslog.Log, run: Run) -> None:
    async def main() -> None:
        ticker = Ticker()
        async with (
            log.async_producer() as producer,
            log.async_consumer("in", **READING) as consumer,
            anyio.create_task_group() as tasks,
        ):

            async def tick() -> None:
                while True:
                    ticker.ticks += 1
                    await anyio.sleep(0)

            tasks.start_soon(tick)
            await producer.send("in", b"0", partition=0)
            before = ticker.ticks
            for _ in range(1_000):
                await producer.send("in", b"0", partition=0)
            assert ticker.ticks > before
            await producer.flush()
            await consumer.getone()
            before = ticker.ticks
            for _ in range(1_000):
                await consumer.getone()
            assert ticker.ticks > before
            tasks.cancel_scope.cancel()

    run(main)


def test_each_client_has_one_thread_until_it_is_stopped(log: eoslog.Log, run: Run) -> None:
    async def main() -> None:
        async with (
            log.async_consumer("in", **READING) as consumer,
            log.async_producer() as producer,
        ):
            await asyncio_free(consumer, producer)
            assert sorted(client_threads())[:2] == ["eoslog-consumer", "eoslog-producer"]
        assert client_threads() == []

    async def asyncio_free(consumer: Any, producer: Any) -> None:
        await producer.send_and_wait("in", b"1")
        await consumer.getone()

    run(main)


def test_a_client_inherited_through_fork_is_refused(log: eoslog.Log) -> None:
    async def main() -> None:
        async with log.async_consumer("in", **READING) as consumer:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    asyncio.new_event_loop().run_until_complete(consumer.getone())
                except IllegalState as error:
                    code = 0 if "fork" in str(error) else 2
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    asyncio.run(main())


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "anyio":
            raise ImportError("anyio is not here")
sys.meta_path.insert(0, Blocked())
import eoslog

async def main(log):
    async with log.async_producer() as producer:
        await producer.send_and_wait("in", b"1")
    async with log.async_consumer("in", auto_offset_reset="earliest") as consumer:
        print((await consumer.getone()).value)
"""


@pytest.mark.process
def test_asyncio_needs_no_extra_and_trio_says_which_one(tmp_path: Path) -> None:
    program = (
        BLOCKED
        + """
import asyncio, sys
with eoslog.open(sys.argv[1]) as log:
    log.create_topic("in")
    asyncio.run(main(log))
    assert "anyio" not in sys.modules
    import trio
    try:
        trio.run(main, log)
    except eoslog.errors.ConfigError as error:
        print(error)
"""
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")],
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    read, refused = ended.stdout.splitlines()
    assert read == "b'1'"
    assert refused.startswith("start outside of asyncio needs the package 'anyio'")
    assert "[async]" in refused


@pytest.mark.process
def test_a_program_that_closes_nothing_exits(tmp_path: Path) -> None:
    program = """
import asyncio, sys, eoslog
log = eoslog.open(sys.argv[1])
log.create_topic("in")
async def main():
    global consumer, reading
    consumer = log.async_consumer("in", auto_offset_reset="earliest")
    await consumer.start()
    reading = asyncio.ensure_future(consumer.getone())
    await asyncio.sleep(0.05)
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
print("exits")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "exits\n"), ended.stderr
