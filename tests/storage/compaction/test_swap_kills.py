"""A cleaner killed at any step of a swap leaves all old or all new segments.

This holds for the next session and for processes that have the partition open. Items 51 and 55 of the
regression list (KAFKA-10471, KAFKA-12520).
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import textwrap
import threading

import pytest

from eoslog import _core
from eoslog.errors import StorageError
from eoslog.storage.compaction.cleaner import clean_partition
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from eoslog.storage.log import segment_list
from eoslog.storage.log.retention import apply_retention, delete_records
from tests.faults.harness import live
from tests.storage.compaction.test_compactor import NOW, Writer, clean, committed, folded
from tests.storage.helpers import batch, opened, payloads

pytestmark = pytest.mark.process

SETTINGS = {"segment_bytes": 700, "index_interval_bytes": 100}
LARGE = {"segment_bytes": 100_000, "index_interval_bytes": 100}

CLEANER = """
import sys
from eoslog.storage.fs import files
from tests.storage.helpers import opened
from tests.storage.compaction.test_compactor import clean

path, point, nth, action = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
with opened(path, segment_bytes=700, index_interval_bytes=100) as log:
    log.flush()
    files.arm_failpoint(point, action, nth)
    clean(log)
print("done")
"""

POINTS = [
    *[(point, 1) for point in ("clean.group", "clean.written", "clean.durable", "clean.swap.durable",
                               "clean.swap.begun", "clean.swap.placed", "clean.swap.published")],
    *[("clean.swap.made", nth) for nth in (1, 2, 3, 4)],
    *[("clean.old.renamed", nth) for nth in (1, 2, 3, 4, 5, 6, 9)], ("clean.old.durable", 1),
    *[("clean.swap.named", nth) for nth in (1, 2, 3, 4)],
    ("clean.swap.begun", 2), ("clean.swap.named", 5), ("clean.old.renamed", 14),
]  # fmt: skip


def fill(path):
    """A log of several segments with an aborted and a committed transaction."""
    with opened(path, **SETTINGS) as log:
        writer = Writer(log)
        for i in range(30):
            writer.put([(b"k%d" % (i % 4), b"v%d" % i), (b"once%d" % i, b"w" * 20)], producer=7)
            if i % 10 == 3:
                writer.put([(b"k0", b"aborted"), (b"t", b"%d" % i)], producer=8, transactional=True)
            if i % 10 == 6:
                writer.end(8, i != 6)
        log.roll()
        log.flush()
        return writer.latest(), log.log_end


def die(path, point, nth, action="kill"):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CLEANER), path, point, str(nth), action],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == -9, done.stderr or "the fault was not met"


def assert_whole(log, expected, end, *, appended=0):
    """Assert that keys read as before, indexes fit and no file is left over."""
    found = folded(committed(log))
    assert {k: v for k, v in found.items() if v[0] < end} == expected
    assert log.log_end == end + appended
    assert not [n for n in os.listdir(log.path) if n.endswith((".swap", ".cleaned", ".deleted"))]
    for base in log.segments.bases():
        for offset in range(base, min(base + 40, log.log_end)):
            got = log.read(offset, log.log_end, 1)
            assert not got or got[0].next_offset > offset


@pytest.mark.parametrize(("point", "nth"), POINTS)
def test_a_killed_swap_leaves_all_old_or_all_new_segments_to_every_reader(tmp_path, point, nth):
    """R55: and views of the old segments live on."""
    path, copy = str(tmp_path / "live"), str(tmp_path / "copy")
    os.mkdir(path)
    expected, end = fill(path)
    with opened(path, **SETTINGS) as log:
        assert folded(committed(log)) == expected  # maps the old segments
        view = log.read(0, log.log_end)[0]
        held = bytes(view.data)
        die(path, point, nth)
        shutil.copytree(path, copy)
        assert folded(committed(log)) == expected
        log.append(batch(1, producer_id=50, sequence=0))
        clean(log)
        assert_whole(log, expected, end, appended=1)
        assert bytes(view.data) == held  # a view of old segments lives on
    with opened(copy, **SETTINGS) as log:
        assert_whole(log, expected, end)
        before = [(p.producer_id, p.producer_epoch, p.last_sequence) for p in log.producers()]
        clean(log)
        assert_whole(log, expected, end)
        assert [
            (p.producer_id, p.producer_epoch, p.last_sequence) for p in log.producers()
        ] == before


AGAIN = [
    ("clean.swap.made", 2, "clean.finish.judged"),
    ("clean.old.renamed", 3, "clean.finish.removed"),
    ("clean.swap.named", 2, "clean.finish.named"),
]


@pytest.mark.parametrize(("point", "nth", "again"), AGAIN)
def test_recovery_that_is_killed_too_is_repeated(tmp_path, point, nth, again):
    """Item 51: a crash while a crash is repaired, three levels deep."""
    path = str(tmp_path)
    expected, end = fill(path)
    die(path, point, nth)
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-c", "import sys\nfrom tests.storage.helpers import opened\nwith opened(sys.argv[1]): pass", path],
            env={**os.environ, "EOSLOG_FAILPOINTS": f"{again}=kill"}, capture_output=True, timeout=300, check=False,
        )  # fmt: skip
    with opened(path, **SETTINGS) as log:
        assert_whole(log, expected, end)


@pytest.mark.parametrize("call", ["pwrite", "rename", "fdatasync"])
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_a_failing_disk_leaves_the_old_segments_or_the_new(tmp_path, call, error):
    path = str(tmp_path)
    expected, end = fill(path)
    with opened(path, **SETTINGS) as log:
        log.flush()
        for nth in (1, 2, 4, 7):
            files.arm_failpoint(call, error, nth)
            try:
                clean(log)
            except StorageError:
                pass
            finally:
                files.disarm_failpoints()
            assert folded(committed(log)) == expected
        clean(log)
        assert_whole(log, expected, end)


def test_a_copy_of_an_unfinished_swap_is_readable_only_after_a_writer(tmp_path):
    path = str(tmp_path / "live")
    os.mkdir(path)
    expected, end = fill(path)
    die(path, "clean.old.renamed", 2)
    shutil.copytree(path, tmp_path / "copy")
    with (
        pytest.raises(StorageError, match="segment swap is incomplete"),
        opened(str(tmp_path / "copy"), read_only=True),
    ):
        pass
    with opened(str(tmp_path / "copy"), **SETTINGS) as log:
        assert_whole(log, expected, end)


def test_listing_segments_waits_for_the_end_of_a_swap(tmp_path):
    """Protocol row 28: in the middle of it the names are neither all old nor all new."""
    path = str(tmp_path)
    expected, end = fill(path)
    with opened(path, **SETTINGS) as log:
        files.arm_failpoint("clean.old.renamed", "EIO", 3)
        with pytest.raises(StorageError):
            clean(log)
        assert log.core.cleaned_version & 1
        assert folded(committed(log)) == expected  # finishes it, and reads the new segments
        assert not log.core.cleaned_version & 1
        assert_whole(log, expected, end)


def rolls(log):
    """Appends until the active segment is another one; how many."""
    before = log.core.active_base
    for sequence in itertools.count():
        log.append(batch(1, producer_id=60, sequence=sequence, size=100))
        if log.core.active_base != before:
            return sequence + 1


def test_a_roll_during_a_swap_does_not_keep_the_swap_from_ending(tmp_path, monkeypatch):
    """Entering the next segment needs a list, which waits for the end of the swap."""
    monkeypatch.setattr(segment_list, "LOCK_TIMEOUT_S", 1)
    path = str(tmp_path)
    expected, end = fill(path)
    with opened(path, **SETTINGS) as log, opened(path, **SETTINGS) as other:
        appended, real = [], files.failpoint

        def meanwhile(point):
            if point == "clean.swap.begun" and not appended:
                appended.append(rolls(other))
            return real(point)

        monkeypatch.setattr(files, "failpoint", meanwhile)
        clean(log)
        assert appended
        assert not log.core.cleaned_version & 1
        assert_whole(log, expected, end, appended=appended[0])


def test_a_handle_that_missed_a_roll_completes_the_swap_of_a_dead_process(tmp_path, monkeypatch):
    monkeypatch.setattr(segment_list, "LOCK_TIMEOUT_S", 1)
    path = str(tmp_path)
    expected, end = fill(path)
    with opened(path, **SETTINGS) as log, opened(path, **SETTINGS) as other:
        assert folded(committed(log)) == expected
        die(path, "clean.swap.begun", 1)
        appended = rolls(other)
        assert log.core.cleaned_version & 1
        assert_whole(log, expected, end, appended=appended)
        assert not log.core.cleaned_version & 1
        log.append(batch(1, producer_id=60, sequence=appended))
        assert [p.last_sequence for p in log.producers() if p.producer_id == 60] == [appended]


def flush_after_a_death(child, path):
    _core.debug_locks()
    with opened(path, **SETTINGS) as log:
        die(path, "clean.swap.begun", 1)
        log.append(batch(1, producer_id=60, sequence=0))
        log.roll()
        log.append(batch(1, producer_id=60, sequence=1))
        log.flush()  # of two segments: it lists them
        child.tell("after", log.durable_end == log.log_end, log.core.cleaned_version & 1)


def test_a_flush_takes_no_cleaner_lock_under_the_flush_lock(tmp_path):
    """The swap is completed once the flush lock is free (protocol, section 2)."""
    path = str(tmp_path)
    expected, end = fill(path)
    life = live(flush_after_a_death, path)
    assert life.status == 0, life
    assert life.told == [["after", True, 0]]
    with opened(path, **SETTINGS) as log:
        assert_whole(log, expected, end, appended=2)


@pytest.mark.parametrize("ask", [lambda log: delete_records(log, 40),
                                 lambda log: apply_retention(log, 10**13)],
                         ids=["delete_records", "retention"])  # fmt: skip
def test_a_holder_of_the_cleaner_lock_completes_a_dead_swap_before_listing(
    tmp_path, monkeypatch, ask
):
    monkeypatch.setattr(segment_list, "LOCK_TIMEOUT_S", 1)
    path = str(tmp_path)
    fill(path)
    with opened(path, **SETTINGS, cleanup_policy="compact,delete") as log:
        log.segments.bases()
        die(path, "clean.swap.begun", 1)
        ask(log)
        assert not log.core.cleaned_version & 1


def merged_by_a_dead_cleaner(path):
    """Segments of 700 bytes and a cleaner that dies once the swap files have names."""
    program = textwrap.dedent(CLEANER).replace("segment_bytes=700", "segment_bytes=100000")
    done = subprocess.run(
        [sys.executable, "-c", program, path, "clean.swap.durable", "1", "kill"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == -9, done.stderr or "the fault was not met"


@pytest.mark.parametrize("cleaned_before", [False, True])
def test_a_prepared_swap_that_a_later_process_completes_reaches_all_readers(
    tmp_path, cleaned_before
):
    """Protocol rows 27 and 28: no handle keeps a list or mapping of old segments."""
    path = str(tmp_path)
    expected, end = fill(path)
    if cleaned_before:
        checkpoints.write_offsets(f"{path}/{checkpoints.CLEANER_CHECKPOINT}", {("t", 0): end - 1})
    with opened(path, **LARGE) as reader, opened(path, **LARGE) as cleaner:
        for log in (reader, cleaner):
            committed(log, 0, 12)  # maps some of the old segments
        merged_by_a_dead_cleaner(path)
        assert not reader.core.cleaned_version & 1
        clean_partition(cleaner, end, NOW)  # nothing is due any more
        for log in (reader, cleaner):
            assert_whole(log, expected, end)
    with opened(path, **LARGE) as log:
        assert_whole(log, expected, end)


READER = """
import sys
from tests.storage.helpers import opened
from tests.storage.compaction.test_compactor import committed, folded

with opened(sys.argv[1], segment_bytes=700, index_interval_bytes=100) as log:
    print("ready", flush=True)
    rounds = 0
    last = -1
    while True:
        found, position, bound = {}, 0, -1
        # What was superseded meanwhile is found further on: a reader must reach the end.
        while position != bound:
            bound = log.last_stable_offset
            found.update(folded(committed(log, position, bound)))
            position, bound = bound, log.last_stable_offset
        wrong = [k for k in (b"fixed%d" % i for i in range(20)) if k not in found]
        assert not wrong, (wrong, sorted(found)[:5])
        assert not any(v == b"aborted" for _, v in found.values())
        assert log.log_end >= last
        last = log.log_end
        rounds += 1
        if b"stop" in found:
            break
    print(rounds, len(found), flush=True)
"""


def test_readers_in_other_processes_miss_no_key_while_segments_are_swapped(tmp_path):
    """G06 and item 69 with real processes: no key vanishes, nothing aborted shows."""
    path = str(tmp_path)
    with opened(path, **SETTINGS) as log:
        writer = Writer(log)
        for i in range(20):
            writer.put([(b"fixed%d" % i, b"v" * 30)])
        log.flush()
        readers = [
            subprocess.Popen([sys.executable, "-c", READER, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        ]  # fmt: skip
        try:
            for reader in readers:
                assert reader.stdout.readline() == "ready\n"
            for i in range(60):
                writer.put([(b"k%d" % (i % 3), b"v%d" % i), (b"fixed%d" % (i % 20), b"again")])
                writer.put([(b"a", b"aborted")], producer=9, transactional=True)
                writer.end(9, False)
                if i % 2:
                    log.roll()
                    clean(log, now=NOW + i * 86_400_000)
            writer.put([(b"stop", b"")])
            log.flush()
            for reader in readers:
                out, err = reader.communicate(timeout=300)
                assert reader.returncode == 0, err
                assert int(out.split()[0]) > 1
        finally:
            for reader in readers:
                reader.kill()


def test_a_segment_reads_only_the_file_that_it_opened(tmp_path):
    """A reader has the old file open when a shorter one, or none, takes its place."""
    path = str(tmp_path)
    fill(path)
    with opened(path, **SETTINGS) as log:
        base = log.segments.bases()[0]
        segment = log.segment(base)
        size = segment.size()
        whole = bytes(segment.view(0, size, size, lambda: None)[0])
        clean(log)
        assert os.path.getsize(segment.path()) < size
        assert segment.size() == size
        assert bytes(segment._whole(segment.opened(), size)) == whole
        assert (
            segment._whole(segment.opened(), size + 1) is None
        )  # as when a dead writer's bytes were cut


def test_appends_continue_while_segments_are_swapped(tmp_path):
    """A fold in the active segment keeps its state: no duplicate, no gap."""
    path = str(tmp_path)
    with opened(path, **SETTINGS) as log:
        sent = []
        cleaned = threading.Event()

        def write():
            for sequence in itertools.count():
                if sequence >= 150 and cleaned.is_set():
                    return
                data = batch(1, producer_id=1, sequence=sequence, size=30)
                first = log.append(data)
                again = log.append(data)
                assert again.duplicate
                assert again.base_offset == first.base_offset
                sent.append(first.base_offset)
                if sequence % 100 == 0:
                    log.flush()  # or each segment keeps its descriptor

        thread = threading.Thread(target=write)
        thread.start()
        for _ in range(3):
            clean(log)
        cleaned.set()
        thread.join()
        assert len(sent) >= 150
        assert sent == sorted(set(sent))
        assert len(payloads(log)) >= 1
        assert log.producers()[0].last_sequence == len(sent) - 1
