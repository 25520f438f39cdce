"""The group rows of docs/reference/kafka-compatibility.md, one test each."""

from __future__ import annotations

from tests.kafka.differential.both import Both, Pair
from tests.kafka.differential.group_sides import NEVER_GIVEN
from tests.kafka.differential.wire import NOBODY

GONE = ("m0", 1, None)


def test_left_already(pair: Pair) -> None:
    both = Both(pair, "g-left")
    assert both.put("leave", "g-left", GONE) == "left-already"
    assert both.put("join", "g-left", "m1", None) is None
    assert both.put("leave", "g-left", GONE) == "left-already"


def test_beat_without_group(pair: Pair) -> None:
    both = Both(pair, "g-none")
    assert both.put("beat", "g-none", GONE, ()) == "beat-without-group"


def test_commit_without_group(pair: Pair) -> None:
    both = Both(pair, "g-nothing")
    assert both.put("commit", "g-nothing", GONE, 0, 1) == "commit-without-group"
    assert both.ask("commit_offset", "g-nothing", 1) is None
    assert both.put("commit", "g-nothing", GONE, 0, 1) == "commit-without-group"


def test_partition_of_another(pair: Pair) -> None:
    both, group = Both(pair, "g-owner"), "g-owner"
    assert both.put("join", group, "m1", None) is None
    assert both.put("join", group, "m2", None) is None
    assert both.put("commit", group, ("m2", 2, None), 0, 5) == "partition-of-another"
    assert both.ask("commit_offset", group, 5, ("m2", 2, None)) == "partition-of-another"
    assert both.put("commit", group, ("m1", 1, None), 0, 6) is None


def test_static_take_over(pair: Pair) -> None:
    both, group = Both(pair, "g-static"), "g-static"
    assert both.put("join", group, "m1", "i") is None
    assert both.put("join", group, "m2", "i") == "static-take-over"


def test_fenced_static_commit(pair: Pair) -> None:
    both, group = Both(pair, "g-fenced"), "g-fenced"
    assert both.put("join", group, "m1", "i") is None
    assert both.put("leave", group, ("m1", 1, "i")) is None
    assert both.put("join", group, "m2", "i") is None
    assert both.put("beat", group, ("m1", 1, "i"), (0, 1)) is None  # both: FENCED_INSTANCE_ID
    assert both.steps[-1].ours == (82,)
    assert both.put("commit", group, ("m1", 1, "i"), 0, 1) == "fenced-static-commit"


def test_nothing_committed(pair: Pair) -> None:
    both, group = Both(pair, "g-aborted"), "g-aborted"
    assert both.ask("commit_offset", group, 7) is None
    assert both.ask("end", False) is None
    assert both.put("delete_offset", group, 0) == "nothing-committed"


def test_target_at_leave(pair: Pair) -> None:
    both, group = Both(pair, "g-target"), "g-target"
    assert both.put("join", group, "m1", None) is None
    assert both.put("join", group, "m2", None) is None
    assert both.put("leave", group, ("m1", 1, None)) is None
    assert both.put("describe", group) == "target-at-leave"
    assert both.put("beat", group, ("m2", 2, None), ()) is None
    assert both.put("describe", group) is None


def test_offsets_only_group(pair: Pair) -> None:
    both, group = Both(pair, "g-simple"), "g-simple"
    assert both.put("commit", group, NOBODY, 0, 3) is None
    assert both.put("describe", group) == "offsets-only-group"


def test_a_late_heartbeat_releases_no_partition(pair: Pair) -> None:
    """Fixed defect: the heartbeat was treated as a release of the partition.

    Another member then got the partition.
    """
    both, group = Both(pair, "g-late"), "g-late"
    assert both.put("join", group, "m1", None) is None
    assert both.put("join", group, "m2", None) is None
    assert both.put("beat", group, ("m1", 1, None), (0, 1)) is None
    late = both.steps[-1].ours[2]
    assert both.put("beat", group, ("m1", 1, None), late) is None
    assert both.put("leave", group, ("m2", 2, None)) is None
    assert both.put("beat", group, ("m1", 2, None), late) is None
    assert both.steps[-1].ours == (0, 3, (0, 1))
    assert both.put("join", group, "m3", None) is None
    assert both.put("beat", group, ("m1", 3, None), (0, 1)) is None
    assert both.put("beat", group, ("m1", 2, None), late) is None
    assert both.steps[-1].ours == (110,)


def test_wrong_member_epochs_are_rejected_by_name(pair: Pair) -> None:
    both, group = Both(pair, "g-epoch"), "g-epoch"
    assert both.put("join", group, "m1", None) is None
    for request, code in (("beat", 110), ("commit", 113)):
        arguments = ((),) if request == "beat" else (0, 1)
        assert both.put(request, group, ("m1", NEVER_GIVEN, None), *arguments) is None
        assert both.steps[-1].ours == (code,)
