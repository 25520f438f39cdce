"""The client wrapper that records histories: each call before and after it runs."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eoslog.errors import (
    EoslogError,
    InvalidProducerEpoch,
    InvalidTxnState,
    OutcomeConflict,
    ProducerFenced,
    TransactionAborted,
)
from eoslog.model import EARLIEST, Outcome, TopicPartition

if TYPE_CHECKING:
    from eoslog.client.consumer.consumer import Consumer
    from eoslog.client.producer.delivery import Delivery
    from eoslog.client.producer.producer import Producer
    from eoslog.log import Log

DEFINITE = (ProducerFenced, InvalidProducerEpoch, InvalidTxnState, TransactionAborted)
"""Errors that say by contract: not committed, now and for ever."""


class Recorder:
    """A file of a process's events, one `write` per line: a kill tears only the last.

    Args:
        path: made or appended to; keep it out of reach of the faults.
        process: the name in the events; unique among all processes of the history.
    """

    def __init__(self, path: str, process: str) -> None:
        """Open the file."""
        self.process = process
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._numbers = itertools.count()

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def name(self) -> str:
        """An identifier that no other event of the history has."""
        return f"{self.process}.{next(self._numbers)}"

    def write(self, f: str, type_: str = "ok", **fields: Any) -> None:
        """Write an event that happens now."""
        event = {"f": f, "type": type_, "process": self.process, "time": time.monotonic_ns()}
        os.write(self._fd, json.dumps(event | fields, separators=(",", ":")).encode() + b"\n")

    def producer(
        self, log: Log, transactional_id: str | None = None, *, keep_prepared: bool = False,
        **config: Any,
    ) -> Producing:  # fmt: skip
        """A recorded producer."""
        return Producing(self, log, transactional_id, config, keep_prepared=keep_prepared)

    def consumer(self, consumer: Consumer, isolation: str = "read_committed") -> Consuming:
        """Record what a consumer reads."""
        return Consuming(self, consumer, isolation)

    # --- looks at the whole ---------------------------------------------------------------------

    def bounds(self, log: Log, topics: Iterable[str]) -> None:
        """Record the published ends of each partition."""
        for topic in topics:
            for tp in log.partitions_of(topic):
                start = time.monotonic_ns()
                seen = log.offsets(tp.topic, tp.partition)
                self.write(
                    "bounds", start=start, partition=str_of(tp), lso=seen.last_stable,
                    hw=seen.high_watermark,
                )  # fmt: skip

    def decide(self, log: Log, txn: str, token: str, *, commit: bool) -> bool:
        """Decide a prepared transaction, and return the decision that stands."""
        self.write("decide", "invoke", txn=txn, commit=commit)
        try:
            log.resolve(token, Outcome.COMMIT if commit else Outcome.ABORT)
        except OutcomeConflict:
            commit = not commit
        self.write("decide", txn=txn, commit=commit)
        return commit

    def outcome(self, log: Log, txn: str, token: str) -> Outcome | None:
        """Record and return the outcome of a prepared transaction."""
        start = time.monotonic_ns()
        found = log.outcome(token)
        self.write("outcome", start=start, txn=txn, outcome=None if found is None else found.name)
        return found

    def backup(self, log: Log, path: str, topics: Sequence[str]) -> None:
        """Make a copy and record all that it holds."""
        import eoslog

        start = time.monotonic_ns()
        report = log.backup(path)
        assert not report.problems, report.problems
        with eoslog.open(path, read_only=True) as copy:
            ends = {
                tp: copy.offsets(tp.topic, tp.partition)
                for topic in topics
                for tp in copy.partitions_of(topic)
            }
            reads = [
                [str_of(tp), offset, value]
                for tp, seen in ends.items()
                for offset, value in values(copy, tp, seen.log_start, seen.last_stable)
            ]
        starts = {str_of(tp): seen.log_start for tp, seen in ends.items()}
        self.write("copy", **dict[str, Any]({"start": start, "from": starts, "reads": reads}))

    def snapshot(self, log: Log, topics: Sequence[str]) -> dict[TopicPartition, int]:
        """Take and record a snapshot."""
        start = time.monotonic_ns()
        cut = log.snapshot(topics)
        self.write("snapshot", start=start, cut={str_of(tp): end for tp, end in cut.items()})
        return cut

    def committed(self, log: Log, group: str) -> None:
        """Record a group's committed offsets."""
        start = time.monotonic_ns()
        found = log.describe_group(group).offsets
        self.write(
            "committed", start=start, group=group,
            offsets={str_of(tp): o.offset for tp, o in found.items()},
        )  # fmt: skip

    def delete(self, log: Log, tp: TopicPartition, part: float) -> None:
        """Read a topic, then delete the first part of what a partition had; record both."""
        end = self.scan(log, tp.topic)[tp]
        first = log.offsets(tp.topic, tp.partition).log_start  # who moved it since, has read too
        before = max(first, first + int((end - first) * part))
        event = dict[str, Any]({"partition": str_of(tp), "from": first, "before": before})
        self.write("delete", "invoke", **event)
        log.delete_records({tp: before})
        self.write("delete", **event)

    def scan(self, log: Log, topic: str, since: int | None = None) -> dict[TopicPartition, int]:
        """Read a topic up to its last stable offsets and record it; those offsets.

        Args:
            log: an open directory.
            topic: of it.
            since: time at which the read view was fixed, in monotonic nanoseconds: before a
                read-only log was opened while no writer was active. None is now.
        """
        start = time.monotonic_ns() if since is None else since
        ends = {
            tp: (seen.log_start, seen.last_stable)
            for tp in log.partitions_of(topic)
            for seen in [log.offsets(tp.topic, tp.partition)]
        }
        reads = [
            [str_of(tp), offset, value]
            for tp, (first, end) in ends.items()
            for offset, value in values(log, tp, first, end)
        ]
        self.write(
            "scan",
            **dict[str, Any]({
                "start": start, "isolation": "read_committed", "reads": reads,
                "from": {str_of(tp): first for tp, (first, _) in ends.items()},
                "to": {str_of(tp): end for tp, (_, end) in ends.items()},
            }),
        )  # fmt: skip
        return {tp: end for tp, (_, end) in ends.items()}

    def drain(self, log: Log, topics: Iterable[str]) -> None:
        """Record what is there in the end, when nothing is open or unflushed."""
        for topic in topics:
            for tp in log.partitions_of(topic):
                seen = log.offsets(tp.topic, tp.partition)
                self.write(
                    "drain", partition=str_of(tp), log_start=seen.log_start, log_end=seen.log_end,
                    log=[list(row) for row in values(log, tp, seen.log_start, seen.last_stable)],
                )  # fmt: skip


class Producing:
    """A producer whose sends and transactions are recorded.

    Args:
        recorder: where to.
        log: the open directory.
        transactional_id: None for a producer without transactions.
        config: of the producer.
    """

    def __init__(
        self, recorder: Recorder, log: Log, transactional_id: str | None,
        config: Mapping[str, Any], *, keep_prepared: bool = False,
    ) -> None:  # fmt: skip
        """Make the producer and, if it is transactional, fence its predecessors."""
        self.recorder, self.inst, self.session = recorder, transactional_id, recorder.name()
        self.acks = str(config.get("acks", "all"))
        self._txn: str | None = None
        self._sent: list[tuple[str, TopicPartition, str, Delivery]] = []
        options = dict(config)
        if transactional_id is not None:
            options["transactional_id"] = transactional_id
        self.producer: Producer = log.producer(**options)
        if transactional_id is not None:
            start = time.monotonic_ns()
            self.producer.init_transactions(keep_prepared=keep_prepared)
            recorder.write("fence", inst=transactional_id, session=self.session, start=start)

    def close(self) -> None:
        """Close the producer."""
        self.producer.close()

    def begin(self, mode: str = "inline") -> str:
        """Begin a transaction; its identifier in the history."""
        self.producer.begin_transaction(mode)
        self._txn = self.recorder.name()
        self.recorder.write(
            "txn", "invoke", txn=self._txn, inst=self.inst, session=self.session,
            epoch=self.producer.producer_epoch, mode=mode,
        )  # fmt: skip
        return self._txn

    def send(
        self, rows: Sequence[tuple[TopicPartition, str]], *, keyed: bool = False, **extra: Any
    ) -> None:
        """Send values; `acknowledge` waits for them outside of transactions.

        Args:
            rows: where to, and what.
            keyed: each value is its own key, so that compaction keeps it.
            extra: the producer's own arguments, the same for all.
        """
        name = self.recorder.name()
        self.recorder.write(
            "send", "invoke", id=name, txn=self._txn, session=self.session, acks=self.acks,
            sends=[[str_of(tp), value] for tp, value in rows],
        )  # fmt: skip
        for tp, value in rows:
            key = value if keyed else None
            delivery = self.producer.send(
                tp.topic, value, **{"key": key, "partition": tp.partition} | extra
            )
            if self._txn is None:
                self._sent.append((name, tp, value, delivery))

    def acknowledge(self, timeout: float = 60) -> int:
        """Wait for all sends and record each result; return the acknowledged count."""
        good = 0
        by_name: dict[str, list[tuple[TopicPartition, str, Delivery]]] = {}
        for name, tp, value, delivery in self._sent:
            by_name.setdefault(name, []).append((tp, value, delivery))
        self._sent = []
        for name, rows in by_name.items():
            try:
                done = [[str_of(tp), value, d.result(timeout).offset] for tp, value, d in rows]
            except (EoslogError, TimeoutError) as error:
                self.recorder.write("send", "info", id=name, error=repr(error))
                raise
            good += len(done)
            self.recorder.write("send", "ok", id=name, sends=done)
        return good

    def commit(self, consumed: Mapping[TopicPartition, tuple[int, int]] | None = None,
               group: Any = None) -> None:  # fmt: skip
        """Commit, with the input that the transaction consumed.

        Args:
            consumed: by partition, the first offset read and the next one to read.
            group: a group id, or a consumer's group metadata.
        """
        spans = consumed or {}
        name = getattr(group, "group_id", group)
        if spans:
            self.producer.send_offsets_to_transaction(
                {tp: following for tp, (_, following) in spans.items()}, group
            )
        rows = [[name, str_of(tp), first, following] for tp, (first, following) in spans.items()]
        self._ended(self.producer.commit_transaction, rows)

    def _ended(self, commit: Callable[[], object], consumed: list[list[Any]]) -> None:
        self.recorder.write("end", "invoke", txn=self._txn, commit=True, consumed=consumed)
        try:
            commit()
        except BaseException as error:
            kind = "fail" if isinstance(error, DEFINITE) else "info"
            self.recorder.write("end", kind, txn=self._txn, commit=True, error=repr(error))
            raise
        self.recorder.write("end", txn=self._txn, commit=True)
        self._txn = None

    def whole(self, rows: Sequence[tuple[TopicPartition, str]], work: Callable[[], object]) -> None:
        """Record a transaction that `work` makes from its begin to its commit."""
        self._txn, name = self.recorder.name(), self.recorder.name()
        self.recorder.write(
            "txn", "invoke", txn=self._txn, inst=self.inst, session=self.session,
            epoch=self.producer.producer_epoch,
        )  # fmt: skip
        self.recorder.write(
            "send", "invoke", id=name, txn=self._txn, session=self.session, acks=self.acks,
            sends=[[str_of(tp), value] for tp, value in rows],
        )  # fmt: skip
        self._ended(work, [])

    def prepare(self) -> str:
        """Prepare the transaction; its meta has its identifier. Return the token."""
        txn = self._txn
        self.recorder.write("prepare", "invoke", txn=txn)
        token = self.producer.prepare_transaction({"txn": txn}).token
        self.recorder.write("prepare", txn=txn)
        self._txn = None
        return token

    def abort(self) -> None:
        """Abort."""
        self.recorder.write("end", "invoke", txn=self._txn, commit=False)
        self.producer.abort_transaction()
        self.recorder.write("end", txn=self._txn, commit=False)
        self._txn = None


class Consuming:
    """A consumer whose reads are recorded; callers must report moves with `moved`."""

    def __init__(self, recorder: Recorder, consumer: Consumer, isolation: str) -> None:
        """Wrap it."""
        self.recorder, self.consumer, self.isolation = recorder, consumer, isolation
        self.name = recorder.name()

    def moved(self) -> None:
        """Record that order starts again: a seek, another assignment, a rewind."""
        self.recorder.write("move", consumer=self.name)

    def consume(self, count: int, timeout: float, txn: str | None = None) -> list[Any]:
        """Read and record."""
        start = time.monotonic_ns()
        records = self.consumer.consume(count, timeout)
        if records:
            self.recorder.write(
                "poll", consumer=self.name, isolation=self.isolation, start=start, txn=txn,
                reads=[[f"{r.topic}-{r.partition}", r.offset, text(r.value)] for r in records],
            )  # fmt: skip
        return records


def str_of(tp: TopicPartition) -> str:
    """`topic-partition`, as the partition's folder is named."""
    return f"{tp.topic}-{tp.partition}"


def text(value: bytes | None) -> str:
    """A value as histories hold it."""
    return "" if value is None else bytes(value).decode("utf-8", "backslashreplace")


def values(log: Log, tp: TopicPartition, start: int, end: int) -> Iterable[tuple[int, str]]:
    """(offset, value) of what read_committed shows in [start, end) of a partition."""
    consumer = log.consumer(isolation_level="read_committed", auto_offset_reset=EARLIEST)
    with consumer:
        consumer.assign([TopicPartition(tp.topic, tp.partition, start)])
        at = start
        while at < end:
            records = consumer.consume(10_000, 0.05)
            for record in records:
                if record.offset >= end:
                    return
                yield record.offset, text(record.value)
            at = consumer.position([tp])[0].offset or at
