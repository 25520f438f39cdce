"""A directory that is foreign, copied or damaged: it is refused, recovered or repaired, never believed."""

from __future__ import annotations

import os
import shutil

import pytest

from eoslog.client.offline import repair
from eoslog.errors import CorruptRecord, LockTimeout, StorageError
from eoslog.log import open as open_log
from tests.storage.helpers import batch


def test_a_foreign_directory_is_refused_and_untouched(tmp_path):
    (tmp_path / "precious.txt").write_text("data")
    with pytest.raises(StorageError, match=r"precious.txt"):
        open_log(tmp_path)
    assert os.listdir(tmp_path) == ["precious.txt"]


def test_a_copied_directory_is_recovered_and_not_trusted(path, tmp_path):
    with open_log(path) as log:
        log.create_topic("t")
        log.engine.partition("t", 0).append(batch(3))
        log.engine.partition("t", 0).flush()
        shutil.copytree(path, tmp_path / "copy")
        log.engine.partition("t", 0).append(batch(3))
    with open_log(tmp_path / "copy") as copy:
        assert copy.offsets("t", 0) == (0, 3, 3, 3)


def test_a_damaged_meta_properties_is_refused(path):
    open_log(path).close()
    with open(os.path.join(path, "meta.properties"), "w") as file:
        file.write("version=9\n")
    with pytest.raises(CorruptRecord, match=r"meta.properties"):
        open_log(path)


def test_a_missing_partition_directory_is_not_taken_for_an_empty_one(path):
    with open_log(path) as log:
        log.create_topic("t")
        log.engine.partition("t", 0).append(batch(2))
    shutil.rmtree(os.path.join(path, "t-0"))
    with (
        open_log(path) as log,
        pytest.raises(StorageError, match="missing; it held offsets up to 2"),
    ):
        log.offsets("t", 0)


def test_a_file_that_cannot_be_looked_at_is_not_taken_for_missing(path):
    with open_log(path) as log:
        log.create_topic("t", 1)
        log.engine.partition("t", 0).append(batch())
    name = os.path.join(path, "t-0", "leader-epoch-checkpoint")
    os.remove(name)
    os.symlink(name, name)  # ELOOP, as EIO would be
    with open_log(path) as log, pytest.raises(StorageError, match="leader-epoch-checkpoint"):
        log.engine.partition("t", 0)
    loop = os.path.join(path, "loop")
    os.symlink(loop, loop)
    with pytest.raises(StorageError, match="loop"):
        open_log(loop)


def test_bytes_behind_a_clean_end_are_called_foreign(path):
    with open_log(path) as log:
        log.create_topic("t")
        log.engine.partition("t", 0).append(batch(2))
    with open(os.path.join(path, "t-0", f"{0:020d}.log"), "ab") as file:
        file.write(b"junk" * 20)
    with open_log(path) as log, pytest.raises(CorruptRecord) as caught:
        log.offsets("t", 0)
    assert "80 bytes lie behind the end that the last session closed with" in str(caught.value)
    assert "it was durable" not in str(caught.value)


def test_check_finds_a_flipped_bit_in_any_file(path):
    with open_log(path) as log:
        log.create_topic("t", config={"segment.bytes": 2000, "segment.index.bytes": 4096})
        partition = log.engine.partition("t", 0)
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
