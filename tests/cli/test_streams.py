"""Commands with a stdout that is full, closed, missing, ASCII or interrupted.

A group loses no record.
"""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from eoslog import TopicPartition
from eoslog.commands import consume

pytestmark = [pytest.mark.slow]
LINES = "".join(f"{n:0100}\n" for n in range(3000))


@pytest.fixture
def shell(place):
    """Runs `eoslog -d PLACE ...` in bash, with redirections."""

    def run(rest: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = f"set -o pipefail; {sys.executable} -m eoslog -d {place} {rest}"
        return subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, timeout=400,
            env={**os.environ, **environment},
        )  # fmt: skip

    return run


@pytest.fixture
def filled(shop, tmp_path):
    """The topic `orders` with 3,000 numbers in partition 0: more than a pipe holds."""
    lines = tmp_path / "lines"
    lines.write_text(LINES)
    assert shop("produce", "orders", lines, "-p", 0).code == 0
    return shop


@pytest.mark.parametrize(
    ("rest", "code", "says"),
    [("| head -n 1", 0, ""), ("> /dev/full", 1, "No space left"), (">&-", 1, "Bad file")],
)
def test_a_group_commits_no_record_that_stdout_did_not_accept(filled, shell, rest, code, says):
    done = shell(f"consume orders -g g {rest}")
    assert done.returncode == code
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == (code != 0)
    again = filled("consume", "orders", "-g", "g").rows
    assert [int(row["value"]) for row in again] == list(range(3000))
    assert filled("consume", "orders", "-g", "g").rows == []


def test_a_group_restarts_a_json_array_that_stdout_did_not_accept(filled, shell):
    assert shell("--format json consume orders -g g > /dev/full").returncode == 1
    assert len(json.loads(filled("consume", "orders", "-g", "g", form="json").out)) == 3000


def test_a_group_commits_nothing_with_auto_commit_disabled(filled):
    for _ in range(2):
        found = filled("consume", "orders", "-g", "g", "-n", 2, "-c", "enable.auto.commit=false")
        assert [row["offset"] for row in found.rows] == [0, 1]


def test_records_beyond_the_requested_end_are_not_consumed(filled, place):
    import eoslog

    at = TopicPartition("orders", 0)
    with (
        eoslog.open(place) as log,
        log.consumer(group_id="g", auto_offset_reset="earliest", enable_auto_commit=False) as c,
    ):
        c.assign([at])
        read = [
            record
            for chunk in consume._chunks(c, {at: 1500}, None, consume._ALL)
            for record in chunk
        ]
        assert len(read) == 1500
        assert c.positions() == {at: 1500}


def test_an_interrupt_is_reported_and_csv_rows_are_printed_as_they_are_read(filled, place):
    command = [sys.executable, "-m", "eoslog", "-d", str(place), "--format", "csv"]
    with subprocess.Popen(
        [*command, "consume", "orders", "-b", "-f"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    ) as running:  # fmt: skip
        assert running.stdout.readline().startswith("topic,partition,offset,timestamp,key,key_hex")
        for number in range(3000):
            assert running.stdout.readline().startswith(f"orders,0,{number},")
        running.send_signal(signal.SIGINT)
        told = running.stderr.read().split("\n")
        assert [line for line in told if line] == [
            "eoslog: following from the beginning", "eoslog: interrupted",
        ]  # fmt: skip
    assert running.returncode == 130


def test_a_command_without_output_works_with_a_closed_stdout(shop, shell):
    assert shell("init >&-").returncode == 0
    assert shell("init >&- 2>&-").returncode == 0
    listed = shell("topic list >&-")
    assert (listed.returncode, "Traceback" in listed.stderr) == (1, False)


@pytest.mark.parametrize(
    ("rest", "code", "says"),
    [
        ("produce orders", 1, "Bad file"),
        ("topic delete orders", 1, "Bad file"),
        ("repair --cut", 2, "stdin is not a terminal"),
        ("topic delete orders -y", 0, "deleted orders"),
    ],
)
def test_a_closed_stdin_fails_the_commands_that_read_it(shop, shell, rest, code, says):
    done = shell(f"{rest} <&-")
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr and "unexpected" not in done.stderr


@pytest.mark.parametrize(
    ("rest", "code"),
    [("produce orders </dev/null", 0), ("consume nope", 3), ("group reset g -t orders --to 0", 3)],
)
def test_a_full_stderr_changes_no_exit_code(shop, shell, rest, code):
    assert shell(f"{rest} 2> /dev/full").returncode == code


def test_a_full_stderr_keeps_no_row_from_stdout(shop, shell):
    shop("group", "reset", "g", "-t", "orders", "--to", "latest", "--create")
    assert len(shell("group describe g 2> /dev/full").stdout.splitlines()) == 2


@pytest.mark.parametrize("command", ["topic list", "check", "stats"])
@pytest.mark.parametrize("readers", ["| true", "2>&1 > /dev/null | true"])
@pytest.mark.parametrize("form", ["table", "jsonl"])
def test_a_closed_pipe_keeps_the_exit_code_of_damage(shop, shell, place, form, command, readers):
    assert shell("produce orders -p 1 <<< text").returncode == 0
    shutil.rmtree(place / "orders-1")
    assert shell(f"--format {form} {command} {readers}").returncode == 5


def test_an_ascii_stdout_gets_escapes_and_json_stays_json(shop, shell, tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("für\n")
    shop("produce", "orders", lines)
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    assert json.loads(shell("consume orders", **ascii_only).stdout)["value"] == "für"
    table = shell("--format table consume orders", **ascii_only)
    assert (table.returncode, table.stdout.split()[-1]) == (0, r"f\xfcr")
