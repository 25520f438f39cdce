"""A LockTimeout names the process that holds the lock, and says if it is stopped."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import Log
from eoslog.errors import LockTimeout
from eoslog.storage.directory import session
from eoslog.storage.directory.last_run import LastSession
from eoslog.storage.log import loader as log_loader
from eoslog.storage.log import segment_list
from tests.admin.blocking_process import BlockingProcess

pytestmark = pytest.mark.process

CLEANER = """
lock = log._engine.partition("t", 0).cleaner_lock
assert lock.try_take()
print("ready", flush=True)
sys.stdin.readline()
"""
APPEND = """
log._engine.partition("t", 0).core.lock_for_recovery(1.0)
print("ready", flush=True)
sys.stdin.readline()
"""
HALF_SWAPPED = """
partition = log._engine.partition("t", 0)
assert partition.cleaner_lock.try_take()
partition.mark_swap(True, 0)
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with eoslog.open(tmp_path / "log") as opened:
        opened.create_topic("t")
        with opened.producer() as producer:
            producer.produce("t", b"x")
        yield opened


def named(pid: int) -> str:
    command = re.escape(f"{sys.executable} -c")
    return rf"held by process {pid} \({command}.*stopped\)"


def clean(log: Log) -> Any:
    partition = log._engine.partition("t", 0)
    with partition.cleaner_lock.held(partition.name, 0.1):
        pass


def instant(log: Log) -> Any:
    return log._engine.session.consistent_cut([log._engine.partition("t", 0).slot])


def recover(log: Log) -> Any:
    partition = log._engine.partition("t", 0)
    return log_loader._recover(
        partition, LastSession(clean=True), 1, log_loader.nothing_carried, None
    )


def listing(log: Log) -> Any:
    return log._engine.partition("t", 0).segments.listing()


@pytest.mark.parametrize(
    ("lines", "waits"),
    [(CLEANER, clean), (APPEND, instant), (APPEND, recover), (HALF_SWAPPED, listing)],
    ids=["cleaner", "backup", "recovery", "swap"],
)
def test_field_C1_a_lock_timeout_names_the_stopped_holder(
    log: Log, monkeypatch: pytest.MonkeyPatch, lines: str, waits: Callable[[Log], Any]
) -> None:
    for module, name in (
        (log_loader, "LOCK_TIMEOUT_S"), (session, "LOCK_TIMEOUT_S"), (segment_list, "LOCK_TIMEOUT_S")
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 0.1)
    with BlockingProcess(log.path, lines) as other:
        os.kill(other.pid, signal.SIGSTOP)  # in the middle of an append
        other.await_stop()
        with pytest.raises(LockTimeout, match=named(other.pid)):
            waits(log)


def test_field_C1_an_error_says_that_another_thread_holds_the_cleaner_lock(log: Log) -> None:
    partition = log._engine.partition("t", 0)
    found: list[BaseException] = []

    def wait() -> None:
        try:
            clean(log)
        except LockTimeout as error:
            found.append(error)

    with partition.cleaner_lock.held(partition.name, 1):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
    assert "held by another thread of this process" in str(found[0])
    assert str(os.getpid()) not in str(found[0])
    clean(log)
