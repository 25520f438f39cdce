"""Judging a history: each check is a function from the facts to anomalies.

Linear in the number of events but for sorting; some hundred thousand events a second. The names are
explained in `anomalies.py`, the events in `events.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from eoslog.testing.history.anomalies import Anomaly, Report
from eoslog.testing.history.events import Drain, Event, History, Txn, Write

Found = Iterator[tuple[str, str]]


class Facts:
    """A history with the indexes that checks need.

    Attributes:
        places: value -> every (partition, offset) at which a client saw it.
        read_to: partition -> the offset up to which everything was read before it was deleted.
        lossy: `acks` whose writes the fault model may lose.
    """

    def __init__(self, history: History, lossy: frozenset[str]) -> None:
        """Index it."""
        self.history, self.lossy = history, lossy
        self.places: dict[str, set[tuple[str, int]]] = defaultdict(set)
        self.contents: dict[tuple[str, int], set[str]] = defaultdict(set)
        self.found: dict[str, tuple[str, int]] = {}
        self.read_to: dict[str, int] = defaultdict(int)
        for event in sorted(history.events["delete"], key=lambda e: int(e["from"])):
            partition, before = event["partition"], int(event["before"])
            if event["from"] <= self.read_to[partition] < before and self._was_read(event):
                self.read_to[partition] = before
        for read in history.reads:
            self._see(read.partition, read.offset, read.value)
        for write in history.writes.values():
            kept = write.txn is not None or write.acks not in lossy
            if kept and write.offset is not None and write.offset >= 0:
                self._see(write.partition, write.offset, write.value)
        for drain in history.drains.values():
            for offset, value in drain.values.items():
                self._see(drain.partition, offset, value)
                self.found[value] = (drain.partition, offset)

    def _was_read(self, deletion: Event) -> bool:
        """Return whether the deleting process had read it before the deletion."""
        partition = deletion["partition"]
        return any(
            scan["process"] == deletion["process"]
            and scan["time"] <= deletion["time"]
            and scan.get("from", {}).get(partition, 0) <= deletion["from"]
            and scan["to"].get(partition, 0) >= deletion["before"]
            for scan in self.history.events["scan"]
        )

    def settled(self, txn: Txn) -> int | None:
        """When it was over for certain: its own end, or the init of a later instance."""
        if txn.done is not None and txn.outcome != "info":
            return txn.done
        if txn.decides:
            return None
        later = (
            int(e["time"])
            for e in self.history.events["fence"]
            if e["inst"] == txn.inst and e["session"] != txn.session and e["time"] > txn.begin
        )
        return min(later, default=None)

    def _see(self, partition: str, offset: int, value: str) -> None:
        self.places[value].add((partition, offset))
        self.contents[partition, offset].add(value)

    def covers(self, write: Write) -> bool:
        """Return whether the drain covers this write: it may be below the log start."""
        drain = self.history.drains.get(write.partition)
        if drain is None:
            return False
        offset = self.first(write)
        if offset is None:  # never seen, so it was not read and then deleted
            return drain.log_start <= self.read_to[write.partition]
        return offset >= drain.log_start

    def first(self, write: Write) -> int | None:
        """Return the first offset of its partition at which a client saw it."""
        offsets = (o for p, o in self.places.get(write.value, ()) if p == write.partition)
        return min(offsets, default=None)

    def effective(self, txn: Txn) -> bool | None:
        """Return whether it was committed, by its end or its writes; None is unknown."""
        if txn.outcome != "info":
            return txn.outcome == "ok"
        judged = [w.value in self.found for w in txn.writes if self.covers(w)]
        return any(judged) if judged else None


def _contents(facts: Facts) -> Found:
    for (partition, offset), values in facts.contents.items():
        if len(values) > 1:
            yield "inconsistent-offset", f"{partition}@{offset} held {sorted(values)}"
    for value, places in facts.places.items():
        if len(places) > 1:
            yield "duplicate", f"{value!r} at {sorted(places)}"
        if value not in facts.history.writes:
            yield "phantom", f"{value!r} at {sorted(places)}, never sent"


def _isolation(facts: Facts) -> Found:
    for read in facts.history.reads:
        write = facts.history.writes.get(read.value)
        if write is None or not read.committed:
            continue
        seen = f"{read.value!r} at {read.partition}@{read.offset} by {read.event['process']}"
        if write.outcome == "fail":
            yield "aborted-read", seen
        elif write.txn is not None:
            asked = write.txn.requested
            if asked is None or read.event["time"] < asked:
                own = read.event["process"] == write.process
                yield "precommitted-read" if own else "dirty-read", seen
    for value, (partition, offset) in facts.found.items():
        write = facts.history.writes.get(value)
        if write is not None and write.outcome == "fail":
            yield "aborted-read", f"{value!r} at {partition}@{offset} in the final log"


def _losses(facts: Facts) -> Found:
    for write in facts.history.writes.values():
        promised = write.txn is not None or write.acks not in facts.lossy
        gone = write.value not in facts.found and facts.covers(write)
        if write.outcome == "ok" and promised and gone:
            yield "lost-write", f"{write.value!r} of {write.process}, {write.partition}"
    for read in facts.history.reads:
        drain = facts.history.drains.get(read.partition)
        if not read.committed or drain is None or read.offset < drain.log_start:
            continue
        if read.value not in facts.found:
            yield "read-then-lost", f"{read.value!r} at {read.partition}@{read.offset}"


def _wholeness(facts: Facts) -> Found:
    for txn in facts.history.txns.values():
        judged = [write for write in txn.writes if facts.covers(write)]
        there = [write for write in judged if write.value in facts.found]
        if txn.outcome != "fail" and there and len(there) < len(judged):
            missing = next(w.value for w in judged if w.value not in facts.found)
            yield "torn-txn", f"{txn.id}: {len(there)} of {len(judged)} values, without {missing!r}"
        for group, partition, _, following in txn.consumed:
            end = _final(facts, group, partition)
            if end is None or not judged:
                continue
            if facts.effective(txn) and end < following:
                yield (
                    "torn-txn",
                    f"{txn.id}: values there, {group} at {partition}@{end} < {following}",
                )
    for cut in facts.history.events["snapshot"]:
        for txn in facts.history.txns.values():
            places = [facts.found[w.value] for w in txn.writes if w.value in facts.found]
            sides = {offset < cut["cut"][p] for p, offset in places if p in cut["cut"]}
            if len(sides) > 1:
                yield "torn-txn", f"{txn.id} is split by the snapshot {cut['cut']}"


def _final(facts: Facts, group: str, partition: str) -> int | None:
    """Return the group's last seen offset; None if it was not read or was reset."""
    if any(e["group"] == group for e in facts.history.events["reset"]):
        return None
    seen = [e["offsets"] for e in facts.history.events["committed"] if e["group"] == group]
    return seen[-1].get(partition) if seen else None


def _order(facts: Facts) -> Found:
    last: dict[tuple[str, str], tuple[int, str]] = {}
    for write in sorted(facts.history.writes.values(), key=lambda w: w.time):
        place = facts.found.get(write.value)
        if place is None:
            continue
        staged = write.txn is not None and write.txn.staged  # it comes at its decision
        sender = write.txn.id if write.txn is not None and staged else write.session
        before = last.get((sender, place[0]))
        if before is not None and place[1] < before[0]:
            yield (
                "nonmonotonic-send",
                f"{place[0]}: {write.value!r} at {place[1]} after {before[1]!r} at {before[0]}",
            )
        last[sender, place[0]] = place[1], write.value


def _polls(facts: Facts) -> Found:
    last: dict[tuple[str, str], int] = {}
    steps = sorted(
        facts.history.events["poll"] + facts.history.events["move"], key=lambda e: int(e["time"])
    )
    offsets = {p: sorted(d.values) for p, d in facts.history.drains.items()}
    for event in steps:
        consumer = event["consumer"]
        if event["f"] == "move":
            last = {key: value for key, value in last.items() if key[0] != consumer}
            continue
        for partition, offset, _ in event["reads"]:
            before = last.get((consumer, partition))
            if before is not None and offset <= before:
                yield "nonmonotonic-poll", f"{consumer}: {partition}@{offset} after {before}"
            elif before is not None:
                yield from _skips(offsets.get(partition, []), partition, before + 1, offset)
            last[consumer, partition] = offset
    for event in facts.history.events["scan"]:
        seen = {(partition, offset) for partition, offset, _ in event["reads"]}
        for partition, end in event["to"].items():
            drain = facts.history.drains.get(partition)
            start = event.get("from", {}).get(partition, 0)
            if drain is None:
                continue
            for offset in drain.values:
                if max(start, drain.log_start) <= offset < end and (partition, offset) not in seen:
                    yield "poll-skip", f"scan of {partition} to {end} without {offset}"


def _skips(offsets: list[int], partition: str, start: int, end: int) -> Found:
    from bisect import bisect_left

    for offset in offsets[bisect_left(offsets, start) : bisect_left(offsets, end)]:
        yield "poll-skip", f"{partition}@{offset} is between {start - 1} and {end}"


def _bounds(facts: Facts) -> Found:
    rows: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
    for event in facts.history.events["bounds"]:
        rows[event["partition"]].append((event["time"], event["start"], event["lso"], event["hw"]))
    for partition, seen in rows.items():
        for position, name in ((2, "last stable offset"), (3, "high watermark")):
            highest, done = -1, sorted(seen)
            at = 0
            for row in sorted(seen, key=lambda r: r[1]):
                while at < len(done) and done[at][0] < row[1]:
                    highest = max(highest, done[at][position])
                    at += 1
                if row[position] < highest:
                    yield "lso-went-back", f"{partition}: {name} {row[position]} after {highest}"
    for read in facts.history.reads:
        # Opening a copy completes the transactions decided at its creation. In the log itself the
        # coordinator may have died before its marker, and no reader was blocked by that since.
        if not read.committed or read.event["f"] == "copy":
            continue
        for _, start, lso, _ in rows.get(read.partition, ()):
            if start > read.event["time"] and lso <= read.offset:
                yield "read-past-lso", f"{read.partition}@{read.offset} was read, then LSO {lso}"
                break


def _zombies(facts: Facts) -> Found:
    fences: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for event in facts.history.events["fence"]:
        row = int(event.get("start") or event["time"]), int(event["time"]), event["session"]
        fences[event["inst"]].append(row)
    for txn in facts.history.txns.values():
        if txn.decides or txn.requested is None or not facts.effective(txn):
            continue
        ready = next((end for _, end, session in fences[txn.inst] if session == txn.session), None)
        if ready is None:
            continue
        # Two inits that overlap may have fenced each other either way.
        if any(ready < start and end < txn.requested for start, end, _ in fences[txn.inst]):
            yield (
                "zombie-commit",
                f"{txn.id} of {txn.session}, fenced before it requested the commit",
            )


def _decisions(facts: Facts) -> Found:
    for event in facts.history.events["outcome"]:
        txn, answer = facts.history.txns[event["txn"]], event["outcome"]
        if answer in ("COMMIT", "ABORT"):
            continue
        known = min((at for at, _ in txn.decisions), default=None)
        known = txn.prepared if answer is None else known
        if known is not None and known < event["start"]:
            yield "undecided-again", f"{txn.id}: the outcome was {answer} after it was known"
    for txn in facts.history.txns.values():
        if len({commit for _, commit in txn.decisions}) > 1:
            yield "two-decisions", f"{txn.id}: {txn.decisions}"
        for at, commit in txn.decisions:
            if not any(commit == wanted and asked < at for asked, wanted in txn.asked):
                yield "unasked-decision", f"{txn.id}: commit={commit}, asked for {txn.asked}"


def _groups(facts: Facts) -> Found:
    taken: dict[tuple[str, str], list[tuple[int, int, str]]] = defaultdict(list)
    unsure = set()
    for txn in facts.history.txns.values():
        for group, partition, first, following in txn.consumed:
            if facts.effective(txn):
                taken[group, partition].append((first, following, txn.id))
            elif facts.effective(txn) is None:
                unsure.add((group, partition))
    for (group, partition), spans in taken.items():
        drain = facts.history.drains.get(partition)
        offsets = sorted(drain.values) if drain is not None else []
        end, by = None, ""
        for first, following, name in sorted(spans):
            if end is not None and first < end:
                yield (
                    "consumed-twice",
                    f"{group}: {partition}@{first} by {by} (to {end}) and {name}",
                )
            elif end is not None and (group, partition) not in unsure:
                yield from _skips(offsets, partition, end, first)
            if end is None or following > end:
                end, by = following, name
    yield from _committed(facts)


def _committed(facts: Facts) -> Found:
    events = [
        event
        for name in ("commit", "committed", "reset")
        for event in facts.history.events[name]
        if event["type"] == "ok"
    ]
    highest: dict[tuple[str, str], int] = {}
    pending = sorted(events, key=lambda e: int(e["time"]))
    at = 0
    for event in sorted(events, key=lambda e: int(e.get("start") or e["time"])):
        while at < len(pending) and pending[at]["time"] < event.get("start", event["time"]):
            done = pending[at]
            for partition, offset in done["offsets"].items():
                key = done["group"], partition
                highest[key] = offset if done["f"] == "reset" else max(highest.get(key, 0), offset)
            at += 1
        if event["f"] == "reset":
            continue
        for partition, offset in event["offsets"].items():
            before = highest.get((event["group"], partition), 0)
            if event["f"] == "committed" and offset < before:
                yield "offset-went-back", f"{event['group']}: {partition}@{offset} after {before}"
            drain: Drain | None = facts.history.drains.get(partition)
            if drain is not None and offset > drain.log_end:
                yield (
                    "consumed-not-produced",
                    f"{event['group']}: {partition}@{offset}, log end {drain.log_end}",
                )


def _staleness(facts: Facts) -> Found:
    """Check only if no transaction was open, because an open one holds the LSO."""
    by_partition: dict[str, list[Write]] = defaultdict(list)
    for write in facts.history.writes.values():
        by_partition[write.partition].append(write)
    settled = {txn.id: facts.settled(txn) for txn in facts.history.txns.values()}
    open_from: dict[str, list[tuple[int, int | None]]] = defaultdict(list)
    for txn in facts.history.txns.values():
        for partition in {w.partition for w in txn.writes}:
            open_from[partition].append((txn.begin, settled[txn.id]))
    for event in facts.history.events["scan"]:
        seen = {(partition, value) for partition, _, value in event["reads"]}
        for partition, end in event["to"].items():
            if event.get("bounded"):
                continue
            writes = by_partition[partition]
            if any(
                begin < event["time"] and (end is None or end > event["start"])
                for begin, end in open_from[partition]
            ):
                continue
            for write in writes:
                place = facts.found.get(write.value)
                done = write.done is not None and write.done < event["start"]
                if write.outcome != "ok" or not done or place is None or write.acks != "all":
                    continue
                asked = place[1] >= event.get("from", {}).get(partition, 0)
                if asked and (partition, write.value) not in seen:
                    what = f"{write.value!r} was acknowledged before a scan of {partition} to {end}"
                    yield "stale-read", what


def _copies(facts: Facts) -> Found:
    """Check that a copy has all earlier acknowledged writes, and no partial ones."""
    for event in facts.history.events["copy"]:
        seen = {(partition, value) for partition, _, value in event["reads"]}
        starts = event.get("from", {})
        deleted = {
            write.value
            for write in facts.history.writes.values()
            for first in [facts.first(write)]
            if first is not None and first < starts.get(write.partition, 0)
        }
        for txn in facts.history.txns.values():
            due = [write for write in txn.writes if write.value not in deleted]
            missing = [write.value for write in due if (write.partition, write.value) not in seen]
            if 0 < len(missing) < len(due):
                yield "torn-txn", f"{txn.id}: a copy has part of it, without {missing[0]!r}"
        for write in facts.history.writes.values():
            acked = write.outcome == "ok" and write.acks == "all"
            asked = write.value in facts.found and write.value not in deleted
            before = write.done is not None and write.done < event["start"]
            if acked and asked and before and (write.partition, write.value) not in seen:
                yield "stale-read", f"{write.value!r} was acknowledged before a copy without it"


def _cycles(facts: Facts) -> Found:
    edges: dict[str, set[str]] = defaultdict(set)
    for read in facts.history.reads:
        write, reader = facts.history.writes.get(read.value), read.event.get("txn")
        if reader and write is not None and write.txn is not None and write.txn.id != reader:
            edges[write.txn.id].add(reader)
    done: set[str] = set()
    for root in list(edges):
        path: list[str] = []
        on_path: set[str] = set()
        stack: list[tuple[str, bool]] = [(root, False)]
        while stack:
            node, leaving = stack.pop()
            if leaving:
                path.pop()
                on_path.discard(node)
                done.add(node)
            elif node in on_path:
                yield "G1c", " -> ".join([*path[path.index(node) :], node])
            elif node not in done:
                path.append(node)
                on_path.add(node)
                stack.append((node, True))
                stack += [(following, False) for following in edges.get(node, ())]


CHECKS: tuple[Callable[[Facts], Found], ...] = (
    _contents, _isolation, _losses, _wholeness, _order, _polls, _bounds, _zombies, _decisions,
    _groups, _staleness, _copies, _cycles,
)  # fmt: skip


def check(history: History, *, lossy: frozenset[str] = frozenset({"0"})) -> Report:
    """Find every anomaly of a history.

    Args:
        history: from `read_history`, or made of events.
        lossy: which `acks` the faults of the run may lose: `{"0"}` where processes were killed,
            `{"0", "1"}` where the power was cut.

    Raises:
        ValueError: a value was sent twice: the history cannot tell a duplicate from a repetition.
            Or two transactions or sends have one id.
    """
    if history.reused:
        raise ValueError(
            f"ids must be unique, used twice: {history.reused[:3]}; give each Recorder of the run "
            "another process name"
        )
    if history.repeated:
        raise ValueError(f"values must be unique, sent twice: {history.repeated[:3]}")
    facts = Facts(history, lossy)
    report = Report([Anomaly(*found) for judge in CHECKS for found in judge(facts)])
    report.undrained = sorted(
        {
            write.partition
            for write in history.writes.values()
            if write.outcome == "ok" and (write.txn is not None or write.acks not in lossy)
        }
        - set(history.drains)
    )
    report.counts.update(
        events=history.count, transactions=len(history.txns), writes=len(history.writes),
        reads=len(history.reads), drained=sum(len(d.values) for d in history.drains.values()),
    )  # fmt: skip
    return report
