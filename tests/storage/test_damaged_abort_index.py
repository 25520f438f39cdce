"""An abort index has no checksum: what a sealed segment's says is compared with the log before it is believed.

A wrong entry would show aborted records, or hide committed ones, in silence.
"""

from __future__ import annotations

import struct

import pytest

import eoslog
from eoslog import Producer, _core
from eoslog.errors import CorruptRecord
from tests.rows.tools import values

ENTRY = struct.Struct(">hqqqq")


@pytest.fixture
def path(tmp_path):
    """Two producers, whose transactions end in turn; one spans two segments; several are aborted."""
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t")
        producers = []
        for name in ("a", "b"):
            producer = Producer({"log.dir": str(path), "transactional.id": name})
            producer.init_transactions()
            producers.append(producer)
        partition = log.engine.partition("t", 0)
        for i in range(12):
            producer = producers[i % 2]
            producer.begin_transaction()
            for j in range(3):
                producer.produce("t", f"{i}.{j}")
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


def indexes(path):
    found = sorted((path / "t-0").glob("*.txnindex"))
    return [one for one in found if one.stat().st_size]


def test_the_index_of_a_whole_log_is_believed(path):
    assert [one.stat().st_size // ENTRY.size for one in indexes(path)] == [1, 2, 1]
    with eoslog.open(path) as log:
        assert [v.split(b".")[0] for v in values(log)][::3] == [b"0", b"1", b"3", b"6", b"7", b"8", b"10", b"11"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1, 2])
def test_each_flipped_bit_of_an_abort_index_is_found_or_harmless(path, which):
    index = indexes(path)[which]
    whole = index.read_bytes()
    with eoslog.open(path) as log:
        expected = values(log)
    found = 0
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        index.write_bytes(data)
        with eoslog.open(path, read_only=True) as log:
            try:
                log.engine.partition("t", 0).aborted(0, 1000)
            except CorruptRecord as error:
                assert index.name in str(error)
                found += 1
                continue
            assert values(log) == expected, f"bit {bit}"
    assert found > 0.7 * 8 * len(whole)  # the last stable offset of an entry is read by nobody


def test_a_missing_entry_is_found(path):
    index = indexes(path)[1]
    index.write_bytes(index.read_bytes()[ENTRY.size :])
    with eoslog.open(path) as log, pytest.raises(CorruptRecord, match="has no entry"):
        values(log)


def test_an_entry_that_begins_in_an_earlier_segment_must_have_been_open_there(path):
    """The snapshot that would tell is gone; the earlier segment's own ends tell, too. The newest
    one stays, or a reader would make the indexes from the batches.
    """
    index = indexes(path)[1]
    rows = list(ENTRY.iter_unpack(index.read_bytes()))
    for snapshot in sorted((path / "t-0").glob("*.snapshot"))[:-1]:
        snapshot.unlink()
    with eoslog.open(path, read_only=True) as log:
        expected = values(log)
    version, producer, _, last, stable = rows[1]
    index.write_bytes(ENTRY.pack(*rows[0]) + ENTRY.pack(version, producer, 2, last, stable))
    with (
        eoslog.open(path, read_only=True) as log,
        pytest.raises(CorruptRecord, match="to be open from 2 on"),
    ):
        values(log)
    index.write_bytes(b"".join(ENTRY.pack(*row) for row in rows))
    with eoslog.open(path, read_only=True) as log:
        assert values(log) == expected


def test_a_contradiction_is_told_at_every_look(path):
    index = indexes(path)[1]
    rows = list(ENTRY.iter_unpack(index.read_bytes()))
    for snapshot in sorted((path / "t-0").glob("*.snapshot"))[:-1]:
        snapshot.unlink()
    version, producer, _, last, stable = rows[1]
    index.write_bytes(ENTRY.pack(*rows[0]) + ENTRY.pack(version, producer, 2, last, stable))
    with eoslog.open(path, read_only=True) as log:
        for _ in range(3):
            with pytest.raises(CorruptRecord, match="to be open from 2 on"):
                values(log)


@pytest.fixture
def spanning(tmp_path):
    """An aborted transaction with two batches, 0 and 1, in one segment, its marker in the next."""
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t")
        with Producer({"log.dir": str(path), "transactional.id": "a"}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for value in ("0", "1"):
                producer.produce("t", value)
                producer.flush()
            partition = log.engine.partition("t", 0)
            partition.roll()
            producer.abort_transaction()
            producer.begin_transaction()
            producer.produce("t", "3")
            producer.commit_transaction()
            partition.roll()
    return path


def begins_at(path, offset):
    """Let the index say that the transaction began at another offset."""
    (index,) = indexes(path)
    ((version, producer, _, last, stable),) = ENTRY.iter_unpack(index.read_bytes())
    index.write_bytes(ENTRY.pack(version, producer, offset, last, stable))


def of_nobody(path):
    """The first batch as one of no producer's: what was the transaction's there is gone."""
    log = path / "t-0" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    size = 12 + int.from_bytes(data[8:12], "big")
    struct.pack_into(">h", data, 21, 0)  # attributes
    struct.pack_into(">qhi", data, 43, -1, -1, -1)  # producer id and epoch, first sequence
    struct.pack_into(">I", data, 17, _core.crc32c(bytes(data[21:size])))
    log.write_bytes(data)


def test_a_begin_that_a_cleaning_took_may_be_told_by_the_snapshot_alone(spanning):
    """Recovery after a cleaning makes the index of what is left; the snapshot is older."""
    of_nobody(spanning)
    begins_at(spanning, 1)
    with eoslog.open(spanning, read_only=True) as log:
        assert values(log) == [b"0", b"3"]
    assert eoslog.repair(spanning).ok  # which agrees


def test_a_begin_above_a_batch_of_the_transaction_is_refused(spanning):
    begins_at(spanning, 1)
    with eoslog.open(spanning, read_only=True) as log:
        for _ in range(2):
            with pytest.raises(CorruptRecord, match=r"open from 1 on, and from 0 on by the snap"):
                values(log)


def test_repair_makes_the_index_again(path):
    with eoslog.open(path) as log:
        expected = values(log)
    index = indexes(path)[0]
    for at in (16, 20):  # of the first offset, of the marker's
        data = bytearray(index.read_bytes())
        data[at] ^= 1
        index.write_bytes(data)
        assert not eoslog.repair(path).ok
    eoslog.repair(path, mode="cut")
    with eoslog.open(path) as log:
        assert values(log) == expected
