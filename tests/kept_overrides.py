"""Traces in half the time, for tests: what torch.export prepares for each is kept for the next.

To keep composite operators whole, torch overrides the kernels of all 525 of them as it decomposes
a graph, and takes that back at its end: a quarter of the time in which a small model is traced.
Here the overrides are made once and put in place again. Commands and processes that tests start
run without this.
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
    seen: set[frozenset[Any]] = set()
    rules = fake_impls.op_implementations_dict

    @contextmanager
    def kept_override(callables: dict[Any, Any]) -> Iterator[None]:
        key = frozenset(callables.items())
        if key not in kept:
            with override(callables):
                if key in seen:  # the first time takes rules away that are not there again
                    kept[key] = (
                        {operator: operator.py_kernels.copy() for operator in callables},
                        {operator: rules[operator] for operator in callables if operator in rules},
                    )
                seen.add(key)
                yield
            return
        kernels, own_rules = kept[key]
        saved = {operator: operator.py_kernels.copy() for operator in callables}
        _put(kernels)
        rules.update(own_rules)
        try:
            yield
        finally:
            _put(saved)
            for operator in own_rules:
                rules.pop(operator, None)

    return kept_override


def _put(kernels: dict[Any, Any]) -> None:
    for operator, own in kernels.items():
        operator.py_kernels.clear()
        operator.py_kernels.update(own)
        operator._dispatch_cache.clear()
