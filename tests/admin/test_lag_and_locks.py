"""The lag of a group and the holder of an append lock, by public names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import GroupNotFound

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_the_lag_of_a_group_counts_from_its_commits_to_the_readable_end(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t", 3)
        log.create_topic("gone")
        with log.producer() as producer:
            producer.produce_many("t", ["a"] * 5, partition=0)
            producer.produce_many("t", ["a"] * 3, partition=1)
            producer.flush()
        log.reset_offsets("g", {T0: 2, T1: 9, TopicPartition("gone", 0): 0})
        log.delete_topic("gone")
        assert log.lag("g") == {T0: 3, T1: 0}, "one without a commit has no lag"
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            with producer.transaction() as tx:
                tx.produce("t", "b", partition=0)
                producer.flush()
                assert log.lag("g")[T0] == 3, "what is undecided is not to be read yet"
            assert log.lag("g")[T0] >= 4, "the marker counts too, once it is durable"
        with pytest.raises(GroupNotFound):
            log.lag("nobody")


def test_the_holder_of_an_append_lock_is_named(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t", 2)
        assert log.locks() == {}
        core = log._engine.partition("t", 1).core
        core.lock_for_recovery(1.0)
        try:
            [(place, held)] = log.locks().items()
        finally:
            core.unlock_after_recovery()
        assert (place, held.pid) == (T1, os.getpid())
        assert held.seconds >= 0
        assert log.locks() == {}


def test_the_command_line_imports_public_names_only() -> None:
    for file in Path(eoslog.__file__).parent.joinpath("commands").rglob("*.py"):
        assert "._engine" not in file.read_text(), file
