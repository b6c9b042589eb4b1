"""What all parts' programs are made from: who computes what, what is sent, in which layout."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from typing import Any

import numpy as np
import torch
from torch import fx

from hgpart.arrays import Int64
from hgpart.errors import PlacementError
from hgpart.execution.program import CARRY, WHOLE, Share, Transfer, TransferredTensor
from hgpart.layers.channel_graph import INPUT, OUTPUT, PARAMETER, STATISTICS, ChannelGraph
from hgpart.operators.calls import argument, has_gradients, module_of, only_updated
from hgpart.operators.table import is_complex, operator_of
from hgpart.partition import Partition
from hgpart.placement.building.borders_first import BordersFirst, borders_first
from hgpart.placement.building.channel_transfers import (
    RESULT_PART,
    ChannelTransfer,
    channel_transfers,
)
from hgpart.placement.building.draws import random_nodes
from hgpart.placement.cutting.cut_graph import CutGraph
from hgpart.placement.cutting.layouts import ChannelLayout
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.placement.cutting.reindexing import takes_some
from hgpart.placement.cutting.steps import summing_of
from hgpart.placement.shares.ownership import Ownership, Tile, ownership
from hgpart.placement.shares.statistics import NormOfBatch, SharedStatistics, norms_of_batch
from hgpart.schedules.costs import Costs
from hgpart.tracing.batches import at_batch, elements_of_shape, evenly, shape_said
from hgpart.tracing.traced_model import TracedModel
from hgpart.tracing.traced_nodes import (
    first_tensor,
    is_norms_statistic,
    live_nodes,
    results_read,
)
from hgpart.work.figures import Work, seconds_a_unit

# Borders are computed by themselves if the inside takes as many times as long as a message, and as
# the second call of its operators, which takes some seconds per parameter: 3 to 5e-10 measured for
# convolutions of 64 to 512 channels (oneDNN), more for larger ones. How many times is measured by
# the latency of VGG16 (benchmarks/latency.md).
MESSAGES_HIDDEN = 10
CALLS_HIDDEN = 30
SECONDS_A_PARAMETER_AND_CALL = 5e-10
UNUSED = "unused"  # submodule of a part for state that none of its steps uses
OWN = "own"  # submodule of a part for its own state that steps hold only within larger tensors
UNREAD = "unread"  # submodule of a part for copies that none of its steps reads


@dataclass(frozen=True, eq=False)
class Blueprint:
    """All that the programs of the parts are made from.

    Attributes
    ----------
    partition : Partition
        Partition of the graph of `facts`.
    work : Work
        The work that the partition divides.
    trainable : frozenset of str
        Names of the parameters that need gradients.
    norms : str
        When running statistics are updated: per ``micro-batch`` or once per ``batch``.
    share : Share
        Share of the batch that they are for.
    prefix : str
        Begin of all names of this share's values, if there are several shares.
    first_transfer : int
        Number of the share's first transfer.
    takes_statistics : bool
        Whether norms take statistics of the batch; not in a pass of inference, though the graph may
        be one of training.
    """

    facts: NodeFacts
    partition: Partition
    work: Work
    trainable: frozenset[str]
    norms: str = "micro-batch"
    share: Share = WHOLE
    prefix: str = ""
    first_transfer: int = 0
    takes_statistics: bool = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Blueprint:
        """The same object: it does not change, and torch can't copy shapes of a traced graph."""
        return self

    @property
    def traced(self) -> TracedModel:
        """The traced model."""
        return self.facts.traced

    @property
    def graph(self) -> ChannelGraph:
        """Layers of the traced model."""
        return self.facts.graph

    @cached_property
    def owners(self) -> Ownership:
        """The part that computes each task."""
        return ownership(self.partition)

    @property
    def channel_transfers(self) -> tuple[ChannelTransfer, ...]:
        """Channels that parts send each other, in the global order."""
        return self._borders_first.transfers

    @cached_property
    def _borders_first(self) -> BordersFirst:
        transfers = channel_transfers(self.graph, self.owners, of_parameters=not self.is_share)
        return borders_first(self.graph, self.owners, transfers, self._hides_a_message)

    def _hides_a_message(self, at: int, inside: Tile) -> bool:
        """Whether the inside of a tile takes long enough that its borders should come first.

        They are computed in a call of their own, which reads the layer's weights once more. Norms
        take their statistics of whole tiles.
        """
        layer, costs = self.graph.layers[at], Costs()
        if inside.rows is None or self.owners.cells[at] is not None or at in self.norms_of_batch:
            return False
        share_of_tasks = len(inside.tasks) / layer.tasks
        share = share_of_tasks * len(inside.rows) / self.owners.height(at)
        batch_size = self.partition.modelling.batch_size
        unit = seconds_a_unit(self.work, batch_size, costs.work) * self.share.samples(batch_size)
        seconds = unit * int(self.work.per_task[at]) * layer.tasks * share
        again = layer.parameters * share_of_tasks * SECONDS_A_PARAMETER_AND_CALL
        return seconds > max(MESSAGES_HIDDEN * costs.message, CALLS_HIDDEN * again)

    @cached_property
    def copied(self) -> frozenset[tuple[int, int]]:
        """Parameter layers, each with every part that has a copy: that of the task, and readers."""
        if not self.is_share:
            return frozenset()
        transfers, layers = channel_transfers(self.graph, self.owners), self.graph.layers
        read = {(item.layer, item.receiver) for item in transfers if item.counted}
        own = {
            (at, int(finish[0, 0]))
            for at, finish in enumerate(self.owners.finish)
            if finish is not None
        }
        return frozenset((at, part) for at, part in read | own if layers[at].kind == PARAMETER)

    @property
    def is_share(self) -> bool:
        """Whether there are shares with other slices, so that parts have copies of parameters."""
        return len(self.share.slices) < self.share.of

    @property
    def has_tiles(self) -> bool:
        """Whether tasks are computed in several tiles, so that parts have copies of their state."""
        return self.is_share or self.owners.tells_rows

    @cached_property
    def nodes(self) -> dict[str, fx.Node]:
        """Nodes of the traced graph, by name."""
        return {node.name: node for node in self.traced.graph_module.graph.nodes}

    @cached_property
    def draws(self) -> dict[fx.Node, str]:
        """Random nodes, and the placeholder of what is drawn for each."""
        return random_nodes(self.traced, self.graph)

    @cached_property
    def used_state(self) -> tuple[str, ...]:
        """Names of the parameters and buffers that the traced graph uses."""
        named = {**self.traced.parameters, **self.traced.buffers}
        computed = [self.nodes[name] for layer in self.graph.layers for name in layer.operators]
        # Statistics that a norm replaces, and the operands that it takes them of, need not be live.
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
        """Shapes of the traced graph's parameters, by name."""
        named = self.traced.parameters.items()
        return {name: self.facts.shape(self.nodes[placeholder]) for placeholder, name in named}

    def input_shapes(self, batch_size: int) -> tuple[tuple[int, ...], ...]:
        """Shapes of the tensors among the model's inputs, for a batch.

        Raises
        ------
        PlacementError
            If the model computes only with another batch size.
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
        """The same shapes by batch size, remembered as symbols take time in each step."""
        return {}

    def check_divided(self, into: str, norms: str = "slice") -> None:
        """Raise a PlacementError if a batch can't be divided.

        That is if samples depend on each other, or if what a pass leaves to the next depends on
        all.
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
        """Raise a PlacementError if a norm has only one value per channel to take statistics of.

        torch.nn.functional.batch_norm refuses this; the operator would make the variance NaN.
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
        """Batch sizes that `check_norms` has accepted."""
        return set()

    @property
    def keeps_samples_apart(self) -> bool:
        """Whether a pass computes only results, each sample's from this sample alone."""
        updates = any(only_updated(node) for node in self.nodes.values())
        growing = (first_tensor(node.meta["val"]).shape[:1] for node in self.traced.results)
        of_samples = all([*map(evenly, sizes)] == [(1, 0)] for sizes in growing)
        return of_samples and not (updates or self.traced.updates or self.has_norms)

    @property
    def has_norms(self) -> bool:
        """Whether norms take statistics over the samples of a batch."""
        return bool(self._values_of_norms)

    @cached_property
    def _values_of_norms(self) -> tuple[tuple[int | torch.SymInt, str], ...]:
        """Values per channel that norms take statistics of; with one norm for each such number."""
        by_size: dict[str, tuple[int | torch.SymInt, str]] = {}
        for node in self.nodes.values():
            if (
                node.op == "call_function"
                and operator_of(node).is_batch_norm
                and argument(node, "training", True)
            ):
                samples, _, *positions = first_tensor(node.meta["val"]).shape
                values = math.prod(positions, start=samples)
                by_size.setdefault(str(values), (values, module_of(node) or node.name))
        return tuple(by_size.values())

    @cached_property
    def partly_read(self) -> tuple[str, ...]:
        """Placeholders of the parameters that operators before the layers use only in part."""
        partly_read = []
        for placeholder in self.traced.parameters:
            waiting, seen = [self.nodes[placeholder]], set[fx.Node]()
            while waiting:
                for user in waiting.pop().users:
                    if user not in seen and user not in self.facts.makers:
                        seen.add(user)
                        waiting.append(user)
            if any(takes_some(node) or operator_of(node).makes for node in seen):
                partly_read.append(placeholder)
        return tuple(partly_read)

    @cached_property
    def has_complex(self) -> bool:
        """Whether it computes with complex numbers, which have another type than the rest."""
        values = (node.meta.get("val") for node in self.nodes.values())
        return any(map(is_complex, values))

    @property
    def output_part(self) -> int:
        """The part that has the result."""
        finish = self.owners.finish[-1]
        return RESULT_PART if finish is None else int(finish[0, 0])

    @cached_property
    def results(self) -> tuple[tuple[fx.Node, ...], ...]:
        """Nodes that each layer makes for others; for the output, the model's results."""
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
        """Where channels lie in the tensors that layers make."""
        return {
            node: self.facts.layout(at, node)
            for at, nodes in enumerate(self.results)
            if self.graph.layers[at].kind != OUTPUT
            for node in nodes
        }

    @cached_property
    def names(self) -> tuple[str, ...]:
        """A name for each layer that Python accepts and that nothing else in a part has."""
        names: list[str] = []
        taken, stems = {"batch_size", "channels", "draw", CARRY, UNREAD, UNUSED, OWN}, set[str]()
        for layer in self.graph.layers:
            name = re.sub(r"\W", "_", layer.name)
            known = hasattr(fx.GraphModule, name) or keyword.iskeyword(name)
            name = f"layer_{name}" if known or name[0].isdigit() else name
            while name in taken or name in stems or not taken.isdisjoint(_stems(name)):
                name += "_"
            taken.add(name)
            stems |= _stems(name)
            names.append(name)
        return tuple(f"{self.prefix}{name}" for name in names)

    @cached_property
    def returned(self) -> tuple[bool, ...]:
        """For each layer whether its maps get a gradient, then the same for its partial sums."""
        learns = self.learns(inputs=False)
        maps = (wanted and self._can_learn(at) for at, wanted in enumerate(learns))
        return (*maps, *learns)

    def differentiable(self, inputs: bool) -> tuple[bool, ...]:
        """Whether gradients go back for each of `channel_transfers`; to the inputs if asked for."""
        learns = self.learns(inputs)
        return tuple(
            learns[item.layer] and (item.partial or self._can_learn(item.layer))
            for item in self.channel_transfers
        )

    @cached_property
    def norms_of_batch(self) -> Mapping[int, tuple[NormOfBatch, ...]]:
        """Norms with statistics over several tiles, in order, for each layer that has some.

        Raises
        ------
        PlacementError
            If such a norm is not supported; see
            `hgpart.placement.shares.statistics.norms_of_batch`.
        """
        of_batch = self.is_share and self.partition.modelling.norms == "batch"
        tiled = {
            at: cuts for at, cuts in enumerate(self.owners.row_cuts) if of_batch or len(cuts) > 2
        }
        return norms_of_batch(self.facts, tiled) if tiled and self.takes_statistics else {}

    def learns(self, inputs: bool) -> list[bool]:
        """For each layer whether anything that it is computed from needs a gradient."""
        learning: list[bool] = []
        for layer in self.graph.layers:
            read = self.graph.sources(layer)
            wanted = any(learning[source] and self._can_learn(source) for source in read)
            wanted |= not self.trainable.isdisjoint(layer.parameter_names)
            learning.append(wanted or (inputs and layer.kind == INPUT))
        return learning

    def _can_learn(self, at: int) -> bool:
        return any(has_gradients(_dtype(node)) for node in self.results[at])

    def finishes(self, at: int, part: int) -> Int64:
        """Tasks of a layer of which a part finishes some rows, ascending."""
        tiles = self.tiles(at, part)
        return np.unique(np.concatenate([np.zeros(0, np.int64), *(tile.tasks for tile in tiles)]))

    def tiles(self, at: int, part: int) -> Sequence[Tile]:
        """The tiles of a layer that a part finishes, in the order in which it does."""
        layer = self.graph.layers[at]
        if (at, part) in self._borders_first.tiles:
            return self._borders_first.tiles[at, part]
        if self.owners.finish[at] is not None:
            return self.owners.tiles(at, part)
        alone = layer.kind == INPUT or part == RESULT_PART
        rows = np.arange(self.owners.height(at)) if self.owners.height(at) > 1 else None
        return [Tile(np.arange(layer.tasks), rows)] if alone else []

    def row_dim(self, at: int) -> int | None:
        """The dimension of a layer's results that counts the rows of tiles; None if none does.

        Raises
        ------
        PlacementError
            If channels lie along the rows, or beside samples in one dimension, or a band has no row
            that is computed by the layer's weights, as one of class tokens alone.
        """
        rows, cuts = self.graph.layer_rows[at], self.owners.row_cuts[at]
        dim = rows.dim if self.owners.height(at) > 1 else None
        if dim is not None and rows.head is not None and self.graph.layers[at].parameter_names:
            for band, count in enumerate(np.diff(rows.head.reads.pointers[[*cuts]]).tolist()):
                if not count:
                    raise PlacementError(
                        f"band {band} of {self.graph.layers[at].name} has none of the rows that "
                        "its weights compute: accepted are fewer bands"
                    )
        for node in self.results[at] if dim is not None else ():
            layout = self.layouts[node]
            if dim in layout.axes or layout.merged:
                raise PlacementError(
                    f"{self.graph.layers[at].name} makes maps whose channels lie along dimensions "
                    f"{layout.axes}, and whose rows lie along {dim}: accepted in bands are "
                    "channels along other dimensions, or a plan without bands"
                )
        return dim

    def channels(self, at: int, tasks: Int64) -> Int64:
        """Channels that tasks of a layer make, numbered within the layer."""
        layer = self.graph.layers[at]
        return np.arange(layer.channels) if layer.tasks == 1 and len(tasks) else tasks

    def makes_alone(self, at: int, part: int) -> bool:
        """Whether a part makes itself all that it has of a layer's maps, and all sums in them."""
        arrives = any((at, partial, part) in self.arriving for partial in (False, True))
        return bool(len(self.finishes(at, part))) and not arrives

    def statistic_counts(self, at: int, part: int, tasks: Int64) -> Int64 | None:
        """Features that a part makes of the channels of each task; None unless it is a statistic.

        A channel has several where its map was flattened.
        """
        layer, cells, split = self.graph.layers[at], self.owners.cells[at], self.owners.splits[at]
        if layer.kind != STATISTICS or cells is None or split is None:
            return None
        counts = np.zeros(layer.tasks, dtype=np.int64)
        for rectangle in cells[part]:
            counts[rectangle.tasks] += layer.reads[split].sizes[rectangle.positions].sum()
        return counts[tasks]

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """The same as `channel_transfers`, as tensors."""
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
                at_once=self.owners.tells_rows,
            )
            for number, item in enumerate(self.channel_transfers)
        )

    @cached_property
    def departing(self) -> dict[tuple[int, bool, int], list[tuple[Transfer, ChannelTransfer]]]:
        """What parts send, by layer, whether it is partial sums, and sender."""
        departing: dict[tuple[int, bool, int], list[tuple[Transfer, ChannelTransfer]]] = {}
        for transfer, item in zip(self.transfers, self.channel_transfers, strict=True):
            key = (item.layer, item.partial, item.sender)
            departing.setdefault(key, []).append((transfer, item))
        return departing

    @cached_property
    def arriving(self) -> dict[tuple[int, bool, int], list[ChannelTransfer]]:
        """What parts receive, by layer, whether it is partial sums, and receiver."""
        arriving: dict[tuple[int, bool, int], list[ChannelTransfer]] = {}
        for item in self.channel_transfers:
            arriving.setdefault((item.layer, item.partial, item.receiver), []).append(item)
        return arriving

    def _transferred(self, item: ChannelTransfer) -> Iterable[TransferredTensor]:
        if item.partial:
            (piece,) = item.pieces
            node, axis = summing_of(CutGraph(self.facts, item.layer, piece.members, {}, {}))
            axes = (axis,) if self.graph.layers[item.layer].tasks > 1 else ()
            yield tensor_of(node, node.meta["val"].shape, axes, len(piece.members), self.share)
            return
        dim = self.row_dim(item.layer)
        for piece, node in product(item.pieces, self.results[item.layer]):
            layout = self.layouts[node]
            count = len(layout.positions(piece.members))
            shape = list(layout.apart(node.meta["val"].shape))
            if dim is not None and piece.rows is not None:
                shape[dim] = len(piece.rows)
            yield tensor_of(node, shape, layout.axes, count, self.share)

    @cached_property
    def buffer_updates(self) -> dict[int, dict[fx.Node, fx.Node]]:
        """For each layer the buffers, read by nothing else, to which it writes a new value."""
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
        updates: dict[int, dict[fx.Node, fx.Node]] = {}
        for placeholder, new in self.traced.updates.items():
            name = self.traced.buffers[placeholder]
            if is_norms_statistic(new):
                if not _is_norms_alone(self.nodes[placeholder], new):
                    raise PlacementError(
                        f"the model reads or sets {name} apart from the norm that updates it: "
                        "accepted are running statistics that norms alone read and change"
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
            updates.setdefault(at, {})[self.nodes[placeholder]] = new
        return updates

    @cached_property
    def carriers(self) -> dict[fx.Node, int]:
        """Buffers whose next values are computed from parameters, and the part that computes them.

        That part has these parameters and the buffers, and no other part has any of them.

        Raises
        ------
        PlacementError
            If there is no such part.
        """
        part_of_buffer: dict[fx.Node, int] = {}
        for buffer in self.facts.carried:
            read, parameters = self._carried_from(buffer)
            if not parameters:
                continue
            parts = {part for at in self._readers({buffer, *read}) for part in self._parts(at)}
            sent = any(parameter.name in self.facts.sent_parameters for parameter in parameters)
            if sent or len(parts) != 1:
                names = ", ".join(
                    sorted(self.traced.parameters[weight.name] for weight in parameters)
                )
                raise PlacementError(
                    f"the model computes its buffer {self.traced.buffers[buffer.name]} from "
                    f"{names}: accepted are buffers and parameters that one layer of one task "
                    "reads, and nothing else"
                )
            (part_of_buffer[buffer],) = parts
        return part_of_buffer

    def _carried_from(self, buffer: fx.Node) -> tuple[set[fx.Node], set[fx.Node]]:
        """Buffers and parameters that a buffer's next values need, and these parameters alone.

        This holds for all later passes: what these buffers are computed from is included.
        """
        carried, waiting, seen = self.facts.carried, [buffer], {buffer}
        while waiting:
            more = live_nodes([carried[waiting.pop()]]) - seen
            waiting.extend(more & carried.keys())
            seen |= more
        parameters = {node for node in seen if node.name in self.traced.parameters}
        return parameters | (seen & carried.keys()), parameters

    def _readers(self, placeholders: Iterable[fx.Node]) -> set[int]:
        """Layers that use parameters or buffers, or something computed from these alone."""
        layers, waiting, seen = set[int](), [*placeholders], set[fx.Node]()
        while waiting:
            node = waiting.pop()
            if node in self.facts.makers:
                layers.add(self.facts.makers[node])
            elif node not in seen:
                seen.add(node)
                waiting.extend(node.users)
                if node in self.traced.results:
                    layers.add(len(self.graph.layers) - 1)
        return layers

    def _parts(self, at: int) -> set[int]:
        """Parts that compute something of a layer."""
        finish, cells = self.owners.finish[at], self.owners.cells[at]
        parts = {RESULT_PART} if finish is None else {*map(int, finish.flat)}
        return parts | {part for part, own in enumerate(cells or ()) if own}


def shared_statistics(blueprints: Sequence[Blueprint]) -> tuple[SharedStatistics, ...]:
    """The statistics of norms over several tiles that parts send each other.

    Those of all shares together, or of each share. Transfer numbers go on from those of all shares.
    """
    first, last = blueprints[0], blueprints[-1]
    together = first.partition.modelling.norms == "batch"
    groups = [blueprints] if together else [[blueprint] for blueprint in blueprints]
    number, statistics = last.first_transfer + len(last.transfers), list[SharedStatistics]()
    for group in groups:
        own = SharedStatistics(
            norms=first.norms_of_batch,
            graph=first.graph,
            owners=[blueprint.owners for blueprint in group],
            share=Share(
                tuple(sorted(chain.from_iterable(blueprint.share.slices for blueprint in group))),
                first.share.of,
            ),
            learns=first.learns(inputs=False),
            names=group[0].names,
            first_transfer=number,
        )
        number += len(own.travelling)
        statistics.append(own)
    return tuple(statistics)


# A part's values of a layer are named by the layer and such a suffix: partial sums, another tile,
# what another part has sent, a second result; the operand of a norm over tiles, and statistics.
_SUFFIX = re.compile(
    r"(_partial|_before_\d+|_statistics_\d+)?(_kept|_tile_\d+|_(from|to)_\d+)?(_\d+)?"
)


def _stems(name: str) -> set[str]:
    """Names of the layers that a part's value with this name may belong to."""
    return {name[:at] for at in range(len(name)) if at and _SUFFIX.fullmatch(name, at)}


def _is_norms_alone(buffer: fx.Node, new: fx.Node) -> bool:
    """Whether a buffer is read only by norms, one after another, which compute its new value.

    Parts hold only what their channels of the norm need of it, and only after the norm.
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
        current = waiting.pop()
        if current.name in names:
            return True
        if current not in seen:
            seen.add(current)
            waiting.extend(current.all_input_nodes)
    return False


def _dtype(node: fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def tensor_of(
    node: fx.Node, shape: Sequence[Any], axes: Sequence[int], count: int, share: Share
) -> TransferredTensor:
    """A node's tensor in a shape, with some of the positions along merged axes."""
    if elements_of_shape(shape) is None:
        raise PlacementError(
            f"{module_of(node) or node.name} makes a map of {shape_said(shape)}: accepted are "
            "maps that grow evenly with the batch"
        )
    per_sample, fixed = [], []
    for dim, size in enumerate(shape):
        if dim in axes[1:]:
            continue
        if axes and dim == axes[0]:
            growth, rest = 0, count
        else:
            growth, rest = evenly(size) or (0, 0)
        per_sample.append(growth)
        fixed.append(rest)
    return TransferredTensor(tuple(per_sample), tuple(fixed), _dtype(node), share)
