"""Records that wait while their partition goes to another worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

import eoslog
from eoslog.app import retry_topic

SUSPENDED = """
import sys
import eoslog
from eoslog.storage.fs import files

app = eoslog.App(sys.argv[1], "shop")

@app.task("numbers", value="json", to="out", retries=(0.0,))
def work(record, ctx):
    if record.value == 100 and ctx.attempt == 2:
        files.arm_failpoint("app.offsets", "stop", 1)
    if record.value == 100 and ctx.attempt == 1:
        raise ValueError("no")
    return record.value

app.run()
"""


def steps(app, at):
    """Let a worker take over a partition, and try the records that wait in it."""
    while at not in app._begun()._clients.consumer.assignment():
        app.step()
    for _ in range(3):
        app.step()


@pytest.mark.process
def test_a_record_that_a_suspended_worker_commits_is_done_once(log):
    """It is not in the log when another worker gets the partition."""
    app = eoslog.App(log, "shop")

    @app.task("numbers", value="json", to="out", retries=(0.0,))
    def work(record, ctx):
        return record.value

    app.create_topics()
    command = [sys.executable, "-c", SUSPENDED, log.path]
    with app, subprocess.Popen(command) as other:
        try:
            while True:
                app.step()
                members = log.describe_group("shop").members
                if sorted(len(one.assigned) for one in members) == [1, 1]:
                    break
            app.step()
            mine = set(app._begun()._clients.consumer.assignment())
            [theirs] = [one for one in members if not mine & set(one.assigned)]
            [at] = theirs.assigned
            with log.producer() as producer:
                producer.produce("numbers", "100", partition=at.partition)
            _, status = os.waitpid(other.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            log._engine.groups.leave("shop", theirs.member_id)  # as after the session timeout
            takes_over = threading.Thread(target=steps, args=(app, at))
            takes_over.start()
            takes_over.join(3)  # it waits for the transaction of the other worker
            os.kill(other.pid, signal.SIGCONT)
            other.send_signal(signal.SIGTERM)
            assert other.wait(60) == 0
            takes_over.join()
            app.run(until="caught_up")
        finally:
            other.kill()
    assert sorted(json.loads(record.value) for record in log.read("out")) == [*range(20), 100]


def test_a_worker_that_cannot_read_what_waits_takes_over_again(log, monkeypatch):
    app = eoslog.App(log, "shop")

    @app.task("numbers", value="json", to="out", retries=(3600.0,))
    def work(record, ctx):
        if record.value == 4 and ctx.attempt == 1:
            raise ValueError("no")
        return record.value

    app.create_topics()
    while app.step():
        pass
    app.close()
    log._engine.use_clock(lambda: 1e12)
    monkeypatch.setattr(retry_topic, "_RESTORE_S", 0.1)
    with app, log.producer(transactional_id="other") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("shop.retries", "value", "[]", partition=0)
        producer.flush()
        assert app.step() == 0
        producer.abort_transaction()
        app.run(until="caught_up")
    assert sorted(json.loads(record.value) for record in log.read("out")) == list(range(20))
