"""When resolvers are asked, and what becomes of their answers."""

from __future__ import annotations

import errno
import logging

import pytest

from eoslog import errors
from eoslog.coordinator.checks.check_policy import CheckPolicy
from eoslog.model import Outcome
from tests.coordinator.checks.check_world import Answers, World

COMMIT, ABORT, UNKNOWN = Outcome.COMMIT, Outcome.ABORT, Outcome.UNKNOWN


@pytest.fixture
def world() -> World:
    return World()


def test_row_N06_the_first_check_comes_after_its_time(world: World) -> None:
    db = Answers(world)
    world.register(db, first_check=6.0)
    world.run(1.0)
    prepared_at = world.now
    world.prepare("t1")
    world.run(5.75)
    assert db.asked == []
    world.run(0.5)
    assert db.asked == ["t1"]
    assert db.times[0] - prepared_at >= 6.0
    assert world.state("t1") == "COMPLETE_COMMIT"


def test_row_N07_each_answer_has_its_effect(world: World) -> None:
    for token, answer in (("c", COMMIT), ("a", ABORT), ("u", UNKNOWN)):
        world.prepare(token, token)
        world.register(Answers(world, answer), token)
    world.run(7.0)
    assert [world.state(token) for token in "cau"] == [
        "COMPLETE_COMMIT",
        "COMPLETE_ABORT",
        "PREPARED",
    ]


def test_row_N18_an_unknown_answer_is_counted_and_asked_again(world: World) -> None:
    world.prepare("t1")
    db = Answers(world, UNKNOWN, UNKNOWN, UNKNOWN, COMMIT)
    world.register(db, interval=10.0, backoff=2.0)
    world.run(100.0)
    assert world.state("t1") == "COMPLETE_COMMIT"
    assert world.checks("t1") == 3
    assert db.gaps == [10.0, 20.0, 40.0]


def test_row_N16_the_last_check_parks_and_a_late_decision_stands(world: World) -> None:
    world.prepare("t1")
    db = Answers(world, UNKNOWN)
    world.register(db, interval=10.0, max_checks=3)
    world.run(500.0)
    assert world.state("t1") == "PARKED"
    assert len(db.asked) == 3
    world.resolve("t1", True)
    assert world.state("t1") == "COMPLETE_COMMIT"


@pytest.mark.parametrize(
    ("action", "state"), [("abort", "COMPLETE_ABORT"), ("commit", "COMPLETE_COMMIT")]
)
def test_row_N16_the_last_check_can_decide(world: World, action: str, state: str) -> None:
    world.prepare("t1")
    world.register(Answers(world, UNKNOWN), max_checks=2, on_exhausted=action)
    world.run(100.0)
    assert world.state("t1") == state


def test_row_N10_row_N17_a_settled_token_is_not_asked_about(world: World) -> None:
    for token in ("t1", "t2"):
        world.prepare(token)
    db = Answers(world, UNKNOWN)
    world.register(db)
    world.run(5.0)
    world.resolve("t1", False)
    world.run(200.0)
    assert set(db.asked) == {"t2"}


def test_row_N10_N17_a_token_settled_since_the_last_look_is_not_asked(
    world: World,
) -> None:
    world.prepare("t1")
    db = Answers(world, UNKNOWN)
    world.register(db)
    world.run(5.9)
    world.directory.now_ms += 1000
    world.now += 1.0
    news, world.first.prepared.index.news = world.first.prepared.index.news, list  # type: ignore[method-assign]
    world.resolve("t1", False)
    world.run(1.0)
    world.first.prepared.index.news = news  # type: ignore[method-assign]
    assert db.asked == []


def test_row_N14_a_settled_token_is_not_read_again(world: World) -> None:
    """RocketMQ moves the offset of the half queue past what is settled."""
    for number in range(100):
        world.prepare(f"t{number}")
    registration = world.register(Answers(world, UNKNOWN))
    world.run(1.0)
    waiting = registration.resolver._due
    assert len(waiting) == 100
    for number in range(99):
        world.resolve(f"t{number}", number % 2 == 0)
    world.run(1.0)
    assert len(waiting) == 1 and world.tokens["t99"] in waiting


def test_a_parked_token_is_asked_again_after_recheck(world: World) -> None:
    world.prepare("t1")
    db = Answers(world, UNKNOWN, UNKNOWN, COMMIT)
    world.register(db, interval=10.0, max_checks=2)
    world.run(100.0)
    assert world.state("t1") == "PARKED"
    asked_at = world.now
    world.first.prepared.recheck(world.tokens["t1"])
    assert (world.state("t1"), world.checks("t1")) == ("PREPARED", 0)
    world.run(1.0)
    assert db.times[-1] - asked_at < 1.0
    assert world.state("t1") == "COMPLETE_COMMIT"


def test_recheck_makes_a_waiting_token_due_now(world: World) -> None:
    world.prepare("t1")
    db = Answers(world, UNKNOWN, COMMIT)
    world.register(db, interval=1000.0)
    world.run(7.0)
    world.first.prepared.recheck(world.tokens["t1"])
    world.run(1.0)
    assert world.state("t1") == "COMPLETE_COMMIT"


def test_a_wall_clock_that_is_set_changes_no_wait(world: World) -> None:
    world.prepare("t1")
    db = Answers(world, UNKNOWN)
    world.register(db, interval=30.0)
    world.run(6.0)
    for change in (-86_400_000, 86_400_000, 86_400_000, -3_600_000):
        world.directory.now_ms += change
        world.run(30.0)
    assert db.gaps == [30.0] * 4


def test_a_clock_that_was_set_back_before_a_restart_delays_no_check(world: World) -> None:
    world.prepare("t1")
    world.run(3.0)
    world.directory.now_ms -= 86_400_000
    later = world.process()
    world.exit(world.first)
    db = Answers(world)
    world.register(db, process=later, first_check=6.0)
    world.run(6.25)
    assert db.asked == ["t1"]


def test_a_due_time_in_the_log_holds_after_a_restart(world: World) -> None:
    world.prepare("t1")
    world.register(Answers(world, UNKNOWN), interval=30.0)
    world.run(7.0)
    later = world.process()
    world.exit(world.first)
    world.directory.now_ms += 10_000
    db = Answers(world)
    world.register(db, process=later, interval=30.0)
    world.run(15.0)
    assert db.asked == []  # due 30 s after the answer in the log
    world.run(10.0)
    assert db.asked == ["t1"]


def test_a_resolver_that_is_registered_late_is_asked_about_what_is_overdue(world: World) -> None:
    world.prepare("t1")
    world.run(100.0)
    db = Answers(world)
    world.register(db)
    world.run(0.25)
    assert db.asked == ["t1"]


def test_R5_nothing_is_counted_while_no_resolver_is_registered(world: World) -> None:
    world.prepare("t1")
    world.run(10_000.0, step=10.0)
    assert (world.state("t1"), world.checks("t1")) == ("PREPARED", 0)


def test_a_new_resolver_replaces_an_equal_name(world: World) -> None:
    world.prepare("t1")
    old, new = Answers(world, UNKNOWN), Answers(world)
    first = world.register(old)
    world.register(new)
    first.close()  # does not remove the newer one
    world.run(7.0)
    assert (old.asked, new.asked) == ([], ["t1"])


def test_a_replaced_resolver_is_asked_again_after_the_newer_ones_are_closed(world: World) -> None:
    answers = [Answers(world, UNKNOWN), Answers(world, UNKNOWN), Answers(world), Answers(world)]
    registrations = [world.register(one) for one in answers]
    registrations[0].close()
    registrations[3].close()
    registrations[2].close()
    world.prepare("t1")
    world.run(7.0)
    registrations[0].close()
    assert [one.asked for one in answers] == [[], ["t1"], [], []]
    registrations[1].close()
    world.run(60.0)
    assert [one.asked for one in answers] == [[], ["t1"], [], []]


def test_an_unregistered_resolver_is_not_asked(world: World) -> None:
    world.prepare("t1")
    db = Answers(world)
    registration = world.register(db)
    world.run(3.0)
    registration.close()
    registration.close()
    world.run(10.0)
    assert db.asked == []


def test_a_token_without_resolver_is_never_asked_about(world: World) -> None:
    world.prepare("t1", None)
    db = Answers(world)
    world.register(db)
    world.run(100.0)
    assert db.asked == []


def test_the_process_that_prepared_asks_first(world: World) -> None:
    other = world.process()
    world.prepare("t1")
    mine, others = Answers(world, UNKNOWN), Answers(world, UNKNOWN)
    world.register(others, process=other)
    world.register(mine)
    world.run(200.0)
    assert len(mine.asked) == 7
    assert others.asked == []


def test_another_process_asks_if_the_preparing_one_does_not(world: World) -> None:
    other = world.process()
    world.prepare("t1")
    db = Answers(world)
    world.register(db, process=other, first_check=6.0, timeout=3.0)
    world.run(9.0)
    assert db.asked == []
    world.run(2.0)
    assert world.state("t1") == "COMPLETE_COMMIT"


def test_another_process_asks_immediately_if_the_preparing_one_has_exited(world: World) -> None:
    other = world.process()
    world.prepare("t1")
    world.exit(world.first)
    db = Answers(world)
    world.register(db, process=other, first_check=6.0)
    world.run(6.25)
    assert db.asked == ["t1"]


def test_two_processes_that_disagree_make_one_decision(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    second, third = world.process(), world.process()
    world.prepare("t1")
    world.exit(world.first)
    world.register(Answers(world, COMMIT), process=second)

    def late(prepared: object) -> Outcome:
        second.prepared.resolve(world.tokens["t1"], True)
        return ABORT

    world.register(late, process=third)
    world.processes.remove(second)
    with caplog.at_level(logging.ERROR):
        world.run(7.0)
    assert world.state("t1") == "COMPLETE_COMMIT"
    assert "resolver 'db' answered ABORT, keeping the first decision" in caplog.text


def test_two_processes_that_both_answer_unknown_count_one_check(world: World) -> None:
    second, third = world.process(), world.process()
    world.prepare("t1")
    world.exit(world.first)
    world.register(Answers(world, UNKNOWN), process=second)

    def slow(prepared: object) -> Outcome:
        token = world.tokens["t1"]
        _, entry = second.prepared.index.find(token)
        due = world.directory.now_ms + 30_000
        assert second.prepared.note_check(token, entry, 1, due, parked=False)
        return UNKNOWN

    world.register(slow, process=third)
    world.processes.remove(second)
    world.run(6.25)
    assert world.checks("t1") == 1


def test_row_N02_the_clock_commits_at_the_time_of_delivery(world: World) -> None:
    world.prepare("t1", None, deliver_at=60.0)
    world.run(59.0)
    assert world.state("t1") == "PREPARED"
    world.run(2.0)
    assert world.state("t1") == "COMPLETE_COMMIT"
    assert world.checks("t1") == 0


def test_row_N02_delay_and_resolver_compose(world: World) -> None:
    world.prepare("t1", "db", deliver_at=60.0)
    world.register(Answers(world))
    world.run(10.0)
    assert world.state("t1") == "PREPARE_COMMIT"
    world.run(48.0)
    assert world.state("t1") == "PREPARE_COMMIT"
    world.run(4.0)
    assert world.state("t1") == "COMPLETE_COMMIT"


def test_row_N02_a_cancelled_delivery_never_appears(world: World) -> None:
    world.prepare("t1", None, deliver_at=60.0)
    world.run(30.0)
    world.resolve("t1", False)
    world.run(60.0)
    assert world.state("t1") == "COMPLETE_ABORT"


def test_a_delivery_follows_the_wall_clock(world: World) -> None:
    at = world.directory.now_ms
    world.prepare("t1", None, deliver_at=60.0)
    world.run(30.0)
    world.directory.now_ms -= 40_000
    world.run(60.0)
    assert world.state("t1") == "PREPARED"
    world.directory.now_ms = at + 60_000
    world.run(1.0)
    assert world.state("t1") == "COMPLETE_COMMIT"


def test_another_process_delivers_after_a_restart(world: World) -> None:
    world.prepare("t1", None, deliver_at=60.0)
    world.exit(world.first)
    world.process()
    world.run(62.0)
    assert world.state("t1") == "COMPLETE_COMMIT"


def test_a_delivery_that_fails_is_repeated(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.prepare("t1", None, deliver_at=5.0)
    world.run(4.0)
    for _ in range(3):
        for log in world.first.transaction_partitions():
            log.faults["append"] = errors.LockTimeout("held")
        world.run(1.0)
        assert world.state("t1") == "PREPARED"
    for log in world.first.transaction_partitions():
        log.faults.clear()
    world.run(2.0)
    assert world.state("t1") == "COMPLETE_COMMIT"
    assert caplog.text.count("not delivered, retrying: held") == 1


def test_a_rejected_delivery_is_tried_less_often_up_to_each_minute(world: World) -> None:
    """Each try appends, and aborts, the parts that come before the rejected one."""
    payloads = world.first.payloads
    payloads.rejected = errors.RecordTooLarge("max.message.bytes was lowered")
    world.prepare("t1", None, deliver_at=5.0)
    world.run(300.0)
    tries = payloads.tries
    gaps = [round(after - before) for before, after in zip(tries, tries[1:], strict=False)]
    assert gaps == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    payloads.rejected = None
    world.run(60.0)
    assert world.state("t1") == "COMPLETE_COMMIT"


def test_a_delivery_that_meets_a_full_disk_is_tried_each_second(world: World) -> None:
    world.first.payloads.rejected = errors.DiskFull("no space", errno.ENOSPC, "t-0")
    world.prepare("t1", None, deliver_at=5.0)
    world.run(30.0)
    world.first.payloads.rejected = None
    world.run(1.5)
    assert world.state("t1") == "COMPLETE_COMMIT"


def test_a_commit_whose_process_exited_is_delivered_by_another(world: World) -> None:
    world.prepare("t1", None, deliver_at=5.0)
    world.directory.now_ms -= 10_000
    world.resolve("t1", True)
    world.directory.now_ms += 20_000
    assert world.state("t1") == "PREPARE_COMMIT"
    world.exit(world.first)
    world.process()
    world.run(3.0)
    assert world.state("t1") == "COMPLETE_COMMIT"


def test_a_clock_that_is_set_back_in_the_grace_loses_no_delivery(world: World) -> None:
    """A process that began with a clock ahead took the commit for overdue."""
    world.prepare("t1", None, deliver_at=60.0)
    world.resolve("t1", True)
    world.directory.now_ms += 3_600_000
    world.exit(world.first)
    world.process()
    world.run(1.25)
    world.directory.now_ms -= 3_600_000
    world.run(30.0)
    assert world.state("t1") == "PREPARE_COMMIT"
    world.run(31.0)
    assert world.state("t1") == "COMPLETE_COMMIT"


def test_a_clock_that_is_set_back_in_the_grace_commits_nothing(world: World) -> None:
    world.prepare("t1", None, deliver_at=60.0)
    world.directory.now_ms += 3_600_000
    world.exit(world.first)
    world.process()
    world.run(1.25)
    world.directory.now_ms -= 3_600_000
    world.run(30.0)
    assert world.state("t1") == "PREPARED"
    world.run(31.0)
    assert world.state("t1") == "COMPLETE_COMMIT"


def test_row_N11_a_look_reads_only_what_is_due(world: World) -> None:
    for number in range(500):
        world.prepare(f"t{number}", deliver_at=1000.0)
    db = Answers(world, UNKNOWN)
    world.register(db, first_check=1000.0)
    world.run(2.0)
    world.first.prepared.recheck(world.tokens["t77"])
    world.run(2.0)
    assert db.asked == ["t77"]
    assert world.first.described == 1


def test_row_N12_a_check_writes_less_than_100_bytes(world: World) -> None:
    """The payload is not written again: 61 bytes are the batch's header."""
    world.prepare("t1")
    world.register(Answers(world, UNKNOWN))

    def written() -> int:
        logs = world.first.transaction_partitions()
        return sum(len(batch.data) for log in logs for batch in log.stored)

    world.run(5.0)
    before = written()
    world.run(2.0)
    assert world.checks("t1") == 1
    assert 0 < written() - before < 100


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"first_check": -1}, "register_resolver: first_check: expected a timeout in seconds"),
        ({"interval": 0}, "register_resolver: interval: expected more than 0, got 0"),
        ({"backoff": 0.5}, "register_resolver: backoff: expected at least 1, got 0.5"),
        ({"max_checks": 0}, "register_resolver: max_checks: expected at least 1, got 0"),
        ({"max_checks": 1.5}, "register_resolver: max_checks: expected an int, got 1.5"),
        ({"timeout": 0}, "register_resolver: timeout: expected more than 0, got 0"),
        ({"workers": 0}, "register_resolver: workers: expected at least 1, got 0"),
        ({"on_exhausted": "drop"}, "register_resolver: on_exhausted: expected one of "),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, float], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        CheckPolicy.of(**settings)


@pytest.mark.parametrize("name", ["", 7])
def test_invalid_names_are_rejected(world: World, name: str) -> None:
    with pytest.raises(errors.ConfigError, match="register_resolver: name: expected a name, got"):
        world.register(Answers(world), name)


def test_a_function_that_cannot_be_called_is_rejected(world: World) -> None:
    with pytest.raises(errors.ConfigError, match="register_resolver: fn: expected a function"):
        world.register("db")  # type: ignore[arg-type]


def test_a_huge_backoff_ends_at_the_longest_delay() -> None:
    policy = CheckPolicy(backoff=1e300)
    assert policy.delay(1) == 30.0
    assert policy.delay(15) == 1e9


def test_a_closed_scheduler_asks_nothing(world: World) -> None:
    world.prepare("t1")
    db = Answers(world)
    world.register(db)
    world.run(1.0)
    assert world.first.checks.close()
    assert not world.first.checks.wanted()
    world.first.checks.look(lambda _, run: run())
    assert db.asked == []
