"""At least once, on the consuming side: read, process, save the position.

Dying between the second and the third step repeats records, and never skips one.
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
        settings = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
        done: list[str] = []
        with log.consumer("letters", group_id="reader", **settings) as consumer:
            while len(done) < 5:
                for record in consumer.consume(100, 5):
                    done.append(record.value.decode())
                consumer.commit()
        print("processed:", "".join(done))


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
