"""Records without a timestamp, of Kafka's old formats, in exports and imports."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import eoslog
from eoslog.errors import ConfigError
from eoslog.kafka import exporter as kafka_export
from eoslog.kafka import importer as kafka_import
from eoslog.model import NO_TIMESTAMP


def message(timestamp: int) -> Any:
    """One of librdkafka's."""
    return SimpleNamespace(
        topic=lambda: "t", partition=lambda: 0, key=lambda: None, value=lambda: b"v",
        headers=lambda: None, timestamp=lambda: (int(timestamp >= 0), timestamp),
    )  # fmt: skip


def test_an_imported_record_without_a_timestamp_gets_the_time_of_the_import(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        with log.producer(transactional_id="import") as producer:
            producer.init_transactions()
            with producer.transaction() as transaction:
                for timestamp in (7, NO_TIMESTAMP, 0):
                    kafka_import._produce(transaction, message(timestamp))
        first, stamped, last = [record.timestamp for record in log.read("t")]
    assert (first, last) == (7, 0)
    assert stamped > 7


def test_an_exported_record_without_a_timestamp_gets_the_time_of_the_export() -> None:
    def told(timestamp: int) -> int:
        return kafka_export._timestamp(
            SimpleNamespace(topic="t", partition=0, offset=3, timestamp=timestamp)
        )

    assert told(7) == 7
    assert told(NO_TIMESTAMP) == 0  # librdkafka's word for now
    with pytest.raises(ConfigError, match="offset 3: librdkafka cannot send the timestamp 0"):
        told(0)
