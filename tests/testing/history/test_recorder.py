"""The recorder's history of a real log is valid, and damage to it is found."""

from __future__ import annotations

import json

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.testing.history import Recorder, check, read_history

pytest.importorskip("click")
from eoslog.cli import main

IN, OUT = TopicPartition("in", 0), TopicPartition("out", 0)


@pytest.fixture
def recorded(tmp_path):
    """The history of a short run: sends, a commit, an abort and a transformation.

    The transformation is a consume-transform-produce loop.
    """
    folder = tmp_path / "history"
    folder.mkdir()
    with (
        eoslog.open(tmp_path / "log") as log,
        Recorder(str(folder / "a.jsonl"), "a") as recorder,
    ):
        for topic in ("in", "out"):
            log.create_topic(topic)
        plain = recorder.producer(log)
        plain.send([(IN, f"p{number}") for number in range(10)])
        assert plain.acknowledge() == 10
        plain.close()
        producer = recorder.producer(log, "tx", linger_ms=0)
        consumer = log.consumer(
            "in", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
        )
        with consumer:
            reading = recorder.consumer(consumer)
            for number in range(3):
                txn = producer.begin()
                records = reading.consume(3, 5, txn)
                producer.send([(OUT, f"{number}-{record.offset}") for record in records])
                if number == 1:
                    producer.abort()
                    consumer.seek(IN, records[0].offset)
                    reading.moved()
                else:
                    span = (records[0].offset, records[-1].offset + 1)
                    producer.commit({IN: span}, consumer.group_metadata())
        producer.close()
        recorder.bounds(log, ["in", "out"])
        recorder.snapshot(log, ["in", "out"])
        recorder.scan(log, "out")
        recorder.committed(log, "g")
        recorder.drain(log, ["in", "out"])
    return folder


def test_a_recorded_run_is_valid_and_completely_checked(recorded):
    report = check(read_history([str(recorded)]))
    assert report.ok, report.lines()
    assert report.counts["writes"] == 19 and report.counts["transactions"] == 3
    assert report.counts["drained"] == 16 and report.counts["reads"] == 15


def test_verify_history_names_the_violation_and_exits_with_5(recorded, capsys):
    assert main(["verify-history", str(recorded)]) == 0
    assert "no anomaly" in capsys.readouterr().err
    file = recorded / "a.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[-1]["log"].pop()
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["--format", "jsonl", "verify-history", str(recorded)]) == 5
    found = {json.loads(line)["anomaly"] for line in capsys.readouterr().out.splitlines()}
    assert {"lost-write", "torn-txn", "read-then-lost"} <= found


def test_a_history_without_a_drain_is_rejected_and_names_the_partitions(recorded, capsys):
    file = recorded / "a.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if json.loads(line)["f"] != "drain"))
    assert check(read_history([str(recorded)])).undrained == ["in-0", "out-0"]
    assert main(["verify-history", str(recorded)]) == 1
    shown = capsys.readouterr()
    assert "no drain of in-0, out-0" in shown.err and "no anomaly" not in shown.err


@pytest.mark.parametrize("text", ["", "not a history\n"])
def test_verify_history_rejects_files_without_an_event(tmp_path, capsys, text):
    file = tmp_path / "other.jsonl"
    file.write_text(text)
    assert main(["verify-history", str(file)]) == 1
    shown = capsys.readouterr()
    assert f"no event in {file}" in shown.err and "no anomaly" not in shown.err


@pytest.mark.parametrize("transactional_id", [None, "tx"])
def test_two_recorders_with_one_process_name_are_rejected(tmp_path, transactional_id):
    folder = tmp_path / "history"
    folder.mkdir()
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("out")
        for number in range(2):
            with Recorder(str(folder / f"{number}.jsonl"), "a") as recorder:
                producer = recorder.producer(log, transactional_id)
                if transactional_id is not None:
                    producer.begin()
                producer.send([(OUT, f"{number}")])
                if transactional_id is not None:
                    producer.commit()
                producer.acknowledge()
                producer.close()
    with pytest.raises(ValueError, match=r"used twice: \['a\.1'.*another process name"):
        check(read_history([str(folder)]))


@pytest.mark.parametrize("mode", ["inline", "staged"])
def test_the_history_of_prepared_transactions_is_valid(tmp_path, mode):
    folder = tmp_path / "history"
    folder.mkdir()
    with (
        eoslog.open(tmp_path / "log") as log,
        Recorder(str(folder / "a.jsonl"), "a") as recorder,
    ):
        log.create_topic("out")
        producer = recorder.producer(log, "tx", linger_ms=0)
        for number, commit in enumerate((True, False)):
            txn = producer.begin(mode)
            producer.send([(OUT, f"{number}-{n}") for n in range(3)])
            token = producer.prepare()
            recorder.scan(log, "out")
            assert recorder.outcome(log, txn, token) is eoslog.Outcome.UNKNOWN
            assert recorder.decide(log, txn, token, commit=commit) is commit
            assert recorder.decide(log, txn, token, commit=not commit) is commit
            assert recorder.outcome(log, txn, token) is not eoslog.Outcome.UNKNOWN
        producer.close()
        recorder.scan(log, "out")
        recorder.drain(log, ["out"])
    report = check(read_history([str(folder)]))
    assert report.ok, report.lines()
    assert (report.counts["transactions"], report.counts["drained"]) == (2, 3)
