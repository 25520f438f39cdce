"""Exactly once within one producer's life: the defaults, `acks=all` and `enable.idempotence=true`.

Every batch has a sequence number; one that is sent again is recognised and answered with its first offset.
"""

import sys
import tempfile

import eoslog


def main(path: str) -> None:
    with eoslog.open(path) as log:
        log.create_topic("payments")
        with log.producer(acks="all", enable_idempotence=True) as producer:
            deliveries = [producer.send("payments", f"payment {number}") for number in range(100)]
            offsets = [delivery.result(timeout=30).offset for delivery in deliveries]
        assert offsets == list(range(100))
        print("payments:", len(offsets), "offsets:", offsets[0], "to", offsets[-1])


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
