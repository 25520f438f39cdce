"""Recovery as Kafka gives the bytes that a killed broker's next start wrote.

`recovered.tar.xz` holds 60 partition directories as Kafka 3.9.2 left them when it was killed, each
damaged in its own way (`cases.json` says how), and the result of its next start and a clean stop:
plain, transactional, LogAppendTime and compacted logs, with and without recovery points. For how it
was made, see `tests/data/kafka/README.md`. For the same against a live broker, see `tests/kafka`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import errors
from eoslog.admin.inspect import inspect
from eoslog.storage.broker import recovery as kafka_recovery
from eoslog.storage.broker.recovery import recover
from eoslog.storage.segment import segment_files
from tests.paths import KAFKA_DATA as KAFKA
from tests.reference import codec

DAY_MS = 86_400_000
TS = 1_700_000_000_000
EPOCHS = "leader-epoch-checkpoint"
"""A new leader adds to it, so it is left out of the comparison."""


def contents(files: dict[str, bytes]) -> dict[str, Any]:
    """Each file: its bytes, or for a snapshot its producers, which have no order."""
    found: dict[str, Any] = {}
    for name, data in files.items():
        if name.endswith(".snapshot"):
            found[name] = (data[:2], sorted(data[at : at + 46] for at in range(10, len(data), 46)))
        elif name != EPOCHS:
            found[name] = data
    return found


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    return sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))


def captured() -> tuple[dict[str, Any], dict[str, dict[str, dict[str, bytes]]]]:
    """What was done to each directory, and its files before (`damaged`) and `after`."""
    found: dict[str, dict[str, dict[str, bytes]]] = {}
    with tarfile.open(KAFKA / "recovery" / "recovered.tar.xz") as tar:
        for member in tar:
            if member.isfile():
                data = tar.extractfile(member)
                assert data is not None
                case, _, rest = member.name.removeprefix("recovered/").partition("/")
                when, _, name = rest.partition("/")
                found.setdefault(case, {}).setdefault(when, {})[name] = data.read()
    cases = json.loads(found.pop("cases.json")[""][""])
    return cases, found


@pytest.mark.slow
def test_recovery_of_all_captured_directories_equals_kafkas(tmp_path: Path) -> None:
    cases, found = captured()
    assert len(cases) == len(found) == 60
    wrong, cut = {}, 0
    for name, case in cases.items():
        directory = tmp_path / name
        directory.mkdir()
        for file, data in found[name]["damaged"].items():
            (directory / file).write_bytes(data)
        how = {
            "recovery_point": case["recovery_point"],
            "index_interval": case["index_interval"],
            "expire_before_ms": case["now_ms"] - DAY_MS,
        }
        cut += recover(str(directory), **how).bytes_cut > 0
        after = files_of(directory)
        bad = differences(contents(after), contents(found[name]["after"]))
        assert recover(str(directory), **how).bytes_cut == 0
        logs = {file: data for file, data in files_of(directory).items() if "snapshot" not in file}
        bad += differences(logs, {file: after[file] for file in after if "snapshot" not in file})
        if bad:
            wrong[name] = (case["damage"], bad)
        shutil.rmtree(directory)
    assert wrong == {}
    assert cut > 20


def test_recovery_of_a_sample_with_a_torn_tail_equals_kafkas(tmp_path: Path) -> None:
    wanted = json.loads((KAFKA / "recovery" / "torn_tail-0.after.expected.json").read_text())
    directory = tmp_path / "torn_tail-0"
    shutil.copytree(KAFKA / "recovery" / "torn_tail-0.damaged", directory)
    recover(str(directory), index_interval=wanted.get("index_interval_bytes", 4096))
    found = inspect(directory)
    for key in set(wanted) - {"note", "index_interval_bytes", "snapshots"}:  # of one segment alone
        assert found[key] == wanted[key], key


def batch(offset: int, **options: Any) -> bytes:
    data = codec.encode_batch([(TS + offset, b"k", b"v" * 40, ()), (TS, None, b"", ())], **options)
    return offset.to_bytes(8, "big") + data[8:]


def make(directory: Path, *segments: list[bytes]) -> Path:
    directory.mkdir(parents=True)
    for batches in segments:
        base = int.from_bytes(batches[0][:8], "big")
        (directory / f"{base:020}.log").write_bytes(b"".join(batches))
        (directory / f"{base:020}.index").touch()
    return directory


def test_recovery_of_a_log_cut_anywhere_ends_at_a_batch(tmp_path: Path) -> None:
    batches = [batch(2 * i) for i in range(4)]
    whole = b"".join(batches)
    for cut in range(3, len(whole), 13):
        path = make(tmp_path / f"t{cut}-0", batches)
        log = path / f"{0:020}.log"
        log.write_bytes(whole[:cut])
        report = recover(str(path))
        kept = cut // len(batches[0])
        assert log.read_bytes() == whole[: kept * len(batches[0])]
        assert (report.log_end, report.bytes_cut) == (2 * kept, cut % len(batches[0]))
        shutil.rmtree(path)


def test_recovery_deletes_segments_after_a_cut_and_reports_each(tmp_path: Path) -> None:
    path = make(tmp_path / "t-0", [batch(0), batch(2)], [batch(4), batch(6)], [batch(8)])
    log = path / f"{4:020}.log"
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    report = recover(str(path))
    assert (report.log_start, report.log_end) == (0, 6)
    assert sorted(p.name for p in path.glob("*.log")) == [f"{0:020}.log", f"{4:020}.log"]
    size = len(batch(0))
    assert report.bytes_cut == 2 * size
    assert [(os.path.basename(p.path), p.position) for p in report.problems if "log" in p.path] >= [
        (f"{4:020}.log", size), (f"{8:020}.log", 0),
    ]  # fmt: skip


def test_recovery_does_not_read_below_the_recovery_point(tmp_path: Path) -> None:
    path = make(tmp_path / "t-0", [batch(0), batch(2)], [batch(4)])
    log = path / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[80] ^= 1
    log.write_bytes(data)
    assert recover(str(path), recovery_point=4).bytes_cut == 0
    assert recover(str(path), recovery_point=3).log_end == 0


def test_recovery_starts_an_empty_log_at_a_log_start_beyond_the_end(tmp_path: Path) -> None:
    path = make(tmp_path / "t-0", [batch(0), batch(2)])
    report = recover(str(path), log_start=100)
    assert (report.log_start, report.log_end) == (100, 100)
    assert [p.name for p in path.glob("*.log")] == [f"{100:020}.log"]


def test_import_accepts_a_log_that_starts_above_0_without_an_index(tmp_path: Path) -> None:
    """Retention deleted its first segments; recovery starts at its first batch."""
    source = tmp_path / "logs"
    path = make(source / "t-0", [batch(1000), batch(1002)])
    (path / f"{1000:020d}.index").unlink()
    (source / "meta.properties").write_text("version=0\nbroker.id=1\n")
    (source / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 1004\n")
    (source / ".kafka_cleanshutdown").touch()
    eoslog.import_kafka_dir(source, tmp_path / "new")
    with eoslog.open(tmp_path / "new") as log:
        assert [record.offset for record in log.read("t")] == [1000, 1001, 1002, 1003]
    assert recover(str(path)).log_end == 1004


def test_recovery_completes_or_undoes_an_interrupted_compaction(tmp_path: Path) -> None:
    """R55 of docs/contributing/regressions.md."""
    cleaned, one, two = batch(0), [batch(0), batch(2)], [batch(4)]
    path = make(tmp_path / "a-0", one, two)
    (path / f"{0:020}.log.swap").write_bytes(cleaned + batch(4))
    recover(str(path))
    assert [p.name for p in path.glob("*.log*")] == [f"{0:020}.log"]
    assert (path / f"{0:020}.log").read_bytes() == cleaned + batch(4)
    path = make(tmp_path / "b-0", one, two)
    (path / f"{0:020}.log.cleaned").write_bytes(cleaned)
    (path / f"{0:020}.log.swap").write_bytes(cleaned)
    recover(str(path))
    assert (path / f"{0:020}.log").read_bytes() == b"".join(one)
    assert sorted(p.name for p in path.glob("*.log*")) == [f"{0:020}.log", f"{4:020}.log"]


def test_recovery_never_cuts_a_hard_linked_log_through_the_link(tmp_path: Path) -> None:
    source = make(tmp_path / "source-0", [batch(0), batch(2)])
    log = source / f"{0:020}.log"
    with log.open("ab") as file:
        file.write(b"torn")
    before = log.read_bytes()
    copy = tmp_path / "copy-0"
    copy.mkdir()
    os.link(log, copy / log.name)
    assert recover(str(copy)).bytes_cut == 4
    assert log.read_bytes() == before
    assert (copy / log.name).read_bytes() == before[:-4]


def test_recovery_reads_messages_of_format_1_too(tmp_path: Path) -> None:
    path = tmp_path / "legacy-0"
    shutil.copytree(KAFKA / "legacy" / "legacy-0", path)
    log = path / f"{0:020}.log"
    whole = log.read_bytes()
    log.write_bytes(whole[:-1])
    report = recover(str(path), index_interval=500)
    last = inspect(KAFKA / "legacy" / "legacy-0")["segments"][0]["batches"][-1]
    assert report.log_end == last["base_offset"]
    assert report.bytes_cut == last["size"] - 1
    assert segment_files.read_offset_index(str(log.with_suffix(".index")), 0)


# --- eoslog.repair ------------------------------------------------------------------------------


def broker_directory(tmp_path: Path) -> Path:
    root = tmp_path / "broker"
    make(root / "t-0", [batch(0), batch(2)])
    make(root / "t-1", [batch(0)])
    (root / "meta.properties").write_text("version=1\ncluster.id=abc\nnode.id=1\n")
    with (root / "t-0" / f"{0:020}.log").open("ab") as file:
        file.write(b"torn")
    return root


def test_repair_as_kafka_cuts_a_brokers_directory(tmp_path: Path) -> None:
    root = broker_directory(tmp_path)
    report = eoslog.repair(root, mode="as-kafka")
    assert (report.mode, report.partitions, report.bytes_cut) == ("as-kafka", 2, 4)
    assert any("not a complete batch" in problem.message for problem in report.problems)
    assert eoslog.repair(root, mode="as-kafka").bytes_cut == 0


def test_repair_as_kafka_cuts_one_partition_alone(tmp_path: Path) -> None:
    root = broker_directory(tmp_path)
    report = eoslog.repair(root / "t-0", mode="as-kafka")
    assert (report.partitions, report.bytes_cut) == (1, 4)
    with pytest.raises(errors.ConfigError):
        eoslog.repair(tmp_path, mode="as-kafka")


def damaged_broker(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    """A partition whose first segment has a damaged batch; its logs."""
    root = tmp_path / "broker"
    make(root / "t-0", [batch(0), batch(2), batch(4)], [batch(6)])
    (root / "meta.properties").write_text("version=1\ncluster.id=abc\nnode.id=1\n")
    log = root / "t-0" / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[len(batch(0)) + 65] ^= 1
    log.write_bytes(data)
    return root, {path.name: path.read_bytes() for path in (root / "t-0").glob("*.log")}


def check_kept(root: Path, before: dict[str, bytes]) -> None:
    """Assert that the cut bytes are in copies, once, and can be decoded."""
    size = len(batch(0))
    copies = {path.name.partition(".cut-")[0]: path for path in (root / "t-0").glob("*.cut-*")}
    assert copies.keys() == before.keys()
    assert len(list((root / "t-0").glob("*.cut-*"))) == 2
    first, second = (copies[f"{base:020}.log"] for base in (0, 6))
    assert first.read_bytes() == before[f"{0:020}.log"][size:]
    assert second.read_bytes() == before[f"{6:020}.log"]
    assert [found["base_offset"] for found in inspect(second)["batches"]] == [6]
    assert (root / "t-0" / f"{0:020}.log").read_bytes() == before[f"{0:020}.log"][:size]


def test_field_C2_repair_as_kafka_keeps_what_it_cuts(tmp_path: Path) -> None:
    root, before = damaged_broker(tmp_path)
    report = eoslog.repair(root, mode="as-kafka")
    size = sum(map(len, before.values())) - len(batch(0))
    assert report.bytes_cut == size
    assert sorted(report.kept) == sorted(str(p) for p in (root / "t-0").glob("*.cut-*"))
    check_kept(root, before)
    again = eoslog.repair(root, mode="as-kafka")
    assert (again.bytes_cut, list(again.kept)) == (0, [])
    check_kept(root, before)
    assert eoslog.check(root).ok


@pytest.mark.process
@pytest.mark.parametrize(
    "call", [f"{name}:{nth}" for name in ("ftruncate", "rename", "fsync") for nth in (1, 2, 3)]
)
def test_field_C2_repair_as_kafka_killed_at_any_step_keeps_what_it_cuts(
    tmp_path: Path, call: str
) -> None:
    root, before = damaged_broker(tmp_path)
    program = "import eoslog, sys; eoslog.repair(sys.argv[1], mode='as-kafka')"
    environment = {**os.environ, "EOSLOG_FAILPOINTS": f"{call}=kill"}
    done = subprocess.run([sys.executable, "-c", program, str(root)], env=environment, check=False)
    assert done.returncode in (0, -9)
    eoslog.repair(root, mode="as-kafka")
    if (root / "t-0" / f"{6:020}.log").exists():  # it died after the cut: this one was not reached
        (root / "t-0" / f"{6:020}.log").rename(root / "t-0" / f"{6:020}.log.cut-1")
    check_kept(root, before)
    assert not list((root / "t-0").glob("*.log*.tmp"))


def test_repair_is_rejected_while_a_broker_runs(tmp_path: Path) -> None:
    root = broker_directory(tmp_path)
    (root / ".lock").touch()
    hold = "import fcntl,sys;f=open(sys.argv[1],'w');fcntl.lockf(f,fcntl.LOCK_EX);print(1,flush=True);sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(root / ".lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as broker:  # fmt: skip
        assert broker.stdout is not None
        broker.stdout.readline()
        for path in (root, root / "t-0"):
            with pytest.raises(errors.LockTimeout, match=r"\.lock is held"):
                eoslog.repair(path, mode="as-kafka")
        broker.communicate()
    assert eoslog.repair(root, mode="as-kafka").bytes_cut == 4


def produced(path: Path) -> Path:
    with eoslog.open(path) as log:
        log.create_topic("t", 1)
        with log.producer() as producer:
            for i in range(4):
                producer.produce("t", b"v%d" % i)
                producer.flush()
    return path / "t-0" / f"{0:020}.log"


def test_repair_cuts_valid_batches_after_a_bad_one_only_on_request(
    tmp_path: Path,
) -> None:
    """eoslog's recovery differs from Kafka's on purpose: there is no replica."""
    log = produced(tmp_path / "log")
    (tmp_path / "log" / ".kafka_cleanshutdown").unlink()
    (tmp_path / "log" / "recovery-point-offset-checkpoint").unlink()
    data = bytearray(log.read_bytes())
    batches = inspect(log)["batches"]
    assert len(batches) == 4
    data[batches[1]["position"] + 65] ^= 1
    log.write_bytes(data)
    with (
        eoslog.open(tmp_path / "log") as opened,
        pytest.raises(errors.CorruptRecord, match="Nothing was changed"),
    ):
        opened.offsets("t", 0)
    assert log.read_bytes() == data
    report = eoslog.repair(tmp_path / "log")
    assert [p.position for p in report.problems] == [batches[1]["position"]]
    assert log.read_bytes() == data
    shutil.copytree(tmp_path / "log", tmp_path / "as-kafka")
    # A cut of ours gives no offset out again, Kafka's does.
    for mode, place, end in (("cut", "log", 4), ("as-kafka", "as-kafka", 1)):
        report = eoslog.repair(tmp_path / place, mode=mode)
        assert report.bytes_cut == len(data) - batches[1]["position"]
        with eoslog.open(tmp_path / place) as opened:
            assert opened.offsets("t", 0).log_end == end
            assert len(list(opened.read("t"))) == 1


def test_repair_and_recovery_both_cut_a_torn_tail(tmp_path: Path) -> None:
    log = produced(tmp_path / "log")
    whole = log.read_bytes()
    with log.open("ab") as file:
        file.write(whole[:50])
    (tmp_path / "log" / ".kafka_cleanshutdown").unlink()
    shutil.copytree(tmp_path / "log", tmp_path / "as-kafka")
    eoslog.repair(tmp_path / "as-kafka", mode="as-kafka")
    assert (tmp_path / "as-kafka" / "t-0" / log.name).read_bytes() == whole
    with eoslog.open(tmp_path / "log") as opened:
        assert opened.offsets("t", 0).log_end == 4
    assert log.read_bytes() == whole


def test_header_reads_stay_within_the_data() -> None:
    data = memoryview(batch(0))
    for end in range(18, len(data)):
        assert kafka_recovery.header_at(data[:end], 0, end) is None
