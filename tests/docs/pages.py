"""Run the code blocks of a documentation page, in their order, and compare what they print.

`python -m tests.docs PAGE...` runs pages as the tests do. docs/contributing/style.md has the
conventions for writers, section "Code blocks".
"""

from __future__ import annotations

import io
import linecache
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from doctest import ELLIPSIS, OutputChecker
from pathlib import Path
from typing import Any

from tests.paths import ROOT

FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>[^\s`]*)[^\n`]*\n"
    r"(?P<body>.*?)^(?P=indent)(?P=fence) *$"
    r"|^(?P<hidden_indent> *)<!-- setup\n(?P<hidden>.*?)^ *-->"
    r"|^ *<!-- (?P<note>(?:not run|raises|exit|first run|file)\b[^>]*?) *-->"
    r"|^(?P<heading>#+ )",
    re.DOTALL | re.MULTILINE,
)
FILE_NAME = re.compile(r"\bas `(?P<name>[\w./-]+)`[^`\n]*:\s*\Z")
RUN, NOT_RUN = ("python", "console"), ("py", "sh")
SHELL_WORDS = re.compile(r"[|&;<>$`(){}*?~#=]")
TERMINAL = {"COLUMNS": "100", "LINES": "50", "TERM": "dumb", "NO_COLOR": "1"}
"""What commands see of the terminal."""


class Terminal(io.TextIOWrapper):
    """A stream that says that it is a terminal: commands then print tables."""

    def isatty(self) -> bool:
        """Always."""
        return True


DOCS = ROOT / "docs"
README = ROOT / "README.md"
FOLDERS = ("tutorials", "how-to", "explanation", "reference")
PAGES = [README] + sorted(
    page
    for folder in FOLDERS
    for page in (DOCS / folder).rglob("*.md")
    if "_generated" not in page.parts
)
"""The pages whose blocks run."""


class PageError(AssertionError):
    """A block failed, printed something else than the page shows, or lacks what it must have."""


@dataclass
class Block:
    """A fenced block of a page."""

    line: int
    """Of its first line of code, from 1."""
    language: str
    code: str
    file: str | None = None
    """The name under which the text before the block says to save it."""
    output: Block | None = None
    """The `text` block that shows what this one prints."""
    notes: dict[str, str] = field(default_factory=dict)


def parse(text: str) -> list[Block]:
    """The blocks of a page; a `text` block becomes the output of the block before it."""
    blocks: list[Block] = []
    notes: dict[str, str] = {}
    printer: Block | None = None
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        if found["note"]:
            word = next(
                w
                for w in ("not run", "raises", "exit", "first run", "file")
                if found["note"].startswith(w)
            )
            notes[word] = found["note"].removeprefix(word).strip(" :")
            continue
        if found["heading"]:
            printer, notes = None, {}
            continue
        if found["hidden"] is not None:
            code = textwrap.dedent(found["hidden"])
            blocks.append(Block(line, "python", code, notes={"setup": ""}))
            continue
        indent = len(found["indent"])
        code = "".join(
            row[min(indent, len(row) - len(row.lstrip(" "))) :]
            for row in found["body"].splitlines(True)
        )
        block = Block(line, found["language"], code, notes=notes)
        notes = {}
        named = FILE_NAME.search(text[: found.start()].rstrip() + "\n" if found.start() else "")
        block.file = block.notes.get("file") or (named["name"] if named else None)
        if block.language == "text" and printer is not None and block.file is None:
            printer.output, printer = block, None
        else:
            blocks.append(block)
            printer = block if block.language == "python" and block.file is None else None
    return blocks


def has_blocks(page: Path) -> bool:
    """Whether a page has blocks that run."""
    return any(block.language in RUN for block in parse(page.read_text()))


def is_spark(page: Path) -> bool:
    """Whether the blocks of a page need a Spark session, by the page's name."""
    return page.name.startswith("spark")


def name(page: Path) -> str:
    """A page's name in the tree."""
    return str(page.relative_to(ROOT))


def faults(text: str) -> list[str]:
    """What a page lacks by the conventions, as "line N: ..."."""
    found = []
    for block in parse(text):
        if block.language in NOT_RUN and block.file is None and "not run" not in block.notes:
            commands = [
                line for line in block.code.splitlines() if line and not line.startswith("#")
            ]
            if not any("pip install" in line for line in commands):
                found.append(f"line {block.line}: say why: <!-- not run: REASON -->")
    return found


@dataclass
class Run:
    """One run of a page, in the current directory."""

    page: Path
    first: bool = True
    """Whether the directory is new: output marked `first run` is compared only then."""
    namespace: dict[str, Any] = field(default_factory=dict)

    def all(self) -> int:
        """Run every block; the number of those that ran."""
        self.namespace.setdefault("__name__", "__main__")
        count = 0
        for block in parse(self.page.read_text()):
            if block.file is not None:
                file = Path(block.file)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.code)
            elif block.language == "python":
                self.python(block)
            elif block.language == "console":
                self.console(block)
            else:
                continue
            count += 1
        return count

    def python(self, block: Block) -> None:
        """Run a block of Python in the page's namespace and compare what it prints."""
        name = f"{self.page}"
        linecache.checkcache(name)
        code = compile("\n" * (block.line - 1) + block.code, name, "exec", dont_inherit=True)
        raised = ""
        with captured() as output:
            try:
                exec(code, self.namespace)
            except Exception as error:
                if block.notes.get("raises") != type(error).__name__:
                    raise PageError(
                        f"{self.page}:{block.line}: the block raised {type(error).__name__}: {error}"
                    ) from error
                raised = f"{type(error).__module__}.{type(error).__qualname__}: {error}\n"
        if "raises" in block.notes and not raised:
            raise PageError(f"{self.page}:{block.line}: {block.notes['raises']} was not raised")
        printed = output() + raised
        if block.output is not None:
            self.compare(block.output.line, block.output.code, printed, block.output.notes)
        elif printed.strip() and "setup" not in block.notes:
            raise PageError(
                f"{self.page}:{block.line}: the block prints, and no ```text block follows:\n{printed}"
            )

    def console(self, block: Block) -> None:
        """Run the commands of a block and compare what each prints."""
        commands = list(split(block))
        expected = int(block.notes.get("exit") or 0)
        simple = all(
            command.startswith("eoslog ") and not SHELL_WORDS.search(command)
            for _, command, _ in commands
        )
        results = (
            map(run_here, (c for _, c, _ in commands))
            if simple
            else run_shell([c for _, c, _ in commands])
        )
        for (line, command, shown), (code, printed) in zip(commands, results, strict=True):
            wanted = expected if command is commands[-1][1] else 0
            if code != wanted:
                raise PageError(
                    f"{self.page}:{line}: `{command}` exits with {code}, not {wanted}:\n{printed}"
                )
            if shown.strip() or printed.strip():
                self.compare(line, shown, printed, block.notes)

    def compare(self, line: int, shown: str, printed: str, notes: dict[str, str]) -> None:
        """Raise PageError unless the output is as shown; `...` matches any text."""
        if "first run" in notes and not self.first:
            return
        shown, printed = (
            "\n".join(row.rstrip() for row in text.strip("\n").splitlines()) + "\n"
            for text in (shown, printed)
        )
        if not OutputChecker().check_output(shown, printed, ELLIPSIS):
            raise PageError(
                f"{self.page}:{line}: the page shows\n{textwrap.indent(shown, '    ')}"
                f"and the output is\n{textwrap.indent(printed, '    ')}"
            )


def split(block: Block) -> Iterator[tuple[int, str, str]]:
    """Line, command and expected output of each command of a console block."""
    command, output, start = "", "", block.line
    for number, row in enumerate(block.code.splitlines(), block.line):
        if row.startswith("$ "):
            if command:
                yield start, command, output
            command, output, start = row[2:].strip(), "", number
        elif command.endswith("\\") and row.startswith("> ") and not output:
            command = f"{command[:-1].rstrip()} {row[2:].strip()}"
        else:
            output += row + "\n"
    if not command:
        raise PageError(f"line {block.line}: a console block has lines that begin with `$ `")
    yield start, command, output


def run_here(command: str) -> tuple[int, str]:
    """Exit code and output of an `eoslog` command, run in this process."""
    from eoslog.cli import main

    before = dict(os.environ)
    os.environ.update(TERMINAL)
    try:
        with captured(Terminal) as output:
            code = main(shlex.split(command)[1:])
    finally:
        os.environ.clear()
        os.environ.update(before)
    return code, output()


def run_shell(commands: list[str]) -> Iterator[tuple[int, str]]:
    """Exit code and output of each command, in one bash."""
    mark = "\x1emark"
    script = "".join(f"{command}\nprintf '{mark}%d\\n' $?\n" for command in commands)
    place = str(Path(sys.executable).parent)
    environment = {
        **os.environ, **TERMINAL, "PATH": f"{place}{os.pathsep}{os.environ['PATH']}"
    }  # fmt: skip
    master, slave = pty.openpty()
    output = bytearray()
    reader = threading.Thread(target=drain, args=(master, output), daemon=True)
    reader.start()
    try:
        subprocess.run(
            ["bash", "-c", script], stdin=subprocess.DEVNULL, stdout=slave, stderr=slave,
            env=environment, timeout=500, check=False,
        )  # fmt: skip
        end = f"{mark}done".encode()
        os.write(slave, end)
        while end not in output:
            time.sleep(0.001)
    finally:
        os.close(slave)
    text = output.decode(errors="replace").replace("\r\n", "\n")
    parts = re.split(rf"{mark}(\d+)\n", text)
    for number, _ in enumerate(commands):
        ended = 2 * number + 1 < len(parts)
        yield (int(parts[2 * number + 1]), parts[2 * number]) if ended else (-1, text)


def drain(master: int, output: bytearray) -> None:
    """Read a terminal until all that write to it have closed it."""
    while True:
        try:
            read = os.read(master, 65536)
        except OSError:
            break
        if not read:
            break
        output += read
    os.close(master)


@contextmanager
def captured(kind: type[io.TextIOWrapper] = io.TextIOWrapper) -> Iterator[Any]:
    """Everything that is printed by this process and its children, returned by a call."""
    text = ""
    before = (sys.stdout, sys.stderr)
    for stream in before:
        stream.flush()
    kept = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile() as file:
        try:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            sys.stdout, sys.stderr = (
                kind(io.FileIO(os.dup(number), "wb"), encoding="utf-8", write_through=True)
                for number in (1, 2)
            )
            yield lambda: text
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            sys.stdout, sys.stderr = before
            for number, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, number)
                os.close(copy)
            file.seek(0)
            text = file.read().decode(errors="replace")


def main(arguments: list[str]) -> int:
    """Run pages in the current directory; `--again` says that they ran there before."""
    first = "--again" not in arguments
    for name in arguments:
        if name == "--again":
            continue
        try:
            count = Run(Path(name), first).all()
        except PageError as error:
            print(error, file=sys.stderr)
            cause = error.__cause__
            if cause is not None:
                import traceback

                traceback.print_exception(cause)
            return 1
        print(f"{name}: {count} blocks ran")
    return 0
