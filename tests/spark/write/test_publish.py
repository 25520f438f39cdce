"""The driver's half of a write, without Spark, is decided once."""

import os
import signal
import subprocess
import sys
import threading
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark_eoslog.options.options import Options
from pyspark_eoslog.write.batch import EoslogWriter, StagedMessage
from pyspark_eoslog.write.publish import last_version, publish_once
from pyspark_eoslog.write.stream import EoslogStreamWriter

from eoslog import _core
from eoslog.connector.staging import STAGING, AttemptWriter
from eoslog.errors import IllegalState, InvalidProducerEpoch, ProducerFenced, StorageError
from eoslog.storage.fs import files
from tests.spark.helpers import ENDED_S, staged, values


def options(log):
    return Options.parse({"path": log.path})


def attempt(log, tag, *, order=0, job="job", limit=0, segment=1 << 20):
    name = f"{order}-{uuid.uuid4().hex}"
    out = AttemptWriter(log.path, job, name, order, limit, segment_bytes=segment)
    for partition in (0, 1):
        out.add("t", partition, _core.build_batch([(1, None, b"%s%d" % (tag, partition), ())]), 1)
    return out.finish()


@pytest.fixture
def topic(log):
    log.create_topic("t", 2)
    return log


def test_a_second_commit_call_after_a_durable_one_publishes_nothing(topic):
    winner = attempt(topic, b"a", limit=1 << 20)
    assert publish_once(options(topic), "app", 1, [winner], jobs=["job"])
    assert not publish_once(options(topic), "app", 1, [winner], jobs=["job"])
    assert sorted(values(topic, "t")) == [b"a0", b"a1"]
    assert last_version(topic, "app") == 1


def test_only_named_attempts_are_published_and_the_others_are_removed(topic):
    winner, loser = attempt(topic, b"w"), attempt(topic, b"l")
    assert winner.name != loser.name
    publish_once(options(topic), "app", 1, [winner], jobs=["job"])
    assert sorted(values(topic, "t", isolation="read_uncommitted")) == [b"w0", b"w1"]
    assert staged(topic) == []


def test_two_drivers_that_commit_the_same_version_publish_it_once(topic):
    attempts = [attempt(topic, b"x", job=f"job{n}", limit=1 << 20) for n in range(2)]
    results, errors = [], []

    def drive(one):
        try:
            results.append(publish_once(options(topic), "app", 7, [one], jobs=[one.job]))
        except (ProducerFenced, InvalidProducerEpoch) as error:
            errors.append(error)

    threads = [threading.Thread(target=drive, args=(one,)) for one in attempts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count(True) <= 1 and len(results) + len(errors) == 2
    # The fenced attempt tries again, as Spark does after a failed batch.
    publish_once(options(topic), "app", 7, [attempts[0]], jobs=[])
    assert sorted(values(topic, "t")) == [b"x0", b"x1"]


def test_each_topic_has_its_own_versions(topic):
    """An application may write one version to two topics, as to two tables."""
    topic.create_topic("u", 2)
    for name in ("t", "u", "t"):
        given = Options.parse({"path": topic.path, "topic": name})
        out = AttemptWriter(topic.path, "job", f"0-{uuid.uuid4().hex}", 0, 1 << 20)
        out.add(name, 0, _core.build_batch([(1, None, name.encode(), ())]), 1)
        publish_once(given, "app", 1, [out.finish()], jobs=["job"])
    assert (values(topic, "t"), values(topic, "u")) == ([b"t"], [b"u"])
    assert (last_version(topic, "app", "t"), last_version(topic, "app")) == (1, None)


def test_a_write_without_an_application_id_is_published_each_time(topic):
    for _ in range(2):
        assert publish_once(options(topic), None, None, [attempt(topic, b"a")], jobs=["job"])
    assert len(values(topic, "t")) == 4


@pytest.mark.parametrize("point", ["staging.committed", "spark.commit.finished"])
def test_abort_does_not_undo_a_durable_commit_that_raised(topic, point):
    schema = StructType([StructField("value", BinaryType())])
    given = Options.parse({"path": topic.path, "topic": "t"})
    message = StagedMessage(attempt(topic, b"x", job="stream-query-3"), "query")
    files.arm_failpoint(point, "EIO")
    try:
        with pytest.raises(StorageError):
            EoslogStreamWriter(given, schema).commit([message], 3)
    finally:
        files.disarm_failpoints()
    # Spark continues with the same messages in another process, and later repeats the batch.
    EoslogStreamWriter(given, schema).abort([message, None], 3)
    assert sorted(values(topic, "t")) == [b"x0", b"x1"]
    again = StagedMessage(attempt(topic, b"y", job="stream-query-3"), "query")
    EoslogStreamWriter(given, schema).commit([again], 3)
    assert sorted(values(topic, "t")) == [b"x0", b"x1"] and staged(topic) == []


@pytest.mark.parametrize("point", ["staging.committed", "spark.commit.finished"])
def test_abort_does_not_undo_a_durable_micro_batch_that_raised(topic, point):
    schema = StructType([StructField("value", BinaryType())])
    given = {"path": topic.path, "topic": "t", "txnAppId": "app", "txnVersion": "1"}

    def job(tag):
        writer = EoslogWriter(Options.parse(given), schema, False)
        return writer, [StagedMessage(attempt(topic, tag, job=writer.job)), None]

    writer, messages = job(b"x")
    files.arm_failpoint(point, "EIO")
    try:
        with pytest.raises(StorageError):
            writer.commit(messages)
    finally:
        files.disarm_failpoints()
    files.arm_failpoint("spark.abort", "EIO")  # the abort after it fails too
    try:
        with pytest.raises(StorageError):
            writer.abort(messages)
    finally:
        files.disarm_failpoints()
    assert sorted(values(topic, "t")) == [b"x0", b"x1"]
    writer.abort(messages)
    again, messages = job(b"y")
    again.commit(messages)
    assert sorted(values(topic, "t")) == [b"x0", b"x1"] and staged(topic) == []


def stream_commit(log, tag, version, checkpoint=None):
    """Commit a micro-batch as Spark calls the sink.

    It has two records, or none if `tag` is None.
    """
    given = {"path": log.path, "topic": "t"}
    if checkpoint is not None:
        given["checkpointLocation"] = checkpoint.as_uri()
    writer = EoslogStreamWriter(
        Options.parse(given), StructType([StructField("value", BinaryType())])
    )
    job = f"stream-query-{version}"
    if tag:
        one = attempt(log, tag, job=job)
    else:
        one = AttemptWriter(log.path, job, "empty", 0, 0).finish()
    writer.commit([StagedMessage(one, "query", given.get("checkpointLocation"))], version)


def test_a_micro_batch_older_than_the_last_one_is_rejected_not_dropped(topic):
    for version in range(3):
        stream_commit(topic, b"%d" % version, version)
    stream_commit(topic, b"2", 2)  # the last one again, as after a crash
    said = r"batch 1 of the query 'query' .* up to batch 2: .* checkpoint went back"
    with pytest.raises(IllegalState, match=said):
        stream_commit(topic, b"new", 1)
    assert sorted(values(topic, "t")) == [b"00", b"01", b"10", b"11", b"20", b"21"]
    stream_commit(topic, b"3", 3)
    assert len(values(topic, "t")) == 8


def test_another_micro_batch_with_the_last_version_is_found_by_its_input(topic, tmp_path):
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets.parent / "metadata").write_text('{"id":"query"}')
    (offsets / "0").write_text('v1\n{"batchTimestampMs":1}\n{"in":{"0":5}}')
    stream_commit(topic, b"a", 0, offsets.parent)
    stream_commit(topic, b"b", 0, offsets.parent)  # the same input need not give the same rows
    (offsets / "0").write_text('v1\n{"batchTimestampMs":2}\n{"in":{"0":9}}')
    with pytest.raises(IllegalState, match="up to batch 0: .* checkpoint went back"):
        stream_commit(topic, b"c", 0, offsets.parent)
    assert sorted(values(topic, "t")) == [b"a0", b"a1"]


def test_a_different_record_count_is_rejected_if_the_input_is_unknown(topic):
    stream_commit(topic, b"a", 0)
    stream_commit(topic, b"b", 0)
    said = "batch 0 of .* then with 2 records, now with 0, .* startingOffsets at that offset"
    with pytest.raises(IllegalState, match=said):
        stream_commit(topic, b"", 0)
    assert sorted(values(topic, "t")) == [b"a0", b"a1"]


def test_missing_earlier_batches_log_a_warning(topic, caplog):
    for batch, said in ((3, False), (4, False), (7, True), (8, False)):
        caplog.clear()
        publish_once(options(topic), "query", batch, [], jobs=[], micro_batch=f"mark of {batch}")
        assert ("without them" in caplog.text) == said, batch


def test_versions_of_a_batch_write_may_decrease_unless_configured(topic):
    schema = StructType([StructField("value", BinaryType())])
    given = {"path": topic.path, "topic": "t", "txnAppId": "app"}

    def write(tag, version, **more):
        more = {**given, "txnVersion": str(version), **more}
        writer = EoslogWriter(Options.parse(more), schema, False)
        writer.commit([StagedMessage(attempt(topic, tag, job=writer.job))])

    write(b"a", 5)
    write(b"b", 4)
    write(b"b", 5, txnReplay="last")
    with pytest.raises(IllegalState, match="batch 4 of the query 'app' .* up to batch 5"):
        write(b"b", 4, txnReplay="last")
    assert sorted(values(topic, "t")) == [b"a0", b"a1"]


@pytest.mark.parametrize("stream", [False, True])
def test_rows_are_not_written_to_a_topic_re_created_since(topic, stream):
    schema = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
    given = Options.parse({"path": topic.path, "topic": "t"})
    rows = pa.record_batch({"key": [b"ann", b"bob"], "value": [b"1", b"2"]})
    writer = EoslogWriter(given, schema, False)

    def write(version):
        message = writer.task.run(iter([rows]), writer.job)
        if stream:
            message = replace(message, query_id="query")
            return lambda: EoslogStreamWriter(given, schema).commit([message], version)
        return lambda: writer.commit([message])

    write(0)()
    commit = write(1)
    topic.delete_topic("t")
    topic.create_topic("t", 3)
    with pytest.raises(IllegalState, match="topic 't' was deleted and re-created"):
        commit()
    assert values(topic, "t", isolation="read_uncommitted") == []


def test_a_topic_re_created_while_rows_are_appended_aborts_the_write(topic):
    one = attempt(topic, b"x", limit=1 << 20)
    planned = topic.topic_id("t")

    class Recreating:
        done = False

        def __iter__(self):
            yield "t", planned
            if not self.done:  # after the first check
                self.done = True
                topic.delete_topic("t")
                topic.create_topic("t", 2)

    with pytest.raises(IllegalState, match="topic 't' was deleted and re-created"):
        publish_once(options(topic), None, None, [one], jobs=["job"], topic_ids=Recreating())
    assert values(topic, "t") == []


def test_abort_before_the_decision_leaves_nothing(topic):
    schema = StructType([StructField("value", BinaryType())])
    given = Options.parse({"path": topic.path, "topic": "t"})
    message = StagedMessage(attempt(topic, b"x", job="stream-query-0"), "query")
    EoslogStreamWriter(given, schema).abort([message, None], 0)
    writer = EoslogWriter(given, schema, False)
    writer.abort([StagedMessage(attempt(topic, b"x", job=writer.job))])
    assert values(topic, "t", isolation="read_uncommitted") == []
    left = [path for path in (Path(topic.path) / STAGING).rglob("*") if path.is_file()]
    assert left == []


def test_a_stream_batch_without_a_message_cannot_be_committed(topic):
    schema = StructType([StructField("value", BinaryType())])
    given = Options.parse({"path": topic.path, "topic": "t"})
    with pytest.raises(IllegalState, match="no message that names its query"):
        EoslogStreamWriter(given, schema).commit([None], 0)


DRIVER = """
import sys
from pyspark_eoslog.options.options import Options
from pyspark_eoslog.write.publish import publish_once
from tests.spark.write.test_publish import attempt
import eoslog

path = sys.argv[1]
with eoslog.open(path) as log:
    one = attempt(log, b"k", segment=int(sys.argv[2]))
publish_once(Options.parse({"path": path}), "app", 5, [one], jobs=["job"])
"""


PUBLISHING = (
    "staging.written",
    "staging.staged",
    "txn.added",
    "staging.used",
    "staging.published",
    "txn.flushed",
    "txn.prepared",
    "txn.decided",
    "txn.marked",
    "staging.committed",
)


def not_empty(log):
    """Write an aborted record to each partition.

    No reader sees it, and a staged file can follow it.
    """
    with log.producer({"transactional.id": "nobody"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for partition in range(2):
            producer.produce("t", b"aborted", partition=partition)
        producer.flush()
        producer.abort_transaction()


@pytest.mark.process
@pytest.mark.parametrize(
    ("segment", "point"),
    [
        *((size, point) for size in (1, 1 << 20) for point in PUBLISHING),
        *((1, point) for point in ("adopt.stamped", "adopt.durable", "log.rolled")),
    ],
)
def test_a_driver_killed_at_any_step_and_restarted_publishes_once(topic, segment, point):
    """With its staged files read and appended, and with the files as segments."""
    not_empty(topic)
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", DRIVER, topic.path, str(segment)]
    killed = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path, "EOSLOG_FAILPOINTS": f"{point}=kill"},
        timeout=ENDED_S,
    )
    assert killed.returncode == -signal.SIGKILL, "the kill did not fall into its window"
    seen = sorted(values(topic, "t"))
    assert seen in ([], [b"k0", b"k1"])
    again = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, timeout=ENDED_S)
    assert again.returncode == 0
    assert sorted(values(topic, "t")) == [b"k0", b"k1"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("to", "version", "error"),
    [("t", 5, "TransactionAborted"), (None, 7, "CommitOutcomeUnknown"), (None, 5, None)],
)
def test_a_commit_by_another_write_of_the_application_is_not_its_own(topic, to, version, error):
    """The other commit is to another topic, as a later version, or as the same one.

    Only the same version to the same topic is what was wanted.
    """
    path = os.pathsep.join(sys.path)
    points = "txn.flushed=interrupt,spark.commit.unknown=stop"
    unsure = subprocess.Popen(
        [sys.executable, "-c", DRIVER, topic.path, "1"],
        env={**os.environ, "PYTHONPATH": path, "EOSLOG_FAILPOINTS": points},
        stderr=subprocess.PIPE,
        text=True,
    )
    _, status = os.waitpid(unsure.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "it did not come to where it asks again"
    other = Options.parse({"path": topic.path} | ({"topic": to} if to else {}))
    one = attempt(topic, b"x", job="other")
    assert publish_once(other, "app", version, [one], jobs=["other"])
    os.kill(unsure.pid, signal.SIGCONT)
    _, said = unsure.communicate(timeout=ENDED_S)
    if error is None:
        assert unsure.returncode == 0, said
    else:
        assert unsure.returncode == 1 and f"{error}: " in said.splitlines()[-1]
    assert sorted(values(topic, "t")) == [b"x0", b"x1"]


@pytest.mark.process
@pytest.mark.parametrize("call", [("app", 5), (None, None)])
def test_an_unknown_commit_found_aborted_fails_and_can_be_repeated(topic, call):
    path = os.pathsep.join(sys.path)
    command = [
        sys.executable,
        "-c",
        DRIVER.replace('"app", 5', "{!r}, {!r}".format(*call)),
        topic.path,
        "1",
    ]
    environment = {**os.environ, "PYTHONPATH": path}
    interrupted = subprocess.run(  # while it asks for the commit, before the decision
        command,
        env={**environment, "EOSLOG_FAILPOINTS": "txn.flushed=interrupt"},
        stderr=subprocess.PIPE,
        text=True,
        timeout=ENDED_S,
    )
    said = interrupted.stderr
    assert interrupted.returncode == 1
    assert "TransactionAborted" in said and "was interrupted by KeyboardInterrupt" in said
    assert values(topic, "t") == []
    assert subprocess.run(command, env=environment, timeout=ENDED_S).returncode == 0
    assert sorted(values(topic, "t")) == [b"k0", b"k1"]
