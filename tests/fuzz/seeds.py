"""Small valid inputs, one of each kind; `python -m tests.fuzz.seeds` writes them."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

from eoslog import _core
from eoslog.config.keys import ConsumerConfig, LogConfig, ProducerConfig, TopicConfig
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
_RECORDS = [
    (1_700_000_000_000, b"key", b"value", [("h", b"x"), ("none", None)]),
    (1_700_000_000_005, None, b"", []),
    (1_700_000_000_001, b"", None, []),
]


def _snapshot_entry(producer_id: int, first: int) -> bytes:
    return struct.pack(">qhiqiqiq", producer_id, 1, 9, 30, 2, 1_700_000_000_000, 0, first)


def seeds() -> dict[str, list[bytes]]:
    """By target."""
    plain = _core.build_batch(_RECORDS)
    batches = [
        plain,
        _core.build_batch(
            _RECORDS, producer_id=5, producer_epoch=1, base_sequence=0, transactional=True
        ),
        _core.build_batch(_RECORDS, compression="gzip"),
        _core.build_batch(_RECORDS[:1], timestamp_type=1, max_timestamp=7),
        _core.build_batch([], last_offset_delta=4),
    ]
    markers = [_core.build_marker(5, 1, commit, timestamp=3) for commit in (True, False)]
    body = plain[61:]
    offsets = struct.pack(">qiiiiii", 7, 0, 0, 5, 100, 9, 300)
    times = struct.pack(">qqiqi", 50, 10, 0, 60, 4)
    aborted = struct.pack(">hqqqq", 0, 5, 3, 9, 3)
    legacy = bytes.fromhex("0000000000000000000000150000000000010000000000000000ffffffff0000000178")
    text = b"acks=all\nlinger.ms=5\ntransactional.id=x\nretention.ms=-1\ncompression.type=zstd\n"
    return {
        "batch": [*batches, *markers, b"".join(batches)],
        "record": [b"\x03\x00" + body, b"\x01\x00" + body],
        "varint": [body[2:], b"\x00\x00\x01\x01\x00", b"\xff" * 10, b"\x80" * 9 + b"\x01"],
        "control": markers,
        "columns": [b"\x03" + plain, b"\x0b" + batches[1]],
        "index": [offsets],
        "time_index": [times],
        "txn_index": [aborted * 2],
        "snapshot": [_snapshot_entry(5, -1) + _snapshot_entry(6, 30), _snapshot_entry(5, 10) * 2],
        "segment": [plain, b"".join([*batches[:2], markers[0]])],
        "staged": [plain, b"".join(batches[:2])],
        "log_file": [plain, legacy, b"".join([batches[1], markers[1]])],
        "checkpoint": [
            b"0\n1\nt 0 17\n", b"0\n2\n0 0\n1 5\n", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n",
            b"version=1\ncluster.id=x\nnode.id=0\ndirectory.id=y\neoslog.format=1\n",
        ],
        "coordinator": [
            b"\x00\x00\x00\x01x", b"\x00\x01" + b"\x00" * 30, b"\x00\x03\x00\x01g", b"\x01\x02\x00\x01t" + b"\x00" * 17,
        ],
        "config": [text, *_settings()],
    }  # fmt: skip


def _settings() -> list[bytes]:
    """Every key with its default, four to a seed."""
    found = []
    for kind in (ProducerConfig, ConsumerConfig, TopicConfig, LogConfig):
        lines = [f"{key}={kind.default(key.replace('.', '_'))}" for key in kind.parsers()]
        found += ["\n".join(lines[at : at + 4]).encode() for at in range(0, len(lines), 4)]
    return found


def corpus(name: str) -> list[bytes]:
    """What is kept for a target, in a fixed order."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


def main() -> None:
    """Write the seeds that are not there yet."""
    for name in TARGETS:
        os.makedirs(CORPUS / name, exist_ok=True)
        for data in seeds()[name]:
            path = CORPUS / name / hashlib.sha1(data).hexdigest()[:12]
            path.write_bytes(data)


if __name__ == "__main__":
    main()
