"""The form of a history, and its reading.

A history is JSON lines, one file a process, in the order in which that process did things:

    f         type              fields
    txn       invoke            txn, inst (transactional id), session, epoch, mode (or "staged")
    send      invoke            id, txn or null, session, acks, sends [["t-0", value], ...]
    send      ok, fail, info    id, sends [["t-0", value, offset], ...]
    end       invoke            txn, commit (bool), consumed [[group, "t-0", first, next], ...]
    end       ok, fail, info    txn, commit
    prepare   invoke, ok        txn: prepared, so that any process may decide it
    decide    invoke, ok        txn, commit: what a process asks for, and then what was decided
    outcome   ok                start, txn, outcome: "COMMIT", "ABORT", "UNKNOWN" or null
    fence     ok                start, inst, session: an init_transactions that succeeded
    poll      ok                consumer, isolation, start, txn or null, reads [["t-0", offset, v]]
    move      ok                consumer: a seek, assign or revoke, order starts again
    scan      ok                start, isolation, from {"t-0": offset}, to {"t-0": offset}, reads
    bounds    ok                start, partition, lso, hw
    snapshot  ok                start, cut {"t-0": offset}
    copy      ok                start, from {"t-0": offset}, reads: everything that a backup holds
    delete    invoke, ok        partition, from, before: records are deleted, after a scan of the
                                same process has read those in [from, before)
    commit, committed, reset    ok; start, group, offsets {"t-0": next}
    drain     ok                partition, log_start, log_end, log [[offset, value], ...]

Each line has `process` and `time` besides (monotonic nanoseconds of one machine, when it happened;
`start` is when the call began). Values are unique strings. An invoke without a completion is
`info`: unknown. `fail` means that it did not happen and never will. The last line of a file may be
torn: its writer was killed.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]


@dataclass
class Write:
    """One value that a client sent."""

    value: str
    partition: str
    process: str
    session: str
    acks: str
    time: int
    txn: Txn | None = None
    outcome: str = "info"
    done: int | None = None
    offset: int | None = None


@dataclass
class Txn:
    """One transaction as its producer saw it."""

    id: str
    inst: str
    session: str
    process: str
    begin: int
    requested: int | None = None
    done: int | None = None
    outcome: str = "fail"
    writes: list[Write] = field(default_factory=list)
    consumed: list[tuple[str, str, int, int]] = field(default_factory=list)
    committing: bool = False
    staged: bool = False
    prepared: int | None = None
    """When its prepare was acknowledged."""
    decides: bool = False
    """Whether a prepare or a decision was begun, so that no fence ends it."""
    decisions: list[tuple[int, bool]] = field(default_factory=list)
    """When a process was told which decision."""
    asked: list[tuple[int, bool]] = field(default_factory=list)


@dataclass
class Read:
    """One value that a client saw, and the event in which it did."""

    partition: str
    offset: int
    value: str
    event: Event

    @property
    def committed(self) -> bool:
        """Whether it was promised that this is committed."""
        return bool(self.event.get("isolation", "read_committed") == "read_committed")


@dataclass
class Drain:
    """What a fresh process found in a partition in the end."""

    partition: str
    log_start: int
    log_end: int
    values: dict[int, str]


class History:
    """Events of all processes, by what they say.

    Attributes:
        txns: by id. writes: by value. reads: of polls, scans and copies, in time's order.
        drains: by partition, the last one. events: all others by `f`, in time's order.
        repeated: values that were sent twice. reused: ids of two transactions or sends.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        """Take events in any order; those of one process must be in its own."""
        self.txns: dict[str, Txn] = {}
        self.writes: dict[str, Write] = {}
        self.repeated: list[str] = []
        self.reused: list[str] = []
        self.reads: list[Read] = []
        self.drains: dict[str, Drain] = {}
        self.events: dict[str, list[Event]] = defaultdict(list)
        self.count = 0
        self._sends: dict[str, list[Write]] = {}
        for event in sorted(events, key=lambda e: int(e["time"])):
            self.count += 1
            take = getattr(self, f"_{event['f']}", None)
            if take is not None:
                take(event)
            self.events[event["f"]].append(event)
        for txn in self.txns.values():
            for write in txn.writes:
                write.outcome, write.done = txn.outcome, txn.done

    def _txn(self, event: Event) -> None:
        if event["txn"] in self.txns:
            self.reused.append(event["txn"])
        self.txns[event["txn"]] = Txn(
            event["txn"], event["inst"], event["session"], event["process"], event["time"],
            staged=event.get("mode") == "staged",
        )  # fmt: skip

    def _send(self, event: Event) -> None:
        if event["type"] == "invoke":
            txn = self.txns[event["txn"]] if event.get("txn") else None
            made = [
                Write(
                    value, partition, event["process"], event["session"],
                    str(event.get("acks", "all")), event["time"], txn,
                )
                for partition, value in event["sends"]
            ]  # fmt: skip
            if event["id"] in self._sends:
                self.reused.append(event["id"])
            self._sends[event["id"]] = made
            for write in made:
                if write.value in self.writes:
                    self.repeated.append(write.value)
                self.writes[write.value] = write
            if txn is not None:
                txn.writes += made
            return
        known = {(w.partition, w.value): w for w in self._sends.get(event["id"], ())}
        for write in known.values():
            write.outcome, write.done = event["type"], event["time"]
        for partition, value, offset in event.get("sends", ()):
            known[partition, value].offset = offset

    def _end(self, event: Event) -> None:
        txn = self.txns[event["txn"]]
        if event["type"] == "invoke":
            if event["commit"]:
                txn.requested, txn.committing, txn.outcome = event["time"], True, "info"
                txn.consumed = [(g, p, int(a), int(b)) for g, p, a, b in event.get("consumed", ())]
        elif event["commit"]:
            txn.outcome, txn.done = event["type"], event["time"]
        elif event["type"] == "ok" and txn.outcome != "ok":
            txn.outcome, txn.done = "fail", event["time"]

    def _prepare(self, event: Event) -> None:
        txn = self.txns[event["txn"]]
        txn.decides = True
        if event["type"] == "ok":
            txn.prepared = event["time"]

    def _decide(self, event: Event) -> None:
        txn, commit = self.txns[event["txn"]], bool(event["commit"])
        txn.decides = True
        if event["type"] == "invoke":
            txn.asked.append((event["time"], commit))
            if commit and txn.requested is None:
                txn.requested = event["time"]
                txn.outcome = "info" if txn.done is None else txn.outcome
        else:
            txn.decisions.append((event["time"], commit))
            if txn.done is None:
                txn.outcome, txn.done = ("ok" if commit else "fail"), event["time"]

    def _outcome(self, event: Event) -> None:
        if event["outcome"] in ("COMMIT", "ABORT"):
            commit = event["outcome"] == "COMMIT"
            self.txns[event["txn"]].decisions.append((event["time"], commit))

    def _poll(self, event: Event) -> None:
        self.reads += [Read(p, int(o), value, event) for p, o, value in event["reads"]]

    _scan = _copy = _poll

    def _drain(self, event: Event) -> None:
        values = {int(offset): value for offset, value in event["log"]}
        self.drains[event["partition"]] = Drain(
            event["partition"], event["log_start"], event["log_end"], values
        )


def read_history(paths: Iterable[str]) -> History:
    """Read files of JSON lines, or all `*.jsonl` of directories.

    Raises:
        FileNotFoundError: if one is missing.
        ValueError: if a line other than the last is not an event; the error names file and line.
    """
    events: list[Event] = []
    for path in paths:
        files = [path]
        if os.path.isdir(path):
            files = sorted(os.path.join(path, n) for n in os.listdir(path) if n.endswith(".jsonl"))
        for file in files:
            with open(file, encoding="utf-8") as handle:
                lines = handle.read().splitlines()
            for number, line in enumerate(lines, 1):
                try:
                    event = json.loads(line)
                    _ = event["f"], event["type"], event["process"], event["time"]
                except (ValueError, KeyError, TypeError) as error:
                    if number == len(lines) and isinstance(error, ValueError):
                        break
                    raise ValueError(f"{file}:{number}: not an event: {error!r}") from error
                events.append(event)
    return History(events)
