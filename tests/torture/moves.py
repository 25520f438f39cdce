"""SIGKILL in exports to a Kafka cluster and imports from it, at their own steps, with groups that go along.

A directory goes into a topic of a real broker and from there into another directory; each way is killed some times and
then let come to its end. The other directory has then what the first has, once and in order, and its groups have the
same left to read.
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
    "export": ("export.begin", "export.produced", "export.offsets", "export.committed", "export.record"),
    "import": ("import.record", "import.produced", "import.committed", "txn.prepared", "txn.decided"),
}  # fmt: skip
GROUPS = ("groups.told", "groups.set")
TOPIC = "moved"


class Moves:
    """Seven kills on each way."""

    name, goal = "moves", ("kills", 300)

    def missing(self) -> str | None:
        """Java, confluent-kafka, and the jars that `make test-kafka` has fetched."""
        if find_spec("confluent_kafka") is None or find_spec("tests.kafka") is None:
            return "needs confluent-kafka and tests/kafka"
        from tests.kafka import jars

        there = (jars.cache() / f"kafka-{jars.BEHAVIOUR}").is_dir()
        return None if there else "needs Kafka's jars: make test-kafka fetches them"

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
        """One way: killed at five steps of its own and at two of the groups', then to its end."""
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
    """A directory with a topic, some of its transactions aborted, and groups; tells what it holds."""
    from tests.kafka.test_moving import fill
    from tests.kafka.test_moving_groups import groups_of

    with eoslog.open(path) as log:
        fill(log, TOPIC, seed)
        groups_of(log, TOPIC)
    told(child, path)


def made(child: Child, path: Path) -> None:
    """An empty directory."""
    eoslog.open(path).close()


def told(child: Child, path: Path) -> None:
    """Tell how many records there are and their digest, and what each group has left."""
    from tests.kafka import world
    from tests.kafka.test_moving import essence
    from tests.kafka.test_moving_groups import left_in_log

    with eoslog.open(path) as log:
        rows = essence(world.rows_of(log, TOPIC, "read_committed"))
        child.tell("holds", [len(rows), hashlib.sha256(repr(rows).encode()).hexdigest()])
        for group in ("begun", "middle", "mixed", "done"):
            left = left_in_log(log, group, TOPIC)
            digest = hashlib.sha256(repr(left).encode()).hexdigest()
            child.tell("holds", [group, [len(part) for part in left], digest])
