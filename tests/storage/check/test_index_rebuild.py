"""`check(fix_indexes=True)` rebuilds files from batches and changes no log."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import eoslog
from eoslog import errors

DERIVED = (".index", ".timeindex", ".txnindex", ".snapshot")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five segments, sealed and active, with committed and aborted transactions."""
    place = tmp_path_factory.mktemp("sound") / "log"
    with eoslog.open(place) as log:
        log.create_topic("t", config={"index.interval.bytes": "100"})
        with log.producer(transactional_id="tx") as producer:
            producer.init_transactions()
            for number in range(25):
                producer.begin_transaction()
                producer.produce("t", b"%d" % number, timestamp=1000 + number)
                producer.flush()
                producer.abort_transaction() if number % 3 else producer.commit_transaction()
                if number % 5 == 4:
                    log._engine.partition("t", 0).roll()
    return place


def files_of(place: Path) -> dict[Path, bytes]:
    found = (p for p in place.rglob("*") if p.suffix in (".log", *DERIVED))
    return {path.relative_to(place): path.read_bytes() for path in found}


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"garbage")


@pytest.mark.parametrize("harm", [remove, empty, zero, halve, flip, grow])
@pytest.mark.parametrize("suffix", DERIVED)
def test_field_fix_indexes_rebuilds_every_derived_file(
    sound: Path, tmp_path: Path, suffix: str, harm: Callable[[Path], None]
) -> None:
    place = Path(shutil.copytree(sound, tmp_path / "log"))
    before = files_of(place)
    harmed = sorted(p for p in (place / "t-0").iterdir() if p.suffix == suffix and p.stat().st_size)
    if suffix == ".snapshot":
        harmed = harmed[:-1]  # a snapshot that is not at a sealed segment's base is only a hint
    assert harmed
    for path in harmed:
        harm(path)
    changed = {
        p.relative_to(place)
        for p in harmed
        if not p.exists() or p.read_bytes() != before[p.relative_to(place)]
    }
    report = eoslog.check(place, fix_indexes=True)
    assert report.ok
    told = {Path(path).relative_to(place) for path in report.rebuilt if not path.endswith(".seal")}
    assert told == changed
    after = files_of(place)
    for path, content in before.items():
        if path.suffix == ".snapshot":  # its entries are in the order of a hash map
            name = f"{path.name}"
            shown = eoslog.inspect(place / path)["snapshots"][name]
            assert shown == eoslog.inspect(sound / path)["snapshots"][name]
        else:
            assert after[path] == content, path
    assert not eoslog.check(place, fix_indexes=True).rebuilt
    with eoslog.open(place) as log:
        assert log.check(full=True).ok
        found = [v for b in log.scan("t", binary="copy") for v in b.to_pydict()["value"]]
    assert found == [b"%d" % number for number in range(0, 25, 3)]


def test_field_fix_indexes_rebuilds_nothing_in_a_sound_log(sound: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(sound, tmp_path / "log"))
    report = eoslog.check(place, fix_indexes=True)
    assert report.ok and not report.rebuilt


def test_field_fix_indexes_leaves_what_follows_damage_alone(sound: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(sound, tmp_path / "log"))
    logs = sorted((place / "t-0").glob("*.log"))
    data = bytearray(logs[2].read_bytes())
    data[30] ^= 1
    logs[2].write_bytes(data)
    before = files_of(place)
    first, late = logs[0].with_suffix(".timeindex"), logs[3].with_suffix(".timeindex")
    flip(first), flip(late)
    report = eoslog.check(place, fix_indexes=True)
    assert not report.ok and str(logs[2]) in {problem.path for problem in report.problems}
    assert str(first) in report.rebuilt and str(late) not in report.rebuilt
    after = files_of(place)
    assert after[first.relative_to(place)] == before[first.relative_to(place)]
    assert {p: c for p, c in after.items() if p.suffix == ".log"} == {
        p: c for p, c in before.items() if p.suffix == ".log"
    }


def test_field_fix_indexes_rejects_a_log_that_is_open(sound: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(sound, tmp_path / "log"))
    with eoslog.open(place), pytest.raises(errors.LockTimeout, match="has the directory open"):
        eoslog.check(place, fix_indexes=True)
    with pytest.raises(errors.StorageError, match="not an eoslog directory"):
        eoslog.check(tmp_path, fix_indexes=True)
