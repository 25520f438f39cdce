"""Print eoslog's figures as ratios to their peers in the same run, and say which floors hold.

Usage: python bench/ratios.py RESULTS.json [--strict]
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One line: our benchmark, the peer's, and the least ratio of speeds that is acceptable (None = shown only)."""

    what: str
    ours: str
    peer: str
    floor: float | None = None


ROWS = (
    Row("produce() / aiokafka builder", "test_encode:test_produce", "test_encode:test_aiokafka_builder", 0.5),
    Row("produce_many / produce()", "test_encode:test_produce_many", "test_encode:test_produce", 2.0),
    Row("build_batch / aiokafka builder", "test_encode:test_build_batch", "test_encode:test_aiokafka_builder"),
    Row("build_batch / memcpy", "test_encode:test_build_batch", "test_encode:test_memcpy_of_the_values"),
    Row("decode rows / aiokafka reader", "test_decode:test_decode_records", "test_decode:test_aiokafka_reader"),
    Row("consume / aiokafka reader", "test_decode:test_consume", "test_decode:test_aiokafka_reader"),
    Row("scan columns / memcpy", "test_scan:test_scan_values", "test_scan:test_memcpy_of_the_values", 0.25),
    Row(
        "scan committed / uncommitted, 1 % aborted",
        "test_scan:test_scan_read_committed", "test_scan:test_scan_read_uncommitted", 0.95,
    ),
    Row(
        "durable append 1 MiB / write+fdatasync",
        "test_append:test_append_encoded_1mib", "test_append:test_write_fdatasync_1mib", 0.7,
    ),
    Row(
        "produce_many to durable / write+fdatasync",
        "test_append:test_append_1mib", "test_append:test_write_fdatasync_1mib",
    ),
    Row("produce_many to durable / sqlite", "test_append:test_append_1mib", "test_append:test_sqlite_1mib"),
    Row("produce_many to durable / lmdb", "test_append:test_append_1mib", "test_append:test_lmdb_1mib"),
    Row("commit, 2 partitions / 2 fdatasync", "test_commit:test_commit", "test_commit:test_two_fdatasyncs"),
    Row("commit, 2 partitions / sqlite", "test_commit:test_commit", "test_commit:test_sqlite_commit"),
    Row("commit, 2 partitions / lmdb", "test_commit:test_commit", "test_commit:test_lmdb_commit"),
    Row(
        "64 writers / one writer", "test_group_commit:test_durable_records[64-strict]",
        "test_group_commit:test_durable_records[1-strict]",
    ),
    Row(
        "64 writers / the same in an os directory", "test_group_commit:test_durable_records[64-strict]",
        "test_group_commit:test_durable_records[64-os]",
    ),
    Row(
        "8 writers / fdatasync", "test_group_commit:test_durable_records[8-strict]",
        "test_group_commit:test_fdatasync",
    ),
)  # fmt: skip


def key(fullname: str) -> str:
    """`file:test` of a pytest node."""
    path, test = fullname.split("::")[:2]
    return path.rsplit("/", 1)[-1].removesuffix(".py") + ":" + test


def speeds(results: dict[str, Any]) -> dict[str, float]:
    """Units a second by `file:test`, from the median round of a results file."""
    return {
        key(row["fullname"]): row["extra_info"]["units"] / row["stats"]["median"]
        for row in results["benchmarks"]
    }


def table(measured: dict[str, float]) -> tuple[list[str], int]:
    """The lines to print, and how many floors were missed."""
    lines = [f"{'what':<44}{'ours /s':>14}{'peer /s':>14}{'ratio':>8}{'floor':>7}"]
    missed = 0
    for row in ROWS:
        ours, peer = measured.get(row.ours), measured.get(row.peer)
        if ours is None or peer is None:
            lines.append(f"{row.what:<44}{'not measured':>43}")
            continue
        ratio = ours / peer
        below = row.floor is not None and ratio < row.floor
        missed += below
        floor = "" if row.floor is None else f"{row.floor:.2f}"
        note = "  MISSED" if below else ""
        lines.append(f"{row.what:<44}{ours:>14,.0f}{peer:>14,.0f}{ratio:>8.2f}{floor:>7}{note}")
    return lines, missed


def main(arguments: list[str]) -> int:
    """Print the table of a results file; with --strict a missed floor is an exit code of 1."""
    with open(arguments[0], encoding="utf-8") as file:
        lines, missed = table(speeds(json.load(file)))
    print("\n".join(lines))
    return int(bool(missed) and "--strict" in arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
