"""Count words exactly once, in a table that commits with the position.

`feed` writes the input, `count` counts until no more comes, and `show` prints the totals. Kill
`count` at any point (`kill -9`) and start it again: the table has the words up to the position of
the last transaction that has committed, and `count` continues there.
"""

import sys
import tempfile

import eoslog

WORDS = ("apple", "pear", "plum", "fig", "lime")


def counter(path: str) -> eoslog.App:
    """Return the application: `counts` has the total of each key of `words`."""
    app = eoslog.App(path, "counter")
    counts = app.table("counts", default=int)

    @app.task("words", key="string", tables=[counts])
    def count(word: eoslog.Record, _ctx: eoslog.Context) -> None:
        counts[word.key] += 1

    return app


def feed(path: str, number_of_words: int) -> None:
    """Write words."""
    with counter(path) as app:
        app.create_topics(partitions=2)
        with app.log.producer() as producer:
            for number in range(number_of_words):
                producer.produce("words", str(number), key=WORDS[number * number % 5])


def show(path: str) -> None:
    """Print the totals."""
    with eoslog.open(path) as log:
        counts = log.table("counts")
        print("total", sum(counts.values()), *(f"{word}={counts[word]}" for word in sorted(counts)))


def main(path: str, *arguments: str) -> None:
    """Run one step, or all of them."""
    command, *rest = arguments or ("all",)
    if command not in ("feed", "count", "show", "all"):
        sys.exit(f"{command!r}: expected feed, count, show or all")
    if command in ("feed", "all"):
        feed(path, int(rest[0]) if rest else 1000)
    if command in ("count", "all"):
        counter(path).run(until="caught_up")
    if command in ("show", "all"):
        show(path)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
