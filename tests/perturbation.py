"""Slow, obvious proof of a ChannelGraph: change a channel, see which tasks' maps change.

It knows nothing of the channel rules: it runs the traced operators themselves, from the maps of
the layers before to the map of the layer in question, twice, with other values in one channel.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import fx

from hgpart.layers.channel_graph import ChannelGraph, Layer, Read
from hgpart.tracing.traced_model import TracedModel

TRIES = 60  # a ReLU, a dropout or a pooling hides a change now and then, hardly 60 times


def readers_by_definition(graph: ChannelGraph, at: int, channel: int) -> set[int]:
    """Tasks of a layer that read a channel, task by task as `Read` defines it."""
    layer = graph.layers[at]
    return {
        int(graph.first_task[at]) + task
        for read in layer.reads
        for task in range(layer.tasks)
        if channel in read_of_task(layer, read, task)
    }


def read_of_task(layer: Layer, read: Read, task: int) -> np.ndarray:
    count = len(read.channels)
    group = task * read.groups // layer.tasks
    return read.channels[group * count // read.groups : (group + 1) * count // read.groups]


@dataclass
class LayerRun:
    """The operators of one layer, and the re-index operators before it, ready to be run."""

    traced: TracedModel
    graph: ChannelGraph
    at: int

    @cached_property
    def layer(self) -> Layer:
        return self.graph.layers[self.at]

    @cached_property
    def nodes(self) -> dict[str, fx.Node]:
        return {node.name: node for node in self.traced.graph_module.graph.nodes}

    @cached_property
    def makers(self) -> dict[str, int]:
        """The layer that computes each operator."""
        return {name: at for at, layer in enumerate(self.graph.layers) for name in layer.operators}

    @cached_property
    def ends(self) -> list[fx.Node]:
        """Nodes that hold the layer's map (an operator with several results: its parts)."""
        last = self.nodes[self.layer.operators[-1]]
        if last.name in self.graph.ids:
            return [last]
        return [user for user in last.users if user.name in self.graph.ids]

    @cached_property
    def steps(self) -> list[fx.Node]:
        """What has to run, in order."""
        reached: set[fx.Node] = set()
        waiting = list(self.ends)
        while waiting:
            node = waiting.pop()
            if node not in reached and not self._given(node):
                reached.add(node)
                waiting.extend(node.all_input_nodes)
        return [node for node in self.traced.graph_module.graph.nodes if node in reached]

    @cached_property
    def sources(self) -> list[fx.Node]:
        """What the steps read: maps of other layers, parameters, buffers, sizes."""
        steps = set(self.steps)
        found = [node for step in self.steps for node in step.all_input_nodes if node not in steps]
        return list(dict.fromkeys(found))

    def _given(self, node: fx.Node) -> bool:
        while node.target is operator.getitem and node.args[0].name not in self.graph.ids:
            if node.args[0].op == "placeholder" or node.args[0].name not in self.makers:
                break
            node = node.args[0]
        made_elsewhere = self.makers.get(node.name, self.at) != self.at
        return node.op == "placeholder" or made_elsewhere or not _has_tensor(node)

    # ------------------------------------------------------------------ one run

    def values(self, seed: int) -> dict[fx.Node, object]:
        """Random maps, and parameters, buffers and sizes that stay."""
        maps = [node for node in self.sources if node.name in self.graph.ids]
        generator = torch.Generator().manual_seed(seed)
        return {**self.constants, **{node: self._value(node, generator) for node in maps}}

    @cached_property
    def constants(self) -> dict[fx.Node, object]:
        generator = torch.Generator().manual_seed(0)
        rest = [node for node in self.sources if node.name not in self.graph.ids]
        return {node: self._value(node, generator) for node in rest}

    def _value(self, node: fx.Node, generator: torch.Generator) -> object:
        value = node.meta["val"]
        known = self.traced.values.get(node.name)
        if known is not None and not known.is_floating_point():
            return known  # an index says which channels are meant
        if not isinstance(value, torch.Tensor):
            return _number(value)
        shape = [_number(size) for size in value.shape]
        if not value.is_floating_point():
            return torch.randint(2, shape, generator=generator, dtype=value.dtype)
        count = int(np.prod(shape, dtype=np.int64))
        pattern = torch.randn(min(count, 2**20 + 7), generator=generator)
        repeats = -(-count // max(1, len(pattern)))
        full = torch.empty_strided(shape, [_number(step) for step in value.stride()])
        full.copy_(pattern.repeat(repeats)[:count].reshape(shape))
        if node.name in self.graph.ids:
            return full
        if len(shape) > 1:  # weights that keep activations where tanh and sigmoid still respond
            return full / (count / shape[0]) ** 0.5
        return full.abs() + 0.5  # scales and variances

    def run(self, values: dict[fx.Node, object], seed: int) -> list[torch.Tensor]:
        """Values of `ends`; random operators draw the same numbers for the same seed."""
        values = dict(values)
        for step in self.steps:
            torch.manual_seed(seed)
            args, kwargs = fx.map_arg((step.args, dict(step.kwargs)), values.__getitem__)
            with torch.no_grad():
                values[step] = step.target(*args, **kwargs)
        return [values[node] for node in self.ends]

    # ------------------------------------------------------------------ what is asserted

    def channels_at_hand(self) -> np.ndarray:
        """All channels of the maps that the steps start from, read or not."""
        found = [self.graph.ids[n.name].unique() for n in self.sources if n.name in self.graph.ids]
        found += [torch.tensor([c]) for c in self._parameter_channels().values()]
        channels = torch.cat(found).unique().numpy()
        return channels[channels >= 0]

    def _parameter_channels(self) -> dict[fx.Node, int]:
        """Channel of each parameter that has a layer of its own."""
        own = {
            name: int(first)
            for layer, first in zip(self.graph.layers, self.graph.first_channel, strict=False)
            if layer.kind == "parameter"
            for name in layer.parameter_names
        }
        return {
            node: own[self.traced.parameters[node.name]]
            for node in self.sources
            if self.traced.parameters.get(node.name) in own
        }

    def changed(self, channel: int, seed: int) -> set[int]:
        """Tasks whose map differs after one channel got other values."""
        values = self.values(seed)
        other = dict(values)
        noise = torch.Generator().manual_seed(seed + 1)
        parameters = self._parameter_channels()
        for node in self.sources:
            if node.name in self.graph.ids:
                hit = self.graph.ids[node.name] == channel
            elif parameters.get(node) == channel:
                hit = torch.ones(values[node].shape, dtype=torch.bool)
            else:
                continue
            other[node] = values[node].clone()
            fresh = 3 * torch.randn(int(hit.sum()), generator=noise)
            other[node][hit] += fresh if other[node].is_floating_point() else (fresh > 0).to(int)
        tasks: set[int] = set()
        for before, after, end in zip(
            self.run(values, seed), self.run(other, seed), self.ends, strict=True
        ):
            differs = (before != after) & ~(before.isnan() & after.isnan())
            channels = self.graph.ids[end.name][differs].unique().numpy()
            assert (channels >= 0).all(), "a constant changed"
            tasks |= set(self.graph.task_of_channel[channels].tolist())
        return tasks

    def check_sources(self) -> None:
        """The maps that travel are what layers end with: nobody reads a fused intermediate."""
        for node in self.sources:
            if node.name in self.graph.ids and node.op != "placeholder":
                base = node
                while base.name not in self.makers:
                    base = base.args[0]
                assert base.name == self.graph.layers[self.makers[base.name]].operators[-1]

    def check(self, channels: Iterable[int], seed: int = 0) -> None:
        """Exactly the tasks that read each channel change with it."""
        self.check_sources()
        for channel in channels:
            expected = readers_by_definition(self.graph, self.at, int(channel))
            seen: set[int] = set()
            for attempt in range(TRIES):
                now = self.changed(int(channel), seed + 10 * attempt)
                assert now <= expected, (self.layer.name, channel, sorted(now - expected))
                seen |= now
                if seen == expected and (expected or attempt):
                    break
            assert seen == expected, (self.layer.name, channel, sorted(expected - seen))


def check_all(traced: TracedModel, graph: ChannelGraph, limit: int | None = None) -> None:
    """Check every layer with every channel at hand (or `limit` of them, evenly chosen)."""
    for at, layer in enumerate(graph.layers):
        if layer.operators:
            run = LayerRun(traced, graph, at)
            channels = run.channels_at_hand()
            step = 1 if limit is None else max(1, len(channels) // limit)
            run.check(channels[::step])
    check_results(traced, graph)


def check_results(traced: TracedModel, graph: ChannelGraph) -> None:
    """The output layer reads the channels of the model's results, none of them a fused one."""
    makers = {name: at for at, layer in enumerate(graph.layers) for name in layer.operators}
    read: set[int] = set()
    for result in traced.results:
        waiting = [result]
        while waiting:
            node = waiting.pop()
            if node.name in makers:
                assert node.name == graph.layers[makers[node.name]].operators[-1], node.name
            else:
                waiting.extend(n for n in node.all_input_nodes if _has_tensor(n))
        if result.name in graph.ids:
            read |= set(graph.ids[result.name].unique().tolist()) - {-1}
    expected = {int(c) for item in graph.layers[-1].reads for c in item.channels}
    assert read == expected


def _has_tensor(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, (torch.Tensor, list, tuple))


def _number(value: object) -> object:
    return int(value.node.hint) if isinstance(value, torch.SymInt) else value
