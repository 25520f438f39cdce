"""What a session reads about the end of the last one."""

from __future__ import annotations

from pathlib import Path

import pytest

import eoslog
from eoslog.storage.directory.last_run import LastRun
from eoslog.storage.directory.session import POISON_FILE


@pytest.mark.parametrize(
    ("text", "poisoned"),
    [
        (b"\norders 0\n\npaid 12\n", {("orders", 0), ("paid", 12)}),
        (b"\norders 0\n\npaid", {("orders", 0)}),
        (b"\norders 0\n\npaid \n\npaid 3\n", {("orders", 0), ("paid", 3)}),
        (b"\norders 0\npai\npaid 3\n", {("orders", 0), ("paid", 3)}),  # torn, then another process
        (b"\norders 0\n\xff\xfe 1x\n", {("orders", 0)}),
        (b"", set()),
    ],
)
def test_a_torn_line_of_the_poison_file_hides_no_other_line(
    tmp_path: Path, text: bytes, poisoned: set[tuple[str, int]]
) -> None:
    with eoslog.open(tmp_path / "d") as log:
        (tmp_path / "d" / POISON_FILE).write_bytes(text)
        assert LastRun.read(log.path, log._engine.session).poisoned == poisoned
