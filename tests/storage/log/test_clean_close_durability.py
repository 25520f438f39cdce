"""A clean close and a recovery point sync files that no other step syncs.

The next session trusts a clean shutdown: it does not compare the index files of sealed segments with
the log again. So they must be durable before the mark is. A lost `.txnindex` shows the records of
aborted transactions; found by power losses on ext4 and XFS (`tests/torture/harnesses/power.py`).
"""

from __future__ import annotations

import os

import pytest

import eoslog
from eoslog import _core
from eoslog.storage.log.flusher import LogFlusher
from tests.simulation.planted import But

SMALL = {"segment.bytes": "1024", "index.interval.bytes": "100"}


@pytest.fixture
def synced(monkeypatch):
    """Names of the files that were synced, in order."""
    names: list[str] = []
    real = _core.os_sync

    def os_sync(fd, by=real, **options):
        names.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        return by(fd, **options)

    def make(self, *args):
        made(self, *args)
        core = self._core
        self._core = But(core, sync=lambda fd: os_sync(fd, by=core.sync))

    made = LogFlusher.__init__
    monkeypatch.setattr(_core, "os_sync", os_sync)
    monkeypatch.setattr(LogFlusher, "__init__", make)
    return names


def test_sealed_indexes_are_durable_before_the_mark_of_a_clean_shutdown(tmp_path, synced):
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t", 1, SMALL)
        with log.producer(transactional_id="tx", linger_ms=0) as producer:
            producer.init_transactions()
            for number in range(40):
                producer.begin_transaction()
                producer.produce("t", "x" * 100)
                producer.abort_transaction() if number % 2 else producer.commit_transaction()
    folder = tmp_path / "log" / "t-0"
    bases = sorted(p.stem for p in folder.glob("*.log"))
    assert len(bases) > 3
    mark = (
        synced.index(".kafka_cleanshutdown.tmp")
        if ".kafka_cleanshutdown.tmp" in synced
        else len(synced)
    )
    for base in bases[:-1]:
        for suffix in ("index", "timeindex", "txnindex"):
            if (folder / f"{base}.{suffix}").exists():
                assert f"{base}.{suffix}" in synced[:mark], synced
    for snapshot in folder.glob("*.snapshot"):
        if snapshot.stem == bases[-1]:
            continue
        assert any(name.startswith(f"{snapshot.name}.") for name in synced[:mark])


def test_an_unclean_recovery_removes_a_torn_snapshot(tmp_path):
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t", 1, SMALL)
        with log.producer(linger_ms=0) as producer:
            for _ in range(30):
                producer.produce("t", "x" * 100)
                producer.flush()
    snapshots = sorted((path / "t-0").glob("*.snapshot"))
    assert len(snapshots) > 2
    for snapshot in snapshots:
        snapshot.write_bytes(b"")
    (path / ".kafka_cleanshutdown").unlink()
    with eoslog.open(path) as log:
        assert log.offsets("t", 0).log_end == 30
        assert log.check(full=True).ok
