"""Causes that block readers: `Log.blockers` and `GroupDescription.blocked_by`.

| kind | the cause | found by |
|---|---|---|
| open_transaction | undecided, so it holds the last stable offset | the partition's fold |
| prepared_transaction | the same, and only its token decides it | the same, and its record |
| decided_transaction | decided, its markers are missing | the same, and the decision |
| append_lock, flush_lock, cleaner_lock | a process holds one: stopped, or slow | its byte |
| idle_member | it holds partitions and does not poll | its process; its last poll |
| partition_held | it polls, and another member has nothing | the group's table |
| directory_lock | a stopped process holds the bootstrap lock | its byte |
| poisoned_partition | a flush failed | the partition's slot |
| damaged_partition | it cannot be opened | opening it |

The search changes nothing. It does not wait for a lock that a suspended process may hold.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from eoslog.coordinator.groups.local_members import member_hash
from eoslog.coordinator.transactions.state import TransactionMetadata
from eoslog.descriptions import Blocker, GroupDescription
from eoslog.errors import (
    CorruptRecord,
    DiskFull,
    EoslogError,
    GroupNotFound,
    LockTimeout,
    StorageError,
    TooManyOpenFiles,
    UnknownToken,
    UnknownTopicOrPartition,
)
from eoslog.model import OWN_GROUPS, TopicPartition
from eoslog.storage.directory.processes import (
    BOOTSTRAP_AT,
    SESSION_FILE,
    Process,
    Processes,
    to_continue,
)
from eoslog.storage.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

__all__ = ["blockers"]

SLOW_S = 1.0
"""A lock that a running process holds for less is no blocker."""
IDLE_S = 5.0
"""A running member that polled within this time is no blocker."""
_SECOND_LOOK_S = 0.1


class _Group(NamedTuple):
    """A group, and the partitions that it reads."""

    about: GroupDescription
    reads: frozenset[TopicPartition]


def blockers(
    engine: Engine,
    group_id: str | None = None,
    *,
    partitions: Collection[TopicPartition] | None = None,
) -> list[Blocker]:
    """See `Log.blockers`; with `partitions`, find only what blocks readers of these."""
    return _Look(engine, group_id, partitions).run()


class _Look:
    """One look at a directory."""

    def __init__(
        self, engine: Engine, group_id: str | None, partitions: Collection[TopicPartition] | None
    ) -> None:
        self._engine = engine
        self._processes = Processes(engine.session)
        self._now_ms = engine.clock_ms()
        self._ends: dict[TopicPartition, tuple[int, int]] = {}  # last stable offset, log end
        self._only = group_id is not None
        names = [] if group_id is None else [group_id]
        if group_id is None and partitions is None:
            names = engine.groups.list_groups()
        self._groups: dict[str, _Group] = {}
        for name in names:
            try:
                if engine.read_only:
                    engine.groups.describe_group(name)  # so that topics have their names
                about = engine.groups.view_group(name)
                topics = engine.groups.subscribed_topics(name)
            except GroupNotFound:
                if self._only:
                    raise
                continue  # deleted in the meantime
            reads = set(about.offsets).union(
                *(member.assigned for member in about.members),
                *(member.target for member in about.members),
                (TopicPartition(*key) for key in engine.user_partitions() if key[0] in topics),
            )
            if name.startswith(OWN_GROUPS):
                reads.clear()  # its offsets are the progress of a writer
            self._groups[name] = _Group(about, frozenset(reads))
        self._wanted = partitions
        if self._only and partitions is None:
            self._wanted = frozenset().union(*(group.reads for group in self._groups.values()))

    def run(self) -> list[Blocker]:
        found: list[Blocker] = []
        if self._engine.is_fixed:  # no process has it open
            found += self._partitions()
            for about, reads in self._groups.values():
                lags = {tp: self._lag(about, tp) for tp in reads}
                found += self._waiting_offsets(about, lags, {})
            return found
        found += self._directory()
        found += self._partitions()
        for group in self._groups.values():
            found += self._members(group)
        seen: set[Blocker] = set()
        return [b for b in found if not (b in seen or seen.add(b))]  # type: ignore[func-returns-value]

    # -- the directory

    def _directory(self) -> Iterator[Blocker]:
        """Check the bootstrap lock, which opening and recovery of a partition wait for."""
        holder = self._processes.holder_of(SESSION_FILE, BOOTSTRAP_AT)
        if holder is not None and holder.stopped:
            for name in self._groups if self._only else [None]:
                yield self._made(
                    "directory_lock", name, None, None, holder,
                    remedy=self._wake_or_end(holder),
                    reason=f"{self._engine.path}: its bootstrap lock is held by {holder.text}; "
                    "opening the directory waits for it",
                )  # fmt: skip

    # -- partitions

    def _partitions(self) -> Iterator[Blocker]:
        for key in self._engine.user_partitions():
            tp = TopicPartition(*key)
            if self._wanted is not None and tp not in self._wanted:
                continue
            try:
                log = self._engine.partition(*key)
            except UnknownTopicOrPartition:
                continue  # deleted in the meantime
            except LockTimeout as error:
                yield from self._unopened("append_lock", tp, error)
                continue
            except (CorruptRecord, StorageError) as error:
                yield from self._unopened("damaged_partition", tp, error)
                continue
            readable, end = _readable(log), log.log_end
            self._ends[tp] = (readable, end)
            yield from self._poisoned(tp, log)
            yield from self._locks(tp, log, end - readable)
            if log.stable_end < log.log_end or readable < log.high_watermark:
                yield from self._transactions(tp, log)
        yield from self._internal()

    def _internal(self) -> Iterator[Blocker]:
        """Check the internal topics, whose locks can block commits and joins."""
        engine = self._engine
        for logs in (engine.transaction_partitions, engine.group_partitions, engine.first_use.all):
            try:
                partitions = logs()
            except EoslogError:
                continue  # it is damaged: every call that needs it says so
            for log in partitions:
                tp = TopicPartition(log.topic, log.partition)
                yield from self._poisoned(tp, log)
                yield from self._locks(tp, log, 0)
        metadata = engine.metadata.log
        yield from self._locks(TopicPartition(metadata.topic, metadata.partition), metadata, 0)

    def _for_groups(self, tp: TopicPartition) -> list[str | None]:
        """The groups that read a partition; None where there is none."""
        if tp.topic.startswith("__"):
            return list(self._groups) if self._only else [None]
        return [name for name, group in self._groups.items() if tp in group.reads] or [None]

    def _unopened(self, kind: str, tp: TopicPartition, error: EoslogError) -> Iterator[Blocker]:
        remedy = self._command("ps")
        if isinstance(error, DiskFull):
            remedy = f"df -h {self._place}  # free some space"
        elif isinstance(error, TooManyOpenFiles):
            remedy = "ulimit -n  # raise it"
        elif kind == "damaged_partition":
            repair = f"eoslog repair {self._place} --cut"
            remedy = f"{self._command('check')}  # then, with every process closed: {repair}"
        for name in self._for_groups(tp):
            yield self._made(
                kind, name, tp, None, None,
                remedy=remedy,
                reason=f"{tp} cannot be opened: {error}",
            )  # fmt: skip

    def _poisoned(self, tp: TopicPartition, log: PartitionLog) -> Iterator[Blocker]:
        view = self._view(log)
        if not view.get("poison"):
            return
        waiting = max(log.log_end - log.high_watermark, 0)
        for name in self._for_groups(tp):
            yield self._made(
                "poisoned_partition", name, tp, waiting, None,
                remedy=f"{self._command('ps')}  # close the log in each of these processes, "
                "then open it again",
                reason=f"{tp} takes no records: a flush failed",
            )  # fmt: skip

    def _locks(self, tp: TopicPartition, log: PartitionLog, waiting: int) -> Iterator[Blocker]:
        view = self._view(log)
        held_s = 0.0
        if view.get("holder_pid"):
            held_s = max((time.monotonic_ns() - view["holder_since_ns"]) / 1e9, 0.0)
        for kind in ("append", "flush", "cleaner"):
            pid = view.get("holder_pid", 0) if kind == "append" else 0
            holder = self._processes.holder(log.slot, kind, pid)
            if holder is None:
                continue
            since = self._now_ms - int(held_s * 1000) if kind == "append" and held_s else None
            slow = held_s >= SLOW_S if kind == "append" else False
            if kind == "flush" and not holder.stopped:
                slow = self._still_flushes(log, view, holder)
            if kind == "cleaner" and not holder.stopped:
                slow = False  # it works on, and readers wait for nothing of it
            if not (holder.stopped or slow):
                continue
            behind = {"append": waiting, "flush": max(log.log_end - log.high_watermark, 0)}
            for name in self._for_groups(tp):
                yield self._made(
                    f"{kind}_lock", name, tp, behind.get(kind, 0), holder, since=since,
                    remedy=self._wake_or_end(holder),
                    reason=f"the {kind} lock of {tp} is held by {holder.text}",
                )  # fmt: skip

    def _still_flushes(self, log: PartitionLog, view: dict[str, Any], holder: Process) -> bool:
        """Whether a flush makes no progress while it is looked at twice."""
        if not view.get("flush_under_way"):
            return False
        before = log.high_watermark
        time.sleep(_SECOND_LOOK_S)
        again = self._processes.holder(log.slot, "flush")
        same = again is not None and again.visible_pid == holder.visible_pid
        return same and log.high_watermark == before and self._view(log)["flush_under_way"]

    def _view(self, log: PartitionLog) -> dict[str, Any]:
        try:
            return dict(log.session.control.slot_view(log.slot))
        except IndexError:  # no process has used it yet
            return {}

    # -- transactions

    def _transactions(self, tp: TopicPartition, log: PartitionLog) -> Iterator[Blocker]:
        high = max(log.high_watermark, log.last_stable_offset)
        for producer_id, epoch, first, _ in self._open_rows(tp, log):
            metadata, decided = self._of_producer(producer_id, epoch)
            for name in self._for_groups(tp):
                yield self._transaction(name, tp, max(high - first, 0), producer_id, metadata,
                                        decided)  # fmt: skip

    def _open_rows(
        self, tp: TopicPartition, log: PartitionLog
    ) -> Iterable[tuple[int, int, int, int]]:
        if not self._engine.read_only:
            return log.open_transactions()
        # A reader keeps no fold of producers: the coordinator lists what may be open here.
        first = log.last_stable_offset
        return [
            (m.producer_id, m.producer_epoch, first, first)
            for clog in self._engine.transactions.logs.all()
            for m in clog.values()
            if tp in m.partitions
        ]

    def _of_producer(self, producer_id: int, epoch: int) -> tuple[TransactionMetadata | None, bool]:
        """The transactional id's newest record, and whether this transaction is decided."""
        logs = self._engine.transactions.logs
        logs.all()
        decision = logs.decision((producer_id, epoch))
        if decision is not None:
            return decision[1].prepared, True
        known = logs.of_producer(producer_id)
        metadata = None if known is None else known[1]
        return metadata, metadata is not None and metadata.state.preparing

    def _transaction(
        self, group_id: str | None, tp: TopicPartition, waiting: int, producer_id: int,
        metadata: TransactionMetadata | None, decided: bool, what: str = "",
    ) -> Blocker:  # fmt: skip
        token = None if metadata is None or decided else self._token(metadata)
        if metadata is not None and token is not None:
            return self._prepared(
                group_id, tp, waiting, token, metadata.transactional_id, metadata.producer_id,
                metadata.owner, metadata.last_update_timestamp, what,
            )  # fmt: skip
        owner = None if metadata is None else self._processes.of_owner(metadata.owner)
        name = None if metadata is None else metadata.transactional_id
        since = None
        if metadata is not None:
            since = metadata.last_update_timestamp if decided else metadata.start_timestamp
        named = f"producer id {producer_id}"
        if name is not None:
            named = f"transactional id {name!r}, {named}"
        state = "decided, its markers are missing" if decided else "open"
        who = "its process has exited" if owner is None else f"by {owner.text}"
        typed = []
        if owner is not None and owner.stopped and owner.visible_pid is not None:
            typed.append(to_continue(owner.visible_pid))
        if name is None or self._engine.is_fixed:
            typed.append(self._command("stats"))  # opens each partition, and finishes what is due
        else:
            typed.append(self._command("txn", "abort", name))
        at = "" if since is None or since < 0 else f" since {_time(since)}"
        return self._made(
            "decided_transaction" if decided else "open_transaction", group_id, tp, waiting, owner,
            since=None if since is None or since < 0 else since, remedy="  # or: ".join(typed),
            transactional_id=name, producer_id=producer_id,
            reason=f"{what or _offsets(waiting, tp)} for a transaction that is "
            f"{state}{at} ({named}), {who}",
        )  # fmt: skip

    def _token(self, metadata: TransactionMetadata) -> str | None:
        """The token of an id's transaction; None if it is not prepared."""
        known = self._engine.transactions.logs.of_producer(metadata.producer_id)
        if known is None or not metadata.state.undecided:
            return None
        clog, _ = known
        entry = clog.prepared((metadata.producer_id, metadata.producer_epoch))
        index = self._engine.transactions.prepared.index
        return None if entry is None else index.token_of(entry, clog)

    def _prepared(
        self, group_id: str | None, tp: TopicPartition, waiting: int,
        token: str, name: str, producer_id: int, owner: tuple[int, int] | None, since: int,
        what: str,
    ) -> Blocker:  # fmt: skip
        # The process that prepared it may be gone, and ending it decides nothing.
        process = self._processes.of_owner(owner)
        commit, abort = (self._command("txn", "resolve", token, way) for way in ("commit", "abort"))
        return self._made(
            "prepared_transaction", group_id, tp, waiting, process, since=since,
            remedy=f"{commit}  # or: {abort}",
            transactional_id=name, producer_id=producer_id, token=token,
            reason=f"{what or _offsets(waiting, tp)} for the prepared transaction {token}, which "
            f"is not decided since {_time(since)} (transactional id {name!r}, producer id "
            f"{producer_id}){self._who_decides(token)}",
        )  # fmt: skip

    def _who_decides(self, token: str) -> str:
        try:
            _, entry = self._engine.transactions.prepared.index.find(token)
        except UnknownToken:
            return ""  # ended in the meantime
        if entry.resolver is None:
            return ""
        return (
            f"; its resolver {entry.resolver!r} decides it as soon as a program registers that, as "
            "`log.atomic` does for a database"
        )

    # -- groups

    def _members(self, group: _Group) -> Iterator[Blocker]:
        about, groups = group.about, self._engine.groups
        owners = groups.member_processes(about.group_id)
        lags = {tp: self._lag(about, tp) for tp in group.reads}
        processes = {
            member.member_id: self._processes.of_owner(owners.get(member.member_id))
            for member in about.members
        }
        # The group removes a member without a static name as soon as its process has exited.
        members = [m for m in about.members if m.instance_id or processes[m.member_id]]
        wanted = {tp for m in members for tp in m.target if tp not in m.assigned}
        without = [m.member_id for m in members if not m.assigned]
        for member in members:
            process = processes[member.member_id]
            since = self._idle_since(about.group_id, member.member_id, process)
            stopped = process is not None and bool(process.stopped)
            long = since is not None and self._now_ms - since >= IDLE_S * 1000
            exited = process is None and member.instance_id is not None
            for tp in member.assigned:
                waits = bool(lags.get(tp)) or tp in wanted or bool(without)
                if stopped or ((long or exited) and waits):
                    yield self._idle(
                        about.group_id, tp, lags.get(tp), member.member_id, process, since
                    )
                elif without or tp in wanted:
                    yield self._held(about, tp, lags.get(tp), member.member_id, process, without)
        holders = {tp: m.member_id for m in members for tp in m.assigned}
        yield from self._waiting_offsets(
            about, lags, {tp: owners[name] for tp, name in holders.items() if name in owners}
        )

    def _waiting_offsets(
        self, about: GroupDescription, lags: Mapping[TopicPartition, int | None],
        owners: Mapping[TopicPartition, tuple[int, int]],
    ) -> Iterator[Blocker]:  # fmt: skip
        """The transactions that hold offsets of a group; `owners` are of its partitions."""
        pending = self._engine.groups.pending_offsets(about.group_id)
        for tp, producer_id in sorted(pending.items()):
            metadata, decided = self._newest(producer_id)
            owner = None if metadata is None else self._processes.of_owner(metadata.owner)
            mine = owners.get(tp)
            runs = owner is not None and not owner.stopped
            prepared = metadata is not None and metadata.state.undecided
            if (
                not prepared
                and runs
                and owner is not None
                and mine in (None, (owner.number, owner.nonce))
            ):
                continue  # the reader's own transaction, which it is about to end
            yield self._transaction(
                about.group_id, tp, lags.get(tp) or 0, producer_id, metadata, decided,
                _waiting_offset(about.group_id, tp),
            )  # fmt: skip
        yield from self._staged(about, lags)

    def _staged(
        self, about: GroupDescription, lags: Mapping[TopicPartition, int | None]
    ) -> Iterator[Blocker]:
        """The undecided staged transactions that have offsets of a group."""
        index = self._engine.transactions.prepared.index
        for tp, token in self._engine.groups.staged_offsets(about.group_id).items():
            try:
                _, entry = index.find(token)
            except UnknownToken:
                continue  # ended in the meantime
            yield self._prepared(
                about.group_id, tp, lags.get(tp) or 0, token, entry.transactional_id, entry.key[0],
                entry.owner, entry.prepared_at_ms, _waiting_offset(about.group_id, tp),
            )  # fmt: skip

    def _newest(self, producer_id: int) -> tuple[TransactionMetadata | None, bool]:
        logs = self._engine.transactions.logs
        logs.all()
        known = logs.of_producer(producer_id)
        return (None, False) if known is None else (known[1], known[1].state.preparing)

    def _lag(self, about: GroupDescription, tp: TopicPartition) -> int | None:
        """Return a group's lag in a partition; None if it has no committed offset."""
        committed = about.offsets.get(tp)
        try:
            log = self._engine.partition(tp.topic, tp.partition)
            end, start = _readable(log), log.log_start
        except EoslogError:
            return None
        return max(end - (start if committed is None else max(committed.offset, start)), 0)

    def _idle_since(self, group_id: str, member_id: str, process: Process | None) -> int | None:
        """When a member polled last, in ms; None where that is not known."""
        own = self._engine.groups.last_poll(group_id, member_id)
        if own is not None:
            return self._now_ms - int(own * 1000)
        if process is None:
            return None
        member, last = self._engine.session.control.idle_member(process.number)
        if member == member_hash(group_id, member_id):
            return int(last)
        if process.stopped:  # its heartbeats ended with it
            age = self._engine.process_heartbeat_age(process.number)
            return self._now_ms - int(age * 1000)
        return None

    def _idle(
        self, group_id: str, tp: TopicPartition, lag: int | None, member_id: str,
        process: Process | None, since: int | None,
    ) -> Blocker:  # fmt: skip
        who = "its process has exited" if process is None else process.text
        at = "" if since is None else f"; it polled last at {_time(since)}"
        return self._made(
            "idle_member", group_id, tp, lag, process, since=since,
            remedy=self._wake_or_end(process),
            reason=f"member {member_id} of group {group_id!r} holds {tp} and does not poll: "
            f"{who}{at}",
        )  # fmt: skip

    def _held(
        self, about: GroupDescription, tp: TopicPartition, lag: int | None, member_id: str,
        process: Process | None, without: list[str],
    ) -> Blocker:  # fmt: skip
        who = "a process that cannot be seen" if process is None else process.text
        waiting = ", ".join(without) or "the member that is to have it"
        describe = self._command("group", "describe", about.group_id, option="--members")
        return self._made(
            "partition_held", about.group_id, tp, lag, process,
            remedy=f"{describe}  # stop a member, or add partitions: "
            f"log.create_partitions({tp.topic!r}, N)",
            reason=f"{tp} is held by member {member_id} of group {about.group_id!r}, {who}; "
            f"without a partition: {waiting}",
        )  # fmt: skip

    # -- values

    @property
    def _place(self) -> str:
        return shlex.quote(self._engine.path)

    def _command(self, *words: str, option: str = "") -> str:
        """A command line; its third word is a name, which may begin with a dash."""
        line = [*words, option] if option else [*words]
        if len(words) > 2 and words[2].startswith("-"):
            line = [*words[:2], *([option] if option else []), "--", *words[2:]]
        return f"eoslog -d {self._place} " + " ".join(map(shlex.quote, line))

    def _wake_or_end(self, process: Process | None) -> str:
        if process is None or process.visible_pid is None:
            return self._command("ps")
        if process.stopped:
            return to_continue(process.visible_pid)
        return f"kill {process.visible_pid}  # ends it, if it does not go on by itself"

    def _made(
        self, kind: str, group_id: str | None, tp: TopicPartition | None, waiting: int | None,
        process: Process | None, *, since: int | None = None, **more: Any,
    ) -> Blocker:  # fmt: skip
        return Blocker(
            kind, group_id, None if tp is None else tp.topic, None if tp is None else tp.partition,
            waiting,
            pid=None if process is None else process.pid or None,
            command=None if process is None else process.command,
            since=since,
            stopped=None if process is None else process.stopped,
            **more,
        )  # fmt: skip


def _readable(log: PartitionLog) -> int:
    return min(log.last_stable_offset, log.high_watermark)


def _offsets(count: int, tp: TopicPartition) -> str:
    return f"{count} offset{' of' if count == 1 else 's of'} {tp} wait{'s' if count == 1 else ''}"


def _waiting_offset(group_id: str, tp: TopicPartition) -> str:
    return f"the committed offset of group {group_id!r} in {tp} waits"


def _time(ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))
