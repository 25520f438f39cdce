"""Histories: recorded observations of clients, checked against exactly-once.

`recorder` wraps the clients, `events` reads what it wrote, `checker` judges. None of them knows how
eoslog works inside, so a mistake there is not repeated here.
"""

from eoslog.testing.history.anomalies import ANOMALIES, Anomaly, Report
from eoslog.testing.history.checker import check
from eoslog.testing.history.events import History, read_history
from eoslog.testing.history.recorder import Recorder

__all__ = ["ANOMALIES", "Anomaly", "History", "Recorder", "Report", "check", "read_history"]
