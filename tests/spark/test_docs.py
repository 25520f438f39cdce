"""The blocks of docs/spark.md run, one after the other."""

import re
from pathlib import Path

import pytest

DOC = Path(__file__).resolve().parents[2] / "docs" / "spark.md"


def test_the_blocks_of_the_spark_page_run(spark, tmp_path):
    if not DOC.exists():
        pytest.skip("the docs are not beside the tests")
    blocks = re.findall(r"^```python\n(.*?)^```", DOC.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 3
    names = {"spark": spark, "shop": str(tmp_path / "shop"), "checkpoint": str(tmp_path / "ck")}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{DOC.name} block {number}", "exec"), names)
