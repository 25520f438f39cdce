"""At most once, on the producing side: nothing is waited for, nothing is sent twice.

A crash, a full disk or a dropped buffer loses records, and nobody is told.
"""

import sys
import tempfile

import eoslog


def main(path: str) -> None:
    with eoslog.open(path) as log:
        log.create_topic("readings")
        with log.producer(acks=0, enable_idempotence=False) as producer:
            for number in range(100):
                producer.produce("readings", f"reading {number}")
        print("handed over: 100, promised: nothing")


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
