"""The README is short, its example prints what it shows, and its links resolve."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import SOURCE as ROOT

README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_readme_has_at_most_100_lines_and_an_example_of_22():
    assert len(README.splitlines()) <= 100
    (example,) = blocks(README, "python")
    assert len([line for line in example.splitlines() if line.strip()]) <= 22


def run_example(folder: Path) -> str:
    """Run the example in a process of its own, and return what it prints."""
    (example,) = blocks(README, "python")
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_example_prints_the_text_below_it_twice_in_one_directory(tmp_path):
    (shown,) = blocks(README, "text")
    for _ in range(2):
        assert run_example(tmp_path) == shown


def test_every_link_and_picture_exists():
    targets = re.findall(r"\]\(([^)#]+)\)|(?:src|srcset)=\"([^\"]+)\"", README)
    paths = [link or picture for link, picture in targets]
    assert len(paths) > 8
    for path in paths:
        assert path.startswith("https://") or (ROOT / path).exists(), path


def test_pictures_have_at_most_12_kilobytes():
    for path in (ROOT / "docs/_static").glob("*.svg"):
        assert path.stat().st_size <= 12_000, path


def test_figures_are_rows_of_the_last_benchmark():
    page = (ROOT / "docs/explanation/performance.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| ([\d.]+ times [^|]+) \|$", README, re.MULTILINE)
    assert len(rows) == 3
    for work, compared in rows:
        assert re.search(rf"^\| {re.escape(work)} \|.*\| {re.escape(compared)} \|$", page, re.M), (
            work
        )


def test_every_make_target_exists():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\bmake ([a-z-]+)", README)):
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), target


@pytest.mark.parametrize("line", re.findall(r"^eoslog .*$", README, re.MULTILINE))
def test_every_command_succeeds_after_the_example(line, tmp_path, monkeypatch, capsys):
    pytest.importorskip("click")
    from eoslog.cli import main

    monkeypatch.chdir(tmp_path)
    run_example(tmp_path)
    words = line.split("#")[0].split()[1:]
    assert main(words) == 0, capsys.readouterr().err
