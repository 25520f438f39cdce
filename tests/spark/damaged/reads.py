"""Reads of a directory through Spark's classes, with their rows and a check."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import eoslog
from eoslog import errors
from eoslog.errors import EoslogError
from tests.spark.helpers import ENDED_S

ALL = ("topic", "partition", "offset", "key", "value", "timestamp")
Row = tuple[Any, ...]
NAMED = re.compile(r"^(?:[\w.]+: )*eoslog\.errors\.(\w+): ?(.*)$", re.MULTILINE)
RAW = re.compile(
    r"^((?!eoslog\.|pyspark\.|py4j\.|org\.|java\.)[\w.]*(?:Error|Exception))\b", re.MULTILINE
)


@dataclass(frozen=True)
class Read:
    """A read and its correct result.

    Attributes:
        name: kind of the read.
        options: options of the source, without the path.
        rows: all rows of the undamaged directory, in order.
        columns: columns of the rows.
        how: `rows`, `count` or `stream`.
        inside: folder of the directory that the path names; empty for the directory.
        opened: this process has the directory open during the read.
    """

    name: str
    options: dict[str, str]
    rows: list[Row]
    columns: tuple[str, ...] = ALL
    how: str = "rows"
    inside: str = ""
    opened: bool = False


@dataclass
class Outcome:
    """What a read returned before it ended, and the error that ended it.

    `count` has no rows.
    """

    rows: list[Row] = field(default_factory=list)
    count: int | None = None
    error: Exception | None = None


class Engine(Protocol):
    """What runs a read."""

    def load(self, read: Read, path: str) -> Any:
        """Settle what is read; raises what Spark raises."""

    def run(self, read: Read, loaded: Any) -> Outcome:
        """Read it."""


# --- what is read ---------------------------------------------------------------------------------


def learn(log: eoslog.Log) -> dict[str, Any]:
    """What the readers of the package give of an undamaged directory."""
    known: dict[str, Any] = {"spark times": {}}
    for topic in ("a", "c"):
        every = list(log.scan(topic, isolation="read_uncommitted").records())
        known["spark times"][topic] = {(r.partition, r.offset): r.timestamp for r in every}
        known[f"read {topic}"] = [(r.partition, r.offset, r.key, r.value) for r in log.read(topic)]
        if topic == "a":
            known["uncommitted"] = [(r.partition, r.offset, r.key, r.value) for r in every]
    known["starts"] = {p: log.offsets("a", p).log_start for p in (0, 1)}
    times = sorted(known["spark times"]["a"].values())
    known["by time"] = {
        (p, at): log.offset_for_time("a", p, at)
        for p in (0, 1)
        for time in [*times[::6], times[-1]]
        for at in (time, time + 1)
    }
    return known


def rows_of(known: dict[str, Any], name: str, topic: str = "a") -> list[Row]:
    """Rows of `ALL` columns out of what the templates know."""
    times = known["spark times"][topic]
    return [(topic, p, o, k, v, times[p, o]) for p, o, k, v in known[name]]


def picked(rows: list[Row], columns: tuple[str, ...]) -> list[Row]:
    """Only these columns."""
    at = [ALL.index(one) for one in columns]
    return [tuple(row[i] for i in at) for row in rows]


def splits(rng: random.Random) -> dict[str, str]:
    """How a read is cut into tasks."""
    return rng.choice(
        [
            {},
            {"minBytesPerPartition": "0"},
            {"maxBytesPerPartition": str(rng.randrange(1500, 6000))},
            {"maxRecordsPerPartition": str(rng.randrange(25, 60))},
            {"minPartitions": str(rng.randrange(2, 6)), "batchRows": "7"},
        ]
    )


def by_offsets(rng: random.Random, known: dict[str, Any]) -> Read:
    """From and to offsets in the middle of segments."""
    rows, bounds = [], {}
    for partition in (0, 1):
        every = [r for r in rows_of(known, "read a") if r[1] == partition]
        ends = sorted(rng.randrange(known["starts"][partition], every[-1][2] + 1) for _ in "ab")
        bounds[partition] = ends
        rows += [r for r in every if ends[0] <= r[2] < ends[1]]
    given = {
        option: json.dumps({"a": {str(p): ends[at] for p, ends in bounds.items()}})
        for at, option in enumerate(("startingOffsets", "endingOffsets"))
    }
    return Read("offsets", given, rows)


def by_time(rng: random.Random, known: dict[str, Any]) -> Read:
    """From one time, or up to one."""
    at = rng.choice(sorted({at for _, at in known["by time"]}))
    starting = rng.random() < 0.7
    rows = []
    for partition in (0, 1):
        found = known["by time"][partition, at]
        bound = 1 << 62 if found is None else found
        rows += [
            r for r in rows_of(known, "read a")
            if r[1] == partition and (r[2] >= bound) == starting
        ]  # fmt: skip
    option = "startingTimestamp" if starting else "endingTimestamp"
    more = {"startingOffsetsByTimestampStrategy": "latest"}
    return Read("time", {option: str(at), **more}, rows)


def batch(rng: random.Random, known: dict[str, Any]) -> Read:
    """A batch read, of one of the kinds."""
    every = rows_of(known, "read a")
    kind = rng.randrange(9)
    if kind == 0:
        return Read("compacted", {"subscribe": "c"}, rows_of(known, "read c", "c"))
    if kind == 1:
        rows = rows_of(known, "uncommitted")
        return Read("uncommitted", {"isolationLevel": "read_uncommitted"}, rows)
    if kind == 2:
        columns = rng.choice([("partition", "offset", "value"), ("offset",), ("key", "timestamp")])
        return Read("columns", {"columns": ",".join(columns)}, picked(every, columns), columns)
    if kind == 3:
        columns = rng.choice([{}, {"columns": "offset"}])
        return Read("count", columns, every, how="count")
    if kind in (4, 5):
        return by_offsets(rng, known)
    if kind in (6, 7):
        return by_time(rng, known)
    if rng.random() < 0.5:
        number = rng.choice((0, 1))
        given = {"assign": json.dumps({"a": [number]})}
        return Read("assigned", given, [r for r in every if r[1] == number])
    return Read("all", {}, every)


def files_alone(rng: random.Random, known: dict[str, Any]) -> Read:
    """A batch read with `layout=kafka`."""
    read = batch(rng, known)
    given = {"subscribe": "a", **read.options, "layout": "kafka", **splits(rng)}
    if "assign" in given:
        given.pop("subscribe")
        number = json.loads(given["assign"])["a"][0]
        return Read("kafka folder", given, read.rows, inside=f"a-{number}")
    return Read(f"kafka {read.name}", given, read.rows, read.columns, read.how)


def opening(rng: random.Random, known: dict[str, Any], share_of_streams: float) -> Read:
    """A read that opens the directory: a batch, or a stream up to what is there.

    The compacted topic is read by short ones only: a log that is open for long compacts it.
    """
    opened = rng.random() < 0.3
    if rng.random() < share_of_streams:
        limit = rng.choice(
            [{}, {"maxRecordsPerTrigger": "40"}, {"maxOffsetsPerTrigger": "60"}, {"maxBytesPerTrigger": "6k"}]
        )  # fmt: skip
        given = {"subscribe": "a", "startingOffsets": "earliest", **limit}
        rows = rows_of(known, "read a")
        return Read("stream", given, rows, how="stream", opened=opened)
    read = batch(rng, known)
    given = {"subscribe": "a", **read.options, **splits(rng)}
    if "assign" in given:
        given.pop("subscribe")
    opened = opened and read.name != "compacted"
    return Read(read.name, given, read.rows, read.columns, read.how, opened=opened)


# --- engines --------------------------------------------------------------------------------------


class Direct:
    """The classes that Spark calls, called in this process."""

    def load(self, read: Read, path: str) -> Any:
        """The data source: it settles the ends of a batch read."""
        from pyspark_eoslog import DefaultSource

        return DefaultSource({"path": path, **read.options})

    def run(self, read: Read, loaded: Any) -> Outcome:
        """Plan and run the tasks, one after another."""
        found = Outcome()
        try:
            if read.how == "stream":
                self._stream(read, loaded, found)
            else:
                reader = loaded.reader(loaded.schema())
                for task in reader.partitions():
                    self._take(read, reader.read(task), found)
                if read.how == "count":
                    found.count = len(found.rows)
        except Exception as error:
            found.error = error
        return found

    def _stream(self, read: Read, loaded: Any, found: Outcome) -> None:
        reader = loaded.streamReader(loaded.schema())
        try:
            reader.prepareForTriggerAvailableNow()
            start = reader.initialOffset()
            while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
                for task in reader.partitions(start, end):
                    self._take(read, reader.read(task), found)
                reader.commit(end)
                start = end
        finally:
            reader.stop()

    def _take(self, read: Read, batches: Iterator[Any], found: Outcome) -> None:
        for one in batches:
            if read.how == "count":
                found.rows += [()] * one.num_rows
                continue
            columns = []
            for name in read.columns:
                column = one.column(one.schema.get_field_index(name))
                if name == "timestamp":
                    column = column.cast("int64")
                    columns.append([t // 1000 for t in column.to_pylist()])
                else:
                    columns.append(column.to_pylist())
            found.rows += list(zip(*columns, strict=True))


class InSpark:
    """One session for all reads."""

    def __init__(self, session: Any, scratch: Path) -> None:
        """Take a session and a folder for checkpoints."""
        self.session, self.scratch = session, scratch
        self._streams = 0

    def load(self, read: Read, path: str) -> Any:
        """The DataFrame."""
        source = self.session.readStream if read.how == "stream" else self.session.read
        return source.format("eoslog").options(path=path, **read.options).load()

    def run(self, read: Read, loaded: Any) -> Outcome:
        """An action, or a query up to what is there."""
        found = Outcome()
        try:
            if read.how == "count":
                found.count = loaded.count()
            elif read.how == "stream":
                self._stream(read, loaded, found)
            else:
                found.rows = _taken(self._selected(read, loaded))
        except Exception as error:
            found.error = error
        return found

    def _selected(self, read: Read, frame: Any) -> Any:
        shown = ["unix_millis(timestamp)" if one == "timestamp" else one for one in read.columns]
        return frame.selectExpr(*shown)

    def _stream(self, read: Read, frame: Any, found: Outcome) -> None:
        self._streams += 1
        name = f"damaged_{self._streams}"
        checkpoint = self.scratch / name
        query = (
            self._selected(read, frame)
            .writeStream.format("memory")
            .queryName(name)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            if not query.awaitTermination(ENDED_S):
                raise AssertionError(f"the query did not end within {ENDED_S} s")
        except Exception as error:
            found.error = error
        finally:
            query.stop()
            found.rows = _taken(self.session.table(name))
            self.session.catalog.dropTempView(name)
            shutil.rmtree(checkpoint, ignore_errors=True)


def _taken(frame: Any) -> list[Row]:
    return [
        tuple(bytes(one) if isinstance(one, bytearray) else one for one in row)
        for row in frame.collect()
    ]


# --- verdicts -------------------------------------------------------------------------------------


def wrong_rows(read: Read, found: Outcome) -> str | None:
    """What is wrong with the rows of a read; None where all are right."""
    whole = found.error is None
    if read.how == "count":
        right = found.count in (None, len(read.rows)) or not whole
        return None if right else f"counts {found.count} instead of {len(read.rows)}"
    if whole and not found.rows and not read.rows:
        return None
    rows, wanted = found.rows, read.rows
    if (
        read.how == "stream" and "partition" in read.columns
    ):  # micro-batches alternate between partitions
        at = read.columns.index("partition")
        rows = sorted(rows, key=lambda row: row[at])
        if not whole:  # the beginning of each partition
            for number in (0, 1):
                part = [row for row in rows if row[at] == number]
                if part != [row for row in wanted if row[at] == number][: len(part)]:
                    return f"partition {number} gave {_difference(part, wanted)}"
            return None
    if rows != (wanted if whole else wanted[: len(rows)]):
        return _difference(rows, wanted)
    return None


def _difference(rows: list[Row], wanted: list[Row]) -> str:
    extra, missing = [r for r in rows if r not in wanted], [r for r in wanted if r not in rows]
    return (
        f"{len(rows)} rows instead of {len(wanted)}, {len(extra)} of them wrong {extra[:2]}, "
        f"{len(missing)} missing {missing[:2]}"
    )


def wrong_error(error: Exception) -> str | None:
    """What is wrong with an error, or None if it is right.

    The error must be one of eoslog's and have a message.
    """
    if isinstance(error, EoslogError):
        return None if str(error) else f"{type(error).__name__} without a message"
    text = str(error)
    found = [
        (name, said) for name, said in NAMED.findall(text)
        if issubclass(getattr(errors, name, object), EoslogError)
    ]  # fmt: skip
    if not found:
        return f"not typed: {type(error).__name__}: {text[-1500:]}"
    if raw := RAW.findall(text):
        return f"not typed: {raw} beside {found[-1]}"
    return None if found[-1][1] else f"{found[-1][0]} without a message"
