"""Hand-made requests to both sides, for the tests of one thing each."""

from __future__ import annotations

from typing import Any

from tests.kafka.differential.differences import row_for
from tests.kafka.differential.sequence import Step
from tests.kafka.differential.sides import NO_ONE, Answer

Pair = tuple[Any, Any]
"""Kafka's side and eoslog's."""


class Both:
    """Puts requests to both sides, each with its own identity."""

    def __init__(self, pair: Pair, name: str) -> None:
        self.kafka, self.ours = pair
        self.name = name
        answers = [side.init(name, NO_ONE) for side in pair]
        assert answers[0][0] == answers[1][0]
        self.who = [answer[1] for answer in answers]
        self.steps: list[Step] = []

    def note(
        self, request: str, arguments: tuple[object, ...], answers: list[Answer]
    ) -> str | None:
        """The row of the difference, None where the answers agree."""
        self.steps.append(Step(request, arguments, *answers))
        if answers[0] == answers[1]:
            return None
        row = row_for(self.steps[-1], self.steps)
        return f"unlisted: {self.steps[-1]}" if row is None else row.id

    def put(self, request: str, *arguments: object) -> str | None:
        """Ask both with the same arguments."""
        return self.note(
            request,
            arguments,
            [getattr(side, request)(*arguments) for side in (self.kafka, self.ours)],
        )

    def ask(self, request: str, *arguments: object, epoch: int = 0) -> str | None:
        """Return the row of the difference, or None if the answers agree.

        `epoch` is added to the first argument.
        """
        producers = [(producer_id, first + epoch) for producer_id, first in self.who]
        answers = []
        for side, who in zip((self.kafka, self.ours), producers, strict=True):
            answer = getattr(side, request)(self.name, who, *arguments)
            answers.append(answer[0] if request in ("init", "end") else answer)
        return self.note(request, (self.name, producers[0], *arguments), answers)
