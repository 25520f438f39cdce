"""Instructions that the five hottest kernels take, by callgrind: repeatable where times are not.

Usage: python -m bench.instructions [--write] [KERNEL...]; compares with instructions.json beside
this file and exits with 1 when one takes more than LIMIT above what is kept there. The counts
belong to one compiler and one Python, which are kept with them; elsewhere they are only printed.

Collection is switched on while the kernel's entry point runs, so that nothing else is counted:
neither the interpreter around it nor other threads.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import data

KEPT = Path(__file__).with_suffix(".json")
SOURCE = os.environ.get("EOSLOG_SOURCE")
LIMIT = 0.03
TIMES = 5
PER_BATCH, BATCHES = 125, 8
RECORDS = PER_BATCH * BATCHES
_TIME_MS = 1_700_000_000_000


def kernels(place: Path) -> tuple[dict[str, tuple[Callable[[], object], int]], Any]:
    """By name: what runs it once, and how many records (CRC: KiB) that handles; an open log."""
    import eoslog
    from eoslog import _core

    groups = [
        [(_TIME_MS, key, value, ()) for key, value in zip(
            data.keys(RECORDS)[at : at + PER_BATCH], data.values(RECORDS)[at : at + PER_BATCH],
            strict=True)]
        for at in range(0, RECORDS, PER_BATCH)
    ]  # fmt: skip
    batches = data.batches(RECORDS, PER_BATCH)
    log = b"".join(batches)
    megabyte = data.values(1, 1 << 20)[0]
    decoder = _core.ColumnDecoder(["offset", "value"])
    opened = eoslog.open(place / "log", durability="os")
    opened.create_topic(data.TOPIC)
    partition = opened.engine.partition(data.TOPIC, 0)

    def encode() -> None:
        for group in groups:
            _core.build_batch(group)

    def decode() -> None:
        _core.decode_records("t", 0, log, 0, RECORDS, None, RECORDS)

    def scan() -> None:
        decoder.feed(log, 0, 0, RECORDS)
        decoder.take()

    def append() -> None:
        for batch in batches:
            partition.append(batch)

    return {
        "encode": (encode, RECORDS),
        "decode": (decode, RECORDS),
        "scan to columns": (scan, RECORDS),
        "CRC-32C (KiB)": (lambda: _core.crc32c(megabyte), 1024),
        "append": (append, RECORDS),
    }, opened


ENTRIES = {
    "encode": "build_batch",
    "decode": "decode_records",
    "scan to columns": "ColumnDecoder_*feed",
    "CRC-32C (KiB)": "crc32c",
    "append": "9Partition_*append",
}
"""The Cython wrappers' names after the module's, without their numbers."""


def work(name: str) -> None:
    """What runs under valgrind."""
    with tempfile.TemporaryDirectory() as place:
        made, log = kernels(Path(place))
        with log:
            for _ in range(TIMES):
                made[name][0]()


def counted(name: str) -> int:
    """Instructions of TIMES runs of a kernel."""
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={place}/out",
             f"--toggle-collect=__pyx_pw_6eoslog_5_core_*{ENTRIES[name]}", sys.executable, "-m",
             "bench.instructions", "--work", name],
            capture_output=True, text=True, stdin=subprocess.DEVNULL,
            env=os.environ | {"PYTHONHASHSEED": "0"}, cwd=Path(__file__).parent.parent,
        )  # fmt: skip
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or found is None or found.group(1) == "0":
        raise SystemExit(f"valgrind exits with {done.returncode}: {done.stderr[-2000:]}")
    return int(found.group(1))


def machine() -> dict[str, str]:
    """What the counts depend on."""
    from eoslog import _core

    compiler = subprocess.run(
        [(sysconfig.get_config_var("CC") or "cc").split()[0], "-dumpfullversion"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    return {
        "python": platform.python_version(), "compiler": compiler, "machine": platform.machine(),
        "crc32c": _core.crc32c_backend,
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    """Count, compare, and keep with --write."""
    if arguments[:1] == ["--work"]:
        work(arguments[1])
        return 0
    if shutil.which("valgrind") is None:
        print("there is no valgrind: apt-get install valgrind", file=sys.stderr)
        return 2
    write = "--write" in arguments
    with tempfile.TemporaryDirectory() as place:
        made, log = kernels(Path(place))
        log.close()
    wanted = [name for name in made if name in arguments] or list(made)
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {"on": {}, "instructions": {}}
    comparable = kept["on"] == machine()
    worse = 0
    print(f"{'a record':<18}{'instructions':>13}{'kept':>9}{'change':>9}")
    for name in wanted:
        now = round(counted(name) / TIMES / made[name][1], 1)
        before = kept["instructions"].get(name)
        change = now / before - 1 if before else 0.0
        worse += comparable and change > LIMIT
        print(f"{name:<18}{now:>13,.1f}{before or 0:>9,.1f}{change:>9.1%}", flush=True)
        kept["instructions"][name] = now
    if not comparable and kept["on"]:
        print(f"what is kept was counted on {kept['on']}, this is {machine()}: not compared")
    if write:
        target = Path(SOURCE) / "bench" / KEPT.name if SOURCE else KEPT
        target.write_text(json.dumps(kept | {"on": machine()}, indent=2) + "\n")
    return int(worse > 0 and not write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
