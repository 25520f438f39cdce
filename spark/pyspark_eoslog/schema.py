"""Columns of the source and the sink, and their Arrow forms.

Names and types are those of Spark's Kafka connector.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from eoslog.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_eoslog.options.options import Options

HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)

# Column -> types it may be read as; the first is the default.
SOURCE_TYPES: dict[str, tuple[DataType, ...]] = {
    "key": (BinaryType(), StringType()),
    "value": (BinaryType(), StringType()),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "offset": (LongType(),),
    "timestamp": (TimestampType(),),
    "timestampType": (IntegerType(),),
    "headers": (HEADERS,),
}
# Columns that may be null.
NULL_COLUMNS = ("key", "value", "headers")
SINK_TYPES: dict[str, tuple[DataType, ...]] = {
    name: SOURCE_TYPES[name]
    for name in ("key", "value", "topic", "partition", "headers", "timestamp")
}
# Options that the catalog adds when a table is created.
CATALOG_OPTIONS = {"provider", "owner", "location", "external", "comment", "is_managed_location"}
# Spark's column -> the column of `Log.scan`.
SCAN_COLUMNS = {
    name: "timestamp_type" if name == "timestampType" else name for name in SOURCE_TYPES
}


def source_schema(options: Options) -> StructType:
    """Return the schema of a read without a user schema.

    Raises:
        ConfigError: if `columns` names a column that does not exist.
    """
    wanted = options.columns
    if wanted is None:
        wanted = tuple(
            name for name in SOURCE_TYPES if name != "headers" or options.include_headers
        )
    unknown = [name for name in wanted if name not in SOURCE_TYPES]
    if unknown or len(set(wanted)) != len(wanted):
        raise ConfigError(
            f"option 'columns' = {','.join(wanted)!r} "
            f"must name different columns out of {', '.join(SOURCE_TYPES)}"
        )
    text = {"key": options.key_format == "string", "value": options.value_format == "string"}
    return StructType(
        [
            StructField(name, StringType() if text.get(name) else SOURCE_TYPES[name][0])
            for name in wanted
        ]
    )


TABLE_OPTIONS = "eoslog.options"


def with_table_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the columns of a new table with the options in their metadata.

    Spark passes no other part of a table to a Python source.
    """
    kept = {
        name: value
        for name, value in options.items()
        if name.lower() not in CATALOG_OPTIONS and not name.lower().startswith("option.")
    }
    text = json.dumps(kept, sort_keys=True)
    return StructType(
        [StructField(one.name, one.dataType, True, {TABLE_OPTIONS: text}) for one in schema.fields]
    )


def table_options(schema: StructType) -> dict[str, str]:
    """Return the options from `with_table_options`; empty for other columns."""
    for field in schema.fields:
        text = (field.metadata or {}).get(TABLE_OPTIONS)
        if text:
            return dict(json.loads(text))
    return {}


COLUMN_OPTIONS = ("columns", "includeHeaders", "keyFormat", "valueFormat")
"""Options of a read that choose the columns or their types."""


def check_table_read(schema: StructType, table: Options, given: Mapping[str, str]) -> None:
    """Check that the options of a read keep the columns of its table.

    Args:
        schema: Columns that Spark has stored for the table.
        table: Options that the table stores.
        given: Options of the read.

    Raises:
        ConfigError: if the table has these columns, and an option of the read changes them.
    """
    if not same_columns(schema, source_schema(table)):
        return  # columns of another table
    names = {name.lower(): value for name, value in given.items()}
    changed = {name: names[name.lower()] for name in COLUMN_OPTIONS if name.lower() in names}
    if changed:
        named = ", ".join(f"'{name}' = {value!r}" for name, value in changed.items())
        raise ConfigError(
            f"a read of a table cannot change its columns with {named}; drop the table, and create "
            "it again with CREATE TABLE ... OPTIONS (path '...', subscribe '...', "
            + ", ".join(f"{name} '{value}'" for name, value in changed.items())
            + "), or use spark.read.format('eoslog')"
        )


def same_columns(schema: StructType | None, other: StructType) -> bool:
    """Return whether names and types are the same, in the same order."""
    return schema is not None and [(one.name, one.dataType.simpleString()) for one in schema] == [
        (one.name, one.dataType.simpleString()) for one in other
    ]


def check_source_schema(schema: StructType) -> None:
    """Check a user schema: any columns in any order, key and value also as string.

    Raises:
        ConfigError: if a column or its type does not exist, if there is no column, or if a column
            that may be null is NOT NULL.
    """
    if not schema.fields:
        raise ConfigError(f"the schema has no column; use some of {', '.join(SOURCE_TYPES)}")
    for field in schema.fields:
        _check(field, SOURCE_TYPES, "cannot be read")
        # Spark relies on NOT NULL: a null would fail the job, and `value IS NULL` would find none.
        if field.name in NULL_COLUMNS and not field.nullable:
            raise ConfigError(
                f"column '{field.name}' cannot be NOT NULL, because it is null for some records"
            )


def check_column_options(schema: StructType, options: Options) -> None:
    """Check that the options that choose columns agree with the columns of a read.

    They do not if the user gives a schema, which then decides.

    Raises:
        ConfigError: if an option has no effect.
    """
    types = {field.name: field.dataType.simpleString() for field in schema}
    without = {}
    if options.columns is not None and options.columns != tuple(types):
        without["columns"] = ",".join(options.columns)
    if options.include_headers and "headers" not in types:
        without["includeHeaders"] = "true"
    for column, form in (("key", options.key_format), ("value", options.value_format)):
        if form == "string" and types.get(column) == "binary":
            without[f"{column}Format"] = form
    for option, value in without.items():
        raise ConfigError(
            f"option '{option}' = {value!r} has no effect with a schema, which has the columns "
            f"{', '.join(f'{name} {kind}' for name, kind in types.items())}; "
            f"remove '{option}', or change the schema"
        )


def check_sink_schema(schema: StructType, topic_option: str | None) -> None:
    """Check the columns of a DataFrame to write, as Spark's Kafka sink does.

    Other columns are not written. This sink matches names exactly, and Spark in any case of
    letters. So `KEY` is an error: without it, every record would lose its key.

    Raises:
        ConfigError: if there is no `value`, no topic, or a column has the wrong type or differs
            from a column of the sink only in the case of letters.
    """
    names = schema.fieldNames()
    for name in names:
        if name not in SINK_TYPES and name.lower() in SINK_TYPES:
            raise ConfigError(
                f"column '{name}' is not written: the column is '{name.lower()}', in lower case; "
                f"rename it with withColumnRenamed('{name}', '{name.lower()}'), or drop it"
            )
    if "value" not in names:
        raise ConfigError(f"the DataFrame has no column 'value', only {', '.join(names) or 'none'}")
    if topic_option is None and "topic" not in names:
        raise ConfigError("no topic; set the option 'topic', or add a column 'topic'")
    for field in schema.fields:
        if field.name in SINK_TYPES:
            _check(field, SINK_TYPES, "cannot be written")


def _check(field: StructField, known: dict[str, tuple[DataType, ...]], verb: str) -> None:
    allowed = known.get(field.name)
    if allowed is None:
        raise ConfigError(f"column '{field.name}' {verb}: the columns are {', '.join(known)}")
    if not any(_same_shape(field.dataType, one) for one in allowed):
        types = " or ".join(one.simpleString() for one in allowed)
        raise ConfigError(
            f"column '{field.name}' {verb} as {field.dataType.simpleString()}; use {types}"
        )


def _same_shape(given: DataType, wanted: DataType) -> bool:
    """Compare types without nullability and the collation or length of strings."""
    same: bool = given.simpleString() == wanted.simpleString()
    return same


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the exact Arrow schema of a reader's batches; Spark uses `equals`."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
