"""A foreign, copied or damaged directory is rejected, recovered or repaired."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
from functools import partial

import pytest

from eoslog.admin.offline import check, repair
from eoslog.errors import CorruptRecord, LockTimeout, StorageError
from eoslog.model import Outcome, TopicPartition
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


LEFT = ("leader-epoch-checkpoint", "partition.metadata")


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("kept", [(), LEFT, LEFT[1:]])
def test_field_A2_a_partition_without_its_segments_is_not_empty(path, kept, read_only):
    with open_log(path) as log:
        log.create_topic("t")
        log._engine.partition("t", 0).append(batch(2))
    for name in os.listdir(os.path.join(path, "t-0")):
        if name not in kept:
            os.remove(os.path.join(path, "t-0", name))
    for _ in range(2):
        with (
            open_log(path, read_only=read_only) as log,
            pytest.raises(CorruptRecord, match=r"flushed up to offset 2|offsets up to 2"),
        ):
            log.offsets("t", 0)
    assert sorted(os.listdir(os.path.join(path, "t-0"))) == sorted(kept)
    assert not check(path).ok
    assert not repair(path, mode="cut").ok
    with open_log(path) as log:
        assert log.offsets("t", 0) == (0, 2, 2, 2)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_field_A2_a_lost_internal_partition_has_not_been_unused(path, whole, read_only):
    """Tokens are not unknown, and groups are not without offsets."""
    with open_log(path) as log:
        log.create_topic("t")
        with log.producer(transactional_id="till") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.produce("t", "v")
            producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g")
            token = str(producer.prepare_transaction().token)
        log.resolve(token, Outcome.COMMIT)
    for name in glob.glob(os.path.join(path, "__[ct][or][na]*-*")):
        if whole:
            shutil.rmtree(name)
        else:
            os.remove(os.path.join(name, f"{0:020}.log"))
    with open_log(path, read_only=read_only) as log:
        for call in (
            partial(log.outcome, token), log.pending, log.groups, partial(log.describe_group, "g"),
            partial(log.committed, "g"),
        ):  # fmt: skip
            with pytest.raises((CorruptRecord, StorageError), match=r"up to (offset )?\d"):
                call()
        problems = [problem.path for problem in log.check().problems]
    assert any("__transaction_state" in place for place in problems)
    assert any("__consumer_offsets" in place for place in problems)
    if whole:
        named = {problem.path for problem in check(path).problems}
        assert named == {problem.path for problem in repair(path).problems}
        assert named == {place for place in problems if "__" in place}


def test_repair_names_a_missing_metadata_log(path):
    with open_log(path) as log:
        log.create_topic("t")
    shutil.rmtree(os.path.join(path, "__cluster_metadata-0"))
    for report in (check(path), repair(path), repair(path, mode="cut")):
        assert [os.path.basename(problem.path) for problem in report.problems] == [
            "__cluster_metadata-0"
        ]
    with pytest.raises(StorageError, match="create it empty"):
        open_log(path)
    os.mkdir(os.path.join(path, "__cluster_metadata-0"))
    repair(path, mode="cut")
    with open_log(path) as log:
        assert log.topics() == []


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


def test_check_of_an_open_log_finds_zeros_after_the_end_of_a_clean_close(path):
    with open_log(path) as log:
        log.create_topic("t")
        log._engine.partition("t", 0).append(batch(2))
    with open(os.path.join(path, "t-0", f"{0:020d}.log"), "ab") as file:
        file.write(bytes(5000))
    with open_log(path) as log:
        (problem,) = log.check().problems
    assert problem.path == os.path.join(path, "t-0")
    assert "cannot be opened: t-0: 5000 unexpected bytes after offset 2" in problem.message


def test_check_knows_the_directories_that_its_openings_create(path):
    with open_log(path) as log:
        log.create_topic("t")
    shutil.rmtree(os.path.join(path, "t-0"))  # a full disk can prevent its creation
    with open_log(path) as log:
        report = log.check()
    assert os.path.isdir(os.path.join(path, "t-0"))
    assert report.ok
    assert report.notes == []


def descriptors_of(path):
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            if os.readlink(f"/proc/self/fd/{number}") == path:
                found.append(int(number))
    return found


@pytest.mark.parametrize("nth", [1, 2])
def test_a_disk_that_fails_during_an_open_raises_a_typed_error(path, monkeypatch, nth):
    open_log(path).close()
    real, looks = os.fstat, iter(range(1, 99))

    def status(fd):
        if fd in descriptors_of(path) and next(looks) == nth:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd)

    monkeypatch.setattr(os, "fstat", status)
    with pytest.raises(StorageError) as raised:
        open_log(path)
    assert raised.value.errno == errno.EIO
    assert descriptors_of(path) == []
    open_log(path).close()


def test_a_path_below_a_file_is_rejected_as_no_directory(tmp_path):
    (tmp_path / "file").write_text("data")
    with pytest.raises(StorageError, match=r"not a directory.*file\)") as caught:
        open_log(tmp_path / "file" / "log")
    assert caught.value.errno == errno.ENOTDIR


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
