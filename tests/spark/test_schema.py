"""The columns that the sink accepts, without a JVM."""

import pytest

pytest.importorskip("pyspark")
from pyspark.sql.types import StructField, StructType
from pyspark_eoslog.schema import SINK_TYPES, check_sink_schema

from eoslog.errors import ConfigError


def columns(*names):
    """A schema with these columns, each of its own type in the sink."""
    return StructType([StructField(name, SINK_TYPES[name.lower()][0]) for name in names])


@pytest.mark.parametrize("written", [str.upper, str.title])
@pytest.mark.parametrize("name", sorted(SINK_TYPES))
def test_a_sink_column_in_another_case_is_rejected_by_name(name, written):
    given = written(name)
    others = {"value", "topic"} - {name}
    with pytest.raises(ConfigError) as caught:
        check_sink_schema(columns(given, *sorted(others)), None)
    assert f"column '{given}'" in str(caught.value)
    assert f"withColumnRenamed('{given}', '{name}')" in str(caught.value)


def test_a_second_key_column_in_another_case_is_rejected():
    with pytest.raises(ConfigError, match="column 'KEY' is not written"):
        check_sink_schema(columns("key", "KEY", "value"), "t")


def test_every_sink_column_and_other_columns_are_accepted():
    schema = columns(*SINK_TYPES).add(StructField("note", SINK_TYPES["topic"][0]))
    check_sink_schema(schema, None)
