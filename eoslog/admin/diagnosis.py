"""Transactions and groups of a directory, with their processes and blockers."""

from __future__ import annotations

from dataclasses import replace

from eoslog.admin import health
from eoslog.admin.open_processes import processes
from eoslog.descriptions import GroupDescription, TransactionDescription
from eoslog.engine.blocking.blockers import blockers
from eoslog.engine.engine import Engine
from eoslog.errors import CorruptRecord, LockTimeout, StorageError
from eoslog.storage.directory.processes import Processes

__all__ = ["blockers", "describe_group", "processes", "transactions"]


def transactions(engine: Engine, *, open_only: bool) -> list[TransactionDescription]:
    """Transactional ids as their coordinators hold them, with the process of each."""
    found = engine.transactions.describe_transactions()
    owners = engine.transactions.owners()
    known = Processes(engine.session)
    result = []
    tokens = engine.transactions.prepared.index.inline_tokens()
    for about in found:
        if not open_only or about.state in health.OPEN_STATES:
            about = replace(about, token=tokens.get(about.transactional_id))
            process = known.of_owner(owners.get(about.transactional_id))
            if process is not None:
                about = replace(about, pid=process.pid, command=process.command)
            result.append(about)
    return result


def describe_group(engine: Engine, group_id: str) -> GroupDescription:
    """Describe a group: its members, its committed offsets and its blockers.

    Raises:
        GroupNotFound: if the group does not exist.
    """
    about = engine.groups.describe_group(group_id)
    try:
        return replace(about, blocked_by=blockers(engine, group_id))
    except (LockTimeout, StorageError, CorruptRecord):  # the rest is known all the same
        return about
