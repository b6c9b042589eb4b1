"""A cell, and a number of parts -> the part of each channel that its layers read and make.

Channels made by a convolution or a linear layer are divided evenly; all others follow these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from hgpart.layers.channel_graph import INPUT, LINEAR, ChannelGraph, Layer, Read
from hgpart.layers.layering import channel_graph
from hgpart.operators.ids import core
from hgpart.tracing.traced_model import example_inputs, trace
from hgpart.tracing.traced_nodes import concrete, first_result
from hgpart.transformation.narrowing import is_layer, parts_of
from hgpart.transformation.residual import CellError

ALL = -1  # each part has a channel of its own here, such as the mean over its channels


@dataclass(frozen=True)
class Owners:
    """The part of each channel.

    Attributes
    ----------
    read, made : mapping of str to int tensor
        Path of a layer in the cell -> the part of each channel that it reads or makes.
    own : mapping of str to int tensor
        Name of a parameter that belongs to no layer -> the part of each element.
    """

    read: Mapping[str, Tensor]
    made: Mapping[str, Tensor]
    own: Mapping[str, Tensor]


def owners(cell: nn.Module, shape: Sequence[int], parts: int, *, unequal: bool) -> Owners:
    """Divide the channels of a cell among parts so that parts meet in nothing but its weights.

    Parameters
    ----------
    shape : sequence of int
        Shape of the cell's map without the batch, channels first.
    unequal : bool
        Whether parts may have different numbers of channels.

    Raises
    ------
    CellError
        If channels of several parts meet elsewhere, if there are fewer channels than parts, or if
        parts would have different numbers of channels without `unequal`.
    """
    traced = trace(cell, example_inputs(cell, shape))
    graph = channel_graph(traced)
    part = torch.tensor(_parts_of_channels(graph, parts), dtype=torch.int64)

    def along(node: fx.Node, axis: int) -> Tensor:
        """Parts of the channels along a dimension of a node's value."""
        ids = graph.ids[node.name]
        size = ids.shape[axis]
        ids = core(ids)
        if ids.numel() not in (1, ids.shape[axis]):
            raise CellError(f"the result of {node.name} has channels in several dimensions")
        return part[ids.flatten().long()].expand(size)

    read: dict[str, Tensor] = {}
    made: dict[str, Tensor] = {}
    own: dict[str, Tensor] = {}
    for placeholder in traced.graph_module.graph.find_nodes(op="placeholder"):
        name = {**traced.parameters, **traced.buffers}.get(placeholder.name)
        size = placeholder.meta["val"].numel() if name is not None else 1
        if name is None or size == 1:
            continue
        path, _, _ = name.rpartition(".")
        layer = cell.get_submodule(path)
        if path in made:
            continue
        constant, reader = _first_reader(placeholder, graph)
        if is_layer(layer):
            axis = -1 if isinstance(layer, nn.Linear | nn.LayerNorm) else 1
            read[path] = along(reader.all_input_nodes[0], axis)
            made[path] = along(first_result(reader), axis)
        else:
            axis = _only_axis(constant, size, name)
            own[name] = along(
                first_result(reader), axis - len(concrete(constant.meta["val"].shape))
            )
    (result,) = traced.results
    if not torch.equal(along(result, 1), parts_of(shape[0], parts)):
        raise CellError("its result has its channels in another order than its input")
    for path, of_channels in made.items():
        if (
            not unequal
            and len(set(torch.bincount(of_channels[of_channels != ALL], minlength=parts).tolist()))
            > 1
        ):
            raise CellError(
                f"{parts} parts do not divide the {len(of_channels)} channels of {path}"
            )
    return Owners(read, made, own)


def _first_reader(placeholder: fx.Node, graph: ChannelGraph) -> tuple[fx.Node, fx.Node]:
    """The value, made from a parameter, that first meets a map, and the node that reads it."""
    waiting = [placeholder]
    for value in waiting:
        for user in value.users:
            if user.op == "call_function" and first_result(user).name in graph.ids:
                return value, user
            waiting.append(user)
    raise CellError(f"{placeholder.name} meets no map")


def _only_axis(constant: fx.Node, size: int, name: str) -> int:
    """The only dimension of a parameter, as it meets a map, with more than one element."""
    shape = concrete(constant.meta["val"].shape)
    if max(shape) != size:
        raise CellError(f"{name} has {tuple(shape)} elements: accepted is one for each channel")
    return shape.index(size)


# ------------------------------------------------------------------ layers of the channel graph


def _parts_of_channels(graph: ChannelGraph, parts: int) -> list[int]:
    """The part of each channel of a cell; `ALL` where each part has its own."""
    part: list[int] = []
    for layer in graph.layers:
        part += _parts_made(layer, part, parts)
    return part


def _parts_made(layer: Layer, part: Sequence[int], parts: int) -> list[int]:
    """The parts of the channels that a layer makes, given those of the channels it reads."""
    if layer.kind == INPUT or (layer.macs and layer.kind in ("dense", LINEAR, "grouped")):
        made: list[int] = parts_of(layer.channels, parts).tolist()
        mixed, reads = layer.reads[:1], layer.reads[1:]
        for read in mixed:
            if layer.kind == "grouped" and read.groups % parts:
                raise CellError(
                    f"{layer.name} has {read.groups} groups, which {parts} parts can't share"
                )
    else:
        made, reads = [ALL] * layer.channels, layer.reads
    for read in reads:
        if read.groups == 1 and len(read.channels) > layer.channels:
            continue  # each part takes its own channels together
        for task, channel in enumerate(_channel_of_each_task(read, layer.channels)):
            met = part[channel] if channel >= 0 else ALL
            if ALL not in (met, made[task]) and met != made[task]:
                raise CellError(f"channels of several parts meet in {layer.name}")
            made[task] = max(met, made[task])
    return made


def _channel_of_each_task(read: Read, tasks: int) -> Iterator[int]:
    """The channel that each of a layer's tasks reads at its own place."""
    count = len(read.channels)
    return (int(read.channels[task * count // tasks]) for task in range(tasks))
