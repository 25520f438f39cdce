"""The blocks of docs/spark.md run, one after the other."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOC = ROOT / "docs" / "spark.md"


def test_the_blocks_of_the_spark_page_run(spark, tmp_path):
    if not DOC.exists():
        pytest.skip("the docs are not beside the tests")
    blocks = re.findall(r"^```python\n(.*?)^```", DOC.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 3
    names = {"spark": spark, "shop": str(tmp_path / "shop"), "checkpoint": str(tmp_path / "ck")}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{DOC.name} block {number}", "exec"), names)


def test_the_readmes_example_runs_in_an_empty_directory(spark, tmp_path, monkeypatch):
    import eoslog

    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text()
    (first,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (example,) = re.findall(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    exec(compile(first, "README.md", "exec"), {})
    # Spark's processes have the directory in which its JVM was started.
    example = example.replace('"shop"', repr(str(tmp_path / "shop")))
    exec(compile(example, "README.md, Spark", "exec"), {})
    with eoslog.open("shop") as log:
        found = [
            one
            for batch in log.scan("totals", columns=["value"], binary="copy")
            for one in batch.column("value").to_pylist()
        ]
    twice, thrice = ([n * times for n in range(9)] for times in (2, 3))
    assert sorted(map(int, found)) == sorted(twice + thrice)
