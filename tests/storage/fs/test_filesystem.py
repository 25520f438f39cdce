"""The file systems that keep eoslog's promises, by the names of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from eoslog.errors import StorageError
from eoslog.storage.fs import filesystem


def test_the_type_of_a_local_file_system_is_recognised(tmp_path: Path) -> None:
    assert filesystem.filesystem_type("/proc") == "proc"
    assert filesystem.is_local(str(tmp_path))
    filesystem.refuse_remote(str(tmp_path))


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse.sshfs", "fuseblk", "9p"])
def test_writing_to_a_remote_file_system_is_rejected(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "filesystem_type", lambda path: kind)
    assert not filesystem.is_local("/somewhere")
    with pytest.raises(StorageError, match=f"is on {kind}"):
        filesystem.refuse_remote("/somewhere")


def test_an_unknown_file_system_is_writable_but_not_local(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filesystem, "filesystem_type", lambda path: "")
    assert not filesystem.is_local("/somewhere")
    filesystem.refuse_remote("/somewhere")
