"""dump, check, repair and import on what brokers left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from eoslog.storage.format.serde import Writer
from tests.paths import KAFKA_DATA as KAFKA
from tests.reference import codec

TS = 1_700_000_000_000


def broker(root: Path) -> Path:
    root.mkdir()
    (root / "meta.properties").write_text("version=1\ncluster.id=abc\nnode.id=1\n")
    for name in ("plain-0", "txn-0"):
        shutil.copytree(KAFKA / "segments" / name, root / name)
    return root


def test_dump_decodes_committed_offsets(cli, tmp_path):
    key = Writer().i16(1).string("g").string("orders").i32(2).take()
    value = Writer().i16(3).i64(42).i32(-1).string("note").i64(TS).take()
    path = tmp_path / "__consumer_offsets-0"
    path.mkdir()
    (path / f"{0:020}.log").write_bytes(codec.encode_batch([(TS, key, value, ())]))
    done = cli("dump", path, "--decoder", "offsets", form="json")
    assert done.code == 0
    (record,) = json.loads(done.out)["segments"][0]["batches"][0]["records"]
    assert record["decoded"]["group"] == "g"
    assert (record["decoded"]["topic"], record["decoded"]["offset"]) == ("orders", 42)
    assert "orders" in cli("dump", path, "--decoder", "offsets", form="table").out


def test_check_reports_on_the_directory_of_a_broker(cli, tmp_path):
    root = broker(tmp_path / "broker")
    done = cli("check", "--full", root)
    (verdict,) = done.rows
    assert (done.code, verdict["ok"]) == (0, True)
    assert "2 partitions" in verdict["message"]
    log = root / "plain-0" / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    done = cli("check", root / "plain-0")
    assert done.code == 5
    assert done.rows[0]["path"] == str(log)


def test_repair_as_kafka_prepares_a_directory_for_import(cli, tmp_path, place):
    root = broker(tmp_path / "broker")
    with (root / "plain-0" / f"{108:020}.log").open("ab") as file:
        file.write(b"torn")
    refused = cli("repair", root, "--as-kafka")
    assert refused.code == 2
    assert "then add -y" in refused.err
    done = cli("repair", root, "--as-kafka", "-y")
    assert done.code == 0
    assert "4 bytes cut" in done.err
    done = cli("import", "kafka-dir", root)
    assert done.code == 0, done.err
    assert "2 topics, 2 partitions" in done.err
    assert cli("import", "kafka-dir", root).code == 2  # it is there already
    assert len(cli("consume", "plain").rows) == 200
    assert cli("check", "--full").code == 0


def test_modes_of_repair_exclude_each_other(cli, tmp_path):
    root = broker(tmp_path / "broker")
    for options in (("--cut", "--as-kafka"), ("--mode", "cut", "--as-kafka"),
                    ("--mode", "report", "--cut")):  # fmt: skip
        refused = cli("repair", root, *options)
        assert (refused.code, refused.out) == (2, "")
        assert "exclude each other" in refused.err
    assert cli("repair", root, "--mode", "as-kafka", "--as-kafka", "-y").code == 0


def test_a_single_partition_is_counted_in_the_singular(cli, tmp_path):
    root = broker(tmp_path / "broker")
    assert "1 partition, " in cli("check", root / "plain-0").out
    assert "2 partitions, " in cli("check", root).out


def test_a_directory_without_histories_is_not_found(cli, tmp_path):
    found = cli("verify-history", tmp_path)
    assert (found.code, found.out) == (3, "")
    assert f"{tmp_path} does not contain a *.jsonl file" in found.err
