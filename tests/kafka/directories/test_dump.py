"""Kafka's DumpLogSegments reads every file that eoslog writes without an error."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest

import eoslog
from eoslog import Outcome
from eoslog._core import iter_batches
from eoslog.errors import PreparedTransactionPending
from tests.kafka import jars
from tests.kafka.broker import java
from tests.kafka.directories import world

MAIN = {
    jars.DIRECTORIES: "kafka.tools.DumpLogSegments",
    jars.BEHAVIOUR: "org.apache.kafka.tools.DumpLogSegments",
}
DUMPED = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
INDEXES = (".index", ".timeindex")
WRONG = re.compile(r"isvalid: false|mismatch|Found |should be|could not|no such|exception", re.I)
PREALLOCATED = ("__consumer_offsets", "__transaction_state")
"""The topics whose logs end in zeros while the directory is in use."""
STATES = {
    jars.DIRECTORIES: {
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
    },
    jars.BEHAVIOUR: set("012345"),
}
# What the 4.x tool says of the first batch of every segment but the first, of Kafka's own too.
FIRST_OF_SEGMENT = re.compile(r"Non-consecutive offsets in .*\n  -1 is followed by \d+\n")


class Directories(NamedTuple):
    """The same directory closed, and copied while a transaction was open."""

    closed: Path
    live: Path
    records: dict[str, int]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Directories]:
    place = tmp_path_factory.mktemp("dump")
    with world.build(place / "closed") as log:
        shutil.copytree(place / "closed", place / "live")
        records = Counter(
            f"{topic}-{row.partition}"
            for topic in world.TOPICS
            for row in world.rows_of(log, topic, "read_uncommitted")
            if topic != "trimmed"
        )
    yield Directories(place / "closed", place / "live", records)
    shutil.rmtree(place)


def files(directory: Path, suffixes: tuple[str, ...], topics: str = "") -> list[Path]:
    """The files of the topics whose folder has this prefix.

    "" means all topics that are not internal.
    """
    return sorted(
        path
        for path in directory.glob("*-*/*")
        if path.name.endswith(suffixes)
        and path.parent.name.startswith(topics)
        and (topics or not path.parent.name.startswith("__"))
    )


def dump(version: str, paths: list[Path], *options: str) -> tuple[int, str, str]:
    """Exit code, output, and what it complains of."""
    done = subprocess.run(
        java(version, MAIN[version], "--files", ",".join(map(str, paths)), *options),
        capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, done.stdout, FIRST_OF_SEGMENT.sub("", done.stderr)


def test_the_directory_contains_every_case_for_the_tool(written: Directories) -> None:
    assert len(world.TOPICS) >= 12
    assert len(files(written.closed, (".log",))) >= 40
    assert len(files(written.closed, (".txnindex",))) >= 3
    assert len(files(written.closed, (".snapshot",))) >= 40


@pytest.mark.parametrize("version", MAIN)
@pytest.mark.parametrize("which", ["closed", "live"])
@pytest.mark.parametrize(
    ("topics", "suffixes", "options"),
    [
        ("", DUMPED, ("--deep-iteration", "--print-data-log")),
        ("", INDEXES, ("--index-sanity-check",)),
        ("", INDEXES, ("--verify-index-only",)),
        ("__consumer_offsets", DUMPED, ("--deep-iteration", "--offsets-decoder")),
        ("__transaction_state", DUMPED, ("--deep-iteration", "--transaction-log-decoder")),
        ("__cluster_metadata", (".log",), ("--deep-iteration", "--cluster-metadata-decoder")),
    ],
)
def test_dump_log_segments_finds_no_problem_in_any_file(
    written: Directories,
    version: str,
    which: str,
    topics: str,
    suffixes: tuple[str, ...],
    options: tuple[str, ...],
) -> None:
    if which == "live" and topics in PREALLOCATED:
        # To dump a time index, newer tools read the log to its end.
        suffixes = tuple(suffix for suffix in suffixes if suffix not in (".log", ".timeindex"))
    paths = files(getattr(written, which), suffixes, topics)
    code, output, complaints = dump(version, paths, *options)
    assert (code, complaints) == (0, "")
    assert [line for line in output.splitlines() if WRONG.search(line.split(" payload: ")[0])] == []
    assert all(f"Dumping {path}" in output for path in paths)
    if "--print-data-log" in options:
        sections = {
            Path(part.split("\n", 1)[0]).parent.name: 0 for part in output.split("Dumping ")[1:]
        }
        for part in output.split("Dumping ")[1:]:
            sections[Path(part.split("\n", 1)[0]).parent.name] += len(
                re.findall(r"^\| offset(?!.*endTxnMarker)", part, re.M)
            )
        del sections["trimmed-0"]  # the first segment may still contain records below the log start
        assert {name: count for name, count in sections.items() if count} == written.records


@pytest.mark.parametrize("version", MAIN)
@pytest.mark.parametrize("topic", PREALLOCATED)
def test_dump_log_segments_shows_each_batch_before_preallocated_space(
    written: Directories, version: str, topic: str
) -> None:
    """It fails at the zeros, as in a segment that a broker has preallocated."""
    seen = 0
    for path in files(written.live, (".log",), topic):
        if not (data := path.read_bytes()):
            continue
        code, output, complaints = dump(version, [path], "--deep-iteration")
        batches = len(re.findall(r"^baseOffset: ", output, re.M))
        end = sum(batch.size for batch in iter_batches(data, strict=False)[:batches])
        assert not data[end:].strip(b"\0") and len(data) > end
        assert "record size 0" in f"{output}{complaints}" and code
        seen += batches
    assert seen


@pytest.mark.parametrize("version", MAIN)
def test_the_decoders_show_the_offsets_and_the_states(written: Directories, version: str) -> None:
    _, output, _ = dump(
        version, files(written.closed, (".log",), "__consumer_offsets"), "--offsets-decoder"
    )
    found = set(re.findall(r'"group":"([^"]+)","topic":"plain","partition":0', output))
    assert found == {"group-committed", "group-aborted", "group-open"}
    assert {int(offset) for offset in re.findall(r'"data":{"offset":(\d+),', output)} == set(
        range(10)
    )
    _, output, _ = dump(
        version,
        files(written.closed, (".log",), "__transaction_state"),
        "--transaction-log-decoder",
    )
    assert STATES[version] <= set(re.findall(r'(?:"transactionStatus":|state=)(\w+)', output))
    assert "never-ended" in output


@pytest.mark.parametrize("version", MAIN)
def test_dump_log_segments_reads_undecided_transactions_and_positions(
    version: str, tmp_path: Path
) -> None:
    with eoslog.open(tmp_path) as log:
        log.create_topic("t")
        for mode in ("inline", "staged"):
            with log.producer(transactional_id=mode) as producer:
                producer.init_transactions()
                for outcome in (Outcome.COMMIT, Outcome.ABORT, None):
                    producer.begin_transaction(mode=mode)
                    producer.produce("t", mode)
                    token = producer.prepare_transaction({"order": 7}, "orders-db").token
                    if outcome is not None:
                        log.resolve(token, outcome)
                with (
                    pytest.raises(PreparedTransactionPending) if mode == "inline" else nullcontext()
                ):
                    with producer.transaction() as tx:
                        tx.set_position("source", 7)
        with log.producer(name="relay") as named:
            named.produce("t", "numbered", partition=0, publishing_id=3)
        assert [state.mode for state in log.pending()] == ["inline", "staged"]
    paths = [path for path in sorted(tmp_path.glob("*-*/*")) if path.name.endswith(DUMPED)]
    assert {path.parent.name.rpartition("-")[0] for path in paths} == {
        "t", "__cluster_metadata", "__consumer_offsets", "__positions", "__staged_transactions",
        "__transaction_state",
    }  # fmt: skip
    code, output, complaints = dump(version, paths, "--deep-iteration", "--print-data-log")
    assert (code, complaints) == (0, "")
    assert all(f"Dumping {path}" in output for path in paths)
    assert [line for line in output.splitlines() if WRONG.search(line.split(" payload: ")[0])] == []


@pytest.mark.parametrize("version", MAIN)
def test_dump_log_segments_finds_no_problem_in_a_repaired_log(version: str, tmp_path: Path) -> None:
    with eoslog.open(tmp_path) as log:
        log.create_topic("t")
        with log.producer() as producer:
            for value in (b"kept", b"damaged", b"lost"):
                producer.send("t", value).result(60)
    (path,) = files(tmp_path, (".log",))
    path.write_bytes(path.read_bytes().replace(b"damaged", b"DAMAGED"))
    eoslog.repair(tmp_path, "cut")
    with eoslog.open(tmp_path) as log, log.producer() as producer:
        assert producer.send("t", b"new").result(60).offset == 3
    code, output, complaints = dump(version, files(tmp_path, DUMPED))
    assert (code, complaints) == (0, "")
    assert WRONG.search(output) is None
    found = re.findall(r"baseOffset: (\d) lastOffset: (\d) count: (\d)", output)
    assert found == [("0", "0", "1"), ("1", "2", "0"), ("3", "3", "1")]
    before = path.read_bytes()
    eoslog.repair(tmp_path, "as-kafka")
    assert path.read_bytes() == before


def test_dump_log_segments_finds_a_wrong_index_entry_and_byte(
    written: Directories, tmp_path: Path
) -> None:
    """The tool would have said so."""
    version = jars.BEHAVIOUR
    shutil.copytree(written.closed / "codec-none-0", tmp_path / "codec-none-0")
    index = tmp_path / "codec-none-0" / "00000000000000000000.index"
    data = bytearray(index.read_bytes())
    assert len(data) >= 8
    data[7] ^= 1
    index.write_bytes(data)
    code, output, complaints = dump(version, [index], "--deep-iteration")
    assert code != 0 or "ismatch" in complaints + output
    log = tmp_path / "codec-none-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    code, output, complaints = dump(version, [log], "--deep-iteration")
    assert code != 0 or "isvalid: false" in output
