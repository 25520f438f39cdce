"""Run state machines: `python -m tests.properties.steps --seed 1 --examples 60`.

Prints how many rules each has run, one step each, those of Hypothesis' search included. A failure
shows Hypothesis' own text, with the smallest sequence of steps that it found.
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

from tests.coordinator.groups.test_offsets import OffsetsMachine
from tests.coordinator.transactions.test_properties import Transactions
from tests.properties.test_partition_log import PartitionMachine

MACHINES = (PartitionMachine, Transactions, OffsetsMachine)
STEPS = 50


def counted(machine: type[RuleBasedStateMachine], counts: Counter[str]) -> type[Any]:
    """The machine, with counts of its examples and, by an invariant, of its rules."""

    class Counted(machine):  # type: ignore[misc, valid-type]
        looks = -1

        @invariant()
        def one_more(self) -> None:
            self.looks += 1

        def teardown(self) -> None:
            counts["steps"] += max(self.looks, 0)
            counts["examples"] += 1
            super().teardown()

    return Counted


def run(machine: type[RuleBasedStateMachine], number: int, examples: int) -> Counter[str]:
    """Run a machine with a seed and return its counts; failures of rules propagate."""
    counts: Counter[str] = Counter()
    run_state_machine_as_test(
        seed(number)(counted(machine, counts)),
        settings=settings(
            max_examples=examples, stateful_step_count=STEPS, database=None, deadline=None,
            derandomize=False, suppress_health_check=list(HealthCheck), phases=set(Phase) - {Phase.explain},
        ),
    )  # fmt: skip
    return counts


def main() -> None:
    """Run each machine; a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seed", type=int, default=1, help="Seed of the examples. [default: %(default)s]"
    )
    parser.add_argument(
        "--examples",
        type=int,
        default=60,
        help="Number of examples per machine. [default: %(default)s]",
    )
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for machine in MACHINES:
        counts = run(machine, options.seed, options.examples)
        print(
            f"{machine.__name__} {counts['steps']} steps {counts['examples']} examples", flush=True
        )


if __name__ == "__main__":
    main()
