"""Kill drivers, executors and Python workers inside running jobs, at failpoints.

    python -m tests.spark.torture --drivers 40 --workers 100 --executors 60

A job's processes come to a named step and one of them stops there. The victim is killed while
that process is blocked: the worker itself, the JVM of its executor, or the JVM of the driver.
What Spark does not run again automatically, this program runs again. After each job the topic
holds each row once, as a reader without Spark sees it. While the job ran, all of its rows were
visible or none. If no process reached the step of a kill, the run fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import eoslog
from tests.paths import ROOT
from tests.spark.helpers import TOO_SLOW

READ_POINTS = ("spark.read",)
WRITE_POINTS = (
    "spark.write.begun",
    "spark.write.rows",
    "staging.written",
    "staging.staged",
    "spark.write.finished",
)
COMMIT_POINTS = (
    "spark.commit.begun",
    "staging.published",
    "txn.prepared",
    "txn.decided",
    "txn.marked",
    "staging.committed",
    "spark.commit.finished",
)
ADOPT_POINTS = ("adopt.stamped", "adopt.durable", "log.rolled")
"""Of the driver as well, where a staged file becomes a segment."""
TASK_POINTS = READ_POINTS + WRITE_POINTS
POINTS = TASK_POINTS + COMMIT_POINTS + ADOPT_POINTS
ROWS = 400
LOCAL = "local[2,4]"
CLUSTER = "local-cluster[2,1,768]"
"""Two executors with JVMs of their own."""
WINDOW_S = 300.0
JOB_S = 300.0


class Failed(AssertionError):
    """The torture found what must not be."""


@dataclass(frozen=True)
class Kill:
    """One kill: who, at which step, in which kind of job."""

    victim: str
    point: str
    kind: str


def kills(victim: str, points: tuple[str, ...], count: int, rng: random.Random) -> list[Kill]:
    """Every step of both sinks in turn, in an order of the seed's."""
    every = [Kill(victim, point, kind) for kind in ("batch", "stream") for point in points]
    rng.shuffle(every)
    return [every[index % len(every)] for index in range(count)]


class Driver:
    """A driver process; its JVM is what counts as the driver."""

    def __init__(
        self, path: str, scratch: Path, traps: Path, master: str, environment: dict[str, str]
    ) -> None:
        points = ",".join(f"{point}=stop@{traps / point}" for point in POINTS)
        search = [str(ROOT / "spark"), str(ROOT)] if (ROOT / "spark").exists() else []
        before = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
        self.process = subprocess.Popen(
            [
                sys.executable, str(Path(__file__).with_name("driver.py")),
                path, str(scratch / "checkpoint"), master, str(scratch / "local"),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,
            env={
                **os.environ, **environment, "EOSLOG_FAILPOINTS": points, "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": os.pathsep.join(before or search), "SPARK_SCALA_VERSION": "2.13",
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
        )  # fmt: skip
        self.master = master
        self.jvm = int(self.hear(180)["jvm"])

    def start(self, job: dict[str, object]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()

    def heard(self, seconds: float) -> bool:
        """Whether a line, or the end, comes within so long."""
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def hear(self, seconds: float) -> dict[str, object]:
        """The next line; empty when the driver is gone."""
        assert self.process.stdout is not None
        if not self.heard(seconds):
            raise Failed(f"the driver said nothing for {seconds:.0f} s")
        for line in iter(self.process.stdout.readline, ""):
            if line.startswith("{"):
                return dict(json.loads(line))
        return {}

    def end(self) -> None:
        """Ends everything that belongs to it: children lead their own lives."""
        for pid in [*descendants(self.process.pid), self.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


class Torture:
    """One directory, taken through kills one after the other."""

    def __init__(self, scratch: Path, seed: int) -> None:
        self.scratch = scratch
        self.traps = scratch / "traps"
        self.traps.mkdir(parents=True)
        self.rng = random.Random(seed)
        self.path = str(scratch / "log")
        self.log = eoslog.open(self.path)
        for name, partitions in (("numbers", 2), ("in", 2), ("out", 2), ("streamed", 2)):
            self.log.create_topic(name, partitions)
        self.produce("numbers", ROWS)
        self.begin_segments("out", "streamed")
        self.version = self.fed = 0
        self.driver: Driver | None = None
        self.environment: dict[str, str] = {}
        self.counts: Counter[str] = Counter()

    def new_driver(self, master: str) -> Driver:
        return Driver(self.path, self.scratch, self.traps, master, self.environment)

    def begin_segments(self, *topics: str) -> None:
        """Write an aborted record to each partition.

        In an empty partition no staged file becomes a segment.
        """
        with self.log.producer({"transactional.id": "nobody"}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for topic in topics:
                for partition in range(2):
                    producer.produce(topic, "aborted", partition=partition)
            producer.flush()
            producer.abort_transaction()

    def produce(self, topic: str, count: int, first: int = 0) -> None:
        with self.log.producer() as producer:
            for n in range(first, first + count):
                producer.produce(topic, str(n), str(n))

    def run(self, kill: Kill, master: str) -> None:
        """One job with one kill in it, then what it left."""
        if self.driver is None or self.driver.master != master:
            self.close_driver()
            self.driver = self.new_driver(master)
        job = self.next_job(kill)
        trap = self.traps / kill.point
        trap.touch()
        self.driver.start(job)
        stopped = self.wait_for_victim(trap, kill, job)
        self.kill(kill, stopped)
        self.counts[f"{kill.victim} {kill.kind}"] += 1
        self.check_whole(job)
        self.finish(kill, job, master)
        self.check_all(job)

    def next_job(self, kill: Kill) -> dict[str, object]:
        adopts = kill.point in ADOPT_POINTS
        in_files = adopts or kill.point.startswith("staging.")
        sizes = {
            "inline": 0 if in_files else self.rng.choice([0, 1 << 20]),
            "segment": 1 if adopts else self.rng.choice([1, 1 << 24]),
        }
        if kill.kind == "batch":
            self.version += 1
            return {"kind": "batch", "version": self.version, **sizes}
        self.produce("in", ROWS, self.fed)
        self.fed += ROWS
        return {"kind": "stream", "most": ROWS // 2 + 7, **sizes}

    def wait_for_victim(self, trap: Path, kill: Kill, job: dict[str, object]) -> int:
        assert self.driver is not None
        deadline = time.monotonic() + WINDOW_S
        said: dict[str, object] = {}
        while time.monotonic() < deadline:
            for found in self.traps.glob(f"{trap.name}.*"):
                pid = found.name.removeprefix(f"{trap.name}.")
                if pid.isdigit():
                    found.unlink()
                    return int(pid)
            if not self.driver.heard(0.02):
                continue
            said = self.driver.hear(1)
            if TOO_SLOW not in str(said.get("error")):
                break
            self.counts["jobs that Spark gave up before a process was started"] += 1
            self.driver.start(job)
        trap.unlink(missing_ok=True)
        raise Failed(f"{kill}: nobody came to its step; the driver said {said}")

    def kill(self, kill: Kill, stopped: int) -> None:
        assert self.driver is not None
        victim = stopped
        if kill.victim == "driver":
            victim = self.driver.jvm
        elif kill.victim == "executor":
            victim = java_above(stopped)
            if victim == self.driver.jvm:
                raise Failed(f"{kill}: the step ran in the driver's JVM")
        os.kill(victim, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGKILL)
        while alive(victim):
            time.sleep(0.01)

    def finish(self, kill: Kill, job: dict[str, object], master: str) -> None:
        """Until the job says that it is done; what died is started again."""
        said: dict[str, object] = {}
        runs = 0
        deadline = time.monotonic() + 4 * JOB_S
        while runs < 4 and time.monotonic() < deadline:
            assert self.driver is not None
            if kill.victim == "driver" and self.driver.jvm and not alive(self.driver.jvm):
                self.close_driver()
                self.driver = self.new_driver(master)
                self.driver.start(job)
            said = self.driver.hear(JOB_S)
            if said.get("done"):
                return
            if TOO_SLOW in str(said.get("error")):
                self.counts["jobs that Spark gave up before a process was started"] += 1
            else:
                self.counts["jobs run again"] += 1
                runs += 1
            if not said:
                self.close_driver()
                self.driver = self.new_driver(master)
            self.driver.start(job)
        raise Failed(f"{kill}: the job was not finished, its last run said {said}")

    def check_whole(self, job: dict[str, object]) -> None:
        """All rows of a batch job are visible, or none."""
        if job["kind"] != "batch":
            return
        prefix = f"{job['version']}-".encode()
        seen = sum(value.startswith(prefix) for value in self.values("out"))
        if seen not in (0, ROWS):
            raise Failed(f"{job}: {seen} of {ROWS} rows are visible")

    def check_all(self, job: dict[str, object]) -> None:
        """Each row once."""
        twice, missing, strange, expected = self.tally(job)
        if twice or missing or strange:
            raise Failed(
                f"{job}: {twice} rows too many, {missing} missing of {expected}, {strange} unknown"
            )
        self.counts["rows"] = len(self.values("out")) + len(self.values("streamed"))

    def tally(self, job: dict[str, object]) -> tuple[int, int, int, int]:
        """Count the duplicate, missing, unknown and right rows of the job's topic."""
        topic = "out" if str(job["kind"]).endswith("batch") else "streamed"
        expected = (
            {f"{v}-{n}".encode() for v in range(1, self.version + 1) for n in range(ROWS)}
            if topic == "out"
            else {str(n).encode() for n in range(self.fed)}
        )
        found = Counter(self.values(topic))
        twice = sum(count - 1 for count in found.values())
        return twice, len(expected - set(found)), len(set(found) - expected), len(expected)

    def values(self, topic: str) -> list[bytes]:
        ends = {tp: end for tp, end in self.log.snapshot([topic]).items() if tp.topic == topic}
        scan = self.log.scan(topic, end=ends, columns=["value"], binary="copy")
        return [value for batch in scan for value in batch.column("value").to_pylist()]

    def close_driver(self) -> None:
        if self.driver is not None:
            self.driver.end()
            self.driver = None

    def close(self) -> None:
        self.close_driver()
        self.log.close()


def descendants(pid: int) -> list[int]:
    """Processes below one, the youngest last."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def java_above(pid: int) -> int:
    """The JVM whose Python worker this is."""
    while pid > 1:
        text = Path(f"/proc/{pid}/stat").read_text()
        if "(java)" in text:
            return pid
        pid = int(text.rpartition(")")[2].split()[1])
    raise Failed("a worker without a JVM above it")


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def torture(
    drivers: int, workers: int, executors: int, *, seed: int, scratch: Path
) -> Counter[str]:
    """So many kills of each; returns what was counted."""
    run = Torture(scratch, seed)
    # In this order sessions are used again where they can be.
    plan = [(one, LOCAL) for one in kills("worker", POINTS, workers, run.rng)]
    plan += [(one, LOCAL) for one in kills("driver", POINTS, drivers, run.rng)]
    plan += [(one, CLUSTER) for one in kills("executor", TASK_POINTS, executors, run.rng)]
    return carry_out(run, plan)


def carry_out(run: Torture, plan: list[tuple[Kill, str]]) -> Counter[str]:
    """The kills of a plan, one after the other; says each."""
    started = time.monotonic()
    try:
        for number, (kill, master) in enumerate(plan, 1):
            run.run(kill, master)
            print(
                f"{time.monotonic() - started:7.1f} s  {number:4d} of {len(plan)}  "
                f"{kill.victim} killed at {kill.point} in a {kill.kind}",
                flush=True,
            )
    finally:
        run.close()
    return run.counts


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.torture", description=__doc__.split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--drivers", type=int, default=40)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--executors", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="eoslog-torture-"))
    print(f"seed {given.seed}", flush=True)
    try:
        counts = torture(
            given.drivers, given.workers, given.executors, seed=given.seed, scratch=scratch / "run"
        )
    except Failed as error:
        print(f"FAILED: {error}\nleft: {scratch}")
        return 1
    for name, count in sorted(counts.items()):
        print(f"{count:8d}  {name}")
    print("every row is there once")
    shutil.rmtree(scratch, ignore_errors=True)
    return 0
