"""Read a topic and write another one exactly once, with error handling.

The results and the position in the input commit together. Kill the worker at any point and start it
again: every number is processed once.

* A fatal error ends the worker. The next one finds out how the last transaction ended.
* A commit that timed out is committed again, and nothing else.
* After any other error the transaction is aborted, and the records are read again.
"""

import sys
import tempfile

import eoslog
from eoslog.errors import KafkaError


def work(producer: eoslog.Producer, consumer: eoslog.Consumer) -> int:
    """Double numbers until no more come; return how many were processed."""
    done = 0
    while records := consumer.consume(50, timeout=2):
        try:
            with producer.transaction() as tx:
                for record in records:
                    tx.produce("doubled", str(2 * int(record.value)), key=record.key)
                tx.commit_offsets(consumer)
        except KafkaError as error:
            if error.fatal:
                raise
            if producer.transaction_state != "COMMITTING_TRANSACTION":
                continue  # aborted, and the consumer is back at its committed position
            producer.commit_transaction()
        done += len(records)
    return done


def main(path: str) -> None:
    """Write 200 numbers and double them."""
    with eoslog.open(path) as log:
        log.create_topic("numbers", partitions=2, exist_ok=True)
        log.create_topic("doubled", partitions=2, exist_ok=True)
        with log.producer() as plain:
            for number in range(200):
                plain.produce("numbers", str(number), key=str(number))
        with log.producer(transactional_id="doubler-1") as producer:
            producer.init_transactions()  # abort what an earlier worker left open
            with log.consumer(
                "numbers",
                group_id="doubler",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            ) as consumer:
                done = work(producer, consumer)
        numbers = sum(int(record.value or 0) for record in log.read("numbers"))
        doubled = sum(int(record.value or 0) for record in log.read("doubled"))
    print("doubled", done, "numbers; the totals agree:", doubled == 2 * numbers)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
