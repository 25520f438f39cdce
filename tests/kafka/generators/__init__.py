"""Programs that made `tests/data/kafka` from Kafka's own classes and a broker."""
