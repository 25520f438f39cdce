"""Every reader and every deletion of a directory, with its correct results.

`fill` creates the directory: three topics (transactions, aborts, several segments, one topic
compacted), two groups, and what `undecided.fill` adds. `learn` notes what the undamaged directory
returns. After a damage, a reader may return the same, or raise one of eoslog's errors after a
correct beginning. A deletion may remove what is due, or raise. It never removes anything else, and
the log start that it leaves is correct.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import eoslog
from eoslog import Producer, TopicPartition
from eoslog.errors import EoslogError
from eoslog.model import OffsetAndMetadata
from tests.torture.oracles import undecided
from tests.torture.oracles.results import Known, Wrong, same

START_MS = 1_700_000_000_000
TICK_MS = 60_000
"""Between timestamps, so that a horizon does not pass records while a deletion runs."""
SETTINGS = {
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 1,
}
PARTITIONS = (TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0))
"""Those that are read by partition, looked up by time, and deleted from."""
Operation = Callable[[eoslog.Log, Known], None]
Row = tuple[str, int, int, int, bytes | None, bytes | None]


def timestamp_of(tick: int) -> int:
    """A record's timestamp, of 1 to 144."""
    return START_MS + tick * TICK_MS


def fill(path: str | os.PathLike[str]) -> eoslog.Log:
    """Fill topics `a` and `c` with transactions, `b` with plain records; two groups.

    Topic `c` is compacted. Transaction markers have the wall clock's time. Retention by time
    can therefore delete only from topic `b`, where the records alone decide.
    """
    log = eoslog.open(path, config=SETTINGS)
    log.create_topic("a", 2, {"segment.bytes": 3000, "index.interval.bytes": 200})
    log.create_topic("c", 1, {"cleanup.policy": "compact", "index.interval.bytes": 200})
    log.create_topic("b", 1, {"segment.bytes": 500, "index.interval.bytes": 100})
    with log.producer(linger_ms=60_000) as plain:
        for number in range(1, 145, 2):
            late = number - 9 if number % 24 == 23 else number  # timestamps that do not always rise
            plain.produce("b", f"{number}" + "w" * 20, partition=0, timestamp=timestamp_of(late))
            if number % 8 == 7:
                plain.flush()
    producers = []
    for name in ("p", "q"):
        producer = Producer({"log.dir": str(path), "transactional.id": name, "linger.ms": 0})
        producer.init_transactions()
        producers.append(producer)
    number = 0
    for i in range(24):
        producer = producers[i % 2]
        producer.begin_transaction()
        for j in range(6):
            number += 1
            value = f"{i}.{j}" + "v" * 40
            producer.produce("a", value, partition=j % 2, timestamp=timestamp_of(number))
            producer.produce("c", value, f"k{number % 7}", timestamp=timestamp_of(number))
            if j % 3 == 2:
                producer.flush()
        if i % 4 == 3:
            producer.abort_transaction()
        else:
            producer.send_offsets_to_transaction({TopicPartition("a", 0): i}, "g")
            producer.commit_transaction()
        if i == 12:
            log._engine.partition("c", 0).roll()
    for producer in producers:
        producer.close()
    log._engine.groups.commit_offsets("h", "", -1, {TopicPartition("a", 1): OffsetAndMetadata(7)})
    log.delete_records({TopicPartition("a", 1): 2})
    undecided.fill(log)
    # Otherwise, after a kill, a damaged marker counts as never written. That hides no record.
    for partition in log._engine.open_logs():
        partition.flush()
    return log


def row_of(record: Any) -> Row:
    """What identifies a record, and what it holds."""
    return (
        record.topic, record.partition, record.offset, record.timestamp, record.key, record.value,
    )  # fmt: skip


def stream(records: Iterable[Any], wanted: list[Row], what: str) -> None:
    """Compare records with the wanted ones, also those before an error."""
    count = 0
    for record in records:
        row = row_of(record)
        if count >= len(wanted) or row != wanted[count]:
            raise Wrong(f"{what}: row {count} is {row}, expected {wanted[count : count + 1]}")
        count += 1
    if count != len(wanted):
        raise Wrong(f"{what}: {count} rows, expected {len(wanted)}")


def rows(known: Known, tp: TopicPartition, start: int = 0, *, what: str = "read") -> list[Row]:
    """Those of one partition from an offset on."""
    return [row for row in known[what] if row[:2] == (tp.topic, tp.partition) and row[2] >= start]


# --- readers --------------------------------------------------------------------------------------


def read(isolation: str, what: str, log: eoslog.Log, known: Known) -> None:
    """Record by record."""
    for topic in "ab":
        wanted = [row for row in known[what] if row[0] == topic]
        stream(log.read(topic, isolation=isolation), wanted, f"{isolation} read of {topic}")


def read_compacted(log: eoslog.Log, known: Known) -> None:
    """Of a compacted topic."""
    stream(log.read("c"), known["compacted"], "read of c")


def scan(log: eoslog.Log, known: Known) -> None:
    """Columns."""
    columns = ["topic", "partition", "offset", "timestamp", "key", "value"]
    found: list[Row] = []
    for topic in "ab":
        for batch in log.scan(topic, columns=columns):
            values = [
                column.cast("int64") if name == "timestamp" else column
                for name, column in zip(columns, batch.columns, strict=True)
            ]
            found += zip(*(column.to_pylist() for column in values), strict=True)
    same(found, known["read"], "scan")


def scan_from(isolation: str, what: str, log: eoslog.Log, known: Known) -> None:
    """From offsets in the middle of segments."""
    for tp in PARTITIONS:
        for start in range(known["starts"][tp] + 4, known["ends"][tp], 19):
            scanned = log.scan(
                tp.topic, partitions=[tp.partition], start=start, isolation=isolation
            )
            stream(
                scanned.records(), rows(known, tp, start, what=what),
                f"{isolation} scan of {tp} from {start}",
            )  # fmt: skip


def consume(isolation: str, what: str, log: eoslog.Log, known: Known) -> None:
    """By an assigned consumer."""
    for tp in PARTITIONS:
        with log.consumer(auto_offset_reset="earliest", isolation_level=isolation) as consumer:
            consumer.assign([TopicPartition(tp.topic, tp.partition, known["starts"][tp])])
            wanted = rows(known, tp, what=what)
            found: list[Row] = []
            while len(found) < len(wanted):
                more = consumer.consume(1000, timeout=0.2)
                if not more:
                    break
                found += map(row_of, more)
            same(found, wanted, f"{isolation} consumer of {tp}")


def by_time(log: eoslog.Log, known: Known) -> None:
    """Look-ups of offsets by time."""
    for (tp, when), wanted in known["by time"].items():
        found = log.offset_for_time(tp.topic, tp.partition, when)
        same(found, wanted, f"offset for {when} in {tp}")


def groups(log: eoslog.Log, known: Known) -> None:
    """Committed offsets."""
    same(group_offsets(log), known["groups"], "committed offsets")


def group_offsets(log: eoslog.Log) -> dict[str, int]:
    """By group and partition."""
    return {
        f"{group} {tp}": stored.offset
        for group in ("g", "h")
        for tp, stored in log._engine.groups.fetch_offsets(group).items()
    }


def snapshot(log: eoslog.Log, known: Known) -> None:
    """Ends."""
    same(ends(log), known["snapshot"], "snapshot")


def ends(log: eoslog.Log) -> dict[str, int]:
    """By partition."""
    return {str(tp): end for tp, end in log.snapshot(["a", "b", "c"]).items()}


def segments(log: eoslog.Log, known: Known) -> None:
    """The files alone; what delete_records left below the log start is in them, too."""
    for (tp, isolation), wanted in known["segments"].items():
        stream(of_files(log, tp, isolation), wanted, f"{isolation} read_segments of {tp}")


def of_files(log: eoslog.Log, tp: TopicPartition, isolation: str) -> Iterator[Any]:
    """The records of a partition's files."""
    place = os.path.join(log.path, f"{tp.topic}-{tp.partition}")
    return eoslog.read_segments(place, isolation=isolation).records()


READERS: dict[str, Operation] = {
    "read": partial(read, "read_committed", "read"),
    "read uncommitted": partial(read, "read_uncommitted", "uncommitted"),
    "read compacted": read_compacted,
    "scan": scan,
    "scan from": partial(scan_from, "read_committed", "read"),
    "scan uncommitted": partial(scan_from, "read_uncommitted", "uncommitted"),
    "consume": partial(consume, "read_committed", "read"),
    "consume uncommitted": partial(consume, "read_uncommitted", "uncommitted"),
    "time": by_time,
    "groups": groups,
    "snapshot": snapshot,
    "segments": segments,
    **undecided.READERS,
}


# --- deletions ------------------------------------------------------------------------------------

RETENTIONS: dict[str, tuple[str, int]] = {
    "nothing due": ("retention.ms", -10),
    "first due": ("retention.ms", 20),
    "some due": ("retention.ms", 72),
    "most due": ("retention.ms", 120),
    "all due": ("retention.ms", 150),
    "by size, nothing": ("retention.bytes", 1_000_000),
    "by size, some": ("retention.bytes", 2000),
}
"""A time is that of the horizon, as in `timestamp_of`: what is older is due."""


def retention(name: str) -> dict[str, int]:
    """The topic configuration that makes that much due."""
    key, value = RETENTIONS[name]
    if key == "retention.ms":
        return {key: int(time.time() * 1000) - timestamp_of(value)}
    return {key: value, "retention.ms": -1}


def starts(log: eoslog.Log) -> dict[TopicPartition, int]:
    """The log starts."""
    return {tp: log.offsets(tp.topic, tp.partition).log_start for tp in PARTITIONS}


def retain(name: str, log: eoslog.Log, known: Known) -> None:
    """Check that retention removes only what is due, and that the rest is readable.

    A part that cannot be read must be reported.
    """
    done = set()
    for topic in "ab":
        log.alter_topic(topic, retention(name))
        if cleaned(log, topic):
            done.add(topic)
    kept(log, known, known["starts after"][name], exact=done)


def cleaned(log: eoslog.Log, topic: str | None) -> bool:
    """Clean; whether it raised nothing."""
    try:
        log.clean(topic)
    except EoslogError:
        return False
    return True


def kept(
    log: eoslog.Log, known: Known, wanted: Mapping[TopicPartition, int], *, exact: Container[str]
) -> None:
    """Raise if a log start is above the wanted one, or if the kept records differ.

    The log starts of the topics in `exact` must be the wanted ones: their deletions raised
    nothing. A deletion may stop before a segment that no reader can read past.
    """
    for tp in PARTITIONS:
        start = log.offsets(tp.topic, tp.partition).log_start
        if start > wanted[tp]:
            raise Wrong(f"{tp} starts at {start} after a deletion, expected {wanted[tp]}")
    for tp in PARTITIONS:
        start = log.offsets(tp.topic, tp.partition).log_start
        left = log.read(tp.topic, partitions=[tp.partition])
        stream(left, rows(known, tp, start), f"{tp} after a deletion")
        if tp.topic in exact and start != wanted[tp]:
            raise Wrong(f"{tp} starts at {start} after a deletion, expected {wanted[tp]}")


def up_to(log: eoslog.Log, known: Known) -> None:
    """`delete_records` in the middle of a segment."""
    tp, before = PARTITIONS[0], known["deleted to"]
    exact = "a"
    try:
        log.delete_records({tp: before})
    except EoslogError:
        exact = ""
    kept(log, known, known["starts"] | {tp: before}, exact=exact)


def compacted(topic: str | None, log: eoslog.Log, known: Known) -> None:
    """Check that compaction keeps each key's last committed record and all offsets.

    The offsets are the committed offsets of the groups.
    """
    for other in "ab":
        log.alter_topic(other, {"retention.ms": -1})
    cleaned(log, topic)
    last = {record.key: record.value for record in log.read("c")}
    same(last, known["last"], "keys after compaction")
    if topic is None:
        kept(log, known, known["starts"], exact="")
        groups(log, known)


DELETIONS: dict[str, Operation] = {
    **{name: partial(retain, name) for name in RETENTIONS},
    "up to": up_to,
    "compacted": partial(compacted, "c"),
    "all cleaned": partial(compacted, None),
    **undecided.DECISIONS,
}
"""What deletes or decides; the last one after readers."""


# --- what is right --------------------------------------------------------------------------------


def learn(copy: Callable[[], Path]) -> Known:
    """What the undamaged directory gives; `copy` makes a new copy of it."""
    path = copy()
    with eoslog.open(path) as log:
        known: Known = {"compacted": [*map(row_of, log.read("c"))]}
        for what, isolation in (("read", "read_committed"), ("uncommitted", "read_uncommitted")):
            records = (record for topic in "ab" for record in log.read(topic, isolation=isolation))
            known[what] = [*map(row_of, records)]
        known["starts"] = starts(log)
        known["ends"] = {tp: log.offsets(tp.topic, tp.partition).log_end for tp in PARTITIONS}
        known["by time"] = {
            (tp, when): log.offset_for_time(tp.topic, tp.partition, when)
            for tp in PARTITIONS
            for when in range(timestamp_of(0) - 1, timestamp_of(150), 10 * TICK_MS)
        }
        known["groups"] = group_offsets(log)
        known["snapshot"] = ends(log)
        known["deleted to"] = next(r[2] for r in rows(known, PARTITIONS[0]) if r[2] > 20)
        known["last"] = {key: value for *_, key, value in known["compacted"]}
        known["segments"] = {
            (tp, isolation): [*map(row_of, of_files(log, tp, isolation))]
            for tp in PARTITIONS
            for isolation in ("read_committed", "read_uncommitted")
        }
        known |= undecided.learn(log)
    shutil.rmtree(path)
    known["starts after"] = {}
    for name in RETENTIONS:
        path = copy()
        with eoslog.open(path) as log:
            for topic in "ab":
                log.alter_topic(topic, retention(name))
                log.clean(topic)
            known["starts after"][name] = starts(log)
        shutil.rmtree(path)
    return known


def require_variety(known: Known) -> None:
    """Raise where the directory does not hold what makes the operations differ."""
    b = PARTITIONS[2]
    after = [known["starts after"][name] for name in RETENTIONS]
    assert after[0] == after[5] == known["starts"]
    assert 0 == after[0][b] < after[1][b] < after[2][b] < after[3][b] < after[4][b], after
    assert after[4][b] == known["ends"][b]
    assert all(known["starts"][tp] < after[6][tp] < known["ends"][tp] for tp in PARTITIONS), after
    assert len(known["read"]) < len(known["uncommitted"])
    assert known["groups"] == {"g a-0": 22, "h a-1": 7}
    undecided.require_variety(known)


# --- trying them ----------------------------------------------------------------------------------


def attempt(name: str, run: Operation, log: eoslog.Log, known: Known, counts: Counter[str]) -> str:
    """Run one operation; what went wrong, empty if nothing did."""
    counts["pairs"] += 1
    try:
        run(log, known)
    except Wrong as error:
        return f"{name}: {error}"
    except EoslogError as error:
        counts["errors"] += 1
        return "" if str(error) else f"{name}: {type(error).__name__} without a message"
    except Exception as error:
        return f"{name}: not typed: {type(error).__name__}: {error}"
    return ""


def attempts(
    path: Path, chosen: Iterable[str], known: Known, counts: Counter[str], *, read_only: bool
) -> list[str]:
    """Open the directory and run the operations one after another; what went wrong."""
    names = list(chosen)
    try:
        log = eoslog.open(path, read_only=read_only)
    except EoslogError as error:
        counts["pairs"] += len(names)
        counts["refused openings"] += 1
        return [] if str(error) else [f"open: {type(error).__name__} without a message"]
    except Exception as error:
        return [f"open: not typed: {type(error).__name__}: {error}"]
    operations = READERS | DELETIONS
    found = [attempt(name, operations[name], log, known, counts) for name in names]
    try:
        log.close()
    except EoslogError as error:
        found.append("" if str(error) else f"close: {type(error).__name__} without a message")
    except Exception as error:
        found.append(f"close: not typed: {type(error).__name__}: {error}")
    return [wrong for wrong in found if wrong]


def choose(
    rng: random.Random, *, files_alone: bool, read_only: bool, readers: int = len(READERS)
) -> list[str]:
    """Readers in some order, then one deletion.

    Args:
        rng: the source of the choice and of the order.
        files_alone: whether the partition's files alone say where the log ends.
        read_only: whether to leave out deletions.
        readers: how many; all of them by default.
    """
    names = sorted(READERS)
    rng.shuffle(names)
    last = rng.choice(sorted(DELETIONS))
    if not files_alone:
        names.remove("segments")
    return names[:readers] if read_only else [*names[:readers], last]
