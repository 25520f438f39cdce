"""A process that dies in a transaction with a record and an offset."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import eoslog
from eoslog import Outcome, Producer, TopicPartition
from eoslog.storage.fs import files

READ = TopicPartition("b", 0)


def die(path: Path, work: Callable[[Producer], object], step: str) -> None:
    """Let a process die at a step of its work with the producer `t`."""
    pid = os.fork()
    if not pid:
        log = eoslog.open(path)
        with log.producer(transactional_id="t") as producer:
            producer.init_transactions()
            write(producer, 0)
            producer.commit_transaction()
            files.arm_failpoint(step, "kill")
            work(producer)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL


def write(producer: Producer, number: int, mode: Literal["inline", "staged"] = "inline") -> None:
    producer.begin_transaction(mode)
    producer.produce("a", b"%d" % number)
    producer.send_offsets_to_transaction({READ: number}, "g")


def commit(producer: Producer) -> None:
    write(producer, 1)
    producer.commit_transaction()


def resolve_staged(path: Path) -> Callable[[Producer], None]:
    """Return what prepares and commits a staged transaction, with the record 1."""

    def work(producer: Producer) -> None:
        write(producer, 1, "staged")
        token = producer.prepare_transaction().token
        with eoslog.open(path) as log:
            log.resolve(token, Outcome.COMMIT)

    return work
