"""Which file systems keep eoslog's promises, by the names that the kernel gives them."""

from __future__ import annotations

from pathlib import Path

import pytest

from eoslog.errors import StorageError
from eoslog.storage import filesystem


def test_the_file_system_of_a_path_is_told(tmp_path: Path) -> None:
    assert filesystem.filesystem_type("/proc") == "proc"
    assert filesystem.is_local(str(tmp_path))
    filesystem.refuse_remote(str(tmp_path))


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse.sshfs", "fuseblk", "9p"])
def test_what_others_may_change_is_no_place_to_write(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "filesystem_type", lambda path: kind)
    assert not filesystem.is_local("/somewhere")
    with pytest.raises(StorageError, match=f"is on {kind}"):
        filesystem.refuse_remote("/somewhere")


def test_what_cannot_be_told_may_be_written_but_is_not_taken_for_local(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filesystem, "filesystem_type", lambda path: "")
    assert not filesystem.is_local("/somewhere")
    filesystem.refuse_remote("/somewhere")
