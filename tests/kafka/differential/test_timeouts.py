"""Timeouts of transactions and members on both sides, with real waiting.

Nothing in these tests is random.
"""

from __future__ import annotations

from tests.kafka.differential.both import Both, Pair
from tests.kafka.differential.sides import NO_ONE
from tests.waiting import until

BROKER = {
    "group.consumer.session.timeout.ms": 20_000,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.min.heartbeat.interval.ms": 100,
}
SESSION_MS = 20_000


def timed_out(pair: Pair, name: str) -> Both:
    """A transaction that both sides have aborted by its timeout.

    It has two records and an offset.
    """
    both = Both(pair, name)
    both.who = [side.init(name, NO_ONE, 5000)[1] for side in pair]
    assert both.ask("produce", 0, 0, [b"a", b"b"]) is None
    assert both.ask("commit_offset", f"{name}-group", 5) is None
    sweep = both.ours._engine.transactions.abort_timed_out

    def ended() -> bool:
        sweep()
        return all(side.transaction(name)[1] == "CompleteAbort" for side in pair)

    until(ended)
    return both


def test_a_timeout_aborts_and_bumps_the_epoch(pair: Pair) -> None:
    both = timed_out(pair, "t-abort")
    assert both.put("transaction", "t-abort") is None
    for request in ("ends", "committed", "producers"):
        assert both.put(request, 0) is None, both.steps[-1]
    assert both.steps[-3].ours == (3, 3)
    assert both.put("offset", "t-abort-group") is None
    assert both.steps[-1].ours == (0, -1)


def test_late_requests_after_a_timeout_are_rejected(pair: Pair) -> None:
    both = timed_out(pair, "t-late")
    assert both.ask("produce", 0, 2, [b"c"]) == "fenced-by-name"
    assert both.ask("commit_offset", "t-late-group", 6) == "fenced-by-name"
    assert both.ask("add_partition", 1) is None
    assert both.ask("add_offsets", "t-late-group") is None
    assert both.ask("end", True) == "commit-after-abort"
    assert both.ask("end", False) is None, both.steps[-1]  # it is aborted: that was asked for
    assert both.put("ends", 0) is None


def test_the_identity_from_before_the_timeout_is_replaced_once(pair: Pair) -> None:
    both = timed_out(pair, "t-init")
    answers = [side.init("t-init", who) for side, who in zip(pair, both.who, strict=True)]
    assert answers[0][0] == answers[1][0]
    both.who = [answer[1] for answer in answers]
    assert both.ask("produce", 0, 0, [b"d"]) is None
    assert both.ask("end", True) is None
    assert both.put("committed", 0) is None
    assert len(both.steps[-1].ours) == 1


def test_a_static_member_that_left_loses_its_place_after_its_session(pair: Pair) -> None:
    both, group = Both(pair, "t-session"), "t-session"
    assert both.put("join", group, "m1", "i", 300_000, SESSION_MS) is None
    assert both.put("leave", group, ("m1", 1, "i")) is None
    assert both.put("describe", group) is None
    assert len(both.steps[-1].ours[3]) == 1
    until(lambda: all(side.describe(group)[3] == () for side in pair))
    assert both.put("describe", group) is None
    assert both.put("beat", group, ("m1", 1, "i"), (0, 1)) is None
    assert both.steps[-1].ours == (25,)


def test_a_member_that_revokes_nothing_in_time_is_removed(pair: Pair) -> None:
    both, group = Both(pair, "t-rebalance"), "t-rebalance"
    assert both.put("join", group, "m1", None, 1000) is None
    assert both.put("join", group, "m2", None) is None
    assert both.put("beat", group, ("m1", 1, None), (0, 1)) is None
    both.ours._groups.tick()  # no more beats of m1

    def gone() -> bool:
        both.ours._groups.tick()
        return all(len(side.describe(group)[3]) == 1 for side in pair)

    until(gone)
    assert both.put("beat", group, ("m1", 1, None), (0, 1)) is None
    assert both.put("beat", group, ("m2", 2, None), ()) is None
    assert both.steps[-1].ours == (0, 3, (0, 1))
