"""Quix Streams with a real Kafka broker: an application in a process of its own.

It needs an older confluent-kafka than the rest, so `.ci/peers` makes an environment for it.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.contest import AbsentError
from bench.peers import kafka_broker

PYTHON = Path(sys.prefix) / "peers" / "quixstreams" / "bin" / "python"
_groups = itertools.count()


def seconds(
    broker: Any, place: Path, value: bytes, records: int, in_a_transaction: int
) -> tuple[float, list[bytes]]:
    """The seconds from the first call of a task to the last, and the output.

    Raises:
        AbsentError: if Quix Streams is not installed.
    """
    if not PYTHON.exists():
        raise AbsentError(f"there is no {PYTHON.parent.parent.name} in {PYTHON.parent.parent}")
    source, target = kafka_broker.new_topic(broker), kafka_broker.new_topic(broker)
    client = kafka_broker.producer(broker)
    for _ in range(records):
        client.produce(source, value, b"key", 0)
    assert client.flush(120) == 0
    done = subprocess.run(
        [
            PYTHON, Path(__file__).with_name("quix_program.py"), broker.bootstrap,
            f"quix-{next(_groups)}", source, target, str(records), str(in_a_transaction),
            place / "quix",
        ],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return float(done.stdout), kafka_broker.values_of(broker, target, records)
