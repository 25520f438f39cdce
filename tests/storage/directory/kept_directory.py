"""A log directory with all features, archived for every later version to open.

    python -m tests.storage.directory.kept_directory tests/data/directories/format-1

writes `closed.tar.xz`, `killed.tar.xz` and `expected.json`. It is run once for each format number;
an archive is never written again.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import eoslog
from eoslog import TopicPartition

START_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
WRITER = """
import os, signal, sys
import eoslog
log = eoslog.open(sys.argv[1])
producer = log.producer({"transactional.id": "left open"})
producer.init_transactions()
producer.begin_transaction()
producer.produce("orders", b"never committed", partition=0, timestamp=1_700_000_000_000)
plain = log.producer()
plain.produce("orders", b"acknowledged", partition=1, timestamp=1_700_000_000_000)
plain.flush()
producer.flush()
print("ready", flush=True)
signal.pause()
"""


def fill(log: eoslog.Log) -> None:
    """Write segments, codecs, transactions, groups, compacted and deleted records."""
    log.create_topic(
        "orders", 3, {"segment.bytes": 8192, "index.interval.bytes": 512, "retention.ms": -1}
    )
    for round_, codec in enumerate(CODECS):
        with log.producer({"compression.type": codec, "linger.ms": 0}) as producer:
            for number in range(40):
                at = START_MS + 1000 * round_ + number
                producer.produce(
                    "orders", key=None if number % 7 == 0 else b"k%d" % number,
                    value=None if number % 11 == 0 else (codec.encode() + b"-%d" % number) * 8,
                    partition=number % 3, timestamp=at, headers=[("codec", codec.encode()), ("null", None)],
                )  # fmt: skip
        with log.producer({"transactional.id": "orders", "linger.ms": 0}) as producer:
            producer.init_transactions()
            for ending in ("commit", "abort", "commit"):
                producer.begin_transaction()
                for number in range(12):
                    producer.produce(
                        "orders", f"{codec} {ending} {number}".encode() * 10,
                        partition=number % 3, timestamp=START_MS + 1000 * round_ + 500 + number,
                    )  # fmt: skip
                if ending == "commit":
                    with log.consumer("orders", group_id="in transactions") as consumer:
                        producer.send_offsets_to_transaction(
                            {
                                TopicPartition("orders", 0): eoslog.OffsetAndMetadata(
                                    10 + round_, metadata="m"
                                )
                            },
                            consumer.group_metadata(),
                        )
                    producer.commit_transaction()
                else:
                    producer.abort_transaction()
    with log.consumer(group_id="by hand") as consumer:
        consumer.assign([TopicPartition("orders", p) for p in range(3)])
        consumer.commit({TopicPartition("orders", p): 20 + p for p in range(3)})
    log.delete_records({TopicPartition("orders", 2): 9})
    log.create_topic("users", 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01})
    with log.producer() as producer:
        for number in range(300):
            value = None if number % 50 == 49 else b"%d" % number
            producer.produce(
                "users", key=b"user-%d" % (number % 20), value=value, timestamp=START_MS
            )
    log.clean(roll=True)
    log.create_topic("gone")
    log.delete_topic("gone")
    log.create_topic("grown", 1)
    log.create_partitions("grown", 4)
    log.alter_topic("grown", {"retention.ms": -1, "max.message.bytes": 2_000_000})


def content(log: eoslog.Log) -> dict[str, Any]:
    """What a reader must find: records by a digest, offsets, topics, groups."""
    found: dict[str, Any] = {"topics": {}, "groups": {}, "records": {}}
    for topic in sorted(log.topics()):
        described = log.describe_topic(topic)
        found["topics"][topic] = [len(described.partitions), dict(sorted(described.config.items()))]
        for partition in range(len(described.partitions)):
            ends = log.offsets(topic, partition)
            for isolation in ("read_committed", "read_uncommitted"):
                digest, offsets = hashlib.sha256(), []
                for record in log.read(topic, partitions=[partition], isolation=isolation):
                    offsets.append(record.offset)
                    digest.update(
                        repr(
                            (
                                record.offset,
                                record.timestamp,
                                record.key,
                                record.value,
                                record.headers,
                            )
                        ).encode()
                    )
                found["records"][f"{topic}-{partition} {isolation}"] = {
                    "start": ends.log_start, "count": len(offsets), "first": offsets[:1],
                    "last": offsets[-1:], "sha256": digest.hexdigest(),
                }  # fmt: skip
    for group in sorted(log.groups()):
        committed = log.describe_group(group).offsets
        found["groups"][group] = {
            str(k): [v.offset, v.metadata] for k, v in sorted(committed.items())
        }
    return found


def pack(directory: Path, archive: Path) -> None:
    """Pack a directory, without owners and times."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(archive, "w:xz") as tar:
        tar.add(directory, "log", filter=plain)


def main(out: Path) -> None:
    """Write the archives and what readers find in them."""
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "log"
        with eoslog.open(path) as log:
            fill(log)
        with eoslog.open(path, read_only=True) as log:
            expected = {"closed": content(log)}
        pack(path, out / "closed.tar.xz")
        process = subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        pack(path, out / "killed.tar.xz")
        with eoslog.open(path) as log:
            expected["killed"] = content(log)
    (out / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
