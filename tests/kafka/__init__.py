"""Tests against a real Apache Kafka broker; `make quality-kafka`."""
