"""The example of `Log.atomic`, with a real PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import SOURCE
from tests.sql.databases import LOCK_TIMEOUT
from tests.sql.server import Server

pytestmark = pytest.mark.process


def test_the_order_service_is_killed_and_agrees_with_postgresql(
    server: Server, tmp_path: Path
) -> None:
    script = SOURCE / "examples" / "order_service.py"
    where = server.schema(LOCK_TIMEOUT)
    for kills in (4, 0):  # the second run finds everything placed
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path / "shop"), where],
            capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout == "10 orders; the log agrees: True\n"
        assert f"killed {kills} times" in done.stderr
