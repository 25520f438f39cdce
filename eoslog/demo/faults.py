"""Notes on faults: one JSON record each in the topic `faults`, written outside of transactions.

A note says what a process met (an acknowledgement lost and its batch sent again, a fencing, a
kill). The log is the judge: the report counts a note only if the bytes of the other topics bear
it out.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from eoslog.demo.plan import FAULTS

if TYPE_CHECKING:
    from eoslog.log import Log

RESENT = "resent"
FENCED = "fenced"
KILLED = "killed"


class Notes:
    """Where a process of the demo writes down the faults that it met; durable when noted."""

    def __init__(self, log: Log) -> None:
        self._producer = log.producer(acks="all")

    def note(self, kind: str, writer: str, **fields: Any) -> None:
        """Append one note and wait until it is durable.

        Args:
            kind: One of this module's constants.
            writer: The process that it is about, as in its records' header.
            **fields: What the report needs to find the place in the log.
        """
        text = json.dumps({"kind": kind, "writer": writer, "noted_by": os.getpid(), **fields})
        self._producer.produce(FAULTS, text, key=kind)
        self._producer.flush()

    def close(self) -> None:
        """Close the producer behind."""
        self._producer.close()
