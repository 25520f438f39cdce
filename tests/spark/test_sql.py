"""Topics as tables: what SQL can do with a Python source in Spark 4.

Other statements get a clear error.
"""

import pytest

pytest.importorskip("pyspark")
from tests.spark.helpers import ended, message_of, produce, values


@pytest.fixture
def table(spark, log):
    """A table over the topic `t`, which has five records."""
    log.create_topic("t", 2)
    produce(log, "t", [(b"%d" % n, b"k", n % 2, None) for n in range(5)])
    name = "orders"
    spark.sql(f"DROP TABLE IF EXISTS {name}")
    spark.sql(f"CREATE TABLE {name} USING eoslog OPTIONS (path '{log.path}', subscribe 't')")
    yield name
    spark.sql(f"DROP TABLE {name}")


def count(spark, name):
    return spark.sql(f"SELECT count(*) AS n FROM {name}").collect()[0].n


def test_a_table_stores_its_read_options(spark, log, table):
    assert count(spark, table) == 5
    found = spark.sql(f"SELECT string(value) AS v FROM {table} WHERE partition = 1").collect()
    assert sorted(row.v for row in found) == ["1", "3"]
    produce(log, "t", [(b"5", None, 0, None)])
    assert count(spark, table) == 6, "each statement looks anew"
    assert spark.table(table).count() == 6


def test_dropping_a_table_keeps_the_directory(spark, log):
    log.create_topic("t")
    spark.sql(f"CREATE TABLE gone USING eoslog OPTIONS (path '{log.path}', subscribe 't')")
    spark.sql("DROP TABLE gone")
    assert log.topics() == ["t"] and log.offsets("t", 0).log_end == 0


def test_a_selection_saved_as_a_table_is_not_a_copy_of_its_source(spark, log, table):
    """The columns carry the metadata of the first table.

    Without a check, Spark would read that table instead.
    """
    log.create_topic("few")
    chosen = spark.table(table).limit(2).select("key", "value")
    chosen.write.format("eoslog").options(path=log.path, topic="few").saveAsTable("kept")
    try:
        assert len(values(log, "few")) == 2
        with pytest.raises(Exception) as caught:
            count(spark, "kept")
        assert "'path' is missing" in message_of(caught)
    finally:
        spark.sql("DROP TABLE kept")


def test_create_table_as_select_is_rejected_and_leaves_nothing(spark, log, table):
    with pytest.raises(Exception) as caught:
        spark.sql(
            f"CREATE TABLE made USING eoslog OPTIONS (path '{log.path}', topic 't', subscribe 't') "
            f"AS SELECT key, value FROM {table}"
        )
    assert "saveAsTable" in message_of(caught)
    assert not spark.catalog.tableExists("made") and len(values(log, "t")) == 5


def test_a_table_saved_as_another_reads_the_topic_of_the_first(spark, log, table):
    log.create_topic("copy", 2)
    whole = spark.table(table).write.format("eoslog").mode("append")
    whole.options(path=log.path, topic="copy").saveAsTable("twin")
    try:
        produce(log, "copy", [(b"only here", None, 0, None)])
        assert count(spark, "twin") == 5, "documented: the columns name the topic of the first"
        read = spark.read.options(path=log.path, subscribe="copy").table("twin")
        assert read.count() == 6
    finally:
        spark.sql("DROP TABLE twin")


def test_insert_requires_the_name_of_its_target(spark, log, table):
    target = f"WITH (path = '{log.path}', topic = 't')"
    spark.sql(f"INSERT INTO {table} {target} (key, value) VALUES (binary('k'), binary('5'))")
    assert count(spark, table) == 6
    with pytest.raises(Exception) as caught:
        spark.sql(f"INSERT INTO {table} (key, value) VALUES (binary('k'), binary('6'))")
    assert "'path' is missing" in message_of(caught) and "INSERT INTO name WITH" in message_of(
        caught
    )
    assert count(spark, table) == 6


def test_a_temporary_view_can_be_read_and_written(spark, log):
    log.create_topic("t")
    view = (
        "CREATE OR REPLACE TEMPORARY VIEW both_ways USING eoslog "
        f"OPTIONS (path '{log.path}', subscribe 't', topic 't', valueFormat 'string')"
    )
    spark.sql(view)
    spark.sql("INSERT INTO both_ways (value) VALUES ('a'), ('b')")
    assert sorted(values(log, "t")) == [b"a", b"b"]
    assert count(spark, "both_ways") == 0, "a view is a DataFrame: its end was settled when made"
    spark.sql(view)
    assert count(spark, "both_ways") == 2


def test_save_as_table_writes_the_rows(spark, log):
    log.create_topic("t")
    frame = spark.range(3).selectExpr("string(id) AS value")
    writer = frame.write.format("eoslog").options(path=log.path, topic="t", subscribe="t")
    writer.mode("append").saveAsTable("saved")
    assert sorted(values(log, "t")) == [b"0", b"1", b"2"]
    read = spark.read.options(path=log.path, subscribe="t").table("saved")
    assert read.selectExpr("string(value) AS v").orderBy("v").collect()[0].v == "0"
    spark.sql("DROP TABLE saved")


def test_a_stream_can_read_from_and_write_to_a_table(spark, log, table, tmp_path):
    log.create_topic("out")
    frame = spark.readStream.option("startingOffsets", "earliest").table(table)
    writer = frame.select("key", "value").writeStream.options(path=log.path, topic="out")
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    ended(lambda: writer.toTable(table))
    assert len(values(log, "out")) == 5


def test_a_table_with_other_columns_raises_with_the_right_statement(spark, log):
    log.create_topic("t")
    spark.sql(
        f"CREATE TABLE own (value BINARY) USING eoslog OPTIONS (path '{log.path}', subscribe 't')"
    )
    try:
        with pytest.raises(Exception) as caught:
            count(spark, "own")
        assert "and no list of columns" in message_of(caught)
        assert spark.read.options(path=log.path, subscribe="t").table("own").count() == 0
    finally:
        spark.sql("DROP TABLE own")


def test_a_table_has_properties_and_refuses_other_columns_at_a_read(spark, log):
    log.create_topic("t")
    spark.sql(
        f"CREATE TABLE noted USING eoslog OPTIONS (path '{log.path}', subscribe 't') "
        "COMMENT 'c' TBLPROPERTIES ('team' = 'x')"
    )
    try:
        assert count(spark, "noted") == 0
        with pytest.raises(Exception) as caught:
            spark.sql("SELECT value FROM noted WITH (valueFormat = 'string')").collect()
        assert "cannot change its columns with 'valueFormat'" in message_of(caught)
    finally:
        spark.sql("DROP TABLE noted")
