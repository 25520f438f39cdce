"""Log lines of tasks carry the app, the task and the place of the record."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Iterator

import pytest

import eoslog
from eoslog.app import RecordContext

FORMAT = "%(message)s %(app)s/%(task)s %(partition)s %(offset)s"


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What the logger `shop` writes."""
    target = io.StringIO()
    handler = logging.StreamHandler(target)
    handler.addFilter(RecordContext())
    handler.setFormatter(logging.Formatter(FORMAT))
    logger = logging.getLogger("shop")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield target
    logger.removeHandler(handler)


def test_each_line_of_a_task_names_its_record(log, lines):
    app = eoslog.App(log, "counter")

    @app.task("numbers", value="json")
    def count(record, ctx):
        if record.value == 5:
            logging.getLogger("shop").info("five")

    app.run(until="caught_up")
    logging.getLogger("shop").info("outside")
    assert lines.getvalue() == "five counter/count numbers-1 2\noutside -/- - -\n"


def test_lines_of_a_coroutine_and_of_its_threads_name_their_record(log, lines):
    app = eoslog.App(log, "counter")

    @app.task("numbers", value="json")
    async def count(record, ctx):
        if record.value == 5:
            await asyncio.sleep(0)
            await asyncio.to_thread(logging.getLogger("shop").info, "five")

    app.run(until="caught_up")
    assert lines.getvalue() == "five counter/count numbers-1 2\n"


def test_an_attribute_of_the_program_stays_as_it_is(lines):
    logging.getLogger("shop").info("mine", extra={"app": "own"})
    assert lines.getvalue() == "mine own/- - -\n"
