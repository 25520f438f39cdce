"""Transfers over six partitions by four processes that are killed at random.

Every snapshot of a read-only reader sees only complete transactions: the balance is zero, no
transfer is incomplete, and no snapshot is older than an earlier one. In the end every
acknowledged transfer is there once, and no aborted one.
"""

from __future__ import annotations

import collections
import contextlib
import random
import signal
import subprocess
import sys
import time

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog._core import AbortedTransactions, decode_records
from tests.torture.workloads.bank_worker import ACCOUNTS, TOPIC

pytestmark = [pytest.mark.process, pytest.mark.slow]
WORKERS = 4
KILLS = 25


def start(path, number, folder):
    command = [
        sys.executable,
        "-m",
        "tests.torture.workloads.bank_worker",
        path,
        f"teller-{number}",
    ]
    return subprocess.Popen([*command, str(folder / f"journal-{number}")])


def read(log, cut, before=None):
    """Return (balance, records of each transfer) below a cut, in read_committed.

    With the cut `before`, only of the transactions after it: a cut splits none.
    """
    balance, transfers = 0, collections.Counter()
    for tp, end in cut.items():
        partition = log._engine.partition(tp.topic, tp.partition)
        position = (before or {}).get(tp, 0)
        aborted = AbortedTransactions(partition.aborted(position, end))
        while position < end:
            for part in partition.read(position, end):
                records, _ = decode_records(
                    tp.topic, tp.partition, part.data, position, end, aborted, 1 << 30
                )
                for record in records:
                    transfers[record.key.decode()] += 1
                    balance += int(record.value)
                position = part.next_offset
    return balance, transfers


def entries(folder, word):
    for number in range(WORKERS):
        with contextlib.suppress(FileNotFoundError):
            for line in (folder / f"journal-{number}").read_text().splitlines():
                if line.startswith(word + " "):
                    yield line.split()[1:]


@pytest.mark.parametrize("durability", ["strict", "os"])
def test_killed_tellers_neither_lose_nor_create_money(tmp_path, durability):
    path, rng = str(tmp_path / "log"), random.Random(7)
    with eoslog.open(path, durability=durability) as log:
        log.create_topic(TOPIC, ACCOUNTS)
        tellers = [start(path, number, tmp_path) for number in range(WORKERS)]
        before: dict[TopicPartition, int] = {}
        try:
            for killed in range(KILLS):
                time.sleep(rng.uniform(0.05, 0.5))
                while len(list(entries(tmp_path, "ok"))) < 4 * killed:  # slow to start, here
                    time.sleep(0.05)
                victim = rng.randrange(WORKERS)
                assert tellers[victim].poll() is None, "a teller died by itself"
                tellers[victim].send_signal(signal.SIGKILL)
                tellers[victim].wait()
                tellers[victim] = start(path, victim, tmp_path)
                cut = log.snapshot([TOPIC])
                assert all(cut[tp] >= end for tp, end in before.items())
                balance, transfers = read(log, cut, before)
                before = cut
                assert balance == 0
                assert all(count % 2 == 0 for count in transfers.values())
        finally:
            for teller in tellers:
                teller.kill()
                teller.wait()
        for number in range(WORKERS):  # what the dead left is finished by their successors
            with log.producer(transactional_id=f"teller-{number}") as producer:
                producer.init_transactions()
        balance, transfers = read(log, log.snapshot([TOPIC]))
        assert balance == 0
        acknowledged = list(entries(tmp_path, "ok"))
        assert len(acknowledged) > KILLS
        assert all(transfers[name] == 2 * int(count) for name, count in acknowledged)
        assert not [name for (name,) in entries(tmp_path, "abort") if name in transfers]
        tried = {name for name, _ in entries(tmp_path, "try")}
        assert set(transfers) <= tried
        assert log.check(full=True).ok
