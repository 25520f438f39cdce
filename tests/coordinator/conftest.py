"""Fixtures of coordinator tests: an in-memory directory, processes, producers."""

from __future__ import annotations

import pytest

from tests.coordinator.world import World


@pytest.fixture(params=["strict", "os"])
def any_world(request: pytest.FixtureRequest) -> World:
    """One world for each durability."""
    return World(request.param)


@pytest.fixture
def world() -> World:
    """A strict world."""
    return World()
