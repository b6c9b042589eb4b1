"""A torch.fx GraphModule under construction: its nodes and attributes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from hgpart.arrays import Bool, Float64, Int64
from hgpart.operators.calls import has_gradients

aten = torch.ops.aten


@dataclass(eq=False, kw_only=True)
class GrowingModule:
    """Nodes in the order in which they are requested, except placeholders, which come first.

    Attributes
    ----------
    root : nn.Module
        Module with the attributes.
    placeholders : dict of str to fx.Node
        Placeholders by name.
    """

    fx_graph: fx.Graph = field(default_factory=fx.Graph)
    root: nn.Module = field(default_factory=nn.Module)
    placeholders: dict[str, fx.Node] = field(default_factory=dict)
    _constants: dict[object, str] = field(default_factory=dict)

    def placeholder(self, name: str) -> fx.Node:
        """An operand by name, always the same node."""
        if name not in self.placeholders:
            nodes = (node for node in self.fx_graph.nodes if node.op != "placeholder")
            first = next(nodes, None)
            with self.fx_graph.inserting_before(first) if first else nullcontext():
                self.placeholders[name] = self.fx_graph.placeholder(name)
        return self.placeholders[name]

    def call(self, target: Any, *args: Any) -> fx.Node:
        """Add a call of a function."""
        return self.fx_graph.call_function(target, args)

    def index(self, positions: Int64, name: str = "index") -> fx.Node:
        """A list of positions, stored as a buffer."""
        return self._constant(np.ascontiguousarray(positions, dtype=np.int64), name)

    def weights(self, weights: Float64) -> fx.Node:
        """A table of numbers, stored as a buffer."""
        return self._constant(np.ascontiguousarray(weights), "weights")

    def mask(self, chosen: Bool) -> fx.Node:
        """A table of what is chosen, stored as a buffer."""
        return self._constant(np.ascontiguousarray(chosen), "mask")

    def _constant(self, values: Int64 | Float64 | Bool, name: str) -> fx.Node:
        key = str(values.dtype), values.shape, values.tobytes()
        if key not in self._constants:
            self._constants[key] = self.free_name(name)
            self.root.register_buffer(
                self._constants[key], torch.from_numpy(values), persistent=False
            )
        return self.fx_graph.get_attr(self._constants[key])

    def take(self, result: fx.Node, axis: int, positions: Int64, size: int) -> fx.Node:
        """Take some positions of a dimension of `size`."""
        if np.array_equal(positions, np.arange(size)):
            return result
        first, count = (int(positions[0]), len(positions)) if len(positions) else (0, 0)
        if np.array_equal(positions, np.arange(first, first + count)):
            return self.call(aten.narrow.default, result, axis, first, count)
        return self.call(aten.index_select.default, result, axis, self.index(positions))

    def register(
        self, attribute: str, shape: Sequence[int], dtype: torch.dtype, is_parameter: bool
    ) -> None:
        """Make an attribute for a parameter or buffer, on the meta device until it is loaded."""
        value = torch.empty(tuple(shape), dtype=dtype, device="meta")
        if is_parameter:
            parameter = nn.Parameter(value, has_gradients(dtype))
            self.root.register_parameter(attribute, parameter)
        else:
            self.root.register_buffer(attribute, value)

    def free_name(self, name: str) -> str:
        """A name for an attribute: this one if it is free, else one with a number."""
        free = name
        while hasattr(self.root, free) or free in self.placeholders:
            stem, _, number = free.rpartition("_")
            free = f"{stem}_{int(number) + 1}" if stem and number.isdigit() else f"{free}_1"
        return free
