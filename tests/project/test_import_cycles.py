"""No modules import each other in a circle, lazily or for types only either."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.paths import SOURCE as ROOT
from tests.project.import_graph import import_graph, inside, knots

PACKAGES = ("eoslog", "spark/pyspark_eoslog", "bench", "tests")
KNOWN: tuple[frozenset[str], ...] = ()
"""The knots that are left. This list only becomes shorter, and so does each knot."""


@pytest.mark.parametrize("package", PACKAGES)
def test_no_modules_import_each_other_in_a_cycle(package):
    graph = import_graph(ROOT / package)
    assert len(graph) > 10, f"{package}: the sources were not found"
    new = [knot for knot in knots(graph) if not any(knot <= known for known in KNOWN)]
    assert not new, "\n".join(line for knot in new for line in inside(graph, knot))


def test_the_list_of_known_cycles_names_no_module_without_one():
    found = [knot for package in PACKAGES for knot in knots(import_graph(ROOT / package))]
    tied = frozenset[str]().union(*found)
    free = sorted(frozenset[str]().union(*KNOWN) - tied)
    assert not free, f"take these modules out of KNOWN: {free}"


LAZY = "def f():\n    from {0} import x\n"
TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {0} import X\n"
DYNAMIC = "import importlib\nm = importlib.import_module('{0}')\n"
RELATIVE = "from . import {1}\n"
PLAIN = "import {0}\n"


@pytest.mark.parametrize("back", [LAZY, TYPES, DYNAMIC, RELATIVE, PLAIN])
def test_a_cycle_is_found_for_every_kind_of_import(tmp_path, back):
    package = _package(tmp_path, a="from pack import b\n", b=back.format("pack.c", "c"))
    (package / "c.py").write_text("from pack.a import f\n")
    (package / "d.py").write_text("from pack.a import f\n")
    assert knots(import_graph(package)) == [frozenset({"pack.a", "pack.b", "pack.c"})]


def test_a_compiled_module_counts_as_one_with_its_included_files(tmp_path):
    package = _package(tmp_path, errors="from pack import _core\n")
    (package / "_core").mkdir()
    (package / "_core.pyx").write_text('include "_core/part.pxi"\n')
    (package / "_core/part.pxi").write_text("from pack._core.other cimport put\n")
    assert knots(import_graph(package)) == []
    (package / "_core/part.pxi").write_text("from pack import errors\n")
    assert knots(import_graph(package)) == [frozenset({"pack._core", "pack.errors"})]


def test_the_import_of_a_submodule_does_not_count_for_its_package(tmp_path):
    package = _package(tmp_path, a="x = 1\n", b="from pack import a\n")
    (package / "__init__.py").write_text("from pack.b import a\n")
    assert knots(import_graph(package)) == []
    (package / "a.py").write_text("import pack\n")
    assert knots(import_graph(package)) == [frozenset({"pack", "pack.a", "pack.b"})]


def _package(folder: Path, **modules: str) -> Path:
    package = folder / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name, text in modules.items():
        (package / f"{name}.py").write_text(text)
    return package
