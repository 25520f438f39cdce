"""Care for directories that nobody has open: `eoslog.check` and `eoslog.repair`."""

from __future__ import annotations

import os

from eoslog.model import CheckReport, RepairReport
from eoslog.storage import log_checker
from eoslog.storage.kafka_check import check_kafka

__all__ = ["check", "repair"]


def check(
    *paths: str | os.PathLike[str], full: bool = False, read_only_anyway: bool = False
) -> CheckReport:
    """Check directories that nobody has open as a `Log`: those of a real broker, or its partitions.

    Args:
        paths: a broker's log directories or partition directories.
        full: decode every record too.
        read_only_anyway: though a broker is running.

    Raises:
        LockTimeout: a broker is running. ConfigError: a path is neither. StorageError
    """
    reports = [
        check_kafka(os.path.abspath(path), full=full, read_only_anyway=read_only_anyway)
        for path in paths
    ]
    return CheckReport(
        sum(report.partitions for report in reports),
        sum(report.batches for report in reports),
        sum(report.records for report in reports),
        [problem for report in reports for problem in report.problems],
    )


def repair(path: str | os.PathLike[str], mode: str = "report") -> RepairReport:
    """Report damage in a directory that nobody has open, or cut it off.

    Args:
        path: the directory; for "as-kafka" also a stopped broker's log directory, or one partition
            directory of it.
        mode: "report" changes nothing; "cut" truncates each damaged partition at its first bad
            batch, losing what follows it there, and lets readers go on behind segments that are
            gone; "as-kafka" does what a broker's start does after an
            unclean stop, which also cuts at the first bad batch.

    Raises:
        LockTimeout: a process has the directory open. ConfigError: unknown mode.
        UnsupportedFormat: a newer eoslog wrote the directory; nothing was changed.
    """
    return log_checker.repair(os.path.abspath(os.fspath(path)), mode)
