"""`inspect` gives for Kafka's own files what Kafka's own classes read from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import errors
from eoslog.admin.inspect import inspect
from tests.paths import KAFKA_DATA as KAFKA

BATCHES = sorted((KAFKA / "batches").glob("*.bin"))
PARTITIONS = ("plain-0", "txn-0")
NOT_ON_DISK = ("note", "index_interval_bytes")  # about how the sample was made


def expected(name: str) -> dict[str, Any]:
    wanted = json.loads((KAFKA / "segments" / f"{name}.expected.json").read_text())
    return {key: value for key, value in wanted.items() if key not in NOT_ON_DISK}


@pytest.mark.parametrize("name", PARTITIONS)
def test_inspect_describes_a_partition_directory_as_kafka_does(name: str) -> None:
    assert inspect(KAFKA / "segments" / name) == expected(name)


@pytest.mark.parametrize("name", PARTITIONS)
def test_inspect_describes_each_file_on_its_own(name: str) -> None:
    wanted = expected(name)
    for segment in wanted["segments"]:
        stem = KAFKA / "segments" / name / f"{segment['base_offset']:020}"
        assert inspect(f"{stem}.log") == segment
        base = {"base_offset": segment["base_offset"]}
        assert inspect(f"{stem}.index") == base | {"offset_index": segment["offset_index"]}
        assert inspect(f"{stem}.timeindex") == base | {"time_index": segment["time_index"]}
        if segment["txn_index"]:
            assert inspect(f"{stem}.txnindex") == base | {"txn_index": segment["txn_index"]}
    for file, producers in wanted["snapshots"].items():
        assert inspect(KAFKA / "segments" / name / file) == {"snapshots": {file: producers}}
    epochs = inspect(KAFKA / "segments" / name / "leader-epoch-checkpoint")
    assert epochs == {"leader_epochs": wanted["leader_epochs"]}
    assert set(inspect(KAFKA / "segments" / name / "partition.metadata")) == {"version", "topic_id"}


@pytest.mark.parametrize("path", BATCHES, ids=lambda path: path.stem)
def test_inspect_describes_a_file_of_batches(path: Path) -> None:
    found = inspect(path)
    assert found["batches"] == json.loads(path.with_suffix(".json").read_text())
    assert found["base_offset"] == found["batches"][0]["base_offset"]
    assert "corrupt" not in found


def test_inspect_without_records_returns_headers_only() -> None:
    wanted = expected("txn-0")
    for segment in wanted["segments"]:
        for batch in segment["batches"]:
            del batch["records"]
    del wanted["read_committed_offsets"], wanted["read_uncommitted_offsets"]
    assert inspect(KAFKA / "segments" / "txn-0", records=False) == wanted


def test_inspect_describes_a_torn_tail_up_to_the_end_of_recovery() -> None:
    wanted = json.loads((KAFKA / "recovery" / "torn_tail-0.after.expected.json").read_text())
    found = inspect(KAFKA / "recovery" / "torn_tail-0.damaged")
    assert found["log_end_offset"] == wanted["log_end_offset"]
    assert found["last_stable_offset"] == wanted["last_stable_offset"]
    (segment,) = found["segments"]
    whole = wanted["segments"][0]["batches"]
    assert segment["batches"][: len(whole)] == whole
    damaged = segment["batches"][len(whole) :]
    assert "corrupt" in segment or not all(batch["valid"] for batch in damaged)


@pytest.mark.parametrize("cut", range(0, 300, 7))
def test_inspect_shows_the_complete_batches_of_a_truncated_file(tmp_path: Path, cut: int) -> None:
    source = KAFKA / "segments" / "txn-0" / f"{0:020}.log"
    target = tmp_path / source.name
    target.write_bytes(source.read_bytes()[:cut])
    found = inspect(target)
    whole = [b for b in inspect(source)["batches"] if b["position"] + b["size"] <= cut]
    assert found["batches"] == whole
    end = whole[-1]["position"] + whole[-1]["size"] if whole else 0
    assert ("corrupt" in found) == (end < cut)


def test_inspect_shows_a_flipped_bit_without_raising(tmp_path: Path) -> None:
    directory = shutil.copytree(KAFKA / "segments" / "plain-0", tmp_path / "plain-0")
    log = directory / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    wrong = inspect(log)["batches"][3]
    data[wrong["position"] + 70] ^= 4
    log.write_bytes(data)
    found = inspect(directory)
    batch = found["segments"][0]["batches"][3]
    assert (batch["valid"], batch["records"]) == (False, [])
    assert "CRC" in batch["error"]
    assert found["log_end_offset"] == wrong["base_offset"]
    assert found["read_committed_offsets"][-1] < wrong["base_offset"]


@pytest.mark.parametrize("left", [".swap", ".cleaned", ".deleted"])
def test_inspect_reads_a_file_that_a_crash_left_under_a_temporary_name(
    left: str, tmp_path: Path
) -> None:
    for suffix in ("index", "timeindex", "txnindex", "log"):
        source = KAFKA / "segments" / "txn-0" / f"{0:020}.{suffix}"
        (tmp_path / f"{source.name}{left}").write_bytes(source.read_bytes())
        found, expected = inspect(tmp_path / f"{source.name}{left}"), inspect(source)
        key = {"index": "offset_index", "timeindex": "time_index", "txnindex": "txn_index"}
        assert found[key.get(suffix, "batches")] == expected[key.get(suffix, "batches")]


def test_inspect_shows_the_state_of_a_quorum(tmp_path: Path) -> None:
    (tmp_path / "quorum-state").write_text('{"leaderId":1,"leaderEpoch":7}')
    assert inspect(tmp_path / "quorum-state") == {"leaderId": 1, "leaderEpoch": 7}


def test_inspect_shows_only_the_entries_of_a_preallocated_index(tmp_path: Path) -> None:
    source = KAFKA / "segments" / "txn-0" / f"{0:020}.index"
    target = tmp_path / source.name
    target.write_bytes(source.read_bytes() + bytes(4096))
    assert inspect(target) == inspect(source)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d[:9], "9 bytes"),
        (lambda d: b"\0\2" + d[2:], "version 2"),
        (lambda d: d[:-1], "CRC-32C"),
        (lambda d: d[:20] + bytes([d[20] ^ 1]) + d[21:], "CRC-32C"),
    ],
)
def test_inspect_rejects_a_damaged_snapshot(tmp_path: Path, change: Any, words: str) -> None:
    name = f"{41:020}.snapshot"
    data = (KAFKA / "segments" / "txn-0" / name).read_bytes()
    (tmp_path / name).write_bytes(change(data))
    with pytest.raises(errors.CorruptRecord, match=words):
        inspect(tmp_path / name)


def test_inspect_raises_typed_errors_for_other_paths(tmp_path: Path) -> None:
    with pytest.raises(errors.StorageError):
        inspect(tmp_path / "missing.log")
    with pytest.raises(errors.ConfigError, match="not a partition directory"):
        inspect(tmp_path)


def test_the_decoder_positions_names_each_position(tmp_path):
    with eoslog.open(tmp_path / "log") as log:
        with log.producer(transactional_id="job") as producer:
            producer.init_transactions()
            with producer.transaction() as tx:
                tx.set_position("crm", 7)
                tx.set_position("token", b"\xff")
        log.delete_position("crm")
    found = eoslog.inspect(tmp_path / "log" / "__positions-0", decoder="positions")
    batches = [batch for segment in found["segments"] for batch in segment["batches"]]
    assert [
        record["decoded"]
        for batch in batches
        for record in batch.get("records", ())
        if not batch["control"]
    ] == [
        {"type": "position", "name": "crm", "kind": "int", "value": 7},
        {"type": "position", "name": "token", "kind": "bytes", "value": "ff"},
        {"type": "position", "name": "crm", "tombstone": True},
    ]
