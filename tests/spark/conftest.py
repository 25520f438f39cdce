"""Spark tests run on the installed wheel, or on the source tree.

For the source tree, set PYTHONPATH=spark.
"""

import importlib.util
import os
import sys

import pytest

from tests.paths import ROOT


def _make_importable() -> None:
    """Set the environment for Spark's planner and executors, which are processes."""
    wanted = []
    for name, folder in (("eoslog", ROOT), ("pyspark_eoslog", ROOT / "spark")):
        spec = importlib.util.find_spec(name)
        if spec is None or str(spec.origin).startswith(str(ROOT)):
            wanted.append(str(folder))
    for folder in wanted:
        if folder not in sys.path:
            sys.path.insert(0, folder)
    before = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(wanted + before))


_make_importable()


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """One session for all Spark tests: two slots, three attempts per task.

    The session uses no network and no UI.
    """
    pytest.importorskip("pyspark")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    scratch = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2,3]")
        .appName("eoslog tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        # The jobs are small: compiling them takes longer than running them.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
        # Attempts that fail on purpose would otherwise fill the output.
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture
def log(tmp_path):
    """A new directory, open in this process as a user's would be."""
    import eoslog

    with eoslog.open(str(tmp_path / "log")) as handle:
        yield handle


@pytest.fixture
def made(log):
    """Makes readers of streams over topic `t` of `log`, closed at the end."""
    from pyspark_eoslog.options.options import Options
    from pyspark_eoslog.read.stream import EoslogStreamReader
    from pyspark_eoslog.schema import source_schema

    readers = []

    def make(**given):
        topics = {} if "assign" in given else {"subscribe": "t"}
        given = {"path": log.path, "startingOffsets": "earliest", **topics, **given}
        parsed = Options.parse(given)
        readers.append(EoslogStreamReader(parsed, source_schema(parsed)))
        return readers[-1]

    yield make
    for reader in readers:
        reader.stop()
