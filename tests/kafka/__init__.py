"""Tests against a real Apache Kafka broker; `make test-kafka`."""
