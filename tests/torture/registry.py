"""The harnesses of `make torture`. Whoever adds one adds a line here.

A line is (module, class, minutes); the class has the shape of `harness.Harness`, and the minutes are about those that
its goal took one core of a quiet machine, so that all come near their goals together; together they are the two cores
of `make torture MINUTES=335`. A harness that the machine cannot run says why and is counted.
"""

from __future__ import annotations

import importlib
from typing import Any

LINES = (
    ("tests.torture.harnesses.kills", "Kills", 20),
    ("tests.torture.harnesses.kills", "Decisions", 20),
    ("tests.torture.harnesses.power", "Power", 2),
    ("tests.torture.adapters.simulated", "Simulated", 35),
    ("tests.torture.adapters.simulated", "Swept", 28),
    ("tests.torture.adapters.simulated", "Flipped", 60),
    ("tests.torture.harnesses.damaged", "Damaged", 15),
    ("tests.torture.harnesses.damaged", "DamagedCommands", 2),
    ("tests.torture.harnesses.full", "Refusals", 10),
    ("tests.torture.harnesses.syscalls", "Syscalls", 11),
    ("tests.torture.harnesses.syscalls", "Counted", 40),
    ("tests.torture.harnesses.full", "Full", 14),
    ("tests.torture.harnesses.full", "Failing", 12),
    ("tests.torture.harnesses.stops", "Stops", 12),
    ("tests.torture.harnesses.stops", "Holders", 19),
    ("tests.torture.harnesses.stops", "Clocks", 5),
    ("tests.torture.harnesses.crowds", "Transform", 21),
    ("tests.torture.harnesses.crowds", "Producers", 9),
    ("tests.torture.harnesses.joins", "Joins", 8),
    ("tests.torture.harnesses.onlookers", "Onlookers", 3),
    ("tests.torture.harnesses.threads", "Threads", 8),
    ("tests.torture.harnesses.remade", "Remade", 12),
    ("tests.torture.harnesses.impatient", "Impatient", 7),
    ("tests.torture.harnesses.ends", "Ends", 20),
    ("tests.torture.harnesses.storms", "Storm", 4),
    ("tests.torture.harnesses.storms", "Hanging", 9),
    ("tests.torture.harnesses.storms", "ManyTopics", 24),
    ("tests.torture.adapters.fuzzed", "Fuzzed", 40),
    ("tests.torture.adapters.properties", "Properties", 3),
    ("tests.torture.harnesses.moves", "Moves", 20),
    ("tests.torture.harnesses.halves", "Halves", 40),
    ("tests.torture.harnesses.halves", "HalvesPower", 10),
    ("tests.torture.harnesses.ids", "Ids", 27),
    ("tests.torture.harnesses.databases", "Atomic", 60),
    ("tests.torture.harnesses.databases", "AtomicOnServer", 4),
    ("tests.torture.harnesses.databases", "Sink", 50),
    ("tests.torture.harnesses.databases", "SinkOnServer", 4),
    ("tests.torture.harnesses.databases", "TwoPhase", 10),
    ("tests.torture.harnesses.databases", "TwoPhaseOnServer", 6),
    ("tests.torture.harnesses.zombies", "Zombies", 8),
    ("tests.torture.harnesses.zombies", "ZombiesOnServer", 8),
)


def harnesses() -> list[tuple[Any, float]]:
    """(harness, share) of every line; a module that is not there ends the run."""
    return [
        (getattr(importlib.import_module(module), name)(), share) for module, name, share in LINES
    ]
