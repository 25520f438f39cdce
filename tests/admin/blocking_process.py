"""A process that blocks others of a log: it runs some lines, then waits or stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

from eoslog.storage.directory import processes
from tests.waiting import until

START = """
import sys, time
import eoslog
from eoslog.storage.fs import files
log = eoslog.open(sys.argv[1])
"""
OPEN_TRANSACTION = """
producer = log.producer(transactional_id="x")
producer.init_transactions()
producer.begin_transaction()
producer.send("one", "v").result(30)
producer.flush()
print("ready", flush=True)
sys.stdin.readline()
"""
STOPS_AS_DECIDED = """
producer = log.producer(transactional_id="x")
producer.init_transactions()
producer.begin_transaction()
producer.send("one", "v").result(30)
print("ready", flush=True)
files.arm_failpoint("txn.decided", "stop")
producer.commit_transaction()
"""
STOPS_IN_AN_APPEND = """
producer = log.producer()
producer.produce("one", "v")
producer.flush()
print("ready", flush=True)
files.arm_failpoint("pwrite", "stop")
producer.produce("one", "w")
producer.flush()
"""
STOPS_IN_A_FLUSH = """
log.alter_topic("one", {"flush.ms": 3_600_000})  # so that only this call flushes
producer = log.producer(acks=1)
producer.produce("one", "v")
producer.flush()
print("ready", flush=True)
files.arm_failpoint("fdatasync", "stop")
log._engine.partition("one", 0).flush()
time.sleep(60)
"""


class BlockingProcess:
    """The test's end of it."""

    def __init__(self, path: str, lines: str, *before: str, stops: bool = False) -> None:
        self.path = path
        self.process = subprocess.Popen(
            [*before, sys.executable, "-c", START + lines, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        if stops:
            self.await_stop()

    @property
    def pid(self) -> int:
        return self.process.pid

    def state(self) -> str:
        with open(f"/proc/{self.pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]

    def await_stop(self) -> None:
        until(lambda: self.state() == "T", "it was not stopped")

    def stop(self) -> None:
        """Stop it at a moment at which it holds no lock of a partition."""
        while True:
            os.kill(self.pid, signal.SIGSTOP)
            self.await_stop()
            held = processes.openers(self.path)[self.pid].locks
            if not any(processes.lock_of(*lock) for lock in held):
                return
            os.kill(self.pid, signal.SIGCONT)
            time.sleep(0.01)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def __enter__(self) -> BlockingProcess:
        return self

    def __exit__(self, *_: Any) -> None:
        self.kill()
