"""`Log.query`: SQL over topics by DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog import errors


@pytest.fixture
def log(tmp_path: Path) -> Iterator[eoslog.Log]:
    with eoslog.open(tmp_path / "log", durability="os") as log:
        for name, values in {"orders": (1, 2, 3), "web-clicks": (2, 3, 4)}.items():
            log.create_topic(name, partitions=2)
            with log.producer() as producer:
                for value in values:
                    producer.produce(name, str(value), f"k{value}")
        yield log


def test_topics_are_joined_and_read_as_often_as_the_statement_needs(log):
    table = log.query(
        'select decode(o.value)::int as v from orders o join "web-clicks" c on o.key = c.key '
        'where o."offset" >= (select min("offset") from orders) order by v'
    )
    assert table.to_pydict() == {"v": [2, 3]}


def test_a_statement_reads_all_topics_as_of_one_moment(log):
    with log.producer(transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("orders", "9")
        producer.produce("web-clicks", "9")
        producer.flush()
        counts = 'select (select count(*) from orders), (select count(*) from "web-clicks")'
        assert list(log.query(counts).to_pylist()[0].values()) == [3, 3]
        producer.commit_transaction()
        assert list(log.query(counts).to_pylist()[0].values()) == [4, 4]


def test_a_name_in_other_case_finds_its_topic(log):
    assert log.query("select count(*) as n from ORDERS").to_pydict() == {"n": [3]}


def test_one_topic_may_be_written_in_two_ways(log):
    counts = 'select count(*) as n from orders o join ORDERS p on o.key = p.key, "web-clicks"'
    assert log.query(counts).to_pydict() == {"n": [9]}


def test_a_name_that_means_two_topics_is_refused(log):
    log.create_topic("Orders")
    assert log.query("select count(*) as n from orders").to_pydict() == {"n": [3]}
    with pytest.raises(errors.ConfigError, match="means several topics, Orders, orders"):
        log.query("select count(*) from oRDERS")
    with pytest.raises(errors.ConfigError, match="does not distinguish case"):
        log.query('select count(*) from orders, "Orders"')


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("payments", r"log\.topics\(\) lists all topics$"),
        ("ordesr", "did you mean 'orders'"),
        *((local, "") for local in ("failed", "topics", "scans", "sql")),
    ],
)
def test_a_missing_topic_is_named_with_a_topic_of_the_log(log, name, hint):
    with pytest.raises(errors.UnknownTopicOrPartition, match=f"'{name}' does not exist; {hint}"):
        log.query(f"select * from {name}")


@pytest.mark.parametrize(
    "sql", ["select missing(1)", "selec", "select nothing from orders", "select 1; select 2", 7]
)
def test_an_invalid_statement_is_a_configuration_error(log, sql):
    with pytest.raises(errors.ConfigError, match="query: "):
        log.query(sql)


def test_damage_keeps_its_type(log):
    path = Path(log.path)
    log.close()
    segment = max(path.glob("orders-*/*.log"), key=lambda one: one.stat().st_size)
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    with eoslog.open(path, read_only=True) as log, pytest.raises(errors.CorruptRecord):
        log.query("select * from orders")


def test_a_topic_with_a_schema_is_named_alone(log):
    with pytest.raises(errors.UnknownTopicOrPartition, match="write its name alone"):
        log.query("select count(*) from memory.main.orders")
