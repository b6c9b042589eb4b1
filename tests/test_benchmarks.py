"""What benchmarks import of hgpart exists: they run too seldom to show that it is gone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def taken(file: Path) -> Iterator[tuple[str, str]]:
    """Modules of hgpart and their names that a file imports."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hgpart":
            yield from ((str(node.module), alias.name) for alias in node.names)


@pytest.mark.parametrize("name", sorted(file.name for file in BENCHMARKS.glob("*.py")))
def test_what_a_benchmark_imports_exists(name: str) -> None:
    for module, one in taken(BENCHMARKS / name):
        is_module = (
            find_spec(f"{module}.{one}") if hasattr(import_module(module), "__path__") else None
        )
        assert is_module or hasattr(import_module(module), one), f"{module} has no {one}"
