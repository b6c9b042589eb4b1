"""What the programs of all parts are made from: who computes what, what travels, where it lies."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import fx

from hgpart.arrays import Int64
from hgpart.errors import PlacementError
from hgpart.execution.program import CARRY
from hgpart.execution.transfers import WHOLE, Share, Transfer, TransferredTensor
from hgpart.layers.channel_graph import INPUT, OUTPUT, PARAMETER, ChannelGraph
from hgpart.operators.calls import argument, has_gradients, module_of, only_updated
from hgpart.operators.table import is_complex, operator_of
from hgpart.partition import Partition
from hgpart.placement.building.draws import random_nodes
from hgpart.placement.building.shipments import RESULT_PART, Shipment, shipments
from hgpart.placement.cutting.cut_graph import CutGraph
from hgpart.placement.cutting.layouts import ChannelLayout
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.placement.cutting.ownership import Ownership, ownership
from hgpart.placement.cutting.products import product_of
from hgpart.placement.cutting.reindexing import takes_some
from hgpart.placement.shares.statistics import NormOfBatch, SharedStatistics, norms_of_batch
from hgpart.tracing.batches import at_batch, elements_of_shape, evenly, shape_said
from hgpart.tracing.traced_model import TracedModel
from hgpart.tracing.traced_nodes import (
    first_tensor,
    is_norms_statistic,
    live_nodes,
    results_read,
)
from hgpart.work.figures import Work

UNUSED = "unused"  # submodule of a part with the state that none of its steps uses
OWN = "own"  # with what of its state steps have among more


@dataclass(frozen=True, eq=False)
class Blueprint:
    """All that the programs of the parts are made from.

    Attributes
    ----------
    facts : NodeFacts
    partition : Partition
        Of the graph of `facts`.
    work : Work
        That it divides.
    trainable : frozenset of str
        Names of the parameters that gradients are wanted for.
    norms : str
        What running statistics are updated by: each ``micro-batch``, or the ``batch``.
    share : Share
        Which samples of a batch they are for.
    prefix : str
        What the names of all that is this share's begin with, where there are several.
    first_transfer : int
        Number of its first transfer.
    """

    facts: NodeFacts
    partition: Partition
    work: Work
    trainable: frozenset[str]
    norms: str = "micro-batch"
    share: Share = WHOLE
    prefix: str = ""
    first_transfer: int = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Blueprint:
        """Itself: it does not change, and torch can't copy the shapes of a traced graph."""
        return self

    @property
    def traced(self) -> TracedModel:
        """The traced model."""
        return self.facts.traced

    @property
    def graph(self) -> ChannelGraph:
        """Its layers."""
        return self.facts.graph

    @cached_property
    def owners(self) -> Ownership:
        """Who computes what."""
        return ownership(self.partition)

    @cached_property
    def shipments(self) -> tuple[Shipment, ...]:
        """What travels, in the global order."""
        return shipments(self.graph, self.owners, of_parameters=not self.is_share)

    @cached_property
    def copied(self) -> frozenset[tuple[int, int]]:
        """Layers of parameters, and parts with copies of them: that of the task, and readers."""
        if not self.is_share:
            return frozenset()
        every, layers = shipments(self.graph, self.owners), self.graph.layers
        read = {(one.layer, one.receiver) for one in every if one.counted}
        own = {
            (at, int(finish[0]))
            for at, finish in enumerate(self.owners.finish)
            if finish is not None
        }
        return frozenset(one for one in read | own if layers[one[0]].kind == PARAMETER)

    @property
    def is_share(self) -> bool:
        """Whether other shares of the batch have other slices: parts have copies of parameters."""
        return len(self.share.slices) < self.share.of

    @cached_property
    def nodes(self) -> dict[str, fx.Node]:
        """The traced graph's nodes by name."""
        return {node.name: node for node in self.traced.graph_module.graph.nodes}

    @cached_property
    def draws(self) -> dict[fx.Node, str]:
        """Random nodes, and the placeholder of what is drawn for each."""
        return random_nodes(self.traced, self.graph)

    @cached_property
    def used_state(self) -> tuple[str, ...]:
        """Parameters and buffers, by name, that the traced graph takes."""
        named = {**self.traced.parameters, **self.traced.buffers}
        computed = [self.nodes[name] for layer in self.graph.layers for name in layer.operators]
        # Statistics that a norm replaces, and what it takes them of, need not be live.
        operands = chain.from_iterable(node.all_input_nodes for node in computed)
        taken = {node.name for node in live_nodes([*self.traced.results, *operands])}
        taken |= {
            placeholder
            for placeholder, new in self.traced.updates.items()
            if not is_norms_statistic(new)
        }
        return tuple(name for placeholder, name in named.items() if placeholder in taken)

    @cached_property
    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the parameters that the traced graph has, by name."""
        named = self.traced.parameters.items()
        return {name: self.facts.shape(self.nodes[placeholder]) for placeholder, name in named}

    def input_shapes(self, batch_size: int) -> tuple[tuple[int, ...], ...]:
        """Shapes of the tensors among the model's inputs in a batch.

        Raises
        ------
        PlacementError
            If the model only computes with another batch size.
        """
        if batch_size not in self._input_shapes:
            traced = self.traced
            if traced.batch_sizes.fixed not in (None, batch_size):
                raise PlacementError(
                    f"{batch_size} samples of a batch of {traced.batch_size}: the model computes "
                    "with its batch size, accepted is the whole batch at once"
                )
            values = (self.nodes[name].meta["val"] for name in traced.inputs)
            self._input_shapes[batch_size] = tuple(
                tuple(at_batch(size, batch_size) for size in value.shape) for value in values
            )
        return self._input_shapes[batch_size]

    @cached_property
    def _input_shapes(self) -> dict[int, tuple[tuple[int, ...], ...]]:
        """By batch size, as symbols take their time in each step."""
        return {}

    def check_divided(self, into: str, norms: str = "slice") -> None:
        """Raise a PlacementError if a batch can't be divided.

        Samples depend on each other, or what a pass leaves to the next on all of them.
        """
        mixing = self.graph.mixing.of_norms(norms)
        if mixing:
            raise PlacementError(
                f"a batch in {into}: {mixing}: accepted is the whole batch at once"
            )
        for node in self.facts.carried:
            if node not in self.carriers:
                raise PlacementError(
                    f"the model reads its buffer {self.traced.buffers[node.name]} and changes it: "
                    f"accepted in {into} are buffers that norms alone read and change"
                )

    def check_norms(self, batch_size: int) -> None:
        """Raise a PlacementError if a norm has one value per channel to take its statistics of.

        torch.nn.functional.batch_norm refuses that; the operator makes NaN of the variance.
        """
        if batch_size in self._enough_for_norms:
            return
        for values, name in self._values_of_norms:
            if at_batch(values, batch_size) == 1:
                raise PlacementError(
                    f"{name} has one value per channel in a batch or micro-batch of {batch_size}: "
                    "accepted are more, to take the statistics of"
                )
        self._enough_for_norms.add(batch_size)

    @cached_property
    def _enough_for_norms(self) -> set[int]:
        """Batch sizes that were checked."""
        return set()

    @property
    def keeps_samples_apart(self) -> bool:
        """Whether results of a whole batch are those of its samples, and nothing else is made."""
        updates = any(only_updated(node) for node in self.nodes.values())
        growing = (first_tensor(node.meta["val"]).shape[:1] for node in self.traced.results)
        of_samples = all([*map(evenly, sizes)] == [(1, 0)] for sizes in growing)
        return of_samples and not (updates or self.traced.updates or self.has_norms)

    @property
    def has_norms(self) -> bool:
        """Whether norms take their statistics of the samples of a batch."""
        return bool(self._values_of_norms)

    @cached_property
    def _values_of_norms(self) -> tuple[tuple[int | torch.SymInt, str], ...]:
        """Of how many values per channel norms take statistics; one norm for each such size."""
        found: dict[str, tuple[int | torch.SymInt, str]] = {}
        for node in self.nodes.values():
            if (
                node.op == "call_function"
                and operator_of(node).is_batch_norm
                and argument(node, "training", True)
            ):
                samples, _, *positions = first_tensor(node.meta["val"]).shape
                values = math.prod(positions, start=samples)
                found.setdefault(str(values), (values, module_of(node) or node.name))
        return tuple(found.values())

    @cached_property
    def partly_read(self) -> tuple[str, ...]:
        """Placeholders of the parameters of which an operator in front of layers takes a part."""
        found = []
        for placeholder in self.traced.parameters:
            waiting, seen = [self.nodes[placeholder]], set[fx.Node]()
            while waiting:
                for user in waiting.pop().users:
                    if user not in seen and user not in self.facts.makers:
                        seen.add(user)
                        waiting.append(user)
            if any(takes_some(node) or operator_of(node).makes for node in seen):
                found.append(placeholder)
        return tuple(found)

    @cached_property
    def has_complex(self) -> bool:
        """Whether it computes with complex numbers, whose type is another than that of the rest."""
        values = (node.meta.get("val") for node in self.nodes.values())
        return any(map(is_complex, values))

    @property
    def output_part(self) -> int:
        """The part that has the result."""
        finish = self.owners.finish[-1]
        return RESULT_PART if finish is None else int(finish[0])

    @cached_property
    def results(self) -> tuple[tuple[fx.Node, ...], ...]:
        """Per layer the nodes that it makes for others; of the output, what the model returns."""
        return tuple(self._results(at) for at in range(len(self.graph.layers)))

    def _results(self, at: int) -> tuple[fx.Node, ...]:
        layer = self.graph.layers[at]
        if layer.kind == INPUT:
            first, last = self.graph.first_channel[at : at + 2]
            for name in self.traced.inputs:
                ids = self.graph.ids.get(name)
                if ids is not None and first <= int(ids.flatten()[0]) < last:
                    return (self.nodes[name],)
        if layer.kind == PARAMETER:
            held = {*layer.parameter_names}
            return tuple(
                self.nodes[placeholder]
                for placeholder, name in self.traced.parameters.items()
                if name in held
            )
        if layer.kind == OUTPUT:
            return self.traced.results
        return results_read(self.nodes[layer.operators[-1]], self.traced.results)

    @cached_property
    def layouts(self) -> dict[fx.Node, ChannelLayout]:
        """Where channels lie in what the layers make."""
        return {
            node: self.facts.layout(at, node)
            for at, nodes in enumerate(self.results)
            if self.graph.layers[at].kind != OUTPUT
            for node in nodes
        }

    @cached_property
    def names(self) -> tuple[str, ...]:
        """A name for each layer that Python accepts, and that a part calls nothing else by."""
        found: list[str] = []
        taken, stems = {"batch_size", "channels", "draw", CARRY, UNUSED, OWN}, set[str]()
        for layer in self.graph.layers:
            name = re.sub(r"\W", "_", layer.name)
            known = hasattr(fx.GraphModule, name) or keyword.iskeyword(name)
            name = f"layer_{name}" if known or name[0].isdigit() else name
            while name in taken or name in stems or not taken.isdisjoint(_stems(name)):
                name += "_"
            taken.add(name)
            stems |= _stems(name)
            found.append(name)
        return tuple(f"{self.prefix}{name}" for name in found)

    @cached_property
    def returned(self) -> tuple[bool, ...]:
        """Whether a gradient is computed of each layer's maps, then of its partial sums."""
        learns = self.learns(inputs=False)
        maps = (wanted and self._can_learn(at) for at, wanted in enumerate(learns))
        return (*maps, *learns)

    def differentiable(self, inputs: bool) -> tuple[bool, ...]:
        """Per shipment whether gradients go back; of the inputs if asked for."""
        learns = self.learns(inputs)
        return tuple(
            learns[item.layer] and (item.partial or self._can_learn(item.layer))
            for item in self.shipments
        )

    @cached_property
    def norms_of_batch(self) -> Mapping[int, tuple[NormOfBatch, ...]]:
        """Per layer that has some, the norms whose statistics are of other shares, too, in order.

        Raises
        ------
        PlacementError
            As `hgpart.placement.shares.statistics.norms_of_batch`.
        """
        if not self.is_share or self.partition.modelling.norms != "batch":
            return {}
        return norms_of_batch(self.facts)

    def learns(self, inputs: bool) -> list[bool]:
        """Per layer whether anything that it is computed from wants a gradient."""
        found: list[bool] = []
        for layer in self.graph.layers:
            read = self.graph.sources(layer)
            wanted = any(found[one] and self._can_learn(one) for one in read)
            wanted |= not self.trainable.isdisjoint(layer.parameter_names)
            found.append(wanted or (inputs and layer.kind == INPUT))
        return found

    def _can_learn(self, at: int) -> bool:
        return any(has_gradients(_dtype(node)) for node in self.results[at])

    def finishes(self, at: int, part: int) -> Int64:
        """The tasks of a layer that a part finishes, ascending."""
        finish, layer = self.owners.finish[at], self.graph.layers[at]
        if finish is not None:
            return np.flatnonzero(finish == part)
        alone = layer.kind == INPUT or part == RESULT_PART
        return np.arange(layer.tasks if alone else 0)

    def channels(self, at: int, tasks: Int64) -> Int64:
        """The channels that tasks of a layer make, numbered within it."""
        layer = self.graph.layers[at]
        return np.arange(layer.channels) if layer.tasks == 1 and len(tasks) else tasks

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """The shipments as tensors."""
        differentiable = self.differentiable(inputs=False)
        return tuple(
            Transfer(
                number=self.first_transfer + number,
                layer=self.graph.layers[item.layer].name,
                partial=item.partial,
                sender=item.sender,
                receiver=item.receiver,
                tensors=tuple(self._transferred(item)),
                differentiable=differentiable[number],
                counted=item.counted,
            )
            for number, item in enumerate(self.shipments)
        )

    @cached_property
    def departing(self) -> dict[tuple[int, bool, int], list[tuple[Transfer, Shipment]]]:
        """What leaves, by layer, whether it is partial sums, and sender."""
        found: dict[tuple[int, bool, int], list[tuple[Transfer, Shipment]]] = {}
        for transfer, item in zip(self.transfers, self.shipments, strict=True):
            key = (item.layer, item.partial, item.sender)
            found.setdefault(key, []).append((transfer, item))
        return found

    @cached_property
    def arriving(self) -> dict[tuple[int, bool, int], list[Shipment]]:
        """What arrives, by layer, whether it is partial sums, and receiver."""
        found: dict[tuple[int, bool, int], list[Shipment]] = {}
        for item in self.shipments:
            found.setdefault((item.layer, item.partial, item.receiver), []).append(item)
        return found

    def _transferred(self, item: Shipment) -> Iterable[TransferredTensor]:
        if item.partial:
            head = self.nodes[self.graph.layers[item.layer].operators[0]]
            step = CutGraph(self.facts, item.layer, item.members, {}, {})
            product = product_of(step, head)
            assert product is not None
            shape = head.meta["val"].shape
            yield _tensor(head, shape, (product.axis,), len(item.members), self.share)
            return
        for node in self.results[item.layer]:
            layout = self.layouts[node]
            count = len(layout.positions(item.members))
            shape = layout.apart(node.meta["val"].shape)
            yield _tensor(node, shape, layout.axes, count, self.share)

    @cached_property
    def buffer_updates(self) -> dict[int, dict[fx.Node, fx.Node]]:
        """Per layer the buffers, that nothing else reads, whose new value it puts in place."""
        owners = {
            name.rpartition(".")[0]: at
            for at, layer in reversed(list(enumerate(self.graph.layers)))
            for name in layer.parameter_names
        }
        named = {**self.traced.buffers, **self.traced.parameters}
        for at, layer in reversed(list(enumerate(self.graph.layers))):
            for name in layer.operators:
                for operand in self.nodes[name].all_input_nodes:
                    if operand.name in named:
                        owners[named[operand.name].rpartition(".")[0]] = at
        found: dict[int, dict[fx.Node, fx.Node]] = {}
        for placeholder, new in self.traced.updates.items():
            name = self.traced.buffers[placeholder]
            if is_norms_statistic(new):
                if not _is_norms_alone(self.nodes[placeholder], new):
                    raise PlacementError(
                        f"the model reads or sets {name} beside the norm that updates it: accepted "
                        "are running statistics that norms alone read and change"
                    )
                continue
            if _depends_on(new, {*self.graph.ids}):
                raise PlacementError(
                    f"the model changes its buffer {name} by what it computes: accepted are "
                    "running statistics of norms, and changes without data"
                )
            if self.nodes[placeholder] in self.facts.carried:
                continue
            at = owners.get(name.rpartition(".")[0], len(self.graph.layers) - 1)
            found.setdefault(at, {})[self.nodes[placeholder]] = new
        return found

    @cached_property
    def carriers(self) -> dict[fx.Node, int]:
        """Buffers whose next values are computed from parameters, and the part that does so.

        It has these parameters, and the buffers, and no other part has any of them.

        Raises
        ------
        PlacementError
            If there is no such part.
        """
        found: dict[fx.Node, int] = {}
        for buffer in self.facts.carried:
            read, parameters = self._carried_from(buffer)
            if not parameters:
                continue
            parts = {part for at in self._readers({buffer, *read}) for part in self._parts(at)}
            sent = any(one.name in self.facts.sent_parameters for one in parameters)
            if sent or len(parts) != 1:
                names = ", ".join(sorted(self.traced.parameters[one.name] for one in parameters))
                raise PlacementError(
                    f"the model computes its buffer {self.traced.buffers[buffer.name]} from "
                    f"{names}: accepted are buffers and parameters that one layer of one task "
                    "reads, and nothing else"
                )
            (found[buffer],) = parts
        return found

    def _carried_from(self, buffer: fx.Node) -> tuple[set[fx.Node], set[fx.Node]]:
        """The buffers and parameters that a buffer's next values are computed from; the latter.

        Pass after pass, so that what these buffers are computed from is among them.
        """
        carried, waiting, seen = self.facts.carried, [buffer], {buffer}
        while waiting:
            more = live_nodes([carried[waiting.pop()]]) - seen
            waiting.extend(more & carried.keys())
            seen |= more
        parameters = {one for one in seen if one.name in self.traced.parameters}
        return parameters | (seen & carried.keys()), parameters

    def _readers(self, placeholders: Iterable[fx.Node]) -> set[int]:
        """The layers that take parameters or buffers, or what is made of them alone."""
        found, waiting, seen = set[int](), [*placeholders], set[fx.Node]()
        while waiting:
            node = waiting.pop()
            if node in self.facts.makers:
                found.add(self.facts.makers[node])
            elif node not in seen:
                seen.add(node)
                waiting.extend(node.users)
                if node in self.traced.results:
                    found.add(len(self.graph.layers) - 1)
        return found

    def _parts(self, at: int) -> set[int]:
        """The parts that do anything of a layer."""
        finish, cells = self.owners.finish[at], self.owners.cells[at]
        parts = {RESULT_PART} if finish is None else {*map(int, finish)}
        return parts | {part for part, own in enumerate(cells or ()) if own}


def shared_statistics(blueprints: Sequence[Blueprint]) -> SharedStatistics:
    """What parts send each other of the statistics of norms of the whole batch.

    A share by itself has norms of its own; transfers are numbered on from those of all shares.
    """
    first, last = blueprints[0], blueprints[-1]
    return SharedStatistics(
        norms=first.norms_of_batch if len(blueprints) > 1 else {},
        graph=first.graph,
        owners=[one.owners for one in blueprints],
        slices=first.share.of,
        learns=first.learns(inputs=False),
        names=first.names,
        first_transfer=last.first_transfer + len(last.transfers),
    )


# What a part has of a layer is called by the layer and this: partial sums, what was received from
# another part, a second result; what a norm of the batch is given, and statistics.
_SUFFIX = re.compile(r"(_partial|_before_\d+|_statistics_\d+)?(_kept|_(from|to)_\d+)?(_\d+)?")


def _stems(name: str) -> set[str]:
    """The layers that a part may have something of under a name."""
    return {name[:at] for at in range(len(name)) if at and _SUFFIX.fullmatch(name, at)}


def _is_norms_alone(buffer: fx.Node, new: fx.Node) -> bool:
    """Whether norms, one after another, are all that makes a buffer's new value, and that reads it.

    Parts hold of it what their channels of the norm need, and have it after the norm only.
    """
    node = new
    while True:
        if any(user.op != "output" and node not in only_updated(user) for user in node.users):
            return False
        if not is_norms_statistic(node):
            return node is buffer
        (norm,) = node.all_input_nodes
        node = norm.args[node.args[1]]  # type: ignore[index, assignment]


def _depends_on(node: fx.Node, names: set[str]) -> bool:
    waiting, seen = [node], set()
    while waiting:
        one = waiting.pop()
        if one.name in names:
            return True
        if one not in seen:
            seen.add(one)
            waiting.extend(one.all_input_nodes)
    return False


def _dtype(node: fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def _tensor(
    node: fx.Node, shape: Sequence[Any], axes: Sequence[int], count: int, share: Share
) -> TransferredTensor:
    """A node's tensor, in a shape, with some positions along merged axes."""
    if elements_of_shape(shape) is None:
        raise PlacementError(
            f"{module_of(node) or node.name} makes a map of {shape_said(shape)}: accepted are "
            "maps that grow evenly with the batch"
        )
    per_sample, fixed = [], []
    for dim, size in enumerate(shape):
        if dim in axes[1:]:
            continue
        each, besides = (0, count) if axes and dim == axes[0] else evenly(size) or (0, 0)
        per_sample.append(each)
        fixed.append(besides)
    return TransferredTensor(tuple(per_sample), tuple(fixed), _dtype(node), share)
