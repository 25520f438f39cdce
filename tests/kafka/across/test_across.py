"""What kills leave between a log and a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka.across.kills import CONTENDERS, compare
from tests.kafka.broker import Broker

LEFT = {
    "Kafka, a retry is skipped": ("row committed", "lost"),
    "Kafka, a retry is sent again": ("message sent", "duplicated"),
    "Kafka, send and delete": ("messages sent", "duplicated"),
    "Kafka, commit after the rows": ("rows committed", "duplicated"),
}
"""The place at which a contender goes wrong, and how."""


@pytest.mark.parametrize("kind", CONTENDERS)
def test_kills_leave_faults_with_kafka_and_none_with_eoslog(
    kind: str, broker: Broker, tmp_path: Path
) -> None:
    found = compare(broker, tmp_path, kills=1, seed=1, kinds=[kind])[kind]
    for contender, places in found.items():
        wrong = {
            (place, what)
            for place, count in places.items()
            for what in ("lost", "duplicated")
            if getattr(count, what)
        }
        assert wrong == ({LEFT[contender]} if contender in LEFT else set())
