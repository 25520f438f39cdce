"""The blocks of pages about Spark run in order, twice, and print what is shown."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from tests.docs import pages
from tests.spark.helpers import TOO_SLOW

SPARK = [page for page in pages.PAGES if pages.is_spark(page) and pages.has_blocks(page)]


def run_twice(page, place) -> None:
    before = set(place.iterdir())
    try:
        for first in (True, False):
            pages.Run(page, first).all()
    finally:
        for path in set(place.iterdir()) - before:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("page", SPARK, ids=pages.name)
def test_the_code_blocks_of_a_spark_page_run_twice_in_one_directory(
    page, spark, monkeypatch
) -> None:
    # Spark's workers resolve relative paths in the directory in which the JVM was started.
    place = Path(spark._jvm.java.lang.System.getProperty("user.dir"))
    monkeypatch.chdir(place)
    for _ in range(20):
        try:
            return run_twice(page, place)
        except pages.PageError as error:
            if TOO_SLOW not in str(error):
                raise
    raise AssertionError(TOO_SLOW)
