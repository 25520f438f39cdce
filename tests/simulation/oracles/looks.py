"""The visible content of an open directory: records, and a digest of its state."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from eoslog.coordinator.groups.state import GroupTable
from eoslog.coordinator.transactions.log_fold import TransactionLogFold
from eoslog.coordinator.transactions.state import TransactionMetadata
from eoslog.engine.engine import Engine
from eoslog.model import STAGED_TRANSACTIONS_TOPIC
from eoslog.storage.log.partition_log import PartitionLog
from tests.simulation.oracles.model import Model, Seen

COMMIT_MARKER = 1


def visible(log: PartitionLog, end: int | None = None) -> list[tuple[int, str]]:
    """(offset, value) of each read_committed record, read by batch and filtered here."""
    bound = log.last_stable_offset if end is None else min(end, log.last_stable_offset)
    start = log.log_start
    aborted = log.aborted(start, bound)
    found = []
    for batch in log.batches(start, bound):
        if batch.control:
            continue
        hidden = batch.transactional and any(
            pid == batch.producer_id and first <= batch.base_offset <= last
            for pid, first, last in aborted
        )
        if not hidden:
            found += [
                (offset, bytes(value).decode())
                for offset, _, _, value, _ in batch.records()
                if offset < bound
            ]
    return found


def all_partitions(engine: Engine) -> list[PartitionLog]:
    """Every partition there is, opened."""
    user = [engine.partition(*place) for place in engine.user_partitions()]
    staged = engine.existing_internal_topic(STAGED_TRANSACTIONS_TOPIC)
    return [
        engine.partitions.known("__cluster_metadata", 0),
        *engine.transaction_partitions(),
        *engine.group_partitions(),
        *([] if staged is None else [staged]),
        *user,
    ]


def everything(engine: Engine) -> Seen:
    """What read_committed shows of every topic."""
    return {place: visible(engine.partition(*place)) for place in engine.user_partitions()}


def positions(engine: Engine, groups: set[str]) -> dict[str, int]:
    """The stable committed offset of each group (they use one partition)."""
    found = {}
    for group in sorted(groups):
        offsets = engine.groups.fetch_offsets(group, timeout=5.0)
        found.update({group: stored.offset for stored in offsets.values()})
    return found


def check_committed(log: PartitionLog, model: Model) -> None:
    """O5 records that a commit marker ends are below the high watermark."""
    last, committed = dict[int, int](), -1
    for batch in log.batches(max(log.log_start, log.core.durable_end), log.log_end):
        if batch.control_type == COMMIT_MARKER:
            committed = max(committed, last.pop(batch.producer_id, -1))
        elif batch.transactional and not batch.control:
            last[batch.producer_id] = batch.last_offset
    covered = log.high_watermark
    if committed >= covered:
        model.violated(f"O5 {log.name}: {committed} is committed, the high watermark is {covered}")


def check_structure(engine: Engine, model: Model, *, settled: bool) -> None:
    """O4 dense offsets, O5 the order of the ends; after settling nothing may be open."""
    for log in all_partitions(engine):
        log.flush()
        ends = (log.log_start, log.last_stable_offset, log.high_watermark, log.log_end)
        if list(ends) != sorted(ends):
            model.violated(f"O5 ends of {log.name}: {ends}")
        following = log.log_start
        for batch in log.batches(log.log_start, log.log_end):
            gap = model.cleaned and log.settings.compacts and batch.base_offset > following
            head = batch.base_offset < following == log.log_start <= batch.last_offset
            if batch.base_offset != following and not gap and not head:
                model.violated(f"O4 hole in {log.name}: {batch.base_offset} after {following - 1}")
            if not batch.valid:
                model.violated(f"O4 {log.name}: bad CRC at offset {batch.base_offset}")
            following = batch.last_offset + 1
        if following != log.log_end:
            model.violated(f"O4 {log.name}: batches end at {following}, log end is {log.log_end}")
        if settled and log.open_transactions():
            model.violated(f"O2 still open in {log.name}: {log.open_transactions()}")


def hides(log: PartitionLog, producer: int, first: int, last: int) -> bool:
    """Whether an aborted transaction has data left.

    If a cleaning removed all of its records, its entry stays until the marker is deleted. A
    recovery, which rebuilds the index, finds no record to build an entry from. Neither hides
    anything.
    """
    return any(
        batch.transactional
        and not batch.control
        and batch.producer_id == producer
        and batch.base_offset >= first
        for batch in log.batches(max(first, log.log_start), last)
    )


def state(engine: Engine) -> dict[str, Any]:
    """Everything that folds know, and the bytes that they are folds of, by name."""
    found: dict[str, Any] = {}
    for log in all_partitions(engine):
        log.fold()
        content = hashlib.blake2b(digest_size=8)
        for part in (
            log.read(log.log_start, log.log_end, 1 << 30) if log.log_end > log.log_start else ()
        ):
            content.update(bytes(part.data))
        found[log.name] = {
            "bytes": content.hexdigest(),
            "ends": (log.log_start, log.log_end, log.stable_end),
            "producers": sorted(map(repr, log.producers())),
            "batches kept": sorted(
                log.core.export_producers()[1][i : i + 46]
                for i in range(0, len(log.core.export_producers()[1]), 46)
            ),
            "open": log.open_transactions(),
            "aborted": [
                entry for entry in log.aborted(log.log_start, log.log_end) if hides(log, *entry)
            ],
        }
    for clog in engine.transactions.logs.all():
        found[f"coordinator {clog.log.name}"] = {
            "ids": sorted(map(_shown, clog.values())),
            "undecided": sorted(d.decided.key for d in clog.decisions() if not d.complete),
        }
        replayed = TransactionLogFold()
        for batch in clog.log.batches(clog.log.log_start, clog.log.log_end):
            for offset, _, key, value, _ in () if batch.control else batch.records():
                replayed.apply(offset, key, value)
        again = sorted(map(_shown, replayed.table.values()))
        live = found[f"coordinator {clog.log.name}"]["ids"]
        assert again == live, f"{clog.log.name}: {set(live) ^ set(again)}"
    for log in engine.group_partitions():
        table = GroupTable()
        for batch in log.batches(log.log_start, log.log_end):
            table.apply(batch)
        with engine.groups._shards.at(log).folded() as (groups, _):
            found[f"groups {log.name}"] = repr(
                (sorted(map(repr, groups.groups.values())), sorted(groups.pending))
            )
            assert groups == table, f"{log.name}: live groups are not the replayed ones"
    return found


def _shown(metadata: TransactionMetadata) -> str:
    """The text of a record, independent of the order of a mapping or a set."""
    parts = metadata._asdict().items()
    return repr([
        (name, sorted(part.items()) if isinstance(part, Mapping) else
         sorted(part) if isinstance(part, frozenset) else part)
        for name, part in parts
    ])  # fmt: skip


def difference(live: dict[str, Any], replayed: dict[str, Any]) -> list[str]:
    """Where two states differ."""
    out = []
    for name in sorted(live.keys() | replayed.keys()):
        a, b = live.get(name), replayed.get(name)
        if a != b:
            keys = (
                [k for k in a if a[k] != b.get(k)]
                if isinstance(a, dict) and isinstance(b, dict)
                else []
            )
            out += [f"{name} {k}: {a[k]} / {b[k]}" for k in keys] or [f"{name}: {a} / {b}"]
    return out
