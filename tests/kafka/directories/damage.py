"""Seeded damage to a partition directory that a killed broker left."""

from __future__ import annotations

import random
from pathlib import Path

KINDS = ("cut", "flip", "junk", "zeros", "drop", "snapshots")


def damage(directory: Path, seed: int) -> str:
    """Damage one partition directory in place; what was done, in words."""
    r = random.Random(seed)
    logs = sorted(directory.glob("*.log"))
    kind = KINDS[seed % len(KINDS)]
    if kind == "cut":
        log = r.choice([path for path in logs[-2:] if path.stat().st_size] or logs[-2:-1])
        at = r.randrange(log.stat().st_size)
        log.write_bytes(log.read_bytes()[:at])
        return f"{log.name} cut at byte {at}"
    if kind == "flip":
        log = r.choice([path for path in logs if path.stat().st_size])
        data = bytearray(log.read_bytes())
        at = r.randrange(len(data))
        data[at] ^= 1 << r.randrange(8)
        log.write_bytes(data)
        return f"a bit of {log.name} flipped in byte {at}"
    if kind in ("junk", "zeros"):
        size = r.randrange(1, 5000)
        with logs[-1].open("ab") as file:
            file.write(r.randbytes(size) if kind == "junk" else bytes(size))
        return f"{size} bytes of {kind} behind {logs[-1].name}"
    if kind == "drop":
        gone = r.choice(sorted([*directory.glob("*.snapshot"), *directory.glob("*index")]))
        gone.unlink()
        return f"{gone.name} removed"
    snapshots = sorted(directory.glob("*.snapshot"))[-2:]
    for path in snapshots:
        path.write_bytes(path.read_bytes()[:-3])
    return f"{len(snapshots)} snapshots cut short"
