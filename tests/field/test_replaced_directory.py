"""A log directory is moved, replaced by a backup or removed while it is open."""

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog.errors import DirectoryReplaced, EoslogError, StorageError
from eoslog.shown_paths import DESCRIPTORS

Image = dict[str, tuple[bytes | None, int, int]]

HOLDER = """
import json, sys, time
import eoslog
from eoslog.errors import EoslogError

def say(*what):
    print(json.dumps(what), flush=True)

log = eoslog.open(sys.argv[1], **json.loads(sys.argv[2]))
producer = None if log._engine.read_only else log.producer({"linger.ms": 0, "batch.size": 1000})
if producer is not None:
    sender = log.producer({"transactional.id": "tx"})
    sender.init_transactions()
    consumer = log.consumer("t", group_id="g", auto_offset_reset="earliest")
    consumer.poll(1)

def append(partition=0, count=1):
    for _ in range(count):
        producer.produce("t", b"x" * 300, partition=partition)
    producer.flush()

def transaction():
    with sender.transaction():
        sender.produce("t", b"y", partition=1)

calls = {
    "append": append, "roll": lambda: append(0, 40), "unopened": lambda: append(2),
    "transaction": transaction, "create": lambda: log.create_topic("u"),
    "delete": lambda: log.delete_topic("t"), "grow": lambda: log.create_partitions("t", 9),
    "alter": lambda: log.alter_topic("t", {"retention.ms": 1}), "clean": lambda: log.clean(roll=True),
    "delete_records": lambda: log.delete_records({eoslog.TopicPartition("t", 0): 3}),
    "producer": lambda: log.producer(), "consumer": lambda: log.consumer("t"),
    "timed": lambda: producer.send("t", b"z", deliver_at=int(time.time() * 1000) + 60_000),
    "commit": lambda: consumer.commit(), "poll": lambda: consumer.poll(0.5),
    "scan": lambda: log.scan("t").to_table().num_rows, "read": lambda: len(list(log.read("t"))),
    "check": lambda: log.check(), "stats": lambda: log.stats(), "topics": lambda: log.topics(),
    "checkpoint": lambda: log._engine._checkpointer.checkpoint(),
    "backup": lambda: log.backup(sys.argv[1] + ".copy"),
    "offsets": lambda: log.offsets("t", 0), "groups": lambda: log._engine.groups.list_groups(),
    "producer_close": lambda: producer.close(), "close": lambda: log.close(),
}
say("ready")
for line in sys.stdin:
    name = line.strip()
    try:
        calls[name]()
        say(name, "done", "")
    except EoslogError as error:
        say(name, type(error).__name__, str(error))
    except BaseException as error:
        say(name, "RAW " + type(error).__name__, str(error))
"""
CHANGES = ("create", "delete", "grow", "alter", "clean", "delete_records", "checkpoint", "backup",
           "producer", "consumer", "timed")  # fmt: skip
READS = ("poll", "scan", "read", "check", "stats", "topics", "offsets", "groups")


class Holder:
    """A process that has a directory open and executes commands."""

    def __init__(self, path: Path, **options: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == ["ready"]

    def _answer(self) -> list[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return list(json.loads(line)) if line else []

    def call(self, name: str) -> tuple[str, str]:
        assert self.process.stdin is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        _, kind, text = self._answer()
        assert not kind.startswith("RAW"), (name, kind, text)
        assert DESCRIPTORS not in text, (name, text)
        return kind, text

    def until_refused(self, name: str) -> str:
        """Call it until the background thread has found out; what it raised."""
        while True:
            kind, text = self.call(name)
            if kind != "done":
                return kind
            time.sleep(0.05)

    def end(self) -> str:
        """What it wrote to stderr."""
        _, errors = self.process.communicate()
        return errors


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log with records, next to a restored backup of it."""
    place = tmp_path / "log"
    with eoslog.open(place) as log:
        log.create_topic(
            "t", 3, {"segment.bytes": 4096, "cleanup.policy": "compact,delete", "retention.ms": -1}
        )
        log.alter_topic("t", {"cleanup.policy": "delete"})
        with log.producer({"batch.size": 1000}) as producer:
            for number in range(60):
                producer.produce("t", b"%d" % number + b"v" * 200, partition=number % 2)
        log.backup(tmp_path / "backup")
    return place


def replace(path: Path) -> Image:
    """Move the log away and put the backup in its place."""
    os.rename(path, path.with_name("moved"))
    shutil.copytree(path.with_name("backup"), path)
    return image(path)


def image(path: Path) -> Image:
    found: Image = {str(path): (None, 0, path.stat().st_mtime_ns)}
    for one in path.rglob("*"):
        status = one.stat()
        data = one.read_bytes() if one.is_file() else None
        found[str(one)] = (data, status.st_ino, status.st_mtime_ns)
    return found


@contextlib.contextmanager
def holder(path: Path, **options: object) -> Iterator[Holder]:
    found = Holder(path, **options)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.communicate()


@pytest.mark.parametrize("name", [*CHANGES, *READS])
def test_field_B2_a_call_on_a_replaced_directory_is_rejected(path: Path, name: str) -> None:
    with holder(path) as process:
        restored = replace(path)
        kind = (
            process.until_refused(name) if name in READS else process.call(name)[0]
        )  # a reader notices within a second or two, a change immediately
        assert kind == "DirectoryReplaced"
        assert image(path) == restored
        assert process.call("close")[0] in ("done", "DirectoryReplaced")
        assert image(path) == restored


@pytest.mark.parametrize("name", ["append", "roll", "unopened", "transaction", "commit"])
def test_field_B2_an_append_to_a_replaced_directory_raises(path: Path, name: str) -> None:
    with holder(path) as process:
        restored = replace(path)
        assert process.until_refused(name) != "done"
        assert image(path) == restored
        assert process.call("close")[0] != "RAW"
        assert image(path) == restored
    with eoslog.open(path) as log:
        assert sum(1 for _ in log.read("t")) == 60, "the log at the path is the restored one"
    with eoslog.open(path.with_name("moved")) as log:
        assert sum(1 for _ in log.read("t")) >= 60 and log.check(full=True).ok


def test_field_B2_close_marks_the_directory_that_was_opened(path: Path) -> None:
    with holder(path) as process:
        assert process.call("append")[0] == "done"
        (path / ".kafka_cleanshutdown").write_bytes(b"")
        os.remove(path / ".kafka_cleanshutdown")
        restored = replace(path)
        assert process.call("close")[0] in ("done", "DirectoryReplaced")  # a heartbeat may see it
        assert image(path) == restored
    moved = path.with_name("moved")
    assert (moved / ".kafka_cleanshutdown").exists()
    with eoslog.open(moved, read_only=True) as log:
        assert sum(1 for _ in log.read("t")) == 61


def test_field_B2_a_program_that_ends_unclosed_leaves_a_restored_log_alone(path: Path) -> None:
    with holder(path) as process:
        restored = replace(path)
        errors = process.end()  # end of its input: the interpreter closes the log
        assert "Traceback" not in errors and DESCRIPTORS not in errors
        assert image(path) == restored


def remove(path: Path) -> None:
    """Remove a directory in which a process may just be making a file."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            shutil.rmtree(path)
            return
    shutil.rmtree(path)


@pytest.mark.parametrize("name", [*CHANGES, *READS])
def test_field_B2_a_call_on_a_removed_directory_is_rejected(path: Path, name: str) -> None:
    with holder(path) as process:
        remove(path)
        kind = process.until_refused(name) if name in READS else process.call(name)[0]
        assert kind == "DirectoryReplaced"
        assert process.call("close")[0] in ("done", "DirectoryReplaced", "LogPoisoned")
        assert not path.exists(), "a session makes no directory again"
        errors = process.end()
        assert "Traceback" not in errors and DESCRIPTORS not in errors


@pytest.mark.parametrize("name", ["append", "roll", "unopened", "transaction", "commit"])
def test_field_B2_an_append_to_a_removed_directory_raises(path: Path, name: str) -> None:
    with holder(path) as process:
        remove(path)
        assert process.until_refused(name) != "done"
        process.call("close")
        assert not path.exists()


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("name", ["scan", "read", "check", "stats", "topics", "offsets"])
def test_field_B2_a_read_only_log_of_a_replaced_directory_is_rejected(
    path: Path, name: str, removed: bool
) -> None:
    with holder(path, read_only=True) as process:
        if removed:
            shutil.rmtree(path)
        else:
            restored = replace(path)
        assert process.until_refused(name) == "DirectoryReplaced"
        assert process.call("close")[0] == "done"
        assert removed or image(path) == restored


def test_field_B2_files_that_are_replaced_in_place_are_detected(path: Path) -> None:
    with holder(path) as process:
        for one in list(path.iterdir()):
            shutil.rmtree(one) if one.is_dir() else one.unlink()
        shutil.copytree(path.with_name("backup"), path, dirs_exist_ok=True)
        restored = image(path)
        assert process.call("clean")[0] == "DirectoryReplaced"
        assert process.until_refused("append") != "done"
        assert process.call("close")[0] in ("done", "DirectoryReplaced")
        assert image(path) == restored


def test_field_B2_a_failed_flush_does_not_poison_the_log_that_replaced_it(path: Path) -> None:
    """What a flush needs is missing, as files of a replaced directory are."""
    with eoslog.open(path) as log:
        flusher = log._engine.partition("t", 0).flusher
        with log.producer({"linger.ms": 0}) as producer:
            producer.produce("t", b"before", partition=0)
            producer.flush()
            for one in list(path.iterdir()):
                shutil.rmtree(one) if one.is_dir() else one.unlink()
            shutil.copytree(path.with_name("backup"), path, dirs_exist_ok=True)
            restored = image(path)
            flusher.poison(FileNotFoundError(2, "missing"))
        assert image(path) == restored


def test_field_B2_a_roll_creates_no_file_in_the_log_that_replaced_it(path: Path) -> None:
    with eoslog.open(path) as log:
        with log.producer({"linger.ms": 0}) as producer:
            producer.produce("t", b"before", partition=0)
            producer.flush()
        partition = log._engine.partition("t", 0)
        for one in list(path.iterdir()):
            shutil.rmtree(one) if one.is_dir() else one.unlink()
        shutil.copytree(path.with_name("backup"), path, dirs_exist_ok=True)
        restored = image(path)
        with pytest.raises(DirectoryReplaced, match="written over this one|was emptied"):
            partition.roll()
        assert image(path) == restored


def test_field_B2_a_killed_process_does_not_change_the_restored_log(path: Path) -> None:
    """It is killed at its clean close; the next process recovers the moved log."""
    with holder(path) as process:
        assert process.call("append")[0] == "done"
    environment = {**os.environ, "EOSLOG_FAILPOINTS": "close.alone=stop"}
    program = "import eoslog, sys; log = eoslog.open(sys.argv[1]); log.topics(); log.close()"
    with subprocess.Popen([sys.executable, "-c", program, path], env=environment) as closing:
        try:
            os.waitid(os.P_PID, closing.pid, os.WSTOPPED)
            restored = replace(path)
            closing.send_signal(signal.SIGCONT)
            assert closing.wait() == 0
        finally:
            closing.kill()
    assert image(path) == restored
    with eoslog.open(path.with_name("moved")) as log:
        assert sum(1 for _ in log.read("t")) == 61 and log.check(full=True).ok


@pytest.mark.parametrize("dies", ["stopped", "close.left=kill", "rename:3=kill", "fsync:2=kill"])
def test_field_B2_a_killed_close_does_not_change_the_restored_log(path: Path, dies: str) -> None:
    """SIGKILL after the replacement: while it is suspended, or at a later step."""
    with holder(path) as process:
        assert process.call("append")[0] == "done"
    name, _, action = dies.partition("=")
    call, _, nth = name.partition(":")
    later = f"files.arm_failpoint({call!r}, {action!r}, {nth or 1})" if action else ""
    program = f"""
import os, signal, sys
import eoslog
from eoslog.storage.fs import files
log = eoslog.open(sys.argv[1])
log.topics()
files.arm_failpoint("close.alone", "stop")
stopped = os.kill
def stop_then_arm(pid, number):  # what is armed now counts from the close's second half on
    stopped(pid, number)
    {later}
os.kill = stop_then_arm
log.close()
"""
    with subprocess.Popen([sys.executable, "-c", program, str(path)]) as closing:
        try:
            os.waitid(os.P_PID, closing.pid, os.WSTOPPED)
            restored = replace(path)
            if not action:
                closing.kill()
            closing.send_signal(signal.SIGCONT)
            assert closing.wait() == -signal.SIGKILL
        finally:
            closing.kill()
    assert image(path) == restored
    with eoslog.open(path) as log:
        assert sum(1 for _ in log.read("t")) == 60
        assert log.check(full=True).ok
    with eoslog.open(path.with_name("moved")) as log:
        assert sum(1 for _ in log.read("t")) == 61
        assert log.check(full=True).ok


def test_field_B2_two_directories_of_one_path_stay_separate(path: Path) -> None:
    old = eoslog.open(path)
    engine = old._engine
    restored = replace(path)
    with eoslog.open(path) as new, new.producer() as producer:
        assert new._engine is not engine and new.path == engine.path
        producer.produce("t", b"new", partition=2)
        producer.flush()
        with pytest.raises(DirectoryReplaced):
            old.create_topic("of the old one")
        assert "of the old one" not in new.topics() and new.offsets("t", 2).log_end == 1
        old.close()
        new.create_topic("u")
        assert new.topics() == ["t", "u"]
    assert image(path) != restored
    with eoslog.open(path.with_name("moved")) as log:
        assert log.topics() == ["t"] and log.offsets("t", 2).log_end == 0


def test_field_B2_a_moved_log_opens_again_while_the_old_handle_is_open(path: Path) -> None:
    old = eoslog.open(path)
    os.rename(path, path.with_name("moved"))
    with eoslog.open(path.with_name("moved")) as log:
        log.create_topic("u")
        with pytest.raises(DirectoryReplaced):
            old.create_topic("v")
        old.close()
        assert log.topics() == ["t", "u"]


def test_field_B2_a_recreated_directory_gets_its_own_log(path: Path) -> None:
    with eoslog.open(path) as old:
        shutil.rmtree(path)
        with eoslog.open(path) as new:
            assert new.topics() == []
        with pytest.raises(DirectoryReplaced, match="removed"):
            old.create_topic("v")


def test_field_B2_the_error_names_the_directory_the_event_and_the_remedy(path: Path) -> None:
    with eoslog.open(path) as log:
        replace(path)
        with pytest.raises(StorageError) as raised:
            log.create_topic("u")
    text = str(raised.value)
    assert text.startswith(f"{path}: ") and str(path.with_name("moved")) in text
    assert "open the path again" in text and raised.value.filename == str(path)


def test_field_B2_a_forked_child_uses_its_own_log(path: Path) -> None:
    with eoslog.open(path) as log:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with contextlib.suppress(eoslog.errors.IllegalState):
                    log.topics()
                    os._exit(2)
                with eoslog.open(path) as own:
                    code = 0 if own.topics() == ["t"] else 3
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        log.create_topic("u")
        assert log.topics() == ["t", "u"]


def test_field_B2_no_message_shows_a_descriptor(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors name damaged, missing and unreadable files by the caller's path."""
    caplog.set_level(logging.DEBUG, "eoslog")
    segment = path / "t-0" / f"{0:020}.log"
    data = bytearray(segment.read_bytes())
    data[80] ^= 1
    segment.write_bytes(bytes(data))
    found: list[object] = []
    with eoslog.open(path) as log:
        found += [repr(log), log.path, log.stats(), log.check(full=True)]
        for call in (
            lambda: list(log.read("t")),
            lambda: log.scan("t").to_table(),
            lambda: log._engine.partition("t", 1).segment(7).size(),
        ):
            with pytest.raises((EoslogError, FileNotFoundError)) as raised:
                call()
            found += [raised.value, raised.value.__dict__]
        found.append(log.check().problems)
        assert log.check().problems[0].path == str(segment)
    shown = "\n".join(
        [repr(one) + str(one) for one in found] + [r.getMessage() for r in caplog.records]
    )
    assert DESCRIPTORS not in shown and str(segment) in shown


def test_field_B2_every_logger_shows_the_paths_of_the_caller() -> None:
    package = Path(eoslog.__file__).parent
    named = [p for p in package.rglob("*.py") if 'logging.getLogger("' in p.read_text()]
    assert named == [], "get_logger of eoslog.shown_paths translates"


def test_field_B2_a_command_on_a_moved_log_ends_with_a_message(path: Path) -> None:
    command = [sys.executable, "-m", "eoslog", "-d", str(path), "consume", "t", "-f", "-b"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()  # it has it open
            restored = replace(path)
            _, errors = process.communicate()
        finally:
            process.kill()
    assert process.returncode not in (0, None) and str(path) in errors
    assert "Traceback" not in errors and DESCRIPTORS not in errors
    assert image(path) == restored
