"""Names, schemas and the script of faults, shared by all processes of the demo."""

from __future__ import annotations

from dataclasses import dataclass

FLIGHTS = "flights"
DELAYS = "delays"
CARRIER_DELAYS = "carrier_delays"
SOURCE = "source"
"""One partition that stands for the data set: its committed offset is the next row to ingest."""
FAULTS = "faults"
"""What the faults saw, noted by whoever met them, outside of every transaction."""

FLIGHTS_PARTITIONS = 6
DELAYS_PARTITIONS = 6
CARRIER_DELAYS_PARTITIONS = 2

INGEST_ID = "flights-ingest"
INGEST_GROUP = "flights-ingest"
WORKER_GROUP = "delays"
AGGREGATE_ID = "carrier-delays"

SETTINGS = {
    "transaction.state.log.segment.bytes": 1 << 30,
    "offsets.topic.segment.bytes": 1 << 30,
}
"""Nothing of the internal topics is compacted: the check at the end reads all of their records."""

WRITER_HEADER = "writer"
"""Header of each record: role, instance and process id of its writer, e.g. `ingest-2/4711`."""

EXIT_FENCED = 4
"""Exit code of a process that was fenced; the command line's code for conflicts."""

LATE_MINUTES = 15
"""From this arrival delay on a flight counts as late, as in the airlines' own statistics."""


def writer_name(role: str, instance: int, process: int) -> str:
    """Return the text that identifies one process as a writer in the log."""
    return f"{role}-{instance}/{process}"


@dataclass(frozen=True)
class Script:
    """Where the faults strike, as a function of the number of flights alone.

    Attributes:
        rows: Flights to ingest.
        chunk: Flights in a transaction.
        abort_every: Each transaction with this ordinal is aborted once and done again.
        zombie_row: The first instance stops in the middle of the transaction that holds this row.
        kill_row: The second instance is killed in the middle of the transaction with this row.
        worker_rows: The first worker is killed in its first transaction after so many flights.
        lose_ack_every: Every such transaction loses the acknowledgement of one batch.
    """

    rows: int
    chunk: int
    abort_every: int
    zombie_row: int
    kill_row: int
    worker_rows: int
    lose_ack_every: int

    @classmethod
    def for_rows(cls, rows: int) -> Script:
        """Plan a run: 1,000 flights a transaction, fewer where the set is small."""
        chunk = max(20, min(1000, rows // 60))
        return cls(
            rows=rows,
            chunk=chunk,
            abort_every=10,
            zombie_row=rows // 3,
            kill_row=2 * rows // 3,
            worker_rows=rows // 10,
            lose_ack_every=7,
        )

    def chunk_of(self, row: int) -> int:
        """Return the ordinal of the transaction that carries `row`."""
        return row // self.chunk

    def is_aborted_first(self, row: int) -> bool:
        """Say whether the transaction beginning at `row` is to be aborted and redone."""
        return self.chunk_of(row) % self.abort_every == self.abort_every - 1

    def loses_ack(self, row: int) -> bool:
        """Say whether the transaction beginning at `row` loses an acknowledgement."""
        return self.chunk_of(row) % self.lose_ack_every == 2
