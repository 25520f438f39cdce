"""The README's Spark example runs after the first one and copies its records."""

from __future__ import annotations

import re

import eoslog
from eoslog.cli import main
from tests.paths import ROOT


def test_readme_example_copies_the_records_of_the_first_one(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text()
    (first,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (example,) = re.findall(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (creation,) = re.findall(r"^eoslog (.* topic create .*)$", text, re.MULTILINE)
    exec(compile(first, "README.md", "exec"), {})
    assert main(creation.split()) == 0
    # Spark's processes have the directory in which its JVM was started.
    example = example.replace('"shop"', repr(str(tmp_path / "shop")))
    exec(compile(example, "README.md, Spark", "exec"), {"spark": spark})
    with eoslog.open("shop") as log:
        assert sorted(int(record.value) for record in log.read("archive")) == [3, 4, 5]
