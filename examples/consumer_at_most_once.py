"""At most once, on the consuming side: read, save the position, process.

Dying between the second and the third step skips a record, and never repeats one.
"""

import sys
import tempfile

import eoslog


def main(path: str) -> None:
    with eoslog.open(path) as log:
        log.create_topic("letters")
        with log.producer() as producer:
            for letter in "abcde":
                producer.produce("letters", letter)
        settings = {"processing.guarantee": "at_most_once", "auto.offset.reset": "earliest"}
        with log.consumer("letters", group_id="reader", **settings) as consumer:
            record = consumer.poll(5)
            committed = consumer.committed([eoslog.TopicPartition("letters", 0)])[0]
            assert record is not None and committed.offset > record.offset
            print("read offset", record.offset, "with", committed.offset, "already committed")


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
