"""The control file: how many slots fit in, and what lies behind them."""

from __future__ import annotations

import os

import pytest

from eoslog._core import MAX_SLOTS, ControlFile
from eoslog.errors import InvalidPartitions
from eoslog.storage.session import CHUNK_SIZE, CONTROL_FILE, Session

CHUNKS = 256


def test_a_slot_that_no_control_file_holds_is_refused(tmp_path):
    assert ControlFile.chunks_for(MAX_SLOTS - 1) == CHUNKS
    session = Session(str(tmp_path))
    with pytest.raises(InvalidPartitions, match=str(MAX_SLOTS)):
        session.ensure_slot(MAX_SLOTS)
    session.close()
    assert os.path.getsize(tmp_path / CONTROL_FILE) == CHUNK_SIZE


def test_a_longer_file_is_mapped_as_far_as_it_is_of_use():
    fd = os.memfd_create("control")
    os.ftruncate(fd, (CHUNKS + 8) * CHUNK_SIZE)
    control = ControlFile(fd)
    control.map_chunks(CHUNKS + 8)
    assert control.slot_view(MAX_SLOTS - 1)["log_end"] == 0
    with pytest.raises(IndexError, match="not mapped"):
        control.slot_view(MAX_SLOTS)
    control.close()
    os.close(fd)
