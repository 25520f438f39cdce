"""Two-phase commit: several databases and logs, all or nothing, decided by a log."""

from eoslog.client.producer.transactions.two_phase import Xid
from eoslog.tpc.coordinator import Coordinator
from eoslog.tpc.data_manager import DataManager
from eoslog.tpc.transaction import TwoPhaseTransaction

__all__ = ["Coordinator", "DataManager", "TwoPhaseTransaction", "Xid"]
