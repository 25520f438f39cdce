"""Logs on read-only mounts or of other users are read, and writes rejected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import eoslog
from eoslog import Log, TopicPartition
from eoslog.errors import IllegalState, StorageError
from tests.field.users import USERS, as_root, command_as, common_folder, run_as
from tests.paths import ROOT

pytestmark = [pytest.mark.process, as_root]
pytest.importorskip("click")

COMMANDS = """
import contextlib, io, json, sys
from eoslog.cli import main
answers = []
for line in json.loads(sys.argv[2]):
    out, err = io.StringIO(), io.StringIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["-d", sys.argv[1], *line.split()])
    answers.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""


class Answer(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str


Run = Callable[..., list[Answer]]


def answers(ended: subprocess.CompletedProcess[str]) -> list[Answer]:
    """What each command left."""
    assert ended.returncode == 0, ended.stderr
    return [Answer(*each) for each in json.loads(ended.stdout)]


def fill(path: Path) -> Log:
    """A log with committed and aborted records, a group and a transactional id."""
    log = eoslog.open(path)
    log.create_topic("t", 2)
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        for turn in range(3):
            producer.begin_transaction()
            for number in range(100):
                producer.produce("t", f"{turn}-{number}", partition=number % 2)
            producer.flush()
            producer.abort_transaction() if turn == 1 else producer.commit_transaction()
    log.reset_offsets("g", {TopicPartition("t", 0): 10, TopicPartition("t", 1): 20})
    return log


def mounted(log: Path, place: Path) -> bool:
    """Bind a directory to another one, read-only; whether that is allowed here."""
    place.mkdir()
    for words in (["--bind", log, place], ["-o", "remount,bind,ro", place]):
        if subprocess.run(["mount", *map(str, words)], capture_output=True, check=False).returncode:
            return False
    return True


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder that every user may write."""
    with common_folder() as folder:
        yield folder


@pytest.fixture(params=["mount", "user"])
def reading(request: pytest.FixtureRequest, common: Path) -> Iterator[tuple[Log, Run]]:
    """A log that is open for writing, and `eoslog` where it cannot be written."""
    log = fill(common / "log")
    place = common / "mount"
    try:
        if request.param == "mount":
            if not mounted(common / "log", place):
                pytest.skip("needs the right to mount")

            def run(*lines: str) -> list[Answer]:
                command = [sys.executable, "-c", COMMANDS, str(place), json.dumps(lines)]
                return answers(
                    subprocess.run(
                        command, capture_output=True, text=True, timeout=300, check=False,
                        stdin=subprocess.DEVNULL,
                    )
                )  # fmt: skip
        else:

            def run(*lines: str) -> list[Answer]:
                subprocess.run(["chmod", "-R", "a+rX", str(common / "log")], check=True)
                return answers(run_as(USERS[0], COMMANDS, common / "log", json.dumps(lines)))

        yield log, run
    finally:
        log.close()
        if place.exists():
            subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)


READ = {
    "topic list": 1, "topic describe t": 1, "offsets t": 2, "consume t": 200, "consume t -n 5": 5,
    "consume t -o 110": 84, "consume t -g g": 170, "consume t -g new": 200, "group list": 1,
    "group describe g": 2, "txn list": 0, "txn list --all": 1, "txn describe x": 1, "stats": 1,
    "check": 1, "check --full": 1, "durability": 1, "locks": None,
    "why": 0, "why g": 0, "ps": None, "txn pending": 0, "position list": 0,
}  # fmt: skip
"""Commands that read, and the rows that they print."""
WRITE = (
    "topic create q", "topic delete t -y", "topic alter t -p 3", "produce t", "compact",
    "group reset g -t t --to 0", "group delete g -y", "txn abort x",
)  # fmt: skip


@pytest.mark.parametrize("live", [True, False], ids=["beside-a-writer", "closed"])
def test_field_C6_reading_commands_work_and_writing_ones_raise_on_read_only(
    reading: tuple[Log, Run], live: bool, common: Path
) -> None:
    log, run = reading
    if not live:
        log.close()
    files = {path: path.stat().st_mtime_ns for path in (common / "log").rglob("*.log")}
    for (line, rows), found in zip(READ.items(), run(*READ), strict=True):
        assert found.code == 0, (line, found.err)
        assert rows is None or len(found.out.splitlines()) == rows, (line, found.err)
        assert line != "consume t -g g" or "committing none" in found.err
    for line, found in zip(WRITE, run(*WRITE), strict=True):
        assert found.code == 1, line
        assert "this command writes to the log" in found.err, line
    assert {p: p.stat().st_mtime_ns for p in (common / "log").rglob("*.log")} == files


OPEN = """
import sys, eoslog
for path in sys.argv[1:]:
    try:
        eoslog.open(path)
    except eoslog.StorageError as error:
        print(error.errno, error)
"""


def test_an_error_of_an_unwritable_directory_says_so_and_names_read_only(
    reading: tuple[Log, Run], common: Path
) -> None:
    log, run = reading
    (found,) = run("init")
    assert found.code == 1
    assert "the directory is not writable" in found.err and "read_only" not in found.err
    (common / "empty").mkdir(mode=0o755)
    subprocess.run(["chmod", "-R", "a+rX", str(common / "log")], check=True)
    full, empty = run_as(USERS[0], OPEN, log.path, common / "empty").stdout.splitlines()
    assert full.startswith("13 the directory is not writable; ")
    assert "or open the log with read_only=True: [13] Permission denied" in full
    assert empty.startswith("13 the directory is not writable; ") and "read_only" not in empty


def test_field_C6_a_backup_reads_a_log_that_no_process_writes(
    reading: tuple[Log, Run], common: Path
) -> None:
    log, run = reading
    (common / "out").mkdir(mode=0o777)
    os.chmod(common / "out", 0o777)
    (found,) = run(f"backup {common / 'out' / 'early'}")
    assert found.code == 1
    assert "another process has the log open" in found.err
    log.close()
    (found,) = run(f"backup {common / 'out' / 'copy'}")
    assert found.code == 0, found.err
    with eoslog.open(common / "out" / "copy") as copy, eoslog.open(common / "log") as log:
        assert [r.value for r in copy.read("t")] == [r.value for r in log.read("t")]
        assert copy.describe_group("g").offsets == log.describe_group("g").offsets
        assert copy.snapshot() == log.snapshot()


def test_field_C6_an_unclean_log_on_a_read_only_mount_is_read_and_backed_up(
    common: Path,
) -> None:
    code = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.field.test_read_only import fill
log = fill(Path(sys.argv[1]))
p = log.producer(transactional_id="open"); p.init_transactions(); p.begin_transaction()
p.produce("t", "never", partition=0); p.flush()
os.kill(os.getpid(), 9)
"""
    here = str(ROOT)
    subprocess.run([sys.executable, "-c", code, str(common / "log"), here], check=False)
    if not mounted(common / "log", common / "mount"):
        pytest.skip("needs the right to mount")
    try:
        with eoslog.open(common / "mount", read_only=True) as log:
            assert len(list(log.read("t"))) == 200
            log.backup(common / "copy")
    finally:
        subprocess.run(["umount", "-l", str(common / "mount")], check=False)
    with eoslog.open(common / "copy") as copy:
        values = [record.value for record in copy.read("t")]
        assert len(values) == 200 and b"never" not in values
        with copy.producer() as producer:  # nothing of the transaction is left open
            producer.produce("t", "after", partition=0)
        assert len(list(copy.read("t"))) == 201


FOLLOW = """
path = sys.argv[1]
with eoslog.open(path, read_only=True) as log:
    c = log.consumer("t", auto_offset_reset="latest")
    c.poll(0.1)
    print("ready", flush=True)
    print(c.poll(30).value.decode(), flush=True)
    c.close()
"""


def test_field_C6_a_reader_without_write_permission_follows_a_writer(common: Path) -> None:
    with fill(common / "log") as log:
        subprocess.run(["chmod", "-R", "a+rX", str(common / "log")], check=True)
        with subprocess.Popen(
            command_as(USERS[0], FOLLOW, common / "log"), stdout=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            with log.producer(linger_ms=0) as producer:
                producer.send("t", "fresh").result(60)
            assert running.stdout.readline() == "fresh\n"


def test_field_C6_a_read_only_consumer_starts_at_the_offset_of_its_group(common: Path) -> None:
    fill(common / "log").close()
    if not mounted(common / "log", common / "mount"):
        pytest.skip("needs the right to mount")
    try:
        with eoslog.open(common / "mount", read_only=True) as log:
            with log.consumer(group_id="g", enable_auto_commit=False) as consumer:
                with pytest.raises(IllegalState, match=r"call assign\(\)"):
                    consumer.subscribe(["t"])
                consumer.assign([TopicPartition("t", 0)])
                record = consumer.poll(60)
                assert record is not None and record.offset == 10
                with pytest.raises((IllegalState, StorageError), match=r"read.only"):
                    consumer.commit()
            with log.consumer(group_id="none", auto_offset_reset="earliest") as consumer:
                consumer.assign([TopicPartition("t", 1)])
                record = consumer.poll(60)
                assert record is not None and record.offset == 0
    finally:
        subprocess.run(["umount", "-l", str(common / "mount")], check=False)


def overlaid(place: Path) -> bool:
    """Mount an empty layer over `lower` as `top`; whether that is allowed."""
    for name in ("upper", "work", "top"):
        (place / name).mkdir()
    layers = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work"
    command = ["mount", "-t", "overlay", "overlay", "-o", layers, str(place / "top")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def layers(common: Path) -> Iterator[Path]:
    """A file system on which overlayfs can be mounted."""
    place = common / "layers"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "none", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    try:
        yield place
    finally:
        for path in (place / "top", place):
            subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)


def test_a_fixed_view_on_overlayfs_is_outdated_when_a_writer_comes(layers: Path) -> None:
    """The writer changes a copy of the control file."""
    fill(layers / "lower").close()
    if not overlaid(layers):
        pytest.skip("needs the right to mount overlayfs")
    with eoslog.open(layers / "top", read_only=True) as view:
        assert len(list(view.read("t"))) == 200
        with eoslog.open(layers / "top") as log, log.producer() as producer:
            producer.produce("t", "value")
        assert view.outdated
        with pytest.raises(IllegalState, match="out of date"):
            list(view.read("t"))
