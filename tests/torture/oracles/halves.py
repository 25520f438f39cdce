"""What must be true of prepared transactions after any fault.

A transaction that was decided to commit is in all of its topics once, with its offsets. One that
was decided to abort, or is undecided, is in none. What was prepared and not decided is pending, and
its records are complete. Answers of `outcome` and `resolve` agree with what is there.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import eoslog
from eoslog import Outcome
from eoslog.errors import ConcurrentTransactions, GroupNotFound, OutcomeConflict
from tests.faults.harness import Child, live
from tests.torture.workloads.halves import NAMES, PLACES

PATIENCE_S = 60
Lines = list[dict[str, Any]]


def read_journals(folder: Path) -> Lines:
    """All lines of all lives; the last one of a killed process may be cut."""
    lines: Lines = []
    for file in sorted(folder.glob("*.jsonl")):
        for text in file.read_text().splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:
                continue
    return lines


def verify(path: Path, folder: Path, *, lossy: bool = False) -> tuple[list[str], dict[str, int]]:
    """Open the directory in a process of its own; return the violations, and counts.

    With `lossy`, power losses may have taken what only `pending` has shown.
    """
    life = live(_judge, path, folder, lossy)
    if life.error is not None:
        return [f"the verdict failed: {life.error}"], {}
    return [str(text) for text in life.of("violation")], (life.of("counts") or [{}])[0]


def _judge(child: Child, path: Path, folder: Path, lossy: bool) -> None:
    with eoslog.open(path) as log:
        judge = Judge(log, read_journals(folder), lossy)
        judge.run()
        for text in judge.violations:
            child.tell("violation", text)
        child.tell("counts", dict(judge.counts))


class Judge:
    """Compares the answers of processes with the log."""

    def __init__(self, log: eoslog.Log, lines: Lines, lossy: bool = False) -> None:
        """Keep both."""
        self.log, self.lines = log, lines
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self.decided: dict[str, bool] = {}  # by this process
        self.by: defaultdict[str, Lines] = defaultdict(list)
        for line in lines:
            self.by[line["what"]].append(line)
        self.plans = {line["label"]: line for line in self.by["planned"]}
        self.tokens = {
            line["label"]: line["token"]
            for what in ("prepared", "listed", "ask")
            for line in self.by[what]
        }
        promised = {line["label"] for what in ("prepared", "told") for line in self.by[what]}
        self.losable = self.tokens.keys() - promised if lossy else set()

    def wrong(self, text: str, label: str) -> None:
        """Note a violation, with all that is known of the transaction."""
        known = [line for line in self.lines if label in (line.get("label"), line.get("token"))]
        self.violations.append(f"{text}: {label}: {json.dumps(known)}")

    def run(self) -> None:
        """Judge what is undecided, then decide it and judge everything."""
        log = self.log
        log._engine.transactions.abort_timed_out()
        pending = {one.meta["order"]: one for one in log.pending()}
        self.tokens |= {label: one.token for label, one in pending.items()}
        self._undecided(pending)
        outcomes = {label: log.outcome(token) for label, token in self.tokens.items()}
        for label in pending:
            if outcomes[label] is not Outcome.UNKNOWN and not self.plans[label]["timed"]:
                self.wrong(f"pending, and the outcome is {outcomes[label]}", label)
        self._answers(outcomes)
        self._decide(pending)
        seen = self._values("read_committed")
        for label, plan in self.plans.items():
            token = self.tokens.get(label)
            outcome = None if token is None else log.outcome(token)
            self._one(label, plan, seen, outcome, label in pending)
            if token is not None and label not in pending and outcome is not outcomes[label]:
                self.wrong(f"first {outcomes[label]}, then {outcome}", label)
        self._published(seen)
        if not log.check().ok:
            self.violations.append(f"check: {log.check()}")

    def _undecided(self, pending: dict[str, Any]) -> None:
        """Judge that no committed read shows what is undecided."""
        seen, uncommitted = self._values("read_committed"), self._values("read_uncommitted")
        aside = {line["label"] for line in self.by["aside"]}
        for label in pending:
            plan = self.plans[label]
            where = self._expected(label, plan)
            self.counts["pending"] += 1
            if plan["timed"]:
                continue  # the clock may decide it now
            if any(seen[one] for one in where):
                self.wrong("an undecided one is shown", label)
            staged = plan["mode"] == "staged" and label not in aside
            if staged and any(uncommitted[one] for one in where):
                self.wrong("an undecided staged one is in its topics", label)

    def _values(self, isolation: str) -> Counter[tuple[str, int, str]]:
        found: Counter[tuple[str, int, str]] = Counter()
        for tp in PLACES:
            table = self.log.scan(tp.topic, partitions=[tp.partition], isolation=isolation)
            values = table.to_table()["value"].to_pylist()
            found.update((tp.topic, tp.partition, value.decode()) for value in values)
        return found

    @staticmethod
    def _expected(label: str, plan: dict[str, Any]) -> list[tuple[str, int, str]]:
        return [
            (topic, number, f"{label}/{at}")
            for topic, number in plan["places"]
            for at in range(plan["records"])
        ]

    def _grouped(self, label: str) -> bool:
        try:
            return bool(self.log.describe_group(f"group-{label}").offsets)
        except GroupNotFound:
            return False

    def _shown(self, label: str, plan: dict[str, Any], seen: Counter[Any]) -> bool | None:
        """Whether its records are visible; None if it is split or duplicated."""
        copies = {seen[where] for where in self._expected(label, plan)}
        if len(copies) > 1 or copies - {0, 1}:
            self.wrong(f"copies {[seen[w] for w in self._expected(label, plan)]}", label)
            return None
        shown = copies == {1}
        if plan["grouped"] and self._grouped(label) != shown:
            self.wrong(f"its records are {shown}, its offsets {not shown}", label)
        if plan["placed"] and (self.log.position(f"position-{label}") is not None) != shown:
            self.wrong(f"its records are {shown}, its position {not shown}", label)
        return shown

    def _published(self, seen: Counter[Any]) -> None:
        """Judge the records with publishing ids: each once, without gaps."""
        for name in NAMES:
            numbers = sorted(
                int(value.rpartition("/")[2]) for _, _, value in seen.elements()
                if value.startswith(f"{name}/")
            )  # fmt: skip
            acknowledged = [line["last"] for line in self.by["published"] if line["name"] == name]
            last = self.log.last_publishing_id(name, PLACES[0].topic, PLACES[0].partition)
            expected = list(range(0 if last is None else last + 1))
            if numbers != expected or max(acknowledged, default=-1) > max(numbers, default=-1):
                self.violations.append(
                    f"{name}: the last id is {last}, acknowledged {acknowledged[-3:]}, the records "
                    f"have {numbers}"
                )
            self.counts["publishing ids"] += len(numbers)

    def _one(
        self, label: str, plan: dict[str, Any], seen: Counter[Any], outcome: Outcome | None,
        pending: bool,
    ) -> None:  # fmt: skip
        shown = self._shown(label, plan, seen)
        if shown is None:
            return
        self.counts["transactions"] += 1
        if plan["end"] != "prepare":
            ended = [line["commit"] for line in self.by["ended"] if line["label"] == label]
            if ended and ended[0] != shown:
                self.wrong(f"ended {ended[0]}, shown {shown}", label)
            if pending:
                self.wrong("pending, though it was never prepared", label)
            return
        asked = {line["commit"] for line in self.by["ask"] if line["label"] == label}
        asked |= {True} if plan["timed"] else set()
        if pending:
            asked = {self.decided[label]}
        told = {line["commit"] for line in self.by["told"] if line["label"] == label}
        if len(told) > 1:
            self.wrong("two decisions", label)
        for commit in told:
            if outcome is not (Outcome.COMMIT if commit else Outcome.ABORT):
                self.wrong(f"told {commit}, the outcome is {outcome}", label)
        if shown != (outcome is Outcome.COMMIT):
            self.wrong(f"shown {shown}, the outcome is {outcome}", label)
        if outcome is None and label in self.losable:
            return
        if label in self.tokens and outcome not in (Outcome.COMMIT, Outcome.ABORT):
            self.wrong(f"prepared, and its outcome is {outcome}", label)
        elif label in self.tokens:
            self.counts[f"decided {outcome.name}"] += 1 if outcome else 0
            if (outcome is Outcome.COMMIT) not in asked:
                self.wrong(f"nothing asked for {outcome}", label)

    def _answers(self, outcomes: dict[str, Outcome | None]) -> None:
        labels = {token: label for label, token in self.tokens.items()}
        told: dict[str, int] = {}
        for line in self.by["told"]:
            told[line["token"]] = min(line["at"], told.get(line["token"], line["at"]))
        for line in self.by["outcome"]:
            token, word = line["token"], line["outcome"]
            label = labels.get(token, token)
            final = outcomes.get(label)
            if word in ("COMMIT", "ABORT") and (final is None or final.name != word):
                self.wrong(f"an answer was {word}, the outcome is {final}", label)
            if word is None and label not in self.losable:
                self.wrong("an answer was that it is unknown", label)
            if word == "UNKNOWN" and told.get(token, line["began"]) < line["began"]:
                self.wrong("an answer was UNKNOWN after its decision", label)

    def _decide(self, pending: dict[str, Any]) -> None:
        """Decide and deliver everything: no prepared transaction is lost."""
        log = self.log
        prepared = log._engine.transactions.prepared
        for label in sorted(pending):
            commit = self.decided[label] = len(self.decided) % 2 == 0
            try:
                for _ in range(2):
                    log.resolve(pending[label].token, Outcome.COMMIT if commit else Outcome.ABORT)
            except OutcomeConflict:
                if not self.plans[label]["timed"]:
                    raise
                self.decided[label] = True  # by the clock
        deadline = time.monotonic() + PATIENCE_S
        while (left := prepared.index.undelivered()) and time.monotonic() < deadline:
            for token, _ in left:
                with contextlib.suppress(ConcurrentTransactions):
                    prepared.deliver(token)
            time.sleep(0.02)
        log._engine.staged.sweep()
        log.clean(roll=True)
        if log.pending() or prepared.index.undelivered():
            self.violations.append(
                f"still pending: {log.pending()}, {prepared.index.undelivered()}"
            )
