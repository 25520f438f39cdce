"""Histories of an imaginary, correct log with random transactions and kills.

They also have fences, readers and groups. The log is a dictionary and knows nothing of eoslog.
Time is a counter. Every history is valid by construction; `test_checker.py` plants one anomaly
at a time into it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

Event = dict[str, Any]
PARTITIONS = ["t-0", "t-1", "t-2"]


class World:
    """The log, its clients and the events they write."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.events: list[Event] = []
        self.now = self.numbers = 0
        self.logs: dict[str, list[tuple[str, str | None]]] = {p: [] for p in ["in-0", *PARTITIONS]}
        self.state: dict[str, str] = {}  # of a transaction: open, committed, aborted
        self.sessions: dict[str, tuple[str, str]] = {}
        self.position = self.consumed = 0
        self.consumers: dict[str, dict[str, int]] = {}
        self.active: dict[str, Iterator[None]] = {}
        self.undecided: list[str] = []

    def write(self, f: str, type_: str = "ok", process: str = "p", **fields: Any) -> int:
        self.now += self.rng.randint(1, 5)
        self.events.append({"f": f, "type": type_, "process": process, "time": self.now} | fields)
        return self.now

    def tick(self) -> int:
        self.now += 1
        return self.now

    def name(self, kind: str) -> str:
        self.numbers += 1
        return f"{kind}{self.numbers}"

    def lso(self, partition: str) -> int:
        for offset, (_, txn) in enumerate(self.logs[partition]):
            if txn is not None and self.state[txn] == "open":
                return offset
        return len(self.logs[partition])

    def visible(self, partition: str, start: int, end: int) -> list[tuple[int, str]]:
        rows = enumerate(self.logs[partition][start:end], start)
        return [
            (o, value)
            for o, (value, txn) in rows
            if value and (txn is None or self.state[txn] == "committed")
        ]

    # --- steps ----------------------------------------------------------------------------------

    def instance(self, inst: str) -> tuple[str, str]:
        """A new life of a transactional id: (session, process)."""
        session = self.name("s")
        self.sessions[inst] = session, f"proc-{session}"
        self.write("fence", process=f"proc-{session}", inst=inst, session=session)
        return self.sessions[inst]

    def plain(self) -> None:
        partition = self.rng.choice([*PARTITIONS, "in-0", "in-0"])
        value, name = self.name("v"), self.name("i")
        fields = {"id": name, "session": "plain", "process": "proc-plain"}
        self.write("send", "invoke", txn=None, acks="all", sends=[[partition, value]], **fields)
        ended = self.rng.random()
        if ended < 0.1:
            return self._lost(fields)
        self.logs[partition].append((value, None))
        if ended < 0.2:
            return self._lost(fields)
        self.write("send", sends=[[partition, value, len(self.logs[partition]) - 1]], **fields)

    def _lost(self, fields: dict[str, Any]) -> None:
        self.write("send", "info", **fields)

    def transaction(self, inst: str, consume: bool = False) -> Iterator[None]:
        """One transaction; other transactions continue at each yield."""
        session, process = self.sessions.get(inst) or self.instance(inst)
        txn = self.name("x")
        self.state[txn] = "open"
        self.write("txn", "invoke", process, txn=txn, inst=inst, session=session, epoch=1)
        spans, rows = [], []
        if consume:
            end = self.lso("in-0")
            rows = self.visible("in-0", self.position, end)[:4]
            if rows:
                reads = [["in-0", o, v] for o, v in rows]
                self.write("poll", process=process, consumer=f"c-{session}", isolation="read_committed",
                           start=self.tick(), txn=txn, reads=reads)  # fmt: skip
                spans = [["g", "in-0", rows[0][0], rows[-1][0] + 1]]
        for partition in self.rng.sample(PARTITIONS, 2):
            sends = [[partition, self.name("v")] for _ in range(self.rng.randint(1, 3))]
            self.write(
                "send", "invoke", process, id=self.name("i"), txn=txn, session=session, sends=sends
            )
            self.logs[partition] += [(value, txn) for _, value in sends]
            yield
        self.end(inst, txn, process, spans)

    def end(self, inst: str, txn: str, process: str, spans: list[Any]) -> None:
        how = self.rng.random()
        if how < 0.15:  # abort
            self.write("end", "invoke", process, txn=txn, commit=False)
            self.state[txn] = "aborted"
            self.write("end", "ok", process, txn=txn, commit=False)
        elif how < 0.25:  # killed before it asked; the next instance aborts
            self.state[txn] = "aborted"
            self.instance(inst)
        else:
            self.write("end", "invoke", process, txn=txn, commit=True, consumed=spans)
            committed = how < 0.9
            self.state[txn] = "committed" if committed else "aborted"
            if committed and spans:
                self.position = self.consumed = spans[0][3]
            if how < 0.8:
                self.write("end", "ok", process, txn=txn, commit=True)
            else:  # unknown, or refused
                refused = not committed and how > 0.95
                self.write("end", "fail" if refused else "info", process, txn=txn, commit=True)
                self.instance(inst)
        if spans and self.state[txn] == "aborted":  # it begins again where the group stands
            self.write("move", process=process, consumer=f"c-{process.removeprefix('proc-')}")
        for row in self.logs.values():
            if any(t == txn for _, t in row):
                row.append(("", None))  # the marker's offset

    def prepare(self) -> None:
        """A prepared transaction, which any process decides."""
        session, process = self.sessions.get("h") or self.instance("h")
        txn = self.name("x")
        self.state[txn] = "open"
        self.write("txn", "invoke", process, txn=txn, inst="h", session=session, epoch=1)
        for partition in self.rng.sample(PARTITIONS, 2):
            sends = [[partition, self.name("v")]]
            self.write(
                "send", "invoke", process, id=self.name("i"), txn=txn, session=session, sends=sends
            )
            self.logs[partition] += [(value, txn) for _, value in sends]
        self.write("prepare", "invoke", process, txn=txn)
        self.write("prepare", "ok", process, txn=txn)
        self.undecided.append(txn)
        if self.rng.random() < 0.3:
            self.instance("h")

    def decide(self) -> None:
        """A decision, perhaps asked for twice and both ways."""
        txn = self.undecided.pop()
        self.write("outcome", process="d", start=self.tick(), txn=txn, outcome="UNKNOWN")
        commit = self.rng.random() < 0.6
        asked = [commit, not commit][: self.rng.randint(1, 2)]
        for wanted in asked:
            self.write("decide", "invoke", "d", txn=txn, commit=wanted)
            self.state[txn] = "committed" if commit else "aborted"
            self.write("decide", "ok", "d", txn=txn, commit=commit)
        word = "COMMIT" if commit else "ABORT"
        self.write("outcome", process="d", start=self.tick(), txn=txn, outcome=word)
        for row in self.logs.values():
            if any(t == txn for _, t in row):
                row.append(("", None))

    def read(self) -> None:
        consumer = self.rng.choice(["r1", "r2"])
        at = self.consumers.setdefault(consumer, {})
        if self.rng.random() < 0.1:
            at.clear()
            self.write("move", consumer=consumer)
        start, reads = self.tick(), []
        for partition in PARTITIONS:
            end = self.lso(partition)
            found = self.visible(partition, at.get(partition, 0), end)[:5]
            reads += [[partition, o, v] for o, v in found]
            if found:
                at[partition] = found[-1][0] + 1
        self.write("poll", process=f"proc-{consumer}", consumer=consumer, isolation="read_committed",
                   start=start, txn=None, reads=reads)  # fmt: skip

    def look(self) -> None:
        partition = self.rng.choice(PARTITIONS)
        start = self.tick()
        ends = {p: self.lso(p) for p in PARTITIONS}
        reads = [[p, o, v] for p, e in ends.items() for o, v in self.visible(p, 0, e)]
        self.write("scan", process="looker", start=start, isolation="read_committed",
                   **{"from": dict.fromkeys(ends, 0)}, to=ends, reads=reads)  # fmt: skip
        hw = len(self.logs[partition])
        self.write(
            "bounds",
            process="looker",
            start=self.tick(),
            partition=partition,
            lso=ends[partition],
            hw=hw,
        )
        if "open" not in self.state.values():
            self.write("snapshot", process="looker", start=self.tick(), cut=ends)
        self.write(
            "committed",
            process="looker",
            start=self.tick(),
            group="g",
            offsets={"in-0": self.consumed},
        )

    def step(self, inst: str) -> None:
        """The next step of an id's transaction, or the first one of its next."""
        going = self.active.get(inst)
        if going is None:
            going = self.active[inst] = self.transaction(inst, consume=inst == "c")
        if next(going, self) is self:
            del self.active[inst]

    def finish(self) -> list[Event]:
        for inst in list(self.active):
            while inst in self.active:
                self.step(inst)
        while self.undecided:
            self.decide()
        self.look()
        for partition, log in self.logs.items():
            rows = [list(row) for row in self.visible(partition, 0, len(log))]
            self.write(
                "drain",
                process="last",
                partition=partition,
                log_start=0,
                log_end=len(log),
                log=rows,
            )
        self.write(
            "committed",
            process="last",
            start=self.tick(),
            group="g",
            offsets={"in-0": self.consumed},
        )
        return self.events


def valid_history(seed: int, steps: int = 400) -> list[Event]:
    """A history in which nothing is wrong."""
    world = World(seed)
    for number in range(steps):
        how = world.rng.random() if number > 3 else 0.0
        if how < 0.15:
            world.plain()
        elif how < 0.82:
            world.step(world.rng.choice("abc"))
        elif how < 0.85:
            world.decide() if world.undecided else world.prepare()
        elif how < 0.95:
            world.read()
        else:
            world.look()
    return world.finish()
