"""Calls of resolvers: exceptions, hanging calls, threads, coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from eoslog import errors
from eoslog.descriptions import PreparedTransaction
from eoslog.model import Outcome
from tests.coordinator.checks.check_world import Answers, World, calls, settle
from tests.waiting import until

COMMIT, ABORT, UNKNOWN = Outcome.COMMIT, Outcome.ABORT, Outcome.UNKNOWN


@pytest.fixture
def world() -> World:
    return World()


class Hanging:
    """A resolver whose calls for some tokens hang until `release`."""

    def __init__(self, world: World, *names: str, answer: Outcome = COMMIT) -> None:
        self.world = world
        self.names = names
        self.answer = answer
        self.asked: list[str] = []
        self.free = threading.Event()

    def __call__(self, prepared: PreparedTransaction) -> Outcome:
        name = self.world.name(prepared.token)
        self.asked.append(name)
        if name in self.names and not self.free.is_set():
            self.free.wait()
        return self.answer


@pytest.fixture
def hanging() -> Iterator[list[Hanging]]:
    made: list[Hanging] = []
    yield made
    for one in made:
        one.free.set()
    settle()


@pytest.mark.parametrize(
    "problem",
    [
        ValueError("no row"),
        SystemExit(1),
        KeyboardInterrupt(),
        errors.LockTimeout("held"),
        TimeoutError(),
    ],
)
def test_a_resolver_that_raises_never_decides(world: World, problem: BaseException) -> None:
    world.prepare("t1")
    db = Answers(world, problem)
    world.register(db, interval=30.0, max_checks=2)
    world.run(100.0)
    assert len(db.asked) == 4
    assert (world.state("t1"), world.checks("t1")) == ("PREPARED", 0)


def test_a_problem_is_logged_once_with_token_and_resolver(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("t1", "t2", "t3"):
        world.prepare(name)
    world.register(Answers(world, ValueError("no row")))
    world.run(500.0)
    assert caplog.text.count("did not decide") == 1
    told = f"{world.tokens['t1']}: resolver 'db' did not decide, asking again in 30 s: "
    assert f"{told}ValueError: no row" in caplog.text


@pytest.mark.parametrize("answer", [True, None, "commit", 1])
def test_an_answer_that_is_not_an_outcome_never_decides(
    world: World, caplog: pytest.LogCaptureFixture, answer: object
) -> None:
    world.prepare("t1")
    world.register(Answers(world, answer))
    world.run(100.0)
    assert (world.state("t1"), world.checks("t1")) == ("PREPARED", 0)
    assert f"ConfigError: resolver 'db': expected an eoslog.Outcome, got {answer!r}" in caplog.text


def test_row_N13_R9_a_hanging_call_blocks_no_other_token_or_resolver(
    world: World, hanging: list[Hanging]
) -> None:
    hanging.append(Hanging(world, "t1"))
    world.register(hanging[0], timeout=3.0)
    world.register(Answers(world), "other")
    for name, resolver in (("t1", "db"), ("t2", "db"), ("t3", "other")):
        world.prepare(name, resolver)
    world.pass_until(lambda: hanging[0].asked)
    until(lambda: world.state("t3") == "COMPLETE_COMMIT")
    assert world.state("t2") == "PREPARED"  # its only worker hangs
    world.pass_until(lambda: world.state("t2") == "COMPLETE_COMMIT")
    assert (world.state("t1"), world.checks("t1")) == ("PREPARED", 0)


def test_the_late_answer_of_an_abandoned_call_is_dropped(
    world: World, hanging: list[Hanging], caplog: pytest.LogCaptureFixture
) -> None:
    db = Hanging(world, "t1")
    hanging.append(db)
    world.register(db, timeout=3.0, interval=30.0)
    world.prepare("t1")
    world.pass_until(lambda: db.asked)
    world.pass_time(3.5)
    assert "resolver 'db' did not decide, asking again in 30 s: no answer within 3 s" in (
        caplog.text
    )
    db.free.set()
    settle()
    assert world.state("t1") == "PREPARED"
    world.run(31.0)
    assert world.state("t1") == "COMPLETE_COMMIT"
    assert db.asked == ["t1", "t1"]


def test_a_token_is_not_asked_about_while_its_abandoned_call_runs(
    world: World, hanging: list[Hanging]
) -> None:
    db = Hanging(world, "t1")
    hanging.append(db)
    world.register(db, timeout=3.0, interval=30.0)
    world.prepare("t1")
    world.pass_until(lambda: db.asked)
    world.pass_time(500.0)
    assert db.asked == ["t1"]
    world.prepare("t2")
    world.pass_until(lambda: world.state("t2") == "COMPLETE_COMMIT")


def test_a_resolver_never_has_more_than_twice_its_workers(
    world: World, hanging: list[Hanging], caplog: pytest.LogCaptureFixture
) -> None:
    names = [world.prepare(f"t{number}") for number in range(20)]
    db = Hanging(world, *names)
    hanging.append(db)
    world.register(db, timeout=3.0, workers=2)
    world.pass_until(lambda: len(db.asked) == 4)
    world.pass_time(200.0)
    assert len(db.asked) == len(calls()) == 4
    assert "resolver 'db': all 4 calls hang, asking nothing more until one returns" in caplog.text
    db.free.set()
    settle()
    world.run(100.0)
    assert {world.state(name) for name in names} == {"COMPLETE_COMMIT"}


def test_workers_ask_at_the_same_time(world: World) -> None:
    names = [world.prepare(f"t{number}") for number in range(3)]
    together = threading.Barrier(3)

    def meet(prepared: PreparedTransaction) -> Outcome:
        together.wait()
        return COMMIT

    world.register(meet, workers=3)
    world.run(7.0)
    assert {world.state(name) for name in names} == {"COMPLETE_COMMIT"}


def test_a_coroutine_answers(world: World) -> None:
    async def ask(prepared: PreparedTransaction) -> Outcome:
        await asyncio.sleep(0)
        return ABORT

    world.prepare("t1")
    world.register(ask)
    world.run(7.0)
    assert world.state("t1") == "COMPLETE_ABORT"


def test_a_coroutine_is_cancelled_at_its_timeout(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    cancelled = []

    async def ask(prepared: PreparedTransaction) -> Outcome:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(world.name(prepared.token))
            raise
        return COMMIT

    world.prepare("t1")
    world.register(ask, timeout=0.05)
    world.run(7.0)
    assert cancelled == ["t1"]
    assert (world.state("t1"), world.checks("t1")) == ("PREPARED", 0)
    assert "no answer within 0.05 s" in caplog.text


def test_the_answer_of_a_replaced_resolver_is_dropped(world: World, hanging: list[Hanging]) -> None:
    old = Hanging(world, "t1", answer=ABORT)
    hanging.append(old)
    world.register(old, timeout=1000.0)
    world.prepare("t1")
    world.pass_until(lambda: old.asked)
    new = Answers(world, UNKNOWN)
    world.register(new)
    old.free.set()
    settle()
    assert world.state("t1") == "PREPARED"
    world.run(1.0)
    assert new.asked == ["t1"]


def test_close_waits_for_a_decision_and_not_for_a_call(
    world: World, hanging: list[Hanging]
) -> None:
    db = Hanging(world, "t1")
    hanging.append(db)
    world.register(db)
    world.prepare("t1")
    world.pass_until(lambda: db.asked)
    assert world.first.checks.close()
    db.free.set()
    settle()
    assert world.state("t1") == "PREPARED"


def test_close_returns_after_a_running_write(world: World) -> None:
    world.register(Answers(world))
    world.prepare("t1")
    entered, free = threading.Event(), threading.Event()

    def block() -> None:
        entered.set()
        free.wait()

    for log in world.first.transaction_partitions():
        log.before_append = block
    world.pass_until(entered.is_set)
    closer = threading.Thread(target=world.first.checks.close)
    closer.start()
    until(lambda: world.first.checks._gate.closed)
    assert closer.is_alive()
    free.set()
    closer.join()
    assert world.state("t1") != "PREPARED"
    settle()


def test_a_write_that_fails_is_repeated_by_the_next_check(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.prepare("t1")
    db = Answers(world)
    world.register(db)
    for problem in (errors.LockTimeout("held"), OSError("odd")):
        for log in world.first.transaction_partitions():
            log.faults["append"] = problem
        world.run(20.0)
        assert world.state("t1") == "PREPARED"
        for log in world.first.transaction_partitions():
            log.faults.clear()
        world.pass_time(0.0)
    world.run(60.0)
    assert world.state("t1") == "COMPLETE_COMMIT"
    assert "LockTimeout: held" in caplog.text


def test_a_check_whose_thread_cannot_start_is_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    world.prepare("t1")
    db = Answers(world, COMMIT)
    world.register(db, interval=1.0)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        world.run(30.0)
    assert db.asked == []
    world.run(2.0)
    assert (db.asked, world.state("t1")) == (["t1"], "COMPLETE_COMMIT")


def test_a_decision_that_found_no_free_moment_is_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> None:
        raise errors.ConcurrentTransactions("the transaction log changed during each attempt")

    world.prepare("t1")
    db = Answers(world, COMMIT)
    world.register(db, first_check=1.0, interval=5.0)
    with monkeypatch.context() as patch:
        patch.setattr(world.first.prepared, "resolve", busy)
        world.run(3.0)
    assert (db.asked, world.state("t1")) == (["t1"], "PREPARED")
    world.run(5.0)
    assert (db.asked, world.state("t1")) == (["t1", "t1"], "COMPLETE_COMMIT")
