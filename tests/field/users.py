"""Programs that become another user, of one group."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

GROUP, USERS = 61_000, (61_001, 61_002)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be other users")

BECOME = """
import importlib, os, pkgutil, sys
import eoslog
for found in pkgutil.walk_packages(eoslog.__path__, "eoslog."):
    if ".demo" not in found.name and "__main__" not in found.name:
        try:
            importlib.import_module(found.name)
        except ImportError:
            pass
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[2])); os.chdir("/")
del sys.argv[1:3]
"""
"""Another user may not read the interpreter's files: all is imported before."""


def command_as(user: int, code: str, *arguments: object) -> list[str]:
    """The command line of a program that becomes a user of GROUP."""
    return [sys.executable, "-c", BECOME + code, *map(str, (GROUP, user, *arguments))]


def run_as(user: int, code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program that becomes a user of GROUP."""
    return subprocess.run(
        command_as(user, code, *arguments),
        capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@contextmanager
def common_folder() -> Iterator[Path]:
    """A folder that every user may write, outside of pytest's, which is private."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)
