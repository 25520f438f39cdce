"""Break the code on purpose, one line at a time, and check that a test fails.

`tests/mutation/mutations.toml` holds, for each row of the mission (`A01`) and of the protocol
(`P01`), a test and a change of one line that must make it fail.
`tests/mutation/mutation_sites.py` adds a mutant for each place that flushes, locks, publishes
or checks, and one for each guard that it lists. They are applied to copies of the source, two at a time:

    python tests/mutation/mutants.py [--jobs N] [ROW|FILE...]    apply them; 1 if one survives
        --no-baseline: the tests are known to pass on the unchanged code
    python tests/mutation/mutants.py --docs                      write their tables into docs/

A change of the compiled core is compiled without optimisation in the copy that has the change.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import os
import queue
import re
import shutil
import signal
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.mutation import mutation_sites  # noqa: E402

ROOT = Path(os.environ.get("EOSLOG_SOURCE", Path(__file__).resolve().parents[2]))
DATA = Path(__file__).with_name("mutations.toml")
CACHE = ROOT / ".make" / "mutants"
COPIED = (
    "eoslog", "spark", "tests", "examples", "docs", "bench", "pyproject.toml", "setup.py", "README.md",
    "CHANGELOG.md", "Makefile",
)  # fmt: skip
CORE_SUFFIXES = (".pyx", ".pxi", ".pxd", ".c", ".h")
BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"
TEST_TIMEOUT_S = 120
KILL_AFTER_S = (
    3 * TEST_TIMEOUT_S
)  # a test that hangs in the core does not hear pytest's own timeout
LAST_ROW = {
    "A": 26, "B": 16, "C": 13, "D": 7, "E": 35, "F": 12, "G": 10, "H": 8, "I": 9, "J": 3, "K": 7,
}  # fmt: skip
PROTOCOL_ROWS = 51
COMPARED_ROWS = [
    "L01", "L02", "L03", "L04", "L05", "L06", "L07", "L08", "L09", "L10", "L11", "L12", "L13", "L14",
    "M01", "M02", "M03",
    "N01", "N02", "N03", "N04", "N05", "N06", "N07", "N08", "N09", "N10", "N11", "N12", "N13", "N14",
    "N15", "N16",
    "N17", "N18", "N19",
]  # fmt: skip


class Broken(Exception):
    """A mutant that shows nothing.

    Its line is missing, it does not compile, or its test is not found.
    """


@dataclass(frozen=True)
class Mutant:
    """A change of `original`, and the test that must fail with it.

    `file` has it once, or at `line`. With `switch` from 0 on it is one of those that a single build
    of the core holds (`mutation_sites.with_switches`).
    """

    row: str
    test: str
    file: str
    original: str
    mutated: str
    line: int = 0
    switch: int = -1

    @property
    def name(self) -> str:
        """The test's name, without its file and parameters."""
        return self.test.rsplit("::", 1)[-1].partition("[")[0]

    @property
    def in_core(self) -> bool:
        """Whether the core has to be compiled again."""
        return self.file.endswith(CORE_SUFFIXES)

    def changed(self, text: str) -> str:
        """The file's text with the change."""
        if self.line:
            lines = text.splitlines(keepends=True)
            last = self.line - 1 + self.original.count("\n")
            if "".join(lines[self.line - 1 : last]) != self.original:
                raise Broken(f"line {self.line} is not {self.original!r}")
            return "".join([*lines[: self.line - 1], self.mutated, *lines[last:]])
        if text.count(self.original) != 1:
            raise Broken(f"stands {text.count(self.original)} times: {self.original!r}")
        return text.replace(self.original, self.mutated)


def load() -> list[Mutant]:
    """The recorded mutants, in the order of the rows."""
    rows = tomllib.loads(DATA.read_text())["mutant"]
    return [Mutant(**row) for row in rows]


def load_sites() -> list[Mutant]:
    """One mutant for each place that flushes, locks, publishes or checks.

    Each place has its test.
    """
    found, tests = mutation_sites.sites(ROOT), mutation_sites.harnesses()
    return [
        Mutant(s.name, tests[s.name], s.file, s.original, s.mutated, s.line, n if s.in_core else -1)
        for n, s in enumerate(found) if s.name in tests
    ]  # fmt: skip


def load_guards() -> list[Mutant]:
    """One mutant for each listed guard; its row is the file."""
    return [Mutant(row=guard["file"], **guard) for guard in mutation_sites.guards()]


def open_rows() -> dict[str, str]:
    """The rows without a test, with the reason."""
    return dict(tomllib.loads(DATA.read_text())["open"])


# --- copies of the source ---------------------------------------------------------------------


def _newest_core() -> Path:
    """The compiled core of the installed package, or the one next to the source."""
    elsewhere = [place for place in sys.path if Path(place).resolve() != ROOT.resolve()]
    spec = importlib.machinery.PathFinder.find_spec("eoslog", elsewhere)
    places = [ROOT / "eoslog"]
    if spec is not None and spec.origin:
        places.append(Path(spec.origin).parent)
    found = [library for place in places for library in place.glob("_core*.so")]
    if not found:
        raise SystemExit("no compiled core: run `make build`")
    return max(found, key=lambda library: library.stat().st_mtime)


class Copy:
    """A copy of the source that mutants are applied to, one after another."""

    def __init__(self, root: Path) -> None:
        """Copy the source, and the compiled core that is the newest."""
        self.root = root
        self._group = 0  # of the process that runs
        root.mkdir()
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "_core.c", "build")
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=ignored)
            elif source.exists():
                shutil.copy2(source, root / name)
        self._core = root / "unchanged"
        self._core.mkdir()
        shutil.copy2(_newest_core(), self._core)
        self._use_unchanged_core()
        where = self._python("-c", "import eoslog; print(eoslog.__file__)").stdout.strip()
        if not where.startswith(str(root.resolve())):
            raise SystemExit(f"the copy in {root} is not what is imported: {where}")

    def _use_unchanged_core(self) -> None:
        for library in (self.root / "eoslog").glob("_core*.so"):
            library.unlink()
        for library in self._core.iterdir():
            shutil.copy2(library, self.root / "eoslog" / library.name)

    def _python(
        self, *arguments: str, switch: int = -1, limit: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run Python in the copy for at most `limit` seconds and end its processes."""
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self.root}:{self.root / 'spark'}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "EOSLOG_SOURCE": str(self.root),
            "EOSLOG_OPTIMIZE": "-O0",
            "EOSLOG_MUTANT": str(switch),
        }
        with tempfile.TemporaryFile(
            "w+", errors="replace"
        ) as output:  # a pipe stays open with orphans
            process = subprocess.Popen(
                [sys.executable, *arguments], cwd=self.root, env=environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            self._group = process.pid
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                output.write(f"killed after {limit} s\n")
            finally:
                self.end()
                code = process.wait()
            output.seek(0)
            return subprocess.CompletedProcess(process.args, code, output.read())

    def end(self) -> None:
        """Kill what runs in the copy, with all that it has started."""
        group, self._group = self._group, 0
        if group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    def run(
        self, *tests: str, switch: int = -1, limit: float | None = None, first: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run tests, until the first one fails or all."""
        return self._python(
            "-m", "pytest", "-q", *("-x",) * first, "-p", "no:cacheprovider", "--no-header", "-rfE",
            f"--timeout={TEST_TIMEOUT_S}", f"--basetemp={self.root / 'tmp'}", *tests,
            switch=switch, limit=limit,
        )  # fmt: skip

    def _build_core(self) -> None:
        """Compile the core as it is, unless the same sources were compiled before."""
        package = self.root / "eoslog"
        sources = [
            self.root / "setup.py",
            package / "_core.pyx",
            *sorted(package.glob("_core/**/*")),
        ]
        digest = hashlib.sha256(sys.version.encode())
        for path in sources:
            if path.suffix in (".py", *CORE_SUFFIXES) and path.name != "_core.c":
                digest.update(path.read_bytes())
        cached = CACHE / digest.hexdigest()[:32]
        for library in package.glob("_core*.so"):
            library.unlink()
        if not cached.exists():
            built = self._python("setup.py", "-q", "build_ext", "--inplace")
            if built.returncode:
                raise Broken(f"no core:\n{built.stdout[-2000:]}")
            cached.mkdir(parents=True, exist_ok=True)  # another job may have built the same
            for library in package.glob("_core*.so"):
                shutil.copy2(library, cached)
            return
        for library in cached.iterdir():
            shutil.copy2(library, package)

    def kill(self, mutant: Mutant) -> tuple[bool, float]:
        """Whether the test fails on the changed code, and how long that took in seconds."""
        started = time.monotonic()
        texts = {path: path.read_text() for path in (self.root / "eoslog").glob("_core/**/*.pxi")}
        for path in (self.root / mutant.file, self.root / "eoslog" / "_core.pyx"):
            texts[path] = path.read_text()
        try:
            if mutant.switch >= 0:
                mutation_sites.with_switches(self.root, mutation_sites.sites(self.root))
            else:
                path = self.root / mutant.file
                path.write_text(mutant.changed(texts[path]))
            if mutant.in_core:
                self._build_core()
            result = self.run(mutant.test, switch=mutant.switch, limit=KILL_AFTER_S)
        finally:
            for path, text in texts.items():
                path.write_text(text)
            if mutant.in_core:
                self._use_unchanged_core()
        if result.returncode > 1:  # pytest itself; a signal (below 0) is a crash of the test
            raise Broken(f"pytest ended with {result.returncode}\n{result.stdout[-2000:]}")
        if os.environ.get("SHOW"):
            print(result.stdout[-1500:])
        return result.returncode != 0, time.monotonic() - started


def show(chosen: list[Mutant], jobs: int, baseline: bool) -> int:
    """Apply mutants and print what became of each; the exit code."""
    width = max(len(m.row) for m in chosen)
    survivors: list[str] = []
    done = 0
    output = threading.Lock()
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        every = [Copy(Path(place) / str(number)) for number in range(jobs)]
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for copy in every:
            copies.put(copy)

        failing: dict[str, str] = {}

        def unchanged(tests: list[str]) -> None:
            copy = copies.get()
            try:
                result = copy.run(*tests, first=False)
            finally:
                copies.put(copy)
            found = [
                t for t in tests if f"FAILED {t}" in result.stdout or f"ERROR {t}" in result.stdout
            ]
            if result.returncode and not found:
                raise SystemExit(
                    f"{result.stdout[-4000:]}\nthe tests do not run on the unchanged code"
                )
            failing.update(dict.fromkeys(found, result.stdout))

        def work(mutant: Mutant) -> None:
            nonlocal done
            copy = copies.get()
            verdict, seconds, trouble = "BROKEN  ", 0.0, ""
            try:
                if mutant.test in failing:
                    raise Broken("its test fails on the unchanged code")
                killed, seconds = copy.kill(mutant)
                verdict = "killed  " if killed else "SURVIVED"
                trouble = "" if killed else f"{mutant.original!r} -> {mutant.mutated!r}"
            except Broken as error:
                trouble = str(error)
            finally:
                copies.put(copy)
            with output:
                done += 1
                if trouble:
                    survivors.append(f"{verdict.strip()}: {mutant.row} {mutant.file}: {trouble}")
                print(f"[{done}/{len(chosen)}] {mutant.row:{width}} {verdict} {seconds:5.1f} s  {mutant.test}", flush=True)  # fmt: skip

        with ThreadPoolExecutor(jobs) as pool:
            try:
                tests = sorted({m.test for m in chosen}) if baseline else []
                slices = [tests[n::jobs] for n in range(jobs) if tests[n::jobs]]
                for _ in pool.map(unchanged, slices):
                    pass
                for output_of in sorted(set(failing.values())):
                    print(output_of[-8000:], flush=True)
                for future in [pool.submit(work, mutant) for mutant in chosen]:
                    future.result()
            except BaseException:  # stopped: what runs must not run on
                pool.shutdown(wait=False, cancel_futures=True)
                for copy in every:
                    copy.end()
                raise
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed")
    print(*survivors, sep="\n", end="\n" * bool(survivors))
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
            for row in re.findall(r"(?<![A-Za-z0-9])([A-N]\d\d)(?=_)", name.replace("test_", " ")):
                found.setdefault(row, []).append(name)
    return found


def change(mutant: Mutant) -> str:
    """A cell of the table: what is changed, where."""

    def code(text: str) -> str:
        text = " ".join(text.split()).replace("|", "\\|")
        return f"`{text}`" if text else "(nothing)"

    return f"`{mutant.file}`: {code(mutant.original)} → {code(mutant.mutated)}"


def table() -> str:
    """The rows of `docs/contributing/guarantee-tests.md`."""
    mutants = {mutant.row: mutant for mutant in load()}
    tests, later = tests_of(), open_rows()
    lines = ["| Row | Test | Change that it notices |", "|---|---|---|"]
    for row in rows():
        if row in later:
            continue
        m = mutants.get(row)
        if m is None:
            names = ", ".join(f"`{name}`" for name in tests[row])
            lines.append(f"| {row} | {names} | none recorded yet |")
        else:
            lines.append(f"| {row} | `{m.name}` | {change(m)} |")
    lines += ["", "Not covered, or only in part:", "", "| Row | Why |", "|---|---|"]
    lines += [f"| {row} | {why} |" for row, why in later.items()]
    return "\n".join(lines)


def protocol_table() -> str:
    """The rows of `docs/contributing/protocol.md`: row, test and mutation.

    A row without a mutation has the reason.
    """
    mutants = {mutant.row: mutant for mutant in load()}
    later = dict(tomllib.loads(DATA.read_text())["open_protocol"])
    lines = ["| Row | Test | Change that it notices |", "|---|---|---|"]
    for number in range(1, PROTOCOL_ROWS + 1):
        row = f"P{number:02}"
        if row in mutants:
            lines.append(f"| {number} | `{mutants[row].name}` | {change(mutants[row])} |")
        else:
            lines.append(f"| {number} | | {later[row]} |")
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
    pattern = re.compile(f"{BEGIN}.*{END}", re.DOTALL)
    for name, content in TABLES.items():
        path = ROOT / "docs" / name
        text = f"{BEGIN}\n{content()}\n{END}"
        path.write_text(pattern.sub(lambda _, text=text: text, path.read_text()))  # type: ignore[misc]


TABLES = {"contributing/guarantee-tests.md": table, "contributing/protocol.md": protocol_table}


def main(arguments: Iterable[str]) -> int:
    """Apply the mutants of the named rows or files; 1 if one survives.

    If none is named, all are applied.
    """
    words = list(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if "--docs" in words:
        write_docs()
        return 0
    jobs = 2
    baseline = "--no-baseline" not in words
    words = [word for word in words if word != "--no-baseline"]
    if "--jobs" in words:
        at = words.index("--jobs")
        jobs = int(words[at + 1])
        del words[at : at + 2]
    known = [*load(), *load_sites(), *load_guards()]
    chosen = [m for m in known if not words or {m.row, m.file} & set(words)]
    if not chosen:
        raise SystemExit(f"no mutant of {' '.join(words)}")
    return show(chosen, jobs, baseline)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
