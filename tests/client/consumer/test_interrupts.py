"""Ctrl-C at any step of joining, rejoining or leaving a group loses no member.

A member that no consumer knows must leave, although its process lives. The interrupts are raised
at each step of the consumer and of the group coordinator, one after the other.

The exception of a signal handler, such as a time limit, does not come from the record.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import eoslog
from eoslog import Log, TopicPartition
from eoslog.client.consumer.consumer import Consumer

pytestmark = pytest.mark.slow
PLACES = tuple(
    os.path.join(os.path.dirname(str(eoslog.__file__)), *part)
    for part in (
        ("client", "consumer"),
        ("coordinator", "groups"),
        ("storage", "log", "partition_log.py"),
    )
)
GROUP: dict[str, Any] = {
    "group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False,
}  # fmt: skip


@pytest.fixture
def log(tmp_path: Any) -> Iterator[Log]:
    with eoslog.open(tmp_path / "log") as opened:
        opened.create_topic("t")
        with opened.producer() as producer:
            producer.produce("t", b"0")
        opened.reset_offsets("g", {TopicPartition("t", 0): 0})
        yield opened


def interrupted(call: Callable[[], object], at: int) -> bool:
    """Call, and raise KeyboardInterrupt at a step; False if the call has fewer steps.

    The interpreter raises it where a function begins or has returned. Generators are left out,
    because an exception of a trace function skips their handlers.
    """
    steps = 0

    def traced(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        code = frame.f_code
        if not code.co_filename.startswith(PLACES) or code.co_flags & inspect.CO_GENERATOR:
            return None
        if event in ("call", "return"):
            steps += 1
            if steps == at:
                raise KeyboardInterrupt
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def every_interrupt(
    log: Log, prepare: Callable[[], Consumer], call: Callable[[Consumer], object]
) -> Iterator[Consumer]:
    """Interrupt a call of a new consumer, at each of its steps."""
    at, again = 0, True
    while again:
        at += 1
        consumer = prepare()
        again = interrupted(lambda consumer=consumer: call(consumer), at)
        yield consumer
        consumer.close()
        del consumer
        assert left(log), f"step {at}"
    assert at > 40, "the call has hardly a step"


def members(log: Log) -> list[str]:
    """The members, after the work of the background threads."""
    log._engine.dropped.end()
    for thread in threading.enumerate():
        if thread.name == "eoslog-dropped":  # a heartbeat has started it
            with contextlib.suppress(RuntimeError):  # not started yet: it has taken nothing
                thread.join()
    log._engine.groups.tick()
    return [member.member_id for member in log.describe_group("g").members]


def left(log: Log) -> bool:
    """Whether no member is in the group."""
    if members(log):
        gc.collect()  # an interrupt inside of an `except` may leave a cycle of frames
    return members(log) == []


def new(log: Log, **config: Any) -> Consumer:
    return log.consumer("t", **GROUP, **config)


def joined(log: Log, **config: Any) -> Consumer:
    consumer = new(log, **config)
    assert len(consumer.consume(1, timeout=60)) == 1
    return consumer


def stale(log: Log) -> Consumer:
    """A consumer whose next heartbeat is rejected; its member is in the group."""
    consumer = joined(log)
    consumer._member.epoch -= 2
    consumer._membership.next_step = 0.0
    consumer._next_duty = 0.0
    return consumer


def poll(consumer: Consumer) -> None:
    consumer.consume(1, timeout=0)


STEPS: dict[str, Callable[[Log], Consumer]] = {"join": new, "rejoin": stale}


@pytest.mark.parametrize("step", STEPS)
def test_a_dropped_consumer_leaves_although_its_poll_was_interrupted(
    log: Log, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "eoslog.consumer")  # a kept error keeps its frames
    at, again = 0, True
    while again:
        at += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            again = interrupted(lambda consumer=STEPS[step](log): poll(consumer), at)  # type: ignore[misc]
            assert left(log), f"step {at}"
    assert at > 100


@pytest.mark.parametrize("step", STEPS)
def test_an_interrupted_consumer_polls_again_as_the_only_member(log: Log, step: str) -> None:
    for consumer in every_interrupt(log, lambda: STEPS[step](log), poll):
        consumer.seek_to_beginning()
        assert len(consumer.consume(1, timeout=60)) == 1
        assert members(log) == [consumer.group_metadata().member_id]


@pytest.mark.parametrize("call", ["close", "unsubscribe"])
def test_an_interrupted_close_leaves_no_member(log: Log, call: str) -> None:
    for consumer in every_interrupt(log, lambda: joined(log), lambda c: getattr(c, call)()):
        if consumer.closed:
            assert left(log)


def test_a_kept_consumer_is_removed_if_it_never_polls_after_its_join(log: Log) -> None:
    """A notebook keeps the consumer of an interrupted cell in the traceback."""

    def prepare() -> Consumer:
        return new(log, max_poll_interval_ms=1)

    for _ in every_interrupt(log, prepare, poll):
        time.sleep(0.002)
        assert left(log)


def test_an_exception_of_a_signal_handler_interrupts_decoding(log: Log) -> None:
    class TimeLimit(Exception):
        pass

    def late(*_: object) -> None:
        raise TimeLimit

    with log.producer() as producer:
        producer.produce_many("t", [b"1234567890"] * 100_000)
    before = signal.signal(signal.SIGALRM, late)
    try:
        for after_ms in range(1, 11):
            with log.consumer("t", max_poll_records=100_000) as consumer:
                with pytest.raises(TimeLimit):
                    signal.setitimer(signal.ITIMER_REAL, after_ms / 1000)
                    for _ in range(1000):
                        consumer.seek_to_beginning()
                        consumer.consume(100_000, timeout=0)
                consumer.seek_to_beginning()
                assert consumer.consume(1, timeout=0)[0].offset == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
