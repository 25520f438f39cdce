"""Files below the log start after a killed deletion are harmless.

No reader uses them, and the next deletion completes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import eoslog
from eoslog.model import TopicPartition
from tests.faults.harness import Child, live

T0 = TopicPartition("t", 0)


def write(child: Child, path: Path) -> None:
    """Three segments with aborted records in the first, and a live process."""
    with eoslog.open(path) as log:
        log.create_topic("t")
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            for number in range(3):
                if number:
                    log._engine.partition("t", 0).roll()
                producer.begin_transaction()
                producer.produce("t", b"aborted%d" % number)
                producer.flush()
                producer.abort_transaction()
                with producer.transaction():
                    producer.produce("t", b"%d" % number)


def delete(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        child.armed()
        log.delete_records({T0: log._engine.partition("t", 0).segments.bases()[1]})


@pytest.mark.parametrize("call", ["rename", "unlink"])
def test_a_killed_deletion_leaves_no_damage(tmp_path: Path, call: str) -> None:
    live(write, tmp_path / "made").fine()
    kills = 0
    for nth in range(1, 12):
        path = tmp_path / str(nth)
        shutil.copytree(tmp_path / "made", path)
        life = live(delete, path, faults=((call, "kill-after", nth),))
        if not life.killed:
            break
        kills += 1
        assert eoslog.repair(path, "report").problems == []
        with eoslog.open(path) as log:
            assert log.check(full=True).problems == []
            assert log.backup(tmp_path / f"{nth}-copy").problems == []
            log.delete_records({T0: 1})
            assert log.clean() is not None
            found = [v for b in log.scan("t") for v in b.column("value").to_pylist()]
            assert [bytes(value) for value in found] == [b"1", b"2"]
    assert kills >= 4
