"""A suspended worker keeps its transaction until its timeout, and is then fenced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.client.helpers import visible
from tests.waiting import until

WORKER = """
import sys
import eoslog
with eoslog.open(sys.argv[1]) as log:
    producer = log.producer(transactional_id="x", transaction_timeout_ms=10_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("b", "v").result(30)
    print("open", flush=True)
    sys.stdin.readline()
    try:
        producer.commit_transaction()
        print("committed", flush=True)
    except eoslog.errors.EoslogError as error:
        print(type(error).__name__, flush=True)
"""


@pytest.mark.process
def test_a_suspended_worker_blocks_readers_until_its_transaction_times_out(log: Any) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, log.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stdout is not None and worker.stdin is not None
        assert worker.stdout.readline() == "open\n"
        os.kill(worker.pid, signal.SIGSTOP)
        part = log._engine.partition("b", 0)
        part.flush()
        # No other process frees what a living process holds: its process lock is taken even
        # while it is stopped.
        assert log._engine.transactions.resolver.resolve_blockers(part, grace_s=0.0) == 0
        assert part.last_stable_offset == 0
        # The sweep of any process ends it, once it is due.
        until(lambda: part.last_stable_offset, step=log._engine.transactions.abort_timed_out)
        os.kill(worker.pid, signal.SIGCONT)
        print("go", file=worker.stdin, flush=True)
        assert worker.stdout.readline() == "TransactionTimedOut\n"
        assert visible(log) == []
    finally:
        worker.kill()
        worker.communicate()
