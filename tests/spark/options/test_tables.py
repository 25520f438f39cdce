"""Options of tables, as Spark passes them at CREATE TABLE and at a read."""

import pytest

pytest.importorskip("pyspark")
from pyspark.sql.types import BinaryType, StructType
from pyspark_eoslog import DefaultSource

from eoslog.errors import ConfigError
from tests.spark.helpers import produce


@pytest.fixture
def topic(log):
    log.create_topic("t")
    produce(log, "t", [(b"%d" % n, b"k", 0, None) for n in range(3)])
    return log


def create(path, properties=None, **options):
    """The columns of a table that is created with OPTIONS and TBLPROPERTIES."""
    given = {"subscribe": "t", **options}
    passed = {name.lower(): value for name, value in given.items()}
    passed |= {f"option.{name}": value for name, value in passed.items()}
    passed |= {"path": f"file:{path}", "location": f"file:{path}", "owner": "root"}
    return DefaultSource({**(properties or {}), **passed, "provider": "eoslog"}).schema()


def read(schema, **given):
    """A read of the table with these columns."""
    return DefaultSource({name.lower(): value for name, value in given.items()}).reader(schema)


def test_properties_of_a_table_are_ignored_when_it_is_created_and_read(topic):
    schema = create(topic.path, {"team": "x", "team.size": "3"}, valueFormat="string")
    assert schema["value"].dataType.simpleString() == "string"
    assert read(schema).options.subscription == ("subscribe", "t")


def test_an_unknown_option_of_a_table_is_an_error_when_it_is_created(topic):
    with pytest.raises(ConfigError, match="unknown option 'subscrib' = 'x'; did you mean"):
        create(topic.path, {"team": "x"}, subscrib="x")


def test_an_unknown_option_of_a_read_is_an_error(topic):
    with pytest.raises(ConfigError, match="unknown option 'team' = 'x'"):
        DefaultSource({"path": topic.path, "subscribe": "t", "team": "x"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("valueFormat", "string"),
        ("keyFormat", "string"),
        ("columns", "key"),
        ("includeHeaders", "true"),
    ],
)
def test_a_read_of_a_table_that_changes_its_columns_names_the_option(topic, name, value):
    schema = create(topic.path)
    with pytest.raises(ConfigError) as caught:
        read(schema, **{name: value})
    assert f"'{name}' = '{value}'" in str(caught.value)
    assert f"CREATE TABLE ... OPTIONS (path '...', subscribe '...', {name} '{value}')" in str(
        caught.value
    )


def test_a_read_of_a_table_may_repeat_the_options_of_its_columns(topic):
    schema = create(topic.path, valueFormat="string")
    assert read(schema, valueFormat="STRING").options.value_format == "string"


def test_columns_of_another_table_do_not_give_their_options(topic):
    few = StructType(create(topic.path).fields[:2])
    with pytest.raises(ConfigError, match="'path' is missing"):
        read(few)
    with pytest.raises(ConfigError, match="'path' is missing"):
        read(few, valueFormat="string")


@pytest.mark.parametrize(
    ("stored", "given"),
    [
        ("isolationLevel", "isolationLevel"),
        ("isolationLevel", "kafka.isolation.level"),
        ("kafka.isolation.level", "isolationLevel"),
    ],
)
def test_a_read_overrides_the_isolation_level_of_its_table(topic, stored, given):
    schema = create(topic.path, **{stored: "read_uncommitted"})
    assert read(schema).options.isolation == "read_uncommitted"
    assert read(schema, **{given: "read_committed"}).options.isolation == "read_committed"


def test_a_table_stores_options_of_all_its_uses(topic):
    schema = create(topic.path, topic="t", compression="zstd", commitGroup="g")
    assert read(schema).options.commit_group == "g"
    stream = DefaultSource({}).streamReader(schema)
    assert stream.options.commit_group == "g"
    with pytest.raises(ConfigError, match="'commitGroup' = 'g' has no effect in a batch read"):
        read(schema, commitGroup="g")


def test_a_table_with_its_own_columns_is_read_with_given_options(topic):
    schema = StructType().add("value", BinaryType())
    assert read(schema, path=topic.path, subscribe="t").options.subscription
