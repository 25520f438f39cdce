"""Instructions of the five hottest kernels, counted by callgrind.

The counts are repeatable where times are not.

Usage: python -m bench.instructions [--write]

It compares with the instructions.json next to this file and exits with 1 if a kernel takes more
than LIMIT above the stored count. The counts belong to one compiler and one Python, which are
stored with them. With others the counts are only printed.

Collection is switched on while a kernel's entry point runs, so that nothing else is counted:
neither the interpreter around it nor other threads.
"""

from __future__ import annotations

import json
import os
import pickle
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from bench import data

KEPT = Path(__file__).with_suffix(".json")
SOURCE = os.environ.get("EOSLOG_SOURCE")
LIMIT = 0.03
TIMES = 5
PER_BATCH, BATCHES = 125, 8
RECORDS = PER_BATCH * BATCHES
_TIME_MS = 1_700_000_000_000


KERNELS = {
    "encode": ("build_batch", RECORDS),
    "decode": ("decode_records", RECORDS),
    "scan to columns": (r"ColumnDecoder_\d+feed", RECORDS),
    "CRC-32C (KiB)": ("crc32c", 1024),
    "append": (r"9Partition_\d+append", RECORDS),
}
"""By name: its entry point (a pattern: Cython numbers them), and how many records (CRC: KiB) it handles."""
_ENTRY = r"__pyx_pw_6eoslog_5_core_\d*"


def work(place: Path, batches: list[bytes]) -> None:
    """Run each kernel TIMES times under valgrind; no other code uses its entry point."""
    import eoslog
    from eoslog import _core

    groups = [
        [(_TIME_MS, key, value, ()) for key, value in zip(
            data.keys(RECORDS)[at : at + PER_BATCH], data.values(RECORDS)[at : at + PER_BATCH],
            strict=True)]
        for at in range(0, RECORDS, PER_BATCH)
    ]  # fmt: skip
    log = b"".join(batches)
    megabyte = data.values(1, 1 << 20)[0]
    decoder = _core.ColumnDecoder(["offset", "value"])
    # As producers hand them over: what is read-only is copied, and callgrind counts `rep movsb` by the byte.
    writable = [bytearray(batch) for batch in batches]
    with eoslog.open(place / "log", durability="os") as opened:
        opened.create_topic(data.TOPIC)
        partition = opened._engine.partition(data.TOPIC, 0)
        for _ in range(TIMES):
            for group in groups:
                _core.build_batch(group)
            _core.decode_records("t", 0, log, 0, RECORDS, None, RECORDS)
            decoder.feed(log, 0, 0, RECORDS)
            decoder.take()
            _core.crc32c(megabyte)
            for batch in writable:
                partition.append(batch)


def counted() -> tuple[dict[str, float], str]:
    """Instructions per record of each kernel, and valgrind's kind of CRC-32C."""
    from eoslog import _core

    symbols = output(["nm", _core.__file__])
    entries = {name: re.search(rf"\b{_ENTRY}{entry}$", symbols, re.MULTILINE)
               for name, (entry, _) in KERNELS.items()}  # fmt: skip
    if missing := [name for name, found in entries.items() if found is None]:
        raise SystemExit(f"the compiled module has no entry point of {missing}")
    names = {name: found[0] for name, found in entries.items() if found}
    with tempfile.TemporaryDirectory() as place:
        Path(place, "batches").write_bytes(pickle.dumps(data.batches(RECORDS, PER_BATCH)))
        backend = output(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={place}/out",
             *(f"--toggle-collect={name}" for name in names.values()), sys.executable, "-m",
             "bench.instructions", "--work", place]
        )  # fmt: skip
        table = output(["callgrind_annotate", "--inclusive=yes", "--threshold=100", f"{place}/out"])
    counts = {}
    for name, symbol in names.items():
        found = re.search(rf"^ *([\d,]+) \(.*:{symbol} \[", table, re.MULTILINE)
        if found is None:
            raise SystemExit(f"callgrind has not counted {name!r}: {table[:2000]}")
        counts[name] = round(int(found[1].replace(",", "")) / TIMES / KERNELS[name][1], 1)
    return counts, backend.strip()


def output(command: list[str]) -> str:
    """What a command prints; SystemExit with its end where it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONHASHSEED": "0"}, cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{command[0]} exits with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def machine(crc32c: str) -> dict[str, str]:
    """What the counts depend on."""
    compiler = subprocess.run(
        [(sysconfig.get_config_var("CC") or "cc").split()[0], "-dumpfullversion"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    return {
        "python": platform.python_version(), "compiler": compiler, "machine": platform.machine(),
        "crc32c": crc32c,
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    """Count, compare, and keep with --write."""
    if arguments[:1] == ["--work"]:
        from eoslog import _core

        print(_core.crc32c_backend)
        place = Path(arguments[1])
        work(place, pickle.loads((place / "batches").read_bytes()))
        return 0
    if shutil.which("valgrind") is None:
        print("there is no valgrind: apt-get install valgrind", file=sys.stderr)
        return 2
    write = "--write" in arguments
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {"on": {}, "instructions": {}}
    counts, crc32c = counted()
    on = machine(crc32c)
    comparable = kept["on"] == on
    worse = 0
    print(f"{'a record':<18}{'instructions':>13}{'kept':>9}{'change':>9}")
    for name, now in counts.items():
        before = kept["instructions"].get(name)
        change = now / before - 1 if before else 0.0
        worse += comparable and change > LIMIT
        print(f"{name:<18}{now:>13,.1f}{before or 0:>9,.1f}{change:>9.1%}")
    if not comparable and kept["on"]:
        print(f"what is kept was counted on {kept['on']}, this is {on}: not compared")
    if worse:
        print(f"{worse} of {len(counts)} take more than {LIMIT:.0%} above what is kept: "
              "mend it, or keep the new counts (--write) and say why")  # fmt: skip
    if write:
        target = Path(SOURCE) / "bench" / KEPT.name if SOURCE else KEPT
        target.write_text(json.dumps({"on": on, "instructions": counts}, indent=2) + "\n")
    return int(worse > 0 and not write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
