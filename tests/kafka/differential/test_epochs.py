"""Both sides allocate a new producer id when the epochs of one are used up."""

from __future__ import annotations

import pytest

from tests.kafka.differential.both import Both, Pair
from tests.kafka.differential.sides import NO_ONE

NEARLY = 32_762
LAST = 32_766
"""The last epoch that bears data."""


@pytest.fixture
def tired(pair: Pair) -> Both:
    """A transactional id whose epoch is nearly used up on both sides."""
    both = Both(pair, "tired")
    for n, side in enumerate(pair):
        while both.who[n][1] < NEARLY:
            answer, both.who[n] = side.init(both.name, NO_ONE)
            assert answer[0] == 0
    return both


def ended(both: Both, commit: bool) -> str | None:
    """EndTxn on both sides, which continue with the identity that it returns."""
    answers = [
        side.end(both.name, who, commit)
        for side, who in zip((both.kafka, both.ours), both.who, strict=True)
    ]
    both.who = [answer[1] for answer in answers]
    return both.note("end", (both.name,), [answer[0] for answer in answers])


def test_transactions_continue_past_the_last_epoch_with_a_new_producer_id(tired: Both) -> None:
    epochs = []
    for n in range(10):
        assert tired.ask("produce", 0, 0, [b"%d" % n]) is None, tired.steps[-1]
        before = list(tired.who)
        assert ended(tired, n % 3 != 2) is None, tired.steps[-1]
        after, tired.who = tired.who, before
        assert tired.ask("end", n % 3 != 2) is None, tired.steps[-1]  # the answer was lost
        tired.who = after
        assert tired.put("transaction", tired.name) is None, tired.steps[-1]
        epochs.append(after[1][1])
    assert epochs == [*range(NEARLY + 1, LAST + 1), 0, 1, 2, 3, 4, 5]
    for request in ("committed", "producers", "ends"):
        assert tired.put(request, 0) is None, tired.steps[-1]


def test_rotated_by_init(tired: Both) -> None:
    while tired.who[1][1] < LAST:
        answers = [side.init(tired.name, NO_ONE) for side in (tired.kafka, tired.ours)]
        tired.who = [answer[1] for answer in answers]
        assert tired.note("init", (tired.name,), [a[0] for a in answers]) is None, tired.steps[-1]
    assert tired.ask("produce", 0, 0, [b"never seen"]) is None
    answers = [side.init(tired.name, NO_ONE) for side in (tired.kafka, tired.ours)]
    row = tired.note("init", (tired.name,), [answer[0] for answer in answers])
    assert row == "rotated-by-init", tired.steps[-1]
    tired.who = [answer[1] for answer in answers]
    assert tired.ask("produce", 0, 0, [b"seen"]) is None
    for side, who in zip((tired.kafka, tired.ours), tired.who, strict=True):
        assert side.end(tired.name, who, True)[0][0] == 0
    assert tired.put("committed", 0) is None, tired.steps[-1]
    assert [value for _, value in tired.steps[-1].ours] == [b"seen"]
