"""The oracle for damaged files and flipped bits detects wrong results.

The results are those of reads, lookups and deletions.
"""

from __future__ import annotations

import copy
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from tests.torture.harnesses.damaged import Templates
from tests.torture.oracles import undecided
from tests.torture.oracles.operations import DELETIONS, PARTITIONS, READERS, RETENTIONS, attempts

pytestmark = pytest.mark.process
LISTS = {
    "read": "read",
    "read uncommitted": "uncommitted",
    "read compacted": "compacted",
    "scan": "read",
    "scan from": "read",
    "scan uncommitted": "uncommitted",
    "consume": "read",
    "consume uncommitted": "uncommitted",
}
"""What each reader of records is compared with."""


@pytest.fixture(scope="module")
def templates() -> Iterator[Templates]:
    found = Templates()
    try:
        found.make()
        yield found
    finally:
        found.close()


def tried(templates: Templates, name: str, known: dict[str, Any]) -> list[str]:
    """What the oracle says of one operation on an undamaged directory."""
    path = templates.copy("clean", f"test-{name}")
    try:
        return attempts(path, [name], known, Counter(), read_only=False)
    finally:
        shutil.rmtree(path)


def changed(templates: Templates) -> dict[str, Any]:
    """Another log's content: the last record of each list has another value."""
    known = copy.deepcopy(templates.known["clean"])
    lists = [known[what] for what in set(LISTS.values())] + [*known["segments"].values()]
    for rows in lists:
        rows[-1] = (*rows[-1][:-1], b"another value")
    tp = PARTITIONS[2]
    known["by time"] = {key: offset + 1 for key, offset in known["by time"].items()}
    known["groups"]["g a-0"] += 1
    known["snapshot"]["b-0"] -= 1
    known["last"][b"k1"] = b"another value"
    known["deleted to"] -= 1
    for name in RETENTIONS:  # what is deleted is one more than what is due
        known["starts after"][name][tp] -= 1
    inline = next(token for token, found in known["pending"].items() if found[0] == "inline")
    known["pending"][f"{inline}0"] = known["pending"][inline]
    token = next(iter(known["outcomes"]))
    opposite = {eoslog.Outcome.COMMIT: eoslog.Outcome.ABORT}
    known["outcomes"][token] = opposite.get(known["outcomes"][token], eoslog.Outcome.COMMIT)
    known["positions"][undecided.SOURCE] += 1
    known["ids"][0] += 1
    known["staged offset"] += 1
    for rows in known["undecided"].values():
        rows[-1] = (*rows[-1][:-1], b"another value")
    return known


@pytest.mark.parametrize("name", [*READERS, *DELETIONS])
def test_field_A_the_oracle_accepts_the_undamaged_directory(
    templates: Templates, name: str
) -> None:
    assert tried(templates, name, templates.known["clean"]) == []


@pytest.mark.parametrize("name", [*READERS, *(n for n in DELETIONS if n != "up to")])
def test_field_A_the_oracle_reports_a_wrong_result_of_each_operation(
    templates: Templates, name: str
) -> None:
    assert len(tried(templates, name, changed(templates))) == 1


@pytest.mark.parametrize("path", [Path("a-0"), Path("b-0")])
def test_field_A_the_oracle_accepts_an_error_and_counts_it(
    templates: Templates, path: Path
) -> None:
    place = templates.copy("clean", f"cut-{path}")
    log = sorted((place / path).glob("*.log"))[1]
    log.write_bytes(b"")
    counts: Counter[str] = Counter()
    assert attempts(place, [*READERS], templates.known["clean"], counts, read_only=True) == []
    assert counts["pairs"] == len(READERS)
    assert counts["errors"] > 0
