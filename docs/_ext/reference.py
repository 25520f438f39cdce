"""Pages of the reference that are made from the code, and how docstrings become text.

Each function returns Markdown. Sphinx writes it to `docs/reference/_generated` before it reads the
pages, which include it; the tests call the same functions.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from eoslog import error_codes, errors
from eoslog.config.documented import keys_of
from eoslog.config.keys import ConsumerConfig, LogConfig, ProducerConfig, TopicConfig
from eoslog.config.parsing import Settings

DOCS = Path(__file__).resolve().parent.parent
GENERATED = DOCS / "reference" / "_generated"

KINDS: tuple[tuple[type[Settings], str, str], ...] = (
    (ProducerConfig, "Producers", "`log.producer(...)` and `Producer(...)` take these keys."),
    (ConsumerConfig, "Consumers", "`log.consumer(...)` and `Consumer(...)` take these keys."),
    (
        TopicConfig,
        "Topics",
        "`log.create_topic(name, config={...})` and `log.alter_topic` take these keys. They are "
        "stored with the topic. On the command line, use `-c KEY=VALUE`.",
    ),
    (
        LogConfig,
        "Logs",
        "`eoslog.open(path, ...)` takes these keys. They apply to the process that opens the log, "
        "unless the text says that they are stored. A broker's defaults for topics are accepted "
        "too; they apply to the topics that this process creates.",
    ),
)


# Configuration.
def shown_default(value: object) -> str:
    """A default as a user would write it."""
    if value is None:
        return "none"
    if value == "":
        return "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{','.join(map(str, value))}`"
    return f"`{value}`"


def configuration() -> str:
    """The keys of producers, consumers, topics and logs, and the keys without effect."""
    out: list[str] = []
    for kind, title, text in KINDS:
        out += [f"## {title}", "", text, ""]
        for key in keys_of(kind.KIND):
            anchor = f"{key.kind}-{key.name.replace('.', '-')}"
            unit = f" ({key.unit})" if key.unit else ""
            default = key.default if key.default in ("none", "empty") else f"`{key.default}`"
            facts = [f"{key.values}{unit}", f"default {default}"]
            if key.aliases:
                facts.append("also " + ", ".join(f"`{alias}`" for alias in key.aliases))
            if key.kafka:
                only = key.kafka.startswith("eoslog") or "Kafka" in key.kafka
                facts.append(key.kafka if only else f"differs from Kafka: {key.kafka}")
            out += [
                f"[`{key.name}`]{{#{anchor}}}", f": {key.meaning}", "",
                f"  *{'; '.join(facts)}*", "",
            ]  # fmt: skip
    out += ["## Keys without effect", ""]
    out += [
        "These keys are accepted, so that a configuration moves unchanged. Nothing reads them.",
        "",
    ]
    for kind, title, _ in KINDS:
        if not kind.IGNORED:
            continue
        prefixes = [f"`{prefix}*`" for prefix in kind.IGNORED_PREFIXES]
        names = [f"`{name}`" for name in sorted(kind.IGNORED)]
        out += [f"### {title}: keys without effect", "", ", ".join(prefixes + names) + ".", ""]
    out += ["## Keys that are rejected", ""]
    out += [
        "These keys would change what a program does. A value other than the accepted ones raises "
        "[`ConfigError`](errors.md#configerror).",
        "",
    ]
    for kind, title, _ in KINDS:
        if not kind.REPLACED:
            continue
        out += [f"### {title}: rejected keys", "", "| Key | Accepted | Instead |", "|---|---|---|"]
        for key, (harmless, instead) in sorted(kind.REPLACED.items()):
            accepted = ", ".join(
                dict.fromkeys(shown_default(value) for value in harmless if value != {})
            )
            out.append(f"| `{key}` | {accepted} | {instead} |")
        out.append("")
    return "\n".join(out)


# Errors.
def error_classes() -> list[type[errors.EoslogError]]:
    """Every public class of errors, as they are listed in `eoslog.errors`."""
    found = [
        value
        for name, value in vars(errors).items()
        if inspect.isclass(value)
        and issubclass(value, errors.EoslogError)
        and not name.startswith("_")
        and value.__name__ == name
    ]
    return sorted(found, key=lambda cls: cls.__name__)


def aliases_of(cls: type[errors.EoslogError]) -> list[str]:
    """Other names of a class."""
    return sorted(n for n, value in vars(errors).items() if value is cls and n != cls.__name__)


def causes() -> dict[str, dict[str, str]]:
    """Cause and cure of each class, by its name."""
    return tomllib.loads((DOCS / "reference" / "errors.toml").read_text())


def category(cls: type[errors.EoslogError]) -> str:
    """What a program can do after an error of a class."""
    code = getattr(cls, "code_of_class", None) or cls
    words = [word for word in ("retriable", "abortable", "fatal") if getattr(code, word, False)]
    if issubclass(cls, errors.CorruptRecord):
        words = [word for word in words if word != "retriable"]
    return ", ".join(words)


def summary(cls: type[Any]) -> str:
    """The first sentence of a docstring."""
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


def error_page() -> str:
    """Every class of errors: what it is, its cause and its cure."""
    known = causes()
    out = ["## Overview", "", "| Class | Category | Meaning |", "|---|---|---|"]
    for cls in error_classes():
        name = cls.__name__
        out.append(f"| [`{name}`](#{name.lower()}) | {category(cls)} | {summary(cls)} |")
    out += ["", "## Classes", ""]
    for cls in error_classes():
        name = cls.__name__
        code = getattr(cls, "code_of_class", None) or getattr(cls, "code", None)
        bases = [base.__name__ for base in cls.__bases__ if not base.__name__.startswith("_")]
        out += [
            f"### {name}", "", "```{eval-rst}", f".. py:exception:: eoslog.errors.{name}",
            "   :no-contents-entry:", "   :no-typesetting:", "```", "",
        ]  # fmt: skip
        facts = []
        if isinstance(code, error_codes.ErrorCode) and cls is not errors.KafkaError:
            facts.append(f"Code `{code.name}` ({int(code)})")
        if category(cls):
            facts.append(f"category: {category(cls)}")
        if bases and bases != ["Exception"]:
            facts.append(f"subclass of {' and '.join(f'`{base}`' for base in bases)}")
        if aliases_of(cls):
            facts.append(f"also named {', '.join(f'`{n}`' for n in aliases_of(cls))}")
        out += [summary(cls), ""]
        if facts:
            out += [f"*{'; '.join(facts)}.*", ""]
        entry = known[name]
        out += [f"**Cause.** {entry['cause']}", "", f"**Cure.** {entry['cure']}", ""]
    return "\n".join(out)


# The command line.
def commands() -> Iterator[tuple[str, Any]]:
    """Each command with its whole name, depth first."""
    import click

    from eoslog.commands import root

    def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        yield name, command
        if isinstance(command, click.Group):
            context = click.Context(command)
            for child in command.list_commands(context):
                found = command.get_command(context, child)
                if found is not None and not found.hidden:
                    yield from walk(found, f"{name} {child}")

    yield from walk(root, "eoslog")


def shared_options() -> dict[str, Any]:
    """Options that most commands have, by their declaration."""
    import click

    counts: dict[str, int] = {}
    found: dict[str, Any] = {}
    every = list(commands())
    for _, command in every:
        for option in command.params:
            if isinstance(option, click.Option):
                name = option_names(option)
                counts[name] = counts.get(name, 0) + 1
                found.setdefault(name, option)
    return {name: found[name] for name in found if counts[name] > len(every) / 2}


def option_names(option: Any) -> str:
    """As they are typed: `-p, --partitions INTEGER`."""
    names = ", ".join([*option.opts, *option.secondary_opts])
    if option.is_flag or option.count:
        return names
    import click

    metavar = option.make_metavar(click.Context(click.Command("x")))
    return f"{names} {metavar}"


def option_text(option: Any) -> str:
    """The help of an option, with its default and whether it repeats."""
    text = " ".join((option.help or "").split())
    default = option.default
    shown = isinstance(default, int | float | str) and not isinstance(default, bool)
    if shown and default != "" and "default" not in text and not option.is_flag:
        text += f" Default: `{default}`."
    shared = option.opts[-1] in ("--dir", "--format")  # repeated at other levels only
    if shared and isinstance(option.show_default, str):
        text += f" Default: {option.show_default}."
    if option.multiple and not shared and "repeat" not in text.lower():
        text += " Repeatable."
    if option.required:
        text += " Required."
    return text.replace("|", "\\|").strip()


def command_text(text: str) -> str:
    """A command's help as Markdown: paragraphs that keep their lines become code."""
    out: list[str] = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines = paragraph.split("\n")
        if lines[0].strip() != "\b":
            out.append(" ".join(line.strip() for line in lines))
            continue
        lines = lines[1:]
        if lines and lines[0].rstrip().endswith(":") and not lines[0].startswith(" "):
            out.append(lines.pop(0).strip())
        out.append("```sh\n" + textwrap.dedent("\n".join(lines)).strip("\n") + "\n```")
    return "\n\n".join(out)


def command_line() -> str:
    """Every command: its arguments, options, exit codes and examples."""
    import click

    shared = shared_options()
    out = [
        "## Shared options", "",
        "Almost every command has these. They can be before or after the name of the command.", "",
        "| Option | Meaning |", "|---|---|",
    ]  # fmt: skip
    out += [
        f"| `{name.replace('|', chr(92) + '|')}` | {option_text(option)} |"
        for name, option in shared.items()
    ]
    out += ["", "## Exit codes", "", "| Code | Meaning |", "|---|---|"]
    out += [f"| {code} | {text} |" for code, text in exit_codes()]
    out.append("")
    for name, command in commands():
        group = isinstance(command, click.Group)
        depth = "##" if name.count(" ") <= 1 else "###"
        if name != "eoslog":
            out += [f"{depth} `{name}`", ""]
        else:
            out += ["## `eoslog`", ""]
        context = click.Context(command, info_name=name)
        usage = " ".join(command.collect_usage_pieces(context))
        out += ["```text", f"{name} {usage}", "```", "", command_text(command.help or ""), ""]
        if group and name != "eoslog":
            children = [n for n, _ in commands() if n.startswith(f"{name} ")]
            out += [", ".join(f"[`{n}`](#{slug(n)})" for n in children), ""]
        options = [
            p for p in command.params
            if isinstance(p, click.Option) and option_names(p) not in shared and not p.hidden
        ]  # fmt: skip
        if options:
            out += ["| Option | Meaning |", "|---|---|"]
            out += [
                f"| `{option_names(p).replace('|', chr(92) + '|')}` | {option_text(p)} |"
                for p in options
            ]
            out.append("")
    return "\n".join(out)


def slug(name: str) -> str:
    """The anchor of a heading."""
    return name.replace(" ", "-")


def exit_codes() -> list[tuple[int, str]]:
    """Each exit code and when it is."""
    from eoslog import commands as command_modules

    classes = {code: [cls.__name__ for cls in found] for code, found in command_modules._EXITS}
    texts = {
        0: "success",
        1: "another error, or the answer to a question was no",
        2: "wrong usage, or a wrong configuration",
        3: "the log, topic, group, transactional id, token or position does not exist",
        4: "conflict: something exists already, is in use, or was fenced",
        5: "damage was found",
        6: "a timeout passed",
        130: "interrupted by Ctrl-C",
    }
    ours = {cls.__name__ for cls in error_classes()}
    rows = []
    for code, text in texts.items():
        names = [name for name in classes.get(code, ()) if name in ours]
        linked = ", ".join(f"[`{name}`](errors.md#{name.lower()})" for name in names)
        rows.append((code, f"{text}: {linked}" if linked else text))
    return rows


# Options of the Spark data source.
def spark_texts() -> dict[str, dict[str, str]]:
    """Default and meaning of each option, by its name."""
    return tomllib.loads((DOCS / "reference" / "spark-options.toml").read_text())


def spark_groups() -> list[tuple[str, list[str]]]:
    """Titles and the options below them, from the code."""
    from pyspark_eoslog.options import options

    known = list(spark_texts())

    def ordered(names: frozenset[str]) -> list[str]:
        return sorted(names, key=lambda n: (known.index(n) if n in known else len(known), n))

    return [(title, ordered(names)) for title, _, names in options._GROUPS]


def spark_options() -> str:
    """Every option of the data source, and the options that are accepted without effect."""
    from pyspark_eoslog.options import kafka_settings, options

    texts = spark_texts()
    out: list[str] = []
    for title, names in spark_groups():
        out += [f"## {title}", ""]
        for name in names:
            entry = texts[name]
            out += [f"[`{name}`]{{#spark-{name.replace('.', '-')}}}", f": {entry['meaning']}", ""]
            if "default" in entry:
                out += [f"  *default {entry['default']}*", ""]
    out += ["## Options without effect", ""]
    out += ["These options of Spark and its Kafka connector are accepted and ignored:", ""]
    harmless = sorted(f"kafka.{name}" for name in kafka_settings._HARMLESS)
    prefixes = [f"`kafka.{prefix}*`" for prefix in kafka_settings._HARMLESS_PREFIXES]
    names = [f"`{name}`" for name in [*sorted(options._IGNORED), *harmless]]
    out += [", ".join(names + prefixes) + ".", ""]
    out += ["## Rejected settings of Kafka clients", "", "| Option | Instead |", "|---|---|"]
    out += [f"| `kafka.{name}` | {why} |" for name, why in sorted(kafka_settings._REFUSED.items())]
    return "\n".join([*out, ""])


# Docstrings.
_RAISED = re.compile(r"^ +[\w.`]+(, [\w.`]+)*:")
_SEVERAL = re.compile(r"^(?P<indent>    )(?P<names>\w+(?:, \w+)+): (?P<text>.*)")
_SECTION = re.compile(r"^\s*(\w[\w ]*):\s*$")


def one_class_each(line: str) -> list[str]:
    """A line about several classes of errors, as a line for each."""
    found = _SEVERAL.match(line)
    names = found["names"].split(", ") if found else []
    if not found or not all(name in vars(errors) or name.endswith("Error") for name in names):
        return [line]
    return [f"{found['indent']}{name}: {found['text']}" for name in names]


def as_rst(lines: list[str]) -> list[str]:
    """A docstring in which indented text after a blank line is code, as in Markdown."""
    out: list[str] = []
    in_code = False
    lines = [row for line in lines for row in one_class_each(line)]
    for number, line in enumerate(lines):
        indented = line.startswith("    ")
        before = lines[number - 1] if number else ""
        if indented and not in_code and not before.strip() and number:
            above = next((row for row in reversed(lines[:number]) if row.strip()), "")
            if above and not above.startswith(" ") and not _SECTION.match(above):
                if above.endswith("::"):
                    out[-2] = out[-2][:-1]
                out += [".. code-block:: python", ""]
                in_code = True
        elif line == "Raises:" and not _RAISED.match("".join(lines[number + 1 : number + 2])):
            out.append("**Raises.**")  # a sentence, not a list of classes
            continue
        elif re.match(r"^Examples?:\s*$", line):
            out += ["**Example**", "", ".. code-block:: python", ""]
            in_code = True
            continue
        elif in_code and line.strip() and not indented:
            in_code = False
        out.append(re.sub(r"^Durability: (?=\S)", "**Durability.** ", line))
    return out


def process_docstring(*event: Any) -> None:
    """Sphinx's hook: before napoleon reads the docstring, whose lines are the last argument."""
    lines: list[str] = event[-1]
    lines[:] = as_rst(lines)


PAGES: dict[str, Callable[[], str]] = {
    "configuration": configuration,
    "errors": error_page,
    "cli": command_line,
    "spark-options": spark_options,
}


def write(*_: Any) -> None:
    """Write the pages whose text has changed."""
    GENERATED.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        path, text = GENERATED / f"{name}.md", page()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def setup(app: Any) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.connect("builder-inited", write)
    app.connect("autodoc-process-docstring", process_docstring, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
