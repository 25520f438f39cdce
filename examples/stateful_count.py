"""Count words, exactly: state, its changelog and the input's position are one transaction.

`feed` writes the input, `count` counts until no more comes, `show` prints the totals. Kill `count` at any moment
(`kill -9`) and start it again: it finishes or undoes what it was doing, reads its state back from the changelog and
goes on at the position that belongs to that state.
"""

import sys
import tempfile
from collections import Counter

import eoslog


def feed(path: str, count: int) -> None:
    words = ("apple", "pear", "plum", "fig", "lime")
    with eoslog.open(path) as log:
        log.create_topic("words", partitions=2)
        log.create_topic("counts", partitions=1)
        with log.producer() as producer:
            for number in range(count):
                producer.produce("words", str(number), key=words[number * number % 5])


def restore(log: eoslog.Log) -> Counter[str]:
    """The state as of the last committed transaction: the last value of each key."""
    counts: Counter[str] = Counter()
    for batch in log.scan("counts"):
        for key, value in zip(batch.column("key"), batch.column("value"), strict=True):
            counts[key.as_py().decode()] = int(value.as_py())
    return counts


def count(path: str) -> None:
    with eoslog.open(path) as log, log.producer(transactional_id="counter") as producer:
        producer.init_transactions()  # finishes or undoes what an earlier run left, and silences it
        counts = restore(log)
        settings = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
        with log.consumer("words", group_id="counter", **settings) as consumer:
            while records := consumer.consume(20, 2):
                with producer.transaction() as tx:
                    changed = set()
                    for record in records:
                        counts[record.key.decode()] += 1
                        changed.add(record.key.decode())
                    for word in sorted(changed):
                        tx.produce("counts", str(counts[word]), key=word)
                    tx.commit_offsets(consumer)


def show(path: str) -> None:
    with eoslog.open(path) as log:
        counts = restore(log)
    print("total", sum(counts.values()), *(f"{word}={counts[word]}" for word in sorted(counts)))


def main(path: str, *arguments: str) -> None:
    command, *rest = arguments or ("all",)
    if command not in ("feed", "count", "show", "all"):
        sys.exit(f"{command!r}: one of feed, count, show, all")
    if command in ("feed", "all"):
        feed(path, int(rest[0]) if rest else 1000)
    if command in ("count", "all"):
        count(path)
    if command in ("show", "all"):
        show(path)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
