"""An async producer stores records and transactions like a producer."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import anyio
import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import (
    CommitFailed,
    ConfigError,
    IllegalState,
    ProducerFenced,
    UnknownTopicOrPartition,
)
from tests.aio.conftest import Run, client_threads

READING = {"auto_offset_reset": "earliest", "enable_auto_commit": False}


def stored(log: eoslog.Log) -> list[bytes]:
    return [record.value for record in log.read("out")]


def test_send_returns_a_delivery_and_send_and_wait_its_place(log: eoslog.Log, run: Run) -> None:
    async def main() -> None:
        async with log.async_producer() as producer:
            deliveries = [await producer.send("out", str(number)) for number in range(250)]
            places = [await delivery for delivery in deliveries]
            assert [place.offset for place in places] == list(range(250))
            assert (await producer.send_and_wait("out", b"last", b"key")).offset == 250
            assert await producer.flush() == 0
            assert await producer.partitions_for("in") == [0, 1]
            with pytest.raises(UnknownTopicOrPartition):
                await producer.send("no-such-topic", b"")
        assert client_threads() == []

    run(main)
    assert stored(log) == [*(str(number).encode() for number in range(250)), b"last"]


def test_records_keep_their_order_when_some_must_wait(log: eoslog.Log, run: Run) -> None:
    async def main() -> None:
        # A buffer that is full all the time, so that records wait in the thread.
        async with log.async_producer(buffer_memory=2_000_000, linger_ms=1) as producer:
            for number in range(3_000):
                await producer.send("out", b"%6d" % number + b"x" * 2_000)

    run(main)
    assert [int(value[:6]) for value in stored(log)] == list(range(3_000))


def test_a_transaction_commits_at_its_end_and_aborts_on_an_exception(
    log: eoslog.Log, run: Run
) -> None:
    async def main() -> None:
        async with log.async_producer(transactional_id="x") as producer:
            async with producer.transaction() as tx:
                assert (tx.state, producer.transaction_state) == ("open", "IN_TRANSACTION")
                await tx.send("out", b"1")
                await producer.send("out", b"2")
            assert tx.state == "committed"
            assert "committed" in repr(tx)
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction() as tx:
                    await tx.send("out", b"3")
                    raise ZeroDivisionError
            assert tx.state == "aborted"
            async with producer.transaction() as tx:
                await tx.send("out", b"4")
                await tx.abort()
            assert tx.state == "aborted"
            await producer.begin_transaction()
            await producer.send("out", b"5")
            await producer.commit_transaction()
            await producer.begin_transaction()
            await producer.send("out", b"6")
            await producer.abort_transaction()
            await producer.begin_transaction()
            await producer.send("out", b"7")

    run(main)
    assert stored(log) == [b"1", b"2", b"5"]


def test_a_transaction_commits_the_positions_of_its_consumer(log: eoslog.Log, run: Run) -> None:
    with log.producer() as filling:
        filling.produce_many("in", [str(number) for number in range(10)])

    async def main() -> None:
        async with (
            log.async_producer(transactional_id="x") as producer,
            log.async_consumer("in", group_id="g", **READING) as consumer,
        ):
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction() as tx:
                    await tx.send("out", (await consumer.getone()).value)
                    await tx.commit_offsets(consumer)
                    raise ZeroDivisionError
            copied = 0
            while copied < 10:  # the first record is read again
                async with producer.transaction() as tx:
                    for records in (await consumer.getmany(timeout_ms=5000)).values():
                        for record in records:
                            await tx.send("out", record.value)
                            copied += 1
                    await tx.commit_offsets(consumer)
            async with producer.transaction() as tx:
                await tx.send_offsets({TopicPartition("in", 0): 1}, "other")
                await tx.send_offsets({TopicPartition("in", 1): 1}, consumer)
                await tx.set_position("source", 7)

    run(main)
    assert sorted(stored(log), key=int) == [str(number).encode() for number in range(10)]
    assert log.committed("other")[TopicPartition("in", 0)].offset == 1
    assert log.committed("g")[TopicPartition("in", 1)].offset == 1
    assert log.position("source") == 7


def test_commit_offsets_is_refused_while_another_task_reads(log: eoslog.Log, run: Run) -> None:
    async def main() -> None:
        async with (
            log.async_producer(transactional_id="x") as producer,
            log.async_consumer("in", group_id="g", **READING) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.getone)
            await anyio.sleep(0.05)
            with pytest.raises(IllegalState, match="another task is in a call of the consumer"):
                async with producer.transaction() as tx:
                    await tx.send("out", b"1")
                    await tx.commit_offsets(consumer)
            tasks.cancel_scope.cancel()

    run(main)
    assert stored(log) == []


def test_a_consumer_with_auto_commit_is_refused_in_a_transaction(log: eoslog.Log) -> None:
    async def main() -> None:
        async with (
            log.async_producer(transactional_id="x") as producer,
            log.async_consumer("in", group_id="g") as consumer,
        ):
            with pytest.raises(ConfigError):
                async with producer.transaction() as tx:
                    await tx.commit_offsets(consumer)
            with pytest.raises(ConfigError, match="expected an AsyncConsumer, got 'g'"):
                async with producer.transaction() as tx:
                    await tx.commit_offsets("g")  # type: ignore[arg-type]
            with pytest.raises(ConfigError):
                async with producer.transaction() as tx:
                    await tx.send_offsets({TopicPartition("in", 0): 1}, consumer)

    asyncio.run(main())


def test_a_consumer_that_left_its_group_cannot_commit_in_a_transaction(log: eoslog.Log) -> None:
    with log.producer() as filling:
        filling.produce_many("in", [b"0"] * 10)

    async def main() -> None:
        async with (
            log.async_producer(transactional_id="x") as producer,
            log.async_consumer("in", group_id="g", **READING) as consumer,
        ):
            with pytest.raises(CommitFailed):
                async with producer.transaction() as tx:
                    await consumer.getone()
                    member = (await consumer.group_metadata()).member_id
                    log._engine.groups.leave("g", member)
                    await tx.commit_offsets(consumer)
            assert tx.state == "aborted"

    asyncio.run(main())


def test_a_new_producer_fences_the_old_one(log: eoslog.Log, run: Run) -> None:
    async def main() -> None:
        async with log.async_producer(transactional_id="x") as old:
            async with old.transaction() as tx:
                await tx.send("out", b"1")
            async with log.async_producer(transactional_id="x") as new:
                assert new.previous_outcome is not None
                assert new.transactional_id == "x"
                with pytest.raises(ProducerFenced):
                    async with old.transaction() as tx:
                        await tx.send("out", b"2")

    run(main)
    assert stored(log) == [b"1"]


def test_a_commit_that_fails_while_its_task_is_cancelled_is_logged(
    log: eoslog.Log, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with log.async_producer(transactional_id="x") as old:

            async def late() -> None:
                async with old.transaction() as tx:
                    await tx.send("out", b"1")
                    async with log.async_producer(transactional_id="x"):
                        pass
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()

            with pytest.raises(asyncio.CancelledError) as caught:
                await asyncio.create_task(late())
            assert isinstance(caught.value.__cause__, ProducerFenced)

    with caplog.at_level(logging.WARNING, "eoslog"):
        asyncio.run(main())
    assert "a transaction ended while its task was cancelled" in caplog.text
    assert stored(log) == []


def test_a_producer_with_a_name_sends_publishing_ids(log: eoslog.Log, run: Run) -> None:
    async def main() -> None:
        async with log.async_producer(name="relay") as producer:
            for number in (0, 1, 1, 2):
                await producer.send_and_wait("out", str(number), partition=0, publishing_id=number)

    run(main)
    assert stored(log) == [b"0", b"1", b"2"]


def test_call_uses_every_method_of_the_producer(log: eoslog.Log, run: Run) -> None:
    async def main() -> None:
        async with log.async_producer(transactional_id="x") as producer:
            async with producer.transaction("staged"):
                await producer.call(lambda p: p.produce_many("out", [b"1", b"2"]))
                prepared = await producer.call(lambda p: p.prepare_transaction())
            log.resolve(str(prepared), eoslog.Outcome.COMMIT)

    run(main)
    assert stored(log) == [b"1", b"2"]


def test_a_scheduled_record_is_durable_when_send_returns(log: eoslog.Log, run: Run) -> None:
    async def main() -> Any:
        async with log.async_producer() as producer:
            return await producer.send("out", b"later", deliver_at=4_000_000_000_000)

    delivery = run(main)
    log.resolve(delivery.token, eoslog.Outcome.ABORT)


def test_a_producer_without_a_transactional_id_has_no_transactions(log: eoslog.Log) -> None:
    async def main() -> None:
        async with log.async_producer() as producer:
            assert producer.transaction_state is None
            with pytest.raises(IllegalState, match="no transactional.id"):
                producer.transaction()
            with pytest.raises(IllegalState, match="no transactional.id"):
                await producer.begin_transaction()
        with pytest.raises(IllegalState, match="closed; create a new one"):
            await producer.send("out", b"")
        assert producer.closed
        with pytest.raises(ConfigError, match="lingerms|linger.mss|linger"):
            log.async_producer(linger_mss=5)

    asyncio.run(main())
