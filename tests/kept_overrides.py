"""Traces in half the time, for tests: what torch.export prepares for each is kept for the next.

To keep composite operators whole, torch overrides the kernels of all 525 of them as it decomposes
a graph, and takes that back at its end: half of the time in which a small model is traced. Here the
overrides are made once and put in place again. The full tests run without this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch._subclasses import fake_impls
from torch.export import exported_program


def keep() -> None:
    """Keep the overrides from the first trace on."""
    override = exported_program._override_composite_implicit_decomp
    collect = exported_program._collect_all_valid_cia_ops
    exported_program._override_composite_implicit_decomp = _kept(override)
    operators = frozenset(collect())
    exported_program._collect_all_valid_cia_ops = lambda: set(operators)


def _kept(override: Callable[[dict[Any, Any]], Any]) -> Callable[[dict[Any, Any]], Any]:
    kept: dict[frozenset[Any], tuple[dict[Any, Any], dict[Any, Any]]] = {}
    rules = fake_impls.op_implementations_dict

    @contextmanager
    def kept_override(callables: dict[Any, Any]) -> Iterator[None]:
        key = frozenset(callables.items())
        if key not in kept:
            before = set(rules)
            with override(callables):
                kernels = {operator: operator.py_kernels.copy() for operator in callables}
                kept[key] = kernels, {one: rules[one] for one in rules.keys() - before}
                yield
            return
        kernels, added = kept[key]
        saved = {operator: operator.py_kernels.copy() for operator in callables}
        _put(kernels)
        rules.update(added)
        try:
            yield
        finally:
            _put(saved)
            for operator in added:
                del rules[operator]

    return kept_override


def _put(kernels: dict[Any, Any]) -> None:
    for operator, own in kernels.items():
        operator.py_kernels.clear()
        operator.py_kernels.update(own)
        operator._dispatch_cache.clear()
