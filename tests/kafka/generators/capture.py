"""Write `broker-<version>.tar.xz` in `tests/data/kafka`: what a broker left.

    python -m tests.kafka.generators.capture        from the top of the tree, with Maven and Java 17

Each archive holds `logs/`, the log directory of a broker that ran `workload.py` (seed 1) and
was stopped cleanly, with every index trimmed. It also holds `seen.json`. For each topic this
file has what librdkafka (rows in both isolations) and Fetch (log start, last stable offset,
high watermark, aborted ranges) returned.
"""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from pathlib import Path

from tests.kafka import jars
from tests.kafka.broker import Broker
from tests.kafka.directories.workload import Seen, Workload
from tests.kafka.directories.world import Row
from tests.paths import KAFKA_DATA as DATA


def archive(version: str) -> Path:
    """Where a version's capture is."""
    return DATA / f"broker-{version}.tar.xz"


def _row(row: Row) -> list[object]:
    def hexed(data: bytes | None) -> str | None:
        return None if data is None else data.hex()

    headers = [[name, hexed(value)] for name, value in row.headers]
    return [*row[:4], hexed(row.key), hexed(row.value), headers]


def as_json(seen: dict[str, Seen]) -> str:
    """What was seen, bytes in hex."""
    return json.dumps(
        {
            topic: {
                **found._asdict(),
                "rows": {
                    isolation: [_row(row) for row in rows] for isolation, rows in found.rows.items()
                },
            }
            for topic, found in seen.items()
        }
    )


def main() -> None:
    """Capture both versions."""
    for version in (jars.DIRECTORIES, jars.BEHAVIOUR):
        with tempfile.TemporaryDirectory() as place:
            broker = Broker(Path(place), version).start()
            try:
                workload = Workload(broker)
                workload.run()
                text = as_json(workload.seen()).encode()
                broker.stop()
                with tarfile.open(archive(version), "w:xz", preset=9) as tar:
                    tar.add(
                        broker.logs,
                        "logs",
                        filter=lambda info: None if info.name.endswith("/.lock") else info,
                    )
                    info = tarfile.TarInfo("seen.json")
                    info.size = len(text)
                    tar.addfile(info, io.BytesIO(text))
            finally:
                broker.kill()
        print(archive(version), archive(version).stat().st_size)


if __name__ == "__main__":
    main()
