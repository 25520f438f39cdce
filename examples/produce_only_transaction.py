"""Several topics, all or none: a reader sees both records of a transfer or neither."""

import sys
import tempfile

import eoslog


def main(path: str) -> None:
    with eoslog.open(path) as log:
        log.create_topic("debits")
        log.create_topic("credits")
        with log.producer(transactional_id="transfers") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.produce("debits", "alice -10")
            producer.produce("credits", "bob +10")
            producer.commit_transaction()

            producer.begin_transaction()
            producer.produce("debits", "alice -99")
            producer.abort_transaction()
        for topic in ("debits", "credits"):
            values = [
                v.as_py().decode() for batch in log.scan(topic) for v in batch.column("value")
            ]
            print(topic, values)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
