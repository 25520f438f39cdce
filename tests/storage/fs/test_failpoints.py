"""The environment variable that arms failpoints in a process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def imported(items: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import eoslog.storage.fs.files"], capture_output=True, text=True,
        env={**os.environ, "EOSLOG_FAILPOINTS": items}, check=False, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize(
    "item",
    ["pwrite=ENOSPCC", "pwrite=trip", "fsync=kill@file", "txn.flushed=kil", "txn.flushed=EI0",
     "txn.flushed=@file", "txn.flushed:first", "txn.flushed:0=kill", "txn.flushed:=kill", "=kill"],
)  # fmt: skip
def test_a_mistyped_failpoint_ends_with_the_accepted_form(item: str) -> None:
    found = imported(f"first.point=stop,{item}")
    assert found.returncode == 1
    last = found.stderr.splitlines()[-1]
    assert last.startswith(
        f"eoslog.errors.ConfigError: EOSLOG_FAILPOINTS=first.point=stop,{item}: item {item!r} "
        "must have the form NAME[:NTH][=ACTION], "
    )


@pytest.mark.parametrize(
    "items",
    ["some.point", "some.point:3=EIO,other.point=trip", "some.point=stop@file", "a.b=interrupt",
     "mkdir=kill-after", "pwrite:12=ENOSPC", "pwrite:2=short,fsync:9=stop", ""],
)  # fmt: skip
def test_the_accepted_forms_of_failpoints_are_armed(items: str) -> None:
    assert imported(items).returncode == 0
