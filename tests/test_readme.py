"""What the README shows runs; what it names exists; it stays short."""

import os
import re
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("EOSLOG_SOURCE") or Path(__file__).parent.parent)
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_it_is_at_most_150_lines_and_the_example_about_20():
    assert len(README.splitlines()) <= 150
    (example,) = blocks(README, "python")
    assert len([line for line in example.splitlines() if line.strip()]) <= 22


def test_its_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = blocks(README, "python")
    for _ in range(2):  # and once more, as whoever tries it will
        exec(compile(example, "README.md", "exec"), {})
    assert (tmp_path / "shop" / "meta.properties").exists()


def test_the_everyday_tasks_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tasks = blocks((ROOT / "docs/python.md").read_text(), "python")
    assert len(tasks) == 6
    exec(compile("\n".join(tasks), "docs/python.md", "exec"), {})
    assert "orders 0 0 " in capsys.readouterr().out


def test_the_files_that_it_names_exist():
    names = re.findall(r"`((?:docs|examples|bench|tests)/[\w./-]*)`", README)
    assert names
    for name in names:
        assert (ROOT / name).exists(), name


def test_the_make_targets_that_it_names_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\bmake ([a-z-]+)", README)):
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), target


@pytest.mark.parametrize("line", re.findall(r"^eoslog .*$", README, re.MULTILINE))
def test_the_commands_that_it_shows_are_understood(line, tmp_path, monkeypatch, capsys):
    pytest.importorskip("click")
    from eoslog.cli import main

    monkeypatch.chdir(tmp_path)
    (example,) = blocks(README, "python")
    exec(compile(example, "README.md", "exec"), {})
    words = line.split("#")[0].split()[1:]
    assert main(words) == 0, capsys.readouterr().err
