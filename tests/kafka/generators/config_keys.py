"""Write the lists of Kafka's and librdkafka's configuration keys.

    python -m tests.kafka.generators.config_keys [CONFIGURATION.md of librdkafka]

`test_documented_keys` reads the lists. Kafka's keys come from the definitions in its own jars,
which Maven fetches.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.kafka import jars
from tests.paths import KAFKA_DATA

HERE = Path(__file__).parent
LISTS = KAFKA_DATA / "config"


def of_kafka() -> str:
    """Kind, name and `documented` or `internal` of each key, a line each."""
    where = jars.fetch(jars.BEHAVIOUR)
    return subprocess.run(
        ["java", "-cp", f"{where}/*", str(HERE / "ConfigKeys.java")],
        capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL,
    ).stdout  # fmt: skip


def of_librdkafka(page: str) -> str:
    """`both`, `consumer` or `producer`, and the name, of each row of its page."""
    kinds = {"*": "both", "C": "consumer", "P": "producer"}
    rows = re.findall(r"^([a-z][\w.]+) +\| +([*CP]) +\|", page, re.MULTILINE)
    return "".join(sorted({f"{kinds[kind]} {name}\n" for name, kind in rows}))


def main() -> None:
    """Write both lists, or Kafka's alone."""
    LISTS.mkdir(parents=True, exist_ok=True)
    (LISTS / f"kafka-{jars.BEHAVIOUR}.txt").write_text(of_kafka())
    for page in sys.argv[1:]:
        (LISTS / "librdkafka.txt").write_text(of_librdkafka(Path(page).read_text()))


if __name__ == "__main__":
    main()
