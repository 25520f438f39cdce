"""Programs that exit in every way with nothing closed keep what was acknowledged.

Each acknowledged record is there once. Where exit hooks run, this also holds for the records
that `produce` accepted, unless the program was killed in the hooks or reports on stderr that
records are lost. Daemon threads produce, consume and run transactions until the interpreter
exits. None of their data is written after the clean-shutdown mark. Only the signals of the
harness end a program.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from eoslog.storage.directory.session import CLEAN_SHUTDOWN_FILE
from eoslog.storage.format import checkpoints
from eoslog.testing.history import read_history
from tests.faults.harness import live
from tests.paths import ROOT
from tests.reference import codec
from tests.torture.harness import Round, Step, excerpt
from tests.torture.harnesses.joins import founded
from tests.torture.workloads.ending_program import ENDS, ORDERLY

PATIENCE_S = 300
AT_EXIT = {"pwrite": 30, "fdatasync": 10, "fsync": 12, "rename": 8, "open": 30, "unlink": 6, "lock": 30,
           "close.alone": 1, "close.left": 1, "flush.before": 3, "flush.after": 3, "log.rolled": 2,
           "txn.prepared": 1, "txn.decided": 1, "txn.marked": 2, "txn.completed": 1}  # fmt: skip
"""Calls and failpoints of a program's exit, and about how many of each."""
LOST = ("not delivered", "may be lost")


class Ends:
    """Eight programs, one or two at a time, then the verdict."""

    name, goal = "ends", ("ends", 1_000)

    def missing(self) -> str | None:
        """It needs processes only."""
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Let programs end; then what they recorded against what is there."""
        with Round(seed) as round_:
            live(founded, round_.path).fine()
            whole: list[str] = []
            for _ in range(4):
                running = [self._begin(round_) for _ in range(round_.rng.choice((1, 2, 3)))]
                for name, end, killed, program in running:
                    if self._ended(round_.step, name, end, killed, program):
                        whole.append(name)
                round_.step.violations += behind_the_mark(round_.path)
            step = round_.verdict(crowded=True)  # the exit closes the log under a commit's markers
            history = read_history([str(round_.history)])
            found = {v for drain in history.drains.values() for v in drain.values.values()}
            for event in history.events["taken"]:
                value = event["value"]
                told = history.writes[value].outcome == "info" and history.writes[value].done
                if event["process"] in whole and value not in found and not told:
                    step.violations.append(f"lost without a word at the exit: {value}")
            step.counts["values taken"] += len(history.events["taken"])
            return step

    @staticmethod
    def _begin(round_: Round) -> tuple[str, str, bool, subprocess.Popen[str]]:
        rng = round_.rng
        end = rng.choice([*ORDERLY, *ENDS])
        fault, killed = ["none"], end in ORDERLY and rng.random() < 0.5
        if killed:
            where = rng.choice(list(AT_EXIT))
            fault = ["kill", where, str(rng.randint(1, AT_EXIT[where]))]
        name, script = round_.name(), "tests.torture.workloads.ending_program"
        words = [str(round_.path), str(round_.history), name, str(round_.seed()), end, *fault]
        program = subprocess.Popen(
            [sys.executable, "-m", script, *words], cwd=ROOT, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        return name, end, killed, program

    @staticmethod
    def _ended(
        step: Step, name: str, end: str, killed: bool, program: subprocess.Popen[str]
    ) -> bool:
        """Count an exit and check what it left.

        The caller says whether all records that the producers accepted must be there.
        """
        try:
            said = program.communicate(timeout=PATIENCE_S)[1]
        except subprocess.TimeoutExpired:
            program.kill()
            step.violations.append(f"{name} {end} and does not end: {program.communicate()[1]}")
            return False
        code = program.returncode
        step.counts["ends"] += 1
        if killed and code == -signal.SIGKILL:
            step.counts["killed at the exit"] += 1
            return False
        if code != ENDS[end][1] or "Traceback" in said:
            step.violations.append(f"{name} {end}: exit code {code}: {excerpt(said)}")
        return end in ORDERLY and not any(word in said for word in LOST)


def behind_the_mark(path: Path) -> list[str]:
    """Partitions of a directory marked clean that extend beyond their durable end."""
    if not (path / CLEAN_SHUTDOWN_FILE).exists():
        return []
    points = checkpoints.read_offsets(str(path / checkpoints.RECOVERY_POINT_CHECKPOINT))
    wrong = []
    for (topic, partition), point in points.items():
        folder = path / f"{topic}-{partition}"
        ends = [
            batch.last_offset + 1
            for file in folder.glob("*.log")
            for batch in codec.iter_batches(file.read_bytes(), records=False)
        ]
        if max(ends, default=point) > point:
            wrong.append(f"marked clean: {folder.name} ends at {max(ends)}, recovery point {point}")
    return wrong
