"""The producer process: takes the data set into `flights`, a thousand flights a transaction.

Where to go on after a crash is no question of files beside the log: the index of the next row is
committed as an offset of the partition `source-0`, in the same transaction as the flights.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

import eoslog
from eoslog.demo import dataset, faults, plan
from eoslog.demo.child import listen, say
from eoslog.demo.injection import AckLoss
from eoslog.errors import InvalidProducerEpoch, KafkaError, ProducerFenced
from eoslog.model import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from eoslog.client.producer import Producer
    from eoslog.log import Log

SOURCE = TopicPartition(plan.SOURCE, 0)


def next_row(log: Log) -> int:
    """Return the row where the committed transactions say that ingesting must go on."""
    with log.consumer(group_id=plan.INGEST_GROUP) as consumer:
        offset: int | None = consumer.committed(SOURCE)
    return 0 if offset is None else offset


class Ingest:
    """One instance of the producer, alive until the data set is in the log or it is fenced."""

    def __init__(self, log: Log, table: pa.Table, script: plan.Script, instance: int) -> None:
        self.log = log
        self.table = table
        self.script = script
        self.writer = plan.writer_name("ingest", instance, os.getpid())
        self.notes = faults.Notes(log)
        self.producer: Producer = log.producer(
            transactional_id=plan.INGEST_ID, compression_type="zstd", linger_ms=50
        )
        self.ack_loss = AckLoss(self.notes, self.writer)

    def run(self, pause_at: int | None) -> None:
        """Ingest from the committed row to the end.

        Args:
            pause_at: Stop in the middle of the transaction that holds this row, say so, and go on
                when told; the parent starts a second instance meanwhile, or kills this one.

        Raises:
            ProducerFenced: A newer instance with the same transactional id is at work.
        """
        self.producer.init_transactions()
        row = next_row(self.log)
        say("ready", row=row, epoch=self.producer.producer_epoch)
        redo = False
        while row < self.script.rows:
            size = min(self.script.chunk - row % self.script.chunk, self.script.rows - row)
            pause = pause_at is not None and row <= pause_at < row + size
            abort = self.script.is_aborted_first(row) and not redo
            self._transaction(row, size, pause=pause, abort=abort)
            redo = abort
            if not abort:
                row += size
                say("progress", row=row)

    def _transaction(self, row: int, size: int, *, pause: bool, abort: bool) -> None:
        self.producer.begin_transaction()
        half = size // 2
        self._produce(row, half)
        if pause:
            # What lies in the log now is a transaction without an end.
            self.producer.flush()
            say("paused", row=row + half, epoch=self.producer.producer_epoch)
            listen()
        lose = self.script.loses_ack(row) and not abort
        with self.ack_loss.around(lose):
            self._produce(row + half, size - half)
            self.producer.flush()
        if abort:
            self.producer.abort_transaction()
            return
        self.producer.send_offsets_to_transaction(
            [TopicPartition(plan.SOURCE, 0, row + size)], plan.INGEST_GROUP
        )
        self.producer.commit_transaction()
        self.ack_loss.write_down()

    def _produce(self, row: int, count: int) -> None:
        headers = [(plan.WRITER_HEADER, self.writer.encode())]
        delivered = self.ack_loss.on_delivery
        for key, value in dataset.rows(self.table, row, count):
            self.producer.produce(plan.FLIGHTS, value, key, headers=headers, on_delivery=delivered)

    def note_fencing(self, error: KafkaError) -> None:
        """Write down that this instance was fenced; not as a transaction, it may have none."""
        self.notes.note(
            faults.FENCED,
            self.writer,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.producer_epoch,
            error=type(error).__name__,
        )

    def close(self) -> None:
        """Close the producers."""
        self.producer.close()
        self.notes.close()


def main(argv: list[str] | None = None) -> int:
    """Run one instance; exit code 4 if it was fenced."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--instance", type=int, required=True)
    parser.add_argument("--pause-at", type=int)
    options = parser.parse_args(argv)
    table = dataset.load(options.limit)
    with eoslog.open(options.dir, plan.SETTINGS, create=False) as log:
        ingest = Ingest(log, table, plan.Script.for_rows(table.num_rows), options.instance)
        try:
            ingest.run(options.pause_at)
            ingest.close()
        except (ProducerFenced, InvalidProducerEpoch) as error:
            ingest.note_fencing(_last_word(ingest, error))
            say("fenced", error=type(error).__name__)
            return plan.EXIT_FENCED
    say("done")
    return 0


def _last_word(ingest: Ingest, error: KafkaError) -> KafkaError:
    """Return what the coordinator says; an append is refused in milder words (abortable)."""
    if isinstance(error, ProducerFenced):
        return error
    try:
        ingest.producer.abort_transaction()
    except ProducerFenced as fenced:
        return fenced
    return error


if __name__ == "__main__":
    sys.exit(main())
