"""Which directory a command works with, which group, and from where it follows."""

from __future__ import annotations

import io
import os
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

import eoslog
from eoslog.cli import main
from eoslog.commands import root
from tests.field.users import USERS, as_root, common_folder, run_as


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command and group below, as the words that name it."""
    found = []
    for name, command in group.commands.items():
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
    return found


@pytest.mark.parametrize("words", commands(root), ids=" ".join)
def test_field_C5_every_level_accepts_the_directory_and_the_format(words, capsys):
    assert main([*words, "--help"]) == 0
    told = capsys.readouterr().out
    assert "-d, --dir DIR" in told or words == ("demo", "flights")  # it has a --dir of its own
    assert "--format" in told


@pytest.mark.parametrize("level", range(3))
@pytest.mark.parametrize("option", ["-d", "--dir"])
def test_field_C5_the_directory_can_be_given_at_each_level(shop, place, capsys, level, option):
    words = ["topic", "list"]
    words[level:level] = [option, str(place), "--format", "json"]
    capsys.readouterr()
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("[\n")


def test_field_C5_two_directories_are_a_usage_error_that_names_both(shop, place, capsys):
    for words in (
        ["-d", str(place), "topic", "list", "-d", "/other"],
        ["topic", "-d", str(place), "list", "-d", "/other"],
        ["topic", "list", "-d", str(place), "-d", "/other"],
        ["-d", str(place), "-d", "/other", "topic", "list"],
    ):
        assert main(words) == 2
        told = capsys.readouterr()
        assert str(place) in told.err and "/other" in told.err and told.out == ""
    assert main(["--format", "csv", "-d", str(place), "stats", "--format", "json"]) == 2
    assert "'csv' and 'json'" in capsys.readouterr().err
    assert main(["-d", str(place), "topic", "-d", str(place), "list", "-d", str(place)]) == 0


def test_field_C5_an_option_overrides_the_environment(shop, place, capsys, monkeypatch):
    monkeypatch.setenv("EOSLOG_DIR", str(place))
    assert main(["topic", "list"]) == 0
    assert main(["topic", "list", "-d", str(place.parent / "none")]) == 3
    monkeypatch.setenv("EOSLOG_DIR", str(place.parent / "none"))
    assert main(["topic", "list", "-d", str(place)]) == 0


READING = [
    ("topic", "list"), ("topic", "describe", "t"), ("offsets", "t"), ("consume", "t"), ("stats",),
    ("group", "list"), ("txn", "list"), ("check",), ("locks",), ("durability",), ("compact",),
    ("backup", "copy"), ("repair",), ("topic", "create", "t"), ("produce", "t"),
    ("group", "reset", "g", "-t", "t", "--to", "0"), ("export", "kafka", "--bootstrap", "x:1"),
]  # fmt: skip


@pytest.mark.parametrize("words", READING, ids=" ".join)
@pytest.mark.parametrize("there", ["missing", "empty", "foreign", "partition", "above", "mistyped"])
def test_field_C5_a_wrong_directory_names_the_option_and_the_logs_nearby(
    tmp_path, monkeypatch, capsys, words, there
):
    (tmp_path / "my shop").mkdir()
    with eoslog.open(tmp_path / "my shop" / "log") as log:
        log.create_topic("t")
    here = {
        "missing": tmp_path / "my shop" / "data",
        "empty": tmp_path / "my shop" / "data",
        "foreign": tmp_path / "my shop" / "data",
        "partition": tmp_path / "my shop" / "log" / "t-0",
        "above": tmp_path / "my shop",
        "mistyped": tmp_path / "my shop" / "logg" / "deep",
    }[there]
    if there in ("empty", "foreign"):
        here.mkdir()
    if there == "foreign":
        (here / "notes.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert main([*words, "-d", str(here)]) == 3
    (told,) = capsys.readouterr().err.splitlines()
    assert "`eoslog init` creates one" in told
    named = shlex.split(told[told.index("-d ") :].split(" (`")[0])[1]
    assert os.path.samefile(named, tmp_path / "my shop" / "log")
    assert (
        main(["topic", "list", "-d", named]) == 0
    )  # the option works exactly as the message shows it


def test_field_C5_a_wrong_directory_without_a_log_nearby_names_the_option(tmp_path, capsys):
    assert main(["topic", "list", "-d", str(tmp_path / "none")]) == 3
    told = capsys.readouterr().err
    assert "-d DIR" in told and "create=True" not in told


@as_root
def test_a_log_that_the_user_may_not_read_is_not_called_missing():
    code = "from eoslog.cli import main; sys.exit(main(sys.argv[1:]))"
    with common_folder() as folder:
        eoslog.open(folder / "log").close()
        for command in ("stats", "repair"):
            found = run_as(USERS[0], code, "-d", folder / "log", command)
            assert (found.returncode, found.stdout) == (1, "")
            assert "Permission denied" in found.stderr and "no log" not in found.stderr


def test_field_C7_reset_of_an_unknown_group_creates_it_only_with_create(shop):
    reset = ("-t", "orders", "--to", "earliest")
    assert shop("group", "reset", "sums", "--create", *reset).code == 0
    for more in ((), ("--dry-run",)):
        found = shop("group", "reset", "smus", *reset, *more)
        assert (found.code, found.out) == (3, "")
        assert (
            "group 'smus' does not exist; did you mean 'sums'? add --create to create it"
            in found.err
        )
    assert [row["group"] for row in shop("group", "list").rows] == ["sums"]
    assert shop("group", "reset", "sums", *reset).code == 0


def following(place: Path, *words: str) -> tuple[str, list[str]]:
    """Return what `consume -f` reports at its start, and the "old" lines.

    Records with "new" are sent until one is printed.
    """
    command = [sys.executable, "-m", "eoslog", "-d", str(place), "consume", "orders", "-f", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        try:
            said = running.stderr.readline().decode().strip()
            seen = b""
            with eoslog.open(place) as log, log.producer(linger_ms=0) as producer:
                # Where a new group starts is settled when it has its partitions: until then more.
                while b'"new"' not in seen:
                    producer.send("orders", "new", partition=0).result(60)
                    if select.select([running.stdout], [], [], 0.5)[0]:
                        seen += os.read(running.stdout.fileno(), 1 << 20)
        finally:
            running.send_signal(signal.SIGINT)
            rest = running.communicate(timeout=30)[0]
    return said, [line for line in (seen + rest).decode().splitlines() if '"old"' in line]


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "start", "old"),
    [
        ((), "the end", 0),
        (("-g", "fresh"), "the end", 0),
        (("-b",), "the beginning", 3),
        (("-b", "-g", "fresh"), "the beginning", 3),
        (("-g", "there"), "the committed offsets of group there", 2),
        (("-o", "1", "-p", "0"), "offset 1", 2),
        (("-g", "fresh", "-c", "auto.offset.reset=earliest"), "the beginning", 3),
    ],
)
def test_field_C8_following_starts_at_the_end_and_reports_the_offset(
    shop, place, words, start, old
):
    with eoslog.open(place) as log:
        with log.producer() as producer:
            for _ in range(3):
                producer.produce("orders", "old", partition=0)
        log.reset_offsets("there", {eoslog.TopicPartition("orders", 0): 1})
    said, found = following(place, *words)
    assert said.startswith(f"eoslog: following from {start}")
    assert len(found) == old


def test_field_C12_init_sets_the_mode(cli, place):
    assert cli("init", "--mode", "abc").code == 2
    assert cli("init", "--mode", "7770").code == 2
    assert cli("init", "--mode", "770").code == 0
    assert place.stat().st_mode & 0o777 == 0o770
    assert {path.stat().st_mode & 0o777 for path in place.iterdir() if path.is_file()} == {0o660}
    again = cli("init", "--mode", "0o750")
    assert (again.code, "750" in again.err, "770" in again.err) == (2, True, True)
    assert cli("init").code == 0


TOPICS = ["topic create nope", "topic list"]


@pytest.mark.parametrize(
    ("line", "remedies"),
    [
        ("topic delete -y nope", TOPICS),
        ("topic alter nope -p 3", ["topic list"]),
        ("offsets nope", TOPICS),
        ("consume nope", TOPICS),
        ("consume nope -g g", TOPICS),
        ("produce nope", TOPICS),
        ("produce -- -nope", ["topic create -- -nope", "topic list"]),
        ("offsets no:pe", ["topic list"]),
        ("compact -t nope", TOPICS),
        ("group reset g -t nope --to 0 --create", TOPICS),
        ("why nope", ["group list"]),
        ("group describe nope", ["group list"]),
        ("group delete nope -y", ["group list"]),
        ("txn resolve nope commit", ["txn pending"]),
    ],
)
def test_remedies_of_the_command_line_are_commands_that_work(
    shop, place, monkeypatch, line, remedies
):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"value\n")))
    found = shop(*line.split())
    assert found.code == 3
    named = [words for words in found.err.split("`") if words.startswith("eoslog ")]
    assert named == [f"eoslog -d {place} {words}" for words in remedies]
    assert "log." not in found.err
    assert [main(shlex.split(words)[1:]) for words in named] == [0] * len(named)


def test_a_remedy_repeats_the_directory_as_a_shell_reads_it(shop, place, monkeypatch, capsys):
    there = place.rename(place.parent / "my log {0}")
    assert main(["-d", str(there), "offsets", "nope"]) == 3
    assert f"`eoslog -d '{there}' topic create nope`" in capsys.readouterr().err
    monkeypatch.setenv("EOSLOG_DIR", str(there))
    assert main(["offsets", "nope"]) == 3
    assert "`eoslog topic create nope`" in capsys.readouterr().err
