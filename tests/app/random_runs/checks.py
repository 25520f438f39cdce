"""What must be true after a random run of an application."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

from tests.app.random_runs.runs import Run, Wrong

LOSSES = frozenset(["leave", "interrupt", "kill"])
"""After these, at_most_once may have lost any record."""


def check(run: Run) -> None:
    """Check the output of a run that has ended.

    Raises:
        Wrong: if a guarantee is broken.
    """
    log = run.log
    inputs = {
        json.loads(record.value): (kind, record.partition, record.offset, record.key)
        for kind in run.kinds
        for record in log.read(kind.topic)
    }
    done = [json.loads(record.value) for record in log.read("out")]
    outputs = Counter(done)
    has_dead = "shop.dead" in log.topics()
    dead = Counter(json.loads(record.value) for record in log.read("shop.dead")) if has_dead else {}
    for number, (kind, partition, offset, _) in inputs.items():
        times = outputs[number] + dead.get(number, 0)
        about = f"record {number} at {kind.topic}-{partition}, offset {offset}: "
        about += f"{outputs[number]} outputs, {dead.get(number, 0)} dead letters"
        if times > 1 and run.guarantee != "at_least_once":
            raise Wrong(f"{about}: repeated")
        given_up = run.failed[number] > len(kind.retries)
        if dead.get(number, 0) and not (given_up and kind.on_error == "dead_letter"):
            raise Wrong(f"{about}: given up early, after {run.failed[number]} failures")
        if not times and not (given_up and kind.on_error == "skip") and not _lost(run, number):
            raise Wrong(f"{about}: lost")
    if "shop.retries" in log.topics():
        states = {record.key: record.value for record in log.read("shop.retries")}
        left = [key for key, value in states.items() if value is not None and b'"record"' in key]
        fenced = run.guarantee == "exactly_once"  # else an earlier owner may let a record wait
        if left and (fenced or not _lost_some(run)):
            raise Wrong(f"the retry topic has {left}")
    lines: dict[Any, list[int]] = defaultdict(list)
    for number in dict.fromkeys(done):
        kind, partition, offset, key = inputs[number]
        if key is not None:
            lines[kind.topic, partition, key].append(offset)
    unfenced = run.guarantee != "exactly_once"  # an earlier owner may continue for a while
    for line, offsets in lines.items():
        if offsets != sorted(offsets) and not (unfenced and _lost_some(run)):
            raise Wrong(f"{line}: not in order: {offsets}")
    if run.table is not None:
        once = run.guarantee == "at_least_once"
        counted = dict.fromkeys(done) if once else done
        _check_table(run, Counter(inputs[n][3] for n in counted if inputs[n][0].counts))


def _lost(run: Run, number: int) -> bool:
    """Whether at_most_once may drop a record."""
    if run.guarantee != "at_most_once":
        return False
    return number in run.excused or _lost_some(run)


def _lost_some(run: Run) -> bool:
    return any(run.happened[cause] for cause in LOSSES)


def _check_table(run: Run, expected: Counter[bytes | None]) -> None:
    table = {key.encode(): value for key, value in run.log.table("counts").items()}
    expected.pop(None, None)
    if run.guarantee == "exactly_once":
        right = table == expected
    elif run.guarantee == "at_most_once":
        right = all(value <= expected[key] for key, value in table.items())
    elif run.workers > 1 or run.excused or _lost_some(run):
        right = True  # without a transaction, an earlier owner may write old values
    else:
        right = all(table.get(key, 0) >= value for key, value in expected.items())
    if not right:
        raise Wrong(f"the table has {table}, not {dict(expected)}")
