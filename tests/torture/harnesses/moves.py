"""SIGKILL in exports to a Kafka cluster and in imports from it, with groups.

The kills are at the steps of the export and import themselves. A directory goes into a topic of
a real broker and from there into another directory. Each direction is killed several times and
then completes. After that the other directory has the records of the first, once and in order,
and its groups have the same records left to read.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import eoslog
from tests.faults.harness import Child, live
from tests.torture.harness import Round, Step, excerpt

STEPS = {
    "export": (
        "export.begin", "export.record", "export.produced", "export.flushed", "export.checked",
        "export.offsets", "export.committed",
    ),
    "import": (
        "import.read", "import.record", "import.produced", "import.committed", "txn.prepared", "txn.decided",
    ),
}  # fmt: skip
GROUPS = ("groups.told", "groups.set")
TOPIC = "moved"


class Moves:
    """Seven kills on each way."""

    name, goal = "moves", ("kills", 300)

    def missing(self) -> str | None:
        """Java, confluent-kafka, and the jars that `make quality-kafka` has fetched."""
        if find_spec("confluent_kafka") is None or find_spec("tests.kafka") is None:
            return "needs confluent-kafka and tests/kafka"
        from tests.kafka import jars

        there = (jars.cache() / f"kafka-{jars.BEHAVIOUR}").is_dir()
        return None if there else "needs Kafka's jars: make quality-kafka fetches them"

    def close(self) -> None:
        """Each step has its own broker."""

    def step(self, seed: int) -> Step:
        """A broker, the two ways, the comparison."""
        from tests.kafka import jars
        from tests.kafka.broker import Broker

        with Round(seed) as round_:
            broker = Broker(round_.place / "broker", jars.BEHAVIOUR)
            try:
                broker.start()
                source, target = round_.place / "source", round_.place / "target"
                before = live(filled, source, round_.seed()).fine().of("holds")
                self._way(round_, "export", source, broker.bootstrap)
                live(made, target).fine()
                self._way(round_, "import", target, broker.bootstrap)
                if round_.step.violations:  # it did not come to its end
                    return round_.step
                after = live(told, target).fine().of("holds")
            finally:
                broker.remove()
            round_.step.counts["verdicts"] += 1
            if before != after:
                round_.step.violations.append(f"moved {before}, found {after}")
            return round_.step

    @staticmethod
    def _way(round_: Round, direction: str, path: Path, bootstrap: str) -> None:
        """Run one direction: five kills at its own steps, two at the groups', then none."""
        rng, faults = round_.rng, []
        for step in rng.sample(STEPS[direction], 5):
            faults.append(f"{step}:{rng.randint(1, 150 if step.endswith('record') else 4)}=kill")
        faults += [f"{step}:{rng.randint(1, 2)}=kill" for step in rng.sample(GROUPS, 2)] + [""]
        for fault in faults:
            done = subprocess.run(
                [sys.executable, "-m", "eoslog", "-d", str(path), direction, "kafka",
                 "--bootstrap", bootstrap, TOPIC, "-n", "40", "--all-groups"],
                env={**os.environ, "EOSLOG_FAILPOINTS": fault}, timeout=300, check=False,
                stdin=subprocess.DEVNULL, capture_output=True, text=True,
            )  # fmt: skip
            round_.step.counts["lives"] += 1
            round_.step.counts["kills"] += done.returncode == -signal.SIGKILL
            if done.returncode not in ((0, -signal.SIGKILL) if fault else (0,)):
                said = excerpt(done.stdout + done.stderr)
                round_.step.violations.append(
                    f"{direction} with {fault!r}: {done.returncode}: {said}"
                )


def filled(child: Child, path: Path, seed: int) -> None:
    """Create a directory with a topic, aborted transactions and groups.

    The process reports the content.
    """
    from tests.kafka.moving.test_moving import fill
    from tests.kafka.moving.test_moving_groups import groups_of

    with eoslog.open(path) as log:
        fill(log, TOPIC, seed)
        groups_of(log, TOPIC)
    told(child, path)


def made(child: Child, path: Path) -> None:
    """An empty directory."""
    eoslog.open(path).close()


def told(child: Child, path: Path) -> None:
    """Report the number and the digest of the records, and the lag of each group."""
    from tests.kafka.directories import world
    from tests.kafka.moving.test_moving import essence
    from tests.kafka.moving.test_moving_groups import left_in_log

    with eoslog.open(path) as log:
        rows = essence(world.rows_of(log, TOPIC, "read_committed"))
        child.tell("holds", [len(rows), hashlib.sha256(repr(rows).encode()).hexdigest()])
        for group in ("begun", "middle", "mixed", "done"):
            left = left_in_log(log, group, TOPIC)
            digest = hashlib.sha256(repr(left).encode()).hexdigest()
            child.tell("holds", [group, [len(part) for part in left], digest])
