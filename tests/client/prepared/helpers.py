"""A program that prepares transactions and is killed at a failpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import eoslog
from tests.faults.harness import Running, start

PROGRAM = """
import sys
import eoslog
from eoslog.storage.fs import files

path, point, nth, mode = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
log = eoslog.open(path)
producer = log.producer(transactional_id="till")
producer.init_transactions()
with producer.transaction() as tx:
    tx.produce("orders", b"before", partition=0)
if point != "none":
    files.arm_failpoint(point, "kill", nth)
producer.begin_transaction(mode=mode)
for number in range(3):
    producer.produce("orders", f"{number}".encode(), partition=0)
    producer.produce("paid", f"{number}".encode(), partition=number % 2)
producer.send_offsets_to_transaction({eoslog.TopicPartition("orders", 0): 1}, "readers")
prepared = producer.prepare_transaction(meta={"order": 7})
print(prepared.token, flush=True)
for word in sys.argv[5:]:
    log.resolve(prepared.token, eoslog.Outcome[word])
    print("decided", flush=True)
"""
RECORDS = {"orders": [b"0", b"1", b"2"], "paid": [b"0", b"2", b"1"]}
"""What the transaction wrote, by topic, in the order of partitions."""


def created(path: Path, **options: Any) -> str:
    """A directory with the topics `orders` (one partition) and `paid` (two)."""
    with eoslog.open(path, **options) as log:
        log.create_topic("orders")
        log.create_topic("paid", partitions=2)
    return str(path)


def run(path: str, mode: str, *words: str, point: str = "none", nth: int = 1) -> list[str]:
    """Run the program to its end or to `point`, and return what it printed."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, path, point, str(nth), mode, *words],
        capture_output=True, text=True, check=False,
        env={**os.environ, "EOSLOG_FAILPOINTS": "1"},
    )  # fmt: skip
    expected = 0 if point == "none" else -signal.SIGKILL
    assert result.returncode == expected, result.stderr
    return result.stdout.split()


def committed(log: eoslog.Log, topic: str) -> list[bytes]:
    """The values that `read_committed` readers see."""
    return [record.value for record in log.read(topic)]


def of_transaction(log: eoslog.Log) -> dict[str, list[bytes]]:
    """The values of the transaction that readers see, by topic."""
    orders = committed(log, "orders")
    assert orders[:1] == [b"before"]
    return {"orders": orders[1:], "paid": committed(log, "paid")}


def offset_of_readers(log: eoslog.Log) -> int | None:
    """The offset of `orders`-0 that the group `readers` has committed."""
    try:
        offsets = log.describe_group("readers").offsets
    except eoslog.errors.GroupNotFound:
        return None
    found = offsets.get(eoslog.TopicPartition("orders", 0))
    return None if found is None else found.offset


NOTHING: dict[str, list[bytes]] = {"orders": [], "paid": []}


def stopped(fn: Callable[..., None], path: str, point: str, *words: Any) -> Running:
    """Run `fn` in a process of its own until it stops at a failpoint."""
    return await_stop(start(fn, path, *words, faults=((point, "stop", 1),)))


def await_stop(running: Running) -> Running:
    found = os.waitid(os.P_PID, running.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert found is not None
    assert found.si_code == os.CLD_STOPPED, running.end()
    return running


def resumed(running: Running) -> Running:
    running.signal(signal.SIGCONT)
    return running
