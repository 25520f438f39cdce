"""What Kafka answered to random requests, kept in a file, beside what eoslog answers now.

Made by `python -m tests.kafka.differential --capture`; `make test-kafka` and `make differential` ask
a living broker. Every difference has a row in `docs/kafka-differences.md`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import eoslog
from tests.kafka.answers import Recorded, Replayed, read_answers
from tests.kafka.group_sequence import GroupSequence
from tests.kafka.group_sides import EoslogGroupSide
from tests.kafka.sequence import Sequence, Unlisted
from tests.kafka.sides import PARTITIONS, EoslogSide

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
def test_eoslog_answers_as_kafka_did_but_for_listed_rows(kind: str, tmp_path: Path) -> None:
    met: Counter[str] = Counter()
    kept = [recorded for recorded in read_answers() if recorded.kind == kind]
    assert len(kept) == 150
    with eoslog.open(tmp_path / "log", durability="os") as log:
        log.create_topic(kind, PARTITIONS)
        for recorded in kept:
            met += replay(log, recorded)
    assert met["fenced-by-name"] > 10  # the comparison sees differences


def test_an_answer_that_is_another_one_is_seen(tmp_path: Path) -> None:
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
