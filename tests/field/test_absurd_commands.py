"""Commands with absurd arguments print no traceback and exit as documented."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog

pytest.importorskip("click")

import click

from eoslog.cli import main
from eoslog.commands import root

TEXTS = ["", " ", "\ud800", "caf\udce9", "a\nb", "../x", "a/b", "..", "x" * 250, "x" * 32_768,
         "-1", "0", "5", "2147483648", "9223372036854775808", str(10**30), "1" * 5000, "nan", "inf",
         "1e400", "true", "[]", "{}", "=", "k=", "t:0:5", "t=9999999999999999999", "\u00fc", "^(",
         "2020-01-01", "%s%n"]  # fmt: skip
WAITING = {"demo", "bench"}  # they run for long by themselves
CODES = {0, 1, 2, 3, 4, 5, 6}


def _commands(group: click.Group, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if name in WAITING:
            continue
        if isinstance(command, click.Group):
            yield from _commands(command, (*above, name))
        else:
            yield (*above, name)


def _command(path: tuple[str, ...]) -> click.Command:
    found: Any = root
    for name in path:
        found = found.commands[name]
    return found


def _lines(path: tuple[str, ...]) -> Iterator[list[str]]:
    """Command lines with one absurd text each, in an argument or an option."""
    parameters = _command(path).to_info_dict(click.Context(_command(path)))["params"]
    needed = [p for p in parameters if p["param_type_name"] == "argument" and p["required"]]
    plain = ["t"] * len(needed)
    for text in TEXTS:
        yield [*path, "--", *([text] * max(1, len(needed)))]
        yield [*path, *plain, f"--no-such-option={text}"]
        for option in parameters:
            if option["param_type_name"] == "option" and not option.get("is_flag"):
                yield [*path, option["opts"][-1], text, *plain]


@pytest.mark.parametrize("path", list(_commands(root)), ids=" ".join)
def test_field_C4_a_command_with_absurd_text_gives_no_traceback(
    path: tuple[str, ...], tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: PTH123, SIM115
    with eoslog.open("log", durability="os") as log:
        log.create_topic("t")
    os.mkdir("empty")
    for line in _lines(path):
        if any(word in line for word in ("-f", "--follow", "--bootstrap", "-b")):
            continue
        code = main(["-d", "log", *line])
        said = capfd.readouterr().err
        assert code in CODES, (line, said)
        assert "Traceback" not in said, (line, said)
        assert "EOSLOG_TRACEBACK" not in said, (line, said)
        assert code == 0 or said.strip(), line


def test_field_C4_an_unexpected_error_is_one_line_unless_a_traceback_is_set(
    tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **keywords: Any) -> None:
        raise ZeroDivisionError("caf\udce9\nsecond line")

    monkeypatch.setattr(eoslog, "open", broken)
    assert main(["-d", str(tmp_path), "topic", "list"]) == 1
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "ZeroDivisionError" in said
    assert "EOSLOG_TRACEBACK=1" in said
    monkeypatch.setenv("EOSLOG_TRACEBACK", "1")
    assert main(["-d", str(tmp_path), "topic", "list"]) == 1
    assert "Traceback" in capfd.readouterr().err


def test_field_C4_bytes_that_are_not_utf8_give_no_traceback(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
    program = Path(sys.executable).with_name("eoslog")
    for locale in ("C.UTF-8", "C", "POSIX"):
        for words in ((b"topic", b"describe", b"\xff"), (b"produce", b"t"), (b"produce", b"\xff")):
            done = subprocess.run(
                [program, b"-d", os.fsencode(tmp_path / "log"), *words],
                input=b"\xff\xfe\n\0\n", capture_output=True, timeout=120, check=False,
                env={**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0"},
            )  # fmt: skip
            assert b"Traceback" not in done.stderr, (locale, words, done.stderr)
            assert done.returncode in CODES
