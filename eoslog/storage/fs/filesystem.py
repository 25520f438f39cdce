"""The file systems on which eoslog writes.

Locks, mappings and fsync of all processes must be handled by one kernel. Network and user-space
file systems do not guarantee that, so writers are rejected there.
"""

from __future__ import annotations

import os

from eoslog.errors import StorageError
from eoslog.storage.fs import files

REFUSED = (
    *("nfs", "nfs4", "cifs", "smb3", "9p", "fuse", "fuseblk", "afs", "ceph", "glusterfs", "lustre"),
    *("virtiofs", "vboxsf", "beegfs", "gpfs"),
)
"""As `/proc/self/mountinfo` names them, up to a dot."""


def filesystem_type(path: str) -> str:
    """Return the type of the file system of a path, "" if unknown."""
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
    """Whether the file system is known, and used by this kernel alone."""
    return filesystem_type(path).split(".")[0] not in (*REFUSED, "")


def refuse_remote(path: str) -> None:
    """Raise StorageError if writers on different machines would not see each other's locks."""
    kind = filesystem_type(path)
    if kind.split(".")[0] in REFUSED:
        raise StorageError(
            f"{path} is on {kind}, and eoslog writes on local file systems only; move it to a "
            "local disk, or read it with read_only=True while no process writes",
            path=path,
        )
