"""Where the tests find the source tree, their data and the documents."""

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
"""What `.ci/test` copies: tests, examples, bench, docs, README."""
SOURCE = Path(os.environ.get("EOSLOG_SOURCE") or ROOT).resolve()
"""The checkout, which has the package's source too."""
DATA = TESTS / "data"
KAFKA_DATA = DATA / "kafka"
"""Files that a real Kafka wrote."""
