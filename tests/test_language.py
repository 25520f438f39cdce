"""Plain English: text that users read breaks no rule, and other text breaks fewer each time.

The rules are in `docs/contributing/style.md`. `python -m tests.project.language` shows the hits.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from tests.paths import SOURCE
from tests.project import language
from tests.project.test_public_names import shown

pytestmark = pytest.mark.skipif(
    not (SOURCE / ".git").exists(), reason="git lists the files, and this is not a checkout"
)


@pytest.fixture(scope="module")
def found() -> list[language.Finding]:
    return list(language.findings())


def docstring_of(thing: object) -> str:
    """Return a docstring without the signature that Cython puts in front."""
    text = inspect.getdoc(thing) or ""
    first, _, rest = text.partition("\n")
    return rest.lstrip() if re.match(r"\w+\(.*\)( ->.*)?$", first) else text


def public_docstrings() -> Iterator[tuple[str, str]]:
    """(name, docstring) of everything that `eoslog.__all__` reaches, compiled classes included."""
    names = shown()
    for name in names["eoslog"]:
        thing = getattr(eoslog, name)
        if not inspect.isclass(thing) and not callable(thing):
            continue
        yield name, docstring_of(thing)
        for attribute in names.get(name, ()):
            value = getattr(thing, attribute)
            if callable(value) or isinstance(value, property):
                yield f"{name}.{attribute}", docstring_of(value)


def test_text_that_users_read_breaks_no_rule(found):
    assert [finding.where for finding in found if finding.area == "user"] == []


def test_no_count_of_broken_rules_rises(found):
    over = language.over_budget(language.counts(found), json.loads(language.BUDGET.read_text()))
    assert over == []


def test_public_docstrings_use_the_vocabulary():
    hits = {
        f"{name}: ...{context}...: use {word.use}"
        for name, text in public_docstrings()
        for word, context in language.hits_of("docstring", text)
    }
    assert hits == set()


def test_public_docstrings_begin_with_one_short_sentence():
    wrong = {
        f"{name}: {text.splitlines()[0]}"
        for name, text in public_docstrings()
        if text and not name.startswith("Record.")
        for first, *others in [text.splitlines()]
        if len(first) > language.MOST_SUMMARY or not first.endswith(".") or (others and others[0])
    }
    assert wrong == set()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("docs", "The topic is made anew by whoever is writing."),
        ("message", "orders-0: nobody holds the lock"),
        ("docstring", "The records that are handed out go on."),
        ("comment", "the file lies beside the log"),
        ("test", "the log stands at its end"),
    ],
)
def test_old_words_are_found_in_every_kind_of_text(kind, text):
    assert list(language.hits_of(kind, text))


@pytest.mark.parametrize("text", ["`nobody` is code", "see https://x.example/nobody", "a.nobody()"])
def test_code_and_addresses_are_not_prose(text):
    assert not list(language.hits_of("docs", text))


def test_a_count_above_its_budget_is_reported_with_both_numbers():
    (line,) = language.over_budget({"rest": {"anew": 3}}, {"rest": {"anew": 2}})
    assert "3, the budget is 2" in line


@pytest.mark.parametrize(
    ("subject", "wrong"),
    [
        ("storage: Fix a torn index", []),
        ("Fix a torn index", ["the subject is not 'area: Verb object', as in 'storage: Fix ...'"]),
        (
            "storage: Fix this; fix that",
            ["the subject has a ';': make one change per commit, or use the body"],
        ),
        ("storage: Fix it.", ["the subject ends with a period"]),
        ("storage: Fix " + "x" * 70, ["the subject has 83 characters, at most 72 fit"]),
    ],
)
def test_a_commit_subject_is_an_area_a_verb_and_an_object(subject, wrong):
    assert language.wrong_in_commit_message(subject) == wrong


def repository(path: Path, *subjects: str) -> Path:
    """A repository with one commit per subject; the first is the base."""

    def git(*words: str) -> str:
        return subprocess.check_output(["git", "-C", path, *words], text=True).strip()

    path.mkdir()
    git("init", "-q")
    for number, subject in enumerate(subjects):
        git(
            "-c", "user.name=t", "-c", "user.email=t@example.org",
            "commit", "-q", "--allow-empty", "-m", subject,
        )  # fmt: skip
        if number == 0:
            (path / ".ci").mkdir()
            (path / language.COMMIT_BASE).write_text(git("rev-parse", "HEAD") + "\n")
    return path


def test_commits_after_the_base_are_checked_and_listed_slips_are_not(tmp_path):
    root = repository(tmp_path / "r", "anything", "log: Add a call", "did things")
    (wrong,) = language.wrong_commits(root)
    assert "'did things'" in wrong
    base = root / language.COMMIT_BASE
    head = subprocess.check_output(["git", "-C", root, "rev-parse", "HEAD"], text=True)
    base.write_text(base.read_text() + head)
    assert language.wrong_commits(root) == []


def test_every_commit_since_the_base_follows_the_rule():
    if not language.knows_the_base():
        pytest.skip("a shallow clone does not have the commits")
    assert language.wrong_commits() == []
