"""What kind of file system a directory lies on: some cannot keep eoslog's promises.

Locks, mappings and fsync of several processes must see one kernel; network and user-space file
systems do not give that, so writers are refused there.
"""

from __future__ import annotations

import os

from eoslog.errors import StorageError
from eoslog.storage import files

REFUSED = (
    *("nfs", "nfs4", "cifs", "smb3", "9p", "fuse", "fuseblk", "afs", "ceph", "glusterfs", "lustre"),
    *("virtiofs", "vboxsf", "beegfs", "gpfs"),
)
"""As `/proc/self/mountinfo` names them, up to a dot."""


def filesystem_type(path: str) -> str:
    """The type of the mount that a path lies on, "" when it cannot be told."""
    with files.naming(path):
        device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                left, _, right = line.partition(" - ")
                if left.split()[2] == wanted and right:
                    return right.split()[0]
    except OSError:
        pass
    return ""


def is_local(path: str) -> bool:
    """Whether the file system is known, and this kernel's alone."""
    return filesystem_type(path).split(".")[0] not in (*REFUSED, "")


def refuse_remote(path: str) -> None:
    """Raise StorageError where writers on different machines would not see each other's locks."""
    kind = filesystem_type(path)
    if kind.split(".")[0] in REFUSED:
        raise StorageError(
            f"{path} is on {kind}; eoslog writes on local file systems only. "
            "Read it with read_only=True while nobody writes",
            path=path,
        )
