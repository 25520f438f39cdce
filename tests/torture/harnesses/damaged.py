"""Each file of a directory removed, emptied, cut, zeroed, swapped or changed.

A change extends the file or flips one bit. One damage in ten affects derived files of many
segments together.

The directory of `operations.fill` is created twice per process: closed clean, and killed after
a flush. Each damage gets a fresh copy, on which readers and deletions run. A pair is one damage
and one of them.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from eoslog.cli import main as command
from eoslog.storage.directory.session import CONTROL_FILE
from tests.torture.harness import MEMORY, Step
from tests.torture.oracles.operations import (
    PARTITIONS,
    Known,
    attempts,
    choose,
    fill,
    learn,
    require_variety,
    retention,
    rows,
    timestamp_of,
)


def killed(path: Path) -> None:
    """The directory, by a process that is killed when all is durable."""
    pid = os.fork()
    if not pid:
        fill(path)
        os.kill(os.getpid(), 9)
    assert os.waitpid(pid, 0)[1] == 9


# --- damages --------------------------------------------------------------------------------------

KINDS = (
    "remove", "empty", "cut", "zero", "zero a part", "swap", "extend by zeros", "extend by itself",
    "extend by junk", "swap entries", "flip",
)  # fmt: skip
_DERIVED = (".index", ".timeindex", ".txnindex", ".seal", ".snapshot")
_ENTRY = {".index": 8, ".timeindex": 12, ".txnindex": 34, ".snapshot": 46}


def newest(file: Path) -> bool:
    """Whether it is the log file of a partition's active segment."""
    return file.suffix == ".log" and file == max(file.parent.glob("*.log"))


def damage_several(rng: random.Random, root: Path) -> str:
    """Damage derived files of many segments together and return what was done."""
    suffixes = rng.sample(_DERIVED, rng.randint(1, len(_DERIVED)))
    where = rng.choice(("*", "a-0", "a-1", "b-0", "c-0", "__*"))
    kinds = rng.choice((["remove"], ["empty"], ["junk"], ["flip"], ["remove", "junk", "flip"]))
    for file in sorted(f for suffix in suffixes for f in root.glob(f"{where}/*{suffix}")):
        data, kind = file.read_bytes(), rng.choice(kinds)
        if kind == "remove":
            file.unlink()
        elif kind == "flip" and data:
            file.write_bytes(flipped(data, rng.randrange(8 * len(data))))
        else:
            file.write_bytes(rng.randbytes(len(data)) if kind == "junk" else b"")
    return f"{' or '.join(kinds)} all {' '.join(suffixes)} in {where}"


def flipped(data: bytes, bit: int) -> bytes:
    """The bytes with one bit flipped."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def damage(rng: random.Random, root: Path, *, killed: bool) -> tuple[str, bool]:
    """Damage one file, or derived files of one kind or several.

    Returns:
        (what was done, whether the files alone say where a log ends).
    """
    if rng.random() < 0.1:
        return damage_several(rng, root), True
    files = sorted(p for p in root.rglob("*") if p.is_file())
    # Half of the damages go to files that are derived or carry no checksum.
    derived = [
        p
        for p in files
        if p.suffix not in ("", ".log") or "checkpoint" in p.name or p.parent == root
    ]
    file = rng.choice(derived if rng.random() < 0.6 else files)
    kind = rng.choice(KINDS)
    name = str(file.relative_to(root))
    alone = not (killed and newest(file))
    if not alone:
        # The page of a killed session is not evidence, because it may be another copy's. A log
        # that ends between two batches above its recovery point is therefore accepted as it is.
        kind = "flip"
    if kind == "swap":
        alike = [p for p in files if p.suffix == file.suffix and p != file and p.suffix]
        # Nothing says whose an active segment's batches are after a kill.
        if file.suffix == ".log" and killed:
            alike = []
        if not alike:
            kind = "flip"
        else:
            other = rng.choice(alike)
            one, two = file.read_bytes(), other.read_bytes()
            file.write_bytes(two)
            other.write_bytes(one)
            return f"swap {name} and {other.relative_to(root)}", alone
    data = file.read_bytes()
    size = min(len(data), 140_000)  # of the control file, what is in use
    if file.suffix == ".log":
        size = min(size, len(data.rstrip(b"\0")) + 64)  # a little of what is preallocated
    if kind == "remove":
        file.unlink()
        return f"remove {name}", alone
    if kind == "flip" and size:
        at = rng.randrange(8 * size)
        file.write_bytes(flipped(data, at))
        return f"flip bit {at} of {name}", alone
    at = rng.randrange(size + 1)
    entry = _ENTRY.get(file.suffix, 7)
    if kind == "swap entries" and len(data) >= 2 * entry:
        first = rng.randrange(len(data) // entry - 1) * entry
        middle, last = first + entry, first + 2 * entry
        file.write_bytes(data[:first] + data[middle:last] + data[first:middle] + data[last:])
        return f"swap the entries at {first} of {name}", alone
    with file.open("r+b") as out:
        if kind == "cut":
            out.truncate(at)
        elif kind == "zero":
            out.write(bytes(size))
        elif kind == "zero a part":
            out.seek(at)
            out.write(bytes(min(64, size - at)))
        elif kind.startswith("extend"):
            out.seek(0, os.SEEK_END)
            out.write({"z": bytes(64), "i": data[-at:][:4096], "j": rng.randbytes(64)}[kind[10]])
        else:
            out.truncate(0)
    return f"{kind} {name} ({at})", alone


# --- harnesses ------------------------------------------------------------------------------------


class Templates:
    """The directories that copies are made of, and what they hold; made at first use."""

    def __init__(self) -> None:
        self.place: Path | None = None
        self.known: dict[str, Known] = {}

    def make(self) -> Path:
        """Create the folder that contains them."""
        if self.place is None:
            self.place = Path(
                tempfile.mkdtemp(prefix="eoslog-damaged-", dir=MEMORY if MEMORY.is_dir() else None)
            )
            fill(self.place / "clean").close()
            killed(self.place / "killed")
            for name in ("clean", "killed"):
                self.known[name] = learn(partial(self.copy, name, "learn"))
                require_variety(self.known[name])
        return self.place

    def copy(self, name: str, suffix: str) -> Path:
        """A fresh copy of one."""
        assert self.place is not None
        target = self.place / f"{name}-{suffix}"
        shutil.copytree(self.place / name, target, copy_function=_copy)
        return target

    def close(self) -> None:
        """Remove them."""
        if self.place is not None:
            shutil.rmtree(self.place, ignore_errors=True)
            self.place = None


def _copy(source: str, target: str) -> None:
    """Leave holes where zeros are: the control file is a megabyte."""
    data = Path(source).read_bytes()
    with open(target, "wb") as out:
        used = len(data.rstrip(b"\0")) if os.path.basename(source) == CONTROL_FILE else len(data)
        out.write(data[:used])
        out.truncate(len(data))


class Damaged:
    """Some seven hundred pairs per step."""

    name, goal = "damaged files", ("pairs", 100_000)

    def __init__(self) -> None:
        self._templates = Templates()

    def missing(self) -> str | None:
        """It needs fork only."""
        return None

    def close(self) -> None:
        """Remove the templates."""
        self._templates.close()

    def step(self, seed: int) -> Step:
        """Damage forty copies."""
        rng, step = random.Random(seed), Step()
        logging.disable(logging.CRITICAL)
        try:
            self._templates.make()
            for number in range(40):
                self._one(random.Random(rng.randrange(1 << 60)), f"{seed}-{number}", step)
        finally:
            logging.disable(logging.NOTSET)
        return step

    def _one(self, rng: random.Random, suffix: str, step: Step) -> None:
        kind = rng.choice(("clean", "killed"))
        known, path = self._templates.known[kind], self._templates.copy(kind, suffix)
        try:
            what, alone = damage(rng, path, killed=kind == "killed")
            read_only = rng.random() < 0.4
            chosen = choose(rng, files_alone=alone, read_only=read_only)
            found = attempts(path, chosen, known, step.counts, read_only=read_only)
            about = f"{kind}{' read-only' * read_only}: {what}"
            step.violations += [f"{about}: {wrong} (in {', '.join(chosen)})" for wrong in found]
        finally:
            shutil.rmtree(path, ignore_errors=True)


class DamagedCommands(Damaged):
    """The same through the commands that read and delete, in process."""

    name, goal = "damaged files, commands", ("commands", 500)

    def step(self, seed: int) -> Step:
        """Damage twelve copies, and run commands on each."""
        rng, step = random.Random(seed), Step()
        logging.disable(logging.CRITICAL)
        try:
            self._templates.make()
            for number in range(12):
                self._commands(random.Random(rng.randrange(1 << 60)), f"{seed}-c{number}", step)
        finally:
            logging.disable(logging.NOTSET)
        return step

    def _commands(self, rng: random.Random, suffix: str, step: Step) -> None:
        kind = rng.choice(("clean", "killed"))
        known, path = self._templates.known[kind], self._templates.copy(kind, suffix)
        try:
            what, _ = damage(rng, path, killed=kind == "killed")
            chosen = rng.sample(sorted(COMMANDS), 3)
            for name in [*chosen, rng.choice(sorted(CLEANINGS))]:
                step.counts["commands"] += 1
                wrong = (COMMANDS | CLEANINGS)[name](path, known)
                if wrong:
                    step.violations.append(f"{kind}: {what}: {name}: {wrong} (in {chosen})")
        finally:
            shutil.rmtree(path, ignore_errors=True)


# --- commands -------------------------------------------------------------------------------------

Command = Callable[[Path, Known], str]
"""Runs a command and returns what is wrong with what it prints, empty if nothing is."""


def consumed(topic: str, options: list[str], what: str, path: Path, known: Known) -> str:
    """`consume` prints the records of a topic, or fails after a correct beginning."""
    wanted = [row for row in known[what] if row[0] == topic]
    return printed(path, ["consume", topic, *options], wanted)


def printed(path: Path, arguments: list[str], wanted: list[Any]) -> str:
    """Compare the records that a command prints with those that it must print."""
    code, out = run_command(["-d", str(path), "--format", "jsonl", *arguments])
    if code is None:
        return f"a traceback: {out[-300:]}"
    found = [record_row(json.loads(line)) for line in out.splitlines()]
    for partition in {row[1] for row in wanted + found}:  # damage in one does not end the others
        some = [row for row in found if row[1] == partition]
        right = [row for row in wanted if row[1] == partition]
        if some != right[: len(some)] or (code == 0 and len(some) != len(right)):
            return (
                f"exit {code}, {len(some)} records of partition {partition}, "
                f"expected {len(right)}: {str(some)[-200:]}"
            )
    return ""


def record_row(line: dict[str, Any]) -> tuple[Any, ...]:
    """The row of `operations.row_of`, of a line that `consume` printed."""
    key, value = (None if line[x] is None else line[x].encode() for x in ("key", "value"))
    return line["topic"], line["partition"], line["offset"], line["timestamp"], key, value


def offsets(path: Path, known: Known) -> str:
    """`offsets --at` prints log starts, ends and an offset by time."""
    for when in (timestamp_of(20) - 1, timestamp_of(100) - 1):
        code, out = run_command(
            ["-d", str(path), "--format", "jsonl", "offsets", "b", "--at", str(when)]
        )
        if code is None:
            return f"a traceback: {out[-300:]}"
        tp = PARTITIONS[2]
        wanted = (known["starts"][tp], known["ends"][tp], known["by time"][tp, when])
        for line in map(json.loads, out.splitlines()):
            if (line["log_start"], line["log_end"], line["at"]) != wanted:
                return f"exit {code}, {line}, expected {wanted}"
    return ""


def speaks(arguments: list[str], path: Path, known: Known) -> str:
    """A command ends with an exit code of its own, not with a traceback."""
    code, out = run_command(["-d", str(path), "--format", "jsonl", *arguments])
    return f"a traceback: {out[-300:]}" if code is None else ""


def retained(name: str, path: Path, known: Known) -> str:
    """`compact` removes by retention what is due and nothing else."""
    b = PARTITIONS[2]
    pairs = [x for key, value in retention(name).items() for x in ("-c", f"{key}={value}")]
    for arguments in (["topic", "alter", "b", *pairs], ["compact", "-t", "b"]):
        if wrong := speaks(arguments, path, known):
            return wrong
    code, out = run_command(["-d", str(path), "--format", "jsonl", "offsets", "b"])
    if code is None:
        return f"a traceback: {out[-300:]}"
    for line in map(json.loads, out.splitlines()):
        start = line["log_start"]
        if start > known["starts after"][name][b]:
            return f"{b} starts at {start}, expected at most {known['starts after'][name][b]}"
        return printed(path, ["consume", "b"], rows(known, b, start))
    return ""


COMMANDS: dict[str, Command] = {
    "consume a": partial(consumed, "a", [], "read"),
    "consume b": partial(consumed, "b", [], "read"),
    "consume c": partial(consumed, "c", [], "compacted"),
    "consume uncommitted": partial(
        consumed, "a", ["--isolation", "read_uncommitted"], "uncommitted"
    ),
    "offsets": offsets,
    "check": partial(speaks, ["check"]),
    "stats": partial(speaks, ["stats"]),
    "group": partial(speaks, ["group", "describe", "g"]),
    "why": partial(speaks, ["why"]),
}
CLEANINGS: dict[str, Command] = {
    name: partial(retained, name) for name in ("nothing due", "some due", "by size, some")
}


def run_command(arguments: list[str]) -> tuple[int | None, str]:
    """Run the command in this process and return (exit code, stdout).

    After an exception, the exit code is None and the text is the last line of the traceback.
    """
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            return command(arguments), out.getvalue()
    except SystemExit as error:
        return int(error.code or 0), out.getvalue()
    except Exception as error:
        return None, repr(error)
