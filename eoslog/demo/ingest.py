"""The producer process: writes the data set to `flights`, 1,000 per transaction.

No file outside the log is needed to resume after a crash. The index of the next row is committed as
an offset of the partition `source-0`, in the same transaction as the flights.
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

    from eoslog.client.producer.producer import Producer
    from eoslog.log import Log

SOURCE = TopicPartition(plan.SOURCE, 0)


def next_row(log: Log) -> int:
    """Return the row after the committed transactions, at which to resume."""
    with log.consumer(group_id=plan.INGEST_GROUP) as consumer:
        offset: int | None = consumer.committed(SOURCE)
    return 0 if offset is None else offset


class Ingest:
    """One instance of the producer, until the data set is in the log or a fencing."""

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
            pause_at: Row at which to pause. The child reports that it paused in the middle of that
                row's transaction and waits for an order. During the pause, the parent starts a
                second instance or kills this one.

        Raises:
            ProducerFenced: if a newer instance with the same transactional id runs.
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
            # Leave a transaction without an end in the log.
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
        """Note that this instance was fenced, outside of a transaction."""
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
    """Return the coordinator's error; that of an append is milder (abortable)."""
    if isinstance(error, ProducerFenced):
        return error
    try:
        ingest.producer.abort_transaction()
    except ProducerFenced as fenced:
        return fenced
    return error


if __name__ == "__main__":
    sys.exit(main())
