"""`repair` without write permission reports damage and says why it cannot repair."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog.errors import LockTimeout, StorageError
from tests.field.test_read_only import fill, mounted
from tests.field.users import USERS, as_root, common_folder, run_as

pytestmark = [pytest.mark.process, as_root]

REPAIRS = """
import sys
import eoslog
from eoslog.errors import StorageError
place, *modes = sys.argv[1:]
print(eoslog.repair(place).ok)
for mode in modes:
    try:
        eoslog.repair(place, mode) if mode != "fix" else eoslog.check(place, fix_indexes=True)
    except StorageError as error:
        print(type(error).__name__, error.errno, "cannot be written" in str(error))
"""


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder that every user may write."""
    with common_folder() as folder:
        yield folder


@pytest.fixture
def mount(common: Path) -> Iterator[Path]:
    """A closed log and a damaged partition, on a read-only mount."""
    fill(common / "log").close()
    shutil.copytree(common / "log" / "t-0", common / "log" / "broker" / "t-0")
    (common / "log" / "broker" / "t-0" / ("0" * 20 + ".log")).write_bytes(b"no batch" * 20)
    place = common / "mount"
    try:
        if not mounted(common / "log", place):
            pytest.skip("needs the right to mount")
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)


@pytest.mark.parametrize("mode", ["cut", "skip", "as-kafka", "fix"])
def test_field_C6_repair_on_a_read_only_mount_raises_with_the_reason(
    mount: Path, mode: str
) -> None:
    with pytest.raises(StorageError, match="cannot be written, so it cannot be repaired") as raised:
        eoslog.check(mount, fix_indexes=True) if mode == "fix" else eoslog.repair(mount, mode)
    assert raised.value.errno == errno.EROFS
    assert str(mount) in str(raised.value)


def test_field_C6_repair_in_report_mode_works_on_a_read_only_mount(mount: Path) -> None:
    report = eoslog.repair(mount)
    assert report.ok
    assert report.partitions >= 3


def test_field_C6_a_report_waits_for_a_writer_at_another_mount(mount: Path) -> None:
    """A writer's appends would look like a torn tail."""
    with eoslog.open(mount.parent / "log"):
        with pytest.raises(LockTimeout, match=f"process {os.getpid()}|this process"):
            eoslog.repair(mount)
    assert eoslog.repair(mount).ok


def test_field_C6_a_broker_partition_on_a_read_only_mount_is_not_cut(mount: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written, so it cannot be repaired") as raised:
        eoslog.repair(mount / "broker" / "t-0", "as-kafka")
    assert raised.value.errno == errno.EROFS


def test_field_C6_repair_of_another_users_log_reports_and_changes_nothing(
    common: Path,
) -> None:
    fill(common / "log").close()
    subprocess.run(["chmod", "-R", "a+rX", str(common / "log")], check=True)
    ended = run_as(USERS[0], REPAIRS, common / "log", "cut", "skip", "as-kafka", "fix")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["True", *[f"StorageError {errno.EACCES} True"] * 4]
