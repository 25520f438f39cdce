"""What a directory cannot give is refused by a message with the option and its value; no JVM here."""

import shutil

import pytest

pytest.importorskip("pyspark")
from pyspark_eoslog.options import Options
from pyspark_eoslog.planning import pin_ranges
from pyspark_eoslog.splitting import plan
from pyspark_eoslog.writer import topic_targets

from eoslog.errors import ConfigError, InvalidTopic, OffsetOutOfRange, UnknownTopicOrPartition
from eoslog.model import TopicPartition

from .helpers import produce


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
            "option 'endingOffsets': orders-0: .* 99 .* [56] ",  # 6: the marker is durable already
        ),
        (
            {"startingOffsets": '{"orders": {"0": 70}}', "endingOffsets": '{"orders": {"0": 5}}'},
            "option 'startingOffsets': orders-0: .* 70 .* [56] ",
        ),
    ],
)
def test_an_offset_that_is_not_there_is_told_with_its_option(orders, given, words):
    with pytest.raises(OffsetOutOfRange, match=words):
        pin_ranges(options(orders.path, **given))


def test_a_start_that_retention_took_is_told_with_its_option(orders):
    orders.delete_records({TopicPartition("orders", 0): 3})
    with pytest.raises(OffsetOutOfRange, match="option 'startingOffsets': orders-0: .* 1 is gone"):
        pin_ranges(options(orders.path, startingOffsets='{"orders": {"0": 1}}'))


def test_a_topic_to_write_to_that_is_not_there_is_named(orders):
    with pytest.raises(UnknownTopicOrPartition, match="option 'topic' = 'nope'.*create it first"):
        topic_targets(orders.path, "nope")


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_nobody_writes_to_an_internal_topic(orders, name):
    with pytest.raises(InvalidTopic, match=f"option 'topic' = '{name}'.*internal"):
        topic_targets(orders.path, name)


def test_a_path_that_is_something_else_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="option 'path' = .*file.*[Nn]ot a directory"):
        pin_ranges(options(tmp_path / "file"))
    with pytest.raises(ConfigError, match="option 'path' = .*not an eoslog directory"):
        pin_ranges(options(tmp_path))


def test_a_directory_that_went_away_before_the_plan_is_named(orders):
    asked = options(orders.path)
    ranges = pin_ranges(asked)
    orders.close()
    shutil.rmtree(orders.path)
    with pytest.raises(ConfigError, match="option 'path' = .*orders-0 can't be read"):
        plan(ranges, asked)
