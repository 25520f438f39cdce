"""Count what the kills of `kills.py` leave under Spark's own Kafka sink.

    python -m tests.spark.torture.kafka_sink --drivers 2 --workers 4 --executors 2

Jobs read eoslog and write to a real Kafka broker, batch and stream. Processes die before a task
writes, within it, and after it has written everything. Nothing is checked: duplicate rows, and
rows of jobs that were partly visible, are counted. Spark promises only at-least-once delivery
for this sink.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.kafka import jars
from tests.kafka.broker import Broker
from tests.spark.torture.kills import CLUSTER, LOCAL, ROWS, Kill, Torture, carry_out, kills

STEPS = ("spark.write.begun", "spark.write.rows", "spark.write.finished")


class KafkaTorture(Torture):
    """Takes the topics of a broker through kills; `numbers` and `in` stay in eoslog.

    Args:
        scratch: a folder of its own.
        seed: of the order of the kills.
    """

    def __init__(self, scratch: Path, seed: int) -> None:
        super().__init__(scratch, seed)
        self.environment = {"EOSLOG_TORTURE_JARS": ",".join(map(str, jars.spark_connector()))}
        self.broker = Broker(scratch / "broker", jars.BEHAVIOUR).start()
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        topics = [NewTopic(name, 2, 1) for name in ("out", "streamed")]
        for made in admin.create_topics(topics).values():
            made.result()

    def next_job(self, kill: Kill) -> dict[str, object]:
        job = super().next_job(kill)
        return {**job, "kind": f"kafka {job['kind']}", "servers": self.broker.bootstrap}

    def check_whole(self, job: dict[str, object]) -> None:
        prefix = f"{job.get('version')}-".encode()
        if job["kind"] == "kafka batch":
            seen = len({one for one in self.values("out") if one.startswith(prefix)})
            self.counts["jobs of which a part was visible"] += seen not in (0, ROWS)

    def check_all(self, job: dict[str, object]) -> None:
        twice, missing, strange, expected = self.tally(job)
        kind = str(job["kind"]).removeprefix("kafka ")
        for what, count in (("too many", twice), ("missing", missing), ("unknown", strange)):
            self.counts[f"{kind}: rows {what}"] = count
        self.counts[f"{kind}: rows expected"] = expected

    def values(self, topic: str) -> list[bytes]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap, "group.id": "count",
                "enable.auto.commit": False, "isolation.level": "read_committed",
            }
        )  # fmt: skip
        found: list[bytes] = []
        try:
            for partition in range(2):
                one = TopicPartition(topic, partition, 0)
                _, end = consumer.get_watermark_offsets(one, timeout=30)
                consumer.assign([one])
                position = 0
                while position < end:
                    for message in consumer.consume(1000, 1.0):
                        if message.error():
                            raise RuntimeError(str(message.error()))
                        position = message.offset() + 1
                        found.append(message.value().rstrip(b" "))
        finally:
            consumer.close()
        return found

    def close(self) -> None:
        super().close()
        self.broker.remove()


def torture(drivers: int, workers: int, executors: int, seed: int, scratch: Path) -> Counter[str]:
    """So many kills of each; returns what was counted."""
    run = KafkaTorture(scratch, seed)
    plan = [(one, LOCAL) for one in kills("worker", STEPS, workers, run.rng)]
    plan += [(one, LOCAL) for one in kills("driver", STEPS, drivers, run.rng)]
    plan += [(one, CLUSTER) for one in kills("executor", STEPS, executors, run.rng)]
    return carry_out(run, plan)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.torture.kafka_sink",
        description=__doc__.split("\n", maxsplit=1)[0],
    )
    parser.add_argument("--drivers", type=int, default=2)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--executors", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    given = parser.parse_args()
    scratch = Path(
        tempfile.mkdtemp(prefix="eoslog-torture-", dir=os.environ.get("EOSLOG_BENCH_DIR"))
    )
    print(f"seed {given.seed}", flush=True)
    try:
        counts = torture(given.drivers, given.workers, given.executors, given.seed, scratch / "run")
    except jars.Unreachable as error:
        print(f"Spark's Kafka connector cannot be fetched: {error}", file=sys.stderr)
        return jars.UNREACHABLE
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    for name, count in sorted(counts.items()):
        print(f"{count:8d}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
