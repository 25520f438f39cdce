"""A directory in memory with one topic of two partitions."""

from __future__ import annotations

import pytest

from tests.coordinator.fake_host import FakeDisk, FakeHost, FakeLog


@pytest.fixture
def host() -> FakeHost:
    disk = FakeDisk()
    disk.metadata.create("t", 2)
    return FakeHost(disk)


@pytest.fixture
def log(host) -> FakeLog:
    return host.partition("t", 0)
