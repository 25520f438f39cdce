"""`check` and `repair`: their output, and no removal without being asked."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import eoslog


@pytest.fixture
def damaged(shop, place: Path) -> Path:
    """A log of five records in batches of their own; the second is damaged."""
    with eoslog.open(place) as log, log.producer() as producer:
        for number in range(5):
            producer.send("orders", b"%d" % number, partition=0).result(60)
    path = place / "orders-0" / f"{0:020}.log"
    batch = eoslog.inspect(path, records=False)["batches"][1]
    data = bytearray(path.read_bytes())
    data[batch["position"] + 64] ^= 1
    path.write_bytes(data)
    return path


def logs(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in place.rglob("*.log*")}


def typed(place: Path, answer: str, *arguments: str) -> tuple[int, str]:
    """Run a command with a terminal as stdin and stderr, and answer it.

    Returns its exit code and output.
    """
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "eoslog", "-d", str(place), *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while data := os.read(ours, 1 << 16):
                shown += data
                if b"[y/N]" in shown and answer:
                    os.write(ours, answer.encode() + b"\n")
                    answer = ""
        code = process.wait(60)
    os.close(ours)
    return code, shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("way", ["--cut", "--skip"])
def test_field_C2_repair_without_a_terminal_requires_yes(cli, place, damaged, way) -> None:
    before = logs(place)
    refused = cli("repair", way)
    assert (refused.code, refused.out) == (2, "")
    assert "-y" in refused.err and way in refused.err
    assert logs(place) == before
    assert cli("repair", way, "-y").code == 0
    assert cli("repair").code == 0
    assert [row["value"] for row in cli("consume", "orders").rows] == (
        ["0"] if way == "--cut" else ["0", "2", "3", "4"]
    )


@pytest.mark.parametrize("way", ["cut", "skip"])
def test_field_C2_repair_on_a_terminal_asks_and_accepts_no(place, damaged, way) -> None:
    before = logs(place)
    code, shown = typed(place, "n", "repair", "--" + way)
    assert code == 1 and logs(place) == before
    told = " ".join(shown.split())
    assert "orders-0: offsets 1 to 1 damaged" in told
    assert "3 complete records in" in told
    assert ("a cut takes them too" if way == "cut" else "a skip keeps them") in told
    code, shown = typed(place, "y", "repair", "--" + way)
    assert code == 0, shown
    assert logs(place) != before and eoslog.repair(place).ok


def test_field_C2_repair_as_kafka_asks_and_keeps_the_truncated_bytes(cli, place, damaged) -> None:
    before = logs(place)
    code, shown = typed(place, "n", "repair", "--as-kafka")
    assert code == 1 and logs(place) == before
    told = " ".join(shown.split())
    assert "orders-0" in told and "whole batches after it too" in told
    assert cli("repair", "--as-kafka").code == 2 and logs(place) == before
    code, shown = typed(place, "y", "repair", "--as-kafka")
    assert code == 0 and logs(place) != before
    (kept,) = place.glob("orders-0/*.log.cut-*")
    assert kept.name in "".join(shown.split())
    assert cli("dump", kept).code == 5, "it begins with the damaged batch"
    (note,) = [row for row in cli("check").rows if row["kind"] == "note"]
    assert note["path"] == str(kept)


def test_field_C2_repair_of_an_undamaged_log_asks_nothing(place, shop) -> None:
    code, shown = typed(place, "", "repair", "--skip")
    assert code == 0 and "[y/N]" not in shown


def test_field_C2_a_report_names_damage_copies_and_split_transactions(cli, place, damaged) -> None:
    reported = cli("repair")
    assert reported.code == 5
    kinds = [row["kind"] for row in reported.rows]
    assert kinds == ["problem", "damage"]
    found = reported.rows[1]
    assert (found["first_offset"], found["records_after"], found["copy"]) == (1, 3, None)
    done = cli("repair", "--skip", "-y")
    (kept,) = [row["path"] for row in done.rows if row["kind"] == "kept"]
    assert cli("dump", kept).code == 5
    noted = cli("check")
    assert noted.code == 0
    assert kept in {row["path"] for row in noted.rows if row["kind"] == "note"}


def test_field_C9_the_result_of_a_check_goes_to_stdout(shop, cli, place) -> None:
    done = cli("check")
    (verdict,) = done.rows
    assert (done.code, verdict["kind"], verdict["ok"]) == (0, "verdict", True)
    assert (verdict["partitions"], verdict["records"]) == (4, 3) or verdict["partitions"] > 0
    assert "no problems" in verdict["message"] and done.err == ""
    assert cli("check", form="table").out.strip().endswith("no problems")
    assert json.loads(cli("check", "--format", "json").out)["ok"] is True
    rows = list(csv.DictReader(io.StringIO(cli("check", form="csv").out)))
    assert [row["kind"] for row in rows] == ["verdict"]


def test_field_C9_findings_and_result_for_a_damaged_log_go_to_stdout(cli, place, damaged) -> None:
    done = cli("check")
    assert done.code == 5
    *problems, verdict = done.rows
    assert {row["path"] for row in problems} == {str(damaged)}
    assert verdict["ok"] is False and "problem" in verdict["message"]
    shown = json.loads(cli("check", "--format", "json").out)
    assert shown["ok"] is False and shown["problems"][0]["path"] == str(damaged)
    table = cli("check", form="table")
    assert table.code == 5 and table.out.strip().endswith(verdict["message"].split(": ")[-1])


def test_field_fix_indexes_reports_what_it_rebuilt(shop, cli, place) -> None:
    with eoslog.open(place) as log, log.producer() as producer:
        producer.send("orders", b"0", partition=0).result(60)
        log._engine.partition("orders", 0).roll()
    gone = place / "orders-0" / f"{0:020}.timeindex"
    content = gone.read_bytes()
    gone.unlink()
    done = cli("check", "--fix-indexes")
    assert done.code == 0
    assert str(gone) in {row["path"] for row in done.rows if row["kind"] == "rebuilt"}
    assert gone.read_bytes() == content
    assert [row["kind"] for row in cli("check", "--fix-indexes").rows] == ["verdict"]
    with eoslog.open(place):
        refused = cli("check", "--fix-indexes")
    assert refused.code != 0 and "open" in refused.err
