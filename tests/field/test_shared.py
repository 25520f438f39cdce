"""Two users of one Unix group share a log with the directory's mode and group."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog.errors import ConfigError, StorageError
from tests.faults.harness import Child, start
from tests.field.users import GROUP, USERS, as_root, command_as, common_folder, run_as

WRITER = """
umask, path, mode, count = int(sys.argv[1], 8), sys.argv[2], sys.argv[3], int(sys.argv[4])
os.umask(umask)
options = {"mode": int(mode, 8)} if mode != "-" else {}
with eoslog.open(path, **options) as log:
    log.create_topic("t", 2, {"segment.bytes": 4096}, exist_ok=True)
    with log.producer(transactional_id=f"id-{os.getuid()}", linger_ms=0) as producer:
        producer.init_transactions()
        for turn in range(count):
            producer.begin_transaction()
            for number in range(20):
                producer.produce("t", bytes(200), key=str(number))
            producer.abort_transaction() if turn % 3 == 2 else producer.commit_transaction()
    with log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.consume(30, timeout=60)
        consumer.commit()
    log.clean()
    print(sum(log.snapshot().values()))
"""


def act(user: int, umask: str, path: Path, mode: str = "-", turns: int = 6) -> int:
    """Write as a user of GROUP; the offsets that it saw."""
    ended = run_as(user, WRITER, umask, path, mode, turns)
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout)


def wrong(path: Path, mode: int) -> list[str]:
    """Files and folders below that have other permissions or another group."""
    found = []
    for folder, _, names in os.walk(path):
        for name in (".", *names):
            status = os.stat(os.path.join(folder, name))
            wanted = mode | stat.S_ISGID if name == "." else mode & 0o666
            if stat.S_IMODE(status.st_mode) != wanted or status.st_gid != GROUP:
                found.append(f"{folder}/{name} {status.st_mode:o} {status.st_gid}")
    return found


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder that both users may write."""
    with common_folder() as folder:
        yield folder


@as_root
@pytest.mark.process
@pytest.mark.parametrize("umasks", [("077", "022"), ("022", "077"), ("077", "077")])
def test_field_C12_two_users_of_a_group_write_one_log_alternately(
    common: Path, umasks: tuple[str, str]
) -> None:
    path, seen = common / "log", [0]
    for turn in range(4):
        user = turn % 2
        seen.append(act(USERS[user], umasks[user], path, "770" if turn == 0 else "-"))
        assert wrong(path, 0o770) == []
    assert seen == sorted(set(seen))
    assert "eoslog.mode=770" in (path / "meta.properties").read_text().splitlines()
    assert {file.stat().st_uid for file in path.rglob("*")} == set(USERS)


@as_root
@pytest.mark.process
def test_field_C12_two_users_write_one_log_simultaneously(common: Path) -> None:
    path = common / "log"
    act(USERS[0], "077", path, "770", 1)
    running = [subprocess.Popen(command_as(user, WRITER, "077", path, "-", 8)) for user in USERS]
    assert [process.wait(120) for process in running] == [0, 0]
    assert wrong(path, 0o770) == []


def modes(path: Path) -> set[int]:
    """Permissions of what is in a directory."""
    return {stat.S_IMODE(entry.stat().st_mode) & 0o777 for entry in path.rglob("*")}


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o770, 0o775])
def test_field_C12_a_backup_keeps_the_mode(tmp_path: Path, mode: int) -> None:
    umask = os.umask(0o077)
    try:
        with eoslog.open(tmp_path / "log", mode=mode) as log:
            log.create_topic("t")
            log.backup(tmp_path / "copy")
        with eoslog.open(tmp_path / "copy") as copy:
            copy.create_topic("later")
    finally:
        os.umask(umask)
    for place in (tmp_path / "log", tmp_path / "copy"):
        assert stat.S_IMODE(place.stat().st_mode) & 0o777 == mode
        assert modes(place) <= {mode, mode & 0o666}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_field_C12_files_are_private_unless_a_mode_is_given(tmp_path: Path, umask: int) -> None:
    (tmp_path / "there").mkdir(mode=0o755)
    old = os.umask(umask)
    try:
        for name in ("new", "there"):
            with eoslog.open(tmp_path / name) as log:
                log.create_topic("t")
    finally:
        os.umask(old)
    assert modes(tmp_path / "new") == {0o700, 0o600}
    assert modes(tmp_path / "there") == {0o700, 0o600}
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_field_C12_an_error_about_another_mode_names_both_modes(tmp_path: Path) -> None:
    eoslog.open(tmp_path / "log", mode=0o770).close()
    eoslog.open(tmp_path / "log", mode=0o770).close()
    with pytest.raises(
        ConfigError, match=r"mode 750 was requested, but the log was created with 770"
    ):
        eoslog.open(tmp_path / "log", mode=0o750)


def create(child: Child, path: Path) -> None:
    child.armed()
    with pytest.raises(ConfigError, match=r"mode 750 was requested, but .* created with 770"):
        eoslog.open(path, mode=0o750)


def test_field_C12_a_process_refuses_the_mode_of_one_that_was_faster(tmp_path: Path) -> None:
    """It is suspended before it takes the lock for the creation."""
    path = tmp_path / "log"
    slower = start(create, path, faults=(("lock", "stop", 1),))
    os.waitid(os.P_PID, slower.pid, os.WSTOPPED | os.WNOWAIT)
    eoslog.open(path, mode=0o770).close()
    slower.signal(signal.SIGCONT)
    slower.end().fine()


@pytest.mark.parametrize("mode", [770, 0o70, -1, 0o1770, "770", True, 1.5])
def test_field_C12_an_invalid_mode_is_rejected(tmp_path: Path, mode: object) -> None:
    with pytest.raises(ConfigError, match="mode: expected"):
        eoslog.open(tmp_path / "log", mode=mode)  # type: ignore[arg-type]
    assert not (tmp_path / "log").exists()


def test_field_C12_a_lost_setgid_bit_logs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    eoslog.open(tmp_path / "log", mode=0o770).close()
    os.chmod(tmp_path / "log", 0o770)
    eoslog.open(tmp_path / "log").close()
    assert "chmod 2770" in caplog.text


@as_root
def test_field_C12_a_group_without_the_user_raises(common: Path) -> None:
    path = common / "log"
    path.mkdir()
    os.chown(path, USERS[0], GROUP + 7)
    ended = run_as(USERS[0], "eoslog.open(sys.argv[1], mode=0o770)", path)
    assert StorageError.__name__ in ended.stderr
    assert f"group {GROUP + 7}" in ended.stderr


@as_root
@pytest.mark.process
def test_field_C12_a_user_outside_the_group_creates_no_private_partition(common: Path) -> None:
    """The kernel gives such a user no setgid bit for new folders."""
    path = common / "log"
    path.mkdir()
    os.chown(path, -1, GROUP + 7)
    eoslog.open(path, mode=0o777).close()
    ended = run_as(USERS[0], "eoslog.open(sys.argv[1]).create_topic('t')", path)
    assert StorageError.__name__ in ended.stderr
    assert f"group {GROUP + 7}" in ended.stderr
    assert not (path / "t-0").exists()
    with eoslog.open(path) as log:
        assert log.offsets("t", 0).log_end == 0
    assert (path / "t-0").stat().st_gid == GROUP + 7
    produced = run_as(
        USERS[1],
        "with eoslog.open(sys.argv[1]) as log, log.producer() as p: p.produce('t', 'value')",
        path,
    )
    assert produced.returncode == 0, produced.stderr


STICKY = """
import logging
logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
try:
    with eoslog.open(sys.argv[1]) as log, log.producer() as producer:
        producer.produce("t", "value")
    print("written")
except eoslog.StorageError as error:
    print(error.errno, error)
"""


@as_root
@pytest.mark.process
@pytest.mark.parametrize("clean", [True, False])
def test_field_C12_the_sticky_bit_is_named_where_it_forbids_a_replacement(
    common: Path, clean: bool
) -> None:
    path = common / "log"
    act(USERS[0], "077", path, "770", 1)
    for folder, _, _ in os.walk(path):
        os.chmod(folder, 0o3770)
    if not clean:
        (path / ".kafka_cleanshutdown").unlink()
    with eoslog.open(path, read_only=True) as log:
        before = log.offsets("t", 0).log_end + log.offsets("t", 1).log_end
    ended = run_as(USERS[1], STICKY, path)
    assert ended.returncode == 0, ended.stderr
    assert "the sticky bit of the directory" in ended.stdout
    assert ("written" in ended.stdout) is not clean
    assert ("leaving the directory unclean" in ended.stdout) is not clean
    with eoslog.open(path) as log:
        after = log.offsets("t", 0).log_end + log.offsets("t", 1).log_end
        assert after == before + (not clean)
        assert log.check().ok
