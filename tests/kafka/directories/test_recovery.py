"""Recovery compared with Kafka's: a broker is killed, damaged and restarted."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from eoslog.storage.broker.recovery import recover
from eoslog.storage.format import checkpoints
from tests.kafka import jars
from tests.kafka.broker import Broker
from tests.kafka.clients import create_topics
from tests.kafka.directories.damage import damage
from tests.storage.broker.test_recovery import contents, differences, files_of

DAY_MS = 86_400_000
INTERVAL = 300
PARTITIONS = {"plain": 12, "stamped": 6, "compact": 6}
CONFIG: dict[str, object] = {"index.interval.bytes": str(INTERVAL), "retention.ms": "-1"}


def write(broker: Broker) -> None:
    """Write interleaved transactions over all partitions, some of them left open.

    Each partition gets several segments.
    """
    # Kafka 4 has no smaller segments than 1 MiB: time rolls them.
    roll = (
        {"segment.ms": "5000"} if broker.version != jars.DIRECTORIES else {"segment.bytes": "5000"}
    )
    common_config = {**CONFIG, **roll}
    create_topics(
        broker,
        PARTITIONS,
        {
            "plain": common_config,
            "stamped": {**common_config, "message.timestamp.type": "LogAppendTime"},
            "compact": {
                **common_config, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01",
            },
        },
    )  # fmt: skip
    r = random.Random(3)
    common = {"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "log_level": 0}
    plain = Producer({**common, "enable.idempotence": True, "compression.type": "lz4"})
    owners = [
        Producer({**common, "transactional.id": f"t{i}", "transaction.timeout.ms": 800_000})
        for i in range(3)
    ]
    for owner in owners:
        owner.init_transactions()
    opened = [False] * 3
    now = int(time.time() * 1000)
    for step in range(40):
        who = r.randrange(5)
        if who < 3 and not opened[who]:
            owners[who].begin_transaction()
            opened[who] = True
        producer = owners[who] if who < 3 else plain
        count, size = r.randrange(1, 4), r.randrange(10, 300)
        for topic, partitions in PARTITIONS.items():
            for partition in range(partitions):
                for i in range(count):
                    producer.produce(
                        topic, value=b"%d-" % step + b"v" * size, key=b"k%d" % (i + step % 4),
                        partition=partition, timestamp=now + 1000 * step,
                    )  # fmt: skip
        producer.flush()
        if who < 3 and r.randrange(2) and step < 36:
            (owners[who].commit_transaction if r.randrange(3) else owners[who].abort_transaction)()
            opened[who] = False
    time.sleep(3)  # the cleaner has its turn


@pytest.mark.parametrize("version", [jars.DIRECTORIES, jars.BEHAVIOUR])
def test_recovery_of_damage_equals_that_of_a_broker(
    broker_of: Callable[..., Broker], version: str, tmp_path: Path
) -> None:
    broker = broker_of(
        version, config={"log.initial.task.delay.ms": 500, "log.index.size.max.bytes": 8192}
    ).start()
    write(broker)
    broker.kill()
    logs = broker.logs
    seeds = iter(range(1000))
    done = {}
    for topic, partitions in PARTITIONS.items():
        for partition in range(partitions):
            name = f"{topic}-{partition}"
            done[name] = damage(logs / name, next(seeds))
    (logs / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    before = tmp_path / "before"
    subprocess.run(["cp", "-a", str(logs), str(before)], check=True)
    broker.configure("log.cleaner.enable=false")  # only its recovery changes files
    broker.start()
    now = int(time.time() * 1000)
    broker.stop()
    starts = checkpoints.read_offsets(str(before / "log-start-offset-checkpoint"))
    wrong = {}
    for name, how in done.items():
        topic, _, number = name.rpartition("-")
        recover(
            str(before / name), log_start=starts.get((topic, int(number)), 0),
            index_interval=INTERVAL, expire_before_ms=now - DAY_MS,
        )  # fmt: skip
        after = {
            file: data
            for file, data in files_of(logs / name).items()
            if not file.endswith(".deleted")
        }
        bad = differences(contents(files_of(before / name)), contents(after))
        if bad:
            wrong[name] = (how, bad)
    assert wrong == {}
    shutil.rmtree(before)
