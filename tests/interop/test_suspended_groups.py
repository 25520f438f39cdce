"""A run that is suspended while it sets a group's offsets in a directory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import eoslog
from eoslog.errors import IllegalState
from eoslog.kafka.cluster import MoveOptions
from eoslog.kafka.group_offsets import LogSide, MovedGroups
from eoslog.model import TopicPartition
from tests.faults.harness import Child, Running, start

PLACE = TopicPartition("t", 0)


def write(log: eoslog.Log) -> None:
    log.create_topic("t")
    with log.producer() as producer:
        for n in range(10):
            producer.produce("t", b"%d" % n, timestamp=1000 + n)


def carry(child: Child, root: Path) -> None:
    with eoslog.open(root / "source") as source, eoslog.open(root / "target") as target:
        options = MoveOptions(groups=["readers"])
        groups = MovedGroups(LogSide(source), LogSide(target), [PLACE], options)
        child.armed()
        try:
            moved = groups.carry({PLACE: 10})
            child.tell("moved", moved["readers"][PLACE])
        except IllegalState as error:
            child.tell("refused", str(error))


def stopped(root: Path, point: str) -> Running:
    """A run that is suspended at a point, with offset 4 to set."""
    for name in ("source", "target"):
        with eoslog.open(root / name) as log:
            write(log)
            if name == "source":
                log.reset_offsets("readers", {PLACE: 4})
    run = start(carry, root, faults=((point, "stop", 1),))
    os.waitid(os.P_PID, run.pid, os.WSTOPPED | os.WNOWAIT)
    return run


def read_on(log: eoslog.Log, count: int) -> None:
    """Read and commit as the group, without membership."""
    options = {"group_id": "readers", "auto_offset_reset": "earliest"}
    with log.consumer(enable_auto_commit=False, **options) as reader:
        reader.assign([PLACE])
        assert len(reader.consume(count, timeout=60)) == count
        reader.commit()


@pytest.mark.parametrize(("count", "expected"), [(9, 9), (2, 4)])
def test_a_group_that_reads_on_during_a_suspension_is_not_set_back(
    tmp_path: Path, count: int, expected: int
) -> None:
    run = stopped(tmp_path, "group.decided")
    with eoslog.open(tmp_path / "target") as log:
        read_on(log, count)
        run.signal(signal.SIGCONT)
        assert run.end().fine().of("moved") == [expected]
        assert log.committed("readers")[PLACE].offset == expected


@pytest.mark.parametrize("point", ["groups.told", "group.decided"])
def test_a_topic_that_is_re_created_during_a_suspension_gets_no_offset(
    tmp_path: Path, point: str
) -> None:
    run = stopped(tmp_path, point)
    with eoslog.open(tmp_path / "target") as log:
        log.delete_topic("t")
        write(log)
        run.signal(signal.SIGCONT)
        [text] = run.end().fine().of("refused")
        assert "re-created" in text
        assert log.committed("readers") == {}
