"""Arguments of an export or import are checked before the cluster is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog.errors import ConfigError

NOBODY = "127.0.0.1:1"


@pytest.fixture(params=["export_kafka", "import_kafka"])
def move(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("orders")
        yield getattr(log, request.param)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topics": "orders"}, "topics: expected a list of topic names, got the string 'orders'"),
        ({"topics": [b"orders"]}, "topics: expected a list of topic names"),
        ({"groups": "billing"}, 'groups: expected a list of group ids, or "all"'),
        ({"groups": [1]}, "groups: expected a list of group ids"),
        ({"records": 0}, "records: expected at least 1"),
        ({"records": "many"}, "records: expected an int"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(
    move: Callable[..., Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        move(NOBODY, **arguments)
