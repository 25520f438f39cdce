"""The processes that have a directory open: `Log.processes`."""

from __future__ import annotations

import contextlib
import os

from eoslog.admin.health import OPEN_STATES
from eoslog.descriptions import ProcessDescription
from eoslog.engine.engine import Engine
from eoslog.errors import GroupNotFound
from eoslog.model import CLUSTER_METADATA_TOPIC
from eoslog.storage.directory.processes import Processes, lock_of

__all__ = ["processes"]


def processes(engine: Engine) -> list[ProcessDescription]:
    """See `Log.processes`."""
    engine.metadata.refresh()
    names = {
        partition.slot: f"{info.name}-{number}"
        for info in (*engine.metadata.internal_topics.values(), *engine.metadata.topics.values())
        for number, partition in info.partitions.items()
    }
    names[0] = f"{CLUSTER_METADATA_TOPIC}-0"
    transactions: dict[tuple[int, int], list[str]] = {}
    for clog in engine.transactions.logs.all():
        for m in clog.values():
            if m.owner is not None and m.state.wire_name in OPEN_STATES:
                transactions.setdefault(m.owner, []).append(m.transactional_id)
    groups: dict[tuple[int, int], list[str]] = {}
    for name in engine.groups.list_groups():
        with contextlib.suppress(GroupNotFound):
            for member_id, owner in engine.groups.member_processes(name).items():
                groups.setdefault(owner, []).append(f"{name}/{member_id}")
    seen = Processes(engine.session)
    found = []
    for process in seen.all():
        opener = seen.openers.get(-1 if process.visible_pid is None else process.visible_pid)
        opened = frozenset() if opener is None else opener.opened
        held = () if opener is None else filter(None, (lock_of(*lock) for lock in opener.locks))
        owner = (process.number, process.nonce)
        found.append(
            ProcessDescription(
                process.pid, process.command, process.since_ms, process.stopped,
                process.read_only, process.other_namespace,
                len({name.partition(os.sep)[0] for name in opened if os.sep in name}),
                sorted(f"{names.get(slot, f'slot {slot}')} {kind}" for kind, slot in held),
                sorted(transactions.get(owner, ())),
                sorted(groups.get(owner, ())),
            )
        )  # fmt: skip
    return found
