"""Kafka's jars from Maven: by coordinates, pinned versions and checksums.

They are kept in a cache folder of the user (`EOSLOG_KAFKA_CACHE`, else `~/.cache/eoslog`), one folder
a version, and compared with `jars-<version>.sha256` at each run. As a program it fetches both
versions and prints where they are, or exits with 3 when Maven cannot be reached.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
DIRECTORIES = "3.9.2"
"""The last 3.x: its directories and tools."""
BEHAVIOUR = "4.3.1"
"""The newest release whose artifacts are all in Maven: the oracle of behaviour."""
UNREACHABLE = 3


class Unreachable(Exception):
    """Maven is missing or gives nothing."""


def cache() -> Path:
    """Where the jars of all versions are."""
    base = os.environ.get("EOSLOG_KAFKA_CACHE") or Path.home() / ".cache" / "eoslog"
    return Path(base)


def _compare(folder: Path, pins: Path) -> None:
    """Raise ValueError unless the folder holds exactly the pinned files."""
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.jar")
    }
    lines = pins.read_text().splitlines()
    pinned = {name: digest for digest, name in (line.split() for line in lines)}
    wrong = sorted(
        name for name in found.keys() | pinned.keys() if found.get(name) != pinned.get(name)
    )
    if wrong:
        raise ValueError(f"{folder}: not the jars of {pins.name}: {', '.join(wrong)}")


def fetch(version: str) -> Path:
    """The folder with the jars of a version of Kafka, fetched if not cached.

    Raises:
        Unreachable: there is no Maven, or it could not fetch them.
        ValueError: a jar has another checksum than the pinned one.
    """
    pins = HERE / f"jars-{version}.sha256"
    return _fetch(HERE / "pom.xml", f"kafka-{version}", pins, f"-Dkafka.version={version}")


def spark_connector() -> list[Path]:
    """The jars of Spark's own Kafka source and sink; raises as `fetch`."""
    pins = HERE / "jars-spark-connector.sha256"
    return sorted(_fetch(HERE / "spark-connector.xml", "spark-connector", pins).glob("*.jar"))


def _fetch(pom: Path, name: str, pins: Path, *args: str) -> Path:
    """The cache folder `name` with the run-time dependencies of a pom.

    Raises the errors of `fetch`.
    """
    folder = cache() / name
    if not folder.is_dir():
        cache().mkdir(parents=True, exist_ok=True)
        if shutil.which("mvn") is None:
            raise Unreachable("there is no mvn")
        with tempfile.TemporaryDirectory(dir=cache()) as place:
            got = Path(place) / "jars"
            made = subprocess.run(
                ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", *args,
                 "-DincludeScope=runtime", "-DexcludeArtifactIds=slf4j-reload4j",
                 f"-DoutputDirectory={got}"],
                capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            if made.returncode:
                raise Unreachable(f"mvn exits with {made.returncode}: {made.stdout[-500:]}")
            _compare(got, pins)
            with contextlib.suppress(OSError):  # another run was faster
                got.rename(folder)
    _compare(folder, pins)
    return folder


def main() -> int:
    """Fetch both versions."""
    for version in (DIRECTORIES, BEHAVIOUR):
        try:
            print(f"Kafka {version}: {fetch(version)}")
        except Unreachable as error:
            print(f"Kafka {version} cannot be fetched: {error}", file=sys.stderr)
            return UNREACHABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
