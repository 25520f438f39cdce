"""Compare eoslog's Spark source and sink with their peers in one run.

    python -m bench.spark [--rows 10000000] [--rounds 3] [--only read,stream] [--strict]

Prints a table of ratios. The records that eoslog and the peers wrote and read are counted and
checksummed afterwards. A peer that is not available is left out and named.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.spark.ceiling import Ceiling
from bench.spark.measure import Measured, in_turns, ratio, table
from bench.spark.rows import digest, prepare
from bench.spark.stores import Eoslog, Kafka, Parquet, Store, Stream
from tests.kafka import jars
from tests.kafka.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
ROOT = Path(__file__).resolve().parents[2]
KAFKA = "Kafka connector"
TUNED = f"{KAFKA}, linger.ms=20 batch.size=1m"
CEILING = "the ceiling"
# Spark then does not sum up a batch's size again at each of its rows; docs/how-to/spark-batch.md.
UNSIZED_KEY, UNSIZED_VALUE = "spark.sql.execution.arrow.maxBytesPerBatch", "2147483647"
UNSIZED = f"maxBytesPerBatch={UNSIZED_VALUE}"
FASTER = f"eoslog, {UNSIZED}"
BYTES = "sum(length(value))"
STARTS = 9
SMALL_BATCHES, SMALL_ROWS = 24, 500
MIB = 1 << 20
VIRTIO_BALLOON_F_REPORTING = 5
HEADER = ("", "ours", "peer's", "times", "processor", "goal")


@dataclass(frozen=True)
class Line:
    """One comparison."""

    what: str
    ours: str
    peer: str
    times: float
    processor: float | None = None
    goal: float | None = None
    met: bool | None = None

    def cells(self) -> tuple[str, ...]:
        met = self.times >= (self.goal or 0) if self.met is None else self.met
        goal = "" if self.goal is None else f"{self.goal:g}" + ("" if met else " MISSED")
        cost = "" if self.processor is None else f"{self.processor:.2f}"
        return (self.what, self.ours, self.peer, f"{self.times:.2f}", cost, goal)


class Bench:
    """One session, one directory of each kind, and what was measured."""

    def __init__(self, place: Path, rows: int, rounds: int) -> None:
        self.place, self.rows, self.rounds = place, rows, rounds
        self.writes = min(rounds, 3)
        self.name = table_of("eoslog", self.writes)
        self.lines: list[Line] = []
        self.wrong: list[str] = []
        self.broker: Broker | None = None
        connector = self._start_kafka()
        self.spark = session(place, connector)
        self.spark.dataSource.register(Ceiling)
        self.ours = Eoslog(self.spark, place / "log")
        self.stores: dict[str, Store] = {
            "eoslog": self.ours,
            FASTER: self.ours,
            "Parquet, uncompressed": Parquet(self.spark, place, "none"),
            "Parquet, snappy": Parquet(self.spark, place, "snappy"),
        }
        self.streams: dict[str, Stream] = {"eoslog": self.ours}
        if self.broker is not None:
            tuned = {"kafka.linger.ms": 20, "kafka.batch.size": MIB}
            self.streams[KAFKA] = Kafka(self.spark, self.broker)
            self.streams[TUNED] = Kafka(self.spark, self.broker, **tuned)
            self.stores |= {name: self.streams[name] for name in (KAFKA, TUNED)}

    def _start_kafka(self) -> list[Path]:
        try:
            found = jars.spark_connector()
            jars.fetch(jars.BEHAVIOUR)
        except jars.Unreachable as error:
            print(f"left out: {KAFKA} and its broker: {error}", flush=True)
            return []
        self.broker = Broker(self.place / "broker", jars.BEHAVIOUR, jvm=()).start()
        return found

    def close(self) -> None:
        self.spark.stop()
        self.ours.close()
        if self.broker is not None:
            self.broker.remove()

    def turns(
        self,
        cases: Mapping[str, Callable[[int], object]],
        rounds: int,
        before: Callable[[str, int], object] = lambda name, number: None,
    ) -> dict[str, Measured]:
        """Run cases of this session interleaved, each with a garbage-collected heap."""

        def clean(name: str, number: int) -> None:
            before(name, number)
            jvm: Any = self.spark._jvm
            jvm.System.gc()

        return in_turns(cases, rounds, clean)

    def compare(
        self,
        what: str,
        measured: dict[str, Measured],
        goals: dict[str, float],
        ours: str = "eoslog",
        *,
        each_round: bool = False,
    ) -> None:
        """Compare our case with each other case; rates are in million rows per second.

        With `each_round`, every round must reach the goal of the ceiling.
        """
        for peer, found in measured.items():
            if peer == ours or peer.startswith("eoslog"):
                continue
            times = ratio(measured[ours], found)
            rates = [f"{self.rows / one.wall / 1e6:.3f} M/s" for one in (measured[ours], found)]
            goal = goals.get(peer)
            worst = each_round and peer.startswith(CEILING)
            met = times.worst >= goal if worst and goal is not None else None
            self.lines.append(
                Line(f"{what} / {peer}", *rates, times.walls, times.processor, goal, met)
            )

    def check(self, what: str, frame: DataFrame, expected: tuple[int, ...]) -> None:
        """That the rows are those that went in."""
        found = digest(frame)
        if found != expected:
            self.wrong.append(f"{what}: (count, bytes, sums) {found}, expected {expected}")

    def write(self, source: DataFrame) -> None:
        """Writes into a new table each round; the last one stays for the reads."""

        def before(store: str, number: int) -> None:
            if store.startswith(CEILING):
                return
            self.stores[store].make(table_of(store, number), PARTITIONS)
            if number:
                self.stores[store].remove(table_of(store, number - 1))

        def write(store: str, number: int) -> None:
            self.stores[store].write(source, table_of(store, number))

        def drop(number: int) -> None:
            source.write.format("ceiling").mode("append").save()

        def unsized(case: Callable[[int], object], number: int) -> None:
            self.spark.conf.set(UNSIZED_KEY, UNSIZED_VALUE)
            try:
                case(number)
            finally:
                self.spark.conf.unset(UNSIZED_KEY)

        cases: dict[str, Callable[[int], object]] = {
            CEILING: drop,
            f"{CEILING}, {UNSIZED}": partial(unsized, drop),
            **{name: partial(write, name) for name in self.stores},
        }
        cases[FASTER] = partial(unsized, cases[FASTER])
        found = self.turns(cases, self.writes, before)
        usual = {name: one for name, one in found.items() if UNSIZED not in name}
        self.compare("write", usual, {KAFKA: 3.0, CEILING: 0.9}, each_round=True)
        others = {name: one for name, one in found.items() if name not in ("eoslog", CEILING)}
        goals = {KAFKA: 3.0, f"{CEILING}, {UNSIZED}": 0.9}
        self.compare(f"write, {UNSIZED}", others, goals, FASTER, each_round=True)
        expected = digest(source)
        for name, store in self.stores.items():
            self.check(f"written by {name}", store.read(table_of(name, self.writes)), expected)
        for name in (TUNED, FASTER):
            if name in self.stores:
                self.stores.pop(name).remove(table_of(name, self.writes))

    def read(self) -> None:
        """Reads all columns as they come, and only those that are needed."""
        ceiling = self._ceilings()
        others = {peer: store for peer, store in self.stores.items() if peer != "eoslog"}
        for what, aggregate, column in (
            (BYTES, BYTES, "value"),
            ("count()", "count(*)", "offset"),
        ):
            part, ceiling_of_part = f"eoslog, columns={column}", f"{CEILING}, {column}"
            frames: dict[str, Callable[[], DataFrame]] = {
                "eoslog": partial(self.ours.read, self.name),
                part: partial(self.ours.read, self.name, columns=column),
                CEILING: partial(ceiling, "all"),
                ceiling_of_part: partial(ceiling, column),
                **{peer: partial(store.read, self.name) for peer, store in others.items()},
            }
            answers: dict[str, int] = {}
            cases = {
                peer: partial(_answer, frame, aggregate, answers, peer)
                for peer, frame in frames.items()
            }
            found = self.turns(cases, self.rounds)
            whole = {peer: one for peer, one in found.items() if peer != ceiling_of_part}
            self.compare(f"read {what}", whole, {KAFKA: 3.0, CEILING: 0.9})
            parts = {peer: one for peer, one in found.items() if peer != CEILING}
            goals = {KAFKA: 3.0, ceiling_of_part: 0.9}
            self.compare(f"read {what}, columns={column}", parts, goals, part)
            real = {peer: one for peer, one in answers.items() if CEILING not in peer}
            if len(set(real.values())) != 1:
                self.wrong.append(f"read {what}: {real}")

    def _ceilings(self) -> Callable[[str], DataFrame]:
        """Sources of one prepared batch each, of the rows and the tasks that ours has."""
        import pyarrow as pa

        tasks = self.ours.read(self.name).rdd.getNumPartitions()
        for kind in ("all", "value", "offset"):
            options = {} if kind == "all" else {"columns": kind}
            some = self.ours.read(self.name, **options).limit(32768).toArrow().combine_chunks()
            path = str(self.place / f"{kind}.arrow")
            with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, some.schema) as writer:
                writer.write_batch(some.to_batches()[0])

        def frame(kind: str) -> DataFrame:
            reader = self.spark.read.format("ceiling").option("rows", self.rows)
            return reader.options(batch=str(self.place / f"{kind}.arrow"), tasks=tasks).load()

        return frame

    def start_up(self, source: DataFrame) -> None:
        """`load()` and `count()` of 1,000 rows in one partition."""
        few = source.limit(1000).coalesce(1).cache()
        for store in self.stores.values():
            store.make("few", 1)
            store.write(few, "few")

        def start(store: Store, number: int) -> None:
            store.read("few").count()

        cases = {name: partial(start, store) for name, store in self.stores.items()}
        found = self.turns(cases, STARTS)
        mine = found["eoslog"]
        for peer in [name for name in found if name != "eoslog"]:
            more = statistics.median(
                a - b for a, b in zip(mine.walls, found[peer].walls, strict=True)
            )
            judged = peer == "Parquet, uncompressed"
            goal, met = (0.3, more <= 0.3) if judged else (None, None)
            times = ratio(mine, found[peer])
            what = f"start-up of a 1-partition read / {peer} ({more:+.2f} s)"
            walls = (f"{mine.wall:.2f} s", f"{found[peer].wall:.2f} s")
            self.lines.append(Line(what, *walls, times.walls, times.processor, goal, met))
        for name, store in self.stores.items():
            self.check(f"few of {name}", store.read("few"), digest(few))
        few.unpersist()

    def stream(self, source: DataFrame) -> None:
        """Topic to topic: all rows in five micro-batches, then many small ones."""
        rounds = min(self.rounds, 3)

        def before(store: str, number: int) -> None:
            self.streams[store].make(stream_of(store, number), PARTITIONS)

        def run(store: str, number: int) -> None:
            checkpoint = self.place / "cp" / f"{store}-{number}"
            most = -(-self.rows // 5)
            self.streams[store].pipe(self.name, stream_of(store, number), checkpoint, most)

        cases = {store: partial(run, store) for store in self.streams}
        self.compare("stream", self.turns(cases, rounds, before), {})
        expected = digest(source)
        for store, place in self.streams.items():
            self.check(f"streamed by {store}", place.read(stream_of(store, rounds)), expected)
        self.streams.pop(TUNED, None)
        self._small_batches(source)

    def _small_batches(self, source: DataFrame) -> None:
        few = source.limit(SMALL_BATCHES * SMALL_ROWS).coalesce(1).cache()
        walls: dict[str, list[float]] = {store: [] for store in self.streams}
        for place in self.streams.values():
            place.make("small", 2)
            place.write(few, "small")
        for number in range(2):
            for store, place in self.streams.items():
                place.make(f"small-{number}", 2)
                checkpoint = self.place / "cp" / f"small-{store}-{number}"
                query = place.pipe("small", f"small-{number}", checkpoint, SMALL_ROWS)
                took = [
                    one["durationMs"]["triggerExecution"] / 1000
                    for one in query.recentProgress
                    if one["numInputRows"]
                ]
                walls[store] += took[3:]
                self.check(f"small batches of {store}", place.read(f"small-{number}"), digest(few))
        for peer in [store for store in self.streams if store != "eoslog"]:
            mine, theirs = (statistics.median(walls[store]) for store in ("eoslog", peer))
            what = f"micro-batch of {SMALL_ROWS} rows, median of {len(walls[peer])} / {peer}"
            self.lines.append(Line(what, f"{mine:.3f} s", f"{theirs:.3f} s", theirs / mine))


def table_of(store: str, number: int) -> str:
    """The table or topic of a store for one of two producers or two Spark settings.

    Two producers write to one broker, and two of Spark's settings to one directory.
    """
    return {TUNED: "tuned", FASTER: "faster"}.get(store, "rows") + f"-{number}"


def stream_of(store: str, number: int) -> str:
    return "streamed-" + table_of(store, number)


def _answer(
    frame: Callable[[], DataFrame], aggregate: str, answers: dict[str, int], peer: str, number: int
) -> None:
    answers[peer] = frame().selectExpr(aggregate).collect()[0][0]


def session(place: Path, connector: list[Path]) -> SparkSession:
    """Spark with its defaults, two slots and enough memory.

    It has the connector's jars if there are any.
    """
    search = [str(ROOT), *(str(ROOT / "spark") for _ in [0] if (ROOT / "spark").exists())]
    before = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    os.environ["PYTHONPATH"] = os.pathsep.join([*before, *search])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    found: SparkSession = (
        builder.master("local[2]")
        .appName("bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "3g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .config("spark.local.dir", str(place / "local"))
        .config("spark.jars", ",".join(map(str, connector)))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    return found


def machine() -> str:
    """What it ran on."""
    model = "an unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    import pyspark

    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    lent = (
        ", free memory may go back to the host (docs/contributing/benchmarks.md)"
        if lends_memory()
        else ""
    )
    return (
        f"{os.cpu_count()} cores of {model}, Linux {platform.release()}, "
        f"Python {platform.python_version()}, pyspark {pyspark.__version__}, load {load}{lent}"
    )


def lends_memory() -> bool:
    """Whether this is a guest whose free memory may return to its host.

    Then the next process that writes to the memory pays for getting it again. See
    `linux/virtio_balloon.h`, page reporting.
    """
    devices = Path("/sys/bus/virtio/drivers/virtio_balloon").glob("virtio*/features")
    return any(one.read_text()[VIRTIO_BALLOON_F_REPORTING] == "1" for one in devices)


@contextmanager
def stage(name: str, bench: Bench) -> Iterator[None]:
    """Print how long a part of the run took and what it found.

    If the part fails, the failure is noted and the next part runs.
    """
    started, before = time.monotonic(), len(bench.lines)
    try:
        yield
    except Exception as error:
        bench.wrong.append(f"{name}: {type(error).__name__}: {error}")
    print(f"\n{name}: {time.monotonic() - started:.0f} s", flush=True)
    print("\n".join(table([HEADER, *(line.cells() for line in bench.lines[before:])])), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--rows",
        type=int,
        default=1_000_000,
        help="Number of rows to write and read. [default: %(default)s]",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="Rounds to measure, after one that is dropped. [default: %(default)s]",
    )
    parser.add_argument(
        "--only",
        default="write,read,start-up,stream",
        help="Parts to run, separated by commas; write always runs. [default: all]",
    )
    parser.add_argument("--strict", action="store_true", help="Exit with 1 if a goal is missed.")
    given = parser.parse_args()
    place = Path(
        tempfile.mkdtemp(prefix="bench-spark-", dir=os.environ.get("EOSLOG_BENCH_DIR", "."))
    ).resolve()
    print(machine(), flush=True)
    started = time.monotonic()
    try:
        prepare(place / "source", given.rows)
        bench = Bench(place, given.rows, given.rounds)
        print(f"rows, broker and session: {time.monotonic() - started:.0f} s", flush=True)
        try:
            source = bench.spark.read.parquet(str(place / "source"))
            parts = {
                "write": bench.write,
                "read": lambda _: bench.read(),
                "start-up": bench.start_up,
                "stream": bench.stream,
            }
            for name, part in parts.items():
                if name == "write" or name in given.only.split(","):
                    with stage(name, bench):
                        part(source)
        finally:
            bench.close()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(f"\n{given.rows:,} rows, {time.monotonic() - started:.0f} s; {machine()}\n")
    print("\n".join(table([HEADER, *(line.cells() for line in bench.lines)])))
    for line in bench.wrong:
        print(f"WRONG: {line}")
    if not bench.wrong:
        print("counts and checksums of everything written and read agree")
    missed = any("MISSED" in line.cells()[-1] for line in bench.lines)
    return int(bool(bench.wrong) or (missed and given.strict))


if __name__ == "__main__":
    sys.exit(main())
