"""The intended differences between Kafka's answers and eoslog's.

Each is a row of docs/reference/kafka-compatibility.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Row(NamedTuple):
    """A difference; `goes_on` where the sides' states are still the same after it."""

    id: str
    fits: Callable[[Any, Sequence[Any]], bool]
    goes_on: bool = True


def _answers(kafka: int, ours: int, *requests: str) -> Callable[[Any, Sequence[Any]], bool]:
    """Both refuse, with other codes."""
    return lambda step, _: (
        step.request in requests and step.kafka == (kafka,) and step.ours == (ours,)
    )


def _after_a_refusal(step: Any, steps: Sequence[Any]) -> bool:
    """Kafka holds a refused batch's epoch and sequence against the next one."""
    return (step.request, step.kafka, step.ours[0]) == ("produce", (45,), 0) and any(
        before.request == "produce"
        and before.arguments[::2][:2] == step.arguments[::2][:2]
        and before.kafka[0] in (47, 48, 49, 90)
        for before in steps[:-1]
    )


def _init_of_another_epoch(step: Any, steps: Sequence[Any]) -> bool:
    """Kafka ends the open transaction before it checks the epoch of the request."""
    if step.request == "init":
        return step.ours == (90,) and step.kafka[0] == 0
    before = [(step.request, step.ours) for step in steps[-2:-1]]
    return step.request == "transaction" and before == [("init", (90,))]


def _stored_already(step: Any, _: Sequence[Any]) -> bool:
    """A batch whose records are all stored, but not as one of the last five batches."""
    return (step.request, step.kafka, step.ours) == ("produce", (45,), (0, -1))


def _of_another(step: Any, _: Sequence[Any]) -> bool:
    """A commit to a partition that another member holds."""
    code = {"commit": 113, "commit_offset": 22}.get(step.request)
    return step.kafka == (0,) and step.ours == (code,)


def _target_at_leave(step: Any, _: Sequence[Any]) -> bool:
    """Between a leave and the next heartbeat, Kafka has no new target yet."""
    if step.request != "describe" or step.kafka[:2] != (0, "Assigning") or step.ours[0]:
        return False
    theirs, ours = ([member[:4] for member in answer[3]] for answer in (step.kafka, step.ours))
    return step.kafka[2] == step.ours[2] and theirs == ours


def _offsets_only(step: Any, _: Sequence[Any]) -> bool:
    """A group that has committed offsets and never had a member."""
    return (step.request, step.kafka, step.ours) == ("describe", (69,), (0, "Empty", 0, ()))


def _static_take_over(step: Any, _: Sequence[Any]) -> bool:
    """A static name is asked for that a living member has."""
    return (step.request, step.kafka, step.ours[0]) == ("join", (111,), 0)


def _nothing_committed(step: Any, _: Sequence[Any]) -> bool:
    """A group whose only offsets were those of an aborted transaction."""
    deletes = step.request in ("delete_offset", "delete_group")
    return deletes and (step.kafka, step.ours) == ((0,), (69,))


def _without_group(step: Any, _: Sequence[Any]) -> bool:
    """A member commits to a group that nothing is left of, or only undecided offsets."""
    kafka = {"commit": ((69,), (25,)), "commit_offset": ((25,),)}.get(step.request, ())
    return step.kafka in kafka and step.ours == (22,)


def _rotated_by_init(step: Any, steps: Sequence[Any]) -> bool:
    """An init over an open transaction with the last epoch.

    It leads to a new producer id, which Kafka raises immediately.
    """
    if step.request != "init" or step.kafka[0] != 0 or step.ours[0] != 0:
        return False
    seen = {
        before.kafka[1]
        for before in steps[:-1]
        if before.request in ("init", "end") and not before.kafka[0]
    }
    same_id = step.kafka[1] == step.ours[1] and bool(seen) and step.kafka[1] not in seen
    return same_id and (step.kafka[2], step.ours[2]) == (1, 0)


def _left_already(step: Any, _: Sequence[Any]) -> bool:
    """Leaving a group that one is not in."""
    return step.request == "leave" and step.kafka in ((25,), (69,), (82,)) and step.ours == (0,)


ROWS: tuple[Row, ...] = (
    Row("stored-already", _stored_already),
    Row("trace-of-a-refusal", _after_a_refusal, goes_on=False),
    Row("init-of-another-epoch", _init_of_another_epoch, goes_on=False),
    Row("commit-after-abort", _answers(48, 90, "end")),
    Row("rotated-by-init", _rotated_by_init, goes_on=False),
    Row("left-already", _left_already),
    Row("partition-of-another", _of_another, goes_on=False),
    Row("static-take-over", _static_take_over, goes_on=False),
    Row("fenced-static-commit", _answers(25, 82, "commit", "commit_offset")),
    Row("nothing-committed", _nothing_committed),
    Row("target-at-leave", _target_at_leave),
    Row("offsets-only-group", _offsets_only),
    Row("commit-without-group", _without_group),
    Row("beat-without-group", _answers(69, 25, "beat")),
    Row("fenced-by-name", _answers(47, 90, "produce", "commit_offset")),
)


def row_for(step: Any, steps: Sequence[Any]) -> Row | None:
    """The row that covers a step's difference."""
    return next((row for row in ROWS if row.fits(step, steps)), None)
