"""The fixtures of the client tests: a log with topics, a producer."""

from tests.client.conftest import log, opened, producer

__all__ = ["log", "opened", "producer"]
