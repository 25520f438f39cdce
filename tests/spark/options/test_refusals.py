"""A request that a directory cannot serve is rejected, without a JVM.

The message names the option and its value.
"""

import os
import shutil

import pytest

pytest.importorskip("pyspark")
import pyarrow as pa
import pyspark
from pyspark.sql.types import BinaryType, StructType
from pyspark_eoslog import DefaultSource
from pyspark_eoslog.options.options import Options
from pyspark_eoslog.read.planning import pin_ranges
from pyspark_eoslog.read.splitting import plan
from pyspark_eoslog.write.batch import StagingTask, topic_targets

from eoslog.errors import ConfigError, InvalidTopic, OffsetOutOfRange, UnknownTopicOrPartition
from eoslog.model import TopicPartition
from tests.spark.helpers import produce


@pytest.fixture
def orders(log):
    log.create_topic("orders", 1)
    produce(log, "orders", [(b"%d" % n, None, 0, 1) for n in range(5)])
    return log


def options(path, **given):
    return Options.parse({"path": str(path), "subscribe": "orders", **given})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"endingOffsets": '{"orders": {"0": 99}}'},
            "option 'endingOffsets': orders-0: .* 99 .* [56]",  # 6: the marker is durable already
        ),
        (
            {"startingOffsets": '{"orders": {"0": 70}}', "endingOffsets": "latest"},
            "option 'startingOffsets': orders-0: .* 70 .* [56]",
        ),
    ],
)
def test_an_unavailable_offset_is_reported_with_its_option(orders, given, words):
    with pytest.raises(OffsetOutOfRange, match=words):
        pin_ranges(options(orders.path, **given))


def test_a_start_below_the_log_start_is_reported_with_its_option(orders):
    orders.delete_records({TopicPartition("orders", 0): 3})
    with pytest.raises(
        OffsetOutOfRange, match="option 'startingOffsets': orders-0: .* 1 was deleted"
    ):
        pin_ranges(options(orders.path, startingOffsets='{"orders": {"0": 1}}'))


def test_a_missing_target_topic_is_named(orders):
    with pytest.raises(UnknownTopicOrPartition, match="option 'topic' = 'nope'.*create it first"):
        topic_targets(orders.path, "nope")


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_a_write_to_an_internal_topic_is_rejected(orders, name):
    with pytest.raises(InvalidTopic, match=f"option 'topic' = '{name}'.*internal"):
        topic_targets(orders.path, name)


def test_a_path_that_is_not_a_log_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="option 'path' = .*file.*(?i:not a directory)"):
        pin_ranges(options(tmp_path / "file"))
    with pytest.raises(ConfigError, match="option 'path' = .*not an eoslog directory"):
        pin_ranges(options(tmp_path))


def test_a_directory_removed_before_the_plan_is_named(orders):
    asked = options(orders.path)
    ranges = pin_ranges(asked)
    orders.close()
    shutil.rmtree(orders.path)
    with pytest.raises(ConfigError, match="option 'path' = .*orders-0 cannot be read"):
        plan(ranges, asked)


@pytest.mark.parametrize("made_by", ["driver", "task"])
def test_a_directory_missing_where_a_task_writes_is_named(orders, made_by):
    given = Options.parse({"path": orders.path, "topic": "orders", "inlineLimitBytes": "0"})
    task = StagingTask(given, StructType().add("value", BinaryType()))
    orders.close()
    shutil.rmtree(orders.path)
    rows = iter([pa.record_batch({"value": pa.array([b"x"], pa.binary())})])
    with pytest.raises(ConfigError, match=f"option 'path' = '{orders.path}': the executor on"):
        task.run(rows, "job", make_folder=made_by == "task")


def test_a_directory_without_read_permission_is_named(tmp_path):
    """Root may read everything: the driver is a child that gives that up."""
    path = tmp_path / "closed"
    path.mkdir(0o700)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            path.chmod(0)
            if os.getuid() == 0:
                os.setuid(65534)
            pin_ranges(options(path / "log"))
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    path.chmod(0o700)
    assert said.startswith(f"ConfigError: option 'path' = '{path}/log': the user of the driver on")


def test_a_batch_read_that_starts_at_the_end_names_the_partition(orders):
    with pytest.raises(ConfigError, match="'startingOffsets' must not contain -1 .* for orders-0"):
        pin_ranges(options(orders.path, startingOffsets='{"orders": {"0": -1}}'))


@pytest.mark.parametrize("version", ["4.1.2", "4.0.0", "3.5.6"])
def test_an_old_pyspark_is_named(orders, monkeypatch, version):
    asked = {"path": orders.path, "subscribe": "orders"}
    assert DefaultSource(asked).schema().names
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(ConfigError, match=f"needs pyspark 4.2 or newer, this is pyspark {version}"):
        DefaultSource(asked)
