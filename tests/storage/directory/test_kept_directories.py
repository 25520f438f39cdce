"""Directories of earlier versions open in this one with all their content.

The archives in `tests/data/directories` are kept permanently: one folder for each `eoslog.format`.
"""

import json
from pathlib import Path

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import UnsupportedFormat
from eoslog.storage.format.checkpoints import FORMAT
from tests.captures import unpack
from tests.paths import DATA
from tests.storage.directory.kept_directory import content

KEPT = DATA / "directories"
FORMATS = sorted(path.name for path in KEPT.iterdir())
ENDS = ("closed", "killed")


def unpacked(folder: str, end: str, place: Path) -> Path:
    unpack(KEPT / folder / f"{end}.tar.xz", place)
    return place / "log"


def expected(folder: str, end: str) -> object:
    return json.loads((KEPT / folder / "expected.json").read_text())[end]


def test_every_format_up_to_the_current_one_has_an_archive():
    assert FORMATS == [f"format-{number}" for number in range(1, FORMAT + 1)]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("folder", FORMATS)
def test_a_kept_directory_opens_with_the_content_that_its_version_wrote(
    folder: str, end: str, tmp_path: Path
):
    path = unpacked(folder, end, tmp_path)
    with eoslog.open(path) as log:
        assert content(log) == expected(folder, end)
        assert log.check(full=True).ok
    assert eoslog.check(path, full=True).ok
    with eoslog.open(path) as log:
        assert content(log) == expected(folder, end)


@pytest.mark.parametrize("folder", FORMATS)
def test_a_kept_directory_reads_the_same_with_read_only(folder: str, tmp_path: Path):
    path = unpacked(folder, "closed", tmp_path)
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with eoslog.open(path, read_only=True) as log:
        assert content(log) == expected(folder, "closed")
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("folder", FORMATS)
def test_a_kept_directory_accepts_transactions_as_a_new_one_does(
    folder: str, end: str, tmp_path: Path
):
    path = unpacked(folder, end, tmp_path)
    with eoslog.open(path) as log:
        before = sum(1 for _ in log.read("orders"))
        for name in ("orders", "left open"):
            with log.producer({"transactional.id": name}) as producer:
                producer.init_transactions()
                with producer.transaction():
                    producer.produce("orders", name.encode(), partition=0)
        log.clean(roll=True)
        with log.consumer("orders", group_id="by hand") as consumer:
            assert consumer.committed([TopicPartition("orders", 1)]) == [
                TopicPartition("orders", 1, offset=21)
            ]
    with eoslog.open(path) as log:
        values = [record.value for record in log.read("orders")]
        assert len(values) == before + 2 and {b"orders", b"left open"} <= set(values)
        assert b"never committed" not in values
        assert log.check(full=True).ok


def test_a_directory_of_a_later_format_is_rejected_and_not_changed(tmp_path: Path):
    path = unpacked(FORMATS[-1], "closed", tmp_path)
    meta = path / "meta.properties"
    text = meta.read_text()
    meta.write_text(text.replace(f"eoslog.format={FORMAT}", f"eoslog.format={FORMAT + 1}"))
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    for call in (eoslog.open, eoslog.repair):
        with pytest.raises(UnsupportedFormat, match="a newer eoslog wrote this log"):
            call(path)
    assert "a newer eoslog wrote this log" in str(eoslog.check(path).problems)
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before
