"""eoslog: an exactly-once, Kafka-format log that many processes on a machine share."""

from eoslog import errors
from eoslog.version import __version__

__all__ = ["__version__", "errors"]
