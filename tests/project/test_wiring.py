"""The engine is wired in its constructors; no field is set later.

This holds for the engine and for the objects that it consists of.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import SOURCE as ROOT

MODULES = sorted(path.stem for path in (ROOT / "eoslog/engine").glob("*.py"))
ENGINES = {"engine", "_engine"}


def assignments(path: Path) -> Iterator[tuple[str, str, str]]:
    """(object, field, function) of every assignment to a field in a module."""

    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, str, str]]:
        if isinstance(node, ast.FunctionDef):
            function = node.name
        targets: list[ast.AST] = []
        if isinstance(node, ast.Assign):
            targets = [part for target in node.targets for part in ast.walk(target)]
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store):
                yield ast.unparse(target.value), target.attr, function
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), "")


@pytest.mark.parametrize("module", MODULES)
def test_an_engine_module_sets_no_field_of_another_object(module: str) -> None:
    found = set(assignments(ROOT / "eoslog/engine" / f"{module}.py"))
    assert {row for row in found if row[0] not in ("self", "timer")} == set()  # a row of its own


@pytest.mark.parametrize("module", MODULES)
def test_every_field_of_an_engine_module_begins_in_a_constructor(module: str) -> None:
    found = [
        row for row in assignments(ROOT / "eoslog/engine" / f"{module}.py") if row[0] == "self"
    ]
    made = {field for _, field, function in found if function == "__init__"}
    assert {field for _, field, _ in found} == made


def test_no_client_and_no_command_sets_a_field_of_the_engine() -> None:
    found = {
        (path.name, *row)
        for folder in ("eoslog", "spark/pyspark_eoslog")
        for path in (ROOT / folder).rglob("*.py")
        for row in assignments(path)
        if row[0].removeprefix("self.").split(".")[0] in ENGINES
    }
    assert found == set()
