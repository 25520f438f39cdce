"""The imports of a package as a graph, and its knots.

A knot is a set of modules that import each other in a circle. Every import counts: at module
level, inside a function, under `TYPE_CHECKING`, and one by `importlib.import_module` with a
constant name. The sources are read, nothing is imported.

`from package import name` is an import of the module `package.name` if there is one, and of
`package` otherwise. That an import runs the `__init__` of each package above the module does
not count: it would tie every module to the package that contains it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

Graph = dict[str, set[str]]
"""The modules that each module imports."""
_CIMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+import\s+(.+)|import\s+([\w.]+))")


def import_graph(folder: Path) -> Graph:
    """The imports between the modules of the package in `folder`.

    A compiled module `name.pyx` is one module, together with the files `name/*.pxi` that it
    includes. Its `cimport` lines name no Python module and do not count.
    """
    modules = dict(_modules(folder))
    graph: Graph = {name: set() for name in modules}
    for name, paths in modules.items():
        for path in paths:
            found = _imports(path, name) if path.suffix == ".py" else _compiled_imports(path)
            graph[name].update(module for each in found if (module := _module(each, modules)))
        graph[name].discard(name)
    return graph


def knots(graph: Graph) -> list[frozenset[str]]:
    """The strongly connected components of more than one module, largest first.

    Source: R. Tarjan, "Depth-first search and linear graph algorithms", 1972.
    """
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[frozenset[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            place = stack.index(module)
            component = frozenset(stack[place:])
            del stack[place:]
            if len(component) > 1:
                found.append(component)

    for module in sorted(graph):
        if module not in number:
            visit(module)
    return sorted(found, key=lambda knot: (-len(knot), sorted(knot)))


def inside(graph: Graph, modules: frozenset[str]) -> list[str]:
    """The imports between some modules, as lines of a report."""
    return [
        f"{name} -> {', '.join(sorted(graph[name] & modules))}"
        for name in sorted(modules)
        if graph[name] & modules
    ]


def _modules(folder: Path) -> Iterator[tuple[str, list[Path]]]:
    """(name, sources) of every module of a package."""
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder.parent).with_suffix("")
        parts = place.parts[:-1] if place.name == "__init__" else place.parts
        if all((folder.parent.joinpath(*parts[:n]) / "__init__.py").exists()
               for n in range(1, len(place.parts))):  # fmt: skip
            yield ".".join(parts), [path]
    for path in sorted(folder.rglob("*.pyx")):
        place = path.relative_to(folder.parent).with_suffix("")
        yield ".".join(place.parts), [path, *sorted(path.with_suffix("").rglob("*.pxi"))]


def _module(name: str, modules: Mapping[str, object]) -> str | None:
    """The module of a dotted name, or the module that defines the name."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def _imports(path: Path, module: str) -> Iterator[str]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [base])])
            yield from (base if a.name == "*" else f"{base}.{a.name}" for a in node.names)
        elif isinstance(node, ast.Call) and _callee(node) in ("import_module", "__import__"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def _callee(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _compiled_imports(path: Path) -> Iterator[str]:
    for line in path.read_text().splitlines():
        match = _CIMPORT.match(line)
        if match is None or " cimport " in line:
            continue
        base, names, module = match.groups()
        if module:
            yield module
        else:
            for name in re.findall(r"(\w+)(?:\s+as\s+\w+)?", names.strip("( )")) or [""]:
                yield f"{base}.{name}"
