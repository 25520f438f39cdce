"""Move money between two PostgreSQL databases, and log the moves: all or nothing.

The process is killed before and after the decision, and the next one completes what it left. Both
servers need `max_prepared_transactions` above 0.

python examples/move_money.py DIR "dbname=bank" "dbname=shop"
"""

import os
import signal
import subprocess
import sys

import psycopg

import eoslog

STEPS = ("tpc.prepared", "tpc.decided", None)
MONEY = 1000


def create(databases: list[str]) -> None:
    """Create a purse in each database; the first one has money."""
    for dsn, money in zip(databases, (MONEY, 0), strict=True):
        with psycopg.connect(dsn) as connection:
            connection.execute("create table if not exists purse (money integer not null)")
            connection.execute(
                "insert into purse select %s where not exists (select * from purse)", (money,)
            )


def move(path: str, bank: str, shop: str) -> None:
    """Complete what earlier processes have left, then move 5."""
    with (
        eoslog.open(path) as log,
        psycopg.connect(bank) as source,
        psycopg.connect(shop) as target,
        eoslog.tpc.Coordinator(log) as coordinator,
        log.producer(transactional_id="mover") as producer,
    ):
        log.create_topic("moves", exist_ok=True)
        coordinator.recover(source, target)
        with coordinator.transaction(source, target, producer):
            source.execute("update purse set money = money - 5")
            target.execute("update purse set money = money + 5")
            producer.produce("moves", "5")


def main(path: str, *databases: str) -> None:
    """Move three times, kill two of the moves, and compare databases and log."""
    create(list(databases))
    kills = 0
    for step in STEPS:
        environment = dict(os.environ)
        if step is not None:
            environment["EOSLOG_FAILPOINTS"] = f"{step}=kill"
        command = [sys.executable, __file__, path, *databases, "move"]
        ended = subprocess.run(command, env=environment, capture_output=True, check=False)
        kills += ended.returncode == -signal.SIGKILL
    with eoslog.open(path) as log:
        moved = sum(int(record.value) for record in log.read("moves"))
    found = []
    for dsn in databases:
        with psycopg.connect(dsn) as connection:
            found += [money for (money,) in connection.execute("select money from purse")]
    agree = found == [MONEY - moved, moved] and moved > 0
    print("killed", kills, "of 3 moves; the databases and the log agree:", agree)


if __name__ == "__main__":
    if sys.argv[4:] == ["move"]:
        move(*sys.argv[1:4])
    elif len(sys.argv) == 4:
        main(*sys.argv[1:])
    else:
        sys.exit('usage: move_money.py DIR "dbname=bank" "dbname=shop"')
