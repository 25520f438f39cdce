"""`check` and `repair` report damage, its place and the loss."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

import eoslog
from eoslog import errors
from eoslog.model import TopicPartition
from eoslog.storage.format import checkpoints

T0 = TopicPartition("t", 0)


@pytest.fixture
def place(tmp_path):
    """A closed log of 40 records in four segments, with one aborted transaction."""
    with eoslog.open(tmp_path) as log:
        log.create_topic("t")
        partition = log._engine.partition("t", 0)
        with log.producer(transactional_id="tx") as bad:
            bad.init_transactions()
            bad.begin_transaction()
            bad.produce("t", b"aborted")
            bad.flush()
            bad.abort_transaction()
        with log.producer() as producer:
            for i in range(40):
                producer.send("t", b"v%02d" % i).result(60)
                if i % 10 == 9:
                    partition.roll()
    return tmp_path


def values(path):
    with eoslog.open(path) as log:
        return [v for b in log.scan("t", binary="copy") for v in b.to_pydict()["value"]]


def files_of(path):
    return {
        os.path.join(root, name): open(os.path.join(root, name), "rb").read()
        for root, _, names in os.walk(path)
        for name in names
    }


def flip(path, position):
    with open(path, "r+b") as handle:
        handle.seek(position)
        byte = handle.read(1)[0]
        handle.seek(position)
        handle.write(bytes([byte ^ 0xFF]))


def batches(path):
    return eoslog.inspect(path, records=False)["batches"]


def the_log(place, number):
    names = sorted(n for n in os.listdir(place / "t-0") if n.endswith(".log"))
    return place / "t-0" / names[number]


def test_a_sound_directory_has_no_problems(place):
    assert eoslog.repair(place).ok
    assert eoslog.repair(place, mode="cut").ok
    assert len(values(place)) == 40


@pytest.mark.slow
@pytest.mark.parametrize("byte", [8, 16, 17, 61], ids=["length", "magic", "crc", "record"])
def test_repair_reports_a_bad_batch_with_the_records_that_a_cut_would_lose(place, byte):
    path = the_log(place, 1)
    victim = batches(path)[4]
    before = files_of(place)
    flip(path, victim["position"] + byte)
    damaged = files_of(place)
    report = eoslog.repair(place)
    (problem,) = report.problems
    assert problem.path == str(path)
    assert problem.position == victim["position"]
    assert problem.lost_records == 25  # five in this segment, twenty in the next two
    assert f"offsets below {victim['base_offset']} are intact" in problem.message
    after = files_of(place)
    assert {k: v for k, v in after.items() if "session" not in k} == {
        k: v for k, v in damaged.items() if "session" not in k
    }
    assert before.keys() <= after.keys()
    cut = eoslog.repair(place, mode="cut")
    assert cut.bytes_cut > 0
    assert values(place) == [b"v%02d" % i for i in range(14)]


def test_repair_counts_valid_records_after_further_damage(place):
    found = [batches(the_log(place, number)) for number in range(4)]
    for segment, number, byte in ((1, 4, 8), (1, 7, 8), (1, 8, 16), (2, 0, 17), (3, 5, 61)):
        flip(the_log(place, segment), found[segment][number]["position"] + byte)
    (problem,) = eoslog.repair(place).problems
    assert problem.lost_records == 40 - 14 - 5
    assert "21 intact records follow" in problem.message


def test_repair_of_junk_at_the_end_loses_no_record(place):
    path = the_log(place, -1)
    with open(path, "ab") as handle:
        handle.write(b"junk" * 10)
    (problem,) = eoslog.repair(place).problems
    assert problem.lost_records == 0
    assert "no intact records follow" in problem.message
    assert eoslog.repair(place, mode="cut").bytes_cut == 40
    assert len(values(place)) == 40


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_repair_reports_and_rebuilds_a_missing_index(place, suffix):
    path = place / "t-0" / ("0" * 20 + suffix)
    expected = path.read_bytes()
    path.unlink()
    problems = eoslog.repair(place).problems
    assert [p.path for p in problems] == [str(path)]
    assert eoslog.repair(place, mode="cut").bytes_cut == 0
    assert len(values(place)) == 40
    assert path.read_bytes() == expected
    assert eoslog.repair(place).ok


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("recovery-point-offset-checkpoint", "treated as empty"),
        ("cleaner-offset-checkpoint", "treated as empty"),
        ("eoslog.control", "all partitions are scanned"),
        ("t-0/00000000000000000012.snapshot", "not a valid producer snapshot"),
    ],
)
def test_damage_outside_the_log_files_loses_no_record(place, name, what):
    if name.endswith("snapshot"):
        path = sorted(p for p in (place / "t-0").iterdir() if p.suffix == ".snapshot")[0]
    else:
        path = place / name
    if not path.exists():
        path.write_bytes(b"0\n0\n")
    with open(path, "r+b") as handle:
        handle.write(b"XX")
    (problem,) = eoslog.repair(place).problems
    assert problem.path == str(path)
    assert what in problem.message
    assert eoslog.repair(place, mode="cut").bytes_cut == 0
    assert len(values(place)) == 40
    assert eoslog.repair(place).ok


@pytest.mark.slow
def test_repair_command_exits_with_5_and_names_the_place_as_json(place):
    path = the_log(place, 0)
    flip(path, batches(path)[-1]["position"] + 61)

    def run(*arguments):
        command = [
            sys.executable,
            "-m",
            "eoslog",
            "-d",
            str(place),
            "--format",
            "jsonl",
            *arguments,
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    report = run("repair")
    assert report.returncode == 5
    row = json.loads(report.stdout.splitlines()[0])
    assert row["path"] == str(path)
    assert row["lost_records"] == 30
    assert run("repair", "--mode", "cut", "-y").returncode == 0
    assert run("repair").returncode == 0
    assert run("check").returncode == 0


@pytest.fixture
def two_topics(tmp_path):
    with eoslog.open(tmp_path) as log:
        for topic in ("kept", "lost"):
            log.create_topic(topic)
            with log.producer() as producer:
                producer.send(topic, b"v").result(60)
    return tmp_path


def checks_of(place):
    """Check reports of an open log, read-only and writable."""
    for read_only in (True, False):
        with eoslog.open(place, read_only=read_only) as log:
            yield log.check()


def is_told(report, path, what):
    (problem,) = report.problems
    return str(path) in problem.path and what in problem.message and report.partitions > 0


def test_every_check_reports_a_partition_without_its_only_segment(two_topics):
    (segment,) = (two_topics / "lost-0").glob("0*.log")
    segment.unlink()

    def lasting() -> dict[str, bytes]:
        """The files of the partition without its indexes, which recovery rebuilds."""
        found = files_of(two_topics / "lost-0")
        return {name: found[name] for name in found if not name.endswith("index")}

    before = lasting()
    for report in (eoslog.repair(two_topics), eoslog.check(two_topics), *checks_of(two_topics)):
        assert is_told(report, two_topics / "lost-0", "was flushed up to offset 1")
    assert lasting() == before
    eoslog.repair(two_topics, mode="cut")
    with eoslog.open(two_topics) as log:
        assert log.check().ok
        assert [log.offsets(topic, 0).log_end for topic in ("kept", "lost")] == [1, 1]


def test_every_check_reports_a_missing_directory_and_checks_the_others(two_topics):
    with eoslog.open(two_topics) as log:
        log.create_topic("deleted")
        with log.producer() as producer:
            producer.send("deleted", b"v").result(60)
    with eoslog.open(two_topics) as log:
        log.delete_topic("deleted")  # its point stays noted
    shutil.rmtree(two_topics / "lost-0")
    for report in (
        *(eoslog.repair(two_topics, mode) for mode in ("report", "cut")),
        eoslog.check(two_topics),
        *checks_of(two_topics),
    ):
        assert is_told(report, two_topics / "lost-0", "had offsets up to 1")


def test_a_cut_elsewhere_keeps_a_missing_directory_recorded(two_topics):
    """It would be re-created empty, and its offsets would be reused."""
    shutil.rmtree(two_topics / "lost-0")
    flip(two_topics / "kept-0" / "00000000000000000000.log", 65)
    eoslog.repair(two_topics, "cut")
    with eoslog.open(two_topics) as log, pytest.raises(errors.StorageError, match="is missing"):
        log.offsets("lost", 0)


@pytest.mark.parametrize("content", [None, b"bad=1\n"])
def test_repair_reports_damaged_meta_properties_and_never_rebuilds_them(place, content):
    """Nothing makes it again, so that a cut does not touch it."""
    path = place / "meta.properties"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    for mode in ("report", "cut"):
        (problem,) = eoslog.repair(place, mode=mode).problems
        assert problem.path == str(path)
        assert path.exists() == (content is not None)


@pytest.mark.parametrize("content", [b"hello", b"\xff"])
def test_every_check_reports_a_damaged_partition_metadata(place, content):
    path = place / "t-0" / "partition.metadata"
    path.write_bytes(content)
    for report in (
        *(eoslog.repair(place, mode=mode) for mode in ("report", "cut")),
        eoslog.check(place),
        *checks_of(place),
    ):
        (problem,) = report.problems
        assert problem.path == str(path) and problem.message
    assert path.read_bytes() == content
    with eoslog.open(place) as log, pytest.raises(errors.CorruptRecord, match="partition.metadata"):
        log.offsets("t", 0)


@pytest.mark.parametrize("found", ["AAAAAAAAAAAAAAAAAAAAAQ", "no file"])
def test_check_names_both_topic_ids_of_a_partition_of_another_topic(place, found):
    path = place / "t-0" / "partition.metadata"
    with eoslog.open(place) as log:
        topic_id = log.describe_topic("t").topic_id
    if found == "no file":
        path.unlink()
    else:
        path.write_text(f"version: 0\ntopic_id: {found}\n")
    with eoslog.open(place, read_only=True) as log:
        (problem,) = log.check().problems
    assert problem.path == str(path)
    assert f"expected '{checkpoints.id_text(topic_id)}', found '{found}'" in problem.message


@pytest.mark.parametrize("mode", ["report", "cut", "as-kafka"])
def test_repair_rejects_a_directory_of_a_newer_format_and_changes_nothing(place, mode):
    path = the_log(place, 1)
    flip(path, batches(path)[4]["position"] + 61)
    meta = place / "meta.properties"
    meta.write_text(meta.read_text().replace("eoslog.format=1", "eoslog.format=2"))
    (place / "recovery-point-offset-checkpoint").write_bytes(b"damaged")
    before = files_of(place)
    with pytest.raises(errors.UnsupportedFormat, match="a newer eoslog wrote this log") as caught:
        eoslog.repair(place, mode=mode)
    assert str(meta) in str(caught.value)
    with pytest.raises(errors.UnsupportedFormat, match="a newer eoslog wrote this log"):
        eoslog.open(place)
    assert eoslog.check(place).problems[0].path == str(meta)
    assert files_of(place) == before


def test_a_deleted_topic_is_not_reported_as_a_loss(place):
    with eoslog.open(place) as log:
        log.delete_topic("t")
        assert log.check().ok
    assert eoslog.repair(place).ok
    assert eoslog.check(place).ok
