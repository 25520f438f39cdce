"""A torture run leaves no process running, and takes the requested steps.

This holds for every way in which the run ends.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow]


def marked(mark: str) -> list[str]:
    """Command lines of the processes with a mark in their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (place / "environ").read_bytes():
                found.append((place / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has just ended, or is not ours
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_process(number: signal.Signals) -> None:
    mark = f"EOSLOG_TORTURE_MARK={uuid.uuid4()}"
    run = subprocess.Popen(
        [sys.executable, "-m", "tests.torture", "--only", "stop,transform", "--minutes", "9"],
        stdout=subprocess.DEVNULL,
        env=os.environ | dict([mark.split("=")]),
    )
    until(lambda: len(marked(mark)) >= 6)  # the run, its jobs, and their lives
    run.send_signal(number)
    assert run.wait(120) in (128 + number, -number)
    until(lambda: not marked(mark))  # a killed run's jobs end by themselves


def test_the_process_that_forks_has_no_thread_and_no_open_log() -> None:
    """Its children inherit imported modules only, and begin as new processes do."""
    program = """
import os
from eoslog.engine import registry
from tests.faults.harness import live
from tests.torture.registry import harnesses
from tests.waiting import until
assert harnesses()
live(lambda child: None).fine()  # a fork ends the threads of numpy
until(lambda: len(os.listdir("/proc/self/task")) == 1, "another thread is left")
print(len(registry._open))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.split() == ["0"], run.stderr


def test_a_run_with_a_step_limit_takes_the_same_steps_on_every_machine() -> None:
    command = [sys.executable, "-m", "tests.torture", "--only", "stop,clock", "--seed", "1"]
    limits = ["--minutes", "9", "--jobs", "2", "--most", "1"]
    run = subprocess.run([*command, *limits], stdout=subprocess.PIPE, text=True, check=True)
    steps = dict(re.findall(r"^(stop|clock) .* (\d+) steps", run.stdout, re.MULTILINE))
    assert steps == {"stop": "2", "clock": "2"}, run.stdout
