"""Adoption of a stopped broker's topics, groups and transactions by a directory.

| of the broker | in eoslog |
|---|---|
| sealed `.log` files | hard-linked (never changed in place afterwards), or copied |
| the last segment, indexes, snapshots | copied; recovered as Kafka would after an unclean stop |
| messages of formats 0 and 1 | rewritten as format 2, with the same offsets and timestamps |
| topic ids, configurations, producer ids | from KRaft's log; without it from the directories |
| `__transaction_state`, `__consumer_offsets` | taken over with the same number of partitions |
| leader epochs | continue at the last one + 1 |

The directory is built next to the target and renamed into place at the end, so a crash leaves no
incomplete log. The source is not changed. Producer ids and transactional ids are the broker's, so
the target must be new: the ids of two brokers cannot share a directory.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import cast

from eoslog import _core
from eoslog._util.argument_types import explained
from eoslog._util.arguments import as_directory, as_items
from eoslog.config.keys import TopicConfig
from eoslog.coordinator.groups.state import GroupTable, StoredBatch
from eoslog.coordinator.transactions.log_fold import TransactionLogFold
from eoslog.coordinator.transactions.prepared_records import STAGED, PreparedFold
from eoslog.engine.engine import Engine
from eoslog.errors import ConfigError, CorruptRecord, StorageError
from eoslog.model import (
    CONSUMER_OFFSETS_TOPIC,
    STAGED_TRANSACTIONS_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from eoslog.reports import ImportReport, Problem
from eoslog.storage.broker import lock as running_broker
from eoslog.storage.broker.directory import KafkaDirectory, KafkaPartition, read_kafka_directory
from eoslog.storage.broker.recovery import recover
from eoslog.storage.broker.repair import index_interval_of
from eoslog.storage.directory import offset_checkpoints
from eoslog.storage.directory.directory import built_aside
from eoslog.storage.directory.offset_jumps import gaps_in
from eoslog.storage.format import checkpoints, legacy_messages
from eoslog.storage.fs import files
from eoslog.storage.metadata.image import FIRST_USE_TOPICS, internal_topic_id
from eoslog.storage.segment import segment_files
from eoslog.storage.segment.segment_files import SegmentFiles

__all__ = ["import_kafka_dir"]

INTERNAL = (TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC)
KAFKAS_OWN = ("__share_group_state", "__remote_log_metadata")
"""Internal topics that have no meaning outside of a Kafka cluster."""
WORKING = ".importing"
_DEFAULT_PARTITIONS = 50
_BLOCK = 1000
_WINDOW = 8 << 20


@explained
def import_kafka_dir(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    path: str | os.PathLike[str],
    *,
    topics: Sequence[str] | None = None,
    copy: bool = False,
    durability: str | None = None,
    read_only_anyway: bool = False,
) -> ImportReport:
    """Create a log from a stopped broker's topics, groups and transactional ids.

    Args:
        source: the broker's log directory, or all of its log directories.
        path: the new directory; it must not exist, or must be empty.
        topics: the user topics to import; None means all.
        copy: copy sealed segments instead of hard-linking them. Files on another file system or of
            another owner are always copied.
        durability: "strict" (default) or "os", for the new directory.
        read_only_anyway: import although a broker is running. Every file is copied as it is now,
            and recovered as after a crash.

    Returns:
        What was imported, and what was truncated or left out.

    Raises:
        LockTimeout: if a broker is running on the source.
        ConfigError: if the source is not a broker's directory, or is listed twice; if a topic is
            unknown or has partitions in a directory that is not given; or if the target is not new,
            or is inside a source.
        CorruptRecord: if the topic ids of an imported topic differ, or KRaft's log is damaged;
            nothing is created.
        StorageError: if a file cannot be read or written.

    Durability:
        Everything is durable when the directory appears under its name.
    """
    places = [source] if isinstance(source, str | os.PathLike) else as_items(source)
    roots = [as_directory(place) for place in places]
    target = os.path.realpath(as_directory(path))  # a link can point to the new directory
    if os.path.exists(target) and (not os.path.isdir(target) or os.listdir(target)):
        raise ConfigError(
            f"{target} is not empty; give a new directory, because a broker's producer ids and "
            "transactional ids cannot be mixed with those of another log"
        )
    _refuse_overlaps(roots, target)
    with ExitStack() as held:
        if not read_only_anyway:
            for root in roots:
                held.enter_context(running_broker.hold(root))
        found = read_kafka_directory(roots)
        return _DirectoryImport(
            found, target, topics, copy or read_only_anyway, read_only_anyway
        ).run(durability or "strict")


def _refuse_overlaps(roots: Sequence[str], target: str) -> None:
    """Raise ConfigError if a source is listed twice, or contains the target."""
    seen: dict[str, str] = {}
    for root in roots:
        real = os.path.realpath(root)
        if real in seen:
            also = "" if root == seen[real] else f", also as {seen[real]}"
            raise ConfigError(f"{root} is listed twice{also}; give each log directory once")
        if os.path.commonpath([real, target]) == real:
            raise ConfigError(
                f"{target} is inside the broker's directory {root}; choose a target outside of it"
            )
        seen[real] = root


class _DirectoryImport:
    def __init__(
        self,
        found: KafkaDirectory,
        target: str,
        topics: Sequence[str] | None,
        copy: bool,
        running: bool,
    ) -> None:
        self.found = found
        self.target = target
        self.work = target + WORKING
        # Kept apart until the metadata is written, so that no process completes their transactions.
        self.parts = os.path.join(self.work, "eoslog.parts")
        self.copy = copy
        self.running = running
        self.linked = self.copied = self.cut = 0
        self.problems: list[Problem] = []
        self.left_out = [Problem(place, 0, "not imported") for place in found.passed_over]
        self.topics = self._chosen(topics)
        self.ends: dict[tuple[str, int], int] = {}
        self.starts: dict[tuple[str, int], int] = {}
        self.cleaned: dict[tuple[str, int], int] = {}
        self.epochs: dict[tuple[str, int], int] = {}
        self.highest_id = -1

    def _chosen(self, topics: Sequence[str] | None) -> list[str]:
        known = [
            name
            for name in sorted(self.found.topics)
            if name not in (*INTERNAL, *KAFKAS_OWN, *FIRST_USE_TOPICS)
        ]
        chosen = list(known) if topics is None else list(dict.fromkeys(as_items(topics)))
        for name in chosen:
            if name not in known:
                raise ConfigError(f"the broker has no topic {name!r}; it has {', '.join(known)}")
        chosen += self._first_use_topics()
        taken = [*chosen, *(t for t in INTERNAL if t in self.found.topics)]
        for name in taken:
            if name in self.found.wrong_ids:
                raise self.found.wrong_ids[name]
        for name in taken:
            count = self.found.topics[name].count
            missing = [p for p in range(count) if (name, p) not in self.found.partitions]
            if missing:
                raise ConfigError(
                    f"partition {missing[0]} of {name} ({count} partitions) is not in the given "
                    "directories; give all log directories of the broker, or choose other topics"
                )
        return chosen

    def _first_use_topics(self) -> list[str]:
        """Return eoslog's own topics in a directory that a broker has used since.

        A user's topic with such a name is left out.
        """
        found = []
        for name in FIRST_USE_TOPICS:
            topic = self.found.topics.get(name)
            if topic is not None and topic.topic_id == internal_topic_id(name):
                found.append(name)
            elif topic is not None:
                text = "not imported: eoslog has an internal topic of this name"
                self.left_out.append(Problem(name, 0, text))
        return found

    def run(self, durability: str) -> ImportReport:
        with built_aside(self.target, WORKING) as self.work:
            files.make_dir(self.parts)
            for name in [*INTERNAL, *self.topics]:
                if name in self.found.topics:
                    for number in range(self.found.topics[name].count):
                        self._partition(self.found.partitions[name, number])
            self._metadata(durability)
        users = tuple(name for name in self.topics if name not in FIRST_USE_TOPICS)
        return ImportReport(
            self.target, users, len(self.ends), self.linked, self.copied, self.cut,
            (*self.problems, *self.left_out),
        )  # fmt: skip

    # --- partitions -----------------------------------------------------------------------------

    def _partition(self, partition: KafkaPartition) -> None:
        topic = self.found.topics[partition.topic]
        key = partition.topic, partition.partition
        place = os.path.join(self.parts, f"{partition.topic}-{partition.partition}")
        files.make_dir(place)
        names = [name for name in files.names(partition.path) if not name.endswith(".deleted")]
        logs = [name for name in names if name.endswith(".log")]
        for name in names:
            source, copy = os.path.join(partition.path, name), os.path.join(place, name)
            with files.naming(source):  # a link to a file that is missing
                if name.endswith(".log"):
                    self._log(source, copy, last=name == logs[-1])
                elif name.endswith((".index", ".timeindex")):
                    data = files.read_file(source)
                    unit = 8 if name.endswith(".index") else 12
                    used = -(-len(data.rstrip(b"\0")) // unit) * unit  # preallocated zeros
                    files.write_file(copy, data[:used], durable=True)
                elif name.endswith((".txnindex", ".snapshot", ".swap", ".cleaned")) or (
                    name == checkpoints.LEADER_EPOCH_CHECKPOINT
                ):
                    files.copy_file(source, copy)
        topic_id = internal_topic_id(partition.topic) or topic.topic_id or checkpoints.new_id()
        topic.topic_id = topic.topic_id or topic_id
        checkpoints.write_partition_metadata(place, topic_id)
        snapshots = bool(segment_files.list_snapshots(place))
        done = recover(
            place,
            recovery_point=partition.recovery_point,
            log_start=partition.log_start,
            # Kafka treats a clean log without snapshots as one without producers.
            clean=partition.clean and snapshots and not self.running,
            index_interval=index_interval_of(topic.config),
        )
        self.problems += [
            replace(p, path=os.path.join(partition.path, os.path.basename(p.path)))
            for p in done.problems
        ]
        if done.log_end < partition.recovery_point:
            self.problems.append(
                Problem(
                    partition.path, 0,
                    f"the log ends at offset {done.log_end}, but it was flushed up to offset "
                    f"{partition.recovery_point}: a file is missing or truncated",
                )
            )  # fmt: skip
        self.cut += done.bytes_cut
        self.ends[key], self.starts[key] = done.log_end, done.log_start
        between = segment_files.last_gap(place)
        _, cleaned_to = offset_checkpoints.bounds_of(os.path.dirname(partition.path), key)
        if cleaned_to is not None and between > cleaned_to:
            self.problems.append(
                Problem(
                    os.path.join(partition.path, f"{between:020}.log"), 0,
                    "offsets before this segment are missing, and compaction did not remove them, "
                    "unless the broker has copied a gap from its leader",
                )
            )  # fmt: skip
        # In the last segment too: a broker copies the gaps of the leader that it follows.
        last = segment_files.list_segments(place)[-1]
        inside = max((gap.end for gap in gaps_in(last, last.base_offset)), default=0)
        self.cleaned[key] = max(between, inside)
        self.epochs[key] = self._next_epoch(place, done.log_end)
        for name in segment_files.list_snapshots(place):
            for entry in segment_files.read_snapshot(os.path.join(place, name)):
                self.highest_id = max(self.highest_id, entry.producer_id)
        for name in logs:
            self._sync(os.path.join(place, name))
        files.fsync_dir(place)

    def _log(self, source: str, copy: str, *, last: bool) -> None:
        segment = SegmentFiles(source, segment_files.offset_of_name(source) or 0)
        size = os.path.getsize(source)
        if size and _has_legacy(segment):
            self._rewrite(segment, copy)
            return
        if not last and not self.copy:
            try:
                os.link(source, copy)
                self.linked += size
                return
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                    raise files.storage_error(error, source) from error
        used = len(segment.data) if last else size
        files.copy_file(source, copy, used)
        self.copied += used

    def _rewrite(self, segment: SegmentFiles, copy: str) -> None:
        """Rewrite formats 0 and 1 as format 2, the engine's only format."""
        out = bytearray()
        for window in segment.windows(0, _WINDOW):
            out += bytes(window.data)
        files.write_file(copy, bytes(out), durable=True)
        for suffix in (".index", ".timeindex"):  # positions change, so recovery rebuilds them
            files.remove(copy.removesuffix(".log") + suffix)
        self.copied += len(out)

    def _sync(self, path: str) -> None:
        try:
            fd = files.open_file(path, read_only=True)
        except FileNotFoundError:
            return  # recovery removed it
        try:
            with files.naming(path):
                _core.os_sync(fd, data_only=False)  # a broker does not wait for the disk
        finally:
            files.close(fd)

    def _next_epoch(self, place: str, end: int) -> int:
        path = os.path.join(place, checkpoints.LEADER_EPOCH_CHECKPOINT)
        entries = [entry for entry in checkpoints.read_leader_epochs(path) if entry[1] < end]
        epoch = max((e for e, _ in checkpoints.read_leader_epochs(path)), default=-1) + 1
        checkpoints.write_leader_epochs(path, [*entries, (epoch, end)])
        return epoch

    # --- the directory --------------------------------------------------------------------------

    def _metadata(self, durability: str) -> None:
        counts = [
            self.found.topics[name].count if name in self.found.topics else 0 for name in INTERNAL
        ]
        properties = checkpoints.MetaProperties.new(
            durability, *(count or _DEFAULT_PARTITIONS for count in counts)
        )
        if _is_id(self.found.cluster_id):
            properties = replace(properties, cluster_id=self.found.cluster_id)
        checkpoints.write_meta_properties(self.work, properties)
        engine = Engine.open(self.work, create=False)
        try:
            for name in self.topics:
                topic = self.found.topics[name]
                config = self._config(name, topic.config)
                epochs = {p: self.epochs[name, p] for p in range(topic.count)}
                engine.metadata.adopt_topic(name, topic.topic_id or b"", epochs, config)
            highest = max(self.highest_id, self._highest_of_internal())
            engine.metadata.reserve_producer_ids(
                max(self.found.next_producer_id, (highest // _BLOCK + 1) * _BLOCK)
            )
        finally:
            engine.close()
        for name in files.names(self.parts):
            files.rename(os.path.join(self.parts, name), os.path.join(self.work, name))
        files.remove_tree(self.parts)
        point = checkpoints.RECOVERY_POINT_CHECKPOINT
        known = offset_checkpoints.read(self.work, point)
        offset_checkpoints.write(self.work, point, {**known, **self.ends})
        for name, offsets in (
            (checkpoints.LOG_START_CHECKPOINT, self.starts),
            (checkpoints.CLEANER_CHECKPOINT, self.cleaned),  # readers report other gaps as losses
        ):
            known = {key: offset for key, offset in offsets.items() if offset > 0}
            offset_checkpoints.write(self.work, name, known)
        if not checkpoints.was_clean_shutdown(self.work):
            raise StorageError("the new directory was not closed cleanly", path=self.work)

    def _highest_of_internal(self) -> int:
        """Fold the internal topics as the engine does; return their highest producer id.

        Raises:
            CorruptRecord: if a record is damaged or of an unknown version.
        """
        highest = -1
        for key in self.ends:
            if key[0] not in INTERNAL:
                continue
            groups, transactions = GroupTable(), TransactionLogFold()
            place = os.path.join(self.parts, f"{key[0]}-{key[1]}")
            for segment in segment_files.list_segments(place):
                for batch in segment.batches():
                    try:
                        if (fault := segment_files.fault_of(batch)) is not None:
                            raise CorruptRecord(fault)
                        if key[0] != TRANSACTION_STATE_TOPIC:
                            groups.apply(cast(StoredBatch, batch))
                            continue
                        for offset, _, name, value, _ in () if batch.control else batch.records():
                            state = transactions.apply(offset, name, value)
                            if state is not None:
                                ids = state.producer_id, state.next_producer_id
                                highest = max(highest, *ids)
                    except CorruptRecord as error:
                        path = os.path.join(
                            self.found.partitions[key].path, os.path.basename(segment.path)
                        )
                        raise CorruptRecord(
                            str(error), path=path, position=batch.position
                        ) from error
            highest = max(highest, self._highest_of_prepared(key[1], transactions.prepared))
        return highest

    def _highest_of_prepared(self, number: int, prepared: PreparedFold) -> int:
        """Return the highest producer id of the tokens in a C partition.

        A staged transaction whose payload is not imported is named in the report.
        """
        if STAGED_TRANSACTIONS_TOPIC not in self.topics:
            for producer_id, epoch in prepared.pending:
                if prepared.entries[producer_id, epoch].mode == STAGED:
                    token = f"{self.found.cluster_id}:{producer_id}:{epoch}:{number}"
                    text = (
                        f"prepared transaction {token}: its records are in "
                        f"{STAGED_TRANSACTIONS_TOPIC} of the eoslog directory, which is not "
                        "imported; it can only be aborted"
                    )
                    self.left_out.append(Problem(TRANSACTION_STATE_TOPIC, 0, text))
        return max((producer_id for producer_id, _ in prepared.entries), default=-1)

    def _config(self, name: str, config: dict[str, str]) -> dict[str, str]:
        """Return the part of a topic's configuration that eoslog has; report the rest."""
        kept = {}
        for key, value in config.items():
            try:
                TopicConfig.of({key: value})
                kept[key] = value
            except ConfigError as error:
                self.left_out.append(Problem(name, 0, f"configuration {key}={value}: {error}"))
        return kept


def _has_legacy(segment: SegmentFiles) -> bool:
    """Return whether the segment contains a message of format 0 or 1."""
    data, position = segment.data, 0
    while position < len(data):
        if legacy_messages.is_legacy(data, position):
            return True
        stop = int(_core.batches_end(data, position))
        if stop == position:
            return False
        position = stop
    return False


def _is_id(text: str) -> bool:
    try:
        return len(checkpoints.id_bytes(text)) == 16
    except ValueError:
        return False
