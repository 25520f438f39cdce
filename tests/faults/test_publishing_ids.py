"""A named producer that is killed or fenced stores each publishing id once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import eoslog
from tests.faults.harness import Child, Life, every_point, live, start
from tests.waiting import until

pytestmark = pytest.mark.process

COUNT = 24
TARGETS = 8


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed directory with numbers in `in`, and `out` with eight partitions."""
    path = tmp_path_factory.mktemp("ids") / "prepared"
    live(prepare, path).fine()
    return path


def prepare(_: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        log.create_topic("in")
        log.create_topic("out", TARGETS)
        with log.producer() as producer:
            for number in range(COUNT):
                producer.produce("in", str(number))
        with log.producer(name="other") as other:  # creates the internal partitions
            other.produce("out", "other", partition=0, publishing_id=100)


def resend(child: Child, path: Path, count: int = COUNT, **config: Any) -> None:
    """Send the whole file, whatever was stored before."""
    with eoslog.open(path) as log, log.producer(name="relay", linger_ms=0, **config) as producer:
        child.armed()
        for number in range(count):
            producer.produce("out", str(number), partition=number % TARGETS, publishing_id=number)
            if number % 5 == 4:
                producer.flush()
                child.tell("acked", number)
        producer.flush()
        child.tell("acked", count - 1)


def transact(child: Child, path: Path) -> None:
    """Send the file in transactions; abort each third one, and use its ids again."""
    with eoslog.open(path) as log, log.producer(name="relay", linger_ms=0) as producer:
        child.armed()
        producer.init_transactions()
        for first in range(0, COUNT, 4):
            for commit in (first % 3 > 0, True):
                producer.begin_transaction()
                for number in range(first, first + 4):
                    text = str(number) if commit else "aborted"
                    producer.produce("out", text, partition=number % TARGETS, publishing_id=number)
                if commit:
                    producer.commit_transaction()
                    child.tell("acked", first + 3)
                    break
                producer.abort_transaction()


def loop(child: Child, path: Path) -> None:
    """Copy records effectively once: the publishing id is the source offset."""
    with eoslog.open(path) as log, log.producer(name="relay", linger_ms=1) as producer:
        child.armed()
        last = [log.last_publishing_id("relay", "out", n) for n in range(TARGETS)]
        begin = max((number for number in last if number is not None), default=-1) + 1
        child.tell("begin", begin)
        for record in log.read("in", start=begin):
            number = record.offset * 7 % TARGETS
            producer.produce("out", record.value, partition=number, publishing_id=record.offset)


def look(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        found = [
            [r.value.decode() for r in log.read("out", partitions=[n]) if r.value != b"other"]
            for n in range(TARGETS)
        ]
        child.tell("out", found)
        child.tell("last", [log.last_publishing_id("relay", "out", n) for n in range(TARGETS)])
        child.tell("other", log.last_publishing_id("other", "out", 0))
        child.tell("problems", [str(problem) for problem in log.check(full=True).problems])


def expected(count: int = COUNT, step: int = 1) -> list[list[str]]:
    return [
        [str(n) for n in range(count) if n * step % TARGETS == number] for number in range(TARGETS)
    ]


def seen(path: Path) -> Life:
    found = live(look, path).fine()
    assert found.of("problems") == [[]] and found.of("other") == [100]
    for stored, last in zip(found.of("out")[0], found.of("last")[0], strict=True):
        assert last == (int(stored[-1]) if stored else None)  # records and ids commit together
    return found


@pytest.mark.parametrize("body", [resend, transact], ids=["own", "program"])
def test_row_M03_a_file_that_is_sent_again_after_a_kill_is_stored_once(
    prepared: Path, body: Any
) -> None:
    kept = 0
    for _, _, path, life in every_point(body, prepared, 5):
        acked = life.of("acked")
        before = [int(n) for part in seen(path).of("out")[0] for n in part]
        assert set(range(acked[-1] + 1 if acked else 0)) <= set(before)
        kept += 0 < len(before) < COUNT
        live(body, path).fine()
        assert seen(path).of("out")[0] == expected()
    assert kept


def test_row_M03_the_loop_over_offsets_is_effectively_once_at_every_write(prepared: Path) -> None:
    begins = set()
    for _, _, path, _ in every_point(loop, prepared, 7):
        begins.add(live(loop, path).fine().of("begin")[0])
        assert seen(path).of("out")[0] == expected(step=7)
    assert 0 in begins and len(begins) > 1


@pytest.mark.parametrize(
    "step", ["ids.written", "txn.added", "txn.flushed", "txn.prepared", "txn.decided", "txn.marked",
             "txn.completed"],
)  # fmt: skip
@pytest.mark.parametrize("action", ["kill", "stop"])
def test_a_producer_that_stops_within_a_flush_is_fenced_and_repeats_nothing(
    prepared: Path, step: str, action: str
) -> None:
    path = prepared.parent / f"{step}-{action}"
    shutil.copytree(prepared, path)
    first = start(resend, path, faults=((step, action, 2),))
    if action == "kill":
        assert first.end().killed
    else:
        wait_until_stopped(first.pid)
    live(resend, path).fine()
    assert seen(path).of("out")[0] == expected()
    if action == "stop":
        first.signal(18)
        life = first.end()
        assert life.error is None or "Fenced" in life.error or "IllegalState" in life.error
        assert seen(path).of("out")[0] == expected()
    shutil.rmtree(path)


def wait_until_stopped(pid: int) -> None:
    until(lambda: " T " in Path(f"/proc/{pid}/stat").read_text())


def test_two_processes_of_one_name_that_fence_each_other_store_each_id_once(
    prepared: Path,
) -> None:
    path = prepared.parent / "rivals"
    shutil.copytree(prepared, path)
    rivals = [start(contend, path, 1 + n) for n in range(2)]
    for rival in rivals:
        life = rival.end()
        assert life.error is None, life.error
    assert seen(path).of("out")[0] == expected(200)
    shutil.rmtree(path)


def contend(child: Child, path: Path, pause: int) -> None:
    """Send the file again and again, after each fence, until all of it was delivered."""
    with eoslog.open(path) as log:
        while True:
            producer = log.producer(name="relay", linger_ms=0)
            try:
                for number in range(200):
                    producer.produce(
                        "out", str(number), partition=number % TARGETS, publishing_id=number
                    )
                    if number % (10 * pause) == 0:
                        producer.flush()
                producer.close()
                return
            except eoslog.errors.ProducerFenced:
                child.tell("fenced", True)
            finally:
                try:
                    producer.close()
                except eoslog.EoslogError as error:
                    child.tell("closed", type(error).__name__)


def test_lost_acknowledgements_and_kills_store_each_id_once(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EOSLOG_FAILPOINTS", "unused")
    for _, _, path, _ in every_point(lossy, prepared, 2):
        live(lossy, path).fine()
        assert seen(path).of("out")[0] == expected()


def lossy(child: Child, path: Path) -> None:
    resend(child, path, eoslog_test_lose_acks=0.3, retry_backoff_ms=1)
