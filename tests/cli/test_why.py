"""`eoslog why`, `ps` and other reports of processes, in a terminal and in a pipe."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import TopicPartition
from tests.admin.blocking_process import OPEN_TRANSACTION, STOPS_IN_AN_APPEND, BlockingProcess

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def filled(place: Path) -> Iterator[eoslog.Log]:
    with eoslog.open(place) as log:
        log.create_topic("one", 1)
        log.reset_offsets("g", {TopicPartition("one", 0): 0})
        yield log


def command(place: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "eoslog", "-d", str(place), *arguments]


def piped(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(place, *arguments),
        capture_output=True,
        text=True,
        timeout=300,
        cwd="/",
        check=False,
    )


def rows(place: Path, *arguments: str) -> list[dict[str, Any]]:
    done = piped(place, *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def in_terminal(place: Path, *arguments: str, columns: int = 400) -> tuple[int, str]:
    """The exit code and what a terminal shows, without its control sequences."""
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    process = subprocess.Popen(
        command(place, *arguments),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
        cwd="/",
    )
    os.close(slave)
    said = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # EIO: the last end of the terminal is closed
            break
        if not part:
            break
        said += part
    os.close(master)
    return process.wait(300), re.sub("\x1b\\[[0-9;]*m", "", said.decode().replace("\r\n", "\n"))


def test_field_C1_why_explains_a_suspended_process_in_a_terminal(filled: Any, place: Path) -> None:
    with BlockingProcess(str(place), OPEN_TRANSACTION) as other:
        other.stop()
        code, said = in_terminal(place, "why", "g")
    first, second = said.splitlines()
    assert code == 0
    assert first.startswith(
        "group g: 1 offset of one-0 waits for a transaction that is open since 20"
    )
    assert f"(transactional id 'x', producer id 0), by process {other.pid} (" in first
    assert ", stopped)" in first
    assert second.strip() == f"kill -CONT {other.pid}  # or: eoslog -d {place} txn abort x"


def test_field_C1_why_prints_json_lines_in_a_pipe(filled: Any, place: Path) -> None:
    with BlockingProcess(str(place), OPEN_TRANSACTION) as other:
        other.stop()
        for arguments in (["why"], ["why", "g"]):
            (row,) = rows(place, *arguments)
            wanted = {
                "kind": "open_transaction", "group_id": "g", "topic": "one", "partition": 0,
                "waiting": 1, "transactional_id": "x", "producer_id": 0, "token": None,
                "pid": other.pid, "stopped": True,
            }  # fmt: skip
            assert wanted.items() <= row.items()
            assert row["command"].endswith(str(place))
            assert row["since"] > 1_600_000_000_000
            assert f"kill -CONT {other.pid}" in row["remedy"]


def test_field_C1_why_says_that_nothing_is_blocked(filled: Any, place: Path) -> None:
    assert in_terminal(place, "why") == (0, "nothing is blocked\n")
    done = piped(place, "why", "g")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "nothing is blocked\n")
    assert piped(place, "why", "none").returncode == 3


def test_why_explains_what_a_killed_process_left_and_changes_no_file(place: Path) -> None:
    with eoslog.open(place) as log:
        log.create_topic("one", 1)
        log.reset_offsets("g", {TopicPartition("one", 0): 0})
    with BlockingProcess(str(place), OPEN_TRANSACTION):
        pass  # killed in its transaction
    files = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    for arguments in (["why"], ["why", "g"]):
        (row,) = rows(place, *arguments)
        assert (row["kind"], row["transactional_id"]) == ("open_transaction", "x")
        assert "its process has exited" in row["reason"]
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == files
    remedy = subprocess.run(
        [sys.executable, "-m", *row["remedy"].split()], capture_output=True, check=False
    )
    assert remedy.returncode == 0, remedy.stderr
    assert rows(place, "why", "g") == []


def test_field_C1_group_describe_shows_what_blocks_each_partition(filled: Any, place: Path) -> None:
    with BlockingProcess(str(place), OPEN_TRANSACTION) as other:
        other.stop()
        code, said = in_terminal(place, "group", "describe", "g")
        (row,) = rows(place, "group", "describe", "g")
    assert code == 0
    assert "blocked_by" in said
    assert f"open transaction x (pid {other.pid}, stopped)" in said
    assert row["lag"] == 0
    assert [b["pid"] for b in row["blocked_by"]] == [other.pid]


def test_field_C1_txn_commands_and_locks_name_the_process(filled: Any, place: Path) -> None:
    with BlockingProcess(str(place), OPEN_TRANSACTION) as other:
        (listed,) = rows(place, "txn", "list")
        (about,) = rows(place, "txn", "describe", "x")
        for row in (listed, about):
            assert row["pid"] == other.pid
            assert row["command"].endswith(str(place))
        assert str(other.pid) in in_terminal(place, "txn", "list")[1]
    with BlockingProcess(str(place), STOPS_IN_AN_APPEND, stops=True) as other:
        found = {row["pid"]: row for row in rows(place, "locks")}
        assert set(found) == {os.getpid(), other.pid}
        (held,) = found[other.pid]["holds"]
        assert held.startswith("one-0 for ")
        assert (found[other.pid]["stopped"], found[os.getpid()]["stopped"]) == (True, False)
        assert found[other.pid]["command"].endswith(str(place))


def test_field_C1_ps_lists_processes_and_what_they_hold(filled: Any, place: Path) -> None:
    with BlockingProcess(str(place), OPEN_TRANSACTION) as other:
        other.stop()
        found = {row["pid"]: row for row in rows(place, "ps")}
        assert set(found) == {os.getpid(), other.pid}, "the command itself is left out"
        row = found[other.pid]
        assert (row["stopped"], row["transactions"], row["read_only"]) == (True, ["x"], False)
        code, said = in_terminal(place, "ps")
    assert code == 0
    line = next(line for line in said.splitlines() if line.strip().startswith(str(other.pid)))
    assert "stopped" in line
    assert " x " in line


@pytest.mark.parametrize("columns", [20, 50, 79, 80, 100, 400])
@pytest.mark.parametrize("words", ["stats", "txn list --all", "group describe g"])
def test_a_table_folds_headers_between_words_and_numbers_nowhere(
    filled: Any, place: Path, words: str, columns: int
) -> None:
    with filled.producer(transactional_id="till-1") as producer:
        producer.init_transactions()
        for _ in range(60):  # 120 offsets with the markers
            with producer.transaction():
                producer.produce("one", "v")
    names = {
        "stats": "partition log_start last_stable high_watermark log_end lso_lag bytes segments "
        "open_transactions",
        "txn list --all": "transactional_id state producer_id epoch age_s partitions pid command "
        "token",
        "group describe g": "topic partition offset end lag member blocked_by",
    }[words].split()
    code, said = in_terminal(place, *words.split(), columns=columns)
    assert code == 0
    lines = said.splitlines()
    left_out = [line for line in lines if "the terminal has no room for" in line]
    first = {"partition", "epoch", "transactional_"}
    head = next(at for at, line in enumerate(lines) if first & {*line.split()})
    table = lines[max(head - 1, 0) :]
    shown = {word for line in table for word in line.split()}
    for name in names:
        whole = {name} <= shown or {*re.findall("[^_]+_?", name)} <= shown
        assert whole or any(name in line for line in left_out), (name, said)
    assert not (columns >= 80 and left_out)
    if columns >= 80 and words != "txn list --all":
        assert "120" in shown


def test_field_C1_ps_names_another_pid_namespace(filled: Any, place: Path) -> None:
    unshare = ["unshare", "-pf", "--kill-child"]
    able = subprocess.run([*unshare, "true"], capture_output=True, check=False)
    if able.returncode:
        pytest.skip(f"no new pid namespace here: {able.stderr!r}")
    with BlockingProcess(str(place), OPEN_TRANSACTION, *unshare):
        assert "(in another pid namespace)" in in_terminal(place, "ps")[1]
        assert "process 1 (in another pid namespace)" in in_terminal(place, "why")[1]
