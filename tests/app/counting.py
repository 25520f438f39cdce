"""An application that counts words, and processes that end at a place."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable

import eoslog
from eoslog.storage.fs import files
from tests.sql.server import end_with_parent

WORDS = 11
STEPS = (
    "app.processed", "app.offsets", "app.applying", "app.sqlite", "app.applied",
    "app.death_counted", "app.output_first", "app.attempt_begun", "app.replayed",
    "app.replay_committed",
)  # fmt: skip
"""The failpoints of applications, at which tests kill processes."""


def feed(log: eoslog.Log, count: int, partitions: int = 2) -> None:
    """Write `count` words, and create the topics of the application."""
    log.create_topic("words", partitions=partitions, exist_ok=True)
    with log.producer() as producer:
        words = [b"w%d" % (number * number % WORDS) for number in range(count)]
        producer.produce_many("words", [b"%d" % number for number in range(count)], words)
    application(log).create_topics()


def application(
    log: eoslog.Log | str,
    store: str = "memory",
    at: Callable[[], object] = lambda: None,
    task_timeout: float | None = None,
    **more: int,
) -> eoslog.App:
    """Count words in the table `counts`, and write each new count to `news`."""
    app = eoslog.App(log, "counter", **more)
    counts = app.table("counts", default=int, store=store)

    @app.task(
        "words", key="string", value="json", to="news", tables=[counts], task_timeout=task_timeout
    )
    def count(record: eoslog.Record, ctx: eoslog.Context) -> int:
        at()
        counts[record.key] += 1
        number: int = counts[record.key]
        return number

    return app


def check(log: eoslog.Log) -> None:
    """Check that each word was counted once, and that nothing was written twice."""
    expected: dict[bytes, int] = defaultdict(int)
    for record in log.read("words"):
        expected[record.key] += 1
    counts = {key.encode(): value for key, value in log.table("counts").items()}
    assert counts == expected
    news: dict[bytes, list[int]] = defaultdict(list)
    for record in log.read("news"):
        news[record.key].append(int(record.value))
    assert {key: list(range(1, n + 1)) for key, n in expected.items()} == news
    changes: dict[bytes, list[int]] = defaultdict(list)
    for record in log.read("counts"):
        changes[record.key].append(int(record.value))
    for key, values in changes.items():
        assert values == sorted(set(values)), f"the changelog of {key!r} repeats"


def forked(work: Callable[[], object]) -> int:
    """Run a function in a forked process, and return its process id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        end_with_parent(signal.SIGKILL)  # also while it is stopped
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def ended(pid: int) -> int:
    """Wait for a process; return its exit code, negative for a signal."""
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return -os.WSTOPSIG(status)
    return os.waitstatus_to_exitcode(status)


def run(path: str, store: str, **more: int) -> None:
    """Run the application until no record is left."""
    with application(path, store, **more) as app:
        app.run(until="caught_up")


def run_to_record(path: str, store: str, number: int, signal_number: int, **more: int) -> None:
    """Run the application, which ends at its n-th call."""
    left = [number]

    def at() -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal_number)

    application(path, store, at, **more).run(until="caught_up")


def run_to_place(path: str, store: str, place: str, action: str, nth: int, **more: int) -> None:
    """Run the application, which ends at a failpoint."""
    files.arm_failpoint(place, action, nth)
    run(path, store, **more)
