"""Folders are in the order of the data: none imports from one behind it, no file in a circle."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import requires
from pathlib import Path

import hgpart

ROOT = Path(hgpart.__file__).parent

ORDER = [
    *("errors", "specs", "analytic", "arrays", "terminal", "cores", "freed_memory", "processes"),
    *("sequences", "files", "summary"),
    *(
        "operators.composites",
        "operators",
        "tracing.code",
        "tracing.cache",
        "tracing.programs",
        "tracing",
        "layers.elements",
        "layers",
        "layers.cache",
        "transformation",
        "zoo.architectures",
        "zoo",
        "work",
    ),
    *("machines", "hypergraph", "hypergraph.formats"),
    *("partition.problem.objectives", "partition.problem", "partition.external"),
    *("partition.baselines", "partition.symmetry", "partition.steering"),
    *("partition.native", "partition.bounds", "partition.exact", "partition", "partition.ways"),
    *(
        "schedules",
        "schedules.rules",
        "schedules.dynamic",
        "schedule_wanted",
        "plan",
        "partitioned_model",
    ),
    *("execution.weights", "execution.records", "execution.offloading"),
    *("execution", "execution.threads"),
    *("placement.cutting", "placement.state", "placement.shares", "placement.building"),
    *(
        "placement.batches",
        "placement.as_module",
        "placement",
        "placement.ordering",
        "placement.exporting",
        "timing",
        "prediction",
        "prediction.sketching",
    ),
    *("run.processes", "run", "run.servers", "run.loops"),
    *("run.training.sources", "run.training", "calibration"),
    *("bench.ways", "bench", "recommendation", "explanation"),
    *(
        "compare",
        "report",
        "report.partition",
        "report.explanation",
        "report.page.drawing",
        "report.page",
    ),
    *("plotting", "cli", "cli.training", "cli.commands", "__main__"),
]


def modules() -> dict[str, Path]:
    found = {}
    for file in ROOT.rglob("*.py"):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts).removesuffix("__init__").rstrip(".")] = file
    return found


MODULES = modules()


@cache
def source(name: str) -> str:
    return MODULES[name].read_text(encoding="utf-8")


@cache
def imported(name: str) -> frozenset[str]:
    """Modules of hgpart that one imports, wherever in it, be it for its types alone."""
    return frozenset(_imported(ast.parse(source(name))))


def _imported(tree: ast.AST) -> Iterator[str]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        waiting.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hgpart"):
            package = node.module.removeprefix("hgpart").lstrip(".")
            for alias in node.names:
                inner = f"{package}.{alias.name}".lstrip(".")
                yield inner if inner in MODULES else package


def place(name: str) -> int:
    """Where a module stands: with its folder, a folder's own file behind all folders in it."""
    if "." in name and MODULES[name].name != "__init__.py":
        return ORDER.index(name.rpartition(".")[0])
    return max(at for at, each in enumerate(ORDER) if each == name or each.startswith(f"{name}."))


def test_no_file_imports_itself_in_a_circle() -> None:
    graph = {name: set(imported(name) - {name}) for name in MODULES}
    graph["placement.accounting"].remove("placement.placement")  # a type: of its method `report`
    assert len(list(TopologicalSorter(graph).static_order())) >= len(MODULES)


def test_a_folder_imports_from_folders_before_it() -> None:
    upwards = [
        f"{name} imports {other}"
        for name in sorted(set(MODULES) - {""})
        for other in sorted(imported(name) - {name, ""})
        if place(other) > place(name)
    ]
    assert upwards == []


def test_what_is_imported_first_is_installed_with_hgpart() -> None:
    """A wheel without extras lacked scipy, which tests and other libraries bring along."""
    required = {
        re.split(r"[^\w-]", requirement)[0].replace("-", "_")
        for requirement in requires("hgpart") or ()
        if "extra ==" not in requirement
    }
    installed = required | {"hgpart", "sympy"} | sys.stdlib_module_names  # torch brings sympy
    imports = [
        (name, package)
        for name in sorted(MODULES)
        for statement in ast.parse(source(name)).body
        for package in _packages(statement)
    ]
    assert [(name, package) for name, package in imports if package not in installed] == []


def _packages(statement: ast.stmt) -> list[str]:
    """Names of packages, up to the first dot, that a statement imports."""
    if isinstance(statement, ast.Import):
        return [alias.name.partition(".")[0] for alias in statement.names]
    if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        return [statement.module.partition(".")[0]]
    return []


def test_folders_hold_a_dozen_files_or_so() -> None:
    for folder in {file.parent for file in MODULES.values()}:
        # A model family, or a command, a file.
        most = 19 if folder.name in ("architectures", "commands") else 14
        assert len(list(folder.glob("*.py"))) <= most, folder


def named_operators(name: str) -> Iterator[tuple[str, ast.AST]]:
    """Where a module names an ATen operator: the name, and the expression that it is a part of."""
    if "aten." not in source(name):
        return
    waiting: list[tuple[ast.AST, ast.AST]] = [(ast.parse(source(name)), ast.Module([], []))]
    while waiting:
        node, inside = waiting.pop()
        text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if re.match(r"(torch\.ops\.)?aten\.", text):
            yield text, inside
        elif isinstance(node, ast.IfExp | ast.Starred):
            waiting.extend((child, inside) for child in ast.iter_child_nodes(node))
        else:
            waiting.extend((child, node) for child in ast.iter_child_nodes(node))


def test_what_an_operator_is_stands_in_the_operator_table_alone() -> None:
    """Other files name an operator to call it; they neither list operators nor ask for one.

    But for the one whose shapes torch takes longest to find: further passes know them sooner.
    """
    asks = (ast.Compare, ast.Dict, ast.List, ast.MatchValue, ast.Set, ast.Tuple)
    asked = {
        name: texts
        for name in sorted(set(MODULES) - {"operators.table"})
        if (texts := [text for text, inside in named_operators(name) if isinstance(inside, asks)])
    }
    assert asked == {"tracing.repeated_passes": ["aten.native_batch_norm.default"]}
    named_in_texts = [name for name in MODULES if "aten::" in source(name)]
    assert set(named_in_texts) <= {"operators.table"}
