"""The page regressions.md lists 86 items, and each item has its tests."""

from __future__ import annotations

import ast
import re

import pytest

from tests.paths import ROOT

ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.M)
ROWS = {
    int(m[1]): m
    for m in ROW.finditer((ROOT / "docs" / "contributing" / "regressions.md").read_text())
}


def _all_tests() -> dict[str, str]:
    """Name to docstring of every test."""
    found = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[node.name] = found.get(node.name, "") + (ast.get_docstring(node) or "")
    return found


TESTS = _all_tests()


def test_all_86_regressions_are_listed_once_and_in_order() -> None:
    assert list(ROWS) == list(range(1, 87))


@pytest.mark.parametrize("number", range(1, 87))
def test_each_regression_that_applies_has_tests_with_its_number(number: int) -> None:
    applies, named = ROWS[number][3], re.findall(r"`(test_\w+)`", ROWS[number][4])
    assert applies.split(":")[0] in ("yes", "partly", "no")
    if applies.startswith("no"):
        assert ":" in applies, "why not?"
        return
    assert named
    for name in named:
        assert name in TESTS, f"{name} is no test"
        assert re.search(rf"\bR{number:02d}\b", name.replace("_", " ") + " " + TESTS[name])


def test_the_page_names_every_test_with_the_number_of_a_regression() -> None:
    page = {
        (number, name)
        for number, row in ROWS.items()
        for name in re.findall(r"`(test_\w+)`", row[4])
    }
    for name in TESTS:
        for number in re.findall(r"_R(\d\d)_", name):
            assert (int(number), name) in page
