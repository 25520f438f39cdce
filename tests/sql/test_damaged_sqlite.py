"""A damaged SQLite file leads to the right outcome and offset, or to an error."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eoslog import Outcome, TopicPartition
from eoslog.client.consumer.offset_store import OffsetChange
from eoslog.descriptions import PreparedTransaction
from eoslog.errors import CommitFailed, EoslogError
from eoslog.sql import Database
from eoslog.sql.offsets import all_offsets, read_offsets, store_offsets
from eoslog.sql.outcomes import all_outcomes, committed_rows, insert_commit

LOG_ID = "VjQWqSJ3TUWd1GBdSxIZyA"
TOKENS = [f"{LOG_ID}:{number}:0:3" for number in range(40)]
COMMITTED, ABORTED, UNKNOWN = TOKENS[6], TOKENS[7], f"{LOG_ID}:99:0:3"
TOPIC_ID = b"\x17" * 16
PARTITIONS = {TopicPartition("orders", number): TOPIC_ID for number in range(3)}
PAGE = 4096
FLIPS = 60


def prepared(token: str, database_id: str) -> PreparedTransaction:
    meta = {"eoslog.database": database_id}
    return PreparedTransaction(token, "PREPARED", "inline", age=0.0, meta=meta)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[bytes, str]]:
    """The bytes of a database with outcomes and offsets, and its id."""
    path = tmp_path_factory.mktemp("sqlite") / "base.sqlite"
    with Database(path) as database:
        database.create()
        database_id = database.id
    connection = sqlite3.connect(path)
    for number, token in enumerate(TOKENS):
        connection.execute(
            "insert into eoslog_outcome (token, decision) values (?, ?)",
            (token, "A" if number % 4 == 3 else "C"),
        )
    for tp in PARTITIONS:
        connection.execute(
            "insert into eoslog_offsets (consumer, topic, topic_id, partition, next_offset, "
            "leader_epoch, generation) values ('g', 'orders', ?, ?, ?, 0, 1)",
            (TOPIC_ID.hex(), tp.partition, 1000 + tp.partition),
        )
    connection.commit()
    connection.close()
    yield path.read_bytes(), database_id


def outcome(token: str) -> Callable[[Database, str], Any]:
    return lambda database, database_id: database.resolve(prepared(token, database_id))


def commit(token: str) -> Callable[[Database, str], Any]:
    """Whether a worker can commit now."""

    def insert(database: Database, database_id: str) -> bool:
        with database._session() as session:
            session.begin()
            return insert_commit(session, database._tables, database_id, token)

    return insert


def first_offset(database: Database, _: str) -> str:
    """What a consumer gets that stores an offset where there is one."""
    tp = TopicPartition("orders", 0)
    with database._session() as session:
        session.begin()
        try:
            store_offsets(
                session, database._tables, "g", [OffsetChange(tp, TOPIC_ID, None, 5, 0, 2)]
            )
        except CommitFailed:
            return "refused"
        return "stored"


def offsets(database: Database, _: str) -> Any:
    with database._session() as session:
        return read_offsets(session, database._tables, "g", PARTITIONS)


def joined(database: Database, _: str) -> Any:
    with database._session() as session:
        rows = committed_rows(session, database._tables, LOG_ID, 1000)
    return {row.token for row in rows}


def inserted(database: Database, database_id: str) -> Any:
    """Whether a worker may commit for which there is a tombstone."""
    with database._session() as session:
        session.begin()
        return insert_commit(session, database._tables, database_id, ABORTED)


def listed(database: Database, _: str) -> Any:
    with database._session() as session:
        rows = all_outcomes(session, database._tables)
        applied = all_offsets(session, database._tables)
    return {row.token: row.commit for row in rows}, [row.next_offset for row in applied]


QUESTIONS: dict[str, tuple[Callable[[Database, str], Any], Any]] = {
    "committed": (outcome(COMMITTED), Outcome.COMMIT),
    "aborted": (outcome(ABORTED), Outcome.ABORT),
    "unknown": (outcome(UNKNOWN), Outcome.ABORT),
    "commit of an aborted one": (commit(ABORTED), False),
    "commit of a new one": (commit(UNKNOWN), True),
    "first offset": (first_offset, "refused"),
    "offsets": (offsets, {tp: 1000 + tp.partition for tp in PARTITIONS}),
    "late worker": (inserted, False),
    "join": (joined, {token for n, token in enumerate(TOKENS) if n % 4 != 3}),
    "audit": (
        listed,
        ({token: n % 4 != 3 for n, token in enumerate(TOKENS)}, [1000, 1001, 1002]),
    ),
}


def answers(path: Path, data: bytes, database_id: str) -> Iterator[tuple[str, Any]]:
    """What a database with these bytes answers to each question."""
    for name, (ask, right) in QUESTIONS.items():
        for suffix in ("-journal", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        path.write_bytes(data)
        try:
            with Database(path) as database:
                found = ask(database, database_id)
        except EoslogError as error:
            assert str(error)
            yield name, "an error"
            continue
        if found is Outcome.UNKNOWN:
            yield name, "no answer"
        else:
            assert found == right, f"{name}: {found}"
            yield name, "the right answer"


def flips(data: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    used = [at for at, byte in enumerate(data) if byte]
    for at in sorted(rng.sample(used, FLIPS)):
        bit = rng.randrange(8)
        yield f"bit {bit} of byte {at}", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def decisions(data: bytes, _: random.Random) -> Iterator[tuple[str, bytes]]:
    """Each copy of a decision, of a token and of the schema, changed alone."""
    for old, new in (
        (b"token TEXT", b"token DEXT"),
        (b"topic_id TEXT", b"topic_id DEXT"),
        (b"IN ('C',", b"IN ('A',"),
    ):
        assert data.count(old) == 1
        yield f"{old!r} as {new!r}", data.replace(old, new)
    for token in (COMMITTED, ABORTED):
        at = data.find(token.encode())
        assert at >= 0
        while at >= 0:
            end = at + len(token)
            letter = data[end : end + 1]
            other = {b"C": b"A", b"A": b"C"}.get(letter)
            if other:
                yield f"the decision at byte {end}", data[:end] + other + data[end + 1 :]
            yield f"the token at byte {at}", data[:at] + b"W" + data[at + 1 :]
            yield f"another token at byte {at}", data[:at] + TOKENS[4].encode() + data[end:]
            at = data.find(token.encode(), end)


def pages(data: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    count = len(data) // PAGE
    for number in range(count):
        begin, end = number * PAGE, (number + 1) * PAGE
        other = rng.randrange(count) * PAGE
        yield f"page {number} zeroed", data[:begin] + bytes(PAGE) + data[end:]
        yield f"page {number} torn", data[: begin + 2048] + bytes(2048) + data[end:]
        yield f"page {number} lost", data[:begin] + data[other : other + PAGE] + data[end:]
        if begin:  # an empty file is a new database
            yield f"the end from page {number} on cut", data[:begin]


@pytest.mark.parametrize("damages", [decisions, flips, pages])
def test_field_A_a_damaged_sqlite_file_never_leads_to_a_wrong_answer(tmp_path, whole, damages):
    data, database_id = whole
    assert [found for _, found in answers(tmp_path / "base", data, database_id)] == [
        "the right answer"
    ] * len(QUESTIONS)
    seen: Counter[str] = Counter()
    for what, damaged in damages(data, random.Random(1)):
        try:
            for _, found in answers(tmp_path / "base", damaged, database_id):
                seen[found] += 1
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    assert seen["an error"] and seen["the right answer"]


def test_a_decision_and_an_offset_read_no_more_of_a_large_sqlite_table(tmp_path: Path, whole):
    data, database_id = whole
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(tmp_path / "large")
        connection.set_progress_handler(step, 100)
        return connection

    (tmp_path / "large").write_bytes(data)
    seen = []
    for more in (0, 20_000):
        with sqlite3.connect(tmp_path / "large") as connection:
            connection.executemany(
                "insert into eoslog_outcome (token, decision) values (?, 'A')",
                ((f"{number}:1:0:0",) for number in range(more)),
            )
            connection.executemany(
                "insert into eoslog_offsets (consumer, topic, topic_id, partition, next_offset, "
                "leader_epoch, generation) values ('h', 'orders', '00', ?, 0, 0, 1)",
                ((number,) for number in range(more)),
            )
        connection.close()
        with Database(connect) as database:
            assert database.id == database_id
            steps = 0
            assert outcome(COMMITTED)(database, database_id) is Outcome.COMMIT
            assert offsets(database, database_id)[TopicPartition("orders", 1)] == 1001
        seen.append(steps)
    assert max(seen) <= min(seen) + 5
