"""Every public class has an example in its docstring, and the example runs."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import shutil
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from tests.paths import KAFKA_DATA

NEEDS_PYARROW = {"Scan"}
COMPILED = {"Record"}


def public_classes() -> list[str]:
    names = [name for name in eoslog.__all__ if isinstance(getattr(eoslog, name), type)]
    return sorted(set(names) - COMPILED)


def examples_in(docstring: str) -> Iterator[str]:
    """The literal blocks of a docstring: indented lines after a line with `::`."""
    lines = inspect.cleandoc(docstring).splitlines()
    for number, line in enumerate(lines):
        if line.endswith("::"):
            block = []
            for following in lines[number + 1 :]:
                if following and not following.startswith(
                    line[: len(line) - len(line.lstrip())] + "    "
                ):
                    break
                block.append(following)
            yield textwrap.dedent("\n".join(block)).strip()


def prepare_log(path: Path) -> None:
    """Create a closed log with the topic `orders`.

    The topic has two records and a committed offset.
    """
    with eoslog.open(path) as log:
        log.create_topic("orders", 3)
        log.create_topic("bills")
        with log.producer() as producer:
            for value in ("3 apples", "2 pears"):
                producer.produce("orders", value=value, key="ada", partition=0)
        log.reset_offsets("billing", {eoslog.TopicPartition("orders", 0): 1})


def prepare_broker(path: Path) -> None:
    """The log directory of a stopped broker, with one topic."""
    path.mkdir()
    (path / "meta.properties").write_text("version=0\ncluster.id=abc\nbroker.id=3\n")
    shutil.copytree(KAFKA_DATA / "segments" / "plain-0", path / "plain-0")


class Agreeing(eoslog.TransactionListener):
    """A listener without a local transaction."""

    def execute_local_transaction(self, msg: eoslog.PreparedTransaction, arg: Any) -> Any:
        return eoslog.Outcome.COMMIT

    def check_local_transaction(self, msg: eoslog.PreparedTransaction) -> Any:
        return eoslog.Outcome.COMMIT


async def awaited(code: types.CodeType, known: dict[str, Any], log: eoslog.Log) -> None:
    """Run an example with clients of coroutines; one that does not end is cancelled."""
    async with (
        log.async_producer(transactional_id="till-2") as producer,
        log.async_consumer("orders", group_id="bills", enable_auto_commit=False) as consumer,
    ):
        known |= {"producer": producer, "consumer": consumer, "batch": list(log.read("orders"))}
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(types.FunctionType(code, known)(), 2)


@pytest.mark.parametrize("name", public_classes())
def test_public_class_has_an_example_that_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in NEEDS_PYARROW:
        pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    examples = list(examples_in(vars(getattr(eoslog, name))["__doc__"]))
    assert examples, "no example: write a literal block after a line that ends with ::"
    for path in ("shop", "opened"):
        prepare_log(tmp_path / path)
    prepare_broker(tmp_path / "kafka-logs")
    with eoslog.open("opened") as log, log.producer(transactional_id="till-1") as transactional:
        known: dict[str, Any] = {
            "eoslog": eoslog, "Producer": eoslog.Producer, "Consumer": eoslog.Consumer,
            "log": log, "consumer": log.consumer("orders", group_id="audit"),
        }  # fmt: skip
        for example in examples:
            known["producer"] = log.producer()
            if "init_transactions" in example:
                known["producer"] = transactional
            elif "send_offsets_to_transaction" in example:
                transactional.init_transactions()
                transactional.begin_transaction()
                known["producer"] = transactional
            if "half_producer." in example:
                known["half_producer"] = log.half_producer("shop", Agreeing())
            if "consumer" in example:
                known["consumer"].poll(0)
            code = compile(example, f"<example of {name}>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if code.co_flags & inspect.CO_COROUTINE:
                asyncio.run(awaited(code, known, log))
            else:
                exec(code, known)
