"""The entry point: missing extras, exit codes, interrupts and closed pipes."""

import subprocess
import sys

import pytest

from eoslog import cli as entry
from eoslog import commands, errors


@pytest.mark.parametrize("gone", ["click", "rich"])
def test_a_missing_extra_is_named_in_one_line(monkeypatch, capsys, gone):
    real = entry.find_spec
    monkeypatch.setattr(entry, "find_spec", lambda name: None if name == gone else real(name))
    assert entry.main(["topic", "list"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        f"eoslog: missing {gone}: pip install {gone} "
        "(or, in a checkout of eoslog, pip install '.[cli]')\n"
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UnknownTopicOrPartition("x"), 3),
        (errors.GroupNotFound("x"), 3),
        (errors.TransactionalIdNotFound("x"), 3),
        (errors.StorageError("x", 2, "/x"), 3),
        (errors.TopicAlreadyExists("x"), 4),
        (errors.ProducerFenced("x"), 4),
        (errors.NonEmptyGroup("x"), 4),
        (errors.CorruptRecord("x"), 5),
        (errors.LockTimeout("x"), 6),
        (errors.DeliveryTimeout("x"), 6),
        (errors.ConfigError("x"), 2),
        (errors.InvalidTopic("x"), 2),
        (errors.StorageError("x", 5), 1),
        (errors.DiskFull("x", 28), 1),
        (errors.IllegalState("x"), 1),
    ],
)
def test_every_error_has_its_exit_code(error, code):
    assert commands.exit_code_of(error) == code


def test_an_interrupt_exits_with_130(cli, monkeypatch):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("eoslog.commands.context.eoslog.open", interrupted, raising=False)
    assert cli("topic", "list").code == 130


def test_an_interrupt_during_start_exits_with_130(monkeypatch, capsys):
    def interrupted(_name):
        raise KeyboardInterrupt

    monkeypatch.setattr(entry, "find_spec", interrupted)
    assert entry.main(["topic", "list"]) == 130
    assert capsys.readouterr().err == "eoslog: interrupted\n"


def test_commands_without_arrays_do_not_import_numpy():
    code = "import sys, eoslog.commands; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.slow
def test_a_closed_pipe_ends_the_program_without_an_error(shop, place, tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("enough to fill a pipe\n" * 3000)
    shop("produce", "orders", lines)
    command = f"{sys.executable} -m eoslog -d {place} consume orders | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, timeout=400
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.slow
def test_python_dash_m_runs_the_command(place):
    done = subprocess.run(
        [sys.executable, "-m", "eoslog", "--version"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0
    assert "eoslog" in done.stdout
