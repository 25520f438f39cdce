"""Judge `Log.sink`: the rows are the committed records, each once.

Below the offset that the database has of a partition, each committed record has one row. At or above
it, no record has one.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import eoslog
from eoslog import TopicPartition
from eoslog.sql import Database
from tests.faults.harness import Child, live
from tests.sql.databases import Place
from tests.torture.workloads.applied import GROUP, PARTITIONS, TOPIC, finish

PATIENCE_S = 60


def verify(path: Path, place: Place, *, finished: bool) -> tuple[list[str], dict[str, int]]:
    """Look in a process of its own, with `finished` after all was applied."""
    life = live(_judge, path, place, finished)
    if life.error is not None or life.status:
        return [f"the verdict failed: {life.error or life.status}"], {}
    return [str(text) for text in life.of("violation")], life.of("counts")[0]


def _judge(child: Child, path: Path, place: Place, finished: bool) -> None:
    with eoslog.open(path) as log, Database(place.connect) as database:
        if finished:
            finish(log, database, PATIENCE_S)
        rows, violations = judge(log, database, place, finished=finished)
        for text in violations:
            child.tell("violation", text)
        child.tell("counts", {"rows": rows} if finished else {})


def judge(
    log: eoslog.Log, database: Database, place: Place, *, finished: bool
) -> tuple[int, list[str]]:
    """Compare the rows with the records; return the number of rows, and violations.

    A session of a killed process may still commit, so the offsets are read before and after the
    rows.
    """
    tps = {TopicPartition(TOPIC, n): log.topic_id(TOPIC) for n in range(PARTITIONS)}
    before = database.committed_offsets(GROUP, tps)
    rows = Counter(place.rows("select part, number, value from applied"))
    after = database.committed_offsets(GROUP, tps)
    records = [(r.partition, r.offset, r.value.decode()) for r in log.read(TOPIC)]
    wrong = []
    if twice := [row for row, count in rows.items() if count > 1]:
        wrong.append(f"rows that are there twice: {sorted(twice)[:20]}")
    if extra := rows.keys() - set(records):
        wrong.append(f"rows of no committed record: {sorted(extra)[:20]}")
    for tp in tps:
        low, high = before.get(tp, 0), after.get(tp, 0)
        mine = [record for record in records if record[0] == tp.partition]
        if lost := [record for record in mine if record[1] < low and record not in rows]:
            wrong.append(f"{tp}: no row below the stored offset {low}: {lost[:20]}")
        if early := [record for record in mine if record[1] >= high and record in rows]:
            wrong.append(f"{tp}: rows above the stored offset {high}: {early[:20]}")
        if finished and mine and high <= mine[-1][1]:
            wrong.append(f"{tp}: the stored offset is {high}, the last record {mine[-1]}")
    if finished and not (report := log.check(full=True)).ok:
        wrong.append(f"check: {report}")
    return rows.total(), wrong
