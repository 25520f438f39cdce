"""Judge `Log.atomic`: the rows of the database are the records of the log.

An order is in both completely and once, or in neither. An acknowledged one is in both, and one that
was rolled back in neither. Each input is moved once, and the offsets, in the log or in the database,
are those after the last one that was moved.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import eoslog
from eoslog import Outcome, TopicPartition
from eoslog.errors import EoslogError
from eoslog.sql import Database
from tests.faults.harness import Child, live
from tests.sql.databases import Place
from tests.torture.oracles.halves import read_journals
from tests.torture.workloads.halves import Journal
from tests.torture.workloads.orders import (
    GROUPS,
    IDS,
    INPUTS,
    PARTITIONS,
    Seller,
    resolve_all,
)

PATIENCE_S = 60


def verify(path: Path, place: Place, folder: Path) -> tuple[list[str], dict[str, int]]:
    """Look in a process of its own; return the violations, and counts."""
    life = live(_judge, path, place, folder)
    if life.error is not None or life.status:
        return [f"the verdict failed: {life.error or life.status}"], {}
    return [str(text) for text in life.of("violation")], life.of("counts")[0]


def check(path: Path, place: Place, folder: Path, settle: str) -> list[str]:
    """Compare the two between processes, and let one of them decide what is prepared.

    Args:
        path: the log.
        place: the database.
        folder: the journals.
        settle: "ask" asks the database, "enter" begins a transaction of each id, "" decides
            nothing.
    """
    life = live(_check, path, place, folder, settle)
    if life.error is not None or life.status:
        return [f"the comparison failed: {life.error or life.status}"]
    return [str(text) for text in life.of("violation")]


def _check(child: Child, path: Path, place: Place, folder: Path, settle: str) -> None:
    with eoslog.open(path) as log, Database(place.connect) as database:
        judge = Judge(log, database, place, read_journals(folder))
        judge.between(settle)
        for text in judge.violations:
            child.tell("violation", text)


def _judge(child: Child, path: Path, place: Place, folder: Path) -> None:
    lines = read_journals(folder)
    with eoslog.open(path) as log, Database(place.connect) as database:
        judge = Judge(log, database, place, lines)
        judge.run(child, folder)
        for text in judge.violations:
            child.tell("violation", text)
        child.tell("counts", dict(judge.counts))


class Judge:
    """Compares the database with the log, and both with the answers of the processes."""

    def __init__(
        self, log: eoslog.Log, database: Database, place: Place, lines: list[dict[str, Any]]
    ) -> None:
        """Keep all of them."""
        self.log, self.database, self.place, self.lines = log, database, place, lines
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()

    def run(self, child: Child, folder: Path) -> None:
        """Judge, decide what is undecided, finish the work, and judge again."""
        self._phantoms()
        self.counts["prepared at the end"] += len(self.log.pending())
        self._undecided()
        if not self._settle():
            return
        self._compare(False)
        self._finish(child, folder)
        if not self._settle():
            return
        rows, _ = self._compare(False)
        self._answers(rows)
        self._moved()
        if not (report := self.log.check(full=True)).ok:
            self.violations.append(f"check: {report}")

    def between(self, settle: str) -> None:
        """Judge without an end of the work."""
        self._phantoms()
        rows = self._undecided()
        if not settle:
            return
        if settle == "ask":
            self._settle()
        else:
            self._enter()
        if not self.violations:
            rows, _ = self._compare(False)
            self._answers(rows)
            self._moved_yet()

    def _phantoms(self) -> None:
        for line in self.lines:
            if line["what"] == "phantom":
                self.violations.append(f"a record was shown without its row: {line['values']}")

    def _undecided(self) -> Counter[str]:
        """Judge rows against records, and against what is prepared; return the rows."""
        pending = self.log.pending()
        rows, _ = self._compare(bool(pending))
        moved = {
            f"{GROUPS[kind]}-{part}-{number}"
            for kind, part, number in self.place.rows("select kind, part, number from moved")
        }
        decided = dict(self.place.rows("select token, decision from eoslog_outcome"))
        for prepared in pending:
            expected = decided.get(prepared.token) == "C"
            for record in prepared.records:
                value = record.value.decode()
                if record.topic == "orders":
                    found = value in rows
                elif record.topic in GROUPS.values():
                    found = f"{record.topic}-{record.partition}-{value}" in moved
                else:
                    continue
                # An offset in the database does not wait for a decision: another transaction may
                # have moved the input.
                if record.topic == GROUPS["database"] and found:
                    continue
                if found != expected:
                    self.violations.append(
                        f"{prepared.token}: {decided.get(prepared.token)} in the database, and the "
                        f"row of {record.topic} {value} is {'' if found else 'not '}there"
                    )
        return rows

    def _enter(self) -> None:
        """Begin a transaction of each id, which decides what the id has left."""
        for name in IDS:
            with self.log.producer(transactional_id=name) as producer:
                with self.log.atomic(producer, self.database) as tx:
                    tx.abort()
        if left := self.log.pending():
            self.violations.append(f"still pending after a transaction of each id: {left}")

    def _settle(self) -> bool:
        """Decide all that is prepared; the processes that prepared it are gone."""
        deadline = time.monotonic() + PATIENCE_S
        while resolve_all(self.log, self.database) and time.monotonic() < deadline:
            time.sleep(0.05)
        if left := self.log.pending():
            self.violations.append(f"still pending after {PATIENCE_S} s: {left}")
        return not left

    def _compare(self, undecided: bool) -> tuple[Counter[str], Counter[str]]:
        """Judge rows against visible records; the log may lack undecided ones."""
        shown = Counter(record.value.decode() for record in self.log.read("orders"))
        rows = Counter(f"{label}/{part}" for label, part in self.place.rows("select * from placed"))
        if extra := shown - rows:
            self.violations.append(f"records without rows: {sorted(extra.elements())[:20]}")
        if (missing := rows - shown) and not undecided:
            self.violations.append(f"rows without records: {sorted(missing.elements())[:20]}")
        for what, found in (("rows", rows), ("records", shown)):
            if twice := [value for value, count in found.items() if count > 1]:
                self.violations.append(f"{what} that are there twice: {twice[:20]}")
        return rows, shown

    def _answers(self, rows: Counter[str]) -> None:
        """Judge each order against its answer; the log is equal to the rows already."""
        answers = {line["label"]: line["commit"] for line in self.lines if line["what"] == "ended"}
        for line in self.lines:
            if line["what"] != "planned":
                continue
            label = line["label"]
            found = [part for part in range(line["parts"]) if rows[f"{label}/{part}"]]
            if found and len(found) < line["parts"]:
                self.violations.append(f"{label}: only its parts {found} of {line['parts']}")
            if label in answers and answers[label] != bool(found):
                self.violations.append(f"{label}: answered {answers[label]}, its parts are {found}")
            self.counts["orders placed" if found else "orders not placed"] += 1
        for token, decision in self.place.rows("select token, decision from eoslog_outcome"):
            expected = Outcome.COMMIT if decision == "C" else Outcome.ABORT
            if (outcome := self.log.outcome(token)) is not expected:
                self.violations.append(f"{token}: {decision} in the database, {outcome} in the log")

    def _finish(self, child: Child, folder: Path) -> None:
        """Move the inputs that are left, as any process would."""
        seller = Seller(
            self.log, self.database, self.place, Journal(folder, "finish"), random.Random(1),
            "finish", child,
        )  # fmt: skip
        deadline = time.monotonic() + PATIENCE_S
        for kind in GROUPS:
            sql = f"select count(*) from moved where kind = '{kind}'"
            while self.place.rows(sql)[0][0] < INPUTS and time.monotonic() < deadline:
                try:
                    seller.move(kind, 20)
                except EoslogError as error:
                    child.tell("refused", type(error).__name__, str(error))
        for consumer in seller.consumers.values():
            consumer.close()

    def _moved(self) -> None:
        """Judge the inputs: all are moved."""
        each = INPUTS // PARTITIONS
        for what, number, count in self._moved_yet():
            self.counts["inputs moved"] += count
            if count != each:
                self.violations.append(f"{what} {number}: {count} inputs are moved, not {each}")

    def _moved_yet(self) -> list[tuple[str, int, int]]:
        """Judge the inputs: each moved once in order, and the offsets; return how many."""
        rows = self.place.rows("select kind, part, number from moved")
        tps = {TopicPartition("in", n): self.log.topic_id("in") for n in range(PARTITIONS)}
        in_database = self.database.committed_offsets("database", tps)
        in_log = self.log.committed("log")
        moved = []
        for kind, topic in GROUPS.items():
            for tp in tps:
                number = tp.partition
                records = self.log.read(topic, partitions=[number])
                found = [int(record.value) for record in records]
                mine = sorted(n for what, part, n in rows if (what, part) == (kind, number))
                if not found == mine == list(range(len(found))):
                    self.violations.append(f"{kind} {number}: records {found}, rows {mine}")
                stored = (in_database if kind == "database" else in_log).get(tp)
                if (getattr(stored, "offset", stored) or 0) != len(found):
                    self.violations.append(f"{kind} {number}: the stored offset is {stored}")
                moved.append((kind, number, len(found)))
        return moved
