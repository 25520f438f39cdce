"""A flush of bytes that are older than its descriptors: each is written again and read back, once
(protocol.md row 7), however many segments they lie in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.storage.helpers import batch, opened

SEGMENTS = 30


def test_each_segment_is_written_again_and_read_back_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(str(tmp_path), strict=False) as writer, opened(str(tmp_path), strict=False) as late:
        for _ in range(SEGMENTS):
            writer.append(batch(2))
            writer.roll()
        late.fold()
        asked: list[tuple[int, int]] = []
        read = late.reader.read

        def noted(start: int, end: int, max_bytes: int) -> Any:
            asked.append((start, end))
            return read(start, end, max_bytes)

        monkeypatch.setattr(late.reader, "read", noted)
        late.sync()
        # It has had a descriptor of the first one since before there was anything in it.
        assert asked == [(at, at + 2) for at in range(2, 2 * SEGMENTS, 2) for _ in "wr"]
        assert late.durable_end == 2 * SEGMENTS


def test_where_all_was_deleted_there_is_nothing_to_flush(tmp_path: Path) -> None:
    with opened(str(tmp_path), strict=False) as log:
        log.append(batch(2))
        log.delete_records(2)
        log.sync()
        assert log.durable_end == 2
