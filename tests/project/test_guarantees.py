"""`guarantee-tests.md` is complete: each row has its test and recorded change.

The page is in `docs/contributing`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation import mutants, mutation_sites


def test_every_row_has_a_test_with_its_id() -> None:
    found, later = mutants.tests_of(), mutants.open_rows()
    assert [row for row in mutants.rows() if row not in found and row not in later] == []


@pytest.mark.parametrize("mutant", mutants.load(), ids=lambda m: m.row)
def test_a_recorded_change_fits_the_code_and_its_test_exists(mutant: mutants.Mutant) -> None:
    source = Path(mutants.ROOT)
    assert (source / mutant.file).read_text().count(mutant.original) == 1
    assert f"def {mutant.name}(" in (source / mutant.test.split("::")[0]).read_text()
    assert mutant.row in mutant.name or mutant.row.startswith("P")


def test_every_row_with_a_test_has_a_change_that_the_test_detects() -> None:
    recorded, later = {mutant.row for mutant in mutants.load()}, mutants.open_rows()
    assert [row for row in mutants.rows() if row not in recorded and row not in later] == []


@pytest.mark.parametrize("guard", mutants.load_guards(), ids=lambda m: m.name)
def test_a_listed_guard_is_in_the_code_once_and_has_a_test(guard: mutants.Mutant) -> None:
    source = Path(mutants.ROOT)
    assert (source / guard.file).read_text().count(guard.original) == 1
    assert f"def {guard.name}(" in (source / guard.test.split("::")[0]).read_text()


@pytest.mark.slow
def test_every_guarded_place_has_a_test_or_a_reason() -> None:
    names = [site.name for site in mutation_sites.sites(mutants.ROOT)]
    tests = mutation_sites.harnesses()
    reasons = {**mutation_sites.without_effect(), **mutation_sites.not_shown()}
    assert len(names) == len(set(names)) and not set(tests) & set(reasons)
    assert [name for name in names if name not in tests and name not in reasons] == []
    assert [name for name in (*tests, *reasons) if name not in names] == []
    for test in set(tests.values()):
        path, _, name = test.partition("::")
        assert (
            f"def {name.rpartition('::')[2].partition('[')[0]}("
            in (mutants.ROOT / path).read_text()
        )


@pytest.mark.parametrize("name", mutants.TABLES)
def test_the_tables_in_the_docs_are_generated_from_the_recorded_changes(name: str) -> None:
    text = (mutants.ROOT / "docs" / name).read_text()
    table = f"{mutants.BEGIN}\n{mutants.TABLES[name]()}\n{mutants.END}"
    assert table in text, "run tests/mutation/mutants.py --docs"
