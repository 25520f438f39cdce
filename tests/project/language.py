"""English in the tree, checked against the vocabulary and the style guide.

    python -m tests.project.language                 # hits by pattern and by kind
    python -m tests.project.language --show PATTERN  # every hit of the patterns with that text
    python -m tests.project.language --structure     # sentences, lines and names that are too long
    python -m tests.project.language --write         # write the new, lower budget
    python -m tests.project.language --commits       # subjects since the commit in `.ci/commit-base`
    python -m tests.project.language --commit-msg FILE

The vocabulary is `docs/contributing/vocabulary.toml`. It finds only a part of what the rules in
`docs/contributing/style.md` forbid.
"""

from __future__ import annotations

import ast
import collections
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.paths import SOURCE

BUDGET = Path(__file__).with_name("language_budget.json")
VOCABULARY = "docs/contributing/vocabulary.toml"
COMMIT_BASE = ".ci/commit-base"
"""First line: the last commit that rule 12 does not bind. Each other line: a slip, by its hash."""

USER_PAGES = re.compile(
    r"README\.md$|docs/(index\.md|(tutorials|how-to|reference|explanation)/.*)$"
)
SKIPPED = re.compile(r"(torture-report|contributing/style|glossary)\.md$|/vocabulary\.toml$|/data/")
NOT_PROSE = re.compile(r"`[^`]*`|https?://\S+|\]\([^)]*\)|\b\w+(?:\.\w+)+\b|\b\w*_\w+\b")
LOGGED = {"debug", "info", "warning", "error", "exception"}
BAD_TEST_NAME = re.compile(r"test_([A-Z]\d+_)?(it|they|nor|this|what|who|whose|whoever)_")
MOST_LINE, MOST_SENTENCE, MOST_SUMMARY, MOST_TEST_NAME, MOST_SUBJECT = 100, 30, 79, 72, 72


class Piece(NamedTuple):
    """A piece of prose.

    `kind` is docs, changelog, docstring, comment, message, help or test.
    """

    file: str
    kind: str
    line: int
    text: str

    @property
    def is_for_users(self) -> bool:
        """Whether users meet the text: there the budget is zero."""
        return self.kind in ("message", "help") or bool(USER_PAGES.match(self.file))


class Word(NamedTuple):
    pattern: re.Pattern[str]
    use: str
    kinds: tuple[str, ...] | None


@cache
def words() -> tuple[Word, ...]:
    listed = tomllib.loads((SOURCE / VOCABULARY).read_text())["word"]
    return tuple(
        Word(
            re.compile(word["pattern"], re.IGNORECASE),
            word["use"],
            tuple(word["where"]) if "where" in word else None,
        )
        for word in listed
    )


def hits_of(kind: str, text: str) -> Iterator[tuple[Word, str]]:
    """Each hit in a text, with the characters around it."""
    clean = " ".join(NOT_PROSE.sub("x", text).split())
    for word in words():
        if word.kinds is None or kind in word.kinds:
            for found in word.pattern.finditer(clean):
                yield word, clean[max(0, found.start() - 30) : found.end() + 30]


def _literal(node: ast.AST) -> str:
    """The constant text of an expression, f-strings included."""
    parts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
    return " ".join(part for part in parts if isinstance(part, str))


def _python(text: str, *, tests: bool) -> Iterator[tuple[str, int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if found := ast.get_docstring(node):
                yield "docstring", node.body[0].lineno, found
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield "test", node.lineno, node.name
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in LOGGED and node.args and not tests:
                yield "message", node.lineno, _literal(node.args[0])
            elif name[:1].isupper() and node.args and not tests:
                yield "message", node.lineno, " ".join(map(_literal, node.args))
            for keyword in node.keywords:
                if keyword.arg in ("help", "short_help"):
                    yield "help", node.lineno, _literal(keyword.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield "comment", token.start[0], token.string.lstrip("#!: ")


def _cython(text: str) -> Iterator[tuple[str, int, str]]:
    """Docstrings, comments and raised texts of a Cython file.

    The files have no `#` or triple quotes in strings.
    """
    for found in re.finditer(r'"""(.*?)"""', text, re.DOTALL):
        yield "docstring", text.count("\n", 0, found.start()) + 1, found.group(1)
    blank = re.sub(
        r'""".*?"""', lambda found: "\n" * found.group().count("\n"), text, flags=re.DOTALL
    )
    for number, line in enumerate(blank.splitlines(), 1):
        code, _, comment = line.partition("#")
        if comment:
            yield "comment", number, comment
        for found in re.finditer(r'"((?:[^"\\]|\\.)*)"', code):
            if " " in found.group(1):
                yield "message", number, found.group(1)


def _markdown(text: str, kind: str) -> Iterator[tuple[str, int, str]]:
    """Prose and table cells outside fenced blocks."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(`{3,}|~{3,})", line)
        if mark and not fence:
            fence = mark.group(1)
        elif mark and mark.group(1).startswith(fence):
            fence = ""
        elif not fence:
            yield kind, number, line


def pieces(root: Path = SOURCE) -> Iterator[Piece]:
    """All prose of the files that git tracks or would track."""
    listed = subprocess.check_output(
        ["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"], text=True
    )
    for name in sorted(set(listed.splitlines())):
        path = root / name
        if SKIPPED.search(name) or not path.is_file():
            continue
        if path.suffix == ".md":
            kind = "changelog" if name == "CHANGELOG.md" else "docs"
            found = _markdown(path.read_text(), kind)
        elif path.suffix == ".py":
            found = _python(path.read_text(), tests=name.startswith("tests/"))
        elif path.suffix in (".pxi", ".pyx", ".pxd"):
            found = _cython(path.read_text())
        else:
            continue
        for piece in found:
            yield Piece(name, *piece)


def _structure_of(piece: Piece) -> Iterator[str]:
    """The structural rules that one piece breaks."""
    if piece.kind == "docs" and not piece.text.lstrip().startswith(("|", "[")):
        if len(piece.text) > MOST_LINE:
            yield f"a line of a page has over {MOST_LINE} characters"
    elif piece.kind == "docstring" and piece.file.endswith(".py"):
        summary = piece.text.strip().split("\n\n")[0]
        if "\n" in summary or len(summary) > MOST_SUMMARY:
            yield f"a docstring's first line is not one sentence of {MOST_SUMMARY} characters"
        if "Raises " in summary:
            yield "a docstring's first line says what it raises"
    elif piece.kind == "test":
        if len(piece.text) > MOST_TEST_NAME:
            yield f"a test's name has over {MOST_TEST_NAME} characters"
        if BAD_TEST_NAME.match(piece.text):
            yield "a test's name has no subject"
    elif piece.kind == "help" and piece.text and not piece.text.rstrip().endswith((".", "]")):
        yield "a help text does not end with a period"
    elif piece.kind == "message" and re.search(
        r"\bhere\b|(?<!is )\bthere\b(?! (is|are|was|were|has|may|can)\b)", piece.text
    ):
        yield "a message says here or there"


def _long_sentences(page: list[Piece]) -> Iterator[tuple[int, str]]:
    """(line, sentence) of the sentences of a page with over `MOST_SENTENCE` words."""
    paragraph: list[Piece] = []
    for piece in [*page, Piece("", "docs", 0, "")]:
        text = piece.text.strip()
        if text and not re.match(r"[|#<]|[-*] |\d+\. |:::|\[\^?\w+\]:", text):
            paragraph.append(piece)
            continue
        sentences = re.split(r"(?<=[.!?])\s+", " ".join(p.text.strip() for p in paragraph))
        for sentence in sentences:
            if len(NOT_PROSE.sub("x", sentence).split()) > MOST_SENTENCE:
                yield paragraph[0].line, sentence
        paragraph = (
            [piece._replace(text=re.sub(r"^\s*([-*]|\d+\.) ", "", piece.text))]
            if re.match(r"[-*] |\d+\. ", text)
            else []
        )


class Finding(NamedTuple):
    """A broken rule; `area` is "user" where the budget is zero for good, else "rest"."""

    area: str
    rule: str
    use: str
    where: str
    kind: str


def findings(root: Path = SOURCE) -> Iterator[Finding]:
    """Every hit of the vocabulary and every broken structural rule."""
    pages: dict[str, list[Piece]] = collections.defaultdict(list)
    for piece in pieces(root):
        area = "user" if piece.is_for_users else "rest"
        place = f"{piece.file}:{piece.line}: {piece.kind}"
        text = (
            piece.text.removeprefix("test_").replace("_", " ")
            if piece.kind == "test"
            else piece.text
        )
        for word, context in hits_of(piece.kind, text):
            yield Finding(
                area, word.pattern.pattern, word.use, f"{place}: ...{context}...", piece.kind
            )
        for rule in _structure_of(piece):
            yield Finding(area, rule, "", f"{place}: {piece.text.strip()[:120]}", "structure")
        if piece.kind == "docs":
            pages[piece.file].append(piece)
    for name, page in pages.items():
        for line, sentence in _long_sentences(page):
            area = "user" if USER_PAGES.match(name) else "rest"
            rule = f"a sentence of a page has over {MOST_SENTENCE} words"
            yield Finding(area, rule, "", f"{name}:{line}: {sentence}", "structure")


def counts(found: list[Finding]) -> dict[str, dict[str, int]]:
    """Counts by area and rule, as in the budget file."""
    counted: dict[str, dict[str, int]] = {"user": {}, "rest": {}}
    for finding in found:
        of_area = counted[finding.area]
        of_area[finding.rule] = of_area.get(finding.rule, 0) + 1
    return {area: dict(sorted(rules.items())) for area, rules in counted.items()}


def over_budget(counted: dict[str, dict[str, int]], budget: dict[str, Any]) -> list[str]:
    """Each count that is above its budget, as a line for the reader."""
    return [
        f"{area} text, {rule!r}: {count}, the budget is {budget.get(area, {}).get(rule, 0)}"
        for area, rules in counted.items()
        for rule, count in rules.items()
        if count > budget.get(area, {}).get(rule, 0)
    ]


def wrong_in_commit_message(message: str) -> list[str]:
    """The parts of rule 12 that a commit message breaks."""
    lines = [line for line in message.splitlines() if not line.startswith("#")] or [""]
    subject, wrong = lines[0], []
    if len(subject) > MOST_SUBJECT:
        wrong.append(f"the subject has {len(subject)} characters, at most {MOST_SUBJECT} fit")
    if ";" in subject:
        wrong.append("the subject has a ';': make one change per commit, or use the body")
    if subject.endswith("."):
        wrong.append("the subject ends with a period")
    if not re.match(r"[\w/., -]+: [A-Z][a-z]+ ", subject):
        wrong.append("the subject is not 'area: Verb object', as in 'storage: Fix ...'")
    if len(lines) > 1 and lines[1]:
        wrong.append("the second line is not empty")
    return wrong + [
        f"{context!r}: use {word.use}" for word, context in hits_of("commit", "\n".join(lines))
    ]


def knows_the_base(root: Path = SOURCE) -> bool:
    """Whether the repository has the base commit: a shallow clone may not."""
    base = (root / COMMIT_BASE).read_text().split()[0]
    command = ["git", "-C", root, "merge-base", "--is-ancestor", base, "HEAD"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def wrong_commits(root: Path = SOURCE) -> list[str]:
    """The commits after the base that break rule 12, except the listed slips.

    Raises:
        CalledProcessError: if the base is not a commit of this repository.
    """
    base, *slips = (root / COMMIT_BASE).read_text().split("\n")
    known = {slip.split()[0] for slip in slips if slip.strip()}
    text = subprocess.check_output(
        [
            "git",
            "-C",
            root,
            "log",
            "--no-merges",
            "--format=%H%x01%B%x00",
            f"{base.split()[0]}..HEAD",
        ],
        text=True,
    )
    wrong = []
    for entry in filter(str.strip, text.split("\0")):
        commit, _, message = entry.strip().partition("\1")
        if commit not in known:
            wrong += [
                f"{commit[:12]} {message.splitlines()[0]!r}: {w}"
                for w in wrong_in_commit_message(message)
            ]
    return wrong


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--commit-msg"]:
        wrong = wrong_in_commit_message(Path(arguments[1]).read_text())
        print(*wrong, sep="\n")
        return bool(wrong)
    if arguments == ["--commits"]:
        wrong = wrong_commits()
        print(*wrong, sep="\n") if wrong else print("Every commit subject follows rule 12.")
        return bool(wrong)
    found = list(findings())
    counted = counts(found)
    if arguments[:1] == ["--show"]:
        print(
            *(f.where for f in found if f.kind != "structure" and arguments[1] in f.rule), sep="\n"
        )
    elif arguments == ["--structure"]:
        print(*(f"{f.rule}: {f.where}" for f in found if f.kind == "structure"), sep="\n")
    elif arguments == ["--write"]:
        budget = json.loads(BUDGET.read_text()) if BUDGET.exists() else {}
        if budget and (over := over_budget(counted, budget)):
            print(*over, sep="\n")
            return 1
        BUDGET.write_text(json.dumps(counted, indent=1) + "\n")
    else:
        by_rule = collections.Counter((f.rule, f.use) for f in found)
        for (rule, use), count in sorted(by_rule.items(), key=lambda item: -item[1]):
            print(f"{count:5d}  {rule[:60]:60s} {use}")
        words_only = [f for f in found if f.kind != "structure"]
        print(
            len(words_only),
            "hits of the vocabulary;",
            dict(collections.Counter(f.kind for f in words_only)),
        )
        print(sum(f.area == "user" for f in words_only), "of them in text that users read")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
