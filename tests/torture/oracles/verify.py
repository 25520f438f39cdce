"""The oracle: rules O1 to O6 of the fault matrix, checked after any fault.

`verify` runs in its own process and opens the directory as a user would. It lets the next
instances of all transactional ids settle what was left, and records the end of the history.
Then it compares three results for every partition: the engine's, those of the naive reference
reader on the files, and those of an engine that has to rebuild everything that is derived.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import eoslog
from eoslog.testing.history import Recorder, check, read_history
from eoslog.testing.history.events import History
from eoslog.testing.history.recorder import str_of, values
from tests.faults.harness import Child, Life, live
from tests.reference import codec
from tests.torture.workloads.mixed import COMPACTED, GROUP, IDS, TOPICS

DERIVED = (".index", ".timeindex", ".txnindex", ".snapshot")


def digest(log: Any) -> dict[str, Any]:
    """Everything that is a fold over the logs."""
    state: dict[str, Any] = {}
    engine = log._engine
    keys = [
        (str_of(tp), tp.topic, tp.partition) for t in log.topics() for tp in log.partitions_of(t)
    ]
    for name, topic, number in keys:
        partition = engine.partition(topic, number)
        ends = log.offsets(topic, number)
        state[name] = {
            "ends": list(ends),
            "open": [list(row) for row in partition.open_transactions()],
            "producers": sorted(
                [p.producer_id, p.producer_epoch, p.last_sequence, p.current_txn_first_offset]
                for p in partition.producers()
            ),
            "aborted": [list(row) for row in partition.aborted(ends.log_start, ends.log_end)],
        }  # fmt: skip
    state["transactions"] = sorted(
        [t.transactional_id, str(t.state), t.producer_id, t.producer_epoch]
        for t in log.transactions(open_only=False)
    )
    state["groups"] = {
        name: {str_of(tp): o.offset for tp, o in sorted(log.describe_group(name).offsets.items())}
        for name in sorted(log.groups())
    }
    return state


def reference_values(folder: Path, log_start: int, *, compacted: bool) -> list[tuple[int, str]]:
    """(offset, value) of committed records, by a reader that knows only the format."""
    batches, offset = [], None
    for file in sorted(folder.glob("*.log")):
        for batch in codec.iter_batches(file.read_bytes()):
            assert batch.valid, f"{file}: batch at {batch.position} has a wrong CRC"
            gap = offset is not None and batch.base_offset - offset
            assert not gap or (gap > 0 and compacted), f"{file}: {offset} is missing"
            offset = batch.last_offset + 1
            batches.append(batch)
    open_from: dict[int, int] = {}
    aborted: dict[int, list[tuple[int, int]]] = {}
    for batch in batches:
        if batch.control:
            first = open_from.pop(batch.producer_id, None)
            if first is not None and batch.control_type == 0:
                aborted.setdefault(batch.producer_id, []).append((first, batch.base_offset))
        elif batch.transactional:
            open_from.setdefault(batch.producer_id, batch.base_offset)
    stable = min(open_from.values(), default=offset or 0)
    return [
        (record.offset, bytes(record.value or b"").decode())
        for batch in batches
        if not batch.control and batch.base_offset < stable
        and not (
            batch.transactional
            and any(a <= batch.base_offset < b for a, b in aborted.get(batch.producer_id, ()))
        )
        for record in batch.records
        if record.offset >= log_start
    ]  # fmt: skip


def producers_of(folder: Path) -> set[int]:
    """The producer ids of all batches that the files of a partition hold."""
    return {
        batch.producer_id
        for file in folder.glob("*.log")
        for batch in codec.iter_batches(file.read_bytes())
    }


def settle(child: Child, path: Path, history: Path, name: str, inits: list[str]) -> None:
    """Open, settle every id, record the end, tell the digest."""
    with eoslog.open(path) as log, Recorder(str(history / f"{name}.jsonl"), name) as recorder:
        _decide(log, recorder)
        known = {t.transactional_id for t in log.transactions(open_only=False)}
        for inst in sorted(known.union(inits)):
            if inst.startswith("__"):  # of a recovery or a delivery, which no process initialises
                continue
            recorder.producer(log, inst).close()
        left = [t for t in log.transactions() if not t.transactional_id.startswith("__")]
        assert not left, f"open after every id was initialised: {left}"
        present = [topic for topic in TOPICS if topic in log.topics()]
        for topic in log.topics():
            for tp in log.partitions_of(topic):
                log._engine.partition(tp.topic, tp.partition).flush()
        recorder.bounds(log, present)
        recorder.snapshot(log, present)
        for topic in present:
            recorder.scan(log, topic)
        if GROUP in log.groups():
            recorder.committed(log, GROUP)
        recorder.drain(log, present)
        for topic in present:
            for tp in log.partitions_of(topic):
                ends = log.offsets(tp.topic, tp.partition)
                assert ends.last_stable == ends.high_watermark == ends.log_end, f"{tp}: {ends}"
                mine = list(values(log, tp, ends.log_start, ends.last_stable))
                other = reference_values(
                    path / str_of(tp), ends.log_start, compacted=topic in COMPACTED
                )
                assert mine == other, f"{str_of(tp)}: engine and reference differ"
        log._engine.transactions.abort_timed_out()  # completes those of recoveries and deliveries
        assert not log.transactions(), f"open after the sweep: {log.transactions()}"
        report = log.check(full=True)
        assert report.ok, f"check: {report.problems}"
        child.tell("digest", digest(log))


def _decide(log: Any, recorder: Recorder) -> None:
    """Decide and deliver what is prepared."""
    for number, one in enumerate(log.pending()):
        recorder.decide(log, one.meta["txn"], one.token, commit=number % 2 == 0)
    prepared = log._engine.transactions.prepared
    for token, _ in prepared.index.undelivered():
        prepared.deliver(token)
    assert not log.pending() and not prepared.index.undelivered()
    for topic in log.topics():
        for tp in log.partitions_of(topic):  # the delivery of a killed process has no markers yet
            partition = log._engine.partition(tp.topic, tp.partition)
            log._engine.transactions.resolve_blockers(partition)


def looked(child: Child, path: Path) -> None:
    """Report the digest of a directory that no other process has open."""
    with eoslog.open(path) as log:
        child.tell("digest", digest(log))


def verify(
    path: Path, history: Path, name: str, *,
    lossy: frozenset[str] = frozenset({"0"}), forgetful: bool = False, crowded: bool = False,
) -> list[str]:  # fmt: skip
    """Every violation in a directory whose processes are dead.

    Args:
        path: the directory. history: where its clients recorded. name: unique in this history.
        lossy: as `eoslog.testing.history.check` takes it.
        forgetful: a clock may have let producers expire, whom the logs alone still know.
        crowded: a marker may have been refused, by the disk or by a log that was being closed, so that
            a transaction whose commit was decided, and acknowledged, was shown later, by whoever could
            write it.
    """
    life = live(settle, path, history, f"{name}.settle", list(IDS))
    compacted = {f"{topic}-{n}" for topic in COMPACTED for n in range(TOPICS[topic])}
    wrong = _endings(life, "after the fault")
    if not wrong:
        digests = [life.of("digest")[0]]
        again = live(looked, path)
        wrong += _endings(again, "opened again")
        rebuilt = path.parent / f"{path.name}-rebuilt"
        shutil.rmtree(rebuilt, ignore_errors=True)
        shutil.copytree(path, rebuilt, ignore=_derived)
        bare = live(looked, rebuilt)
        shutil.rmtree(rebuilt, ignore_errors=True)
        wrong += _endings(bare, "rebuilt from the logs alone")
        for other, what in ((again, "reopened"), (bare, "replayed")):
            for key, value in (other.of("digest") or [{}])[0].items():
                if other is bare and "aborted" in value:
                    known = digests[0].get(key, {}).get("aborted", [])
                    if _all_but_gone(value["aborted"], known, key in compacted or value["ends"][0]):
                        value["aborted"] = known  # of some data the index alone still knows
                if other is bare and "producers" in value and value["ends"][0]:
                    left = producers_of(
                        path / key
                    )  # a producer whose records are all deleted is expired
                    live_rows = digests[0][key]
                    live_rows["producers"] = [r for r in live_rows["producers"] if r[0] in left]
                if forgetful and other is bare and "producers" in value:
                    known = digests[0][key]["producers"]
                    value["producers"] = [row for row in value["producers"] if row in known]
                if value != digests[0].get(key):
                    wrong.append(f"digest of {key}: live {digests[0].get(key)}, {what} {value}")
    events = read_history([str(history)])
    report = check(events, lossy=lossy)
    late = {"stale-read"} if crowded else set()
    wrong += starts_of(events)
    return wrong + [str(anomaly) for anomaly in report.anomalies if anomaly.name not in late]


def _all_but_gone(found: list[list[int]], known: list[list[int]], gone: bool | int) -> bool:
    """Whether the logs alone list the known aborted transactions, or enough of them.

    In a compacted topic any transaction may be missing. Otherwise only those that begin below
    the log start may be missing.
    """
    less = [row for row in known if gone is True or row[1] < gone]
    return [row for row in found if not _within(row, less)] == [r for r in known if r not in less]


def _within(row: list[int], known: list[list[int]]) -> bool:
    """Whether an aborted transaction is known, perhaps without its first records."""
    return any(row[::2] == one[::2] and row[1] >= one[1] for one in known)


def starts_of(history: History) -> list[str]:
    """Log starts that no deletion explains, or that are below one reported earlier."""
    wrong = []
    for partition, drain in history.drains.items():
        told = {"invoke": 0, "ok": 0}
        for event in history.events["delete"]:
            if event["partition"] == partition:
                told[event["type"]] = max(told[event["type"]], event["before"])
        if not told["ok"] <= drain.log_start <= told["invoke"]:
            wrong.append(f"{partition} begins at {drain.log_start}, deleted before {told}")
    return wrong


def _derived(folder: str, names: list[str]) -> set[str]:
    return {
        n for n in names if n.endswith(DERIVED) or n in (".kafka_cleanshutdown", "eoslog.control")
    }


def _endings(life: Life, when: str) -> list[str]:
    if life.error is not None:
        return [f"{when}: {life.error.strip().splitlines()[-1]}\n{life.error}"]
    return [] if life.status == 0 else [f"{when}: status {life.status}"]


def endings_of(life: Life) -> list[str]:
    """Ends that a process under faults may not have.

    It may not end by an untyped error, or by a signal that the harness did not send.
    """
    if life.error is not None:
        return [f"untyped error: {life.error}"]
    if os.WIFSIGNALED(life.status) and not life.killed:
        return [f"died of signal {os.WTERMSIG(life.status)}"]
    return []
