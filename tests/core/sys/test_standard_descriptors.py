"""No file of a log gets a descriptor below 3, to which libraries print."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import eoslog

PROGRAM = """
import os, sys
path, when, *closed = sys.argv[1:]

def close():
    for number in closed:
        os.close(int(number))

if when == "before":
    close()
import eoslog
with eoslog.open(path) as log:
    if when == "after":
        close()
    with log.producer() as producer:
        for number in range(20):
            producer.send("t", b"%d" % number + b" " * 500).result()
            for printed in (1, 2):
                os.write(printed, b"assertion failed\\n")
"""


@pytest.mark.process
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("closed", ["0", "1", "2", "12", "012"])
def test_text_for_a_closed_descriptor_is_not_written_into_the_log(
    tmp_path: Path, when: str, closed: str
) -> None:
    with eoslog.open(tmp_path) as log:
        log.create_topic("t", config={"segment.bytes": 2048})
    program = [sys.executable, "-c", PROGRAM, str(tmp_path), when, *closed]
    done = subprocess.run(program, stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == 0
    with eoslog.open(tmp_path) as log:
        assert log.check(full=True).problems == []
        assert [int(record.value) for record in log.read("t")] == list(range(20))
