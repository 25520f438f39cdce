"""Rules of the house that no linter knows: what the core imports, what a wheel holds, documents."""

import os
import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("EOSLOG_SOURCE") or Path(__file__).parent.parent)


def test_the_core_imports_nothing_of_eoslog_but_its_errors():
    found = set()
    for path in [ROOT / "eoslog/_core.pyx", *(ROOT / "eoslog/_core").glob("*.px[id]")]:
        for line in path.read_text().splitlines():
            if re.match(r"\s*(from|import)\s+eoslog\b", line) and "cimport" not in line:
                found.add(line.strip())
    assert found <= {"from eoslog import errors"}


def test_every_make_target_says_what_it_does():
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE).group(1).split()
    for target in phony:
        assert re.search(rf"^{target}:.*## \w", text, re.MULTILINE), target


def test_numpy_is_all_that_a_plain_installation_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [re.match(r"[\w-]+", item).group() for item in project["dependencies"]] == ["numpy"]
    assert {"spark", "arrow", "codecs", "cli", "demo", "dev"} <= set(
        project["optional-dependencies"]
    )


def test_a_wheel_holds_packages_stubs_and_nothing_of_the_source():
    try:
        found = distribution("eoslog")
    except PackageNotFoundError:
        pytest.skip("eoslog is not installed")
    if "site-packages" not in str(found.locate_file("eoslog")):
        pytest.skip("not installed from a wheel")
    names = [str(name) for name in found.files or ()]
    shipped = [name for name in names if name.startswith(("eoslog/", "pyspark_eoslog/"))]
    assert not [name for name in shipped if name.endswith((".pyx", ".pxd", ".pxi", ".c", ".h"))]
    for wanted in ("eoslog/py.typed", "eoslog/_core.pyi", "pyspark_eoslog/__init__.py"):
        assert wanted in shipped
    assert {name.split("/")[0] for name in shipped} == {"eoslog", "pyspark_eoslog"}
    plain = [item for item in found.requires or () if "extra ==" not in item]
    assert [re.match(r"[\w-]+", item).group() for item in plain] == ["numpy"]


def test_every_decision_is_a_page_with_context_choice_rejected_consequence():
    pages = sorted((ROOT / "docs/adr").glob("*.md"))
    assert len(pages) >= 4
    for page in pages:
        text = page.read_text()
        assert len(text.splitlines()) <= 60, page
        for part in ("Context", "Choice", "Rejected", "Consequence"):
            assert f"**{part}" in text, (page, part)


def test_every_public_name_is_there_and_has_a_docstring():
    import eoslog

    for name in eoslog.__all__:
        try:
            value = getattr(eoslog, name)
        except ImportError as error:  # an extra that is not installed
            assert "pyarrow" in str(error), name
            continue
        if callable(value):
            assert value.__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = eoslog.nonsense
    assert set(eoslog.__all__) <= set(dir(eoslog))
