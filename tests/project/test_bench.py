"""The benchmarks' own code: order of runs, checks, the page. No time is asserted."""

import contextlib
import re
from pathlib import Path

import pytest

pytest.importorskip("pytest_benchmark")

from bench import goals, ratios, report
from bench.contest import AbsentError, Contender, Contest, rotated
from bench.row import Row

BENCH = Path(goals.__file__).parent


def contest(ours, **peers):
    """Runs' seconds, one unit each."""
    seconds = {"": ours} | peers
    return ratios.Contest("records", seconds, dict.fromkeys(seconds, 1), {"gone": "no server"})


def row(**options):
    return Row("row", "file:test", **({"peers": ("peer",)} | options))


def test_every_pass_starts_one_contender_later():
    field = [Contender(name, len) for name in "abc"]
    names = "".join(contender.name for contender in rotated(field, 4))
    assert names == "abcbcacababc"


@pytest.mark.slow
def test_peers_run_between_eoslog_runs_and_each_is_checked_once(benchmark):
    ran, checked = [], []

    def contender(name):
        @contextlib.contextmanager
        def around():
            ran.append(f"({name}")
            yield name
            ran.append(f"{name})")

        return Contender(name, ran.append, around, lambda state, _: checked.append(state))

    def missing():
        raise AbsentError("no server")

    Contest(benchmark)(
        contender("us"), contender("them"), ("gone", missing), units=1, rounds=3, warm=False
    )
    us, them = ["(us", "us", "us)"], ["(them", "them", "them)"]
    if benchmark.disabled:  # as in xdist's workers: once is enough to see that it works
        assert ran[:3] == us
        return
    assert ran == [*us, *them, *them, *us, *us, *them]
    assert sorted(checked) == ["them", "us"]
    assert benchmark.extra_info["absent"] == {"gone": "no server"}
    assert len(benchmark.extra_info["peers"]["them"]["seconds"]) == 3


def test_a_wrong_measurement_gives_no_figure(benchmark):
    def wrong(_state, _result):
        raise AssertionError("17 records, not 18")

    with pytest.raises(AssertionError, match="17 records"):
        Contest(benchmark)(
            Contender("us", lambda _: None, check=wrong), units=1, rounds=1, warm=False
        )


@pytest.mark.parametrize(
    ("options", "ours", "peer", "verdict"),
    [
        ({"least": 0.5}, [2, 2, 2], [1, 1, 1], "reached"),
        ({"least": 0.5}, [4, 4, 4], [1, 1, 1], "missed by 50 %"),
        ({"least": 0.5}, [2, 9, 9], [1, 1, 1], "best run only"),
        ({"most": 2.0}, [2, 2, 2], [1, 1, 1], "reached"),
        ({"most": 2.0}, [4, 4, 4], [1, 1, 1], "missed by 50 %"),
        ({"most": 2.0, "plus_us": 100}, [0.00015] * 3, [0.00005] * 3, "reached"),
        ({"most": 2.0, "plus_us": 100}, [0.0002] * 3, [0.00005] * 3, "missed by 25 %"),
        ({"floor": 0.5}, [4, 4, 4], [1, 1, 1], "BELOW THE MINIMUM 0.5"),
    ],
)
def test_a_goal_is_reached_or_missed_by_its_worse_figure(options, ours, peer, verdict):
    line = ratios.measured(row(**options), contest(ours, peer=peer))
    assert line.verdict == verdict
    assert (line.missed or line.broken) == (verdict != "reached")


def test_the_slowest_of_several_peers_counts():
    line = ratios.measured(
        row(peers=("fast", "slow"), least=0.8), contest([10] * 3, fast=[1] * 3, slow=[9] * 3)
    )
    assert line.minima == line.medians == 0.9
    assert line.verdict == "reached"


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ([1] * 3, "reached"),
        ([2] * 3, "0.75 of ceiling, reached"),
        ([3] * 3, "0.50 of ceiling, missed by 29 %"),
    ],
)
def test_a_share_of_the_ceiling_reaches_a_goal_too(ours, verdict):
    entry = row(least=4, instead=("ceiling", 0.7))
    line = ratios.measured(entry, contest(ours, peer=[4] * 3, ceiling=[1.5] * 3))
    assert (line.verdict, line.goal) == (verdict, ">= 4 or 0.7 of ceiling")
    assert line.missed == ("missed" in verdict)


def test_latencies_are_percentiles_of_each_contender():
    found = {
        "test_commit_latency:test_commit_alone": contest(
            [n / 1000 for n in range(1000)], SQLite=[0.002] * 3
        )
    }
    assert ratios.latencies(found) == [
        ("commit alone, eoslog", "500 ms", "990 ms", "999 ms"),
        ("commit alone, SQLite", "2 ms", "2 ms", "2 ms"),
    ]
    assert ratios.table_of_latencies(found, markdown=True)[:2] == [
        "|  | p50 | p99 | p99.9 |", "|---|---:|---:|---:|",
    ]  # fmt: skip
    assert ratios.table_of_latencies({}) == []


def test_numbers_have_units_and_a_missing_peer_has_its_reason():
    assert ratios.measured(row(peers=(), limit=60e-6), contest([30e-6] * 3)).verdict == (
        "30 us, reached"
    )
    over = ratios.measured(row(peers=(), limit=1 << 20, in_bytes=True), contest([3 << 20]))
    assert (over.verdict, over.goal, over.missed) == ("3 MiB, missed by 200 %", "<= 1 MiB", True)
    assert ratios.measured(row(peers=("gone",)), contest([1])).verdict == "no gone: no server"


def test_growth_is_a_curve_and_a_minimum_applies():
    grown = contest([4e-6] * 3, **{"1x": [1e-6] * 3, "10x": [2e-6] * 3})
    found = {"test_growth:test_growth[seek-data]": grown}
    assert ratios.curves(found) == ["seek, data: 1x 1 us, 10x 2 us, 100x 4 us"]
    assert ratios.measured(row(floor=0.5), contest([1] * 3, peer=[1] * 3)).verdict == "held"


def test_every_goal_names_an_existing_test():
    found = {
        f"{path.stem}:{name}"
        for path in BENCH.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert {entry.test.partition("[")[0] for entry in goals.ROWS} <= found
    assert len({(entry.what, entry.test) for entry in goals.ROWS}) == len(goals.ROWS)


def test_the_page_gets_the_table_and_keeps_the_rest():
    name, peer = "bench/test_scan.py::test_scan", {"seconds": [1.0] * 5, "units": 100}
    info = {"units": 100, "unit": "records", "absent": {}, "peers": {"memcpy": peer}}
    results = {
        "machine_info": {"system": "Linux", "release": "6", "python_version": "3.11", "cpu": {}},
        "commit_info": {"id": "0123456789abcdef", "dirty": False},
        "datetime": "2026-01-02T03:04:05",
        "benchmarks": [{"fullname": name, "extra_info": info, "stats": {"data": [2.0] * 5}}],
    }  # fmt: skip
    text = f"before\n{report.BEGIN}\nan earlier run\n{report.END}\nafter\n"
    page = report.page(text, results)
    assert page.startswith("before\n") and page.endswith("after\n") and "an earlier run" not in page
    assert (
        "| scan / memcpy of the values | 50.0 | 100 | 0.50 | 0.50 | >= 0.6 | missed by 17 % |"
        in page
    )
    assert "0 of 1 goals and minimums are reached." in page and "commit 0123456789" in page
    assert report.page(page, results) == page
    with pytest.raises(ValueError):
        report.page("no marks", results)


def test_a_page_gets_each_table_that_it_has_a_marker_for():
    def timed(name, seconds, peer):
        info = {
            "units": 100, "unit": "records", "absent": {},
            "peers": {peer: {"seconds": [1.0] * 5, "units": 100}},
        }  # fmt: skip
        return {"fullname": f"bench/{name}", "extra_info": info, "stats": {"data": [seconds] * 5}}

    results = {
        "machine_info": {"system": "Linux", "release": "6", "python_version": "3.11", "cpu": {}},
        "commit_info": {"id": "0123456789abcdef", "dirty": False},
        "datetime": "2026-01-02T03:04:05",
        "benchmarks": [
            timed("test_scan.py::test_scan", 0.00002, "memcpy"),
            timed("test_transactions.py::test_transactions_of_1000[strict]", 2.0, "flushes"),
            timed(
                "test_transactions.py::test_commit_of_one_record", 0.05, "4 KiB append+fdatasync"
            ),
        ],
    }
    marks = (report.BEGIN_FIGURES, report.BEGIN_SHORT, report.BEGIN)
    text = "\n".join(f"{mark}\nan earlier run\n{report.END}" for mark in marks)
    page = report.page(text, results)
    assert "an earlier run" not in page and page.count(report.END) == 3
    assert (
        "| Read columns with `Log.scan` | 5 million records/s | 50000.00 times a memory copy |"
        in page
    )
    slower = (
        "| Transactions of 1,000 records, on the disk | 50 records/s | 0.50 times the same without"
    )
    assert slower in page  # the row compares times, a user reads speeds
    assert "| Commit of one record, on the disk | 500 µs | 0.05 times the time of a 4 KiB" in page
    assert report.page(page, results) == page


def test_each_figure_for_users_is_a_row_of_the_benchmark():
    assert {figure.row for figure in report.FIGURES} <= {entry.what for entry in goals.ROWS}
    assert len(report.FIGURES) == 10
