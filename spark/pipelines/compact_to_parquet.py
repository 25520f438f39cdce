"""A topic into Parquet files, each record exactly once, by a manifest.

    spark-submit spark/pipelines/compact_to_parquet.py --dir DIR --topic flights --out TABLE

    TABLE/data/VERSION-TOKEN/*.parquet     what one run wrote
    TABLE/manifest/VERSION.json            the runs that count: offsets, folder, number of rows

A run reads from the end of the last manifest to a snapshot of the topic and writes its files under
a name of its own. Then it creates the next manifest with `link`, which fails if that number exists:
this step decides. A run that dies earlier leaves files without a manifest, which the next run
removes. A run that loses the race removes its own. Readers list `files`, or read one version.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def manifests(table: Path) -> list[dict[str, Any]]:
    """The manifests of a table in order."""
    found = sorted((table / "manifest").glob("*.json"), key=lambda path: int(path.stem))
    return [json.loads(path.read_text()) for path in found]


def files(table: Path) -> list[str]:
    """The folders that count."""
    return [str(table / "data" / one["folder"]) for one in manifests(table) if one["rows"]]


def snapshot(directory: str, topic: str, known: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Return where each partition resumes, and where complete transactions end now."""
    import eoslog

    with eoslog.open(directory, create=False) as log:
        return {
            str(tp.partition): (
                known.get(str(tp.partition), log.offsets(topic, tp.partition).log_start), end,
            )
            for tp, end in log.snapshot([topic]).items()
        }  # fmt: skip


def compact(spark: SparkSession, directory: str, topic: str, table: Path) -> int:
    """Add the new records of `topic` to the table; return the number of rows.

    Raises:
        RuntimeError: if another run was faster (run again), or if the topic was re-created.
    """
    done = manifests(table)
    (table / "manifest").mkdir(parents=True, exist_ok=True)
    (table / "data").mkdir(exist_ok=True)
    ranges = snapshot(directory, topic, done[-1]["ends"] if done else {})
    beyond = {p: span for p, span in ranges.items() if span[0] > span[1]}
    if beyond:
        raise RuntimeError(
            f"{table}: the table has more records of {topic!r} than the topic, partition: (next "
            f"offset, end) {beyond}; the topic was re-created, so choose another --out"
        )
    if all(start == end for start, end in ranges.values()):
        return 0
    version = len(done)
    folder = f"{version:06d}-{uuid.uuid4().hex[:8]}"
    frame = spark.read.format("eoslog").options(
        path=directory,
        subscribe=topic,
        startingOffsets=json.dumps({topic: {p: start for p, (start, _) in ranges.items()}}),
        endingOffsets=json.dumps({topic: {p: end for p, (_, end) in ranges.items()}}),
    )
    frame.load().write.parquet(str(table / "data" / folder))
    rows = spark.read.parquet(str(table / "data" / folder)).count()
    ends = {p: end for p, (_, end) in ranges.items()}
    _flush(table / "data" / folder)
    manifest = {"topic": topic, "version": version, "folder": folder, "rows": rows, "ends": ends}
    if not _decide(table, version, manifest):
        shutil.rmtree(table / "data" / folder)
        raise RuntimeError(f"{table}: another run wrote version {version} first; run this again")
    _sweep(table)
    return rows


def _flush(folder: Path) -> None:
    """Make files and their names durable: the manifest that names the folder will be."""
    for path in (*folder.iterdir(), folder, folder.parent):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def _decide(table: Path, version: int, manifest: dict[str, Any]) -> bool:
    """Make the manifest of a version, durably, unless there is one."""
    draft = table / "manifest" / f".{uuid.uuid4().hex}"
    with draft.open("w") as file:
        json.dump(manifest, file)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, table / "manifest" / f"{version}.json")
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    folder = os.open(table / "manifest", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    return True


def _sweep(table: Path) -> None:
    """Remove the files of runs that died early: old versions without a manifest."""
    done = manifests(table)
    named = {one["folder"] for one in done}
    for path in (table / "data").iterdir():
        if path.name not in named and int(path.name.split("-")[0]) < len(done) - 1:
            shutil.rmtree(path)


def main() -> None:
    """Run with what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    for option in ("--dir", "--topic", "--out"):
        parser.add_argument(option, required=True)
    given = parser.parse_args()
    spark = session("compact to parquet")
    print(compact(spark, given.dir, given.topic, Path(given.out)), "rows added")
    spark.stop()


if __name__ == "__main__":
    main()
