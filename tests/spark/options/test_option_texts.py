"""Absurd option values end in the package's error before any JVM sees them."""

import dataclasses

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark_eoslog.options import options as module
from pyspark_eoslog.options.options import Options, assigned_partitions, names_directory

from eoslog.errors import ConfigError, EoslogError
from tests.field.absurd import values

FORMS = [
    "1" * 5000, "nan", "inf", "1e400", "\u0661", "5" * 19 + "g", '{"t": 5}', '{"t": {"x": 1}}',
    '{"t": {"0": 1e400}}', '{"t": {"0": NaN}}', '{"t": {"0": true}}', '{"t": [null]}',
    '{"t": [-1]}', '{"t": [true]}', '{"t": [99999999999999999999]}', "[" * 100_000, "null", "5",
    '{"t": {"' + "1" * 5000 + '": 1}}', "file:///x", "hdfs://x", "^(", ",,", " ",
]  # fmt: skip
NAMES = sorted(module._KNOWN.values())


@pytest.mark.parametrize("name", NAMES)
def test_field_C4_an_absurd_option_value_is_named(name):
    for value in [*values().values(), *FORMS]:
        for given in ({"path": "/data", "subscribe": "t"}, {"path": "/data"}):
            try:
                Options.parse({**given, name: value})
            except EoslogError as error:
                str(error).encode()
                assert str(error)
                assert len(str(error)) < 2000


def test_field_C4_an_unknown_option_is_rejected():
    for value in values().values():
        for parse in (Options.parse, assigned_partitions, names_directory):
            try:
                parse(value)
            except EoslogError as error:
                assert "expected" in str(error) or "option" in str(error)
    for given in ({1: "x"}, {None: None}, {"path": object()}, {"path": "a\0b"}, {"path": "\ud800"}):
        with pytest.raises(ConfigError, match="expected text that UTF-8 can encode"):
            Options.parse(given)


def test_field_C4_numbers_and_booleans_are_parsed_as_spark_writes_them():
    options = Options.parse({"path": "/data", "subscribe": "t", "minPartitions": 3,
                             "failOnDataLoss": False, "topic": None})  # fmt: skip
    assert (options.min_partitions, options.fail_on_data_loss, options.topic) == (3, False, None)
    assert dataclasses.is_dataclass(options)
