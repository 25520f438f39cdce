"""The commands init, dump, backup, locks, stats, compact, durability and demo."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

import eoslog
from eoslog.commands.care import READ_ONLY_ANYWAY, show_problems, working
from eoslog.commands.context import EXIT_CORRUPT, CliContext, counted


@click.command()
@click.option(
    "--durability", type=click.Choice(["strict", "os"]), default=None, show_default="strict",
    help="strict: acknowledged data survives power loss; os: it survives a killed process.",
)  # fmt: skip
@click.option(
    "--mode", callback=lambda _, __, value: _mode(value), metavar="OCTAL", show_default="700",
    help="Permissions of the directory and its files, regardless of the umask; 770 shares them "
    "with the users of its group.",
)  # fmt: skip
@click.pass_obj
def init(context: CliContext, durability: str | None, mode: int | None) -> None:
    r"""Create the log of -d; an existing log is not changed.

    \b
    Examples:
      eoslog -d shop init
      eoslog -d shop init --durability os --mode 770
    """
    with eoslog.open(context.directory, durability=durability, mode=mode) as log:
        context.say(f"{os.path.abspath(context.directory)}: durability {log.durability}")


def _mode(value: str | None) -> int | None:
    if value is None:
        return None
    try:
        return int(value.removeprefix("0o"), 8)
    except ValueError:
        raise click.BadParameter(f"expected octal digits such as 770, got {value!r}") from None


@click.command()
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("--records/--no-records", default=True, help="Decode the records of each batch.")
@click.option(
    "--decoder", default=None,
    type=click.Choice(
        [
            "offsets", "transactions", "staged", "positions", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
            "RMQ_SYS_TRANS_HALF_TOPIC",
        ]
    ),
    help="Decode the keys and values of __consumer_offsets, __transaction_state, "
    "__staged_transactions or __positions. RocketMQ's topics name the second and third too.",
)  # fmt: skip
@READ_ONLY_ANYWAY
@click.pass_obj
def dump(
    context: CliContext,
    paths: tuple[str, ...],
    records: bool,
    decoder: str | None,
    read_only_anyway: bool,
) -> None:
    r"""Decode Kafka's files and print their contents.

    FILE is a .log, .index, .timeindex, .txnindex or .snapshot file, or a partition directory, of
    eoslog or of a broker. Exit code 5 if a file is damaged.

    \b
    Examples:
      eoslog dump shop/orders-0
      eoslog --format json dump shop/orders-0/00000000000000000000.log | jq .batches
    """
    found = {
        path: eoslog.inspect(
            path, records=records, decoder=decoder, read_only_anyway=read_only_anyway
        )
        for path in paths
    }
    if context.form == "json":
        context.show_one(found if len(found) > 1 else next(iter(found.values())))
    elif context.form == "jsonl":
        for path, content in found.items():
            context.show_one({"path": path, **content})
    else:
        for path, content in found.items():
            if len(found) > 1:
                context.say(f"== {path}")
            _dump_tables(context, content)
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


def _dump_tables(context: CliContext, content: dict[str, Any]) -> None:
    single = {k: v for k, v in content.items() if not isinstance(v, list | dict)}
    if single and context.form == "table":
        context.show_one(single)
    for segment in content.get("segments", [content] if "batches" in content else []):
        batches = segment.get("batches") or []
        context.show([{name: batch.get(name) for name in _BATCH} for batch in batches], _BATCH)
        rows = [row for batch in batches for row in batch.get("records") or []]
        if rows:
            columns: tuple[str, ...] = ("offset", "timestamp", "key", "value", "control_type")
            if any("decoded" in row for row in rows):
                columns = ("offset", "timestamp", "decoded", "control_type")
            context.show([_readable(row) for row in rows], columns)
    for name in ("offset_index", "time_index"):
        if content.get(name) and "batches" not in content:
            context.show([{"offset" if name[0] == "o" else "timestamp": a,
                        "position" if name[0] == "o" else "offset": b}
                       for a, b in content[name]])  # fmt: skip
    if content.get("txn_index") and "batches" not in content:
        context.show(content["txn_index"])
    for name, entries in (content.get("snapshots") or {}).items():
        context.say(name)
        context.show([entries] if isinstance(entries, dict) else entries)


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    shown = dict(row)
    for name in ("key", "value"):
        if isinstance(row.get(name), str) and row.get("control_type") is None:
            shown[name] = bytes.fromhex(row[name])
    return shown


@click.command()
@click.argument("target", type=click.Path())
@click.option("--check/--no-check", default=True, help="Verify the checksums of the copy.")
@click.pass_obj
def backup(context: CliContext, target: str, check: bool) -> None:
    r"""Copy the log into a new directory while it is in use.

    TARGET is the new directory. The copy is consistent at one point in time. It contains every
    transaction that was committed by then; transactions that were open are aborted in it. To
    restore, open the copy, or move it to the log's path.

    Exit code 5 if the check finds damage, which the log then has too.

    \b
    Examples:
      eoslog -d shop backup /backups/shop-monday
      eoslog -d /backups/shop-monday stats
    """
    with context.log(reads=True) as log, context.progress(of="bytes") as bar:
        task = bar.add_task("backup", total=None)
        report = log.backup(
            target, check=check,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )  # fmt: skip
    show_problems(context, report.problems)
    context.say(f"{report.path}: {counted(report.partitions, 'partition')}, {report.bytes} bytes")
    if report.problems:
        raise click.exceptions.Exit(EXIT_CORRUPT)


@click.command()
@click.pass_obj
def locks(context: CliContext) -> None:
    r"""List the append locks that processes hold.

    Lists every process that has the log open. A lock that is held for seconds belongs to a process
    that is suspended or stuck. The lock is never broken: other processes get a LockTimeout that
    names the holder.

    \b
    Examples:
      eoslog -d shop locks
      eoslog -d shop --format jsonl locks | jq .pid
    """
    with context.log(read_only=True) as log:
        held_by: dict[int, list[str]] = {}
        for partition, held in log.locks().items():
            text = f"{partition} for {held.seconds:.1f} s"
            held_by.setdefault(held.pid, []).append(text)
        rows = [
            {
                "pid": process.pid,
                "partitions": process.partitions,
                "holds": held_by.get(process.pid, []),
                "stopped": process.stopped,
                "command": process.command,
            }
            for process in log.processes()
            if not process.read_only
        ]
    context.show(rows, ("pid", "partitions", "holds", "stopped", "command"))


@click.command()
@click.pass_obj
def stats(context: CliContext) -> None:
    r"""Print counts, sizes and lags.

    Exit code 5 if a partition is offline. Offline partitions are named on stderr.

    \b
    Examples:
      eoslog -d shop stats
      eoslog -d shop --format json stats | jq .groups
    """
    with context.log(reads=True) as log:
        found = log.stats()
    offline = found["offline"]
    if context.form in ("json", "jsonl"):
        context.show_one(found)
    else:
        partitions = found.pop("partitions")
        if context.form == "table":
            context.show_one(found)
            context.echo()
        context.show([{"partition": name, **about} for name, about in partitions.items()])
    context.end_if_offline(offline)


@click.command()
@click.option(
    "-t",
    "--topic",
    default=None,
    help="Clean only this topic, which may be internal.  [default: all topics]",
)
@click.option(
    "--roll",
    is_flag=True,
    help="Roll the active segments first, because active segments are never cleaned.",
)
@click.pass_obj
def compact(context: CliContext, topic: str | None, roll: bool) -> None:
    r"""Apply compaction and retention now.

    Deletes what the topics' policies say. Other processes may have the directory open; each applies
    the policies on its own when they are due.

    \b
    Examples:
      eoslog -d shop compact
      eoslog -d shop compact --topic orders --roll
    """
    with context.log() as log, working(context, "compact"):
        freed = log.clean(topic, roll=roll)
    context.show(
        [
            {"partition": f"{tp.topic}-{tp.partition}", "freed_bytes": size}
            for tp, size in freed.items()
        ],
        ("partition", "freed_bytes"),
    )


@click.command()
@click.pass_obj
def durability(context: CliContext) -> None:
    r"""Print what an acknowledged write survives.

    \b
    Example:
      eoslog -d shop durability
    """
    with context.log(read_only=True) as log:
        kept = log.durability
    meaning = {
        "strict": "on the disk: survives power loss",
        "os": "in the page cache: survives a killed process",
    }
    context.show_one({"durability": kept, "acknowledged": meaning[kept]})


@click.group()
def demo() -> None:
    """Run a demonstration."""


@demo.command("flights")
@click.option(
    "--dir",
    "place",
    default=None,
    help="Directory to work in; a directory of an earlier demo is emptied first.",
)
@click.option("--keep", is_flag=True, help="Keep the directory afterwards.")
@click.option("--limit", type=int, help="Use only this number of flights.")
@click.option("--no-spark", is_flag=True, help="Aggregate with Arrow instead of Spark.")
def flights(place: str | None, keep: bool, limit: int | None, no_spark: bool) -> None:
    """Process 336,776 flights while workers are killed and fenced.

    Acknowledgements are lost, transactions abort, and a process crashes. At the end every flight
    is counted exactly once.
    """
    from eoslog.demo import flights as job

    code = job.run(place or job.DEFAULT_DIRECTORY, keep=keep, limit=limit, spark=not no_spark)
    if code:
        sys.stdout.flush()
        raise click.exceptions.Exit(code)


COMMANDS = (init, dump, backup, locks, stats, compact, durability, demo)
