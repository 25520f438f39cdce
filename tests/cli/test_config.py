"""`eoslog config`."""

from __future__ import annotations

import pytest

from eoslog.config.documented import KINDS, keys_of


def test_all_keys_of_all_kinds_are_listed(cli):
    rows = cli("config").rows
    assert [(row["kind"], row["key"]) for row in rows] == [
        (kind, key.name) for kind in KINDS for key in keys_of(kind)
    ]
    assert all(row["meaning"] and row["values"] and row["default"] for row in rows)


def test_the_keys_of_a_kind_are_listed(cli):
    assert {row["kind"] for row in cli("config", "topic").rows} == {"topic"}


@pytest.mark.parametrize("name", ["retention.ms", "retention_ms"])
def test_one_key_is_explained_with_its_difference_to_kafka(cli, name):
    [row] = cli("config", "topic", name).rows
    assert (row["name"], row["unit"], row["default"]) == ("retention.ms", "ms", "-1")
    assert "7 days" in row["kafka"]


def test_a_part_of_a_name_finds_its_keys_in_all_kinds(cli):
    found = {(row["kind"], row["key"]) for row in cli("config", "timeout").rows}
    assert {("producer", "transaction.timeout.ms"), ("consumer", "session.timeout.ms")} <= found
    [row] = cli("config", "queue.buffering.max.ms").rows
    assert row["name"] == "linger.ms"


def test_an_unknown_key_is_not_found_and_an_unknown_kind_is_wrong_usage(cli):
    assert cli("config", "nosuch").code == 3
    assert cli("config", "topic", "nosuch").code == 3
    assert cli("config", "zebra", "x").code == 2
    missing = cli("config", "topic", "retntion_ms")
    assert (missing.code, "did you mean 'retention.ms'?" in missing.err) == (3, True)
