"""Damaged files under Spark's readers: pairs of one damage and one read.

    python -m tests.spark.damaged --pairs 500 --direct 5000 --seed 1

The directories, the damages and the right rows are those of `tests/torture/harnesses/damaged.py`. Each copy
gets one damage. Some reads of its files alone (`layout=kafka`) follow, then some that open it. A
read gives the rows of the undamaged directory, or raises an error of eoslog's. A read with
`layout=kafka` changes no file. A read of a directory that was closed cleanly takes no byte of a log.

Pairs run in one Spark session. Direct ones call the classes that Spark calls, without a JVM.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import eoslog
from eoslog.errors import EoslogError
from tests.spark.damaged.reads import (
    Direct,
    Engine,
    InSpark,
    Outcome,
    Read,
    files_alone,
    learn,
    opening,
    wrong_error,
    wrong_rows,
)
from tests.spark.helpers import TOO_SLOW
from tests.torture.harnesses.damaged import Templates, damage

FILES_ALONE, OPENING = 2, 2
"""Reads of one copy: of its files alone, and by opening it."""
ATTEMPTS = 5
"""Of a read, where a busy machine takes too long to start Spark's Python process."""


def contents(path: Path) -> dict[str, tuple[bytes, int, int]]:
    """(bytes, inode, time of the last change) of each file."""
    found = {}
    for file in sorted(path.rglob("*")):
        if file.is_file():
            status = file.stat()
            found[str(file.relative_to(path))] = (
                file.read_bytes(), status.st_ino, status.st_mtime_ns,
            )  # fmt: skip
    return found


def taken(before: dict[str, tuple[bytes, int, int]], path: Path, right: Path) -> str | None:
    """What reads changed in the logs of a cleanly closed directory, or None.

    Bytes after the right end of a log are not records. Only the logs of topic `a` count: the
    other topics may be compacted in the meantime.
    """
    for name, (data, *_) in before.items():
        if not name.startswith("a-") or not name.endswith(".log"):
            continue
        file, undamaged = path / name, right / name
        length = undamaged.stat().st_size if undamaged.exists() else 0
        kept = file.read_bytes() if file.exists() else b""
        if kept[:length] != data[:length]:
            return f"{name}: {len(data)} bytes became {len(kept)}"
    return None


class Run:
    """Copies, each with one damage and some reads.

    Args:
        templates: of the directories; made before a JVM starts, since they fork.
        engine: that reads.
        seed: of everything that is drawn.
        streams: share of the streams among the reads that open a directory.
    """

    def __init__(self, templates: Directories, engine: Engine, seed: int, streams: float) -> None:
        self.templates, self.engine, self.seed, self.streams = templates, engine, seed, streams
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []

    def wrong(self, what: str) -> None:
        """Note a violation and print it immediately."""
        self.violations.append(what)
        print(f"WRONG {type(self.engine).__name__}: {what}", flush=True)

    def pairs(self, count: int) -> None:
        """So many pairs, or a few more."""
        copies = random.Random(self.seed)
        number = 0
        started = time.monotonic()
        while self.counts["pairs"] < count:
            self.one(random.Random(copies.randrange(1 << 60)), f"{self.seed}-{number}")
            number += 1
            if number % 25 == 0:
                seconds = time.monotonic() - started
                print(f"{seconds:7.1f} s  {self.counts['pairs']:5d} of {count} pairs", flush=True)

    def one(self, rng: random.Random, suffix: str) -> None:
        """One copy."""
        kind = rng.choice(("clean", "killed"))
        known, path = self.templates.known[kind], self.templates.copy(kind, suffix)
        try:
            late = rng.random() < 0.15
            reads = []
            for _ in range(FILES_ALONE):
                reads.append(files_alone(rng, known))
            for _ in range(OPENING):
                reads.append(opening(rng, known, self.streams))
            if late:
                self._late(rng, kind, path, rng.choice(reads), suffix)
                return
            done, alone = damage(rng, path, killed=kind == "killed")
            what = f"{suffix} {kind}: {done}"
            self.counts["damages"] += 1
            before = contents(path)
            if not alone:  # files alone do not say where a killed log's end was
                del reads[:FILES_ALONE]
            for read in reads:
                self._judge(read, what, path)
                if read.options.get("layout") == "kafka" and contents(path) != before:
                    self.wrong(f"{what}: {read.name} changed files")
                    before = contents(path)
            if kind == "clean":
                lost = taken(before, path, self.templates.place / kind)
                if lost is not None:
                    self.wrong(f"{what}: reads took from a log: {lost}")
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def _late(self, rng: random.Random, kind: str, path: Path, read: Read, suffix: str) -> None:
        """The damage comes between the load and the read."""
        try:
            loaded = self.engine.load(read, str(path / read.inside))
        except Exception as error:
            if not self._too_slow(error):
                self.wrong(f"{suffix} {kind}: {read.name}: load: {error!r}")
            return
        what, _ = damage(rng, path, killed=kind == "killed")
        # The opening of a directory distinguishes files of one name, size and offsets.
        if what.startswith("swap ") and " and " in what:
            return
        found = self.engine.run(read, loaded)
        if not self._too_slow(found.error):
            self.counts["damages"] += 1
            self.counts["damages after the load"] += 1
            self._verdict(read, f"{suffix} {kind} late: {what}", found)

    def _too_slow(self, error: Exception | None) -> bool:
        slow = TOO_SLOW in str(error)
        self.counts["reads that Spark gave up before a process was started"] += slow
        return slow

    def _judge(self, read: Read, what: str, path: Path) -> None:
        log = None
        if read.opened:
            try:
                log = eoslog.open(path)
                self.counts["reads of an open log"] += 1
            except EoslogError:
                self.counts["openings refused"] += 1
        found = self._found(read, path)
        if log is not None:
            with contextlib.suppress(EoslogError):
                log.close()
        if TOO_SLOW not in str(found.error):
            self._verdict(read, what, found)

    def _found(self, read: Read, path: Path) -> Outcome:
        for _ in range(ATTEMPTS):
            try:
                found = self.engine.run(read, self.engine.load(read, str(path / read.inside)))
            except Exception as error:
                found = Outcome(error=error)
            if not self._too_slow(found.error):
                break
        return found

    def _verdict(self, read: Read, what: str, found: Outcome) -> None:
        self.counts["pairs"] += 1
        self.counts[f"pairs: {read.name}"] += 1
        self.counts["errors"] += found.error is not None
        wrongs = [wrong_rows(read, found)]
        if found.error is not None:
            wrongs.append(wrong_error(found.error))
        for wrong in wrongs:
            if wrong is not None:
                shown = {**read.options, "opened": read.opened}
                self.wrong(f"{what}: {read.name} {shown}: {wrong}")


class Directories:
    """The directories that copies are made of, and what their undamaged copies give."""

    def __init__(self) -> None:
        self._templates = Templates()
        self.place = self._templates.make()
        self.copy, self.close = self._templates.copy, self._templates.close
        self.known: dict[str, dict[str, Any]] = {}
        for name in ("clean", "killed"):
            copy = self.copy(name, "rows")
            with eoslog.open(copy) as log:
                self.known[name] = learn(log)
            shutil.rmtree(copy)


@contextlib.contextmanager
def session(scratch: Path) -> Iterator[Any]:
    """A quiet session with two slots and no network."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    made = (
        SparkSession.builder.master("local[2]")
        .appName("eoslog, damaged files")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    try:
        yield made
    finally:
        made.stop()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.damaged", description=__doc__.split("\n", maxsplit=1)[0]
    )
    parser.add_argument(
        "--pairs",
        type=int,
        default=500,
        help="Pairs to run in a Spark session. [default: %(default)s]",
    )
    parser.add_argument(
        "--direct", type=int, default=0, help="Pairs to run without a JVM. [default: %(default)s]"
    )
    parser.add_argument(
        "--streams",
        type=float,
        default=0.2,
        help="Share of streams among the reads that open a directory. [default: %(default)s]",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=random.SystemRandom().randrange(1 << 32),
        help="Seed of the run. [default: random]",
    )
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="eoslog-spark-damaged-"))
    print(f"seed {given.seed}", flush=True)
    logging.disable(logging.CRITICAL)
    templates, started, runs = Directories(), time.monotonic(), []
    try:
        runs.append(("direct", Run(templates, Direct(), given.seed, given.streams)))
        runs[0][1].pairs(given.direct)
        if given.pairs:
            with session(scratch) as spark:
                runs.append(
                    ("Spark", Run(templates, InSpark(spark, scratch), given.seed, given.streams))
                )
                runs[1][1].pairs(given.pairs)
    finally:
        templates.close()
        shutil.rmtree(scratch, ignore_errors=True)
        for name, run in runs:
            for what, number in sorted(run.counts.items()):
                print(f"{number:8d}  {name}, {what}")
    wrong = sum(len(run.violations) for _, run in runs)
    print(f"{wrong} wrong reads, {time.monotonic() - started:.0f} s")
    return int(wrong > 0)
