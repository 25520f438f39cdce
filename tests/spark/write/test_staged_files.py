"""The file of a staged piece: complete writes, reported errors, and its lifetime."""

import errno
import os

import pytest

from eoslog import _core
from eoslog.connector import publish as publishing
from eoslog.connector import staging
from eoslog.connector.publish import publish
from eoslog.errors import StorageError
from tests.spark.write.test_staging import FakeProducer, keyed, stage

WRITE = staging._WRITE_BYTES


def add_rows(out, sizes):
    for size in sizes:
        out.add("t", 0, _core.build_batch([(1, None, bytes(size), ())]), 1)


@pytest.mark.parametrize("size", [1000, WRITE // 3, WRITE, 3 * WRITE])
def test_a_piece_is_written_in_complete_strides(tmp_path, size):
    out = staging.AttemptWriter(str(tmp_path), "job", "0-1", 0, 0)
    _core.fault_count("pwrite", reset=True)
    add_rows(out, [size] * (9 * WRITE // size))
    out.finish()
    calls = _core.fault_count("pwrite")
    *others, wrote = sorted(path.stat().st_size for path in tmp_path.rglob("*.batches"))
    assert wrote > 8 * WRITE
    assert others == [0], "where partitions of few rows would be"
    assert calls == -(-wrote // WRITE) + 1, "and the manifest"


@pytest.mark.parametrize("nth", [1, 3, 4])
def test_any_failed_write_fails_the_attempt(tmp_path, nth):
    """The last one is made as the file is closed."""
    out = staging.AttemptWriter(str(tmp_path), "job", "0-1", 0, 0)
    _core.arm_fault("pwrite", nth, errno.ENOSPC)
    try:
        with pytest.raises(StorageError, match="batches") as failed:
            add_rows(out, [WRITE] * 3)
            out.finish()
        assert failed.value.errno == errno.ENOSPC
    finally:
        _core.disarm_faults()
    out.discard()
    assert not list(tmp_path.rglob("0-1*")), "nothing is left of it"


@pytest.mark.parametrize("free", [publishing._ROOM_BYTES, publishing._ROOM_BYTES + 1])
def test_published_files_are_kept_only_while_the_disk_has_room(tmp_path, monkeypatch, free):
    class Status:
        f_bavail, f_frsize = free, 1

    monkeypatch.setattr(os, "statvfs", lambda path: Status)
    publish(FakeProducer(), str(tmp_path), [stage(tmp_path, keyed(100), limit=0)])
    assert bool(list(tmp_path.rglob("*.batches"))) == (free > publishing._ROOM_BYTES)
