"""The harnesses of `make torture`. Whoever adds one adds a line here.

A line is (module, class, minutes); the class has the shape of `harness.Harness`, and the minutes are about those that
its goal took one core of a quiet machine, so that all come near their goals together; together they are the two cores
of `make torture MINUTES=210`. A module that is not in the tree
is left out; one that the machine cannot run says why and is counted.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

LINES = (
    ("tests.torture.kills", "Kills", 20),
    ("tests.torture.power", "Power", 2),
    ("tests.torture.simulated", "Simulated", 35),
    ("tests.torture.simulated", "Swept", 28),
    ("tests.torture.simulated", "Flipped", 20),
    ("tests.torture.full", "Refusals", 10),
    ("tests.torture.syscalls", "Syscalls", 11),
    ("tests.torture.syscalls", "Counted", 40),
    ("tests.torture.full", "Full", 14),
    ("tests.torture.full", "Failing", 12),
    ("tests.torture.stops", "Stops", 12),
    ("tests.torture.stops", "Holders", 19),
    ("tests.torture.stops", "Clocks", 5),
    ("tests.torture.crowds", "Transform", 21),
    ("tests.torture.crowds", "Producers", 9),
    ("tests.torture.joins", "Joins", 8),
    ("tests.torture.onlookers", "Onlookers", 3),
    ("tests.torture.threads", "Threads", 8),
    ("tests.torture.remade", "Remade", 12),
    ("tests.torture.impatient", "Impatient", 7),
    ("tests.torture.ends", "Ends", 20),
    ("tests.torture.storms", "Storm", 4),
    ("tests.torture.storms", "Hanging", 9),
    ("tests.torture.storms", "ManyTopics", 24),
    ("tests.torture.fuzzed", "Fuzzed", 40),
    ("tests.torture.properties", "Properties", 3),
    ("tests.torture.moves", "Moves", 20),
)


def harnesses() -> list[tuple[Any, float]]:
    """(harness, share) of everything that is in the tree."""
    return [
        (getattr(importlib.import_module(module), name)(), share)
        for module, name, share in LINES
        if importlib.util.find_spec(module) is not None
    ]
