"""Databases: exactly-once data flow between a log and SQLite or PostgreSQL."""

from eoslog.sql.auditing import AuditFinding, AuditReport, audit
from eoslog.sql.database import Database
from eoslog.sql.outbox.relay import OutboxRelay, OutboxStatus
from eoslog.sql.sink import Sink, SinkBatch

__all__ = [
    "AuditFinding", "AuditReport", "Database", "OutboxRelay", "OutboxStatus", "Sink", "SinkBatch",
    "audit",
]  # fmt: skip
