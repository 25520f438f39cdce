"""Break the code on purpose, one line at a time, and show that the test of each row notices.

`tests/mutations.toml` holds, for each row of the mission (`A01`) and of the protocol (`P01`), a test
and a change of one line that must make it fail; `tests/mutation_sites.py` makes one for each place
that flushes, locks, publishes or checks. They are applied to copies of the source, two at a time:

    python tests/mutants.py [--jobs N] [ROW|FILE...]    apply them; 1 if one survives
    python tests/mutants.py --docs                      write their tables into docs/

A change of the compiled core is compiled without optimisation in the copy that it is made in.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(os.environ.get("EOSLOG_SOURCE", Path(__file__).resolve().parent.parent))
DATA = Path(__file__).with_name("mutations.toml")
COPIED = (
    "eoslog", "spark", "tests", "examples", "docs", "bench", "pyproject.toml", "setup.py", "README.md",
    "CHANGELOG.md", "Makefile",
)  # fmt: skip
CORE_SUFFIXES = (".pyx", ".pxi", ".pxd", ".c", ".h")
BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"
TEST_TIMEOUT_S = 240
LAST_ROW = {
    "A": 26, "B": 16, "C": 13, "D": 7, "E": 35, "F": 12, "G": 10, "H": 8, "I": 9, "J": 3, "K": 7,
}  # fmt: skip
COMPARED_ROWS = ["L01", "L02", "L04", "L06", "L07", "L09", "L10", "L11", "M01", "M02"]


@dataclass(frozen=True)
class Mutant:
    """A change of `original`, which `file` has once, and the test that must fail with it."""

    row: str
    test: str
    file: str
    original: str
    mutated: str

    @property
    def name(self) -> str:
        """The test's name, without its file and parameters."""
        return self.test.rsplit("::", 1)[-1].partition("[")[0]

    @property
    def in_core(self) -> bool:
        """Whether the core has to be compiled anew."""
        return self.file.endswith(CORE_SUFFIXES)

    def changed(self, text: str) -> str:
        """The file's text with the change."""
        if text.count(self.original) != 1:
            raise SystemExit(f"{self.row}: {text.count(self.original)} x {self.original!r} in {self.file}")  # fmt: skip
        return text.replace(self.original, self.mutated)


def load() -> list[Mutant]:
    """The recorded mutants, in the order of the rows."""
    rows = tomllib.loads(DATA.read_text())["mutant"]
    return [Mutant(**row) for row in rows]


def open_rows() -> dict[str, str]:
    """The rows without a test, with the reason."""
    return dict(tomllib.loads(DATA.read_text())["open"])


# --- copies of the source ---------------------------------------------------------------------


class Copy:
    """A copy of the source that mutants are applied to, one after another."""

    def __init__(self, root: Path) -> None:
        """Copy the source, with the compiled core of the installed package (else the one beside it)."""
        self.root = root
        root.mkdir()
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "_core.c", "build")
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=ignored)
            elif source.exists():
                shutil.copy2(source, root / name)
        spec = importlib.util.find_spec("eoslog")
        package = Path(spec.origin).parent if spec and spec.origin else ROOT / "eoslog"
        self._core = root / "unchanged"
        self._core.mkdir()
        for library in package.glob("_core*.so"):
            shutil.copy2(library, self._core)
        self._use_unchanged_core()
        where = self._python("-c", "import eoslog; print(eoslog.__file__)").stdout.strip()
        if not where.startswith(str(root.resolve())):
            raise SystemExit(f"the copy in {root} is not what is imported: {where}")

    def _use_unchanged_core(self) -> None:
        for library in (self.root / "eoslog").glob("_core*.so"):
            library.unlink()
        for library in self._core.iterdir():
            shutil.copy2(library, self.root / "eoslog" / library.name)

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self.root}:{self.root / 'spark'}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "EOSLOG_SOURCE": str(self.root),
            "EOSLOG_OPTIMIZE": "-O0",
        }
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.root, env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip

    def run(self, *tests: str) -> subprocess.CompletedProcess[str]:
        """Run tests until one fails."""
        return self._python(
            "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", "-rN",
            f"--timeout={TEST_TIMEOUT_S}", f"--basetemp={self.root / 'tmp'}", *tests,
        )  # fmt: skip

    def kill(self, mutant: Mutant) -> tuple[bool, float]:
        """Whether the test fails on the changed code, and how long that took in seconds."""
        started = time.monotonic()
        path = self.root / mutant.file
        text = path.read_text()
        path.write_text(mutant.changed(text))
        try:
            if mutant.in_core:
                self._use_unchanged_core()
                for library in (self.root / "eoslog").glob("_core*.so"):
                    library.unlink()
                built = self._python("setup.py", "-q", "build_ext", "--inplace")
                if built.returncode:
                    raise SystemExit(f"{mutant.row}: no core:\n{built.stdout[-2000:]}")
            result = self.run(mutant.test)
        finally:
            path.write_text(text)
            if mutant.in_core:
                self._use_unchanged_core()
        if result.returncode > 1:  # pytest itself; a signal (below 0) is a crash of the test
            raise SystemExit(f"{mutant.row}: pytest ended with {result.returncode}\n{result.stdout[-2000:]}")  # fmt: skip
        if os.environ.get("SHOW"):
            print(result.stdout[-1500:])
        return result.returncode != 0, time.monotonic() - started


def show(chosen: list[Mutant], jobs: int) -> int:
    """Apply mutants and print what became of each; the exit code."""
    width = max(len(m.row) for m in chosen)
    survivors: list[Mutant] = []
    done = 0
    output = threading.Lock()
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(jobs):
            copies.put(Copy(Path(place) / str(number)))
        clean = copies.get()
        unchanged = clean.run(*sorted({m.test for m in chosen}))
        copies.put(clean)
        if unchanged.returncode:
            print(unchanged.stdout[-4000:])
            print("the tests fail on the unchanged code: nothing is shown by their failing")
            return 2

        def work(mutant: Mutant) -> None:
            nonlocal done
            copy = copies.get()
            try:
                killed, seconds = copy.kill(mutant)
            finally:
                copies.put(copy)
            with output:
                done += 1
                if not killed:
                    survivors.append(mutant)
                verdict = "killed  " if killed else "SURVIVED"
                print(f"[{done}/{len(chosen)}] {mutant.row:{width}} {verdict} {seconds:5.1f} s  {mutant.test}", flush=True)  # fmt: skip

        with ThreadPoolExecutor(jobs) as pool:
            for future in [pool.submit(work, mutant) for mutant in chosen]:
                future.result()
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed")
    for mutant in survivors:
        print(f"survived: {mutant.row} {mutant.file}: {mutant.original!r} -> {mutant.mutated!r}")
    return int(bool(survivors))


# --- tables -----------------------------------------------------------------------------------


def rows() -> list[str]:
    """Every row of the mission that is due now, in order."""
    found = [f"{letter}{n:02}" for letter, end in LAST_ROW.items() for n in range(1, end + 1)]
    return found + COMPARED_ROWS


def tests_of() -> dict[str, list[str]]:
    """The tests that carry a row's id in their name."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in re.findall(r"def (test_\w+)\(", path.read_text()):
            for row in re.findall(r"(?<![A-Za-z0-9])([A-M]\d\d)(?=_)", name.replace("test_", " ")):
                found.setdefault(row, []).append(name)
    return found


def change(mutant: Mutant) -> str:
    """A cell of the table: what is changed, where."""

    def code(text: str) -> str:
        text = " ".join(text.split()).replace("|", "\\|")
        return f"`{text}`" if text else "(nothing)"

    return f"`{mutant.file}`: {code(mutant.original)} → {code(mutant.mutated)}"


def table() -> str:
    """The rows of `docs/guarantees.md`."""
    mutants = {mutant.row: mutant for mutant in load()}
    tests, later = tests_of(), open_rows()
    lines = ["| row | test | the change that it notices |", "|---|---|---|"]
    for row in rows():
        if row in later:
            continue
        m = mutants.get(row)
        if m is None:
            names = ", ".join(f"`{name}`" for name in tests[row])
            lines.append(f"| {row} | {names} | none recorded yet |")
        else:
            lines.append(f"| {row} | `{m.name}` | {change(m)} |")
    lines += ["", "Open, wholly or in part:", "", "| row | why |", "|---|---|"]
    lines += [f"| {row} | {why} |" for row, why in later.items()]
    return "\n".join(lines)


def relocate() -> None:
    """Correct the file of a recorded mutant whose line has moved to another one."""
    text = DATA.read_text()
    sources = {
        str(path.relative_to(ROOT)): path.read_text()
        for path in (ROOT / "eoslog").rglob("*.p*") if path.suffix in (".py", ".pxi", ".pxd", ".pyx")
    }  # fmt: skip
    for mutant in load():
        if mutant.original in sources.get(mutant.file, mutant.original):
            continue
        found = [name for name, source in sources.items() if source.count(mutant.original) == 1]
        if len(found) == 1:
            block = re.compile(
                f'(row = "{mutant.row}"\ntest = "[^"]*"\nfile = ")({re.escape(mutant.file)})"'
            )
            text = block.sub(lambda m, to=found[0]: f'{m[1]}{to}"', text)
    DATA.write_text(text)


def write_docs() -> None:
    """Write the tables into the docs."""
    relocate()
    path = ROOT / "docs" / "guarantees.md"
    text = path.read_text()
    pattern = re.compile(f"{BEGIN}.*{END}", re.DOTALL)
    path.write_text(pattern.sub(lambda _: f"{BEGIN}\n{table()}\n{END}", text))


def main(arguments: Iterable[str]) -> int:
    """Apply the mutants of the named rows or files (all, if none is named); 1 if one survives."""
    words = list(arguments)
    if "--docs" in words:
        write_docs()
        return 0
    jobs = 2
    if "--jobs" in words:
        at = words.index("--jobs")
        jobs = int(words[at + 1])
        del words[at : at + 2]
    chosen = [m for m in load() if not words or {m.row, m.file} & set(words)]
    if not chosen:
        raise SystemExit(f"no mutant of {' '.join(words)}")
    return show(chosen, jobs)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
