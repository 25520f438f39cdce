"""Exactly once, on the consuming side: the position is part of the transaction that writes the results.

`processing.guarantee=exactly_once` binds the consumer to a transactional producer and refuses any other way.
"""

import sys
import tempfile

import eoslog


def main(path: str) -> None:
    with eoslog.open(path) as log:
        log.create_topic("letters")
        log.create_topic("capitals")
        with log.producer() as producer:
            for letter in "abcde":
                producer.produce("letters", letter)
        with log.producer(transactional_id="capitals-1") as producer:
            producer.init_transactions()
            settings = {
                "log.dir": path,
                "group.id": "capitals",
                "processing.guarantee": "exactly_once",
                "auto.offset.reset": "earliest",
            }
            done = 0
            with eoslog.Consumer(settings, producer=producer) as consumer:
                consumer.subscribe(["letters"])
                while done < 5:
                    records = consumer.consume(100, 5)
                    with producer.transaction() as tx:
                        for record in records:
                            tx.produce("capitals", record.value.upper())
                        tx.commit_offsets(consumer)
                    done += len(records)
        values = [
            v.as_py().decode() for batch in log.scan("capitals") for v in batch.column("value")
        ]
        print("capitals:", "".join(values))


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
