"""A mutant for each place that flushes, locks, publishes or checks.

The places are in storage, coordinator, app and core. They are found by reading the source, so a new
one appears automatically. `tests/mutation/mutation_sites.toml` names the test that fails
without the place, by the place's name: `file:function:call`, with `#2` and so on if a function
makes the call more than once. `test_guarantees.py` requires a test, a reason or an open end for
each. Other guards, such as conditions, are in its `guard` tables.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).with_name("mutation_sites.toml")
FOLDERS = ("eoslog/storage", "eoslog/coordinator", "eoslog/app")
CORE = (
    "conditional_append", "control_file", "group_commit", "partition", "partition_lock", "partition_state", "recovery", "segment_ingest",
    "segment_roll", "segment_state",
)  # fmt: skip

STATEMENTS = re.compile(
    r"^(flush|flush_many|sync|os_sync|fsync_dir|make_durable|make_names_durable|poison|unlock|unlock_after_recovery"
    r"|_mark_poisoned|publish_\w+|_?check_\w+)$"
)
"""Calls that stand for themselves: without them the line does nothing."""
VALUES = {"try_lock": "True", "lock_for_recovery": "0", "is_durable": "True"}
"""Calls whose answer says that it is done: they answer so and do nothing."""
FIRST_OF = {"check_identity": 1, "_check_producer_id": 1}
"""Checks that hand on one of their arguments."""

CORE_CALLS = (
    (re.compile(r"^(\s*)(unlock_partition|publish_end|wake_word)\(.*\)\s*(#.*)?$"), r"\1pass"),
    (re.compile(r"^(\s*)(atomic_store_u32\(&state\.slot\.busy), .*\)$"), r"\1pass"),
    (re.compile(r"^(\s*)(atomic_(?:store|max)_\w+\(&\S*slot\.\w+), .*\)$"), r"\1pass"),
    (re.compile(r"^(\s*)rc = (judge_marker|judge_batch|judge_append)\(.*\)$"), r"\1rc = 0"),
    (re.compile(r"^(\s*)rc = (lock_partition|repair_after_dead_holder)\(.*\)$"), r"\1rc = 0"),
    (re.compile(r"^(\s*)rc = (VOID_SLOT|GONE|POISONED|REOPEN|CHANGED|CORRUPT)\b.*$"), r"\1rc = 0"),
)


@dataclass(frozen=True)
class Site:
    """One line that does something for safety, and the same line without it."""

    name: str
    file: str
    line: int
    original: str
    mutated: str

    @property
    def in_core(self) -> bool:
        """Whether the core has to be compiled for it."""
        return self.file.endswith(".pxi")


def _calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call, ast.AST]]:
    """(function, call, what contains it), in the order of the source."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        up, function = parents.get(node), ""
        while up is not None and not function:
            function = up.name if isinstance(up, ast.FunctionDef) else ""
            up = parents.get(up)
        yield function, node, parents[node]


def _python(root: Path, path: Path) -> Iterator[Site]:
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    raw = text.encode()

    def at(node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset  # fmt: skip

    file = str(path.relative_to(root))
    seen: dict[str, int] = {}
    found = sorted(_calls(ast.parse(text)), key=lambda c: (c[1].lineno, c[1].col_offset))
    for function, call, parent in found:
        callee = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")  # fmt: skip
        if callee in FIRST_OF:
            low, high = at(call.args[FIRST_OF[callee]])
            instead = raw[low:high].decode()
        elif callee in VALUES:
            instead = VALUES[callee]
        elif STATEMENTS.match(callee) and isinstance(parent, ast.Expr):
            instead = "pass"
        elif callee == "bootstrap" and isinstance(parent, ast.withitem):
            instead = "memoryview(b'')"
        else:
            continue
        key = f"{file}:{function}:{callee}"
        seen[key] = seen.get(key, 0) + 1
        name = key if seen[key] == 1 else f"{key}#{seen[key]}"
        low, high = at(call)
        # Complete lines, so that the replaced text is unique in the file.
        first, last = starts[call.lineno - 1], starts[call.end_lineno or call.lineno]
        original = raw[first:last].decode()
        mutated = (raw[first:low] + instead.encode() + raw[high:last]).decode()
        yield Site(name, file, call.lineno, original, mutated)


def _core(root: Path, path: Path) -> Iterator[Site]:
    file, function = str(path.relative_to(root)), ""
    seen: dict[str, int] = {}
    for number, line in enumerate(path.read_text().splitlines(keepends=True), 1):
        begun = re.match(r"\s*(?:cdef|cpdef|def)\b.*?(\w+)\(.*", line)
        if begun and line.rstrip().endswith((":", ",")):
            function = begun[1]
        for pattern, instead in CORE_CALLS:
            match = pattern.match(line.rstrip("\n"))
            if match:
                what = re.sub(r"\W+", ".", match[2].split("&")[-1]).strip(".")
                key = f"{file}:{function}:{what}"
                seen[key] = seen.get(key, 0) + 1
                name = key if seen[key] == 1 else f"{key}#{seen[key]}"
                yield Site(name, file, number, line, match.expand(instead) + "\n")
                break


def with_switches(root: Path, found: list[Site]) -> None:
    """Change a copy of the core so that one build holds the mutants of all places.

    The environment variable EOSLOG_MUTANT says which of them, by its place in `found`, takes
    effect.
    """
    for file in {site.file for site in found if site.file.endswith(".pxi")}:
        lines = (root / file).read_text().splitlines(keepends=True)
        for number, site in enumerate(found):
            if site.file != file:
                continue
            indent = site.original[: len(site.original) - len(site.original.lstrip())]
            lines[site.line - 1] = (
                f"{indent}if eoslog_mutant != {number}:\n{indent}    {site.original.strip()}\n"
                f"{indent}else:\n{indent}    {site.mutated.strip()}\n"
            )
        (root / file).write_text("".join(lines))
    core = root / "eoslog" / "_core.pyx"
    head, include, rest = core.read_text().partition('\ninclude "')
    switch = '\nimport os\ncdef int eoslog_mutant = int(os.environ.get("EOSLOG_MUTANT", -1))\n'
    core.write_text(head + switch + include + rest)


def sites(root: Path) -> list[Site]:
    """Every place, file by file."""
    found: list[Site] = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            found += _python(root, path)
    sections = {path.stem: path for path in (root / "eoslog" / "_core").rglob("*.pxi")}
    for section in CORE:
        found += _core(root, sections[section])
    return found


def harnesses() -> dict[str, str]:
    """The test that notices when a place is gone, by the place's name."""
    return dict(tomllib.loads(DATA.read_text())["harness"])


def guards() -> list[dict[str, str]]:
    """Guards that no call shows: file, original, mutated, and the test that notices."""
    return list(tomllib.loads(DATA.read_text())["guard"])


def without_effect() -> dict[str, str]:
    """Places whose absence no test can notice, with the reason."""
    return dict(tomllib.loads(DATA.read_text())["no_effect"])


def not_shown() -> dict[str, str]:
    """Places for which no test was seen to fail yet, with what is known."""
    return dict(tomllib.loads(DATA.read_text())["open"])
