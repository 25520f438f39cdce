"""The Makefile has few everyday targets.

No page or script names a missing one.
"""

import re
import subprocess

from tests.paths import SOURCE as ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))
NAMED = re.compile(r"\bmake\s+((?:(?:-{1,2}[\w-]+|[A-Z_]+=\S+)\s+)*)([a-z][a-z-]*)")
"""A call of make: its options and values, then the target."""
CODE = re.compile(r"`([^`\n]+)`")
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
LOOP = re.compile(r"for target in ([a-z -]+);")


def calls_in_prose(text: str) -> set[str]:
    """The targets of the calls of make that a text shows as code."""
    codes = [*CODE.findall(text), *FENCED.findall(text)]
    return {target for code in codes for _, target in NAMED.findall(code)}


def calls_in_script(text: str) -> set[str]:
    """The targets of the calls of make in a script or in a workflow."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    looped = [name for names in LOOP.findall("\n".join(lines)) for name in names.split()]
    return {*looped, *(target for line in lines for _, target in NAMED.findall(line))}


def test_make_has_at_most_14_targets_for_everyday_work():
    everyday = {target for target in TARGETS if not target.startswith("quality-")}
    assert {"help", "setup", "build", "wheel", "test", "test-fast", "run", "bench"} <= everyday
    assert len(everyday) <= 14


def test_make_help_lists_every_target_once():
    shown = subprocess.run(
        ["make", "-s", "-C", str(ROOT), "help"], capture_output=True, text=True, check=True
    ).stdout
    listed = re.findall(r"^  ([a-z][a-z-]*)  +\S", shown, re.MULTILINE)
    assert sorted(listed) == sorted(TARGETS)
    everyday, quality = shown.split("Checks that take long")
    assert "quality-" not in everyday
    assert not re.findall(r"^  (?!quality-)\S", quality, re.MULTILINE)


def test_every_target_that_a_page_or_docstring_names_exists():
    pages = [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
    ]
    sources = [
        path
        for folder in ("eoslog", "spark", "tests", "bench", "examples")
        for path in (ROOT / folder).rglob("*.py")
    ]
    missing = {
        (str(path.relative_to(ROOT)), target)
        for path in [*pages, *sources]
        for target in calls_in_prose(path.read_text()) - TARGETS
    }
    assert not missing


def test_every_target_that_a_script_or_workflow_calls_exists():
    scripts = [path for path in (ROOT / ".ci").iterdir() if path.is_file()]
    workflows = [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"]
    called = {
        (path.name, target)
        for path in [*scripts, *workflows]
        for target in calls_in_script(path.read_text())
    }
    assert {("run", "quality-fuzz"), ("run", "quality-stubs")} <= called
    assert {target for _, target in called} <= TARGETS
