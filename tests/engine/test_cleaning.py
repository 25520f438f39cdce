"""Cleaning of user topics and internal topics, by one process at a time."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import eoslog
from eoslog import _core
from eoslog.coordinator.groups.shard import GroupShard
from eoslog.engine import cleaner_manager as cleanings
from eoslog.engine.engine import Engine
from eoslog.errors import InvalidRecord, PolicyViolation, TooManyOpenFiles
from eoslog.model import TopicPartition
from eoslog.storage.directory.session import SESSION_FILE
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from tests.faults.harness import start

COMPACT = {"cleanup.policy": "compact", "segment.bytes": 4096, "index.interval.bytes": 128}
FORGETFUL = {"cleanup.policy": "compact", "segment.bytes": 2000, "min.cleanable.dirty.ratio": 0.01,
             "delete.retention.ms": 0}  # fmt: skip
T0 = TopicPartition("t", 0)
BY_HAND = {"log.cleaner.backoff.ms": 3_600_000}


@pytest.fixture
def log(tmp_path):
    with eoslog.open(tmp_path / "log", BY_HAND) as opened:
        yield opened


@pytest.fixture
def engine(log, tmp_path):
    engine = Engine.open(tmp_path / "log")
    yield engine
    engine.close()


def read(log, topic="t"):
    """(offset, key, value) of every committed record."""
    found = []
    for batch in log.scan(topic, binary="copy"):
        columns = batch.to_pydict()
        found += zip(columns["offset"], columns["key"], columns["value"], strict=True)
    return found


def latest(rows):
    return {key: (offset, value) for offset, key, value in rows}


def data_bytes(log):
    return log.segments.size()


def test_G06_compaction_keeps_the_last_committed_record_of_each_key(log):
    """A read_committed reader finds the same record for each key as before."""
    log.create_topic("t", config=COMPACT)
    with log.producer(transactional_id="tx") as producer:
        producer.init_transactions()
        for i in range(60):
            producer.begin_transaction()
            for key in (i % 5, i % 7):
                producer.produce("t", b"v%d" % i, b"k%d" % key)
            if i % 3 == 2:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        before, end = latest(read(log)), log.offsets("t", 0).log_end
        freed = log.clean("t", roll=True)
        rows = read(log)
        assert latest(rows) == before
        assert len(rows) == len(before)
        assert freed[T0] > 0
        offsets = log.offsets("t", 0)
        assert (offsets.log_start, offsets.log_end) == (0, end)
        uncommitted = log.scan("t", isolation="read_uncommitted", binary="copy")
        assert sum(batch.num_rows for batch in uncommitted) == len(rows)
        producer.begin_transaction()
        producer.produce("t", b"after", b"k0")
        producer.commit_transaction()
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        seen = [(r.offset, r.key, r.value) for r in consumer.consume(1000, timeout=2)]
    assert latest(seen) == latest(read(log))
    assert log.check(full=True).ok


def test_G06_a_view_that_precedes_a_cleaning_keeps_its_records(log):
    log.create_topic("t", config=COMPACT)
    with log.producer() as producer:
        for i in range(200):
            producer.produce("t", b"v%d" % i, b"k")
    scan = log.scan("t")
    batches = list(scan)
    log.clean("t", roll=True)
    assert [v.as_py() for b in batches for v in b.column("value")] == [
        b"v%d" % i for i in range(200)
    ]
    assert [row[2] for row in read(log)] == [b"v199"]


def test_a_compacted_topic_rejects_a_record_without_a_key(log):
    """Kafka's LogValidator: INVALID_RECORD, and nothing of the batch is stored."""
    log.create_topic("t", config=COMPACT)
    with log.producer() as producer:
        delivery = producer.send("t", b"no key")
        with pytest.raises(InvalidRecord, match="record 0 .* has no key"):
            delivery.result(60)
        producer.send("t", b"v", b"k").result(60)
    assert [row[1:] for row in read(log)] == [(b"k", b"v")]


def test_delete_records_is_rejected_for_a_topic_that_is_only_compacted(log):
    log.create_topic("t", config=COMPACT)
    with log.producer() as producer:
        producer.send("t", b"v", b"k").result(60)
    with pytest.raises(PolicyViolation, match="'compact'"):
        log.delete_records({T0: 1})
    log.alter_topic("t", {"cleanup.policy": "compact,delete"})
    assert log.delete_records({T0: 1}) == {T0: 1}


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_retention_never_deletes_an_open_transaction(log, policy):
    log.create_topic(
        "t", config={"cleanup.policy": policy, "retention.ms": 1, "segment.bytes": 4096}
    )
    with log.producer(transactional_id="tx") as producer, log.producer() as plain:
        producer.init_transactions()
        plain.send("t", b"old", b"k", timestamp=1).result(60)
        log._engine.partition("t", 0).roll()
        producer.begin_transaction()
        producer.produce("t", b"held", b"h", timestamp=1)
        producer.flush()
        log._engine.partition("t", 0).roll()
        plain.send("t", b"young", b"k", timestamp=1).result(60)
        log.clean("t")
        assert log.offsets("t", 0).log_start == 1
        producer.commit_transaction()
        assert [row[2] for row in read(log)] == [b"held", b"young"]
    log.clean("t")
    assert read(log) == []


def commit_many(log, count):
    with log.producer(transactional_id="tx") as producer:
        producer.init_transactions()
        for i in range(count):
            producer.begin_transaction()
            producer.produce("t", b"%d" % i, b"k%d" % i)
            producer.send_offsets_to_transaction({T0: i + 1}, "g")
            producer.commit_transaction()


def test_E23_the_compacted_transaction_log_folds_to_the_same_state(tmp_path):
    """Completed transactions leave one state each, and a fold from zero agrees."""
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t")
        commit_many(log, 120)
        engine = Engine.open(path)
        (clog,) = engine.transaction_partitions()
        before = data_bytes(clog)
        state = log.transactions(open_only=False)
        for part in (engine.partition("t", 0), *engine.group_partitions(), clog):
            part.flush()  # a decision whose markers are not durable stays
        log.clean("__transaction_state", roll=True)
        log.clean("__transaction_state", roll=True)
        assert data_bytes(clog) < before / 5
        assert log.transactions(open_only=False) == state
        commit_many(log, 3)
        engine.close()
    with eoslog.open(path) as log:
        assert [t.transactional_id for t in log.transactions(open_only=False)] == ["tx"]
        assert len(read(log)) == 123
        commit_many(log, 1)


def test_committed_offsets_survive_the_compaction_of_their_log(tmp_path):
    """Items 74 to 76: no pending offset is left, and a fold from zero agrees."""
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t")
        commit_many(log, 60)
        with log.consumer("t", group_id="g2", auto_offset_reset="earliest") as consumer:
            for _ in range(20):
                assert consumer.poll(60) is not None
                consumer.commit()
        engine = Engine.open(path)
        logs = engine.group_partitions()
        before = [data_bytes(glog) for glog in logs]
        offsets = {g: log.describe_group(g).offsets for g in ("g", "g2")}
        log.clean("__consumer_offsets", roll=True)
        log.clean("__consumer_offsets", roll=True)
        assert sum(data_bytes(glog) for glog in logs) < sum(before)
        assert {g: log.describe_group(g).offsets for g in ("g", "g2")} == offsets
        engine.close()
    for name in path.glob("__consumer_offsets-*/*.snapshot"):
        name.unlink()
    with eoslog.open(path) as log:
        assert {g: log.describe_group(g).offsets for g in ("g", "g2")} == offsets


def test_a_fold_that_missed_a_cleaning_restarts(log, engine):
    """Protocol row 27: the tombstones that it has not seen are gone."""
    log.create_topic("t")
    for group in ("gone", "stays"):
        log.reset_offsets(group, {T0: 0})
    glog = engine.group_partition("gone")
    sleeper = GroupShard(glog, engine.clock_ms)
    with sleeper.folded() as (table, _):
        assert "gone" in table.groups
    log.delete_group("gone")
    clock = engine.clock
    for days in (0, 2, 4):
        engine.clock = lambda days=days: clock() + days * 86_400
        log.clean("__consumer_offsets", roll=True)
    engine.clock = clock
    kept = [key for b in glog.batches(0, glog.log_end) for _, _, key, *_ in b.records()]
    assert not [key for key in kept if b"gone" in key]
    with sleeper.folded() as (table, _):
        assert "gone" not in table.groups


KILLED = """
import sys, eoslog
from eoslog.model import TopicPartition
from eoslog.storage.fs import files
log = eoslog.open(sys.argv[1])
p = log.producer(transactional_id="victim")
p.init_transactions()
p.begin_transaction()
p.produce("t", b"decided", b"k")
files.arm_failpoint("txn.decided", "kill")
p.commit_transaction()
"""


@pytest.mark.process
def test_the_cleaner_keeps_a_decision_without_durable_markers(tmp_path):
    """Protocol row 2: the PREPARE of a transaction whose marker is not durable stays."""
    path = tmp_path / "log"
    # No sweep: it would end what the dead process decided.
    never = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 3_600_000}
    with eoslog.open(path, never) as log:
        log.create_topic("t")
        commit_many(log, 3)
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(path)], capture_output=True, timeout=300, check=False
        )
        assert done.returncode == -9, done.stderr
        engine = Engine.open(path)
        number = abs(_core.java_hash("victim")) % 50
        clog = engine.transaction_partition("victim")
        log.clean("__transaction_state", roll=True)
        states = [
            t.state for t in log.transactions(open_only=False) if t.transactional_id == "victim"
        ]
        assert states == ["PrepareCommit"]
        decisions = [d for _, d in engine.transactions.logs.decisions() if not d.complete]
        assert [d.commit for d in decisions] == [True]
        assert engine.transactions.uncleanable_offset(number) <= decisions[0].offset < clog.log_end
        engine.close()
        with log.consumer("t", auto_offset_reset="earliest") as consumer:
            values = [r.value for r in consumer.consume(10, timeout=60)]
            while len(values) < 4:
                values += [r.value for r in consumer.consume(10, timeout=60)]
        assert values[-1] == b"decided"


def test_one_process_cleans_at_a_time_and_only_when_a_round_is_due(log, engine, tmp_path):
    log.create_topic("t", config={**COMPACT, "min.cleanable.dirty.ratio": 0.1})
    with log.producer() as producer:
        for i in range(100):
            producer.produce("t", b"v" * 100, b"k%d" % (i % 3))
            producer.flush()
    cleaning = engine.cleaning
    fd = os.open(tmp_path / "log" / SESSION_FILE, os.O_RDWR)
    assert _core.try_lock(fd, 2)  # another process is at it
    assert not cleaning.round(0.0)
    os.close(fd)
    before = log.stats()["partitions"]["t-0"]
    assert before["dirty_ratio"] == 1.0
    assert cleaning.round(0.0)
    assert not cleaning.round(60.0)  # its checkpoint is young
    after = log.stats()
    assert after["partitions"]["t-0"]["dirty_bytes"] == 0
    assert after["partitions"]["t-0"]["bytes"] < before["bytes"]
    assert after["cleaning"]["passes"] == 1
    assert after["cleaning"]["records_after"] < after["cleaning"]["records_before"]
    points = checkpoints.read_offsets(str(tmp_path / "log" / "cleaner-offset-checkpoint"))
    assert points["t", 0] == after["partitions"]["t-0"]["cleaned_to"]


def dirty(log, *names):
    """Topics that have much to be cleaned."""
    for name in names:
        log.create_topic(name, config={**COMPACT, "min.cleanable.dirty.ratio": 0.1})
        with log.producer() as producer:
            for _ in range(100):
                producer.produce(name, b"v" * 100, b"k")
                producer.flush()


def test_a_damaged_partition_is_skipped_and_the_others_are_cleaned(log, engine, tmp_path):
    dirty(log, "bad", "good")
    with open(tmp_path / "log" / "bad-0" / "00000000000000000000.log", "r+b") as handle:
        handle.seek(100)
        handle.write(b"\xff\xff")
    assert engine.cleaning.round(0.0)
    stats = log.stats()
    assert list(stats["cleaning"]["uncleanable"]) == ["bad-0"]
    assert "does not match its CRC" in stats["cleaning"]["uncleanable"]["bad-0"]
    assert stats["partitions"]["good-0"]["dirty_bytes"] == 0


def test_a_topic_with_the_name_of_a_damaged_deleted_one_is_cleaned(log, engine, tmp_path):
    dirty(log, "t")
    with open(tmp_path / "log" / "t-0" / "00000000000000000000.log", "r+b") as handle:
        handle.seek(100)
        handle.write(b"\xff\xff")
    assert engine.cleaning.round(0.0)
    assert list(log.stats()["cleaning"]["uncleanable"]) == ["t-0"]
    log.delete_topic("t")
    dirty(log, "t")
    assert engine.cleaning.round(0.0)
    stats = log.stats()
    assert stats["partitions"]["t-0"]["dirty_bytes"] == 0
    assert stats["cleaning"]["uncleanable"] == {}


def clean_in_rounds(child, path):
    with eoslog.open(path) as log:
        log.offsets("t", 0)
        warnings = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: warnings.append(record.getMessage())
        logging.getLogger("eoslog").addHandler(handler)
        child.armed()
        done = log._engine.cleaning.round(0.0)
        child.tell("warnings", warnings)
        child.tell("done", done)


def test_a_topic_deleted_during_a_round_does_not_count_as_a_failure(log, tmp_path):
    dirty(log, "t")
    child = start(clean_in_rounds, tmp_path / "log", faults=(("clean.group", "stop", 1),))
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    log.delete_topic("t")
    child.signal(signal.SIGCONT)
    life = child.end().fine()
    assert life.of("warnings") == [[]]
    assert life.of("done") == [True]


def test_an_unexpected_error_of_one_partition_does_not_stop_the_cleaning(
    log, engine, monkeypatch, caplog
):
    dirty(log, "first", "second")
    real = cleanings.clean_partition

    def clean_partition(log, *how, **options):
        if log.topic == "first":
            raise OverflowError("a sum too large")
        return real(log, *how, **options)

    monkeypatch.setattr(cleanings, "clean_partition", clean_partition)
    assert engine.cleaning.round(0.0)
    partitions = log.stats()["partitions"]
    assert partitions["first-0"]["dirty_bytes"] > 0 == partitions["second-0"]["dirty_bytes"]
    (record,) = (r for r in caplog.records if r.name == "eoslog.cleaning")
    assert "first-0" in record.getMessage() and record.exc_info[0] is OverflowError


def test_max_compaction_lag_seals_and_cleans_old_segments(log, engine):
    log.create_topic("t", config={"cleanup.policy": "compact", "max.compaction.lag.ms": 1000})
    with log.producer() as producer:
        for i in range(10):
            producer.send("t", b"v%d" % i, b"k", timestamp=1000 + i).result(60)
    assert engine.cleaning.round(0.0)
    assert [row[2] for row in read(log)] == [b"v9"]


@pytest.mark.slow
def test_offsets_expire_only_without_members_and_open_transactions(log, engine):
    """R75, R78: they stay while a member reads the topic or a transaction is open."""
    log.create_topic("t", 2)
    other = TopicPartition("t", 1)
    for group in ("idle", "held", "read"):
        log.reset_offsets(group, {T0: 0, other: 0})
    day = 86_400_000
    clock = engine.clock
    with (
        log.producer(transactional_id="tx") as producer,
        log.consumer("t", group_id="read") as consumer,
    ):
        consumer.poll(0.5)
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("t", b"v", b"k")
        producer.send_offsets_to_transaction({T0: 1}, "held")
        assert engine.groups.expire_offsets(day) == 0
        engine.clock = lambda: clock() + 2 * 86_400
        try:
            assert engine.groups.expire_offsets(-1) == 0
            assert engine.groups.expire_offsets(day) > 0
            assert log.groups() == ["held", "read"]
            producer.commit_transaction()
            assert set(log.describe_group("held").offsets) == {T0}
            assert set(log.describe_group("read").offsets) == {T0, other}
        finally:
            engine.clock = clock


@pytest.mark.slow
def test_the_clean_command_prints_the_bytes_that_it_freed(tmp_path: Path):
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t", config=COMPACT)
        with log.producer() as producer:
            for _ in range(50):
                producer.produce("t", b"v" * 50, b"k")
                producer.flush()
    done = subprocess.run(
        [sys.executable, "-m", "eoslog", "-d", str(path), "--format", "csv", "compact", "-t", "t", "--roll"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    header, row = done.stdout.split()
    assert header == "partition,freed_bytes"
    assert row.startswith("t-0,") and int(row.partition(",")[2]) > 1000


def test_a_cleaning_round_without_a_free_descriptor_is_repeated_later(log, engine, monkeypatch):
    log.create_topic("kept", config={"retention.ms": 1_000_000})
    with log.producer() as producer:
        producer.produce("kept", b"1")
    cleaning, real = engine.cleaning, files.open_file

    def full(path, **options):
        if path.endswith(SESSION_FILE):
            raise TooManyOpenFiles("", 24, path)
        return real(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(files, "open_file", full)
        with pytest.raises(TooManyOpenFiles):
            cleaning.round(0, 0)
    before = cleaning.rounds
    assert cleaning.round(0, 0)
    assert cleaning.rounds == before + 1


def test_the_cleaner_ignores_the_progress_of_a_deleted_topic_with_its_name(log):
    """Otherwise a deletion would age out as clean, and the deleted value return."""
    put(log, [(f"x{i}", "v" * 100) for i in range(60)])
    log.clean("t", roll=True)
    log.delete_topic("t")
    put(log, [("K", "secret")])
    put(log, [(f"f{i}", "v" * 100) for i in range(25)])
    put(log, [("K", None)])
    put(log, [(f"g{i}", "v" * 100) for i in range(60)])
    for turn in range(3):
        put(log, [(f"h{turn}.{i}", "v" * 100) for i in range(30)])
        log.clean("t", roll=True)
        rows = [value for _, key, value in read(log) if key == b"K"]
        assert rows in ([None], []), turn


def put(log, pairs):
    """Produce to a topic that drops tombstones immediately, one batch per record."""
    if "t" not in log.topics():
        log.create_topic("t", config=FORGETFUL)
    with log.producer() as producer:
        for key, value in pairs:
            producer.produce("t", value and value.encode(), key.encode())
            producer.flush()


ALTER = """
import json, sys, eoslog
with eoslog.open(sys.argv[1], {"log.cleaner.backoff.ms": 3_600_000}) as log:
    log.alter_topic("t", json.loads(sys.argv[2]))
"""


def alter_elsewhere(log, **config):
    config = {key.replace("_", "."): value for key, value in config.items()}
    subprocess.run([sys.executable, "-c", ALTER, str(log.path), json.dumps(config)], check=True)


@pytest.mark.process
@pytest.mark.parametrize("ask", [lambda log: log._engine.cleaning.round(0, 0), lambda log: log.clean("t")],
                         ids=["round", "clean"])  # fmt: skip
def test_settings_that_another_process_altered_apply_to_every_operation(tmp_path, ask):
    with eoslog.open(tmp_path, BY_HAND) as log:
        log.create_topic("t", config={"segment.bytes": 2000, "retention.ms": 30_000})
        with log.producer() as producer:
            for _ in range(60):
                producer.produce("t", b"v" * 100, b"k", timestamp=1)
                producer.flush()
        alter_elsewhere(log, retention_ms=10**14)
        ask(log)
        assert len(read(log)) == 60
        alter_elsewhere(log, cleanup_policy="compact", min_cleanable_dirty_ratio=0)
        with pytest.raises(PolicyViolation, match="'compact'"):
            log.delete_records({T0: 1})
        alter_elsewhere(log, cleanup_policy="delete")
        ask(log)
        assert len(read(log)) == 60
        assert log.delete_records({T0: 1}) == {T0: 1}


@pytest.mark.process
def test_compaction_keeps_an_acknowledged_record_without_a_key(log):
    """By a process that did not know yet that the topic is compacted now."""
    log.create_topic("t")
    with log.producer() as producer:
        producer.send("t", b"1", b"k").result(60)
        alter_elsewhere(log, cleanup_policy="compact")
        producer.send("t", b"no key").result(60)
        producer.send("t", b"2", b"k").result(60)
        log.clean("t", roll=True)
        assert read(log) == [(1, None, b"no key"), (2, b"k", b"2")]
        with pytest.raises(InvalidRecord, match="has no key"):
            producer.send("t", b"no key").result(60)
