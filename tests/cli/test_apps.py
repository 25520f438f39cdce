"""`eoslog run` and `eoslog dead`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module

import pytest

import eoslog

APP = """
import logging
import eoslog

app = eoslog.App({path!r}, "billing", commit_interval=30)

@app.task("orders", key="string", value="json", to="bills", on_error="dead_letter")
def bill(order, ctx):
    logging.getLogger("shop").info("billing %s", order.value)
    if order.value["price"] < 0:
        raise ValueError("a price below 0")
    return order.value["price"]
"""
PRICES = (3, -1, 4, -2)


@pytest.fixture
def billed(shop, place, tmp_path, monkeypatch):
    """A log with two dead letters of the application `billing`."""
    shop("topic", "create", "bills")
    with eoslog.open(place) as log, log.producer() as producer:
        for number, price in enumerate(PRICES):
            headers = [("trace", b"t%d" % number)]
            producer.produce(
                "orders", json.dumps({"price": price}), "ada", headers=headers, partition=0
            )
    (tmp_path / "shop_app.py").write_text(APP.format(path=str(place)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shop_app", raising=False)
    import_module("shop_app").app.run(until="caught_up")
    yield shop
    monkeypatch.delitem(sys.modules, "shop_app", raising=False)


def bills(place):
    with eoslog.open(place) as log:
        return [json.loads(record.value) for record in log.read("bills")]


def test_run_processes_the_records_and_reports_them(billed, place):
    assert bills(place) == [3, 4]
    again = billed("run", "shop_app:app", "--until", "caught_up", "--processes", "2")
    assert again.code == 0
    assert again.err.splitlines()[-1].startswith("billing: 0 records in 0 transactions")
    with eoslog.open(place) as log, log.producer() as producer:
        producer.produce("orders", '{"price": 8}', partition=1)
    assert billed("run", "shop_app:app", "--until", "caught_up").code == 0
    assert bills(place) == [3, 4, 8]


def test_run_logs_the_place_of_the_record_of_each_line(place, billed, tmp_path):
    billed("topic", "create", "more")
    with eoslog.open(place) as log, log.producer() as producer:
        producer.produce("orders", '{"price": 9}', partition=1)
    command = [sys.executable, "-m", "eoslog", "run", "shop_app:app", "--until", "caught_up"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    [line] = [line for line in done.stderr.splitlines() if "INFO shop: billing" in line]
    assert line.endswith("billing {'price': 9} [billing/bill orders-1 at offset 0]")
    assert "app billing: assigned orders-0, orders-1\n" in done.stderr


def test_run_ends_after_sigterm_and_prints_what_it_did(billed, place, tmp_path):
    program = APP.format(path=str(place)).replace(", commit_interval=30", "")
    (tmp_path / "quick_app.py").write_text(program)
    command = [sys.executable, "-m", "eoslog", "run", "quick_app:app", "-p", "2"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as run:
        with eoslog.open(place) as log, log.producer() as producer:
            producer.produce("orders", '{"price": 5}', partition=1)
        deadline = time.monotonic() + 60
        while 5 not in bills(place):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        told = run.communicate(timeout=60)[1]
    assert run.returncode == 0
    assert "billing: 1 record in 1 transaction, 0 retried, 0 skipped, 0 dead letters" in told


def test_run_rejects_what_is_not_an_application(billed):
    for target, told in (
        ("shop_app", "expected MODULE:APP such as shop_app:app, got 'shop_app'"),
        ("shop_app:", "expected MODULE:APP"),
        ("missing_app:app", "no module 'missing_app' in "),
        ("shop_app:missing", "'missing' is not an eoslog.App in shop_app; it has shop_app:app"),
        ("shop_app:app.run", "'app.run' is not an eoslog.App"),
    ):
        run = billed("run", target)
        assert run.code == 2
        assert told in run.err


@pytest.mark.usefixtures("billed")
def test_run_rejects_another_directory(tmp_path):
    command = [sys.executable, "-m", "eoslog", "-d", "other", "run", "shop_app:app"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "-d other: the application 'billing' is in" in run.stderr


def test_run_exits_with_the_code_of_the_error(billed, place, tmp_path):
    (tmp_path / "stop_app.py").write_text(
        APP.format(path=str(place)).replace('billing"', 'strict"').replace("dead_letter", "stop")
    )
    assert (run := billed("run", "stop_app:app", "--until", "caught_up")).code == 1
    assert "app 'strict', task 'bill': orders-0 at offset 1 failed: ValueError" in run.err
    with eoslog.open(place) as log:
        log.delete_topic("bills")
    assert (run := billed("run", "stop_app:app", "--until", "caught_up")).code == 3
    assert "; --create-topics creates the missing topics" in run.err
    created = billed("run", "shop_app:app", "--create-topics", "--until", "caught_up")
    assert created.code == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_run_prints_the_traceback_of_a_task_that_fails(billed, place, tmp_path, processes):
    program = APP.format(path=str(place)).replace('billing"', 'strict"')
    (tmp_path / "strict_app.py").write_text(program.replace("dead_letter", "stop"))
    command = [sys.executable, "-m", "eoslog", "run", "strict_app:app", "-p", str(processes)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    told, cause, last = done.stderr.rpartition("ValueError: a price below 0\neoslog: app 'strict'")
    assert cause and "Traceback" not in last
    told = told[told.rindex("Traceback") :]
    assert f'File "{tmp_path / "strict_app.py"}", line 11, in bill' in told
    assert told.count("  File ") == 1


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def f():\n    return 1 / 0\nf()", "line 2, in f\n|ZeroDivisionError: division by zero"),
        ("def f(:", "line 1\n|SyntaxError: invalid syntax"),
        ("import missing_one", "line 1, in <module>\n|ModuleNotFoundError: No module named"),
        (
            "import sys\nsys.exit('-x is missing')",
            "line 2, in <module>\n|SystemExit: -x is missing",
        ),
    ],
    ids=["error", "syntax", "dependency", "exit"],
)
def test_run_prints_the_traceback_of_a_module_that_fails(cli, tmp_path, monkeypatch, source, told):
    (tmp_path / "bad_app.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = cli("run", "bad_app:app")
    assert run.code == 2
    line, error = told.split("|")
    assert f'File "{tmp_path / "bad_app.py"}", {line}' in run.err
    assert f"\n{error}" in run.err
    last = run.err.splitlines()[-1]
    assert last.startswith(f"eoslog: module 'bad_app' could not be imported: {error}")
    assert "report it" not in run.err and "eoslog/commands" not in run.err


def test_dead_list_shows_place_cause_and_attempts(billed):
    rows = billed("dead", "list").rows
    assert [(row["id"], row["offset"], row["replayed"]) for row in rows] == [
        (0, 1, False),
        (1, 3, False),
    ]
    assert rows[0]["cause"] == "ValueError: a price below 0"
    assert (rows[0]["app"], rows[0]["task"], rows[0]["topic"]) == ("billing", "bill", "orders")
    assert billed("dead", "list", "billing").rows == rows
    assert "a price below 0" in billed("dead", "list", form="table").out


def test_dead_list_of_an_unknown_app_is_not_found(billed):
    assert billed("dead", "list", "other").code == 3
    assert billed("dead", "show", "other", 0).code == 3
    assert billed("dead", "replay", "other", "--all").code == 3


def test_dead_show_shows_the_record_completely(billed):
    [row] = billed("dead", "show", "billing", 1).rows
    assert (row["key"], row["value"], row["headers"]) == (
        "ada",
        '{"price": -2}',
        [["trace", "t3"]],
    )
    assert "raise ValueError" in row["traceback"]
    shown = billed("dead", "show", "billing", 1, form="table").out
    assert "header trace" in shown and "ValueError: a price below 0" in shown
    assert billed("dead", "show", "billing", 7).code == 1


def test_dead_replay_sends_each_back_to_the_input_once(billed, place):
    assert "sent 1 dead letter back" in billed("dead", "replay", "billing", 1).err
    assert "sent 1 dead letter back" in billed("dead", "replay", "billing", "--all").err
    assert "sent 0 dead letters back" in billed("dead", "replay", "billing", "--all").err
    assert "sent before: 1" in billed("dead", "replay", "billing", 1).err
    with eoslog.open(place) as log:
        sent = list(log.read("orders"))[len(PRICES) :]
        stored = [r for r in log.read("orders") if r.offset == 3]
    assert [record.value for record in sent] == [b'{"price": -2}', b'{"price": -1}']
    assert (sent[0].key, sent[0].headers) == (b"ada", [("trace", b"t3")])
    assert (sent[0].partition, sent[0].timestamp) == (0, stored[0].timestamp)
    assert billed("dead", "list").rows == []
    assert [row["replayed"] for row in billed("dead", "list", "--all").rows] == [True, True]


def test_dead_replay_to_the_task_leaves_the_input_alone(billed, place, tmp_path):
    program = (tmp_path / "shop_app.py").read_text().replace("< 0", "< -1")
    (tmp_path / "fixed_app.py").write_text(program)
    assert billed("dead", "replay", "billing", "--all", "--only-task").code == 0
    assert billed("run", "fixed_app:app", "--until", "caught_up").code == 0
    assert bills(place) == [3, 4, -1]
    [row] = billed("dead", "list").rows
    assert (row["offset"], row["attempts"]) == (3, 1)
    with eoslog.open(place) as log:
        assert len(list(log.read("orders"))) == len(PRICES)


def test_dead_replay_needs_ids_or_all(billed):
    assert billed("dead", "replay", "billing").code == 2
    assert billed("dead", "replay", "billing", 1, "--all").code == 2
    missing = billed("dead", "replay", "billing", 0, 9)
    assert (missing.code, missing.err.count("no dead letter at offset 9")) == (1, 1)
    assert len(billed("dead", "list").rows) == 2


REPLAY = ["-m", "eoslog", "dead", "replay", "billing", "--all"]


@pytest.mark.process
@pytest.mark.parametrize(
    "point", ["app.replayed:1", "app.replay_committed:1", "position.set:1", "txn.prepared:1",
              "txn.decided:1"],
)  # fmt: skip
def test_a_killed_replay_repeats_nothing(billed, place, point):
    environment = {**os.environ, "EOSLOG_DIR": str(place), "EOSLOG_FAILPOINTS": f"{point}=kill"}
    killed = subprocess.run([sys.executable, *REPLAY], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert billed("dead", "replay", "billing", "--all").code == 0
    with eoslog.open(place) as log:
        assert [record.value for record in log.read("orders")].count(b'{"price": -1}') == 2
        assert len(list(log.read("orders"))) == len(PRICES) + 2
