"""Programs that move money between databases and topics, by `eoslog.tpc`.

A move is a row in each database that takes part, and records of each producer. A line of the journal
is written before each transaction, and after its answer.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from pathlib import Path
from typing import Any

import eoslog
from eoslog import tpc
from eoslog.errors import CorruptRecord, EoslogError, OutcomeConflict, TransactionAborted
from tests.faults.harness import Child
from tests.sql.databases import Place, end_here
from tests.torture.workloads.halves import Journal, refusals
from tests.torture.workloads.orders import DRIVER_ERRORS, ChangedMindError

IDS = [f"bank-{number}" for number in range(4)]
PARTITIONS, STEPS = 2, 8
Places = tuple[Place, ...]


def opened(child: Child, path: Path, places: Places) -> None:
    """Create the topic, and the table of each database."""
    for place in places:
        place.run("create table moved (label varchar(60))")
    with eoslog.open(path) as log:
        log.create_topic("moves", PARTITIONS)


def moves(
    child: Child, path: Path, places: Places, folder: Path, name: str, seed: int, statement: int = 0
) -> None:
    """Move money until the steps are done."""
    journal, rng = Journal(folder, name), random.Random(seed)
    factories: list[Any] = [place.connect for place in places]
    if statement and places:
        number = rng.randrange(len(places))
        factories[number] = places[number].at_statement(statement, end_here(signal.SIGKILL))
    with refusals(*DRIVER_ERRORS):
        child.armed()
        with eoslog.open(path) as log, tpc.Coordinator(log) as coordinator:
            for number in range(STEPS):
                try:
                    _move(log, coordinator, factories, journal, rng, f"{name}.{number}")
                except (CorruptRecord, OutcomeConflict):
                    raise  # nothing here damages a file or decides twice
                except (EoslogError, *DRIVER_ERRORS) as error:
                    child.tell("refused", type(error).__name__, str(error))


def _move(
    log: eoslog.Log, coordinator: tpc.Coordinator, factories: list[Any], journal: Journal,
    rng: random.Random, label: str,
) -> None:  # fmt: skip
    banks = rng.sample(range(len(factories)), rng.randint(min(1, len(factories)), len(factories)))
    ids = rng.sample(IDS, rng.randint(1, 2))
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(contextlib.closing(factories[n]())) for n in banks]
        # A thread that sends could have an append lock when the process is suspended at a step.
        producers = [
            stack.enter_context(log.producer(transactional_id=name, linger_ms=10_000))
            for name in ids
        ]
        journal.note("planned", label=label, banks=banks, records=len(ids))
        try:
            with coordinator.transaction(*connections, *producers):
                for connection in connections:
                    connection.execute(f"insert into moved values ('{label}')")
                for number, producer in enumerate(producers):
                    producer.produce("moves", f"{label}/{number}", partition=number)
                if rng.random() < 0.15:
                    raise ChangedMindError
            journal.note("ended", label=label, commit=True)
        except (ChangedMindError, TransactionAborted):
            journal.note("ended", label=label, commit=False)


def recovers(
    child: Child, path: Path, places: Places, folder: Path, name: str, seed: int, statement: int = 0
) -> None:
    """Complete what others have left, also of suspended ones."""
    rng = random.Random(seed)
    with refusals(*DRIVER_ERRORS):
        child.armed()
        with eoslog.open(path) as log:
            for _ in range(STEPS):
                recover_all(log, places, rng.choice([None, 0.0, 0.1]))
                time.sleep(rng.uniform(0, 0.05))


def recover_all(log: eoslog.Log, places: Places, older_than: float | None) -> bool:
    """Recover once; return whether it was complete."""
    with contextlib.ExitStack() as stack:
        coordinator = stack.enter_context(tpc.Coordinator(log))
        try:
            connections = [stack.enter_context(contextlib.closing(p.connect())) for p in places]
            coordinator.recover(*connections, older_than=older_than)
        except (CorruptRecord, OutcomeConflict):
            raise
        except (EoslogError, *DRIVER_ERRORS):
            return False
    return True
