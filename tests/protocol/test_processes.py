"""Processes affect each other: five of the ten tests that protocol.md names.

Every process is a child of the harness; the test's own never opens a log. The other five: undurable
decisions, lost markers, epochs and stale drivers in tests/coordinator, a kill between any two stores in
tests/storage.
"""

from __future__ import annotations

import ctypes
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import TopicPartition, _core
from eoslog.engine.engine import Engine
from eoslog.errors import EoslogError, IllegalState, LogPoisoned
from eoslog.storage.fs import files
from tests.faults.harness import Child, live, start
from tests.rows.tools import SCALE, data, transactional
from tests.storage.helpers import state
from tests.waiting import until

pytestmark = pytest.mark.process


def prepare(
    path: Path, *topics: str, partitions: int = 1, durability: str = "strict", **config: Any
) -> None:
    def body(child: Child) -> None:
        with eoslog.open(path, durability=durability) as log:
            for topic in topics:
                log.create_topic(topic, partitions=partitions, config=config)

    live(body).fine()


def sleep_for_ever() -> None:
    while True:
        time.sleep(1)


def lock_is_free(path: Path, number: int, at: int) -> bool:
    fd = os.open(path / f"eoslog.lock-{number:02d}", os.O_RDWR)
    try:
        return bool(_core.try_lock(fd, at))
    finally:
        os.close(fd)


# --- 5


LIBC = ctypes.PyDLL(None)


@pytest.mark.parametrize("fork", [os.fork, LIBC.fork], ids=["python", "c"])
@pytest.mark.parametrize("held", ["nothing", "append lock", "flush lock", "buffered records"])
def test_a_fork_at_every_lock_state_leaves_parent_and_child_usable(
    tmp_path: Path, held: str, fork: Callable[[], int]
) -> None:
    path = tmp_path / "log"
    prepare(path, "t")

    def parent(child: Child) -> None:
        log = eoslog.open(path)
        producer = log.producer(linger_ms=60_000)
        partition = log._engine.partition("t", 0)
        producer.produce("t", "before")
        producer.flush()
        fd, at = partition.session.append_lock(partition.slot)
        if held == "append lock":
            assert partition.core.lock_for_recovery(1.0) == 0
        elif held == "flush lock":
            assert _core.try_lock(fd, at + 1)
        elif held == "buffered records":
            producer.produce("t", "buffered")
        pid = fork()
        if pid == 0 and fork is LIBC.fork:
            while True:  # no Python from here on: its own hooks have not run
                LIBC.pause()
        if pid == 0:
            calls = (log.topics, producer.flush, lambda: partition.append(data(["twice"])))
            for call in calls:
                try:
                    call()
                except IllegalState:
                    child.tell("dead", 1)
            producer.close()
            log.close()
            child.tell("child is done", 1)
            sleep_for_ever()
        child.tell("lock", [partition.slot % 64, at + (held == "flush lock")])
        child.tell("child", pid)
        sleep_for_ever()

    old = start(parent)
    (grandchild,) = old.heard("child")
    try:
        if fork is os.fork:
            old.heard("child is done")
            assert old.life.of("dead") == [1, 1, 1]
        number, at = old.life.of("lock")[0]
        assert lock_is_free(path, number, at) == (held in ("nothing", "buffered records"))
        os.kill(old.pid, signal.SIGKILL)
        until(lambda: lock_is_free(path, number, at), "the child keeps a dead parent's lock")

        def follow(child: Child) -> None:
            with eoslog.open(path) as log:
                with log.producer() as producer:
                    producer.produce("t", "after")
                child.tell(
                    "values",
                    [v.decode() for b in log.scan("t") for v in b.column("value").to_pylist()],
                )

        assert live(follow).fine().of("values") == [["before", "after"]]
    finally:
        os.kill(grandchild, signal.SIGKILL)
        old.kill()


# --- 6


def digest(path: Path) -> Any:
    """What a fresh process finds in t-0; an error of ours counts as an answer.

    Recovery writes lost markers again, so the times of producers differ.
    """

    def body(child: Child) -> None:
        try:
            with eoslog.open(path):
                engine = Engine.open(path)
                found = repr(state(engine.partition("t", 0)))
                child.tell("state", re.sub(r"last_timestamp=\d+", "last_timestamp", found))
                engine.close()
        except EoslogError as error:
            child.tell("state", type(error).__name__)

    return live(body).fine().of("state")


@pytest.mark.parametrize(
    "case",
    ["as it was left", "page behind", "page ahead", "copied while open", "restored in place"],
)
def test_a_stale_control_page_is_never_trusted(tmp_path: Path, case: str) -> None:
    path, early, late = tmp_path / "log", tmp_path / "early", tmp_path / "late"
    prepare(path, "t")

    def writer(child: Child) -> None:
        with eoslog.open(path) as log, transactional(log) as producer:
            for number in range(6):
                producer.begin_transaction()
                producer.produce("t", str(number))
                producer.commit_transaction() if number % 3 else producer.abort_transaction()
                if number in (2, 5):
                    child.tell("reached", number)
                    until((tmp_path / f"go-{number}").exists)

    running = start(writer)
    running.heard("reached", 1)
    shutil.copytree(path, early)
    (tmp_path / "go-2").touch()
    running.heard("reached", 2)
    shutil.copytree(path, late)
    running.kill()
    subject = tmp_path / "subject"
    if case == "as it was left":
        subject = path
    elif case == "copied while open":
        shutil.copytree(late, subject)
    elif case == "restored in place":
        shutil.rmtree(path / "t-0")
        shutil.copytree(early / "t-0", path / "t-0")
        subject = path
    else:
        newer, older = (late, early) if case == "page behind" else (early, late)
        shutil.copytree(newer, subject)
        shutil.copyfile(older / "eoslog.control", subject / "eoslog.control")
    scanned = tmp_path / "scanned"
    shutil.copytree(subject, scanned)
    (scanned / "eoslog.control").unlink()
    if case == "page ahead":
        # The page shows that the preallocated log of the coordinator had more records (row 51).
        assert digest(subject) == ["CorruptRecord"]
        eoslog.repair(subject, "cut")
    assert digest(subject) == digest(scanned)


# --- 7


@pytest.mark.parametrize(
    "dies_at", [None, ("pwrite", "kill"), ("pwrite", "kill-after"), ("fsync", "kill")]
)
def test_an_fsync_error_is_reported_to_every_process(
    tmp_path: Path, dies_at: tuple[str, str] | None
) -> None:
    """The flusher meets EIO, and dies at each step of telling the others."""
    path, go = tmp_path / "log", tmp_path / "go"
    prepare(path, "t", flush_ms=600_000)  # only the flusher flushes

    def flusher(child: Child) -> None:
        with eoslog.open(path):
            engine = Engine.open(path)
            partition = engine.partition("t", 0)
            partition.append(data(["0", "1"]))
            partition.flush()
            child.tell("size", os.path.getsize(path / "t-0" / "00000000000000000000.log"))
            partition.append(data(["2", "3"]))
            files.arm_failpoint("fdatasync", "EIO")
            if dies_at is not None:
                files.arm_failpoint(*dies_at)
            with pytest.raises(LogPoisoned):
                partition.flush()
            child.tell("refused", 1)
            os._exit(0)

    def bystander(child: Child) -> None:
        with eoslog.open(path):
            engine = Engine.open(path)
            partition = engine.partition("t", 0)
            child.tell("open", 1)
            until(go.exists)
            child.tell("visible", partition.last_stable_offset)
            for call in (lambda: partition.append(data(["4"])), partition.flush):
                try:
                    call()
                except LogPoisoned:
                    child.tell("refused", 1)
            child.tell("visible", partition.last_stable_offset)
            os._exit(0)

    other = start(bystander)
    other.heard("open")
    life = start(flusher).end()
    assert life.killed == (dies_at is not None)
    go.touch()
    seen = other.end()
    assert seen.of("refused") == [1, 1] and seen.of("visible") == [2, 2]

    def fresh(child: Child) -> None:
        with eoslog.open(path) as log:
            engine = Engine.open(path)
            partition = engine.partition("t", 0)
            partition.append(data(["5"]))
            partition.flush()
            child.tell(
                "values", [v.decode() for b in log.scan("t") for v in b.column("value").to_pylist()]
            )
            engine.close()

    # What no sync has confirmed may be gone from the disk: the image without it is fine as well.
    image = tmp_path / "image"
    shutil.copytree(path, image)
    with (image / "t-0" / "00000000000000000000.log").open("r+b") as handle:
        handle.truncate(life.of("size")[0])
    again = live(fresh).fine()
    assert again.of("values") == [["0", "1", "2", "3", "5"]]
    path = image
    assert live(fresh).fine().of("values") == [["0", "1", "5"]]


def test_two_simultaneous_poisonings_both_leave_their_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    prepare(path, "t", partitions=2)
    with eoslog.open(path) as log:  # or the background thread's flush takes the fault
        log.alter_topic("t", {"flush.ms": 3_600_000})

    def flusher(child: Child, number: int, *faults: tuple[str, str]) -> None:
        with eoslog.open(path):
            partition = Engine.open(path).partition("t", number)
            partition.append(data(["0"]))
            for fault in (("fdatasync", "EIO"), *faults):
                files.arm_failpoint(*fault)
            with pytest.raises(LogPoisoned):
                partition.flush()
            os._exit(0)

    slow = start(flusher, 0, ("pwrite", "stop"))  # it has seen where the file ends
    os.waitpid(slow.pid, os.WUNTRACED)
    start(flusher, 1).end().fine()
    slow.signal(signal.SIGCONT)
    slow.end().fine()
    lines = (path / "eoslog.poison").read_text().split("\n")
    assert sorted(filter(None, lines)) == ["t 0", "t 1"]


# --- 9


def test_a_snapshot_of_ends_is_closed_and_never_moves_back(tmp_path: Path) -> None:
    """Overlapping transactions over three partitions, and a reader of snapshots."""
    path, stop = tmp_path / "log", tmp_path / "stop"
    writers = 4 if SCALE == 1 else 16
    prepare(path, "t", partitions=3, durability="os")

    def write(child: Child, number: int) -> None:
        rng = random.Random(number)
        with eoslog.open(path) as log, transactional(log, f"w{number}") as producer:
            for count in range(10**9):
                if stop.exists():
                    return
                producer.begin_transaction()
                for partition in rng.sample(range(3), 3):
                    producer.produce("t", f"{number}-{count}", partition=partition)
                    producer.flush()
                commit = rng.random() < 0.7
                producer.commit_transaction() if commit else producer.abort_transaction()
                if count == 3:
                    child.tell("running", 1)

    def hold(child: Child) -> None:
        with (
            eoslog.open(path) as log,
            transactional(log, "long", transaction_timeout_ms=900_000) as producer,
        ):
            producer.begin_transaction()
            for partition in range(3):
                producer.produce("t", "long", partition=partition)
                producer.flush()
            child.tell("running", 1)
            until((tmp_path / "let go").exists)
            producer.commit_transaction()

    def read(child: Child) -> None:
        partitions = [TopicPartition("t", n) for n in range(3)]
        with eoslog.open(path) as log:
            earlier = dict.fromkeys(partitions, 0)
            seen: list[set[bytes]] = [set(), set(), set()]
            for number in range(60 * SCALE):
                cut = log.snapshot(["t"])
                assert all(cut[tp] >= earlier[tp] for tp in partitions), (earlier, cut)
                for batch in log.scan("t", start=earlier, end=cut):
                    rows = zip(
                        *(batch.column(c).to_pylist() for c in ("partition", "value")), strict=True
                    )
                    for partition, value in rows:
                        seen[partition].add(value)
                assert seen[0] == seen[1] == seen[2], number
                earlier = cut
                if number == 20 * SCALE:
                    child.tell("halfway", len(seen[0]))
                time.sleep(0.005)
            child.tell("seen", len(seen[0]))

    running = [start(write, n) for n in range(writers)]
    holder = start(hold)
    try:
        for process in (*running, holder):
            process.heard("running", timeout=300)
        reader = start(read)
        reader.heard("halfway", timeout=300 * SCALE)
        (tmp_path / "let go").touch()
        assert reader.end(300 * SCALE).fine().of("seen")[0] > 20
    finally:
        stop.touch()
        (tmp_path / "let go").touch()
        for process in (*running, holder):
            process.end().fine()


# --- 10


def test_every_process_folds_to_the_same_state(tmp_path: Path) -> None:
    """Eight processes with clocks a day apart append at random.

    While they do, the front is deleted, old producers expire and some processes are suspended. Then each has
    the state that a replay gives, and answers an old batch alike.
    """
    path, stop = tmp_path / "log", tmp_path / "stop"
    prepare(path, "t", partitions=2, durability="os")
    oldest = data(["first"], producer_id=1, epoch=0, sequence=0)

    def body(child: Child, number: int) -> None:
        rng = random.Random(number)
        with eoslog.open(path) as log:
            engine = Engine.open(path)
            engine.clock = lambda: time.time() + (number % 3 - 1) * 86_400
            logs = [engine.partition("t", n) for n in range(2)]
            for partition in logs:
                partition.append(oldest)
            with transactional(log, f"p{number}", transaction_timeout_ms=900_000) as producer:
                for count in range(40):
                    producer.begin_transaction()
                    producer.produce("t", f"{number}-{count}", partition=rng.randrange(2))
                    producer.flush()
                    commit = rng.random() < 0.6
                    producer.commit_transaction() if commit else producer.abort_transaction()
                    if number == 0 and count % 10 == 9:
                        start_at = logs[0].last_stable_offset // 2
                        log.delete_records({TopicPartition("t", 0): start_at})
                    if number == 1 and count % 10 == 9:
                        for partition in logs:
                            partition.roll()
                    if number == 2 and count % 10 == 9:
                        for partition in logs:
                            partition.expire_producers(partition.log_end // 4, 1)
                            partition.append(oldest)
                    if count == 5:
                        child.tell("running", 1)
            child.tell("finished", 1)
            while not stop.exists():
                time.sleep(0.005)
            again = [partition.append(oldest) for partition in logs]
            child.tell("retry", [[r.duplicate, r.base_offset] for r in again])
            child.tell("state", [repr(state(partition)) for partition in logs])
            child.tell("horizons", [partition.core.expire_below for partition in logs])
            engine.close()

    processes = [start(body, n) for n in range(8)]
    for process in processes:
        process.heard("running")
    for process in processes[5:]:
        process.stop()
    for process in processes[:5]:
        process.heard("finished", timeout=300)
    for process in processes[5:]:
        process.signal(signal.SIGCONT)
    for process in processes:
        process.heard("finished", timeout=300)
    stop.touch()
    lives = [process.end().fine() for process in processes]
    answers = [life.of("retry")[0] for life in lives]
    assert all(answer == [[True, -1], [True, -1]] or answer == answers[0] for answer in answers)
    assert all(duplicate for answer in answers for duplicate, _ in answer)
    states = [life.of("state")[0] for life in lives]
    assert all(found == states[0] for found in states)

    horizons = lives[0].of("horizons")[0]
    assert all(horizons)

    def replay(child: Child) -> None:
        with eoslog.open(path):
            engine = Engine.open(path)
            logs = [engine.partition("t", n) for n in range(2)]
            for partition, horizon in zip(logs, horizons, strict=True):
                partition.expire_producers(horizon, 1)
            child.tell("state", [repr(state(partition)) for partition in logs])
            engine.close()

    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    shutil.copytree(path, tmp_path / "copy")
    for snapshot in (tmp_path / "copy").glob("t-*/*.snapshot"):
        snapshot.unlink()
    assert live(replay).fine().of("state") == [states[0]]
