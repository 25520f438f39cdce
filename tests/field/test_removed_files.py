"""A process closes files that another process removed within seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import eoslog
from tests.waiting import until

pytestmark = pytest.mark.process

HOLDER = """
import sys
import eoslog

path, mode = sys.argv[1:]
log = eoslog.open(path, read_only=mode == "readonly")
if mode in ("reader", "readonly"):
    kept = [record.value for record in log.read("t")]
elif mode == "writer":
    producer = log.producer()
    for i in range(20):
        producer.send("t", b"v" * 600_000)
    producer.flush()
elif mode == "consumer":
    consumer = log.consumer("t", group_id="g", auto_offset_reset="earliest")
    kept = []
    while not kept:
        kept = consumer.consume(1, timeout=1)
elif mode == "scan":
    batches = iter(log.scan("t", batch_rows=1))
    kept = next(batches).num_rows  # the scan itself goes on
print("ready", flush=True)
sys.stdin.readline()
if mode == "scan":
    del batches
    sys.stdin.readline()
"""


@contextmanager
def holder(path: str, mode: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path, mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.communicate("")  # a process that died has released its files too
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def held(pid: int, path: str) -> list[str]:
    """The removed files under `path` that a process has open or mapped."""
    found = links(pid, path)
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        found.append(line.partition("/")[1] + line.partition("/")[2])
    return [one for one in found if one.startswith(path) and one.endswith("(deleted)")]


def opened(pid: int, path: str) -> list[str]:
    """The segments under `path` that it has open, removed or not."""
    return [one for one in links(pid, path) if ".log" in one.rpartition("/")[2]]


def until_released(pid: int, path: str) -> None:
    """Wait until it has closed the files."""
    until(lambda: not held(pid, path))


def filled(path: str, durability: str = "strict", **config: object) -> eoslog.Log:
    log = eoslog.open(path, durability=durability)
    log.create_topic("t", config={"segment.bytes": 5_000_000, **config})
    with log.producer() as producer:
        for i in range(20):
            producer.send("t", b"v" * 600_000, key=str(i % 3))
    return log


@pytest.mark.parametrize("mode", ["reader", "readonly", "writer", "consumer"])
def test_field_B3_files_of_a_topic_that_another_process_deletes_are_closed(
    path: str, mode: str
) -> None:
    with filled(path) as log, holder(path, mode) as process:
        assert opened(process.pid, os.path.join(path, "t-0"))
        log.delete_topic("t")
        until_released(process.pid, path)


@pytest.mark.parametrize("durability", ["strict", "os"])
@pytest.mark.parametrize("mode", ["reader", "readonly", "writer", "consumer"])
def test_field_B3_segments_that_another_process_deletes_are_closed(
    path: str, mode: str, durability: str
) -> None:
    with filled(path, durability) as log, holder(path, mode) as process:
        assert opened(process.pid, os.path.join(path, "t-0"))
        log.delete_records({eoslog.TopicPartition("t", 0): -1})
        log.clean("t")
        until_released(process.pid, path)


@pytest.mark.parametrize("durability", ["strict", "os"])
@pytest.mark.parametrize("mode", ["reader", "readonly", "consumer"])
def test_field_B3_segments_that_another_process_compacts_are_closed(
    path: str, mode: str, durability: str
) -> None:
    with (
        filled(path, durability, **{"cleanup.policy": "compact"}) as log,
        holder(path, mode) as process,
    ):
        assert opened(process.pid, os.path.join(path, "t-0"))
        assert log.clean("t", roll=True)[eoslog.TopicPartition("t", 0)] > 0
        until_released(process.pid, path)


def test_field_B3_a_read_only_process_survives_the_release_of_segments(path: str) -> None:
    """It must not write to the shared slots, not even to wake a thread that flushes."""
    script = """
import sys
import eoslog
with eoslog.open(sys.argv[1], read_only=True) as log:
    kept = list(log.read("t"))
    print("ready", flush=True)
    sys.stdin.readline()
    while log._engine.partitions.holding_removed():
        log._engine.partitions.release_removed()
print("released", flush=True)
"""
    with filled(path) as log:
        process = subprocess.Popen(
            [sys.executable, "-c", script, path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            log.delete_records({eoslog.TopicPartition("t", 0): -1})
            assert process.communicate("go\n")[0] == "released\n"
        finally:
            process.kill()
            process.communicate()


def test_field_B3_a_scan_keeps_its_read_files_open_only_until_it_is_dropped(
    path: str,
) -> None:
    with filled(path) as log, holder(path, "scan") as process:
        before = set(opened(process.pid, os.path.join(path, "t-0")))
        assert before
        log.delete_topic("t")
        assert process.stdin is not None
        print("go", file=process.stdin, flush=True)
        until_released(process.pid, path)


def test_field_B3_a_returned_view_stays_valid_after_its_topic_is_deleted(path: str) -> None:
    script = """
import sys
import eoslog
with eoslog.open(sys.argv[1]) as log:
    part = log._engine.partition("t", 0)
    [view, *_] = part.read(0, part.log_end)
    before = bytes(view.data)
    print("ready", flush=True)
    sys.stdin.readline()
    print(bytes(view.data) == before, flush=True)
"""
    with filled(path) as log:
        process = subprocess.Popen(
            [sys.executable, "-c", script, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None and process.stdin is not None
            assert process.stdout.readline() == "ready\n"
            log.delete_topic("t")
            until(lambda: len(deleted(process.pid, path)) <= 1)
            assert len(deleted(process.pid, path)) == 1, "the view keeps its file"
            print("go", file=process.stdin, flush=True)
            assert process.stdout.readline() == "True\n"
        finally:
            process.kill()
            process.communicate()


def deleted(pid: int, path: str) -> list[str]:
    """The descriptors of deleted files under `path`."""
    return [one for one in links(pid, path) if one.endswith("(deleted)")]


def links(pid: int, path: str) -> list[str]:
    """What a process has open under `path`, without its mappings."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            continue
    return [one for one in found if one.startswith(path)]
