"""Read from one topic, write to another, exactly once: the loop written out, with its error handling.

* fatal (fenced, another instance took over): close and go.
* commit outcome unknown: neither abort nor rewind; a new instance's `init_transactions` finds out.
* anything else: abort, go back to the committed position, try again.
"""

import sys
import tempfile

import eoslog
from eoslog.errors import CommitOutcomeUnknown, KafkaError


def rewind(consumer: eoslog.Consumer) -> None:
    """Back to the committed offsets, or to the beginning where none is."""
    for partition in consumer.committed(list(consumer.assignment())):
        if partition.offset is None or partition.offset < 0:
            consumer.seek_to_beginning([partition])
        else:
            consumer.seek(partition, partition.offset)


def transform(log: eoslog.Log, path: str, expected: int) -> int:
    done = 0
    producer = log.producer(transactional_id="doubler-1")
    settings = {
        "log.dir": path,
        "group.id": "doubler",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    }
    with producer, eoslog.Consumer(settings) as consumer:
        producer.init_transactions()
        consumer.subscribe(["numbers"])
        while done < expected:
            records = consumer.consume(50, 5)
            if not records:
                continue
            try:
                producer.begin_transaction()
                for record in records:
                    producer.produce("doubled", str(2 * int(record.value)), key=record.key)
                positions = consumer.position(list(consumer.assignment()))
                producer.send_offsets_to_transaction(positions, consumer.group_metadata())
                producer.commit_transaction()
            except CommitOutcomeUnknown:
                raise
            except KafkaError as error:
                if error.fatal:
                    raise
                producer.abort_transaction()
                rewind(consumer)
            else:
                done += len(records)
    return done


def main(path: str) -> None:
    with eoslog.open(path) as log:
        log.create_topic("numbers", partitions=2)
        log.create_topic("doubled", partitions=2)
        with log.producer() as producer:
            for number in range(200):
                producer.produce("numbers", str(number), key=str(number))
        transform(log, path, 200)
        total = sum(int(v.as_py()) for batch in log.scan("doubled") for v in batch.column("value"))
        print("doubled:", total, "expected:", 2 * sum(range(200)))


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
