"""Programs that apply records to a database with `Log.sink`, and their feeders.

Each record becomes a row with its offset. The members of a group share the partitions. A suspended
member loses its partitions to others, and continues with the batch that it had read.
"""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

import eoslog
from eoslog.client.consumer.consumer import Consumer
from eoslog.errors import CorruptRecord, EoslogError
from eoslog.sql import Database
from tests.faults.harness import Child
from tests.sql.databases import Place
from tests.torture.workloads.halves import refusals
from tests.torture.workloads.orders import DRIVER_ERRORS, ChangedMindError, connecting

GROUP, TOPIC, PARTITIONS = "bills", "in", 3
TABLE = "create table applied (part integer, number bigint, value varchar(40))"
SETTINGS = {"auto_offset_reset": "earliest", "session_timeout_ms": 300}
LONGEST_S = 0.7
IDS = ["feed-0", "feed-1"]


def founded(child: Child, path: Path, place: Place) -> None:
    """Create the table, and the topic with a few records."""
    place.run(TABLE)
    with eoslog.open(path) as log, Database(place.connect) as database:
        database.create()
        log.create_topic(TOPIC, PARTITIONS, {"segment.bytes": "4096"})
        with log.producer() as producer:
            for number in range(30):
                producer.produce(TOPIC, f"first:{number}", partition=number % PARTITIONS)


def feeds(
    child: Child, path: Path, place: Place, folder: Path, name: str, seed: int, statement: int = 0
) -> None:
    """Write transactions, and abort some of them."""
    rng = random.Random(seed)
    with refusals():
        child.armed()
        with eoslog.open(path) as log, log.producer(transactional_id=rng.choice(IDS)) as producer:
            producer.init_transactions()
            for number in range(rng.randint(1, 10)):
                with contextlib.suppress(ChangedMindError), producer.transaction() as tx:
                    for at in range(rng.randint(1, 12)):
                        value, partition = f"{name}:{number}:{at}", rng.randrange(PARTITIONS)
                        tx.produce(TOPIC, value, partition=partition)
                    if rng.random() < 0.3:
                        producer.flush()
                    if rng.random() < 0.3:
                        raise ChangedMindError


def applies(
    child: Child, path: Path, place: Place, folder: Path, name: str, seed: int, statement: int = 0
) -> None:
    """Apply batches as a member of the group, in one of the ways that programs do it."""
    rng, end = random.Random(seed), time.monotonic() + LONGEST_S
    with refusals(*DRIVER_ERRORS):
        child.armed()
        with eoslog.open(path) as log, connecting(place, statement) as database:
            own = rng.random() < 0.25
            store = {"offset_store": database} if own else {}
            with log.consumer(TOPIC, group_id=GROUP, **SETTINGS, **store) as consumer:
                while time.monotonic() < end:
                    try:
                        if own:
                            _own_loop(database, place, consumer, rng)
                        else:
                            _sink(log, database, consumer, rng)
                    except CorruptRecord:
                        raise  # nothing here damages a file
                    except (EoslogError, *DRIVER_ERRORS) as error:
                        child.tell("refused", type(error).__name__, str(error))
                        time.sleep(0.02)


def _sink(log: eoslog.Log, database: Database, consumer: Consumer, rng: random.Random) -> None:
    """Apply a few batches; some end by an exception or by `break`."""
    left = rng.randint(1, 12)
    with contextlib.suppress(ChangedMindError):
        for batch in log.sink(consumer, database, records=rng.randint(1, 20), timeout=0.1):
            for record in batch:
                batch.connection.execute(_insert(record))
            left -= 1
            kind = rng.random()
            if kind < 0.1:
                raise ChangedMindError
            if kind < 0.4:
                batch.commit()
            if not left or kind > 0.95:
                break


def _own_loop(database: Database, place: Place, consumer: Consumer, rng: random.Random) -> None:
    """Apply a batch in a transaction of the program."""
    connection = place.connect()
    try:
        for _ in range(rng.randint(1, 6)):
            for record in consumer.consume(rng.randint(1, 20), 0.1):
                connection.execute(_insert(record))
            database.store_offsets(connection, consumer)
            connection.commit()
    except (EoslogError, *DRIVER_ERRORS):
        with contextlib.suppress(*DRIVER_ERRORS):
            connection.rollback()
        consumer.rewind()
        raise
    finally:
        connection.close()


def _insert(record: eoslog.Record) -> str:
    value = record.value.decode()
    return f"insert into applied values ({record.partition}, {record.offset}, '{value}')"


def finish(log: eoslog.Log, database: Database, patience_s: float) -> None:
    """Apply what is left, as any member would; the others are gone."""
    deadline = time.monotonic() + patience_s
    with log.consumer(TOPIC, group_id=GROUP, **SETTINGS) as consumer:
        for batch in log.sink(consumer, database, records=50, timeout=0.2):
            for record in batch:
                batch.connection.execute(_insert(record))
            done = not batch and len(consumer.assignment()) == PARTITIONS
            if done or time.monotonic() > deadline:
                break
