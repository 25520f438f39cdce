"""Records of prepared transactions, as `inspect` and its decoders show them."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import Outcome
from eoslog.admin.record_schemas import decoder_of
from eoslog.model import TopicPartition


@pytest.fixture
def log(tmp_path: Path) -> Iterator[eoslog.Log]:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t", 2)
        yield log


def prepared(log: eoslog.Log, mode: str, **arguments: Any) -> eoslog.PreparedTransaction:
    producer = log.producer(transactional_id=f"tx-{mode}")
    producer.init_transactions()
    producer.begin_transaction(mode=mode)
    for number in range(3):
        producer.produce("t", b"v%d" % number, key=b"k", partition=1, headers=[("h", b"\xff")])
    producer.send_offsets_to_transaction({TopicPartition("t", 0): 4}, "g")
    return producer.prepare_transaction(**arguments)


def decoded(log: eoslog.Log, topic: str, decoder: str) -> list[dict[str, Any]]:
    """All records of an internal topic, in the order of each partition."""
    return [
        record["decoded"]
        for path in sorted(Path(log.path).glob(f"{topic}-*"))
        for segment in eoslog.inspect(path, decoder=decoder)["segments"]
        for batch in segment["batches"]
        for record in batch["records"]
    ]


def of_type(rows: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["type"] == kind]


@pytest.mark.parametrize(
    ("meta", "shown"), [({"order": 7}, {"order": 7}), (b"\x00\xff", "00ff"), (None, None)]
)
def test_row_N09_the_record_of_a_prepared_transaction_is_decoded(
    log: eoslog.Log, meta: object, shown: object
) -> None:
    state = prepared(log, "inline", meta=meta, resolver="orders-db")
    _, producer_id, epoch, _ = state.token.rsplit(":", 3)
    rows = decoded(log, "__transaction_state", "transactions")
    (row,) = of_type(rows, "prepared_transaction")
    wanted = {
        "key_version": 100, "producer_id": int(producer_id), "producer_epoch": int(epoch),
        "mode": "inline", "state": "Prepared", "transactional_id": "tx-inline",
        "resolver": "orders-db", "meta": shown, "checks": 0, "decided_at": -1, "deliver_at": -1,
        "offsets": [],
    }  # fmt: skip
    assert wanted.items() <= row.items()
    topic_id = base64.urlsafe_b64encode(log.describe_topic("t").topic_id).decode().rstrip("=")
    spans = {(span["topic"], span["partition"]): span for span in row["spans"]}
    assert spans["t", 1] == {
        "topic": "t", "topic_id": topic_id, "partition": 1, "first_offset": 0, "last_offset": 2,
    }  # fmt: skip
    last = of_type(rows, "transaction")[-1]
    assert (last["state"], last["timeout_ms"]) == ("Ongoing", 2**31 - 1)
    assert last["undecided"] == {"state": "Prepared", "timeout_ms": 60_000}
    log.resolve(state.token, Outcome.ABORT)
    rows = decoded(log, "__transaction_state", "transactions")
    decision = of_type(rows, "prepared_transaction")[-1]
    assert decision["state"] == "CompleteAbort"
    assert decision["decided_at"] >= row["prepared_at"] > 0
    assert "undecided" not in of_type(rows, "transaction")[-1]


def test_row_N08_the_payload_of_a_staged_transaction_is_decoded(log: eoslog.Log) -> None:
    state = prepared(log, "staged")
    (token,) = of_type(decoded(log, "__transaction_state", "transactions"), "prepared_transaction")
    assert (token["mode"], token["records"]) == ("staged", 3)
    (offset,) = token["offsets"]
    assert (offset["group_id"], offset["topic"], offset["partition"], offset["offset"]) == (
        "g", "t", 0, 4,
    )  # fmt: skip
    (payload,) = decoded(log, "__staged_transactions", "staged")
    assert (payload["type"], payload["part"]) == ("staged_records", 0)
    assert payload["producer_id"] == token["producer_id"] == int(state.token.split(":")[1])
    assert [(row["key"], row["value"], row["headers"]) for row in payload["records"]] == [
        (b"k".hex(), (b"v%d" % number).hex(), [["h", "ff"]]) for number in range(3)
    ]
    log.resolve(state.token, Outcome.COMMIT)
    assert decoded(log, "__staged_transactions", "staged")[-1]["tombstone"] is True


def test_a_check_record_is_decoded() -> None:
    decode = decoder_of("transactions")
    assert decode is not None
    key, value = struct.pack(">hqh", 101, 7, 3), struct.pack(">qhb", 1234, 15, 65)
    found = {"type": "prepared_transaction_check", "key_version": 101, "producer_id": 7}
    assert decode(key, value) == {
        **found, "producer_epoch": 3, "state": "Parked", "checks": 15, "due_at": 1234,
    }  # fmt: skip
    assert decode(key, None) == {**found, "producer_epoch": 3, "tombstone": True}


@pytest.mark.parametrize("decoder", ["transactions", "staged"])
def test_a_damaged_own_record_is_an_error_of_that_record(decoder: str) -> None:
    decode = decoder_of(decoder)
    assert decode is not None
    keys = {"transactions": struct.pack(">hqh", 100, 7, 3), "staged": struct.pack(">qhi", 7, 3, 0)}
    for size in range(1, 60):
        assert "error" in decode(keys[decoder], b"\x7f" * size)
