"""The demo reads transactions, their writers and their ends from segment files."""

from __future__ import annotations

import json

import pytest

from eoslog._core import build_batch, build_marker
from eoslog.demo import evidence, plan

WRITER = ((plan.WRITER_HEADER, b"ingest-1/100"),)


def data(offset, epoch, *, sequence=None, count=3, producer_id=7, writer=WRITER):
    records = [(1, b"key", b"value", writer)] * count
    return build_batch(
        records,
        base_offset=offset,
        compression="gzip",
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=offset if sequence is None else sequence,
        transactional=True,
    )


def marker(offset, epoch, *, commit, producer_id=7):
    return build_marker(producer_id, epoch, commit, timestamp=1, base_offset=offset)


@pytest.fixture
def directory(tmp_path):
    """Write the batches of partitions, and notes, as a log would."""

    def write(partitions, notes=()):
        for name, batches in partitions.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / f"{0:020}.log").write_bytes(b"".join(batches))
        (tmp_path / f"{plan.FAULTS}-0").mkdir()
        records = [(1, b"kind", json.dumps(note).encode(), ()) for note in notes]
        (tmp_path / f"{plan.FAULTS}-0" / f"{0:020}.log").write_bytes(
            build_batch(records) if records else b""
        )
        return tmp_path

    return write


def test_transactions_are_distinguished_by_epoch_and_have_their_ends(directory):
    path = directory(
        {
            "flights-0": [data(0, 1), marker(3, 2, commit=True), data(4, 2), data(7, 2)],
            "flights-1": [data(0, 1), marker(3, 2, commit=True)],
            "delays-0": [data(0, 5, producer_id=8), marker(3, 6, commit=False, producer_id=8)],
        }
    )
    found = evidence.gather(path, [plan.FLIGHTS, plan.DELAYS])
    committed, opened = found.transactions[7, 1], found.transactions[7, 2]
    assert committed.committed
    assert (committed.writer, committed.records) == ("ingest-1/100", 6)
    assert not opened.committed
    assert not opened.aborted
    assert found.transactions[8, 5].aborted
    assert found.torn() == [(7, 2)]


def test_a_transaction_committed_in_one_partition_only_is_reported_as_split(directory):
    path = directory(
        {
            "flights-0": [data(0, 1), marker(3, 2, commit=True)],
            "flights-1": [data(0, 1), marker(3, 2, commit=False)],
        }
    )
    assert evidence.gather(path, [plan.FLIGHTS]).torn() == [(7, 1)]


def test_offsets_that_end_differently_from_their_data_are_reported(directory):
    path = directory(
        {
            "flights-0": [data(0, 1), marker(3, 2, commit=True)],
            "__consumer_offsets-9": [
                data(0, 1, count=1),
                marker(1, 2, commit=False),
            ],
        }
    )
    assert evidence.gather(path, [plan.FLIGHTS]).torn() == [(7, 1)]


def test_a_batch_stored_twice_is_found_by_its_sequence(directory):
    path = directory({"flights-0": [data(0, 1), data(3, 1, sequence=0), marker(6, 2, commit=True)]})
    assert evidence.gather(path, [plan.FLIGHTS]).repeated_sequences() == 1


def test_the_batch_at_an_offset_is_found_and_notes_are_read(directory):
    note = {"kind": "killed", "writer": "ingest-1/100"}
    path = directory({"flights-3": [data(0, 1), data(3, 1)]}, [note])
    found = evidence.gather(path, [plan.FLIGHTS])
    between = found.batches_between
    assert [batch.base_offset for batch in between(plan.FLIGHTS, 3, 4, 9)] == [3]
    assert [batch.base_offset for batch in between(plan.FLIGHTS, 3, 2, 3)] == [0, 3]
    assert not list(between(plan.FLIGHTS, 3, 6, 9))
    assert found.notes == [note]


def test_a_topic_with_a_common_prefix_is_another_topic(directory):
    path = directory({"flights-0": [data(0, 1)], "flights-old-0": [data(0, 1)]})
    assert [number for number, _ in evidence.partitions(path, plan.FLIGHTS)] == [0]
