"""A delivery can be waited for, awaited, and reported by a callback, each once."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog.client.producer.delivery import Delivery
from eoslog.errors import IllegalState
from eoslog.model import RecordMetadata

PLACE = RecordMetadata("t", 0, 7, -1)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[eoslog.Log]:
    with eoslog.open(tmp_path / "log") as opened:
        opened.create_topic("t")
        yield opened


def test_a_delivery_is_awaited(log: eoslog.Log) -> None:
    async def work(producer: eoslog.Producer) -> list[int]:
        sent = [producer.send("t", str(i)) for i in range(50)]
        first = await sent[0]
        assert first is await sent[0], "and once more, when it is known"
        places = await asyncio.gather(*sent)
        return [place.offset for place in places]

    with log.producer() as producer:
        assert asyncio.run(work(producer)) == list(range(50))


def test_await_raises_the_error_of_a_failed_delivery() -> None:
    delivery = Delivery()

    async def work() -> None:
        threading.Thread(target=delivery, args=(IllegalState("gone"), PLACE)).start()
        await delivery

    with pytest.raises(IllegalState, match="gone"):
        asyncio.run(work())


def test_a_cancelled_await_does_not_affect_other_waiters() -> None:
    delivery = Delivery()
    said: list[object] = []

    async def work() -> RecordMetadata:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
        given_up = asyncio.ensure_future(delivery)
        waiting = asyncio.ensure_future(delivery)
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
        assert given_up.cancelled()
        delivery(None, PLACE)
        return await waiting

    assert asyncio.run(work()) == PLACE
    assert not said


def test_a_closed_event_loop_does_not_stop_the_sender() -> None:
    delivery = Delivery()

    async def work() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(delivery, 0)
        asyncio.ensure_future(delivery)
        await asyncio.sleep(0)

    asyncio.run(work())
    delivery(None, PLACE)
    assert delivery.result(0) == PLACE


def test_every_waiting_thread_receives_the_result_of_a_delivery() -> None:
    for _ in range(200):
        delivery = Delivery()
        called: list[object] = []
        begin = threading.Barrier(5)

        def wait(delivery: Delivery = delivery, called: list[object] = called) -> None:
            begin.wait(60)  # noqa: B023
            called.append(delivery.result(60))

        threads = [threading.Thread(target=wait) for _ in range(4)]
        for thread in threads:
            thread.start()
        begin.wait(60)
        delivery(None, PLACE)
        for thread in threads:
            thread.join(60)
        assert sorted(map(str, called)) == sorted(map(str, [PLACE] * 4))


@pytest.mark.parametrize("timeout", [None, 0.0])
def test_a_forked_child_does_not_wait_for_its_parents_delivery(
    log: eoslog.Log, timeout: float | None
) -> None:
    with log.producer(linger_ms=60_000) as producer:
        delivery = producer.send("t", b"v")
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            status = 1
            try:
                delivery.result(timeout)
            except IllegalState:
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        producer.flush()
        assert delivery.result(0).offset == 0


def test_a_forked_child_waits_for_its_own_delivery(log: eoslog.Log) -> None:
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        status = 1
        try:
            with eoslog.open(log.path) as own, own.producer() as producer:
                status = producer.send("t", b"v").result(20).offset
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("copied", [copy.copy, pickle.dumps])
def test_only_a_delivery_with_a_result_can_be_copied(copied: Callable[[Delivery], object]) -> None:
    delivery = Delivery()
    with pytest.raises(TypeError, match=r"pending Delivery; call result\(\)"):
        copied(delivery)
    delivery(None, PLACE)
    copied(delivery)
    assert pickle.loads(pickle.dumps(delivery)).result() == PLACE


def test_repr_shows_the_state_of_deliveries_and_transactions(log: eoslog.Log) -> None:
    delivery = Delivery()
    assert repr(delivery) == "<Delivery, pending>"
    delivery(None, PLACE)
    assert repr(delivery) == "<Delivery, t-0 at offset 7>"
    failed = Delivery()
    failed(IllegalState("gone"), PLACE)
    assert repr(failed) == "<Delivery, IllegalState: gone>"
    with log.producer(transactional_id="a") as producer:
        producer.init_transactions()
        with producer.transaction() as tx:
            assert repr(tx) == "<Transaction of 'a', open>"
        assert repr(tx) == "<Transaction of 'a', committed>"
        with producer.transaction() as tx:
            tx.abort()
            assert repr(tx) == "<Transaction of 'a', aborted>"
        with pytest.raises(ZeroDivisionError), producer.transaction() as tx:
            raise ZeroDivisionError
        assert repr(tx) == "<Transaction of 'a', aborted>"
        assert repr(producer.transaction()) == "<Transaction of 'a', not begun>"
