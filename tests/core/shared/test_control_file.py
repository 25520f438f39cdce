"""The number of slots that a control file contains, and the file's excess chunks."""

from __future__ import annotations

import os

import pytest

from eoslog._core import MAX_SLOTS, ControlFile
from eoslog.errors import InvalidPartitions
from eoslog.storage.directory.session import CHUNK_SIZE, CONTROL_FILE, Session

CHUNKS = 256


def test_a_slot_beyond_the_control_file_is_rejected(tmp_path):
    assert ControlFile.chunks_for(MAX_SLOTS - 1) == CHUNKS
    session = Session(str(tmp_path))
    with pytest.raises(InvalidPartitions, match=str(MAX_SLOTS)):
        session.ensure_slot(MAX_SLOTS)
    session.close()
    assert os.path.getsize(tmp_path / CONTROL_FILE) == CHUNK_SIZE


def test_a_longer_control_file_is_mapped_only_up_to_the_last_slot():
    fd = os.memfd_create("control")
    os.ftruncate(fd, (CHUNKS + 8) * CHUNK_SIZE)
    control = ControlFile(fd)
    control.map_chunks(CHUNKS + 8)
    assert control.slot_view(MAX_SLOTS - 1)["log_end"] == 0
    with pytest.raises(IndexError, match="not mapped"):
        control.slot_view(MAX_SLOTS)
    control.close()
    os.close(fd)
