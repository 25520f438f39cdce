"""Files derived from the batches of a sealed segment are verified before use.

Kafka's indexes carry no checksum. Each test damages one, then compares the results of every kind of
reader and every deletion with those of the undamaged directory.
"""

from __future__ import annotations

import logging
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

import eoslog
from eoslog import Producer, TopicPartition, _core
from eoslog.errors import CorruptRecord
from eoslog.storage.directory import offset_checkpoints
from eoslog.storage.segment import seals
from tests.rows.tools import values

ABORTED, TIMED, INDEXED = struct.Struct(">hqqqq"), struct.Struct(">qi"), struct.Struct(">ii")
NOW = int(time.time() * 1000)
DAY = 86_400_000


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """Two interleaved producers; one transaction spans segments; some are aborted."""
    path = tmp_path_factory.mktemp("derived") / "log"
    with eoslog.open(path) as log:
        log.create_topic("t", config={"index.interval.bytes": 1, "retention.ms": DAY})
        producers = []
        for name in ("a", "b"):
            producer = Producer({"log.dir": str(path), "transactional.id": name})
            producer.init_transactions()
            producers.append(producer)
        partition = log._engine.partition("t", 0)
        for i in range(12):
            producer = producers[i % 2]
            producer.begin_transaction()
            for j in range(3):
                producer.produce("t", f"{i}.{j}", timestamp=NOW + 10 * i + j)
                producer.flush()
                if (i, j) in ((4, 1), (8, 0)):
                    partition.roll()
            if i in (2, 4, 5, 9):
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        partition.roll()
        for producer in producers:
            producer.close()
    return path


@pytest.fixture
def path(template, tmp_path) -> Path:
    """A copy of the directory that may be damaged."""
    return Path(shutil.copytree(template, tmp_path / "log"))


def found(path: Path, suffix: str, *, filled: bool = True) -> list[Path]:
    """The files of a kind in the partition, in order; only those that are not empty."""
    return [
        one for one in sorted((path / "t-0").glob(f"*{suffix}")) if one.stat().st_size or not filled
    ]


def seen(path: Path, **options: object) -> dict[str, object]:
    """What every reader gets of the directory."""
    with eoslog.open(path, **options) as log:
        start, _, end, _ = log.offsets("t", 0)
        consumer = log.consumer(auto_offset_reset="earliest")
        consumer.assign([TopicPartition("t", 0, 0)])
        consumed = [record.value for record in consumer.consume(100, timeout=1)]
        consumer.close()
        return {
            "read": values(log),
            "consumed": consumed,
            "scanned": log.scan("t").to_table().column("offset").to_pylist(),
            "from each offset": [
                [r.offset for r in log.scan("t", start=at).records()][:1]
                for at in range(start, end)
            ],
            "by time": [log.offset_for_time("t", 0, NOW + at) for at in range(-1, 125)],
        }


def damages(data: bytes, size: int) -> list[bytes | None]:
    """A file removed, emptied, cut, zeroed, swapped, extended or with flipped bits."""
    out: list[bytes | None] = [
        None,
        b"",
        data[: len(data) // 2 // size * size],
        data[:-3],
        bytes(len(data)),
    ]
    out += [data + bytes(size), data + data[:size], b"\xff" * size + data]
    if len(data) >= 2 * size:
        out.append(data[size : 2 * size] + data[:size] + data[2 * size :])
    for bit in range(0, 8 * len(data), max(1, 8 * len(data) // 40)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        out.append(bytes(flipped))
    return [one for one in out if one != data]


def put(file: Path, data: bytes | None) -> None:
    """Give a file this content; None removes it."""
    if data is None:
        file.unlink(missing_ok=True)
    else:
        file.write_bytes(data)


def test_every_sealed_segment_has_a_seal_that_matches_its_files(path):
    bases = [int(one.stem) for one in found(path, ".log", filled=False)]
    assert len(bases) == 4
    for base, end in zip(bases, bases[1:], strict=False):
        seal = seals.read(str(path / "t-0"), end)
        assert seal is not None and (seal.base, seal.end) == (base, end)
        stem = path / "t-0" / f"{base:020}"
        assert seal.size == stem.with_suffix(".log").stat().st_size
        assert seal.times == seals.checksum(stem.with_suffix(".timeindex").read_bytes())
        assert seal.aborted == seals.checksum(seals.content(f"{stem}.txnindex"))
        assert seal.snapshot == seals.checksum((path / "t-0" / f"{end:020}.snapshot").read_bytes())


@pytest.mark.parametrize("read_only", [False, True])
def test_field_A2_readers_hide_aborted_records_without_any_index(path, read_only, caplog):
    expected = seen(path)
    assert b"2.0" not in expected["read"] and b"3.0" in expected["read"]
    for suffix in (".index", ".timeindex", ".txnindex"):
        for file in found(path, suffix, filled=False):
            file.unlink()
    with caplog.at_level(logging.WARNING, "eoslog"):
        assert seen(path, read_only=read_only) == expected
    assert any(".txnindex: missing or damaged" in r.getMessage() for r in caplog.records)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "size"), [(".txnindex", 34), (".index", 8), (".timeindex", 12), (".seal", 10)]
)
def test_field_A3_A4_reads_survive_every_damage_of_a_derived_file(template, tmp_path, suffix, size):
    expected = seen(Path(shutil.copytree(template, tmp_path / "whole")))
    for number, file in enumerate(found(template, suffix)):
        for kind, data in enumerate(damages(file.read_bytes(), size)):
            copy = Path(shutil.copytree(template, tmp_path / f"{number}-{kind}"))
            put(copy / "t-0" / file.name, data)
            assert seen(copy, read_only=kind % 2 == 0) == expected, (file.name, kind)
            shutil.rmtree(copy)


def test_field_A2_swapped_files_of_two_segments_are_noticed(template, tmp_path):
    expected = seen(Path(shutil.copytree(template, tmp_path / "whole")))
    for suffix in (".index", ".timeindex", ".txnindex", ".snapshot", ".seal"):
        copy = Path(shutil.copytree(template, tmp_path / f"copy{suffix}"))
        one, other = found(copy, suffix)[:2]
        first, second = one.read_bytes(), other.read_bytes()
        put(one, second)
        put(other, first)
        assert seen(copy) == expected, suffix


def test_a_log_file_of_another_partition_is_rejected(tmp_path):
    """Its batches and their CRCs are right: only the seal knows whose they are."""
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t", 2)
        for partition in range(2):
            with log.producer() as producer:
                producer.produce("t", f"of {partition}", partition=partition)
            log._engine.partition("t", partition).roll()
            with log.producer() as producer:
                producer.produce("t", "last", partition=partition)
    one, other = (path / f"t-{p}" / f"{0:020}.log" for p in range(2))
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    with (
        eoslog.open(path) as log,
        pytest.raises(CorruptRecord, match="not the file of segment \\[0, 1\\)"),
    ):
        list(log.read("t"))


def test_a_short_segment_with_a_damaged_batch_is_repaired_as_advised(tmp_path):
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.produce_many("t", ["a", "b"])
    file = path / "t-0" / f"{0:020}.log"
    content = bytearray(file.read_bytes())
    for at in (20, -1):  # in both edges, by which a seal knows its file
        content[at] ^= 0xFF
    file.write_bytes(content)
    with eoslog.open(path) as log, pytest.raises(CorruptRecord, match="run `eoslog repair` if"):
        list(log.read("t"))
    assert not eoslog.check(path, fix_indexes=True).ok
    eoslog.repair(path, mode="cut")
    with eoslog.open(path) as log:
        assert list(log.read("t")) == []


@pytest.mark.parametrize("harm", ["zeroed", "last entry", "removed", "seal removed"])
def test_field_A1_retention_keeps_segments_whose_batches_are_not_due(path, harm):
    for file in found(path, ".timeindex"):
        data = file.read_bytes()
        if harm == "zeroed":
            file.write_bytes(bytes(len(data)))
        elif harm == "last entry":
            file.write_bytes(
                data[: -TIMED.size] + TIMED.pack(5, TIMED.unpack(data[-TIMED.size :])[1])
            )
        elif harm == "removed":
            file.unlink()
    if harm == "seal removed":
        for file in found(path, ".seal"):
            file.unlink()
        for file in found(path, ".timeindex"):
            file.write_bytes(bytes(file.stat().st_size))
    with eoslog.open(path) as log:
        expected = values(log)
        log.clean("t")
        assert log.offsets("t", 0).log_start == 0
        assert values(log) == expected


def test_retention_deletes_due_segments_despite_a_wrong_time_index(path):
    """A wrong index does not keep what is due either."""
    for file in found(path, ".timeindex"):
        data = file.read_bytes()
        file.write_bytes(
            data[: -TIMED.size] + TIMED.pack(1 << 60, TIMED.unpack(data[-TIMED.size :])[1])
        )
    with eoslog.open(path) as log:
        log.alter_topic("t", {"retention.ms": 1})
        time.sleep(0.3)  # the records' timestamps reach 120 ms beyond the fixture's clock
        log.clean("t")
        start, _, end, _ = log.offsets("t", 0)
        assert start == end > 0


def test_bytes_after_a_sealed_segment_make_no_other_segment_due(path):
    with eoslog.open(path) as log:
        sizes = log._engine.partition("t", 0).segments.sizes()
        log.alter_topic("t", {"retention.ms": -1, "retention.bytes": sum(sizes.values()) + 10})
    with found(path, ".log")[1].open("ab") as file:
        file.write(bytes(100_000))
    with eoslog.open(path) as log:
        log.clean("t")
        assert log.offsets("t", 0).log_start == 0


def test_compaction_keeps_aborted_records_out_without_any_abort_index(path):
    with eoslog.open(path) as log:
        log.create_topic("c", config={"cleanup.policy": "compact", "delete.retention.ms": 0})
        with Producer({"log.dir": str(path), "transactional.id": "c"}) as producer:
            producer.init_transactions()
            for end in (producer.commit_transaction, producer.abort_transaction):
                producer.begin_transaction()
                producer.produce("c", end.__name__, "key")
                producer.flush()
                end()
        log._engine.partition("c", 0).roll()
    for file in (path / "c-0").glob("*.txnindex"):
        file.unlink()
    with eoslog.open(path) as log:
        log.clean("c")
        assert [record.value for record in log.read("c")] == [b"commit_transaction"]


def test_a_closing_writer_rewrites_files_that_it_found_damaged(path):
    wanted = {
        file.name: file.read_bytes() for s in (".txnindex", ".timeindex") for file in found(path, s)
    }
    for file in (*found(path, ".txnindex"), *found(path, ".timeindex"), *found(path, ".seal")):
        file.unlink()
    with eoslog.open(path) as log:
        values(log)
    with eoslog.open(path) as log:
        assert values(log)
        assert not log._engine.partition("t", 0).reader.derived.remade()
    assert wanted == {
        file.name: file.read_bytes() for s in (".txnindex", ".timeindex") for file in found(path, s)
    }


def test_a_read_only_log_writes_no_derived_file(path):
    for file in found(path, ".txnindex"):
        file.unlink()
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with eoslog.open(path, read_only=True) as log:
        values(log)
    assert before == {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_missing_abort_index_of_a_damaged_log_raises(path):
    """Aborted transactions are unknown, so no record that may be aborted is shown."""
    found(path, ".txnindex")[1].unlink()
    log_file = found(path, ".log")[1]
    data = bytearray(log_file.read_bytes())
    data[len(data) // 2] ^= 1
    log_file.write_bytes(data)
    with eoslog.open(path) as log, pytest.raises(CorruptRecord, match="cannot be rebuilt"):
        list(log.scan("t", start=int(log_file.stem)).records())


@pytest.mark.parametrize("text", ["92", "8", "13"])
def test_field_A5_an_unrecorded_log_start_hides_and_deletes_nothing(path, text):
    with eoslog.open(path) as log:
        log.delete_records({TopicPartition("t", 0): 3})
        expected = values(log)
    checkpoint = path / "log-start-offset-checkpoint"
    checkpoint.write_text(checkpoint.read_text().replace("t 0 3", f"t 0 {text}"))
    with eoslog.open(path) as log:
        assert log.offsets("t", 0).log_start == 3
        log.clean("t")
        assert values(log) == expected
    assert found(path, ".log")[0].stem == f"{0:020}"


@pytest.mark.parametrize("clean", [True, False])
def test_field_A5_a_lost_epoch_checkpoint_shows_no_deleted_record(path, clean):
    """The folder stays this topic's: its log start is not that of a new partition."""
    with eoslog.open(path) as log:
        log.delete_records({TopicPartition("t", 0): 3})
        expected = values(log)
    if not clean:
        (path / ".kafka_cleanshutdown").unlink()
    (path / "t-0" / "leader-epoch-checkpoint").unlink()
    with eoslog.open(path) as log:
        assert (log.offsets("t", 0).log_start, values(log)) == (3, expected)


def test_field_A5_an_unrecorded_start_beyond_the_first_segment_is_ignored(path, caplog):
    """A directory of a broker, say: its checkpoint has no checksum."""
    (path / offset_checkpoints.FILE).unlink()
    (path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 40\n")
    with caplog.at_level(logging.WARNING, "eoslog"), eoslog.open(path) as log:
        assert log.offsets("t", 0).log_start == 0
        log.clean("t")
        assert log.offsets("t", 0).log_start == 0
    assert any("log-start-offset-checkpoint says 40" in r.getMessage() for r in caplog.records)


@pytest.mark.parametrize("harm", [None, b"", b"1 0", b"junk"])
def test_field_A5_the_copy_is_used_if_the_record_of_offsets_is_damaged(path, harm):
    with eoslog.open(path) as log:
        log.delete_records({TopicPartition("t", 0): 3})
        expected = values(log)
    put(path / offset_checkpoints.FILE, harm)
    with eoslog.open(path) as log:
        assert (log.offsets("t", 0).log_start, values(log)) == (3, expected)
    with eoslog.open(path) as log:
        assert log.offsets("t", 0).log_start == 3
    assert offset_checkpoints.is_recorded(str(path))


def test_field_D4_a_first_segment_missing_without_a_deletion_is_reported(path, caplog):
    first = found(path, ".log")[0]
    for file in (path / "t-0").glob(f"{first.stem}.*"):
        file.unlink()
    with caplog.at_level(logging.WARNING, "eoslog"), eoslog.open(path) as log:
        assert log.offsets("t", 0).log_start == 0
        with pytest.raises(CorruptRecord, match="offsets 0 to .* are missing"):
            values(log)
        assert list(log.scan("t", start=int(found(path, ".log")[0].stem)).records())
        problems = log.check().problems
    assert any("are missing" in problem.message for problem in problems)
    assert any("a segment file is missing" in r.getMessage() for r in caplog.records)


@pytest.mark.parametrize("read_only", [False, True])
def test_field_D4_a_segment_lost_in_the_first_session_is_reported(tmp_path, read_only):
    """The record of offsets is that of the creation of the directory."""
    path = tmp_path / "log"
    pid = os.fork()
    if not pid:
        log = eoslog.open(path)
        log.create_topic("t")
        with log.producer() as producer:
            for number in range(3):
                producer.send("t", str(number)).result()
                log._engine.partition("t", 0).roll()
        os.kill(os.getpid(), 9)
    assert os.waitpid(pid, 0)[1] == 9
    for file in (path / "t-0").glob(f"{0:020}.*"):
        file.unlink()
    with pytest.raises(CorruptRecord, match="offsets 0 to 0 are missing"):
        list(eoslog.read_segments(path / "t-0").records())
    with eoslog.open(path, read_only=read_only) as log:
        assert log.offsets("t", 0).log_start == 0
        with pytest.raises(CorruptRecord, match="offsets 0 to 0 are missing"):
            values(log)
        assert any("are missing" in problem.message for problem in log.check().problems)


@pytest.mark.parametrize(
    "key", ["eoslog.offsets.partitions", "eoslog.durability", "eoslog.transaction.partitions"]
)
def test_a_changed_property_of_the_directory_raises(path, key):
    """Another number of partitions would search groups in the wrong partition."""
    properties = path / "meta.properties"
    lines = properties.read_text().splitlines()
    changed = [
        line.replace("=50", "=58").replace("=strict", "=os") if line.startswith(key) else line
        for line in lines
    ]
    assert changed != lines
    properties.write_text("\n".join(changed) + "\n")
    with pytest.raises(CorruptRecord, match="eoslog.crc"):
        eoslog.open(path)


def test_a_segment_without_a_seal_after_a_kill_is_scanned(path):
    pid = os.fork()
    if not pid:
        from eoslog.storage.fs import files

        with eoslog.open(path) as log:
            log.create_topic("k")
            with Producer({"log.dir": str(path), "transactional.id": "k"}) as producer:
                producer.init_transactions()
                producer.begin_transaction()
                producer.produce("k", "aborted")
                producer.flush()
                producer.abort_transaction()
            files.arm_failpoint("log.rolled.snapshot", "kill")
            log._engine.partition("k", 0).roll()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 9
    assert not list((path / "k-0").glob("*.seal"))
    with eoslog.open(path) as log:
        assert list(log.read("k")) == []


@pytest.mark.parametrize("read_only", [False, True])
def test_a_missing_segment_is_reported_by_every_process_and_never_sealed(path, read_only):
    """A closing writer writes indexes again, but no seal that would hide the gap."""
    found(path, ".log")[1].write_bytes(b"")
    for file in found(path, ".seal"):
        file.unlink()
    (path / ".kafka_cleanshutdown").unlink()
    for _ in range(3):
        with eoslog.open(path, read_only=read_only) as log:
            with pytest.raises(CorruptRecord, match="are missing"):
                log.offset_for_time("t", 0, NOW + 60)


def test_rebuilt_indexes_do_not_vouch_for_an_unread_snapshot(path):
    """The seal is missing and the snapshot at its end is damaged."""
    end = int(found(path, ".log")[1].stem)
    (path / "t-0" / f"{end:020}.seal").unlink()
    snapshot = path / "t-0" / f"{end:020}.snapshot"
    other = found(path, ".snapshot")[2].read_bytes()
    assert other != snapshot.read_bytes()
    snapshot.write_bytes(other)
    with eoslog.open(path) as log:
        values(log)
    seal = seals.read(str(path / "t-0"), end)
    assert seal is not None and seal.snapshot == seals.NO_FILE


def test_rebuilt_indexes_never_overwrite_those_of_a_cleaned_segment(
    tmp_path,
):
    """This process found an old index wrong; another replaced the segment since."""
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("c", config={"cleanup.policy": "compact", "delete.retention.ms": 0})
        with log.producer() as producer:
            for n in range(6):
                producer.produce("c", f"{n}" + "v" * 50, "key")
                producer.flush()
        log._engine.partition("c", 0).roll()
    index = path / "c-0" / f"{0:020}.timeindex"
    index.write_bytes(bytes(index.stat().st_size))
    with eoslog.open(path) as log:
        assert log.offset_for_time("c", 0, 0) == 0
        log._engine.partition("c", 0).reader.derived.of(0).times()
        assert log._engine.partition("c", 0).reader.derived.remade()
        code = f"import eoslog; log = eoslog.open({str(path)!r}); log.clean('c'); log.close()"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
        cleaned = {file: file.read_bytes() for file in (path / "c-0").glob(f"{0:020}.*")}
    assert cleaned == {file: file.read_bytes() for file in (path / "c-0").glob(f"{0:020}.*")}


def test_check_names_a_log_file_of_another_segment_until_fix_indexes(tmp_path):
    """The remedy that the error names works."""
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t", 2)
        for partition in range(2):
            with log.producer() as producer:
                producer.produce("t", f"of {partition}", partition=partition)
            log._engine.partition("t", partition).roll()
            with log.producer() as producer:
                producer.produce("t", "last", partition=partition)
    one, other = (path / f"t-{p}" / f"{0:020}.log" for p in range(2))
    one.write_bytes(other.read_bytes())
    with eoslog.open(path, read_only=True) as log:
        assert any("check --fix-indexes" in p.message for p in log.check().problems)
    eoslog.check(path, fix_indexes=True)
    with eoslog.open(path) as log:
        assert [record.value for record in log.read("t")][0] == b"of 1"


@pytest.mark.parametrize(("action", "kept"), [("kill", 3), ("kill-after", 7)])
def test_a_kill_between_the_two_copies_of_offsets_leaves_a_valid_one(path, action, kept):
    with eoslog.open(path) as log:
        log.delete_records({TopicPartition("t", 0): 3})
    name = "log-start-offset-checkpoint"
    pid = os.fork()
    if not pid:
        from eoslog.storage.fs import files

        files.arm_failpoint("rename", action)
        offset_checkpoints.write(str(path), name, {("t", 0): 7})
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 9
    assert offset_checkpoints.read(str(path), name) == {("t", 0): kept}
    with eoslog.open(path) as log:
        assert log.offsets("t", 0).log_start == kept


@pytest.mark.parametrize("missing", [1, 4, 100])
def test_a_seal_that_is_a_few_bytes_short_is_ignored(path, missing):
    end = int(found(path, ".log")[1].stem)
    seal = path / "t-0" / f"{end:020}.seal"
    seal.write_bytes(seal.read_bytes()[:-missing])
    assert seals.read(str(path / "t-0"), end) is None


@pytest.mark.parametrize("read_only", [False, True])
def test_a_damaged_header_of_the_active_segment_ends_no_read_silently(path, read_only):
    """Headers are read without CRCs after a clean close; the snapshot contradicts."""
    with (
        eoslog.open(path) as log,
        Producer({"log.dir": str(path), "transactional.id": "z"}) as producer,
    ):
        producer.init_transactions()
        for n in range(2):
            with producer.transaction() as tx:
                tx.produce("t", f"z{n}")
        expected = values(log)
    active = sorted((path / "t-0").glob("*.log"))[-1]
    data = bytearray(active.read_bytes())
    data[50] ^= 1  # the producer id of the first batch
    active.write_bytes(data)
    with pytest.raises(CorruptRecord), eoslog.open(path, read_only=read_only) as log:
        assert values(log) == expected


@pytest.mark.parametrize("read_only", [False, True])
def test_field_A2_a_damaged_abort_marker_of_the_active_segment_shows_nothing(path, read_only):
    """The marker says commit. All headers and the last producers are unchanged."""
    with (
        eoslog.open(path) as log,
        Producer({"log.dir": str(path), "transactional.id": "z"}) as producer,
    ):
        log.create_topic("aborted")
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("aborted", "no")
        producer.flush()
        producer.abort_transaction()
        with producer.transaction() as tx:
            tx.produce("aborted", "yes")
    active = path / "aborted-0" / f"{0:020}.log"
    data = bytearray(active.read_bytes())
    marker = _core.iter_batches(bytes(data))[1]
    assert marker.control_type == 0
    data[marker.position + 69] ^= 1
    active.write_bytes(data)
    assert _core.iter_batches(bytes(data))[1].control_type == 1
    # The range ends before the marker: no read of it meets the damage.
    with pytest.raises(CorruptRecord), eoslog.open(path, read_only=read_only) as log:
        assert [r.value for r in log.scan("aborted", end=1).records()] == []
