"""Notes on faults: JSON records in the topic `faults`, outside of transactions.

A note says what a process encountered (a lost acknowledgement whose batch was sent again, a
fencing, a kill). The report counts a note only if the bytes of the other topics confirm it.
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
    """A process's writer of notes on faults; each note is durable on return."""

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
        """Close the producer of the notes."""
        self._producer.close()
