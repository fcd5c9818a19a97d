"""Fails if a file depends on a higher layer, or on itself by way of others.

C++: every ``#include`` below ``cpp/`` and ``backend/`` must lead to the same layer or a lower one,
the files of one layer must not include each other in a circle, ``cpp/`` must not know torch, and
the bindings in ``backend/`` alone may know pybind11. Python: the modules of ``freescale_pg`` must
not import each other in a circle, none may import the public package, which is above them all, and
what is only for the command line may not be imported by what is for programs.

Usage:
    python tools/check_layers.py [ROOT]
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# From the lowest to the highest.
CXX_LAYERS = (
    "cpp/base",
    "cpp/balance",
    "cpp/device",
    "cpp/transport",
    "cpp/transport/shm",
    "cpp/transport/cuda_ipc",
    "cpp/transport/ucx",
    "cpp/rendezvous",
    "cpp/scheduler",
    "cpp/collectives",
    "backend",
)

TORCH_HEADERS = ("torch/", "ATen/", "c10/")
# The last three bring pybind11 in by another name.
PYBIND_HEADERS = (
    "pybind11/",
    "Python.h",
    "torch/extension.h",
    "torch/python.h",
    "torch/csrc/utils/pybind.h",
)
# The module itself, and parts of it that have nothing to do with c10d.
BINDINGS = (
    "backend/module.cc",
    "backend/bind_balance.cc",
    "backend/bind_balance.h",
    "backend/bind_observe.cc",
    "backend/bind_observe.h",
)

PACKAGE = "freescale_pg"
# Above all other modules of the package, from the lower to the higher.
PYTHON_TOPS = ("bench", "cli")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


@dataclass(frozen=True)
class Include:
    """One ``#include`` line."""

    source: str  # path from the root
    line: int
    target: str  # as written
    quoted: bool


def cxx_layer(path: str) -> str | None:
    """Returns the layer whose folder a path from the root lies in, or None."""
    folder = path.rpartition("/")[0]
    return folder if folder in CXX_LAYERS else None


def read_includes(root: Path) -> Iterator[Include]:
    """Yields every ``#include`` below ``cpp/`` and ``backend/``."""
    for top in ("cpp", "backend"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in (".h", ".cc"):
                continue
            source = path.relative_to(root).as_posix()
            for number, text in enumerate(path.read_text().splitlines(), start=1):
                if match := INCLUDE.match(text):
                    yield Include(source, number, match[2], quoted=match[1] == '"')


def include_fault(include: Include) -> str | None:
    """Returns what is wrong with one include, or None."""
    layer = cxx_layer(include.source)
    if layer is None:
        return "lies in a folder that is no layer"
    if include.target.startswith(TORCH_HEADERS) and layer != "backend":
        return f"includes {include.target}, but cpp/ is built without torch"
    if include.target.startswith(PYBIND_HEADERS):
        only_there = f"includes {include.target}, which only the bindings {BINDINGS} may"
        return None if include.source in BINDINGS else only_there
    if include.target.startswith(TORCH_HEADERS):
        return None
    if not include.quoted:
        return None
    target_layer = cxx_layer(include.target)
    if target_layer is None:
        return f'includes "{include.target}", which is not written from the root of the project'
    if CXX_LAYERS.index(target_layer) > CXX_LAYERS.index(layer):
        return f"includes {include.target}, upward from {layer} to {target_layer}"
    return None


def find_circle(edges: Mapping[str, set[str]]) -> list[str] | None:
    """Returns the nodes of one circle in a directed graph, the first repeated last, or None."""
    finished: set[str] = set()

    def visit(node: str, trail: list[str]) -> list[str] | None:
        if node in trail:
            return [*trail[trail.index(node) :], node]
        if node in finished:
            return None
        for neighbour in sorted(edges.get(node, ())):
            if circle := visit(neighbour, [*trail, node]):
                return circle
        finished.add(node)
        return None

    for start in sorted(edges):
        if circle := visit(start, []):
            return circle
    return None


def cxx_faults(root: Path) -> Iterator[str]:
    """Yields one line for each C++ dependency that breaks the rules."""
    edges: dict[str, set[str]] = {}
    for include in read_includes(root):
        if fault := include_fault(include):
            yield f"{include.source}:{include.line}: {fault}"
        elif include.quoted:
            edges.setdefault(include.source, set()).add(include.target)
    if circle := find_circle(edges):
        yield "include circle: " + " -> ".join(circle)


def python_modules(root: Path) -> dict[str, Path]:
    """Returns the modules of the package by dotted name below it; the package itself is ``""``."""
    package = root / "python" / PACKAGE
    modules = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def import_origin(node: ast.ImportFrom, package: str) -> str:
    """Returns the full dotted name that stands between ``from`` and ``import``."""
    module = node.module or ""
    if node.level == 0:
        return module
    parents = package.split(".")
    base = ".".join(parents[: len(parents) - node.level + 1])
    return f"{base}.{module}".rstrip(".")


def imported_names(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Yields line and full dotted name of everything a module imports, inside functions too.

    Args:
        tree: The module.
        package: Full dotted name of the package that relative imports start from.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = import_origin(node, package)
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def resolve_module(name: str, modules: Mapping[str, Path]) -> str | None:
    """Returns the package's module that a full dotted name lies in, or None if it is foreign."""
    parts = name.split(".")
    if parts[0] != PACKAGE:
        return None
    if parts[1:2] == ["_C"]:
        return "_C"
    while len(parts) > 1 and ".".join(parts[1:]) not in modules:
        parts.pop()
    return ".".join(parts[1:])


def python_height(module: str) -> int:
    """Returns 0 for what programs import, and more for what stands above that."""
    top = module.partition(".")[0]
    return PYTHON_TOPS.index(top) + 1 if top in PYTHON_TOPS else 0


def python_faults(root: Path) -> Iterator[str]:
    """Yields one line for each import inside the package that breaks the rules."""
    modules = python_modules(root)
    edges: dict[str, set[str]] = {}
    for module, path in modules.items():
        parent = module if path.name == "__init__.py" else module.rpartition(".")[0]
        package = f"{PACKAGE}.{parent}".rstrip(".")
        for line, name in imported_names(ast.parse(path.read_text()), package):
            target = resolve_module(name, modules)
            if target is None or target == module:
                continue
            if target == "":
                yield f"{path.relative_to(root)}:{line}: imports {name} from the public package"
                continue
            if python_height(target) > python_height(module):
                yield f"{path.relative_to(root)}:{line}: imports {name}, upward"
                continue
            edges.setdefault(module, set()).add(target)
    if circle := find_circle(edges):
        yield "import circle: " + " -> ".join(
            f"{PACKAGE}.{module}".rstrip(".") for module in circle
        )


def main() -> int:
    """Runs the command line; returns the exit status."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    faults = [*cxx_faults(root), *python_faults(root)]
    print("\n".join(faults) or "layers: every dependency leads downward")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
