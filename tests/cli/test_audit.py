"""`eoslog audit`: a log compared with a database."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import eoslog
from eoslog.sql import Database


def order(place: Path, file: Path, number: int) -> None:
    with (
        eoslog.open(place) as log,
        Database(file) as database,
        log.producer(transactional_id="t") as producer,
        log.atomic(producer, database) as tx,
    ):
        tx.produce("orders", f"{number}", partition=0)


def test_an_audit_prints_each_disagreement_and_ends_with_5(
    shop: Callable, place: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rows.sqlite"
    order(place, file, 1)
    shutil.copy(file, tmp_path / "copy")
    order(place, file, 2)
    done = shop("audit", "--db", str(file))
    assert (done.code, done.rows) == (0, [])
    assert "no disagreement" in done.err
    shutil.copy(tmp_path / "copy", file)
    found = shop("audit", "--db", str(file))
    assert found.code == 5
    assert [row["kind"] for row in found.rows] == ["database-older"]
    assert "1 disagreement" in found.err
    shown = shop("audit", "--db", str(file), form="table")
    assert "database-older" in shown.out


def test_an_audit_of_a_missing_database_creates_nothing(
    shop: Callable, place: Path, tmp_path: Path
) -> None:
    found = shop("audit", "--db", str(tmp_path / "none.sqlite"))
    assert found.code != 0
    assert "none.sqlite does not exist" in found.err
    assert not (tmp_path / "none.sqlite").exists()
    assert shop("audit").code == 2
