"""A slice of `make quality-torture-spark`: eight kills.

They kill a driver, executors and Python workers.
"""

import subprocess
import sys

import pytest

from tests.paths import ROOT

pytest.importorskip("pyspark")
from tests.spark.torture import kills as torture


@pytest.mark.spark
@pytest.mark.process
def test_eight_kills_leave_every_row_once(tmp_path):
    counts = torture.torture(2, 4, 2, seed=8, scratch=tmp_path / "run")
    kills = {
        name: n for name, n in counts.items() if name.split()[0] in ("driver", "worker", "executor")
    }
    assert sum(kills.values()) == 8
    assert counts["rows"] > 0


def test_a_kill_that_finds_no_process_at_its_step_fails(tmp_path, monkeypatch):
    class Idle:
        jvm, master, process = 0, "local", None

        def start(self, job):
            pass

        def heard(self, seconds):
            return True

        def hear(self, seconds):
            return {"done": True}

        def end(self):
            pass

    run = torture.Torture(tmp_path / "run", 1)
    try:
        run.driver = Idle()
        with pytest.raises(torture.Failed, match="nobody came to its step"):
            run.run(torture.Kill("driver", "txn.decided", "batch"), "local")
    finally:
        run.close()


def test_missing_or_repeated_rows_fail_the_run(tmp_path):
    run = torture.Torture(tmp_path / "run", 1)
    try:
        run.fed = 3
        job = {"kind": "stream"}
        run.produce("streamed", 2)
        with pytest.raises(torture.Failed, match="0 rows too many, 1 missing of 3"):
            run.check_all(job)
        run.produce("streamed", 2, 1)
        with pytest.raises(torture.Failed, match="1 rows too many, 0 missing"):
            run.check_all(job)
        run.version = 1
        with run.log.producer() as producer:
            producer.produce("out", "1-0")
        with pytest.raises(torture.Failed, match=f"1 of {torture.ROWS} rows are visible"):
            run.check_whole({"kind": "batch", "version": 1})
    finally:
        run.close()


def test_the_spark_torture_command_reports_its_steps():
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.torture", "--help"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "--drivers" in done.stdout
