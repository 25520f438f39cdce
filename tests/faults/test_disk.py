"""A disk that is full, fails, loses unsynced bytes or changes a bit."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import _core
from eoslog.engine.engine import Engine
from eoslog.errors import DiskFull, EoslogError, LogPoisoned, StorageError, TooManyOpenFiles
from eoslog.storage.fs import files
from tests.faults import bodies
from tests.faults.bodies import COUNT
from tests.faults.harness import Child, every_point, live
from tests.storage.helpers import batch, opened

pytestmark = pytest.mark.process


def failing(child: Child, path: Path) -> None:
    """Produce and continue after errors; report acknowledged and rejected records."""
    with eoslog.open(path) as log:
        child.armed()
        for number in range(8):
            try:
                with log.producer(
                    linger_ms=0, delivery_timeout_ms=2000, request_timeout_ms=500
                ) as producer:
                    producer.produce("in", str(number))
                    producer.flush()
                child.tell("acked", number)
            except (EoslogError, TimeoutError) as error:
                child.tell("refused", type(error).__name__)


def all_taken() -> list[int]:
    """Take all descriptors of this process, whose limit is low from now on."""
    most = max(map(int, os.listdir("/proc/self/fd"))) + 9
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    held = []
    with contextlib.suppress(OSError):
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    return held


def test_running_out_of_descriptors_loses_nothing_and_ends_with_a_free_one(
    tmp_path: Path,
) -> None:
    """`ulimit -n` is reached during a commit over new segments."""

    def body(child: Child, path: Path) -> None:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        with eoslog.open(path) as log:
            log.create_topic("t", config={"flush.ms": 600_000})
            partition = log._engine.partition("t", 0)
            with (
                log.producer(acks=1, linger_ms=0, enable_idempotence=False) as producer,
                log.producer(linger_ms=0) as durable,
            ):
                producer.send("t", value="first").result(60)
                partition.roll()
                producer.send("t", value="second").result(60)
                held = all_taken()
                with pytest.raises(TooManyOpenFiles):
                    partition.flush()
                assert not partition.core.poisoned
                assert partition.durable_end < 2
                threading.Timer(0.3, lambda: [os.close(held.pop()) for _ in range(4)]).start()
                durable.send("t", value="third").result(60)
                assert partition.durable_end == 3
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        child.tell("done", 1)

    assert live(body, tmp_path / "log").fine().of("done")


@pytest.mark.parametrize("free", range(6))
def test_a_flush_that_cannot_rewrite_all_bytes_makes_none_durable(
    tmp_path: Path, free: int
) -> None:
    """Its descriptors are younger than the bytes: it rewrites each segment or fails."""

    def body(child: Child) -> None:
        with opened(str(tmp_path)) as older:
            older.append(batch(1))
            older.roll()
            older.append(batch(1))
            with opened(str(tmp_path)) as log:
                held = all_taken()
                for _ in range(free):
                    os.close(held.pop())
                _core.fault_count("pwrite", reset=True)
                try:
                    log.flush()
                    child.tell("rewritten", _core.fault_count("pwrite"))
                except TooManyOpenFiles:
                    child.tell("durable", log.durable_end)
                    for fd in held:
                        os.close(fd)
                    log.flush()
                child.tell("end", log.durable_end)

    life = live(body).fine()
    assert life.of("rewritten") in ([], [2])
    assert life.of("durable") in ([], [0])
    assert life.of("end") == [2]


LATE = {"flush.ms": 600_000}
"""Nobody flushes but the test itself."""


def seen(path: Path) -> list[int]:
    found: list[int] = live(bodies.look, path).fine().of("in.read_committed")[0]
    return found


def test_A05_a_full_disk_rejects_records_and_loses_none(empty: Path) -> None:
    for call, _, path, life in every_point(failing, empty, 5, "ENOSPC"):
        life.fine()
        if call == "pwrite":
            acked = life.of("acked")
            found = seen(path)
            assert [n for n in found if n in acked] == acked
            assert found == sorted(set(found))


def test_A05_an_io_error_never_revokes_an_acknowledgement(empty: Path) -> None:
    refused = 0
    for _, _, path, life in every_point(failing, empty, 5, "EIO"):
        if (
            life.error is not None
        ):  # the error met `open` or `close` itself: typed, and nothing acknowledged is lost
            assert "eoslog.errors." in life.error, life.error
        acked, found = life.of("acked"), seen(path)
        assert [n for n in found if n in acked] == acked
        refused += bool(life.of("refused")) or life.error is not None
    assert refused


def test_A05_a_failed_sync_poisons_until_all_handles_are_closed(empty: Path) -> None:
    def body(child: Child, path: Path) -> None:
        with eoslog.open(path) as log:
            log.alter_topic("in", LATE)
            engine = Engine.open(path)
            partition = engine.partition("in", 0)
            from tests.rows.tools import data

            partition.append(data(["0"]))
            partition.flush()
            partition.append(data(["1"]))
            files.arm_failpoint("fdatasync", "EIO")
            with pytest.raises((StorageError, LogPoisoned)):
                partition.flush()
            for call in (lambda: partition.append(data(["2"])), partition.flush):
                with pytest.raises(LogPoisoned):
                    call()
            assert log.offsets("in", 0).high_watermark == 1
            engine.close()

    live(body, empty).fine()
    found = seen(empty)
    assert found in ([0], [0, 1])
    live(bodies.produce, empty, "all", COUNT - 1).fine()
    assert seen(empty) == [*found, COUNT - 1]


def test_A04_a_torn_write_is_cut_and_the_records_before_it_survive(empty: Path) -> None:
    def body(child: Child, path: Path) -> None:
        with eoslog.open(path) as log, log.producer(linger_ms=0) as producer:
            for number in range(COUNT):
                producer.produce("in", str(number))
                producer.flush()
            os.kill(os.getpid(), 9)

    assert live(body, empty).killed
    file = empty / "in-0" / "00000000000000000000.log"
    whole = file.read_bytes()
    with file.open("ab") as handle:  # as a kill in the middle of one pwrite leaves it
        handle.write(whole[: len(whole) // COUNT - 7])
    assert seen(empty) == list(range(COUNT))
    live(bodies.produce, empty, "all", COUNT - 1).fine()
    assert seen(empty) == [*range(COUNT), COUNT - 1]


def test_A05_records_above_the_durable_end_are_invisible_and_may_be_lost(empty: Path) -> None:
    """A simple power loss: the partition's file ends at its last sync."""

    def body(child: Child, path: Path) -> None:
        with eoslog.open(path) as log:
            log.alter_topic("in", LATE)
            engine = Engine.open(path)
            partition = engine.partition("in", 0)
            from tests.rows.tools import data

            for number in range(5):
                partition.append(data([str(number)]))
            partition.flush()
            child.tell("size", os.path.getsize(path / "in-0" / "00000000000000000000.log"))
            for number in range(5, 9):
                partition.append(data([str(number)]))
            child.tell("visible", partition.last_stable_offset)
            os.kill(os.getpid(), 9)

    life = live(body, empty)
    survived = empty.parent / "killed-only"
    shutil.copytree(empty, survived)
    assert seen(survived) == list(
        range(9)
    )  # acks=1: in the page cache, and a kill does not empty that
    with (empty / "in-0" / "00000000000000000000.log").open("r+b") as handle:
        handle.truncate(life.of("size")[0])
    assert life.of("visible")[0] <= 5
    assert seen(empty) == list(range(5))


@pytest.mark.parametrize(
    "which", [".log", ".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"]
)
def test_A04_a_flipped_bit_is_found_or_harmless_and_never_read_as_data(
    empty: Path, which: str
) -> None:
    """R62 of docs/contributing/regressions.md."""
    live(bodies.transact, empty).fine()
    expected = live(bodies.look, empty).fine().told
    candidates = [
        p for p in sorted((empty / "in-0").iterdir()) if p.name.endswith(which) and p.stat().st_size
    ]
    for file in candidates:
        size = file.stat().st_size
        for position in range(size // 8, size, max(1, size // 3)):
            copy = empty.parent / "flipped"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(empty, copy)
            target = copy / "in-0" / file.name
            content = bytearray(target.read_bytes())
            content[position] ^= 0x10
            target.write_bytes(content)
            life = live(bodies.look, copy)
            if life.error is not None:
                assert "eoslog.errors." in life.error, life.error
            elif life.told != expected:
                found = life.of("in.read_committed")[0]
                assert found == expected[0][1][: len(found)], (which, position)


def test_A04_a_truncated_file_is_reported_or_recovered(empty: Path) -> None:
    live(bodies.produce, empty).fine()
    file = empty / "in-0" / "00000000000000000000.log"
    size = file.stat().st_size
    for keep in (0, 1, 60, size // 2, size - 1):
        copy = empty.parent / f"cut-{keep}"
        shutil.copytree(empty, copy)
        with (copy / "in-0" / file.name).open("r+b") as handle:
            handle.truncate(keep)
        life = live(bodies.look, copy)
        if life.error is None:
            found: list[Any] = life.of("in.read_committed")[0]
            assert found == list(range(len(found))) and len(found) < COUNT
        else:
            assert "eoslog.errors." in life.error


def test_A04_a_full_disk_during_a_commit_raises_a_retriable_error(empty: Path) -> None:
    def body(child: Child, path: Path) -> None:
        with eoslog.open(path) as log, log.producer(transactional_id="tx", linger_ms=0) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.produce("in", "1")
            producer.flush()
            child.armed()
            try:
                producer.commit_transaction()
                child.tell("committed", True)
            except DiskFull:
                child.tell("refused", "DiskFull")
                files.disarm_failpoints()
                producer.commit_transaction()
                child.tell("committed", True)
            except EoslogError as error:
                child.tell("refused", type(error).__name__)

    for _, _, path, life in every_point(body, empty, 5, "ENOSPC"):
        if life.of("committed"):
            assert seen(path) == [1]
        live(bodies.settle, path).fine()
        assert live(bodies.look, path).fine().of("open") == [[]]


def test_A17_acks_0_drops_records_silently(empty: Path) -> None:
    def body(child: Child, path: Path) -> None:
        with eoslog.open(path) as log:
            with log.producer(acks=0, linger_ms=0, retries=0) as producer:
                producer.produce("in", "0")
                producer.flush()
                files.arm_failpoint("pwrite", "ENOSPC")
                producer.produce("in", "1")
                producer.flush()
            files.disarm_failpoints()
            child.tell("fine", True)

    assert live(body, empty).fine().of("fine") == [True]
    assert seen(empty) == [0]


def test_J01_a_commit_whose_decision_was_not_written_can_be_repeated(empty: Path) -> None:
    def body(child: Child, path: Path) -> None:
        with (
            eoslog.open(path) as log,
            log.producer(transactional_id="tx", linger_ms=0) as producer,
        ):
            producer.init_transactions()
            producer.begin_transaction()
            producer.produce("in", "1")
            producer.flush()
            files.arm_failpoint("pwrite", "ENOSPC")  # the next write is the decision
            try:
                producer.commit_transaction()
            except EoslogError as error:  # otherwise the client has repeated the commit
                child.tell("refused", type(error).__name__)
            child.tell("faults", files._core.fault_count("pwrite"))
            files.disarm_failpoints()

    life = live(body, empty)
    assert life.of("faults")[0] >= 1, life.told
    outcome = live(bodies.settle, empty).fine().of("outcome")[0]
    assert outcome is True or life.of("refused")
    assert seen(empty) == ([1] if outcome else [])
    assert live(bodies.look, empty).fine().of("open") == [[]]


def test_E24_lost_markers_are_written_again_from_the_decision(empty: Path) -> None:
    """Power fails after a commit: its markers and its final record were never synced."""

    def body(child: Child, path: Path) -> None:
        with (
            eoslog.open(path) as log,
            log.producer(transactional_id="tx", linger_ms=0) as producer,
        ):
            engine = Engine.open(path)
            producer.init_transactions()
            producer.begin_transaction()
            for topic in ("in", "out"):
                producer.produce(topic, "1")
            producer.commit_transaction()
            coordinator = engine.transaction_partition("tx")
            rows = list(coordinator.batches(0, coordinator.log_end))
            decided = next(b for b in rows for r in b.records() if r[3] and r[3][16] == 2)
            place = os.path.join(path, coordinator.name)
            child.tell("cut", [place, decided.position + decided.size])
            child.tell("durable", coordinator.durable_end > decided.last_offset)
            os.kill(os.getpid(), 9)

    life = live(body, empty)
    assert life.of("durable") == [True]
    path, size = life.of("cut")[0]
    with (Path(path) / "00000000000000000000.log").open("r+b") as handle:
        handle.truncate(size)
    for topic in ("in", "out"):
        with (empty / f"{topic}-0" / "00000000000000000000.log").open("r+b") as handle:
            handle.truncate(handle.seek(0, 2) - 78)
    found = live(bodies.look, empty).fine()
    assert found.of("in.read_committed") == found.of("out.read_committed") == [[1]]
    assert live(bodies.settle, empty).fine().of("outcome") == [True]


def test_E25_a_partition_that_cannot_write_its_marker_blocks_only_itself(empty: Path) -> None:
    def body(child: Child, path: Path) -> None:
        with (
            eoslog.open(path) as log,
            log.producer(transactional_id="tx", linger_ms=0) as producer,
        ):
            producer.init_transactions()
            producer.begin_transaction()
            for topic in ("in", "out"):
                producer.produce(topic, "1")
            producer.flush()
            child.armed()
            try:
                producer.commit_transaction()
            except EoslogError as error:
                child.tell("refused", type(error).__name__)
            visible = [
                sum(b.num_rows for b in log.scan(topic, end=1, isolation="read_committed"))
                for topic in ("in", "out")
                if log.offsets(topic, 0).last_stable
            ]
            child.tell("visible", len(visible))

    for call, _, path, life in every_point(body, empty, 5, "ENOSPC"):
        assert life.of("visible")[0] >= 1 or life.of("refused"), (call, life.told)
        live(bodies.settle, path).fine()
        found = live(bodies.look, path).fine()
        assert found.of("in.read_committed") == found.of("out.read_committed")
        assert found.of("open") == [[]]
