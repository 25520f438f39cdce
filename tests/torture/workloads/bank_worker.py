"""One process of the bank: transfers in transactions, until it is killed.

A fifth of the transactions are aborted.

Usage: python -m tests.torture.workloads.bank_worker DIRECTORY TRANSACTIONAL_ID JOURNAL

The journal has one line per step: `try ID COUNT`, `ok ID COUNT`, `abort ID`.
"""

from __future__ import annotations

import os
import random
import sys

import eoslog
from eoslog.errors import CommitOutcomeUnknown, KafkaError

ACCOUNTS = 6
TOPIC = "bank"


def main(path: str, transactional_id: str, journal_path: str) -> None:
    rng = random.Random(os.getpid())
    number = 0
    with eoslog.open(path) as log, open(journal_path, "a", buffering=1) as journal:
        producer = log.producer(transactional_id=transactional_id)
        producer.init_transactions()
        while True:
            number += 1
            transfer = f"{transactional_id}-{os.getpid()}-{number}"
            source, target = rng.sample(range(ACCOUNTS), 2)
            count = rng.randint(1, 5)
            try:
                producer.begin_transaction()
                for _ in range(count):
                    producer.produce(TOPIC, b"-5", transfer, partition=source)
                    producer.produce(TOPIC, b"5", transfer, partition=target)
                if rng.random() < 0.2:
                    producer.abort_transaction()
                    journal.write(f"abort {transfer}\n")
                    continue
                journal.write(f"try {transfer} {count}\n")
                producer.commit_transaction()
                journal.write(f"ok {transfer} {count}\n")
            except CommitOutcomeUnknown:
                raise
            except KafkaError as error:
                if error.fatal:
                    raise
                producer.abort_transaction()


if __name__ == "__main__":
    main(*sys.argv[1:])
