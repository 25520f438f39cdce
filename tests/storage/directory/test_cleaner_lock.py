"""The cleaner lock of a log that is closed by another thread.

The descriptor of the lock is closed then, and its number may belong to another file.
"""

from __future__ import annotations

import threading

import pytest

from eoslog.errors import EoslogError, IllegalState
from eoslog.opening import open as open_log
from eoslog.storage.directory import cleaner_lock, processes
from eoslog.storage.directory.session import LOCK_FILES
from eoslog.storage.fs import files


def test_a_release_after_the_close_keeps_the_lock_of_the_next_session(path):
    """The next session has its lock under the same descriptor number."""
    log = open_log(path)
    log.create_topic("t")
    late = log._engine.partition("t", 0).cleaner_lock
    assert late.try_take()
    log.close()
    with open_log(path) as log:
        partition = log._engine.partition("t", 0)
        with partition.cleaner_lock.held(partition.name, 0):
            late.release()
            at = cleaner_lock.CLEANER_AT + partition.slot
            assert processes.is_locked(path, f"eoslog.lock-{partition.slot % LOCK_FILES:02}", at)


def test_a_closed_log_gives_no_lock_however_often_it_is_asked(path):
    """The first call that fails keeps nothing that the next ones wait for."""
    log = open_log(path)
    log.create_topic("t")
    partition = log._engine.partition("t", 0)
    log.close()
    for _ in range(2):
        with (
            pytest.raises(IllegalState, match="closed"),
            partition.cleaner_lock.held("t-0", 0),
        ):
            pass


@pytest.mark.parametrize("call", ["clean", "retention", "backup"])
def test_a_close_ends_a_call_that_holds_the_lock_with_a_typed_error(path, monkeypatch, call):
    log = open_log(path, {"log.cleaner.backoff.ms": 3_600_000})
    log.create_topic("t", config={"cleanup.policy": "compact", "segment.bytes": 1000})
    log.create_topic("d", config={"segment.bytes": 1000, "retention.bytes": 1000})
    with log.producer() as producer:
        for number in range(100):
            producer.produce("t", b"value" * 9, key=b"%d" % (number % 5))
            producer.produce("d", b"value" * 9)
            producer.flush()
    holds, closed, ended = threading.Event(), threading.Event(), []
    point, run = {
        "clean": ("clean.durable", lambda: log.clean("t", roll=True)),
        "retention": ("log.start.noted", lambda: log.clean("d")),
        "backup": ("backup.file", lambda: log.backup(f"{path}.copy")),
    }[call]
    failpoint = files.failpoint

    def held(name: str) -> None:
        if name == point and threading.current_thread() is thread:
            holds.set()
            assert closed.wait(300)
        failpoint(name)

    def work() -> None:
        try:
            run()
        except (EoslogError, OSError) as error:
            ended.append(type(error))

    thread = threading.Thread(target=work)
    monkeypatch.setattr(files, "failpoint", held)
    thread.start()
    assert holds.wait(300)
    log.close()
    closed.set()
    thread.join(300)
    assert ended == [IllegalState]
    with open_log(path) as log:
        assert {record.key for record in log.read("t")} == {b"%d" % number for number in range(5)}
        assert log.check().ok
