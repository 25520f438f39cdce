"""Break the code on purpose, one line at a time, and show that the test of each row notices.

`tests/mutations.toml` holds, for each row of the mission, a test and a change of one line that must make it fail.
Usage: `python tests/mutants.py [ROW...]` applies them to a copy of the source, one after another;
`python tests/mutants.py --docs` writes their table into `docs/guarantees.md`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(os.environ.get("EOSLOG_SOURCE", Path(__file__).resolve().parent.parent))
DATA = Path(__file__).with_name("mutations.toml")
COPIED = ("eoslog", "spark", "tests", "examples", "docs", "pyproject.toml", "setup.py", "README.md")
CORE_SUFFIXES = (".pyx", ".pxi", ".pxd", ".c", ".h")
BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"


@dataclass(frozen=True)
class Mutant:
    """A change and the test that must fail with it."""

    row: str
    test: str
    file: str
    original: str
    mutated: str

    @property
    def name(self) -> str:
        return self.test.rsplit("::", 1)[-1]

    @property
    def in_core(self) -> bool:
        return self.file.endswith(CORE_SUFFIXES)

    def apply(self, root: Path) -> None:
        """Change the file in a copy of the source."""
        path = root / self.file
        text = path.read_text()
        if text.count(self.original) != 1:
            raise SystemExit(
                f"{self.row}: {self.original!r} is {text.count(self.original)} times in {self.file}"
            )
        path.write_text(text.replace(self.original, self.mutated))


def load() -> list[Mutant]:
    """All mutants, in the order of the rows."""
    rows = tomllib.loads(DATA.read_text())["mutant"]
    return [Mutant(**row) for row in rows]


def open_rows() -> dict[str, str]:
    """The rows without a test, with the reason."""
    return dict(tomllib.loads(DATA.read_text())["open"])


def copy_source(target: Path) -> None:
    """The source with the compiled core of the installed package beside it."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "_core.c", "build")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignored)
        elif source.exists():
            shutil.copy2(source, target / name)
    spec = importlib.util.find_spec("eoslog")
    assert spec is not None and spec.origin is not None
    for library in Path(spec.origin).parent.glob("_core*.so"):
        shutil.copy2(library, target / "eoslog" / library.name)


def python(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{root}:{root / 'spark'}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        [sys.executable, *arguments], cwd=root, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip


def run_tests(root: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    return python(
        root, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=120", "--no-header", "-rN", *tests
    )  # fmt: skip


def build_core(root: Path) -> None:
    for library in (root / "eoslog").glob("_core*.so"):
        library.unlink()
    built = python(root, "setup.py", "-q", "build_ext", "--inplace")
    if built.returncode:
        raise SystemExit(f"the core does not build:\n{built.stdout[-2000:]}")


def kill(mutant: Mutant, clean: Path) -> tuple[bool, float]:
    """Whether the test fails on the changed code, and how long that took in seconds."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        root = Path(place) / "source"
        shutil.copytree(clean, root, symlinks=True)
        mutant.apply(root)
        if mutant.in_core:
            build_core(root)
        result = run_tests(root, mutant.test)
        if result.returncode not in (0, 1):
            raise SystemExit(
                f"{mutant.row}: pytest ended with {result.returncode}\n{result.stdout[-2000:]}"
            )
        return result.returncode == 1, time.monotonic() - started


def rows() -> list[str]:
    """Every row of the mission that is due now, in order."""
    last = {
        "A": 26,
        "B": 16,
        "C": 13,
        "D": 7,
        "E": 35,
        "F": 12,
        "G": 10,
        "H": 8,
        "I": 9,
        "J": 3,
        "K": 7,
    }
    found = [f"{letter}{number:02}" for letter, end in last.items() for number in range(1, end + 1)]
    return found + ["L01", "L02", "L04", "L06", "L07", "L09", "L10", "L11", "M01", "M02"]


def tests_of() -> dict[str, list[str]]:
    """The tests that carry a row's id in their name."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in re.findall(r"def (test_\w+)\(", path.read_text()):
            for row in re.findall(r"(?<![A-Za-z0-9])([A-M]\d\d)(?=_)", name.replace("test_", " ")):
                found.setdefault(row, []).append(name)
    return found


def table() -> str:
    """The rows of `docs/guarantees.md`."""

    def code(text: str) -> str:
        text = " ".join(text.split()).replace("|", "\\|")
        return f"`{text}`" if text else "(nothing)"

    mutants = {mutant.row: mutant for mutant in load()}
    tests, later = tests_of(), open_rows()
    lines = ["| row | test | the change that it notices |", "|---|---|---|"]
    for row in rows():
        if row in later:
            continue
        m = mutants.get(row)
        if m is None:
            lines.append(
                f"| {row} | {', '.join(f'`{name}`' for name in tests[row])} | none recorded yet |"
            )
        else:
            lines.append(
                f"| {row} | `{m.name}` | `{m.file}`: {code(m.original)} → {code(m.mutated)} |"
            )
    lines += ["", "Open, wholly or in part:", "", "| row | why |", "|---|---|"]
    lines += [f"| {row} | {why} |" for row, why in later.items()]
    return "\n".join(lines)


def write_docs() -> None:
    path = ROOT / "docs" / "guarantees.md"
    text = path.read_text()
    pattern = re.compile(f"{BEGIN}.*{END}", re.DOTALL)
    path.write_text(pattern.sub(lambda _: f"{BEGIN}\n{table()}\n{END}", text))


def main(arguments: list[str]) -> int:
    """Apply the mutants of the named rows (all, if none is named); 1 if one of them survives."""
    if "--docs" in arguments:
        write_docs()
        return 0
    chosen = [m for m in load() if not arguments or m.row in arguments]
    survivors = []
    with tempfile.TemporaryDirectory(prefix="clean-") as place:
        clean = Path(place) / "source"
        clean.mkdir()
        copy_source(clean)
        unchanged = run_tests(clean, *sorted({m.test for m in chosen}))
        if unchanged.returncode:
            print(unchanged.stdout[-4000:])
            print("the tests fail on the unchanged code: nothing is shown by their failing")
            return 2
        for number, mutant in enumerate(chosen, 1):
            killed, seconds = kill(mutant, clean)
            verdict = "killed  " if killed else "SURVIVED"
            print(
                f"[{number}/{len(chosen)}] {mutant.row} {verdict} {seconds:5.1f} s  {mutant.name}",
                flush=True,
            )
            if not killed:
                survivors.append(mutant)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed")
    for mutant in survivors:
        print(f"survived: {mutant.row} {mutant.file}: {mutant.original!r} -> {mutant.mutated!r}")
    return int(bool(survivors))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
