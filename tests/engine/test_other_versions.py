"""Directories whose control file another version of eoslog has written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import eoslog

OTHERS = [b"EOSLOGC1\2\0\0\0", b"EOSLOGC2\1\0\0\0"]
"""What the control file of another version may begin with."""


def write_head(path: Path, head: bytes) -> None:
    """Make a directory's control file one of another version."""
    with open(path / "eoslog.control", "r+b") as file:
        file.write(head)


def fill(path: Path) -> None:
    """A closed log with one record."""
    with eoslog.open(path) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.produce("t", "value")


@pytest.mark.parametrize("head", OTHERS)
@pytest.mark.parametrize("clean", [True, False])
def test_a_control_file_that_no_process_uses_is_replaced(
    tmp_path: Path, head: bytes, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log"
    fill(path)
    if not clean:
        (path / ".kafka_cleanshutdown").unlink()
    write_head(path, head)
    with eoslog.open(path, read_only=True) as view:
        assert [record.value for record in view.read("t")] == [b"value"]
        assert not view.outdated
        for values in ([b"value"], [b"value", b"value"]):
            with eoslog.open(path) as log:
                assert [record.value for record in log.read("t")] == values
                with log.producer() as producer:
                    producer.produce("t", "value")
            assert view.outdated
    assert eoslog.check(path).ok
    assert caplog.text.count("replacing the control file") == 1


KILL = """
import os, signal, sys
import eoslog
from eoslog import _core

rename = _core.os_rename

def die(source, target):
    if target.endswith("eoslog.control"):
        if sys.argv[2] == "after":
            rename(source, target)
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target)

_core.os_rename = die
eoslog.open(sys.argv[1])
"""


@pytest.mark.process
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_kill_while_the_control_file_is_replaced_loses_nothing(
    tmp_path: Path, clean: bool, when: str
) -> None:
    path = tmp_path / "log"
    fill(path)
    if not clean:
        (path / ".kafka_cleanshutdown").unlink()
    write_head(path, OTHERS[0])
    ended = subprocess.run([sys.executable, "-c", KILL, str(path), when], timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL
    with eoslog.open(path) as log:
        assert [record.value for record in log.read("t")] == [b"value"]
    assert eoslog.check(path).ok


OPEN = """
import sys, eoslog
for read_only in (False, True):
    try:
        eoslog.open(sys.argv[1], read_only=read_only)
    except eoslog.StorageError as error:
        print(error)
"""


@pytest.mark.process
@pytest.mark.parametrize("head", OTHERS)
def test_a_control_file_that_a_process_uses_is_kept(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "log"
    fill(path)
    with eoslog.open(path) as log:
        own = (path / "eoslog.control").read_bytes()[:12]
        number = os.stat(path / "eoslog.control").st_ino
        write_head(path, head)
        command = [sys.executable, "-c", OPEN, str(path)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert ended.stdout.count("log open, or the file is damaged; close") == 2, ended.stdout
        assert os.stat(path / "eoslog.control").st_ino == number
        write_head(path, own)
        assert [record.value for record in log.read("t")] == [b"value"]
