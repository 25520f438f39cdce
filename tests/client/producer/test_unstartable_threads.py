"""A producer whose thread cannot start sends from the thread of its caller."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import eoslog

PROGRAM = """
import resource, sys, threading
import eoslog

path, kind = sys.argv[1:]
log = eoslog.open(path)
options = {"named": {"name": "n"}, "plain": {}, "lingering": {"linger_ms": 3_600_000}}

def allow():
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    threading.stack_size(0)

threading.stack_size(1 << 30)  # no thread can start: its stack does not fit
size = int(open("/proc/self/statm").read().split()[0]) * 4096 + (64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))

producer = log.producer(**options[kind])
number = {"publishing_id": 1, "partition": 0} if kind == "named" else {}
first = producer.send("t", b"0", **number).result(timeout=60)
assert first.offset == 0
allow()
number = {"publishing_id": 2, "partition": 0} if kind == "named" else {}
producer.produce("t", b"1", **number)
producer.close()
log.close()
"""


@pytest.mark.process
@pytest.mark.parametrize("kind", ["plain", "lingering", "named"])
def test_a_record_is_stored_once_although_no_thread_can_start(tmp_path: Path, kind: str) -> None:
    with eoslog.open(tmp_path) as log:
        log.create_topic("t")
    program = [sys.executable, "-c", PROGRAM, str(tmp_path), kind]
    assert subprocess.run(program, timeout=120, check=False).returncode == 0
    with eoslog.open(tmp_path) as log:
        assert [record.value for record in log.read("t")] == [b"0", b"1"]


OPEN = """
import sys, threading
import eoslog

with eoslog.open(sys.argv[1]):  # imports everything
    pass
threading.stack_size(1 << 46)  # no thread can start: its stack does not fit
for read_only in (False, True):
    try:
        eoslog.open(sys.argv[1], read_only=read_only)
    except eoslog.StorageError as error:
        assert "background thread cannot start" in str(error), error
    else:
        raise AssertionError("opened")
threading.stack_size(0)
with eoslog.open(sys.argv[1]) as log:
    log.create_topic("t")
"""


@pytest.mark.process
def test_a_log_whose_thread_cannot_start_raises_and_opens_later(tmp_path: Path) -> None:
    program = [sys.executable, "-c", OPEN, str(tmp_path)]
    ended = subprocess.run(program, timeout=120, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    with eoslog.open(tmp_path) as log:
        assert log.topics() == ["t"]
