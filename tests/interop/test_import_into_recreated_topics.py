"""Positions of an import whose topic in the log is deleted and re-created."""

from __future__ import annotations

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import IllegalState
from eoslog.kafka.import_positions import ImportPositions

PLACE = TopicPartition("t", 0)


def test_an_import_does_not_continue_in_a_topic_that_was_created_again(tmp_path):
    """The new topic would lack what was imported before."""
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        positions = ImportPositions(log, "job", [PLACE], {"t": "source"})
        assert positions.read() == {}
        with log.producer(transactional_id="job") as producer:
            producer.init_transactions()
            with producer.transaction() as tx:
                tx.produce("t", "1")
                positions.set(tx, {PLACE: 1})
            log.delete_topic("t")
            log.create_topic("t")
            with pytest.raises(IllegalState, match="re-created"), producer.transaction() as tx:
                tx.produce("t", "2")
                positions.set(tx, {PLACE: 2})
        assert list(log.read("t")) == []
        assert ImportPositions(log, "job", [PLACE], {"t": "source"}).read() == {}
