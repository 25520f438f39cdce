"""What brokers and earlier versions left, packed in `tests/data`."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tests.paths import KAFKA_DATA


def unpack(archive: Path, place: Path) -> None:
    """Extract an archive of `tests/data`."""
    with tarfile.open(archive) as tar:
        # Not an argument of `extractall`: 3.11.2, which Debian 12 has, does not know it.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(place)


def extract(archive: str, place: Path, *, without: str = "/nothing") -> Path:
    """Extract an archive, except the files with a text in their names."""
    with tarfile.open(KAFKA_DATA / archive) as tar:
        for member in tar:
            path = place / member.name
            if without in member.name:
                continue
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif member.isfile():
                path.parent.mkdir(parents=True, exist_ok=True)
                data = tar.extractfile(member)
                assert data is not None
                path.write_bytes(data.read())
    return place
