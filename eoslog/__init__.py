"""eoslog: an exactly-once, Kafka-format log that many processes on a machine share."""

from eoslog import errors

__all__ = ["errors"]
__version__ = "0.1.0"
