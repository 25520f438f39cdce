"""`examples/move_money.py`, which needs two databases."""

from __future__ import annotations

import pytest

from tests.project.test_examples import NEEDS_SERVER, run

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_money_moves_between_two_databases_in_both_of_two_runs(server, tmp_path):
    databases = server.database(), server.database()
    for _ in range(2):
        shown = run("move_money", str(tmp_path / "log"), *databases)
        assert shown == NEEDS_SERVER["move_money"] + "\n"
