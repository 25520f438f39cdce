"""A foreign, copied or damaged directory is rejected, recovered or repaired."""

from __future__ import annotations

import os
import shutil

import pytest

from eoslog.admin.offline import repair
from eoslog.errors import CorruptRecord, LockTimeout, StorageError
from eoslog.opening import open as open_log
from tests.storage.helpers import batch


def test_a_foreign_directory_is_rejected_and_not_changed(tmp_path):
    (tmp_path / "precious.txt").write_text("data")
    with pytest.raises(StorageError, match=r"precious.txt"):
        open_log(tmp_path)
    assert os.listdir(tmp_path) == ["precious.txt"]


def test_a_copied_directory_is_recovered_and_not_trusted(path, tmp_path):
    with open_log(path) as log:
        log.create_topic("t")
        log._engine.partition("t", 0).append(batch(3))
        log._engine.partition("t", 0).flush()
        shutil.copytree(path, tmp_path / "copy")
        log._engine.partition("t", 0).append(batch(3))
    with open_log(tmp_path / "copy") as copy:
        assert copy.offsets("t", 0) == (0, 3, 3, 3)


def test_damaged_meta_properties_are_rejected(path):
    open_log(path).close()
    with open(os.path.join(path, "meta.properties"), "w") as file:
        file.write("version=9\n")
    with pytest.raises(CorruptRecord, match=r"meta.properties"):
        open_log(path)


def test_a_missing_partition_directory_is_not_mistaken_for_an_empty_one(path):
    with open_log(path) as log:
        log.create_topic("t")
        log._engine.partition("t", 0).append(batch(2))
    shutil.rmtree(os.path.join(path, "t-0"))
    with (
        open_log(path) as log,
        pytest.raises(StorageError, match="missing, it had offsets up to 2"),
    ):
        log.offsets("t", 0)


def test_an_unreadable_file_is_not_mistaken_for_a_missing_one(path):
    with open_log(path) as log:
        log.create_topic("t", 1)
        log._engine.partition("t", 0).append(batch())
    name = os.path.join(path, "t-0", "leader-epoch-checkpoint")
    os.remove(name)
    os.symlink(name, name)  # ELOOP, as EIO would be
    with open_log(path) as log, pytest.raises(StorageError, match="leader-epoch-checkpoint"):
        log._engine.partition("t", 0)
    loop = os.path.join(path, "loop")
    os.symlink(loop, loop)
    with pytest.raises(StorageError, match="loop"):
        open_log(loop)


def test_bytes_after_the_end_of_a_clean_close_are_reported_as_foreign(path):
    with open_log(path) as log:
        log.create_topic("t")
        log._engine.partition("t", 0).append(batch(2))
    with open(os.path.join(path, "t-0", f"{0:020d}.log"), "ab") as file:
        file.write(b"junk" * 20)
    with open_log(path) as log, pytest.raises(CorruptRecord) as caught:
        log.offsets("t", 0)
    assert "80 unexpected bytes after offset" in str(caught.value)
    assert "below the flushed offset" not in str(caught.value)


def test_check_finds_a_flipped_bit_in_any_file(path):
    with open_log(path) as log:
        log.create_topic("t", config={"segment.bytes": 2000, "segment.index.bytes": 4096})
        partition = log._engine.partition("t", 0)
        for i in range(50):
            partition.append(batch(2, size=40, timestamp=i))
        assert log.check(full=True).ok
    name = sorted(p for p in os.listdir(os.path.join(path, "t-0")) if p.endswith(".log"))[1]
    where = os.path.join(path, "t-0", name)
    data = bytearray(open(where, "rb").read())
    data[200] ^= 4
    open(where, "wb").write(data)
    with open_log(path) as log:
        report = log.check()
        assert not report.ok
        assert report.problems[0].path == where
        with pytest.raises(LockTimeout):
            repair(path)
    assert repair(path).problems
    assert repair(path, "cut").bytes_cut > 0
    with open_log(path) as log:
        assert log.check(full=True).ok
        assert len(log.scan("t").to_table()) < log.offsets("t", 0).log_end == 100
