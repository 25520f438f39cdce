"""Damaged files of a broker raise typed errors, and recovery keeps a log."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

import eoslog
from eoslog import errors
from eoslog.storage.broker.recovery import recover
from tests.paths import KAFKA_DATA as KAFKA

pytest.importorskip("pyarrow")

SOURCES = ("segments/txn-0", "segments/plain-0", "legacy/legacy-0")
ABSURD = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\x80\0\0\0")


def harm(path: Path, r: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if not data:
        return
    at, kind = r.randrange(len(data)), r.randrange(5)
    if kind == 0:
        data[at] ^= 1 << r.randrange(8)
    elif kind == 1:
        data[at : at + r.randrange(1, 20)] = r.randbytes(r.randrange(1, 20))
    elif kind == 2:
        del data[at : at + r.randrange(1, 200)]
    elif kind == 3:
        del data[at:]
    else:
        data[at : at + 4] = r.choice(ABSURD)
    path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(80))
def test_readers_survive_damage_and_recovery_leaves_a_readable_log(
    seed: int, tmp_path: Path
) -> None:
    r = random.Random(seed)
    source = KAFKA / r.choice(SOURCES)
    path = tmp_path / source.name
    shutil.copytree(source, path)
    for _ in range(r.randrange(1, 4)):
        harm(r.choice(sorted(path.iterdir())), r)
    eoslog.inspect(path)
    eoslog.check(path, full=True)
    for options in (
        {"start": r.randrange(60)},
        {"isolation": "read_uncommitted", "binary": "copy"},
    ):
        try:
            eoslog.read_segments(path, **options).to_table().validate(full=True)
        except errors.CorruptRecord as error:
            assert str(path) in str(error)
    end = recover(str(path)).log_end
    table = eoslog.read_segments(path, isolation="read_uncommitted").to_table()
    assert all(offset < end for offset in table.column("offset").to_pylist())
