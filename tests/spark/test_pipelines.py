"""The pipelines run as programs on some flights; two runs write to one table."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import pytest

from tests.paths import SOURCE

pytest.importorskip("pyspark")

from tests.spark.helpers import produce

PIPELINES = SOURCE / "spark" / "pipelines"


@pytest.fixture
def pipeline(monkeypatch):
    """The module that compacts a topic, imported as its neighbouring script does."""
    monkeypatch.syspath_prepend(str(PIPELINES))
    yield import_module("compact_to_parquet")
    for name in ("compact_to_parquet", "session"):
        sys.modules.pop(name, None)


def feed(log, first, end):
    produce(log, "t", [(b"%d" % n, None, n % 2, None) for n in range(first, end)])


def numbers(spark, pipeline, table):
    rows = spark.read.parquet(*pipeline.files(table)).select("value").collect()
    return sorted(int(row.value) for row in rows)


@pytest.fixture
def topic(log):
    log.create_topic("t", 2)
    feed(log, 0, 100)
    return log


@pytest.mark.slow
def test_all_pipelines_agree_with_the_file_and_are_idempotent(tmp_path):
    command = [sys.executable, str(PIPELINES / "flights.py"), "--limit", "20000"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pipelines: everything agrees" in done.stdout and "WRONG" not in done.stdout


def test_only_one_of_two_concurrent_pipeline_runs_counts(spark, topic, pipeline, tmp_path):
    def run(_):
        try:
            return pipeline.compact(spark, topic.path, "t", tmp_path)
        except RuntimeError as error:
            assert "another run wrote version" in str(error)
            return 0

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(run, range(2))) == [0, 100]
    assert numbers(spark, pipeline, tmp_path) == list(range(100))
    feed(topic, 100, 130)
    assert pipeline.compact(spark, topic.path, "t", tmp_path) == 30
    assert numbers(spark, pipeline, tmp_path) == list(range(130))


def test_the_files_of_a_killed_pipeline_run_are_ignored_and_removed(
    spark, topic, pipeline, tmp_path
):
    dead = tmp_path / "data" / "000000-dead"
    spark.range(5).selectExpr("binary('no') as value").write.parquet(str(dead))
    for end in (130, 160):
        pipeline.compact(spark, topic.path, "t", tmp_path)
        feed(topic, end - 30, end)
    assert numbers(spark, pipeline, tmp_path) == list(range(130))
    assert not dead.exists()


def test_a_pipeline_does_not_mistake_a_re_created_topic_for_the_old_one(
    spark, topic, pipeline, tmp_path
):
    pipeline.compact(spark, topic.path, "t", tmp_path)
    topic.delete_topic("t")
    topic.create_topic("t", 2)
    with pytest.raises(RuntimeError, match="the topic was re-created"):
        pipeline.compact(spark, topic.path, "t", tmp_path)
    assert numbers(spark, pipeline, tmp_path) == list(range(100))
