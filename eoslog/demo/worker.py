"""A worker process: consumes `flights` and produces their delays into `delays`.

One transaction contains the results and the position in the input. Two workers share a group.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from typing import TYPE_CHECKING

import eoslog
from eoslog.demo import dataset, plan
from eoslog.demo.child import listen, say
from eoslog.errors import (
    CommitFailed,
    FencedMemberEpoch,
    IllegalGeneration,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMember,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eoslog.log import Log

LOST_THE_PARTITION = (
    CommitFailed,
    FencedMemberEpoch,
    IllegalGeneration,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMember,
)


class Worker:
    """One member of the group, with the transactional id of its slot."""

    def __init__(self, log: Log, slot: int, instance: int, chunk: int) -> None:
        self.chunk = chunk
        self.headers = [
            (
                plan.WRITER_HEADER,
                plan.writer_name(f"worker{slot}", instance, os.getpid()).encode(),
            )
        ]
        self.producer = log.producer(
            transactional_id=f"{plan.WORKER_GROUP}-{slot}",
            compression_type="zstd",
            linger_ms=50,
        )
        self.producer.init_transactions()
        self.consumer = log.consumer(
            plan.FLIGHTS,
            group_id=plan.WORKER_GROUP,
            producer=self.producer,
            processing_guarantee="exactly_once",
            auto_offset_reset="earliest",
        )
        self.done = 0
        self._stop = threading.Event()

    def run(self, pause_after: int | None) -> None:
        """Work until told to stop.

        Args:
            pause_after: Stop for good in the middle of the first transaction after so many
                flights; the parent kills the process there.
        """
        threading.Thread(target=self._obey, daemon=True).start()
        joined = False
        while not self._stop.is_set():
            records = self.consumer.consume(self.chunk, timeout=0.2)
            if not joined and self.consumer.assignment():
                joined = True
                say("joined")
            if not records:
                continue
            pause = pause_after is not None and self.done >= pause_after
            try:
                with self.producer.transaction() as transaction:
                    self._transform(records)
                    if pause:
                        self._stop_for_good()
                    transaction.commit_offsets(self.consumer)
            except LOST_THE_PARTITION as error:
                say("rebalanced", error=type(error).__name__)
                continue
            self.done += len(records)
            say("progress", done=self.done)

    def _transform(self, records: Sequence[eoslog.Record]) -> None:
        encode = json.JSONEncoder(separators=(",", ":")).encode
        for record in records:
            delay = dataset.delay_of(json.loads(record.value), plan.LATE_MINUTES)
            if delay is not None:
                self.producer.produce(plan.DELAYS, encode(delay), record.key, headers=self.headers)

    def _stop_for_good(self) -> None:
        self.producer.flush()
        say("paused", done=self.done, epoch=self.producer.producer_epoch)
        threading.Event().wait()

    def _obey(self) -> None:
        listen()
        self._stop.set()

    def close(self) -> None:
        """Leave the group and close the producer."""
        self.consumer.close()
        self.producer.close()


def main(argv: list[str] | None = None) -> int:
    """Run one worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--slot", type=int, required=True)
    parser.add_argument("--instance", type=int, required=True)
    parser.add_argument("--chunk", type=int, required=True)
    parser.add_argument("--pause-after", type=int)
    options = parser.parse_args(argv)
    with eoslog.open(options.dir, plan.SETTINGS, create=False) as log:
        worker = Worker(log, options.slot, options.instance, options.chunk)
        worker.run(options.pause_after)
        worker.close()
    say("done", flights=worker.done)
    return 0


if __name__ == "__main__":
    sys.exit(main())
