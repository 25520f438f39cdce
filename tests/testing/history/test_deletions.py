"""A record that was read before its deletion is not lost; an unread one is.

The unread record is lost if it is missing.
"""

from __future__ import annotations

from typing import Any

import pytest

from eoslog.testing.history import History, check

TXN = [
    {"f": "txn", "type": "invoke", "txn": "x", "inst": "i", "session": "s", "epoch": 0},
    {"f": "send", "type": "invoke", "id": "1", "txn": "x", "session": "s", "acks": "all",
     "sends": [["t-0", "a"], ["t-0", "b"]]},
    {"f": "end", "type": "invoke", "txn": "x", "commit": True, "consumed": []},
    {"f": "end", "type": "ok", "txn": "x", "commit": True},
]  # fmt: skip


def found(*events: dict[str, Any]) -> list[str]:
    rows = [{"process": "p", "time": n, "start": n - 1} | e for n, e in enumerate([*TXN, *events])]
    return [anomaly.name for anomaly in check(History(rows)).anomalies]


def scan(*values: str) -> dict[str, Any]:
    reads = [["t-0", "ab".index(value), value] for value in values]
    return {"f": "scan", "type": "ok", "isolation": "read_committed", "reads": reads,
            "from": {"t-0": 0}, "to": {"t-0": 2}}  # fmt: skip


def copy(start: int, *values: str) -> dict[str, Any]:
    return scan(*values) | {"f": "copy", "from": {"t-0": start}}


def delete(first: int, before: int) -> dict[str, Any]:
    return {"f": "delete", "type": "ok", "partition": "t-0", "from": first, "before": before}


def drain(log_start: int, *values: str) -> dict[str, Any]:
    log = [["ab".index(value), value] for value in values]
    return {"f": "drain", "type": "ok", "partition": "t-0", "log_start": log_start, "log_end": 3,
            "log": log}  # fmt: skip


@pytest.mark.parametrize(
    ("events", "names"),
    [
        ([scan("a", "b"), delete(0, 2), drain(2)], []),
        ([scan("a", "b"), delete(0, 1), drain(1, "b")], []),
        ([scan("a", "b"), delete(0, 1), drain(1)], ["lost-write", "read-then-lost"]),
        ([scan("a"), delete(0, 1), drain(1)], ["lost-write"]),
        ([scan("a"), delete(0, 2), delete(1, 2), drain(2)], ["lost-write"]),
        ([scan("a"), delete(1, 2), drain(2)], []),
        ([delete(0, 2), drain(2)], []),
        ([scan("a"), delete(0, 1), drain(2)], []),
    ],
    ids=["read", "half of it", "gone all the same", "never read", "by two", "a gap", "no scan", "by retention"],
)  # fmt: skip
def test_a_missing_write_is_valid_if_it_was_read_before_its_deletion(
    events: list[dict[str, Any]], names: list[str]
) -> None:
    assert [name for name in found(*events) if name != "stale-read"] == names


def test_a_copy_may_contain_a_transaction_decided_before_its_marker() -> None:
    bound = {"f": "bounds", "type": "ok", "start": 99, "partition": "t-0", "lso": 1, "hw": 2}
    assert found(copy(0, "a", "b"), bound, drain(0, "a", "b")) == []
    assert found(scan("a", "b"), bound, drain(0, "a", "b")) == ["read-past-lso"]


def test_a_copy_may_lack_only_records_deleted_before_it() -> None:
    read, end = [scan("a", "b"), delete(0, 1)], drain(1, "b")
    assert found(*read, copy(1, "b"), end) == []
    assert found(*read, copy(0, "b"), end) == ["torn-txn"]
    assert found(*read, copy(1), end) == ["stale-read"]
