"""A partition that cannot be opened is named; the others stay usable."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog.errors import CorruptRecord, KafkaError, StorageError, TooManyOpenFiles
from eoslog.model import TopicPartition
from eoslog.storage.check import checker
from eoslog.storage.fs import files
from eoslog.storage.segment.segment import LOG, SNAPSHOT, file_name
from tests.faults.harness import Child, Running, start

BROKEN = TopicPartition("b", 1)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Three topics of two partitions with five records each, closed."""
    with eoslog.open(tmp_path / "log") as log:
        for topic in ("a", "b", "c"):
            log.create_topic(topic, 2)
        with log.producer() as producer:
            for topic in ("a", "b", "c"):
                for partition in (0, 1):
                    producer.produce_many(topic, [b"x"] * 5, partition=partition)
    return tmp_path / "log"


def take_log(place: Path) -> None:
    (place / "b-1" / file_name(0, LOG)).unlink()


def take_directory(place: Path) -> None:
    shutil.rmtree(place / "b-1")


DAMAGES = pytest.mark.parametrize(
    ("damage", "kind", "match"),
    [
        (take_log, CorruptRecord, "b-1.* a file is missing .*eoslog repair"),
        (
            take_directory,
            StorageError,
            "b-1: .* directory is missing, .* backup, or delete the top",
        ),
    ],
    ids=["its file is gone", "its directory is gone"],
)


@DAMAGES
def test_a_partition_that_cannot_be_opened_is_named_next_to_the_others(
    place: Path, damage: Callable[[Path], None], kind: type[Exception], match: str
) -> None:
    damage(place)
    with eoslog.open(place) as log:
        offline = log.offline_partitions()
        assert list(offline) == [BROKEN]
        assert isinstance(offline[BROKEN], kind)
        stats = log.stats()
        assert stats["offline"] == {"b-1": str(offline[BROKEN])}
        assert sorted(stats["partitions"]) == ["a-0", "a-1", "b-0", "c-0", "c-1"]
        assert log.durability == "strict"
        for call in (log.snapshot, lambda: log.backup(place.parent / "copy")):
            with pytest.raises((KafkaError, StorageError), match=match):
                call()
        log.delete_topic("b")
        assert log.offline_partitions() == {}
        assert log.stats()["offline"] == {}


def test_an_error_unrelated_to_a_partition_is_raised_by_the_call(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with eoslog.open(place) as log:
        log.offline_partitions()

        def partition(topic: str, number: int) -> None:
            raise TooManyOpenFiles("none is free")

        monkeypatch.setattr(log._engine, "partition", partition)
        for call in (log.offline_partitions, log.stats):
            with pytest.raises(TooManyOpenFiles):
                call()


def test_check_skips_a_partition_deleted_in_the_meantime(place: Path) -> None:
    """Its namesake ends before the published end of the deleted one."""
    with eoslog.open(place) as log:
        deleted = {f"b-{number}": log._engine.partition("b", number) for number in (0, 1)}
        ends = {name: partition.log_end for name, partition in deleted.items()}
        log.delete_topic("b")
        log.create_topic("b", 1)
        names = ["a-0", *deleted]
        report = checker.check(str(place), names=names, ends=ends, logs=deleted)
        assert [report.partitions, report.problems] == [1, []]
        assert log.check().ok


def test_check_repeats_a_partition_whose_file_disappears(place: Path) -> None:
    """Retention may delete a segment between its listing and its opening."""
    with eoslog.open(place) as log:
        partition = log._engine.partition("b", 0)
        ends, logs = {"b-0": partition.log_end}, {"b-0": partition}
        path = str(place)
        for nth in range(1, 40):
            files.arm_failpoint("open", "ENOENT", nth)
            try:
                report = checker.check(path, names=["b-0"], ends=ends, logs=logs, flushed={})
            finally:
                files.disarm_failpoints()
            # Deleting a snapshot changes the version of the list, which this fault does not.
            other = [one for one in report.problems if not one.path.endswith(SNAPSHOT)]
            assert other == [], nth


def write(child: Child, place: Path, topics: str) -> None:
    """Write to these topics, then keep the log open."""
    with eoslog.open(place) as log, log.producer() as producer:
        for topic in topics:
            producer.produce_many(topic, [b"y"] * 5, partition=0)
        producer.flush()
        child.tell("ready", True)
        signal.pause()


def test_partitions_that_no_writer_has_recovered_are_named(place: Path) -> None:
    """A reader cannot recover them after a kill, and the next writer used only one."""
    killed = start(write, place, "ab")
    killed.heard("ready")
    killed.kill()
    left = [TopicPartition(*key) for key in (("a", 1), ("b", 0), ("b", 1), ("c", 0), ("c", 1))]
    with contextlib.ExitStack() as ending:
        writer = start(write, place, "a")
        ending.callback(writer.kill)
        writer.heard("ready")
        log = ending.enter_context(eoslog.open(place, read_only=True))
        assert list(log.offline_partitions()) == left
        assert list(log.stats()["offline"]) == [str(tp) for tp in left]
        report = log.check()
        assert report.ok
        assert [os.path.basename(note.path) for note in report.notes] == [str(tp) for tp in left]
        assert all("the writers have not recovered it yet" in note.message for note in report.notes)


def checked(child: Child, place: Path) -> None:
    """Stop between the list of the topics and the search for their directories."""
    with eoslog.open(place, read_only=True) as log:
        files.arm_failpoint("check.listed", "stop")
        child.tell("problems", [os.path.basename(one.path) for one in log.check().problems])


def until_stopped(child: Running) -> None:
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


@contextlib.contextmanager
def during_check(place: Path, problems: list[str]) -> Iterator[None]:
    """Stop a check after it has listed the topics, and continue it after the block."""
    child = start(checked, place)
    try:
        until_stopped(child)
        yield
        child.signal(signal.SIGCONT)
    except BaseException:
        child.kill()
        raise
    assert child.end().fine().of("problems") == [problems]


def test_check_leaves_out_a_topic_that_is_deleted_during_the_check(place: Path) -> None:
    with eoslog.open(place) as log, during_check(place, []):
        log.delete_topic("b")


@pytest.mark.parametrize("made", [True, False])
def test_check_reports_a_new_directory_only_if_it_stays_missing(place: Path, made: bool) -> None:
    """The topic is in the metadata before its directory is made."""
    with eoslog.open(place) as log:
        log.create_topic("new")
        os.rename(place / "new-0", place / "aside")
        with during_check(place, [] if made else ["new-0"]):
            if made:
                os.rename(place / "aside", place / "new-0")
        if not made:
            os.rename(place / "aside", place / "new-0")


def test_check_reads_a_partition_again_that_a_writer_has_recovered(place: Path) -> None:
    """Without the end of its log, bytes that the recovery removes look like damage."""
    killed = start(write, place, "ab")
    killed.heard("ready")
    killed.kill()
    log_file = place / "b-0" / file_name(0, LOG)
    data = log_file.read_bytes()
    end = data.rindex(b"y") + 2  # the last record ends with its count of headers
    log_file.write_bytes(data[:end] + data[:20] + data[end + 20 :])
    with contextlib.ExitStack() as ending:
        for topic, checking in (("a", contextlib.nullcontext()), ("b", during_check(place, []))):
            with checking:
                writer = start(write, place, topic)
                ending.callback(writer.kill)
                writer.heard("ready")


def _list_partitions(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        for topic in log.topics():
            log.offsets(topic, 0)
        child.armed()
        child.tell("partitions", sorted(log.stats()["partitions"]))


def test_stats_leave_out_a_topic_that_is_deleted_during_the_call(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "log") as log:
        for topic in ("a", "b"):
            log.create_topic(topic)
            with log.producer() as producer:
                producer.produce(topic, "x")
        child = start(_list_partitions, tmp_path / "log", faults=(("open", "stop", 1),))
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        log.delete_topic("a")  # its first segment is about to be opened
        child.signal(signal.SIGCONT)
        assert child.end().fine().of("partitions") == [["b-0"]]


def test_stats_name_an_open_partition_whose_files_are_gone(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "log") as log, log.producer() as producer:
        for topic in ("a", "b"):
            log.create_topic(topic)
            producer.produce(topic, "x")
        producer.flush()
        (tmp_path / "log" / "a-0" / "00000000000000000000.log").unlink()
        stats = log.stats()
        assert list(stats["partitions"]) == ["b-0"]
        assert "there is no segment file" in stats["offline"]["a-0"]
