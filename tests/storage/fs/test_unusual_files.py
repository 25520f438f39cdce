"""A named pipe, a folder or a link to nothing in place of a file never blocks."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import eoslog
from eoslog.errors import CorruptRecord, EoslogError

VALUES = [b"%d-%d" % (n, k) + bytes(30) for n in (0, 2, 4) for k in range(5)]
KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "link": lambda path: os.symlink(path.parent / "missing", path),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log of three segments, in which every second transaction is aborted."""
    path = tmp_path_factory.mktemp("whole") / "log"
    with eoslog.open(path, durability="os") as log:
        log.create_topic("t", config={"segment.bytes": "700"})
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            for n in range(6):
                producer.begin_transaction()
                producer.produce_many("t", [b"%d-%d" % (n, k) + bytes(30) for k in range(5)])
                producer.abort_transaction() if n % 2 else producer.commit_transaction()
    return path


def read_only(path: Path) -> list[bytes | None]:
    with eoslog.open(path, read_only=True) as log:
        return [record.value for record in log.read("t")]


def consumed(path: Path) -> list[bytes | None]:
    with eoslog.open(path) as log, log.consumer("t", auto_offset_reset="earliest") as consumer:
        found: list[bytes | None] = []
        while len(found) < len(VALUES) and (record := consumer.poll(60)) is not None:
            found.append(record.value)
        return found


def segments(path: Path) -> list[bytes | None]:
    return [record.value for record in eoslog.read_segments(path / "t-0").records()]


def checked(path: Path) -> list[bytes]:
    eoslog.check(path)
    eoslog.repair(path, "report")
    return VALUES


def test_field_A_a_link_to_a_missing_segment_makes_no_call_spin(
    whole: Path, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    shutil.copytree(whole, path)
    with eoslog.open(path) as log:
        assert log.offsets("t", 0).log_start == 0
        first = path / "t-0" / f"{0:020}.log"
        first.unlink()
        KINDS["link"](first)
        for call in (log.clean, log.stats, lambda: log.offset_for_time("t", 0, 0)):
            with contextlib.suppress(EoslogError):
                call()
        with pytest.raises(CorruptRecord, match="is listed and cannot be opened"):
            list(log.read("t"))
        log.delete_topic("t")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read", [read_only, consumed, segments, checked])
def test_field_A_an_unusual_file_never_blocks_or_hides_records(
    read: Callable[[Path], list[bytes | None]], kind: str, whole: Path, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    right = 0
    for file in sorted((*whole.glob("t-0/*"), *whole.glob("*.*"), *whole.glob("__cluster*/*"))):
        if not file.is_file() or file.name.startswith("eoslog.lock-") and file.name[-2:] != "00":
            continue
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole, path)
        damaged = path / file.relative_to(whole)
        damaged.unlink()
        KINDS[kind](damaged)
        try:
            assert read(path) == VALUES, file
            right += 1
        except EoslogError:
            pass
    assert right
