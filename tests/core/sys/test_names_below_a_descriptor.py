"""File names that begin at a descriptor name the files that the kernel means."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from eoslog import _core
from eoslog.storage.fs import files


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "opened" / "t-0").mkdir(parents=True)
    (tmp_path / "opened" / "t-0" / "log").write_bytes(b"mine")
    fd = os.open(tmp_path / "opened", os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_field_B2_a_name_below_a_descriptor_follows_the_directory(
    tmp_path: Path, root: int
) -> None:
    (tmp_path / "opened").rename(tmp_path / "moved")
    (tmp_path / "opened" / "t-0").mkdir(parents=True)
    (tmp_path / "opened" / "t-0" / "log").write_bytes(b"another")
    place = f"/proc/self/fd/{root}/t-0"
    assert files.read_file(f"{place}/log") == b"mine"
    assert (files.size(f"{place}/log"), files.is_dir(place)) == (4, True)
    files.close(_core.os_open(f"{place}/new", os.O_RDWR | os.O_CREAT))
    assert (tmp_path / "moved" / "t-0" / "new").exists()
    assert os.listdir(tmp_path / "opened" / "t-0") == ["log"]


def test_field_B2_a_file_below_a_descriptor_takes_the_mode_of_its_directory(
    tmp_path: Path, root: int
) -> None:
    files.share(str(tmp_path / "opened"), 0o770)
    files.close(_core.os_open(f"/proc/self/fd/{root}/new", os.O_RDWR | os.O_CREAT))
    assert (tmp_path / "opened" / "new").stat().st_mode & 0o777 == 0o660


def test_a_name_below_a_closed_descriptor_does_not_exist(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    os.close(fd)
    with pytest.raises(FileNotFoundError) as raised:
        _core.os_open(f"/proc/self/fd/{fd}/log", os.O_RDONLY)
    assert raised.value.filename == f"/proc/self/fd/{fd}/log"
    assert files.status(f"/proc/self/fd/{fd}/log") is None


@pytest.mark.parametrize("tail", ["", "/", "//t-0/log", "x/t-0/log", "/../t-0"])
def test_a_name_that_only_resembles_one_below_a_descriptor_is_passed_on(
    root: int, tail: str
) -> None:
    name = f"/proc/self/fd/{root}{tail}"
    try:
        expected = os.stat(name).st_ino
    except OSError as error:
        with pytest.raises(OSError, match=os.strerror(error.errno or 0)):
            _core.os_open(name, os.O_RDONLY)
        return
    fd = _core.os_open(name, os.O_RDONLY)
    assert os.fstat(fd).st_ino == expected
    os.close(fd)
