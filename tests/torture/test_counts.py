"""The counts in `how-we-know.md` are those of the torture figures.

The page is in `docs/explanation`.
"""

from __future__ import annotations

import json

import pytest

from tests.torture import counts


def test_the_page_for_users_shows_the_counts_of_all_runs() -> None:
    page, runs = counts.PAGE.read_text(), json.loads(counts.RUNS.read_text())
    assert counts.with_table(page, runs) == page, "run python -m tests.torture.counts"


def test_each_count_of_the_page_exists_in_the_runs() -> None:
    known = counts.totals(json.loads(counts.RUNS.read_text()))
    assert [key for _, keys in counts.ROWS for key in keys if key not in known] == []


def test_the_counts_of_runs_add_up() -> None:
    run = {"counts": {"kill": {"kills": 7}, "stop": {"kills": 1, "stops": 2}}, "seconds": 7200}
    table = counts.table([{**run, "violations": []}, {**run, "violations": ["VIOLATION"]}])
    for row in ("killed | 16", "suspended | 4", "work | 2, 4 h", "test program | 1"):
        assert f" {row} |" in table


def test_a_page_without_markers_raises() -> None:
    with pytest.raises(ValueError):
        counts.with_table("no marks", [])
