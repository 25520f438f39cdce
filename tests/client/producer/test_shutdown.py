"""A program that exits without closing its producers sends what they hold.

Records that cannot be sent are reported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import eoslog

pytestmark = pytest.mark.process


def run(
    body: str, path: Path, *, code: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program that opens a log with a four-partition topic and closes nothing."""
    script = (
        "import logging, os, sys, threading\nimport eoslog\nlog = eoslog.open(sys.argv[1])\n"
        "log.create_topic('t', 4, exist_ok=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script + body, str(path)],
        capture_output=True, text=True, check=False, env={**os.environ, **environment}, timeout=120,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done


def values(path: Path) -> list[str]:
    """What a reader of committed records finds, and that the end was clean."""
    assert (path / ".kafka_cleanshutdown").exists()
    with eoslog.open(path) as log:
        return sorted(record.value.decode() for record in log.read("t"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_exit_sends_buffered_records_of_every_producer(path: Path) -> None:
    """Of several producers, of the log and on their own, to several partitions."""
    done = run(
        "for producer in (log.producer(), log.producer(linger_ms=60_000), "
        "eoslog.Producer({'log.dir': sys.argv[1], 'acks': 1})):\n"
        "    for number in range(40): producer.produce('t', f'{number}', partition=number % 4)\n",
        path,
    )
    assert done.stderr == ""
    assert values(path) == sorted(str(number) for number in range(40) for _ in range(3))


def test_exit_sends_records_of_a_first_producer_that_an_exit_handler_creates(path: Path) -> None:
    run(
        "import atexit\n"
        "def last():\n"
        "    global producer\n"
        "    producer = log.producer(linger_ms=60_000)\n"
        "    producer.produce('t', 'x')\n"
        "atexit.register(last)\n",
        path,
    )
    assert values(path) == ["x"]


def test_exit_runs_the_callbacks_of_sent_records(path: Path) -> None:
    done = run(
        "log.producer().produce('t', 'x', partition=2, "
        "on_delivery=lambda error, at: print(error, at.partition, at.offset))\n",
        path,
    )
    assert done.stdout == "None 2 0\n"


def test_exit_sends_buffered_records_although_the_program_failed(path: Path) -> None:
    run(
        "p = log.producer(linger_ms=60_000)\np.produce('t', 'x')\nraise SystemExit(3)\n",
        path,
        code=3,
    )
    assert values(path) == ["x"]


def test_exit_aborts_an_open_transaction(path: Path) -> None:
    done = run(
        "p = log.producer(transactional_id='tx', linger_ms=0)\np.init_transactions()\n"
        "with p.transaction() as tx: tx.send('t', 'committed')\n"
        "p.begin_transaction()\np.send('t', 'never').result(30)\np.produce('t', 'nor this')\n",
        path,
    )
    assert "transaction still open at exit, aborted" in done.stderr
    assert values(path) == ["committed"]
    with eoslog.open(path) as log, log.producer(transactional_id="tx") as producer:
        producer.init_transactions()
        assert not [found for tp in log.partitions_of("t") for found in open_in(log, tp)]


def open_in(log: eoslog.Log, tp: eoslog.TopicPartition) -> list[tuple[int, ...]]:
    return log._engine.partition(tp.topic, tp.partition).open_transactions()


def test_exit_counts_records_that_are_rejected(path: Path) -> None:
    body = (
        "p = log.producer(linger_ms=60_000)\n"
        "for number in range(7): p.produce('t', 'x', partition=0)\n"
        "log.delete_topic('t')\n"
    )
    done = run(body, path)
    assert "7 records not delivered at exit: topic 't' does not exist" in done.stderr
    assert (path / ".kafka_cleanshutdown").exists()


def test_exit_waits_only_some_seconds_for_a_locked_partition(path: Path) -> None:
    run("log.producer().produce('t', 'x', partition=0)\n", path)
    with eoslog.open(path) as log:
        partition = log._engine.partition("t", 0)
        assert partition.core.lock_for_recovery(30.0) == 0
        try:
            done = run("log.producer().produce('t', 'y', partition=0)\n", path)
        finally:
            partition.core.unlock_after_recovery()
    assert "1 records not delivered at exit" in done.stderr
    assert values(path) == ["x"]


def test_a_forked_child_sends_no_records_of_its_parent(path: Path) -> None:
    """The child ends through its own exit hooks while the parent holds the records."""
    done = run(
        "p = log.producer(linger_ms=60_000)\np.produce('t', 'x')\n"
        "q = log.producer(transactional_id='tx', linger_ms=60_000)\nq.init_transactions()\n"
        "q.begin_transaction()\nq.produce('t', 'y')\n"
        "child = os.fork()\n"
        "if child == 0: sys.exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "assert p.buffered == 1\n"
        "q.commit_transaction()\n",
        path,
    )
    assert done.stderr == ""
    assert values(path) == ["x", "y"]


def test_a_spawned_child_sends_its_own_records_at_exit(path: Path) -> None:
    """A spawned one ends as a program does."""
    script = path.parent / "spawns.py"
    script.write_text(
        "import multiprocessing, sys\nimport eoslog\n\n"
        "def work(path):\n"
        "    global producer\n"
        "    producer = eoslog.Producer({'log.dir': path})\n"
        "    producer.produce('t', 'child')\n\n"
        "if __name__ == '__main__':\n"
        "    log = eoslog.open(sys.argv[1])\n    log.create_topic('t')\n"
        "    producer = log.producer()\n    producer.produce('t', 'parent')\n"
        "    child = multiprocessing.get_context('spawn').Process(target=work, args=sys.argv[1:])\n"
        "    child.start()\n    child.join()\n"
    )
    subprocess.run([sys.executable, str(script), str(path)], check=True, timeout=120)
    assert values(path) == ["child", "parent"]


def test_exit_rejects_records_of_threads_that_keep_producing(path: Path) -> None:
    """Acknowledged records are there: the exit stops the threads and keeps records."""
    done = run(
        "p = log.producer(acks='all')\nbegun = threading.Event()\n"
        "def work():\n"
        "    while True:\n"
        "        at = p.send('t', 'x').result(30)\n"
        "        os.write(1, b'%d %d\\n' % (at.partition, at.offset))\n"
        "        begun.set()\n"
        "threading.excepthook = lambda hook: None\n"
        "for _ in range(4): threading.Thread(target=work, daemon=True).start()\n"
        "begun.wait(30)\n",
        path,
    )
    told = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    with eoslog.open(path) as log:
        ends = {
            tp.partition: log.offsets(tp.topic, tp.partition).log_end
            for tp in log.partitions_of("t")
        }
    assert told and all(offset < ends[partition] for partition, offset in told)
    assert (path / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn"])
def test_a_multiprocessing_child_sends_its_buffered_records_at_exit(
    path: Path, tmp_path: Path, how: str
) -> None:
    """Forked ones end by `os._exit`, without the hooks of a program's end."""
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing, sys\nimport eoslog\n"
        "def child():\n"
        "    log = eoslog.open(sys.argv[1])\n"
        "    log.producer(linger_ms=60_000).produce('t', 'x')\n"
        "if __name__ == '__main__':\n"
        "    with eoslog.open(sys.argv[1]) as log: log.create_topic('t')\n"
        f"    process = multiprocessing.get_context({how!r}).Process(target=child)\n"
        "    process.start()\n    process.join()\n    sys.exit(process.exitcode)\n"
    )
    subprocess.run([sys.executable, str(program), str(path)], check=True, timeout=120)
    assert values(path) == ["x"]
