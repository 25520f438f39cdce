"""Steps of state machines are counted as they run, and a failure shows its text."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.properties.steps import run


def test_every_rule_that_runs_counts_as_one_step():
    ran, begun = [], []

    class Machine(RuleBasedStateMachine):
        @initialize()
        def begin(self) -> None:
            begun.append(1)

        @rule(number=st.integers())
        def one(self, number: int) -> None:
            ran.append(number)

        @precondition(lambda self: len(ran) % 3)
        @rule()
        def other(self) -> None:
            ran.append(0)

    counts = run(Machine, 5, 10)
    assert (counts["steps"], counts["examples"]) == (len(ran), len(begun))
    assert len(ran) > 50


def test_a_wrong_machine_fails_with_the_same_text_for_the_same_seed(capsys):
    class Wrong(RuleBasedStateMachine):
        total = 0

        @rule(number=st.integers(1, 9))
        def add(self, number: int) -> None:
            self.total += number

        @invariant()
        def small(self) -> None:
            assert self.total < 10, f"it is {self.total}"

    texts = []
    for _ in range(2):
        with pytest.raises(AssertionError, match="it is 1") as caught:
            run(Wrong, 7, 50)
        texts.append((str(caught.value), getattr(caught.value, "__notes__", [])))
    assert texts[0] == texts[1]
    assert "state.add(" in str(texts[0])
