"""`eoslog bench` shows every figure with its limit and leaves no files.

It also draws a picture.
"""

import json

import pytest

import eoslog
from eoslog.commands import bench
from eoslog.commands.bench import work

pytest.importorskip("pyarrow")

QUICK = ("bench", "-n", 2000, "--seconds", 0)
RATES = {
    "memory copy of the values", "write + fdatasync of the values", "produce_many(), flush()",
    "consume(1000)", "scan() into columns", "produce() each, flush() at the end", "poll()",
    "transactions of 1,000",
}  # fmt: skip
LATENCIES = {
    "append of 4 KiB + fdatasync", "commit of one record", "produce() and flush() of one record",
}  # fmt: skip


@pytest.fixture(autouse=True)
def few_tries(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(work, "TRIES", 3)


@pytest.mark.slow
def test_bench_reports_every_figure_with_its_unit_and_leaves_no_file(cli, tmp_path):
    outcome = cli(*QUICK, "--picture", "")
    assert outcome.code == 0
    rows = {row["what"]: row for row in outcome.rows}
    assert set(rows) == RATES | LATENCIES
    for what, row in rows.items():
        assert (row["records_per_s"] is None) == (what in LATENCIES)
        assert (row["median_us"] is None) == (what in RATES)
        assert (row["records_per_s"] or row["median_us"]) > 0
    assert rows["scan() into columns"]["of_limit"].endswith("%")
    assert rows["memory copy of the values"]["of_limit"] is None
    assert "3 passes, durability strict, values of 100 bytes" in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_bench_reports_megabytes_as_rate_times_size(cli):
    for row in cli(*QUICK, "-s", 1000, "--durability", "os", "--picture", "").rows:
        if row["records_per_s"] is not None:
            assert row["MB_per_s"] == pytest.approx(row["records_per_s"] / 1000, rel=0.01, abs=0.2)


@pytest.mark.slow
def test_bench_prints_a_table_or_json(cli):
    table = cli(*QUICK, "--picture", "", form="table").out
    assert table.splitlines()[0].split() == [
        "what", "records_per_s", "MB_per_s", "median_us", "of_limit", "spread",
    ]  # fmt: skip
    assert len(json.loads(cli(*QUICK, "--picture", "", form="json").out)) == 11


@pytest.mark.slow
def test_the_picture_is_1200_pixels_wide(cli, tmp_path):
    pytest.importorskip("matplotlib")
    outcome = cli(*QUICK)
    assert f"picture: {tmp_path / bench.PICTURE}" in outcome.err
    content = (tmp_path / bench.PICTURE).read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") == 1200
    assert [path.name for path in tmp_path.iterdir()] == [bench.PICTURE]


def test_bench_without_matplotlib_skips_the_default_picture_only(cli, monkeypatch):
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    outcome = cli(*QUICK)
    assert outcome.code == 0
    assert "no picture: it needs matplotlib; pip install matplotlib" in outcome.err
    asked = cli(*QUICK, "--picture", "here.png")
    assert asked.code == 2
    assert "--picture needs matplotlib: pip install matplotlib" in asked.err


def test_bench_without_pyarrow_skips_the_scan_and_says_so(cli, monkeypatch):
    monkeypatch.setattr(work, "find_spec", lambda name: None)
    outcome = cli(*QUICK, "--picture", "")
    assert {row["what"] for row in outcome.rows} == (RATES | LATENCIES) - {"scan() into columns"}
    assert "scan() is left out: it needs pyarrow; pip install pyarrow" in outcome.err


def test_bench_ends_when_records_come_back_wrong(cli, monkeypatch):
    whole = eoslog.Consumer.consume

    def others(self, *args, **options):
        return [eoslog.Record(r.topic, r.partition, r.offset, value=b"other")
                for r in whole(self, *args, **options)]  # fmt: skip

    monkeypatch.setattr(eoslog.Consumer, "consume", others)
    outcome = cli(*QUICK, "--picture", "")
    assert outcome.code == 1
    assert "2000 records read are not the 2000 written" in outcome.err


def test_bench_uses_the_disk_of_the_directory(cli, place, monkeypatch):
    place.mkdir()
    opened = []
    whole = eoslog.open

    def noting(path, *args, **options):
        opened.append(path)
        return whole(path, *args, **options)

    monkeypatch.setattr(eoslog, "open", noting)
    assert cli(*QUICK, "--picture", "").code == 0
    assert [path.parent.parent for path in opened] == [place]
    assert list(place.iterdir()) == []


def test_bench_help_explains_how_to_read_the_figures(cli):
    text = cli("bench", "--help").out
    for part in ("What to look at:", "Examples:", "eoslog bench --durability os", "--seconds"):
        assert part in text
    assert max(len(line) for line in text.splitlines()) <= 100
    assert any(line.strip().startswith("a large spread") for line in text.splitlines())
