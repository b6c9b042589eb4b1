"""Steps whose slices of a parameter overlap -> the same, each taking its own out of one slice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import fx, nn

from hgpart.placement.cutting.growing_module import GrowingModule
from hgpart.placement.cutting.slices import Slice, united

aten = torch.ops.aten


def united_slices(slices: Iterable[Slice]) -> dict[str, Slice]:
    """One slice of all that a part needs, by name of each tensor whose slices overlap."""
    needed: dict[str, dict[object, Slice]] = {}
    for held in slices:
        needed.setdefault(held.name, {})[held.key] = held
    by_name = {}
    for name, by_key in needed.items():
        if len(by_key) > 1:
            every = united([*by_key.values()])
            if every.size < sum(held.size for held in by_key.values()):
                by_name[name] = every
    return by_name


def hold_together(
    step: fx.GraphModule, held: Mapping[str, Slice], whole: Mapping[str, Slice]
) -> dict[str, Slice]:
    """Let a step hold whole slices, and take its own out of these.

    Parameters
    ----------
    held : mapping of str to Slice
        Slices that the step holds, by attribute.
    whole : mapping of str to Slice
        Slices that contain them, by name of the parameter.

    Returns
    -------
    dict of str to Slice
        Slices that the step holds then, by attribute.
    """
    placeholders = {str(node.target): node for node in step.graph.find_nodes(op="placeholder")}
    growing = GrowingModule(fx_graph=step.graph, root=step, placeholders=placeholders)
    together, attributes = dict[str, Slice](), dict[object, str]()
    for attribute, own in held.items():
        every = whole.get(own.name, own)
        if every.key == own.key:
            together[attribute], attributes[own.key] = own, attribute
    for attribute, own in held.items():
        if attribute in together:
            continue
        every, value = whole[own.name], getattr(step, attribute)
        delattr(step, attribute)
        if every.key not in attributes:
            attributes[every.key] = growing.free_name(attribute)
            is_parameter = isinstance(value, nn.Parameter)
            growing.register(attributes[every.key], every.local_shape, value.dtype, is_parameter)
            together[attributes[every.key]] = every
        for node in step.graph.find_nodes(op="get_attr", target=attribute):
            with step.graph.inserting_before(node):
                taken = _taken(growing, step.graph.get_attr(attributes[every.key]), every, own)
            node.replace_all_uses_with(taken)
            step.graph.erase_node(node)
    step.recompile()
    return together


def _taken(growing: GrowingModule, result: fx.Node, every: Slice, own: Slice) -> fx.Node:
    """Take a slice out of a larger one."""
    if every.elements is None and own.elements is None:
        for dim, kept in own.positions.items():
            have = every.positions.get(dim, np.arange(every.shape[dim]))
            result = growing.take(result, dim, np.searchsorted(have, kept), len(have))
        return result
    have = every.numbers.ravel()
    flat = growing.call(aten.reshape.default, result, [-1])
    flat = growing.take(flat, 0, np.searchsorted(have, own.numbers.ravel()), len(have))
    return growing.call(aten.reshape.default, flat, list(own.local_shape))
