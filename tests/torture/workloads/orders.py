"""Programs that write rows of a database and records of a log with `Log.atomic`.

An order is some rows and as many records. A moved record is a row and a record made of an input,
with the input's offset in the log or in the database. A line of the journal is written before each
transaction, and after its answer.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import eoslog
from eoslog import Outcome
from eoslog.client.consumer.consumer import Consumer
from eoslog.errors import CorruptRecord, EoslogError, OutcomeConflict, TransactionAborted
from eoslog.sql import Database
from tests.faults.harness import Child
from tests.sql.databases import Place, end_here
from tests.torture.workloads.halves import Journal, refusals

IDS = [f"shop-{number}" for number in range(3)]
GROUPS = {"log": "moved-log", "database": "moved-database"}
"""Where the offsets are stored, and the topic of the moved records."""
PARTITIONS, INPUTS = 2, 120
TABLES = (
    "create table placed (label varchar(40), part integer)",
    "create table moved (kind varchar(40), part integer, number bigint)",
)
STEPS = 14
FAST = {"first_check": 0, "interval": 0.05, "timeout": 1.0}

DRIVER_ERRORS: tuple[type[Exception], ...] = (sqlite3.OperationalError,)
"""What a statement of the program itself may raise."""
with contextlib.suppress(ImportError):
    import psycopg

    DRIVER_ERRORS += (psycopg.OperationalError,)


class ChangedMindError(Exception):
    """The program rolls an order back."""


def founded(child: Child, path: Path, place: Place) -> None:
    """Create the tables, the topics, and the inputs."""
    place.run(*TABLES)
    with eoslog.open(path) as log, Database(place.connect) as database:
        database.create()
        for topic in ("orders", "unlocked", "in", *GROUPS.values()):
            log.create_topic(topic, PARTITIONS)
        with log.producer() as producer:
            for number in range(INPUTS):
                producer.produce("in", f"{number}", partition=number % PARTITIONS)


def connecting(place: Place, statement: int) -> Database:
    """The database; its nth statement or answer kills the process, 0 is none."""
    if not statement:
        return Database(place.connect)
    return Database(place.at_statement(statement, end_here(signal.SIGKILL)))


def sells(
    child: Child, path: Path, place: Place, folder: Path, name: str, seed: int, statement: int = 0
) -> None:
    """Place orders and move inputs until the steps are done."""
    journal, rng = Journal(folder, name), random.Random(seed)
    with refusals(*DRIVER_ERRORS):
        child.armed()
        with eoslog.open(path) as log, connecting(place, statement) as database:
            Seller(log, database, place, journal, rng, name, child).run()


def resolves(
    child: Child, path: Path, place: Place, folder: Path, name: str, seed: int, statement: int = 0
) -> None:
    """Ask the database about all that is prepared, also while its worker lives."""
    rng = random.Random(seed)
    with refusals(*DRIVER_ERRORS):
        child.armed()
        with eoslog.open(path) as log, connecting(place, statement) as database:
            journal = Journal(folder, name)
            end = time.monotonic() + rng.uniform(0.1, 0.8)
            if registered := rng.random() < 0.5:
                log.register_resolver(database.name, database, **FAST)
            while time.monotonic() < end:
                if not registered:
                    resolve_all(log, database, rng.uniform(0, 0.05))
                look(log, place, journal)
                time.sleep(rng.uniform(0, 0.05))


def contends(
    child: Child, path: Path, place: Place, folder: Path, name: str, seed: int, over: Path
) -> None:
    """Place orders with the one transactional id that all share, until `over` exists."""
    journal, rng = Journal(folder, name), random.Random(seed)
    with refusals(*DRIVER_ERRORS):
        with eoslog.open(path) as log, Database(place.connect) as database:
            seller = Seller(log, database, place, journal, rng, name, child, IDS[:1])
            while not over.exists():
                seller.take(seller.order)


def arbitrates(
    child: Child, path: Path, place: Place, folder: Path, name: str, seed: int, over: Path
) -> None:
    """Ask the database about all that is prepared, until `over` exists."""
    rng = random.Random(seed)
    with refusals(*DRIVER_ERRORS):
        with eoslog.open(path) as log, Database(place.connect) as database:
            while not over.exists():
                resolve_all(log, database)
                time.sleep(rng.uniform(0, 0.02))


def resolve_all(log: eoslog.Log, database: Database, late_s: float = 0) -> int:
    """Ask about each prepared transaction once; return how many are still undecided.

    Args:
        log: the log.
        database: the database.
        late_s: the time between the look for prepared transactions and the first question.
    """
    left = 0
    found = log.pending()
    time.sleep(late_s)
    for prepared in found:
        try:
            outcome = database.resolve(prepared)
            if outcome is Outcome.UNKNOWN:
                left += 1
            else:
                log.resolve(prepared.token, outcome)
        except (CorruptRecord, OutcomeConflict):
            raise  # two answers to one question
        except EoslogError:
            left += 1
    return left


def look(log: eoslog.Log, place: Place, journal: Journal) -> None:
    """Compare: the database commits first, so what the log shows is in the database."""
    shown = {record.value.decode() for record in log.read("orders")}
    placed = {f"{label}/{part}" for label, part in place.rows("select * from placed")}
    if missing := shown - placed:
        journal.note("phantom", values=sorted(missing))


class Seller:
    """The steps of one process."""

    def __init__(
        self, log: eoslog.Log, database: Database, place: Place, journal: Journal,
        rng: random.Random, name: str, child: Child, ids: list[str] = IDS,
    ) -> None:  # fmt: skip
        """Start without a producer and without consumers."""
        self.log, self.database, self.place = log, database, place
        self.journal, self.rng, self.name, self.child = journal, rng, name, child
        self.number, self.ids = 0, ids
        self.producer: eoslog.Producer | None = None
        self.consumers: dict[str, Consumer] = {}
        self.entered: Callable[[], None] = lambda: None
        """Called at the beginning of each block."""
        self.assigned = False
        """Whether the consumers read all partitions, as members of no group."""

    def run(self) -> None:
        """Take the steps; a typed refusal ends one of them only."""
        steps = [
            self.order, self.order, self.order, self.move_some, self.move_some, self.look,
            self.other,
        ]  # fmt: skip
        for _ in range(STEPS):
            self.take(self.rng.choice(steps))

    def take(self, step: Callable[[], None]) -> bool:
        """Take a step; after a typed refusal, return False, and use a new producer next."""
        try:
            step()
            return True
        except (CorruptRecord, OutcomeConflict):
            raise  # nothing here damages a file or decides twice
        except (EoslogError, *DRIVER_ERRORS) as error:
            self.child.tell("refused", type(error).__name__, str(error))
            self._drop()
            return False

    def _drop(self) -> None:
        producer, self.producer = self.producer, None
        if producer is not None:
            with contextlib.suppress(EoslogError):
                producer.close(1)

    def selling(self) -> eoslog.Producer:
        """Return the producer; a new one has any of the ids."""
        if self.producer is None:
            self.producer = self.log.producer(transactional_id=self.rng.choice(self.ids))
        return self.producer

    @contextlib.contextmanager
    def _journaled(self, label: str) -> Iterator[None]:
        """Write what the answer was; an error of another kind allows both outcomes."""
        try:
            yield
            self.journal.note("ended", label=label, commit=True)
        except (ChangedMindError, TransactionAborted):
            self.journal.note("ended", label=label, commit=False)

    def order(self, wavering: float = 0.1, given: float = 0.2) -> None:
        """Place an order, or change one's mind at its end.

        Args:
            wavering: how often the mind is changed.
            given: how often the connection is one of the program.
        """
        rng, producer = self.rng, self.selling()
        self.number += 1
        label, parts = f"{self.name}.{self.number}", rng.randint(1, 4)
        connection = self.place.connect() if rng.random() < given else None
        self.journal.note("planned", label=label, parts=parts)
        try:
            with self._journaled(label), self.log.atomic(producer, self.database, connection) as tx:
                self.entered()
                for part in range(parts):
                    tx.produce("orders", f"{label}/{part}", partition=part % PARTITIONS)
                    tx.connection.execute(f"insert into placed values ('{label}', {part})")
                if rng.random() < 0.3:
                    producer.flush()
                if rng.random() < wavering:
                    raise ChangedMindError
        finally:
            if connection is not None:
                connection.close()

    def move_some(self) -> None:
        """Move a few inputs."""
        self.move(self.rng.choice(list(GROUPS)), self.rng.randint(1, 8))

    def move(self, kind: str, count: int) -> None:
        """Move at most so many inputs of a kind."""
        consumer, producer = self._consumer(kind), self.selling()
        records = consumer.consume(count, 0.1)
        if not records:
            return
        try:
            with self.log.atomic(producer, self.database) as tx:
                self.entered()
                for record in records:
                    at = (record.partition, record.offset)
                    tx.connection.execute(f"insert into moved values ('{kind}', {at[0]}, {at[1]})")
                    tx.produce(GROUPS[kind], f"{at[1]}", partition=record.partition)
                tx.commit_offsets(consumer)
        except (EoslogError, *DRIVER_ERRORS):
            consumer.rewind()
            raise

    def _consumer(self, kind: str) -> Consumer:
        if kind not in self.consumers:
            store = {"offset_store": self.database} if kind == "database" else {}
            topics = () if self.assigned else ("in",)
            consumer = self.consumers[kind] = self.log.consumer(
                *topics, group_id=kind, auto_offset_reset="earliest", enable_auto_commit=False,
                **store,
            )  # fmt: skip
            if self.assigned:
                consumer.assign(self.log.partitions_of("in"))
        return self.consumers[kind]

    def look(self) -> None:
        """Compare what the log shows with the database."""
        look(self.log, self.place, self.journal)

    def other(self) -> None:
        """Change the id, resolve what is prepared, or compact the internal topics."""
        kind = self.rng.random()
        if kind < 0.4:
            self._drop()
        elif kind < 0.8:
            resolve_all(self.log, self.database)
        else:
            self.log.clean(roll=True)
