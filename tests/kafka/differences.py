"""The differences between Kafka's answers and eoslog's that are meant: rows of docs/kafka-differences.md."""

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
    """Kafka ends the open transaction before it looks at the epoch of the one who asks."""
    if step.request == "init":
        return step.ours == (90,) and step.kafka[0] == 0
    before = [(step.request, step.ours) for step in steps[-2:-1]]
    return step.request == "transaction" and before == [("init", (90,))]


def _stored_already(step: Any, _: Sequence[Any]) -> bool:
    """A batch whose records are all stored, but not as one of the last five batches."""
    return (step.request, step.kafka, step.ours) == ("produce", (45,), (0, -1))


ROWS: tuple[Row, ...] = (
    Row("stored-already", _stored_already),
    Row("trace-of-a-refusal", _after_a_refusal, goes_on=False),
    Row("init-of-another-epoch", _init_of_another_epoch, goes_on=False),
    Row("commit-after-abort", _answers(48, 90, "end")),
    Row("fenced-by-name", _answers(47, 90, "produce", "commit_offset")),
)


def row_for(step: Any, steps: Sequence[Any]) -> Row | None:
    """The row that covers a step's difference."""
    return next((row for row in ROWS if row.fits(step, steps)), None)
