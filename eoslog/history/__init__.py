"""Histories: what clients saw, written down, and checked for what exactly-once excludes.

`recorder` wraps the clients, `events` reads what it wrote, `checker` judges. None of them knows how
eoslog works inside, so a mistake there is not repeated here.
"""

from eoslog.history.anomalies import ANOMALIES, Anomaly, Report
from eoslog.history.checker import check
from eoslog.history.events import History, read_history
from eoslog.history.recorder import Recorder

__all__ = ["ANOMALIES", "Anomaly", "History", "Recorder", "Report", "check", "read_history"]
