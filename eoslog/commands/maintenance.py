"""`eoslog init, dump, check, repair, backup, locks, stats, durability, demo`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

import eoslog
from eoslog.commands.face import EXIT_CORRUPT, Face, counted

READ_ONLY_ANYWAY = click.option(
    "--read-only-anyway", is_flag=True, help="Read though a broker is running on the directory."
)


@click.command()
@click.option(
    "--durability", type=click.Choice(["strict", "os"]), default=None, show_default="strict",
    help="strict: acknowledged means on the disk; os: in the page cache.",
)  # fmt: skip
@click.pass_obj
def init(face: Face, durability: str | None) -> None:
    """Make the directory a log; harmless where it is one."""
    with eoslog.open(face.directory, durability=durability) as log:
        face.say(f"{os.path.abspath(face.directory)}: durability {log.durability}")


@click.command()
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("--records/--no-records", default=True, help="Decode the records too.")
@click.option(
    "--decoder", type=click.Choice(["offsets", "transactions"]), default=None,
    help="Decode the records of __consumer_offsets or __transaction_state further.",
)  # fmt: skip
@READ_ONLY_ANYWAY
@click.pass_obj
def dump(
    face: Face, paths: tuple[str, ...], records: bool, decoder: str | None, read_only_anyway: bool
) -> None:
    """Decode Kafka's files.

    FILE... are .log, .index, .timeindex, .txnindex or .snapshot files, or partition directories.
    They may be eoslog's or those of a real broker. Exit code 5 if something is damaged.
    """
    found = {
        path: eoslog.inspect(
            path, records=records, decoder=decoder, read_only_anyway=read_only_anyway
        )
        for path in paths
    }
    if face.form == "json":
        face.show_one(found if len(found) > 1 else next(iter(found.values())))
    elif face.form == "jsonl":
        for path, content in found.items():
            face.show_one({"path": path, **content})
    else:
        for path, content in found.items():
            if len(found) > 1:
                face.say(f"== {path}")
            _dump_tables(face, content)
    if any(map(_damaged, found.values())):
        raise click.exceptions.Exit(EXIT_CORRUPT)


def _damaged(content: Any) -> bool:
    if isinstance(content, dict):
        wrong = content.get("valid") is False or bool(
            content.get("error") or content.get("corrupt")
        )
        return wrong or any(map(_damaged, content.values()))
    return isinstance(content, list) and any(map(_damaged, content))


_BATCH = (
    "base_offset", "last_offset", "count", "position", "size", "compression", "producer_id",
    "producer_epoch", "base_sequence", "transactional", "control", "valid",
)  # fmt: skip


def _dump_tables(face: Face, content: dict[str, Any]) -> None:
    single = {k: v for k, v in content.items() if not isinstance(v, list | dict)}
    if single and face.form == "table":
        face.show_one(single)
    for segment in content.get("segments", [content] if "batches" in content else []):
        batches = segment.get("batches") or []
        face.show([{name: batch.get(name) for name in _BATCH} for batch in batches], _BATCH)
        rows = [row for batch in batches for row in batch.get("records") or []]
        if rows:
            columns: tuple[str, ...] = ("offset", "timestamp", "key", "value", "control_type")
            if any("decoded" in row for row in rows):
                columns = ("offset", "timestamp", "decoded", "control_type")
            face.show([_readable(row) for row in rows], columns)
    for name in ("offset_index", "time_index"):
        if content.get(name) and "batches" not in content:
            face.show([{"offset" if name[0] == "o" else "timestamp": a,
                        "position" if name[0] == "o" else "offset": b}
                       for a, b in content[name]])  # fmt: skip
    if content.get("txn_index") and "batches" not in content:
        face.show(content["txn_index"])
    for name, entries in (content.get("snapshots") or {}).items():
        face.say(name)
        face.show([entries] if isinstance(entries, dict) else entries)


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    shown = dict(row)
    for name in ("key", "value"):
        if isinstance(row.get(name), str) and row.get("control_type") is None:
            shown[name] = bytes.fromhex(row[name])
    return shown


@click.command()
@click.argument(
    "paths", metavar="[PATH]...", nargs=-1, type=click.Path(exists=True, file_okay=False)
)
@click.option("--full", is_flag=True, help="Decode every record too, not only the checksums.")
@READ_ONLY_ANYWAY
@click.pass_obj
def check(face: Face, paths: tuple[str, ...], full: bool, read_only_anyway: bool) -> None:
    """Read everything and say what is wrong.

    PATH... are directories of a real broker, or partition directories, instead of the log of -d.
    Exit code 5 if anything is wrong.
    """
    with _working(face, "check"):
        if paths:
            report = eoslog.check(*paths, full=full, read_only_anyway=read_only_anyway)
        else:
            with face.log(read_only=True) as log:
                report = log.check(full=full)
    show_problems(face, report.problems)
    face.say(
        f"{counted(report.partitions, 'partition')}, "
        f"{report.batches} {'batch' if report.batches == 1 else 'batches'}, "
        f"{counted(report.records, 'record')}: "
        + ("all well" if report.ok else counted(len(report.problems), "problem"))
    )
    if not report.ok:
        raise click.exceptions.Exit(EXIT_CORRUPT)


@click.command()
@click.argument("path", required=False, type=click.Path(exists=True, file_okay=False))
@click.option(
    "--mode", type=click.Choice(["report", "cut", "as-kafka"]), show_default="report",
    help="report: change nothing; cut: drop what is damaged; as-kafka: what a broker would do.",
)  # fmt: skip
@click.option("--cut", is_flag=True, help="The same as --mode cut.")
@click.option("--as-kafka", is_flag=True, help="The same as --mode as-kafka.")
@click.pass_obj
def repair(face: Face, path: str | None, mode: str | None, cut: bool, as_kafka: bool) -> None:
    """Find damage in PATH (default: the directory of -d) and mend it, as --mode says.

    Nobody may have the directory open. With --as-kafka it may be a stopped broker's log directory,
    or one partition directory of it.

    Exit code 5 if there is damage and it was only reported.
    """
    asked = {
        name
        for name, given in ((mode or "report", mode), ("cut", cut), ("as-kafka", as_kafka))
        if given
    }
    if len(asked) > 1:
        raise click.UsageError("--mode, --cut and --as-kafka exclude each other")
    chosen = asked.pop() if asked else "report"
    with _working(face, f"repair ({chosen})"):
        report = eoslog.repair(path or face.directory, mode=chosen)
    show_problems(face, report.problems)
    gone = f", {counted(report.bytes_cut, 'byte')} cut" if report.bytes_cut else ""
    found = counted(len(report.problems), "problem")
    face.say(f"{counted(report.partitions, 'partition')}, {found}{gone}")
    if not report.ok and chosen == "report":
        raise click.exceptions.Exit(EXIT_CORRUPT)


@click.command()
@click.argument("target", type=click.Path())
@click.option("--check/--no-check", default=True, help="Read the copy again by its checksums.")
@click.pass_obj
def backup(face: Face, target: str, check: bool) -> None:
    """Copy the log into the new directory TARGET while it is in use.

    The copy is the log at one instant: what was committed by then is in it, whole, and what was
    open is aborted in it. Restore it by opening it, or by moving it to the log's place.

    Exit code 5 if the check finds damage: it is in the log too.
    """
    with face.log() as log, face.progress(of="bytes") as bar:
        task = bar.add_task("backup", total=None)
        report = log.backup(
            target, check=check,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )  # fmt: skip
    show_problems(face, report.problems)
    face.say(f"{report.path}: {counted(report.partitions, 'partition')}, {report.bytes} bytes")
    if report.problems:
        raise click.exceptions.Exit(EXIT_CORRUPT)


def show_problems(face: Face, problems: Any) -> None:
    """Print what a check, a repair or an import found."""
    columns = ("path", "position", "message", "lost_records")
    rows = [{name: getattr(problem, name) for name in columns} for problem in problems]
    if rows or face.form in ("json", "csv"):
        face.show(rows, columns)


@contextlib.contextmanager
def _working(face: Face, what: str) -> Iterator[None]:
    with face.progress(of="") as bar:
        bar.add_task(what, total=None)
        yield


@click.command()
@click.pass_obj
def locks(face: Face) -> None:
    """List the processes that have the directory open.

    With the append locks that they hold: one that is held for long belongs to a process that is
    stopped or stuck. It is never overtaken, others get a LockTimeout that names it.
    """
    place = os.path.realpath(face.directory)
    if not os.path.exists(os.path.join(place, "meta.properties")):
        raise FileNotFoundError(f"{place} is no log (`eoslog init` makes one)")
    held_by = _append_locks(place)
    rows = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        opened = set()
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{name}/fd"):
                target = os.readlink(f"/proc/{name}/fd/{fd}")
                if target.startswith(place + os.sep):
                    opened.add(os.path.relpath(target, place))
        if "eoslog.process" in opened:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                command = file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
            partitions = {path.split(os.sep)[0] for path in opened if os.sep in path}
            rows.append(
                {
                    "pid": int(name),
                    "partitions": len(partitions),
                    "holds": held_by.get(int(name), []),
                    "command": command,
                }
            )
    face.show(sorted(rows, key=lambda row: row["pid"]), ("pid", "partitions", "holds", "command"))


def _append_locks(place: str) -> dict[int, list[str]]:
    """By process id, "topic-partition for 1.5 s" of each append lock held at this moment."""
    found: dict[int, list[str]] = {}
    with eoslog.open(place, read_only=True) as log:
        for partition, held in log.locks().items():
            found.setdefault(held.pid, []).append(f"{partition} for {held.seconds:.1f} s")
    return found


@click.command()
@click.pass_obj
def stats(face: Face) -> None:
    """Print counts, sizes and lags.

    Exit code 5 if partitions are offline: they are named, the others are shown.
    """
    with face.log() as log:
        found = log.stats()
    offline = found["offline"]
    if face.form in ("json", "jsonl"):
        face.show_one(found)
    else:
        partitions = found.pop("partitions")
        if face.form == "table":
            face.show_one(found)
            click.echo()
        face.show([{"partition": name, **about} for name, about in partitions.items()])
    face.end_if_offline(offline)


@click.command()
@click.option("-t", "--topic", default=None, help="One topic, an internal one too; all without.")
@click.option(
    "--roll", is_flag=True, help="Seal the active segments first: they are never cleaned."
)
@click.pass_obj
def compact(face: Face, topic: str | None, roll: bool) -> None:
    """Clean now: compaction and retention.

    What goes is what the topics' policies say. Other processes may have the directory open; they do
    the same by themselves when it is due.
    """
    with face.log() as log, _working(face, "compact"):
        freed = log.clean(topic, roll=roll)
    face.show(
        [
            {"partition": f"{tp.topic}-{tp.partition}", "freed_bytes": size}
            for tp, size in freed.items()
        ],
        ("partition", "freed_bytes"),
    )


@click.command()
@click.pass_obj
def durability(face: Face) -> None:
    """Print what an acknowledgement means in this directory."""
    with face.log(read_only=True) as log:
        kept = log.durability
    meaning = {
        "strict": "on the disk: survives a power cut",
        "os": "in the page cache: survives a kill",
    }
    face.show_one({"durability": kept, "acknowledged": meaning[kept]})


@click.group()
def demo() -> None:
    """See it at work."""


@demo.command("flights")
@click.option(
    "--dir", "place", default=None, help="Where to work; emptied first if it is a demo's."
)
@click.option("--keep", is_flag=True, help="Leave the directory to play with.")
@click.option("--limit", type=int, help="Only so many flights.")
@click.option("--no-spark", is_flag=True, help="Aggregate with Arrow instead.")
def flights(place: str | None, keep: bool, limit: int | None, no_spark: bool) -> None:
    """Take 336,776 flights through kills and zombies.

    Lost acknowledgements, aborts and a crash too; at the end every one is counted exactly once.
    """
    from eoslog.demo import flights as job

    code = job.run(place or job.DEFAULT_DIRECTORY, keep=keep, limit=limit, spark=not no_spark)
    if code:
        sys.stdout.flush()
        raise click.exceptions.Exit(code)


COMMANDS = (init, dump, check, repair, backup, locks, stats, compact, durability, demo)
