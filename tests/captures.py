"""What real brokers left, packed in `tests/data`."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: Path, place: Path) -> None:
    """Extract an archive of `tests/data`."""
    with tarfile.open(archive) as tar:
        # Not an argument of `extractall`: 3.11.2, which Debian 12 has, does not know it.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(place)
