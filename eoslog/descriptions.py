"""Descriptions of topics, transactions, groups and processes, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eoslog.model import OffsetAndMetadata, Offsets, TopicPartition
from eoslog.shown_html import html_table

if TYPE_CHECKING:
    from eoslog._core import Record

__all__ = [
    "Blocker",
    "GroupDescription",
    "GroupMetadata",
    "MemberDescription",
    "PartitionDescription",
    "PreparedTransaction",
    "ProcessDescription",
    "ProducerDescription",
    "TopicDescription",
    "TransactionDescription",
    "TransactionOutcome",
]


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition of a topic, with its offsets.

    `Log.describe_topic` returns it::

        for partition in log.describe_topic("orders").partitions:
            print(partition.partition, partition.offsets.log_end)

    Attributes:
        partition: the partition number.
        leader_epoch: the leader epoch.
        offsets: the start and the ends.
    """

    partition: int
    leader_epoch: int
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic, with its partitions and configuration.

    `Log.create_topic` and `Log.describe_topic` return it::

        print(log.describe_topic("orders").config)

    Attributes:
        name: the topic's name.
        topic_id: the id, 16 bytes; a topic that is re-created under its name has another id.
        partitions: the partitions, in order.
        config: the configuration that was set, without defaults.
    """

    name: str
    topic_id: bytes
    partitions: Sequence[PartitionDescription]
    config: Mapping[str, str]

    def _repr_html_(self) -> str:
        """Return a small table of the partitions, for notebooks."""
        settings = "".join(f", {key}={value}" for key, value in self.config.items())
        rows = (
            (one.partition, one.offsets.log_start, one.offsets.last_stable, one.offsets.log_end)
            for one in self.partitions
        )
        head = ("partition", "log start", "last stable offset", "log end")
        return html_table(f"Topic {self.name}{settings}", head, rows, len(self.partitions))


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """The state of a producer in one partition.

    `Log.producers` returns it::

        for producer in log.producers("orders", 0):
            print(producer.producer_id, producer.last_sequence)

    Attributes:
        producer_id: the producer id.
        producer_epoch: the epoch of its last batch.
        last_sequence: the last sequence of that batch.
        last_timestamp: the time of that batch, in ms since the epoch.
        coordinator_epoch: the coordinator epoch of its last marker; -1 if there is none.
        current_txn_first_offset: the first offset of its open transaction, or None.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int = -1
    current_txn_first_offset: int | None = None


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The state of a transactional id.

    `Log.transactions` returns it::

        for transaction in log.transactions():
            print(transaction.transactional_id, transaction.state, transaction.pid)

    Attributes:
        transactional_id: the transactional id.
        state: Kafka's name of the state, for example "Ongoing"; "Prepared" and "Parked" are
            eoslog's.
        producer_id: the producer id.
        producer_epoch: the epoch.
        timeout_ms: the `transaction.timeout.ms` of its producer.
        start_time_ms: the start of the transaction, in ms since the epoch; -1 if none is open.
        last_update_ms: the last change of the state, in ms since the epoch; -1 if not known.
        partitions: the partitions of the open transaction.
        pid: the process that last initialised the id; None if it has exited.
        command: its command line; None if it has exited.
        token: the token of its prepared inline transaction, or None.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int = -1
    last_update_ms: int = -1
    partitions: Sequence[TopicPartition] = ()
    pid: int | None = None
    command: str | None = None
    token: str | None = None


@dataclass(frozen=True, slots=True)
class TransactionOutcome:
    """The outcome of the last transaction of a transactional id.

    `Producer.init_transactions` returns it::

        outcome = producer.init_transactions()
        if outcome is not None and not outcome.committed:
            print("aborted:", outcome.cause)

    It is the last transaction that reached the log. A transaction that sent nothing does not.

    Attributes:
        transactional_id: the transactional id.
        producer_id: the producer id of the transaction.
        producer_epoch: the epoch of its records.
        committed: whether it was committed.
        cause: the reason of an abort that its producer did not request, else "".
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    cause: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A prepared transaction: durable and undecided, until `Log.resolve` decides it.

    `Producer.prepare_transaction` and `Log.pending` return it::

        for prepared in log.pending():
            print(prepared.token, prepared.state, prepared.age, prepared.meta)

    Attributes:
        token: the name of the transaction; it survives restarts.
        state: "PREPARED", or "PARKED" after the last check without an answer.
        mode: "inline" (the records are in their topics) or "staged" (they are not yet).
        age: seconds since it was prepared.
        checks: how often its resolver has answered UNKNOWN.
        meta: the value that was passed to `prepare_transaction`.
        resolver: the name of its resolver, or None.
        due_at: the time of its next check in ms since the epoch, or None if there is none: it is
            parked, or no check was made yet.
        records: its records in the order of production, read from the log when they are iterated.
    """

    token: str
    state: str
    mode: str
    age: float = field(compare=False)
    checks: int = 0
    meta: Any = None
    resolver: str | None = None
    due_at: int | None = None
    records: Iterable[Record] = field(default=(), compare=False, repr=False)
    _committed: Callable[[], bool] = field(default=bool, compare=False, repr=False)
    """Asks the log whether it has decided by now to commit."""

    def __str__(self) -> str:
        return self.token


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A member of a group, so that a commit of its offsets can be fenced.

    `Consumer.group_metadata` returns it::

        producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())

    Attributes:
        group_id: the group.
        member_id: the member; "" without membership.
        generation_id: the member's generation; -1 without membership.
        instance_id: the static name (`group.instance.id`), or None.
    """

    group_id: str
    member_id: str = ""
    generation_id: int = -1
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a consumer group.

    `Log.describe_group` returns it::

        for member in log.describe_group("billing").members:
            print(member.member_id, member.assigned)

    Attributes:
        member_id: the member id.
        client_id: the `client.id` of its consumer.
        instance_id: the static name (`group.instance.id`), or None.
        member_epoch: the member's generation.
        subscription: the topics or the pattern that it subscribed to.
        assigned: the partitions that it holds, including those that it must still release.
        target: the partitions that it should have.
    """

    member_id: str
    client_id: str = ""
    instance_id: str | None = None
    member_epoch: int = 0
    subscription: Sequence[str] = ()
    assigned: Sequence[TopicPartition] = ()
    target: Sequence[TopicPartition] = ()


@dataclass(frozen=True, slots=True)
class Blocker:
    """One cause that blocks readers of a partition, or a member of a group.

    `Log.blockers` returns it::

        for blocker in log.blockers():
            print(blocker.reason, blocker.remedy)

    Attributes:
        kind: "open_transaction", "prepared_transaction" (only its token decides it),
            "decided_transaction" (its markers are missing), "append_lock", "flush_lock",
            "cleaner_lock", "idle_member" (a group member that has the partition and does not poll),
            "partition_held" (by a member that polls, while another member has no partition),
            "poisoned_partition", "damaged_partition" or "directory_lock".
        group_id: the blocked group; None if no group reads the partition.
        topic: the topic of the blocked partition; None for a directory_lock.
        partition: the blocked partition; None for a directory_lock.
        waiting: the number of offsets that wait; None if it cannot be known.
        transactional_id: the id of the transaction; None if there is none, or it is not known.
        producer_id: the producer id of the transaction; None if there is none.
        token: the token of a prepared transaction, or None.
        pid: the blocking process, in its own pid namespace; None if it has exited, or no process is
            the cause.
        command: its command line; None also if it is in another pid namespace.
        since: when the blocking began, in ms since the epoch; None if it is not known.
        stopped: whether the process is suspended (SIGSTOP, a debugger); None if it has exited or
            its state cannot be read.
        remedy: a shell command; an alternative follows as a comment.
        reason: a sentence that describes the cause.
    """

    kind: str
    group_id: str | None = None
    topic: str | None = None
    partition: int | None = None
    waiting: int | None = None
    transactional_id: str | None = None
    producer_id: int | None = None
    token: str | None = None
    pid: int | None = None
    command: str | None = None
    since: int | None = None
    stopped: bool | None = None
    remedy: str = ""
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ProcessDescription:
    """A process that has the directory open.

    `Log.processes` returns it::

        for process in log.processes():
            print(process.pid, process.command, process.groups)

    Attributes:
        pid: the process id, in its own pid namespace.
        command: its command line; None if it is in another pid namespace.
        since: when it opened the directory, in ms since the epoch; for a read-only process, when
            the process started; None if it is not known.
        stopped: whether it is suspended; None if its state cannot be read.
        read_only: whether it has the directory open with `read_only=True`.
        other_namespace: whether it is in another pid namespace.
        partitions: the number of partitions whose files it has open.
        locks: the locks that it holds.
        transactions: the transactional ids that it has initialised.
        groups: the groups of its members.
    """

    pid: int
    command: str | None
    since: int | None
    stopped: bool | None
    read_only: bool = False
    other_namespace: bool = False
    partitions: int = 0
    locks: Sequence[str] = ()
    transactions: Sequence[str] = ()
    groups: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group.

    `Log.describe_group` returns it::

        group = log.describe_group("billing")
        print(group.state, group.offsets)

    Attributes:
        group_id: the group.
        state: "Empty", "Assigning", "Reconciling" or "Stable".
        generation: the group's generation (its epoch in KIP-848).
        assignor: the assignment strategy; "" without members.
        members: the members, by id.
        offsets: the committed offsets.
        blocked_by: the causes that block its members now; only in results of
            `Log.describe_group`.
    """

    group_id: str
    state: str
    generation: int = 0
    assignor: str = ""
    members: Sequence[MemberDescription] = ()
    offsets: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    blocked_by: Sequence[Blocker] = field(default=(), compare=False)

    def _repr_html_(self) -> str:
        """Return a small table of the offsets and their members, for notebooks."""
        holders = {tp: one for one in self.members for tp in one.assigned}
        places = sorted({*self.offsets, *holders})
        rows = (
            (
                f"{tp.topic}-{tp.partition}",
                self.offsets[tp].offset if tp in self.offsets else None,
                (holders[tp].client_id or holders[tp].member_id) if tp in holders else None,
            )
            for tp in places
        )
        caption = f"Group {self.group_id}: {self.state}, {len(self.members)} members"
        reasons = "".join(f"; blocked: {one.reason}" for one in self.blocked_by)
        head = ("partition", "committed offset", "member")
        return html_table(f"{caption}{reasons}", head, rows, len(places))
