"""Bytes after the published end may have been read before they were cut.

Two open handles of this process represent two live ones: their sessions and locks are their own. A
third process dies in the middle of its append, and another one cuts what it left.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from eoslog._core import build_marker
from eoslog.model import AppendOrigin
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.log.retention import apply_retention
from eoslog.storage.segment.segment import INDEX, REMAP_SIZE, file_name
from tests.faults.harness import Child, live
from tests.storage.helpers import batch, opened, payloads, state

pytestmark = pytest.mark.process

SETTINGS = {"segment_bytes": 3000, "index_interval_bytes": 200}
Append = Callable[[PartitionLog], None]


def one(log: PartitionLog) -> None:
    log.append(batch(1, producer_id=21, sequence=0))


def three(log: PartitionLog) -> None:
    log.append(batch(3, producer_id=22, sequence=0, size=90))


def long(log: PartitionLog) -> None:
    log.append(batch(1, producer_id=23, sequence=0, size=400))


def many(log: PartitionLog) -> None:
    log.append(b"".join(batch(2, producer_id=24, sequence=2 * i) for i in range(6)))


def data(log: PartitionLog) -> None:
    log.append(
        batch(1, producer_id=25, sequence=0, transactional=True), expect=[(log, log.log_end)]
    )


def abort(log: PartitionLog) -> None:
    log.append(build_marker(7, 1, False, timestamp=5), origin=AppendOrigin.COORDINATOR)


def commit(log: PartitionLog) -> None:
    log.append(build_marker(7, 1, True, timestamp=5), origin=AppendOrigin.COORDINATOR)


def rolling(log: PartitionLog) -> None:
    log.append(batch(1, producer_id=26, sequence=0, size=2500))


APPENDS: tuple[Append, ...] = (one, three, long, many, data, abort, commit, rolling)


def torn(child: Child, path: str, append: Append) -> None:
    """Publishes a batch, and dies once the next one's bytes are in the file."""
    with opened(path, **SETTINGS) as log:
        log.append(batch(1, producer_id=9, sequence=0))
        if append is abort:
            log.writer_files.make_txnindex()
        child.armed()
        append(log)


@pytest.mark.parametrize("then", APPENDS)
@pytest.mark.parametrize("left", APPENDS)
def test_bytes_of_a_dead_writer_that_were_cut_are_not_folded(
    tmp_path: Path, left: Append, then: Append
) -> None:
    """The handle read a dead writer's bytes, and others came in their place."""
    path = str(tmp_path)
    with opened(path, **SETTINGS) as behind, opened(path, **SETTINGS) as repairer:
        behind.append(
            batch(1, producer_id=7, sequence=0, transactional=True),
            expect=[(behind, behind.log_end)],
        )
        life = live(torn, path, left, faults=(("point", "kill", 3),))
        assert life.killed, life.error
        behind.fold()
        then(repairer)
        end = repairer.log_end
        behind.append(batch(2, producer_id=30, sequence=0))
        assert behind.log_end == end + 2
        repairer.append(batch(1, producer_id=31, sequence=0))
        expected = state(behind)
        assert state(repairer) == expected
        behind.writer_files.restart_fold()
        assert state(behind) == expected
        assert [offset for offset, _ in payloads(behind)][-3:] == [end, end + 1, end + 2]
    with opened(path, **SETTINGS) as log:
        assert state(log) == expected


def test_an_index_entry_of_cut_bytes_misleads_no_reader(tmp_path: Path) -> None:
    """The dead append named places where none of the next batches begins."""
    path = str(tmp_path)
    with opened(path, **SETTINGS) as reader, opened(path, **SETTINGS) as repairer:
        for _ in range(3):
            reader.append(batch(1, size=100))
        index = tmp_path / "t-0" / file_name(0, INDEX)
        assert live(torn, path, many, faults=(("point", "kill", 4),)).killed
        left = index.read_bytes()
        assert reader.read(3, 4)[0].base_offset == 3
        while len(index.read_bytes()) < len(left) or repairer.log_end == 4:
            repairer.append(batch(5, size=20))
        assert len(index.read_bytes()) == len(left)
        for offset in reversed(range(repairer.log_end)):  # each one is looked up
            found = reader.read(offset, offset + 1)
            assert found[0].base_offset <= offset < found[0].next_offset


def test_a_mapping_contains_no_unpublished_bytes(tmp_path: Path) -> None:
    """A mapping of cut bytes would end in zeros, or in SIGBUS."""
    path = str(tmp_path)
    large = {"segment_bytes": REMAP_SIZE + 500_000}
    with opened(path, **large) as reader, opened(path, **large) as repairer:
        while reader.core.end_position <= REMAP_SIZE:
            repairer.append(batch(1, size=100_000))
        end = reader.log_end
        assert live(torn_large, path, large, faults=(("point", "kill", 3),)).killed
        found = reader.read(0, end, 2 * REMAP_SIZE)
        assert isinstance(found[0].data, np.ndarray), "read through the mapping"
        repairer.append(batch(1, size=600_000))  # cuts, and rolls, for it does not fit
        assert os.path.getsize(reader.segment(0).path()) == found[-1].position + len(found[-1].data)
        assert [offset for offset, _ in payloads(reader)] == list(range(repairer.log_end))


def torn_large(child: Child, path: str, settings: dict[str, int]) -> None:
    """Die after writing a batch that ends a segment which the next does not fill."""
    with opened(path, **settings) as log:
        child.armed()
        log.append(batch(1, size=300_000))


def test_retention_counts_no_unpublished_bytes(tmp_path: Path) -> None:
    """A dead writer's bytes in an empty log: no record of it is freed."""
    path = str(tmp_path)
    with opened(path, **SETTINGS, retention_bytes=0) as log:
        assert live(torn_first, path, faults=(("point", "kill", 3),)).killed
        assert log.segment(0).size() > 0
        assert apply_retention(log, 10**15) == 0
        assert log.log_start == log.log_end == 0


def torn_first(child: Child, path: str) -> None:
    """Dies once the bytes of the log's very first batch are in the file."""
    with opened(path, **SETTINGS) as log:
        child.armed()
        one(log)
