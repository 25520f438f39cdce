"""init, topic, offsets: what they print, and the exit code of each way to fail."""

import csv
import io
import json
import shutil

import pytest

import eoslog


def test_init_creates_a_log_and_is_idempotent(cli, place):
    first = cli("init")
    assert first.code == 0
    assert "strict" in first.err
    assert first.out == ""
    assert (place / "meta.properties").exists()
    assert cli("init").code == 0
    assert cli("durability").rows[0]["durability"] == "strict"


def test_another_durability_is_a_usage_error_that_names_both(cli):
    assert cli("init", "--durability", "os").code == 0
    again = cli("init", "--durability", "strict")
    assert again.code == 2
    assert "strict" in again.err
    assert "os" in again.err


def test_a_missing_directory_is_not_found_and_not_created(cli, place):
    found = cli("topic", "list")
    assert found.code == 3
    assert not place.exists()
    assert found.out == ""
    assert str(place) in found.err
    assert "`eoslog init` creates one" in found.err
    place.mkdir()
    assert "`eoslog init` creates one" in cli("topic", "list").err
    assert "`eoslog init` creates one" in cli("locks").err


def test_a_foreign_directory_is_rejected_and_unchanged(cli, place):
    place.mkdir()
    (place / "mine.txt").write_text("mine")
    for command in (("init",), ("topic", "list")):
        found = cli(*command)
        assert found.code in (1, 2, 3, 5)
        assert found.err.startswith("eoslog: ")
        assert len(found.err.splitlines()) == 1
    assert [path.name for path in place.iterdir()] == ["mine.txt"]


def test_topics_can_be_created_listed_described_altered_and_deleted(shop):
    assert shop("topic", "create", "logs", "-c", "retention.ms=5000").code == 0
    assert [row["topic"] for row in shop("topic", "list").rows] == ["logs", "orders"]
    (about,) = shop("topic", "describe", "logs").rows
    assert about["config"] == {"retention.ms": "5000"}
    assert len(about["topic_id"]) == 22
    assert [p["partition"] for p in about["partitions"]] == [0]
    changed = shop(
        "topic", "alter", "logs", "--unset", "retention.ms", "-c", "segment.bytes=1024", "-p", 3
    )
    assert changed.code == 0
    (about,) = shop("topic", "describe", "logs").rows
    assert about["config"] == {"segment.bytes": "1024"}
    assert len(about["partitions"]) == 3
    assert shop("topic", "delete", "logs", "-y").code == 0
    assert [row["topic"] for row in shop("topic", "list").rows] == ["orders"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("topic", "create", "orders"), 4, "orders"),
        (("topic", "create", "a/b"), 2, "a/b"),
        (("topic", "create", "x" * 250), 2, "249"),
        (("topic", "create", ".."), 2, ".."),
        (("topic", "create", "t", "-p", "0"), 2, "0"),
        (("topic", "create", "t", "-p", "two"), 2, "two"),
        (("topic", "create", "t", "-c", "retention.msec=1"), 2, "retention.ms"),
        (("topic", "create", "t", "-c", "retention"), 2, "KEY=VALUE"),
        (("topic", "describe", "nope"), 3, "nope"),
        (("topic", "delete", "nope", "-y"), 3, "nope"),
        (("topic", "alter", "nope", "-c", "retention.ms=1"), 3, "nope"),
        (("topic", "alter", "orders"), 2, "nothing to change"),
        (("topic", "alter", "orders", "-p", "1"), 2, "1"),
        (
            ("topic", "alter", "orders", "-c", "retention.ms=1", "--unset", "retention.ms"),
            2,
            "both",
        ),
        (("topic", "frobnicate"), 2, "frobnicate"),
        (("offsets", "nope"), 3, "nope"),
        (("nonsense",), 2, "nonsense"),
        (("--format", "xml", "topic", "list"), 2, "xml"),
    ],
)
def test_each_mistake_has_its_exit_code_and_is_named(shop, arguments, code, says):
    found = shop(*arguments)
    assert (found.code, found.out) == (code, "")
    assert says in found.err
    assert "Traceback" not in found.err


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_delete_asks_first(shop, monkeypatch, answer):
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    answered = shop("topic", "delete", "orders")
    assert answered.code == 1
    assert answered.err.endswith("eoslog: nothing was changed; add -y to skip the question\n")
    assert shop("topic", "describe", "orders").code == 0


def test_every_format_contains_the_same_rows(shop):
    rows = shop("offsets", "orders", form="jsonl").rows
    assert json.loads(shop("offsets", "orders", form="json").out) == rows
    read = list(csv.DictReader(io.StringIO(shop("offsets", "orders", form="csv").out)))
    assert [{k: int(v) for k, v in row.items()} for row in read] == rows
    table = shop("offsets", "orders", form="table").out
    assert table.split()[:2] == ["partition", "log_start"]
    assert len(table.splitlines()) == 3


def test_empty_lists_print_no_rows_and_valid_json(cli):
    cli("init")
    assert cli("topic", "list").out == ""
    assert json.loads(cli("topic", "list", form="json").out) == []
    assert cli("topic", "list", form="csv").out == "topic,partitions,offsets,offline\n"


def test_help_and_version_are_printed(cli):
    assert "Exit codes" in cli("--help").out
    assert "eoslog" in cli("--version").out
    for command in ("topic", "group", "txn", "demo"):
        assert cli(command, "--help").code == 0


def test_a_backup_is_a_log_that_can_be_opened(shop, tmp_path):
    done = shop("backup", tmp_path / "saved")
    assert done.code == 0
    assert "partitions" in done.err
    with eoslog.open(tmp_path / "saved", create=False) as saved:
        assert "orders" in saved.topics()
    again = shop("backup", tmp_path / "saved")
    assert again.code == 2
    assert "is not an empty directory" in again.err


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (("txn", "abort", "nope"), "txn list --all"),
        (("position", "delete", "nope"), "position list"),
        (("consume", "orders", "-p", 9), "topic describe orders"),
        (("repair", "--cut"), "repair"),
    ],
)
def test_a_command_in_an_error_names_the_directory(shop, place, monkeypatch, arguments, command):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert f"`eoslog -d {place} {command}`" in shop(*arguments).err


def test_an_offline_partition_is_named_and_the_others_are_shown(shop, place):
    with eoslog.open(place) as log, log.producer() as producer:
        log.create_topic("logs")
        producer.produce_many("orders", [b"x"] * 3, partition=0)
        producer.produce_many("orders", [b"x"] * 4, partition=1)
    shutil.rmtree(place / "orders-1")
    listed, stats = shop("topic", "list"), shop("stats")
    assert [(row["topic"], row["offsets"], row["offline"]) for row in listed.rows] == [
        ("logs", 0, 0),
        ("orders", 3, 1),
    ]
    assert list(stats.rows[0]["offline"]) == ["orders-1"]
    shown = shop("stats", form="csv").out.splitlines()
    assert [row.partition(",")[0] for row in shown[1:]] == ["orders-0", "logs-0"]
    for found in (listed, stats):
        assert found.code == 5
        assert "orders-1 is offline: orders-1: the partition's directory is missing" in found.err
        assert f"`eoslog -d {place} check`" in found.err
    assert shop("durability").code == shop("init").code == 0
    assert shop("backup", place.parent / "copy").code == 1


def test_topic_create_with_if_not_exists_is_idempotent(shop):
    assert shop("topic", "create", "orders").code == 4
    again = shop("topic", "create", "orders", "-p", 9, "--if-not-exists")
    assert (again.code, again.err) == (0, "orders exists, with 2 partitions\n")
    first = shop("topic", "create", "logs", "--if-not-exists")
    assert (first.code, first.err) == (0, "created logs with 1 partition\n")
