"""No class name is defined twice in the packages and the core."""

import ast
import re
from collections import defaultdict

from tests.paths import SOURCE

SAME_THING = {"AbortedEntry", "ProducerEntry"}
"""A struct of the core and the class of Python that mirrors it."""
CORE_TYPE = re.compile(
    r"^(?:cdef class|class|cdef struct|ctypedef struct) (\w+)[^\n]*:\s*(?:#.*)?$", re.M
)


def defined_names() -> dict[str, list[str]]:
    found = defaultdict(list)
    for package in ("eoslog", "spark/pyspark_eoslog"):
        for path in (SOURCE / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(str(path.relative_to(SOURCE)))
    for path in (SOURCE / "eoslog/_core").rglob("*.p[yx][xid]"):
        for name in CORE_TYPE.findall(path.read_text()):
            found[name].append(str(path.relative_to(SOURCE)))
    return found


def test_no_class_name_is_used_for_two_things():
    assert len(defined_names()) > 300
    double = {name: places for name, places in defined_names().items() if len(places) > 1}
    assert double.keys() == SAME_THING, double


OLD_WORDS = {"anew", "believe", "face", "fate", "mend", "nobody", "stands", "told", "twin"}
"""Words of the glossary in `style.md` that have a standard term."""


def test_no_function_or_class_has_an_old_word_in_its_name():
    found = set()
    for package in ("eoslog", "spark/pyspark_eoslog"):
        for path in (SOURCE / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", node.name).lower().split("_")
                    if OLD_WORDS & set(words) or "let_go" in node.name:
                        found.add(f"{path.relative_to(SOURCE)}: {node.name}")
    assert found == set()
