"""ExportedProgram -> the same program, with sizes known where constants decide them.

torch.export treats the size of `torch.ones(n, n).triu().nonzero()` as dependent on data, although
everything that it is computed from is known.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from hgpart.operators.table import operator_of
from hgpart.tracing.traced_nodes import concrete


def settle_sizes(program: torch.export.ExportedProgram) -> dict[str, Any]:
    """Put numbers in place of sizes that buffers and constants decide, in all shapes.

    Returns, by name, the results of operators whose sizes depend on values. A buffer that the
    model changes, or that has no values, decides nothing.
    """
    constants = _Constants(program)
    values: dict[str, Any] = {}
    for node in program.graph.nodes:
        if torch.Tag.dynamic_output_shape not in getattr(node.target, "tags", ()):
            continue
        value = constants.value(node)
        if value is not None:
            values[node.name] = value
        sized = constants.picked(node) if value is None else value
        if sized is not None:
            for path in (node.meta.get("unbacked_bindings") or {}).values():
                size = pytree.key_get(node.meta["val"], path)
                # All shapes that have this size know it from now on.
                torch._check(size == pytree.key_get(sized, path))  # type: ignore[no-untyped-call]
    return values


class _Constants:
    """Values of nodes that depend on buffers and constants alone."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        signature = program.graph_signature
        names = {
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        tensors = {**program.state_dict, **program.constants}
        changed = {*signature.buffers_to_mutate.values()}
        self.known: dict[str, Any] = {
            placeholder: tensors[name]
            for placeholder, name in names.items()
            if name not in changed and not _has_no_values(tensors[name])
        }

    def value(self, node: fx.Node) -> Any:
        """The value of a node; None if it is not known."""
        if node.name not in self.known:
            self.known[node.name] = self._value(node)
        return self.known[node.name]

    def _value(self, node: fx.Node) -> Any:
        operands = [self.value(operand) for operand in node.all_input_nodes]
        random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if node.op != "call_function" or random or any(operand is None for operand in operands):
            return None
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), self.value)
        with torch.no_grad():
            return node.target(*args, **kwargs)  # type: ignore[operator]

    def picked(self, node: fx.Node) -> torch.Tensor | None:
        """The elements that an index or mask of known values picks, as a tensor of their shape."""
        if operator_of(node).cut != "index":
            return None
        operand, *indices = node.all_input_nodes
        if any(self.value(index) is None for index in indices):
            return None
        data = torch.zeros(()).expand(concrete(operand.meta["val"].shape))
        picked: torch.Tensor = node.target(data, fx.map_arg(node.args[1], self.value))  # type: ignore[operator]
        return picked


def _has_no_values(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, FakeTensor)
