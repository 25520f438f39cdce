"""The harnesses of `make torture`. Whoever adds one adds a line here.

A line is (module, class, share of the time); the class has the shape of `harness.Harness`. A module
that is not in the tree is left out; one that the machine cannot run says why and is counted.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

LINES = (
    ("tests.torture.kills", "Kills", 3),
    ("tests.torture.power", "Power", 3),
    ("tests.torture.simulated", "Simulated", 3),
    ("tests.torture.simulated", "Swept", 1),
    ("tests.torture.simulated", "Flipped", 1),
    ("tests.torture.full", "Refusals", 1.5),
    ("tests.torture.syscalls", "Syscalls", 2),
    ("tests.torture.full", "Full", 1),
    ("tests.torture.full", "Failing", 1.5),
    ("tests.torture.stops", "Stops", 0.7),
    ("tests.torture.stops", "Holders", 0.7),
    ("tests.torture.stops", "Clocks", 0.5),
    ("tests.torture.crowds", "Transform", 1),
    ("tests.torture.crowds", "Producers", 1),
    ("tests.torture.storms", "Storm", 0.7),
    ("tests.torture.storms", "Hanging", 0.7),
    ("tests.torture.storms", "ManyTopics", 0.5),
    ("tests.torture.fuzzed", "Fuzzed", 2),
)


def harnesses() -> list[tuple[Any, float]]:
    """(harness, share) of everything that is in the tree."""
    return [
        (getattr(importlib.import_module(module), name)(), share)
        for module, name, share in LINES
        if importlib.util.find_spec(module) is not None
    ]
