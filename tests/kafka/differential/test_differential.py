"""A real broker and eoslog answer the same requests alike, but for listed rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import eoslog
from tests.kafka.broker import Broker
from tests.kafka.differential.both import Both, Pair
from tests.kafka.differential.comparison import KINDS, compare
from tests.kafka.differential.differences import ROWS, row_for
from tests.kafka.differential.sequence import Step
from tests.kafka.differential.sides import NO_ONE
from tests.paths import ROOT

SLICE = 200
SEED = 1
PAGE = ROOT / "docs" / "reference" / "kafka-compatibility.md"


@pytest.mark.parametrize("kind", KINDS)
def test_random_sequences_differ_only_in_listed_rows(
    kind: str, asked: Broker, log: eoslog.Log
) -> None:
    met, unlisted = compare(asked, log, SLICE, SEED, kind)
    assert unlisted == []
    assert met["fenced-by-name"] > 0  # the comparison sees differences


def test_the_page_lists_exactly_the_allowed_rows() -> None:
    listed = re.findall(r"^\| `([\w-]+)` \|", PAGE.read_text(), re.M)
    assert sorted(listed) == sorted(row.id for row in ROWS)


def test_every_row_has_its_own_test() -> None:
    here = Path(__file__).parent
    text = "".join(path.read_text() for path in here.glob("test_*.py"))
    assert [row.id for row in ROWS if f"def test_{row.id.replace('-', '_')}(" not in text] == []


def test_an_unlisted_difference_matches_no_row() -> None:
    for kafka, ours in (((0, 1), (0, 2)), ((45,), (0, 3)), ((0, 0), (90,)), ((90,), (0,))):
        step = Step("produce", ("a", (1, 0), 0, 5, 1), kafka, ours)
        assert row_for(step, [step]) is None


def test_fenced_by_name(pair: Pair) -> None:
    both = Both(pair, "row-fenced")
    assert both.ask("produce", 0, 0, [b"a"]) is None
    assert both.ask("end", True) is None
    assert both.ask("produce", 0, 1, [b"b"]) == "fenced-by-name"
    assert both.ask("commit_offset", "row-group", 1) == "fenced-by-name"
    assert both.steps[-1].ours == (90,)


def test_stored_already(pair: Pair) -> None:
    both = Both(pair, "row-stored")
    for sequence in range(7):
        assert both.ask("produce", 0, sequence, [b"%d" % sequence]) is None
    assert both.ask("produce", 0, 6, [b"6"]) is None  # a duplicate that both know
    assert both.ask("produce", 0, 1, [b"1"]) == "stored-already"
    for side in pair:
        assert side.end(both.name, both.who[pair.index(side)], True)[0][0] == 0
        assert len(side.committed(0)) == 7


def test_trace_of_a_refusal(pair: Pair) -> None:
    both = Both(pair, "row-trace")
    assert both.ask("produce", 0, 0, [b"a"]) is None
    assert both.ask("produce", 0, 0, [b"b"], epoch=1) == "fenced-by-name"
    assert both.ask("produce", 0, 1, [b"c"]) == "trace-of-a-refusal"


def test_init_of_another_epoch(pair: Pair) -> None:
    both = Both(pair, "row-init")
    assert both.ask("end", True) is None  # nothing open
    zombies = list(both.who)
    both.who = [side.init(both.name, NO_ONE)[1] for side in pair]
    assert both.ask("produce", 0, 0, [b"a"]) is None
    for side, who in zip(pair, zombies, strict=True):
        assert side.init(both.name, who)[0] == (90,)
    kafka, ours = (side.transaction(both.name) for side in pair)
    assert (kafka[1], ours[1]) == ("CompleteAbort", "Ongoing")
    steps = [
        Step("init", (both.name, zombies[0]), (90,), (90,)),
        Step("transaction", (both.name,), kafka, ours),
    ]
    row = row_for(steps[-1], steps)
    assert row is not None
    assert row.id == "init-of-another-epoch"


def test_commit_after_abort(pair: Pair) -> None:
    both = Both(pair, "row-commit")
    assert both.ask("produce", 0, 0, [b"a"]) is None
    assert both.ask("end", False) is None
    assert both.ask("end", True) == "commit-after-abort"


def test_the_first_batch_of_a_transaction_must_have_sequence_0(pair: Pair) -> None:
    both = Both(pair, "mended")
    assert both.ask("produce", 0, 2, [b"b"]) is None
    assert both.steps[-1].ours == (45,)
    assert all(side.ends(0) == (0, 0) for side in pair)
