"""The checker accepts valid histories and names each kind of planted anomaly.

A checker that has never seen a bad history proves nothing. `PLANTS` has one function per kind.
The function changes a valid history so that exactly this rule is broken, and returns False if
the history has no place for it.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from eoslog.testing.history import ANOMALIES, History, check, read_history
from tests.testing.history.generate import PARTITIONS, Event, valid_history

VALID_SEEDS = range(40)
PLANT_SEEDS = range(10)


@functools.cache
def whole(seed: int) -> str:
    return json.dumps(valid_history(seed))


class Plant:
    """A valid history with the means to spoil it."""

    def __init__(self, seed: int) -> None:
        self.events = json.loads(whole(seed))
        self.rng = random.Random(seed + 1000)
        self.history = History(self.events)
        self.last = self.events[-1]["time"]

    def of(self, *names: str) -> list[Event]:
        return [event for event in self.events if event["f"] in names]

    def drain(self, partition: str) -> Event:
        return next(e for e in self.of("drain") if e["partition"] == partition)

    def committed(self) -> list[Any]:
        """Acknowledged transactions with values in two partitions."""
        return [t for t in self.history.txns.values() if t.outcome == "ok" and t.writes]

    def forget(self, value: str, *, reads: bool = True) -> None:
        """Take a value out of what was drained and, if asked for, of what was read."""
        for event in self.of("drain"):
            event["log"] = [row for row in event["log"] if row[1] != value]
        for event in self.of("poll", "scan") if reads else ():
            event["reads"] = [row for row in event["reads"] if row[2] != value]

    def add(self, f: str, time: int, **fields: Any) -> None:
        self.events.append({"f": f, "type": "ok", "process": "planted", "time": time} | fields)

    def poll(self, reads: list[Any], time: int, process: str = "planted") -> None:
        self.add("poll", time, consumer="planted", isolation="read_committed", start=time, txn=None,
                 reads=reads, process=process)  # fmt: skip


def inconsistent_offset(p: Plant) -> bool:
    row = p.rng.choice(p.drain("t-0")["log"])
    other = p.rng.choice(p.drain("t-1")["log"])
    p.poll([["t-0", row[0], other[1]]], p.last)
    return True


def duplicate(p: Plant) -> bool:
    drain = p.drain("t-0")
    drain["log"].append([drain["log_end"] + 3, drain["log"][0][1]])
    return True


def phantom(p: Plant) -> bool:
    p.poll([["t-0", 10_000, "nobody sent this"]], p.last)
    return True


def aborted_read(p: Plant) -> bool:
    gone = [t for t in p.history.txns.values() if t.outcome == "fail" and t.writes]
    p.poll([[gone[0].writes[0].partition, 10_000, gone[0].writes[0].value]], p.last)
    return True


def _early(p: Plant, own: bool) -> bool:
    for txn in p.committed():
        write = txn.writes[0]
        place = next(o for o, v in p.drain(write.partition)["log"] if v == write.value)
        time = write.time
        p.poll([[write.partition, place, write.value]], time, txn.process if own else "planted")
        return True
    return False


def dirty_read(p: Plant) -> bool:
    return _early(p, False)


def precommitted_read(p: Plant) -> bool:
    return _early(p, True)


def lost_write(p: Plant) -> bool:
    sent = [w for w in p.history.writes.values() if w.outcome == "ok" and w.txn is None]
    p.forget(p.rng.choice(sent).value)
    return True


def torn_txn(p: Plant) -> bool:
    txn = p.rng.choice(p.committed())
    p.forget(txn.writes[-1].value)
    return True


def torn_by_snapshot(p: Plant) -> bool:
    txn = p.rng.choice(p.committed())
    ends = [e for e in p.of("drain") if e["partition"] in PARTITIONS]
    cut = {e["partition"]: e["log_end"] for e in ends}
    cut[txn.writes[0].partition] = 0
    p.add("snapshot", p.last, start=p.last, cut=cut)
    return True


def torn_by_copy(p: Plant) -> bool:
    txn = p.rng.choice(p.committed())
    reads = [[e["partition"], o, v] for e in p.of("drain") for o, v in e["log"]]
    reads = [row for row in reads if row[2] != txn.writes[0].value]
    p.add("copy", p.last, start=0, reads=reads)
    return len(txn.writes) > 1


def copy_without(p: Plant) -> bool:
    sent = [w for w in p.history.writes.values() if w.outcome == "ok" and w.txn is None]
    p.add("copy", p.last + 2, start=p.last + 1, reads=[])
    return bool(sent)


def torn_from_offsets(p: Plant) -> bool:
    if not any(t.consumed for t in p.committed()):
        return False
    for event in p.of("committed"):
        event["offsets"] = {"in-0": 0}
    return True


def read_then_lost(p: Plant) -> bool:
    reads = [row for e in p.of("poll") for row in e["reads"]]
    p.forget(p.rng.choice(reads)[2], reads=False)
    return True


def nonmonotonic_send(p: Plant) -> bool:
    for txn in p.committed():
        for partition in PARTITIONS:
            own = [w.value for w in txn.writes if w.partition == partition]
            if len(own) < 2:
                continue
            rows = [row for row in p.drain(partition)["log"] if row[1] in own]
            rows[0][1], rows[-1][1] = rows[-1][1], rows[0][1]
            for event in p.of("poll", "scan"):
                event["reads"] = [r for r in event["reads"] if r[2] not in own]
            return True
    return False


def nonmonotonic_poll(p: Plant) -> bool:
    row = p.drain("t-0")["log"][0]
    p.poll([["t-0", *row]], p.last)
    p.poll([["t-0", *row]], p.last + 1)
    return True


def poll_skip(p: Plant) -> bool:
    rows = p.drain("t-0")["log"]
    p.poll([["t-0", *rows[0]], ["t-0", *rows[2]]], p.last)
    return True


def scan_skip(p: Plant) -> bool:
    scan = p.of("scan")[-1]
    scan["reads"].pop(p.rng.randrange(len(scan["reads"])))
    return True


def lso_went_back(p: Plant) -> bool:
    for at, lso in ((1, 50), (2, 40)):
        p.add(
            "bounds", p.last + 10 * at, start=p.last + 10 * at - 1, partition="t-9", lso=lso, hw=50
        )
    return True


def read_past_lso(p: Plant) -> bool:
    row = p.drain("t-0")["log"][-1]
    p.poll([["t-0", *row]], p.last)
    p.add("bounds", p.last + 9, start=p.last + 5, partition="t-0", lso=row[0], hw=row[0] + 1)
    return True


def zombie_commit(p: Plant) -> bool:
    txn = p.rng.choice([t for t in p.committed() if not t.decides])
    p.add("fence", txn.requested - 1, inst=txn.inst, session="usurper")
    return True


def _told(p: Plant) -> Event:
    return p.rng.choice([e for e in p.of("decide") if e["type"] == "ok"])


def two_decisions(p: Plant) -> bool:
    told = _told(p)
    word = "ABORT" if told["commit"] else "COMMIT"
    p.add("outcome", p.last + 9, start=p.last, txn=told["txn"], outcome=word)
    return True


def unasked_decision(p: Plant) -> bool:
    txn = _told(p)["txn"]
    p.events = [
        e for e in p.events if (e["f"], e["type"], e.get("txn")) != ("decide", "invoke", txn)
    ]
    return True


def undecided_again(p: Plant) -> bool:
    p.add("outcome", p.last + 9, start=p.last, txn=_told(p)["txn"], outcome="UNKNOWN")
    return True


def forgotten(p: Plant) -> bool:
    p.add("outcome", p.last + 9, start=p.last, txn=_told(p)["txn"], outcome=None)
    return True


def undecided_read(p: Plant) -> bool:
    prepared = {e["txn"] for e in p.of("prepare")}
    txn = next(t for t in p.committed() if t.id in prepared)
    write = txn.writes[0]
    place = next(o for o, v in p.drain(write.partition)["log"] if v == write.value)
    p.poll([[write.partition, place, write.value]], txn.requested - 1)
    return True


def consumed_twice(p: Plant) -> bool:
    spans = [e for e in p.of("end") if e.get("consumed")]
    committed = {t.id for t in p.committed() if t.consumed}
    spans = [e for e in spans if e["txn"] in committed]
    if len(spans) < 2:
        return False
    spans[1]["consumed"][0][2] = spans[0]["consumed"][0][2]
    return True


def consumed_not_produced(p: Plant) -> bool:
    p.add("committed", p.last + 9, start=p.last + 8, group="other", offsets={"in-0": 100_000})
    return True


def offset_went_back(p: Plant) -> bool:
    p.add("commit", p.last + 5, start=p.last + 4, group="other", offsets={"in-0": 2})
    p.add("committed", p.last + 9, start=p.last + 8, group="other", offsets={"in-0": 1})
    return True


def stale_read(p: Plant) -> bool:
    sent = [w for w in p.history.writes.values() if w.outcome == "ok" and w.partition == "t-0"]
    p.add("fence", p.last + 1, inst="a", session="z1")
    p.add("fence", p.last + 1, inst="b", session="z2")
    p.add("fence", p.last + 1, inst="c", session="z3")
    if not sent:
        return False
    p.add("scan", p.last + 9, start=p.last + 8, isolation="read_committed",
          **{"from": {"t-0": 0}}, to={"t-0": 0}, reads=[])  # fmt: skip
    return True


def g1c(p: Plant) -> bool:
    one, two, *_ = p.committed()
    for reader, write in ((one, two.writes[0]), (two, one.writes[0])):
        p.add("poll", p.last, consumer=reader.id, isolation="read_uncommitted", start=p.last,
              txn=reader.id, reads=[[write.partition, 1, write.value]])  # fmt: skip
    return True


PLANTS: list[tuple[str, Callable[[Plant], bool]]] = [
    ("inconsistent-offset", inconsistent_offset), ("duplicate", duplicate), ("phantom", phantom),
    ("aborted-read", aborted_read), ("dirty-read", dirty_read),
    ("precommitted-read", precommitted_read), ("lost-write", lost_write), ("torn-txn", torn_txn),
    ("torn-txn", torn_by_snapshot), ("torn-txn", torn_from_offsets),
    ("torn-txn", torn_by_copy),
    ("read-then-lost", read_then_lost), ("nonmonotonic-send", nonmonotonic_send),
    ("nonmonotonic-poll", nonmonotonic_poll), ("poll-skip", poll_skip), ("poll-skip", scan_skip),
    ("lso-went-back", lso_went_back), ("read-past-lso", read_past_lso),
    ("two-decisions", two_decisions), ("unasked-decision", unasked_decision),
    ("undecided-again", undecided_again), ("undecided-again", forgotten),
    ("dirty-read", undecided_read),
    ("zombie-commit", zombie_commit), ("consumed-twice", consumed_twice),
    ("consumed-not-produced", consumed_not_produced), ("offset-went-back", offset_went_back),
    ("stale-read", stale_read), ("stale-read", copy_without), ("G1c", g1c),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", VALID_SEEDS)
def test_a_valid_history_passes(seed):
    report = check(History(valid_history(seed)))
    assert report.ok, "\n".join(report.lines())
    assert report.counts["reads"] > 100 and report.counts["transactions"] > 50


@pytest.mark.slow
@pytest.mark.parametrize(("name", "plant"), PLANTS, ids=[p.__name__ for _, p in PLANTS])
def test_a_planted_anomaly_is_named(name, plant):
    planted = 0
    for seed in PLANT_SEEDS:
        p = Plant(seed)
        if not plant(p):
            continue
        planted += 1
        assert name in check(History(p.events)).names, f"seed {seed}: {name} not seen"
    assert planted >= len(PLANT_SEEDS) // 2, "the generator leaves too few places for it"


def test_every_kind_of_anomaly_is_planted():
    assert {name for name, _ in PLANTS} == set(ANOMALIES)


def test_a_history_that_sends_a_value_twice_is_rejected():
    event = {"f": "send", "type": "invoke", "process": "p", "time": 1, "session": "s", "txn": None}
    twice = [event | {"id": str(n), "sends": [["t-0", "same"]]} for n in range(2)]
    with pytest.raises(ValueError, match="same"):
        check(History(twice))


def test_a_torn_last_line_is_accepted_and_a_torn_middle_line_raises(tmp_path):
    lines = [json.dumps(event) for event in valid_history(1, 20)]
    whole = tmp_path / "p.jsonl"
    whole.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:20])
    assert read_history([str(tmp_path)]).count == len(lines) - 1
    whole.write_text("\n".join([lines[0][:9], *lines[1:]]))
    with pytest.raises(ValueError, match="p.jsonl:1"):
        read_history([str(whole)])


@pytest.mark.parametrize("lossy", [frozenset({"0"}), frozenset({"0", "1"})])
def test_the_caller_states_which_records_the_faults_may_lose(lossy):
    send = {"f": "send", "process": "p", "session": "s", "txn": None, "id": "1"}
    events = [
        send | {"type": "invoke", "time": 1, "acks": "1", "sends": [["t-0", "v"]]},
        send | {"type": "ok", "time": 2, "sends": [["t-0", "v", 0]]},
        {"f": "drain", "type": "ok", "process": "p", "time": 3, "partition": "t-0", "log_start": 0,
         "log_end": 0, "log": []},
    ]  # fmt: skip
    assert ("lost-write" in check(History(events), lossy=lossy).names) == ("1" not in lossy)
