"""Judge `eoslog.tpc`: each move is in all databases and the log, or nowhere."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import eoslog
from tests.faults.harness import Child, live
from tests.torture.oracles.halves import read_journals
from tests.torture.workloads.moves_of_money import Places, recover_all

PATIENCE_S = 60


def verify(path: Path, places: Places, folder: Path) -> tuple[list[str], dict[str, int]]:
    """Look in a process of its own; return the violations, and counts."""
    life = live(_judge, path, places, folder)
    if life.error is not None or life.status:
        return [f"the verdict failed: {life.error or life.status}"], {}
    return [str(text) for text in life.of("violation")], life.of("counts")[0]


def _judge(child: Child, path: Path, places: Places, folder: Path) -> None:
    counts: Counter[str] = Counter()
    with eoslog.open(path) as log:
        counts["prepared at the end"] = len(log.pending())
        deadline = time.monotonic() + PATIENCE_S
        while not recover_all(log, places, 0.0) and time.monotonic() < deadline:
            time.sleep(0.05)
        for text in (*_left(log, places), *_moves(log, places, folder, counts)):
            child.tell("violation", text)
        if not (report := log.check(full=True)).ok:
            child.tell("violation", f"check: {report}")
    child.tell("counts", dict(counts))


def _left(log: eoslog.Log, places: Places) -> list[str]:
    """What a complete recovery must not leave."""
    found = [f"still pending: {one}" for one in log.pending()]
    for place in places:
        sql = "select gid from pg_prepared_xacts where database = current_database()"
        found += [f"still prepared in a database: {gid}" for (gid,) in place.rows(sql)]
    with eoslog.tpc.Coordinator(log) as coordinator:
        found += [f"still recorded: {token}" for token, _ in coordinator._held()]
    return found


def _moves(log: eoslog.Log, places: Places, folder: Path, counts: Counter[str]) -> list[str]:
    lines = read_journals(folder)
    shown = Counter(record.value.decode() for record in log.read("moves"))
    rows = [
        Counter(label for (label,) in place.rows("select label from moved")) for place in places
    ]
    answers = {line["label"]: line["commit"] for line in lines if line["what"] == "ended"}
    violations, planned = [], set()
    for line in lines:
        if line["what"] != "planned":
            continue
        label = line["label"]
        planned.add(label)
        parts = [rows[number][label] for number in line["banks"]]
        parts += [shown[f"{label}/{number}"] for number in range(line["records"])]
        if parts.count(1) not in (0, len(parts)) or max(parts) > 1:
            violations.append(f"{label}: its parts are there {parts} times, banks {line['banks']}")
        if label in answers and answers[label] != bool(max(parts)):
            violations.append(f"{label}: answered {answers[label]}, its parts are {parts}")
        counts["moves made" if max(parts) else "moves not made"] += 1
    found = {label for bank in rows for label in bank} | {v.partition("/")[0] for v in shown}
    if extra := found - planned:
        violations.append(f"moves that were not planned: {sorted(extra)[:20]}")
    return violations
