"""The workflows run what `.ci/run` runs, on the Pythons that the package names."""

import re
import tomllib

from ruamel.yaml import YAML

from tests.paths import SOURCE as ROOT
from tests.project.test_makefile import calls_in_script

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = ROOT / ".github/workflows"


def workflow(name: str) -> dict:
    return YAML(typ="safe").load((WORKFLOWS / name).read_text())


def pythons_of_the_package() -> list[str]:
    return [
        found[1]
        for item in PROJECT["project"]["classifiers"]
        if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", item))
    ]


def test_ci_tests_each_python_that_the_package_names():
    matrix = workflow("ci.yml")["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == pythons_of_the_package()
    assert PROJECT["project"]["requires-python"] == f">={pythons_of_the_package()[0]}"


def test_wheels_are_built_for_each_python_libc_and_machine():
    built = PROJECT["tool"]["cibuildwheel"]["build"].split()
    assert built == [f"cp{name.replace('.', '')}-*" for name in pythons_of_the_package()]
    matrix = workflow("wheels.yml")["jobs"]["wheels"]["strategy"]["matrix"]
    assert matrix["libc"] == ["manylinux", "musllinux"]
    assert matrix["machine"] == ["x86_64", "aarch64"]


def test_ci_runs_every_target_of_the_script():
    text = "".join(path.read_text() for path in WORKFLOWS.glob("*.yml"))
    assert calls_in_script((ROOT / ".ci/run").read_text()) <= calls_in_script(text)


def test_hooks_of_pre_commit_run_targets_of_the_makefile():
    (local,) = YAML(typ="safe").load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    hooks = {hook["id"]: hook["entry"] for hook in local["hooks"]}
    assert {"lint", "language", "imports", "commit-message"} == set(hooks)
    targets = {target for entry in hooks.values() for target in calls_in_script(entry)}
    assert targets == {"lint", "quality-language", "quality-imports"}
