"""The generated reference has every key, error, command and option."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import eoslog
from eoslog import errors
from tests.paths import SOURCE as ROOT

DOCS = ROOT / "docs"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", DOCS / "_ext" / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = load()
KEYS = [
    (kind, item.name.replace("_", "."), item.metadata, item.default)
    for kind, _, _ in reference.KINDS
    for item in dataclasses.fields(kind)
    if "parser" in item.metadata
]
CLASSES = reference.error_classes()


@pytest.mark.parametrize(
    ("kind", "key", "meta", "default"), KEYS, ids=[f"{kind.KIND}-{key}" for kind, key, _, _ in KEYS]
)
def test_every_key_has_a_meaning_a_unit_and_a_default(
    kind: Any, key: str, meta: dict[str, Any], default: object
) -> None:
    assert re.search(r"[A-Za-z`0-9)]\.$", meta["doc"]), "a sentence"
    assert meta["unit"] in ("", "ms", "min", "bytes", "records", "characters")
    assert (meta["unit"] == "ms") == key.endswith(".ms")
    assert (meta["unit"] == "bytes") == bool(
        re.search(r"(?<!max)\.(bytes|size|memory)$|\.max\.bytes$|batch\.size", key)
        and key not in ("offset.metadata.max.bytes", "group.max.size")
    )
    assert meta["parser"].expects
    if default is not None:
        kind.of({key: default} | ({"group.id": "g"} if kind.KIND == "consumer" else {}))
    anchor = f"{{#{kind.KIND}-{key.replace('.', '-')}}}"
    assert reference.configuration().count(anchor) == 1


def test_every_ignored_and_every_rejected_key_is_listed() -> None:
    text = reference.configuration()
    for kind, _, _ in reference.KINDS:
        for key in (*kind.IGNORED, *kind.REPLACED):
            assert f"`{key}`" in text, key


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_has_a_cause_a_cure_and_an_anchor(cls: type[errors.EoslogError]) -> None:
    entry = reference.causes()[cls.__name__]
    assert set(entry) == {"cause", "cure"}
    assert all(text.endswith(".") and len(text) > 6 for text in entry.values())
    address = cls().help
    assert address == f"reference/errors.html#{cls.__name__.lower()}"
    headings = re.findall(r"^### (\w+)$", reference.error_page(), re.MULTILINE)
    assert [h.lower() for h in headings].count(address.partition("#")[2]) == 1


def test_only_errors_that_exist_are_explained() -> None:
    assert set(reference.causes()) == {cls.__name__ for cls in CLASSES}
    assert {name for name in errors.__all__ if name not in ("ErrorCode", "error_for")} <= {
        cls.__name__ for cls in CLASSES
    }


def test_an_error_of_a_private_class_names_its_public_base() -> None:
    class Private(errors.IllegalState):
        pass

    assert Private("x").help == "reference/errors.html#illegalstate"


COMMANDS = list(reference.commands()) if importlib.util.find_spec("click") else []


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_command_is_listed_with_its_options(name: str, command: Any) -> None:
    import click

    text = reference.command_line()
    assert re.search(rf"^##+ `{name}`$", text, re.MULTILINE)
    assert (command.help or "").split("\n")[0].rstrip().endswith((".", ":"))
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            assert option.help, (name, option.name)
            assert reference.option_names(option).replace("|", "\\|") in text


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_the_help_of_a_command_keeps_the_lines_of_its_examples(name: str, command: Any) -> None:
    import click

    shown = command.get_help(click.Context(command, info_name=name))
    assert "\\b" not in shown
    if "Examples:" in shown:
        assert re.search(r"Examples:\n +\S", shown)


def test_every_option_of_the_spark_source_is_listed_with_its_default() -> None:
    from pyspark_eoslog.options.options import Options

    listed = [name for _, names in reference.spark_groups() for name in names]
    texts = reference.spark_texts()
    assert set(texts) == set(listed)
    text = reference.spark_options()
    defaults = Options(path="x")
    for name in listed:
        assert text.count(f"{{#spark-{name.replace('.', '-')}}}") == 1
        assert texts[name]["meaning"].endswith(".")
        if name == "path":
            continue
        field = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        value = getattr(defaults, field, None)
        shown = texts[name].get("default", "").strip("`")
        if value is not None and shown not in ("4m", "16m", "all"):
            assert shown == (str(value).lower() if isinstance(value, bool) else f"{value:g}"
                             if isinstance(value, float) else str(value)), name  # fmt: skip
    assert (defaults.min_bytes_per_partition, defaults.segment_bytes) == (4 << 20, 16 << 20)


def test_the_python_pages_list_every_public_name() -> None:
    listed: dict[str, list[str]] = {"eoslog": []}
    for page in sorted((DOCS / "reference" / "python").glob("*.md")):
        text = page.read_text()
        listed["eoslog"] += re.findall(r"autofunction:: eoslog\.(\w+)\n", text)
        for name, members in re.findall(
            r"autoclass:: eoslog\.(\w+)(?:\(\))?\n +:members:((?:.|\n)*?)```", text
        ):
            listed["eoslog"].append(name)
            if ":undoc-members:" not in members:
                listed[name] = sorted(re.findall(r"\w+", members))
    public = json.loads(Path(__file__).with_name("public_names.json").read_text())
    elsewhere = {"EoslogError", "KafkaError", "StorageError", "ErrorCode", "errors", "sql", "tpc"}
    assert sorted(listed.pop("eoslog")) == sorted(set(public.pop("eoslog")) - elsewhere)
    assert listed == {name: public[name] for name in public if name not in elsewhere}
    assert all(hasattr(eoslog, name) for name in elsewhere)


def test_code_in_docstrings_becomes_a_block() -> None:
    lines = ["Summary.", "", "Use it, or create one::", "", "    a = 1", "    b = 2", "", "Raises:",
             "    ConfigError, IllegalState: if so.", "    KafkaError: never."]  # fmt: skip
    assert reference.as_rst(lines) == [
        "Summary.", "", "Use it, or create one:", "", ".. code-block:: python", "", "    a = 1",
        "    b = 2", "", "Raises:", "    ConfigError: if so.", "    IllegalState: if so.",
        "    KafkaError: never.",
    ]  # fmt: skip
