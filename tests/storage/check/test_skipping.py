"""A skip removes only damaged batches and changes the end of no transaction."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import errors
from eoslog._core import build_batch
from eoslog.admin import repair as log_repair
from eoslog.model import TopicPartition

T0 = TopicPartition("t", 0)
VALUES = [b"v%02d" % number for number in range(40)]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log of 40 records in four segments of ten, a batch each."""
    place = tmp_path_factory.mktemp("sound") / "log"
    with eoslog.open(place) as log:
        log.create_topic("t")
        with log.producer() as producer:
            for number, value in enumerate(VALUES):
                if number and number % 10 == 0:
                    log._engine.partition("t", 0).roll()
                producer.send("t", value).result(60)
    return place


@pytest.fixture
def place(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "log"))


def segment(place: Path, base: int) -> Path:
    return place / "t-0" / f"{base:020}.log"


def batches(path: Path) -> list[dict[str, Any]]:
    return eoslog.inspect(path, records=False)["batches"]


def write_at(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def flip(path: Path, position: int) -> None:
    write_at(path, position, bytes([path.read_bytes()[position] ^ 0xFF]))


def damage(place: Path, number: int, byte: int = 64) -> bytes:
    """Change a byte of the record with this offset; return the damaged batch."""
    path = segment(place, number // 10 * 10)
    batch = batches(path)[number % 10]
    flip(path, batch["position"] + byte)
    return path.read_bytes()[batch["position"] : batch["position"] + batch["size"]]


def values(place: Path, isolation: str = "read_committed") -> list[bytes]:
    with eoslog.open(place) as log:
        assert log.check(full=True).ok
        scan = log.scan("t", binary="copy", isolation=isolation)
        return [value for found in scan for value in found.to_pydict()["value"]]


def without(*numbers: int) -> list[bytes]:
    return [value for number, value in enumerate(VALUES) if number not in numbers]


@pytest.mark.parametrize("byte", [0, 3, 7, 8, 11, 16, 17, 22, 26, 43, 57, 61, 68])
def test_field_C2_a_skip_loses_the_damaged_batch_alone(place: Path, byte: int) -> None:
    lost = damage(place, 14, byte)
    report = eoslog.repair(place, "skip")
    (found,) = report.damage
    assert (found.topic, found.partition) == ("t", 0)
    assert (found.first_offset, found.last_offset, found.size) == (14, 14, len(lost))
    assert found.records_after == 25 and not report.refused and not report.torn
    assert report.kept == [found.copy]
    assert os.path.basename(found.copy).startswith(f"{10:020}.log.cut-")
    assert Path(found.copy).read_bytes() == lost
    assert eoslog.repair(place).ok
    assert values(place) == without(14)
    for report in (eoslog.check(place), eoslog.check(place, fix_indexes=True)):
        assert report.ok and not report.rebuilt
        assert any("offsets 14 to 14 have no records" in note.message for note in report.notes)
        assert found.copy in {note.path for note in report.notes}


def test_field_C2_a_report_counts_what_a_cut_and_a_skip_would_lose(place: Path) -> None:
    damage(place, 14)
    damage(place, 31)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    first, second = eoslog.repair(place).damage
    assert (first.first_offset, first.last_offset, first.records_after) == (14, 14, 24)
    assert (second.first_offset, second.last_offset, second.records_after) == (31, 31, 8)
    assert first.bytes_after == 25 * first.size and first.copy is None
    assert 0 < first.before_ms <= first.after_ms
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    "numbers", [(0,), (9,), (10,), (39,), (3, 4, 5), (8, 9), (9, 10), (1, 3, 5), (0, 15, 39), tuple(range(10, 20))]
)  # fmt: skip
def test_field_C2_skip_removes_every_damaged_batch_at_any_position(
    place: Path, numbers: tuple[int, ...]
) -> None:
    lost = b"".join(damage(place, number) for number in numbers)
    report = eoslog.repair(place, "skip")
    assert b"".join(Path(found.copy).read_bytes() for found in report.damage) == lost
    assert values(place) == without(*numbers)
    with eoslog.open(place) as log, log.producer() as producer:
        assert producer.send("t", b"new").result(60).offset == 40
        assert log.check(full=True).ok
    assert values(place) == [*without(*numbers), b"new"]


def test_field_C2_a_base_offset_too_high_costs_only_its_own_batch(place: Path) -> None:
    """The checksum does not cover it: the batches after it look wrong."""
    batch = batches(segment(place, 10))[4]
    write_at(segment(place, 10), batch["position"] + 7, bytes([18]))
    report = eoslog.repair(place, "skip")
    (found,) = report.damage
    assert (found.first_offset, found.last_offset) == (14, 14)
    assert values(place) == without(14)


def test_field_C2_groups_and_positions_continue_after_a_skipped_batch(place: Path) -> None:
    with eoslog.open(place) as log:
        log.reset_offsets("g", {T0: 14})
    damage(place, 14)
    damage(place, 15)
    eoslog.repair(place, "skip")
    with eoslog.open(place) as log:
        with log.consumer("t", group_id="g") as consumer:
            found = [r.value for _ in range(9) for r in consumer.consume(50, timeout=0.2)]
        assert found == VALUES[16:]
        assert log.offsets("t", 0).log_end == 40


def test_field_C2_dump_reads_a_kept_copy_of_a_damaged_batch(place: Path) -> None:
    damage(place, 14)
    (copy,) = eoslog.repair(place, "skip").kept
    found = eoslog.inspect(copy)
    assert found["base_offset"] == 10
    assert [batch["base_offset"] for batch in found["batches"]] == [14]
    assert not found["batches"][0]["valid"]


def test_field_C2_a_cut_keeps_copies_of_all_removed_bytes(place: Path) -> None:
    damage(place, 14)
    position = batches(segment(place, 10))[4]["position"]
    taken = [segment(place, 10).read_bytes()[position:]]
    taken += [segment(place, base).read_bytes() for base in (20, 30)]
    report = eoslog.repair(place, "cut")
    assert [Path(path).read_bytes() for path in report.kept] == taken
    names = [os.path.basename(path).split(".cut-")[0] for path in report.kept]
    assert names == [f"{base:020}.log" for base in (10, 20, 30)]
    assert values(place) == VALUES[:14]
    whole = [b["base_offset"] for b in eoslog.inspect(report.kept[1])["batches"]]
    assert whole == list(range(20, 30))
    scan = eoslog.read_segments(report.kept[2])
    assert [bytes(v) for found in scan for v in found.to_pydict()["value"]] == VALUES[30:]


def test_field_C2_kept_copies_are_deleted_only_with_their_topic(
    place: Path, tmp_path: Path
) -> None:
    damage(place, 14)
    (copy,) = eoslog.repair(place, "skip").kept
    content = Path(copy).read_bytes()
    with eoslog.open(place) as log:
        log.alter_topic("t", {"cleanup.policy": "compact,delete", "retention.ms": "1"})
        log.clean(roll=True)
        log.backup(tmp_path / "copy")
        assert log.check().ok
    assert Path(copy).read_bytes() == content
    assert not list((tmp_path / "copy").rglob("*.cut-*"))
    with eoslog.open(place) as log:
        log.delete_topic("t")
    with eoslog.open(place) as log:
        log.clean()
    assert not list(place.rglob("*.cut-*"))


def test_field_C2_a_repeated_repair_makes_no_second_copy(place: Path) -> None:
    before = shutil.copytree(place, place.parent / "again")
    for where in (place, before):
        damage(where, 14)
    (copy,) = eoslog.repair(place, "skip").kept
    shutil.copy(copy, before / "t-0")  # as a run left it that died right after the copy
    (found,) = eoslog.repair(before, "skip").kept
    assert os.path.basename(found) == os.path.basename(copy)
    assert len(list(before.rglob("*.cut-*"))) == 1
    assert values(before) == without(14)


# --- producers ------------------------------------------------------------------------------


def idempotent(place: Path, lost: int, *, broken: int = 64, before: int = 4) -> None:
    """Append batches of two records of producer 7, then damage and skip one."""
    with eoslog.open(place) as log:
        log.create_topic("t")
        partition = log._engine.partition("t", 0)
        for number in range(before):
            partition.append(two(number))
    path = segment(place, 0)
    flip(path, batches(path)[lost]["position"] + broken)
    assert eoslog.repair(place, "skip").damage


def two(number: int) -> bytes:
    records = [(1, None, b"%d" % (2 * number + extra), ()) for extra in (0, 1)]
    return build_batch(records, producer_id=7, producer_epoch=0, base_sequence=2 * number)


@pytest.mark.parametrize("lost", range(4))
def test_field_C2_a_producer_continues_after_a_skipped_batch(tmp_path: Path, lost: int) -> None:
    """The header names the producer, and the neighbouring batches confirm it."""
    idempotent(tmp_path, lost)
    with eoslog.open(tmp_path) as log:
        partition = log._engine.partition("t", 0)
        assert partition.append(two(lost)).duplicate, (
            "its records are in the copy, not lost track of"
        )
        found = partition.append(two(4))
        assert not found.duplicate and found.base_offset == 8
        assert partition.append(two(4)).duplicate


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_field_C2_a_retry_of_an_unidentified_batch_is_not_appended_again(
    tmp_path: Path, lost: int
) -> None:
    """The producer's id is what is damaged."""
    idempotent(tmp_path, lost, broken=50)
    with eoslog.open(tmp_path) as log:
        partition = log._engine.partition("t", 0)
        with pytest.raises(errors.OutOfOrderSequence):
            partition.append(two(lost))
        assert partition.append(two(4)).base_offset == 8
        assert partition.log_end == 10


# --- transactions ---------------------------------------------------------------------------


def transactions(place: Path, *ends: bool) -> None:
    """One transaction after another, of one id, two records each; True commits."""
    with eoslog.open(place) as log:
        log.create_topic("t")
        with log.producer(transactional_id="tx") as producer:
            producer.init_transactions()
            for number, commit in enumerate(ends):
                producer.begin_transaction()
                for _ in range(2):
                    producer.produce("t", b"%d" % number)
                    producer.flush()
                producer.commit_transaction() if commit else producer.abort_transaction()


def visible(*ends: bool) -> list[bytes]:
    return [b"%d" % number for number, commit in enumerate(ends) if commit for _ in range(2)]


ENDS = [(True, False), (False, True), (True, True), (False, False), (True,), (False,)]
PLACES = [0, 8, 16, 17, 30, 43, 50, 52, 66, 69, 76, None]


@pytest.mark.parametrize("byte", PLACES)
@pytest.mark.parametrize("ends", ENDS)
def test_field_C2_a_lost_marker_changes_no_transactions_end(
    tmp_path: Path, ends: tuple[bool, ...], byte: int | None
) -> None:
    """Without it the first transaction would run into the second, and share its end."""
    place = tmp_path / "log"
    transactions(place, *ends)
    path = segment(place, 0)
    marker = batches(path)[2]
    assert marker["control"]
    if byte is None:
        write_at(path, marker["position"], bytes(marker["size"]))
    else:
        flip(path, marker["position"] + byte)
    report = eoslog.repair(place, "skip")
    (torn,) = report.torn
    assert (torn.transactional_id, torn.first_offset) == ("tx", 0)
    assert torn.outcome == ("commit" if ends[0] else "abort")
    assert values(place) == visible(*ends)
    assert values(place, "read_uncommitted") == visible(*[True] * len(ends))


@pytest.mark.parametrize(("byte", "shown"), [(30, True), (66, True), (20, True), (None, False)])
def test_field_C2_an_expired_transaction_ends_as_its_marker_says(
    tmp_path: Path, byte: int | None, shown: bool
) -> None:
    """The transaction is no longer in `__transaction_state`.

    If its bytes do not give an end either, it counts as aborted, and the next transaction keeps its own
    end.
    """
    place = tmp_path / "log"
    transactions(place, True, True)
    path = segment(place, 0)
    marker = batches(path)[2]
    if byte is None:
        write_at(path, marker["position"], bytes(marker["size"]))
    else:
        flip(path, marker["position"] + byte)
    (torn,) = log_repair.repair(str(place), "skip", dict).torn
    assert (torn.lost, torn.outcome) == ("marker", "commit" if shown else "abort")
    assert values(place) == visible(shown, True)


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("lost", [0, 1])
def test_field_C2_records_lost_in_a_transaction_are_reported_as_torn(
    tmp_path: Path, ends: tuple[bool, ...], lost: int
) -> None:
    place = tmp_path / "log"
    transactions(place, *ends)
    flip(segment(place, 0), batches(segment(place, 0))[lost]["position"] + 64)
    report = eoslog.repair(place, "skip")
    (torn,) = report.torn
    assert (torn.transactional_id, torn.lost) == ("tx", "records")
    assert torn.outcome == ("commit" if ends[0] else "abort")
    left = visible(*ends)
    assert values(place) == (left[1:] if ends[0] else left)


@pytest.mark.parametrize(
    "topic", ["__transaction_state", "__consumer_offsets", "__cluster_metadata"]
)
def test_field_C2_a_skip_does_not_change_internal_topics(tmp_path: Path, topic: str) -> None:
    place = tmp_path / "log"
    transactions(place, True, False)
    with eoslog.open(place) as log:
        log.reset_offsets("g", {T0: 1})
    path = max(place.glob(f"{topic}-*/*.log"), key=lambda log: log.stat().st_size)
    flip(path, batches(path)[0]["position"] + 64)
    data = path.read_bytes()
    report = eoslog.repair(place, "skip")
    (refused,) = report.refused
    assert refused.path == str(path) and "is internal" in refused.message
    assert path.read_bytes() == data and not report.kept
    assert not eoslog.repair(place).ok
    with pytest.raises(errors.CorruptRecord), eoslog.open(place) as log:
        log.transactions(open_only=False), log.groups(), log.describe_group("g")
