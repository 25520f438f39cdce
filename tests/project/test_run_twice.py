"""The README's example and all examples run twice in one directory."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import eoslog
from eoslog._util.extras import to_install
from tests.paths import SOURCE as ROOT
from tests.project.test_examples import NEEDS_SERVER

pytestmark = pytest.mark.process

PACKAGE = Path(eoslog.__file__).parent.parent


def programs(folder: Path) -> list[list[str]]:
    """The README's example and each example, as commands in one directory."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
    script = folder / "readme.py"
    script.write_text("\n".join(blocks))
    found = [[str(script)]]
    for path in sorted((ROOT / "examples").glob("*.py")):
        if path.stem not in NEEDS_SERVER:
            found.append([str(path), "shop"])
    return found


def test_field_C13_pages_and_examples_run_twice_in_one_directory(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    ready = programs(tmp_path)
    assert len(ready) == 11
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    for turn in range(2):
        for command in ready:
            ended = subprocess.run(
                [sys.executable, *command], cwd=tmp_path / "work", env=environment,
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert ended.returncode == 0, (turn, command, ended.stderr)
    left = {path.name for path in (tmp_path / "work").iterdir()}
    databases = ("accounts", "books", "inbox", "orders", "service", "shop")
    assert left == {"shop", "shop.csv", *(f"shop-{name}.sqlite" for name in databases)}
    with eoslog.open(tmp_path / "work" / "shop") as log:
        assert log.check().ok


def test_field_C13_messages_name_what_can_be_typed() -> None:
    """Each extra that a message names exists and is quoted for shells.

    It installs the packages that are missing.
    """
    text = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1]
    brought = {
        name: re.findall(r'"([\w-]+)[^"]*"', packages)
        for name, packages in re.findall(r"^(\w+) = \[(.*?)\]$", text, re.M | re.S)
    }
    called = 0
    for path in (PACKAGE / "eoslog").rglob("*.py"):
        source = path.read_text()
        assert "eoslog[" not in source, path
        for extra, rest in re.findall(r"to_install\(['\"](\w+)['\"]([^)]*)", source):
            called += 1
            packages = re.findall(r"['\"]([\w-]+)['\"]", rest)
            if "package.split" not in rest:
                assert set(packages) <= set(brought[extra]), (path, extra)
    assert called >= 9
    words = shlex.split(to_install("arrow", "pyarrow").replace("(", "").replace(")", ""))
    assert words[:3] == ["pip", "install", "pyarrow"]
    assert words[-1] == ".[arrow]"
