"""At least once, on the producing side: `flush()` returns when every record is on the disk.

Without idempotence a resent batch is a second copy; the next recipe is the cure.
"""

import sys
import tempfile

import eoslog


def main(path: str) -> None:
    with eoslog.open(path) as log:
        log.create_topic("readings")
        with log.producer(acks="all", enable_idempotence=False) as producer:
            for number in range(100):
                producer.produce("readings", f"reading {number}", key=str(number % 4))
            producer.flush()
        print("on the disk:", log.offsets("readings", 0).high_watermark)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
