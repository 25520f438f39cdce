"""The names of the public API; connectors use no other names of the package.

`public_names.json` lists what `dir()` shows of the package and of each of its classes. A change
of it is a change of the public interface: it needs a line in the changelog.
"""

from __future__ import annotations

import ast
import enum
import inspect
import json
from pathlib import Path

import pytest

import eoslog
from tests.paths import SOURCE

LISTED = Path(__file__).with_name("public_names.json")
BUILT_IN = (Exception, OSError, str, int, tuple)
OF_SPARK = {"eoslog", "eoslog.config", "eoslog.connector", "eoslog.errors", "eoslog.model"}
OF_SPARK |= {"eoslog.shown_values"}


def shown() -> dict[str, list[str]]:
    """The names that `dir()` shows of the package and of its classes.

    Names that a class inherits from Python are left out.
    """
    found = {"eoslog": sorted(set(eoslog.__all__) - {"__version__"})}
    for name in found["eoslog"]:
        thing = getattr(eoslog, name)
        if inspect.isclass(thing) and not issubclass(thing, enum.Enum):
            found[name] = [
                attribute
                for attribute in dir(thing)
                if not attribute.startswith("_")
                and not any(
                    issubclass(thing, kind) and hasattr(kind, attribute) for kind in BUILT_IN
                )
            ]
    return found


def test_the_public_names_are_those_listed():
    assert shown() == json.loads(LISTED.read_text())


@pytest.mark.parametrize("name", [n for n in shown() if n != "eoslog"])
def test_every_public_call_of_a_class_has_a_docstring(name):
    for attribute in shown()[name]:
        value = inspect.getattr_static(getattr(eoslog, name), attribute)
        if callable(value) or isinstance(value, property | classmethod | staticmethod):
            assert inspect.getdoc(getattr(getattr(eoslog, name), attribute)), (name, attribute)


def test_record_names_the_module_that_users_import_it_from():
    assert eoslog.Record.__module__ == "eoslog"


@pytest.mark.parametrize("name", ["GroupCoordinator", "TransactionCoordinator"])
def test_a_coordinator_attribute_raises_a_warning(name):
    assert name not in eoslog.__all__ and name not in dir(eoslog)
    with pytest.warns(DeprecationWarning, match=f"eoslog.{name} is internal"):
        assert getattr(eoslog, name).__name__ == name


def test_every_name_of_the_connector_module_exists():
    connector = pytest.importorskip("pyarrow") and __import__("eoslog.connector").connector
    for name in connector.__all__:
        assert getattr(connector, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = connector.nonsense


def of_spark(module: str) -> bool:
    return module in OF_SPARK or module.startswith("eoslog.connector.")


def test_the_spark_package_imports_only_public_modules_and_the_connector():
    paths = sorted((SOURCE / "spark/pyspark_eoslog").rglob("*.py"))
    assert len(paths) > 10
    found = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {(path.name, alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((path.name, node.module or ""))
                if node.module == "eoslog":
                    found |= {
                        (path.name, f"eoslog.{alias.name}")
                        for alias in node.names
                        if alias.name not in eoslog.__all__
                    }
    ours = {(file, module) for file, module in found if module.split(".")[0] == "eoslog"}
    assert {(file, module) for file, module in ours if not of_spark(module)} == set()
