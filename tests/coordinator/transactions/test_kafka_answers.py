"""Kafka's stored answers to random requests, compared with eoslog's answers.

`python -m tests.kafka.differential --capture` writes the file. `make quality-kafka` and `make
quality-differential` ask a live broker. Every difference has a row in
`docs/reference/kafka-compatibility.md`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import eoslog
from tests.kafka.differential.answers import Recorded, Replayed, read_answers
from tests.kafka.differential.group_sequence import GroupSequence
from tests.kafka.differential.group_sides import EoslogGroupSide
from tests.kafka.differential.sequence import Sequence, Unlisted
from tests.kafka.differential.sides import PARTITIONS, EoslogSide

KINDS: dict[str, tuple[type[Sequence], type[EoslogSide]]] = {
    "transactions": (Sequence, EoslogSide),
    "groups": (GroupSequence, EoslogGroupSide),
}


def replay(log: eoslog.Log, recorded: Recorded) -> Counter[str]:
    """Put a kept sequence to eoslog; the rows of the differences."""
    sequence, side = KINDS[recorded.kind]
    kafka: Any = Replayed(recorded.answers)
    return sequence(kafka, side(log, recorded.kind), recorded.seed).run()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_eoslog_answers_as_kafka_except_for_listed_rows(kind: str, tmp_path: Path) -> None:
    met: Counter[str] = Counter()
    kept = [recorded for recorded in read_answers() if recorded.kind == kind]
    assert len(kept) == 150
    with eoslog.open(tmp_path / "log", durability="os") as log:
        log.create_topic(kind, PARTITIONS)
        for recorded in kept:
            met += replay(log, recorded)
    assert met["fenced-by-name"] > 10  # the comparison sees differences


def test_a_different_answer_is_detected(tmp_path: Path) -> None:
    recorded = next(read_answers())
    with eoslog.open(tmp_path / "log", durability="os") as log:
        log.create_topic(recorded.kind, PARTITIONS)
        for n, (request, answer) in enumerate(recorded.answers):
            if request == "produce" and answer[0] == 0:
                changed = [*recorded.answers]
                changed[n] = (request, (0, answer[1] + 1))
                break
        with pytest.raises(Unlisted, match="an unlisted difference"):
            replay(log, recorded._replace(answers=changed))
