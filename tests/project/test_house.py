"""Rules of the project that no linter knows.

They are about the imports of the core, the content of a wheel, and documents.
"""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution

import pytest

from tests.paths import SOURCE as ROOT


def test_the_core_imports_only_the_errors_of_eoslog():
    found = set()
    for path in [ROOT / "eoslog/_core.pyx", *(ROOT / "eoslog/_core").rglob("*.px[id]")]:
        for line in path.read_text().splitlines():
            if re.match(r"\s*(from|import)\s+eoslog\b", line) and "cimport" not in line:
                found.add(line.strip())
    assert found <= {"from eoslog import errors"}


def test_every_make_target_has_a_description():
    text = (ROOT / "Makefile").read_text()
    phony = " ".join(re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)).split()
    targets = re.findall(r"^([a-z-]+):", text, re.MULTILINE)
    assert sorted(phony) == sorted(targets)
    for target in phony:
        assert re.search(rf"^{target}:.*## \w", text, re.MULTILINE), target


def test_a_plain_installation_requires_only_numpy():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [re.match(r"[\w-]+", item).group() for item in project["dependencies"]] == ["numpy"]
    assert {"spark", "arrow", "codecs", "cli", "demo", "dev"} <= set(
        project["optional-dependencies"]
    )


def test_a_wheel_contains_packages_and_stubs_but_no_sources():
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


def test_every_decision_page_has_context_choice_rejected_consequence():
    pages = sorted((ROOT / "docs/contributing/adr").glob("*.md"))
    assert len(pages) >= 4
    for page in pages:
        text = page.read_text()
        assert len(text.splitlines()) <= 60, page
        for part in ("Context", "Choice", "Rejected", "Consequence"):
            assert f"**{part}" in text, (page, part)


def test_every_public_name_exists_and_has_a_docstring():
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


SUFFIXES = "py|pyx|pxi|pxd|c|h|md|toml|json"
PATH_IN_PAGE = re.compile(rf"`(\w[\w./-]*/[\w.-]+\.(?:{SUFFIXES}))(?:::\w+)?`")
NAME_IN_PAGE = re.compile(r"`([\w-]+\.(?:py|pyx|pxi|pxd|c|h))`")
ROOMS_OF_PATHS = ("", "eoslog", "spark/pyspark_eoslog", "tests", "docs")
SOURCES = ("eoslog", "spark", "tests", "bench", "examples")


@pytest.mark.parametrize(
    "page", sorted(str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md"))
)
def test_every_source_file_that_a_page_names_exists(page):
    text = (ROOT / "docs" / page).read_text()
    missing = {
        path
        for path in PATH_IN_PAGE.findall(text)
        if not any((ROOT / room / path).exists() for room in ROOMS_OF_PATHS)
    }
    names = {path.name for folder in SOURCES for path in (ROOT / folder).rglob("*")} | {"setup.py"}
    # The reader saves these files, by a comment or by "Save this as `x.py`:".
    names |= set(re.findall(r"^<!-- file: (\S+) -->$", text, re.MULTILINE))
    names |= set(re.findall(r"`([\w-]+\.py)`[^`]*:\n\n```", text))
    assert not missing | (set(NAME_IN_PAGE.findall(text)) - names)


def test_no_folder_of_packages_or_tests_has_more_than_20_source_files():
    suffixes = (".py", ".pyx", ".pxi", ".pxd", ".c", ".h", ".java")
    for top in (ROOT / "eoslog", ROOT / "spark", ROOT / "tests"):
        for folder in [top, *(path for path in top.rglob("*") if path.is_dir())]:
            names = {path.name for path in folder.iterdir() if path.suffix in suffixes}
            assert len(names - {"_core.c"}) <= 20, folder
