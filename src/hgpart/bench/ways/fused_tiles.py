"""FusedTiles -> Runner: a process's tile, and in the first one the rest of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import chain
from operator import or_
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch import distributed as dist

from hgpart.arrays import Int64
from hgpart.bench.ways.job import Job
from hgpart.bench.ways.tiles import FusedTiles
from hgpart.bench.ways.traced_before import traced_here
from hgpart.bench.ways.way import TrainingWay
from hgpart.bench.ways.worker import Runner
from hgpart.errors import PlacementError
from hgpart.layers.channel_graph import INPUT, PARAMETER
from hgpart.partition import partition_graph
from hgpart.placement.building.blueprint import Blueprint
from hgpart.placement.building.part_graph import PartGraph, numbered
from hgpart.placement.cutting.cut_graph import CutGraph
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.placement.cutting.step_graph import Source, SourcePiece
from hgpart.placement.cutting.steps import finishing_step
from hgpart.placement.mode_programs import make_on
from hgpart.run.processes.connection import Connection, connect
from hgpart.tracing.batches import at_batch
from hgpart.tracing.traced_nodes import first_tensor
from hgpart.work.figures import flops


@contextmanager
def fused(way: TrainingWay, job: Job, tiles: FusedTiles, rank: int) -> Iterator[Runner]:
    """The runner of a tile."""
    with connect(job.workers, timeout=job.timeout) as connection:
        facts = NodeFacts(*traced_here(job.model, job.input_shape, training=False))
        cut = TiledModel(job.new_model(), facts, tiles)
        yield TileRunner(cut, job, connection)


@dataclass(eq=False)
class _Module:
    """Steps of some layers under construction, which become one module.

    Attributes
    ----------
    state : mapping of str to Tensor
        The model's state, of which steps take what they need.
    pieces : dict of int to sequence of (str, int64 array or None)
        Names and rows of what there is of each layer so far.
    """

    plan: Blueprint
    state: Mapping[str, Tensor]
    pieces: dict[int, Sequence[tuple[str, Int64 | None]]]
    graph: PartGraph = field(default_factory=PartGraph)

    def add(self, at: int, rows: Int64 | None = None) -> tuple[fx.Node, ...]:
        """Compute a layer, or some rows of it."""
        plan, graph = self.plan, self.plan.graph
        layer = graph.layers[at]
        if layer.kind == INPUT:
            (node,) = plan.results[at]
            self.graph.placeholder(node.name)
            self.pieces[at] = [(node.name, None)]
            return ()
        sources = {
            node: self._source(source, index, node)
            for source in graph.sources(layer)
            for index, node in enumerate(plan.results[source])
        }
        step = CutGraph(plan.facts, at, np.arange(layer.tasks), sources, {}, rows=rows)
        made = finishing_step(step, plan.results[at], {})
        for attribute, held in made.slices.items():
            value = self.state[held.name].detach()
            own = value if held.is_whole else held.take(value)
            if isinstance(getattr(made.module, attribute), nn.Parameter):
                own = nn.Parameter(own, requires_grad=False)
            setattr(made.module, attribute, own)
        self.pieces[at] = [(plan.names[at], rows)]
        return self.graph.add(made, plan.names[at])

    def _source(self, at: int, index: int, node: fx.Node) -> Source:
        pieces = self.pieces[at]
        channels = np.arange(self.plan.graph.layers[at].channels)
        has_rows = any(rows is not None for _, rows in pieces)
        named = (SourcePiece(numbered(name, index), channels, rows) for name, rows in pieces)
        dim = self.plan.graph.layer_rows[at].dim if has_rows else None
        return Source(self.plan.layouts[node], tuple(named), dim)

    def returning(self, results: Sequence[fx.Node]) -> fx.GraphModule:
        """The finished module, which returns a list."""
        self.graph.fx_graph.output(list(results))
        module = fx.GraphModule(self.graph.root, self.graph.fx_graph)
        make_on(module, torch.device("cpu"))
        return module


class TiledModel:
    """A model in evaluation, cut into the modules of the processes.

    Parameters
    ----------
    facts : NodeFacts
        Facts about the model's trace in evaluation.

    Raises
    ------
    PlacementError
        If the model draws random numbers in evaluation, or a layer can't be cut by rows.
    """

    def __init__(self, model: nn.Module, facts: NodeFacts, tiles: FusedTiles) -> None:
        work = flops(facts.graph)
        alone = partition_graph(facts.graph, work, 1, 0)
        self._plan, self._tiles = Blueprint(facts, alone, work, frozenset()), tiles
        if self._plan.draws:
            raise PlacementError(
                f"{next(iter(self._plan.draws))} draws random numbers: accepted in fused tiles are "
                "models that draw none in evaluation"
            )
        traced = facts.traced
        fixed = {traced.buffers.get(name, name): value for name, value in traced.values.items()}
        named = chain(
            model.named_buffers(remove_duplicate=False),
            model.named_parameters(remove_duplicate=False),
        )
        self._state = {**fixed, **dict(named)}
        for at in tiles.own[0]:
            self._check(at)

    def _check(self, at: int) -> None:
        """Raise a PlacementError if the rows of a layer's maps are no dimension of their own."""
        dim, plan = self._plan.graph.layer_rows[at].dim, self._plan
        for node in plan.results[at]:
            layout = plan.layouts[node]
            if len(layout.axes) > 1 or dim in layout.axes or layout.merged:
                raise PlacementError(
                    f"{plan.graph.layers[at].name} makes a map whose channels lie along rows or "
                    "several dimensions: accepted in fused tiles are rows that lie apart"
                )

    def tile(self, part: int) -> fx.GraphModule:
        """The module of a process's tile: inputs -> its rows of the maps that are read behind."""
        made = _Module(self._plan, self._state, {})
        computed = self._tiles.computed[part]
        for at in range(self._tiles.fused):
            rows = computed.get(at)
            if rows is None or len(rows):
                height = self._plan.graph.layer_rows[at].height
                made.add(at, None if rows is not None and len(rows) == height else rows)
        results = []
        for at, own in self._tiles.own[part].items():
            if not len(own):
                continue
            dim, have = self._plan.graph.layer_rows[at].dim, computed[at]
            assert dim is not None
            for index in range(len(self._plan.results[at])):
                value = made.graph.values[numbered(self._plan.names[at], index)]
                places = np.searchsorted(have, own)
                results.append(made.graph.take(value, dim, places, len(have)))
        return made.returning(results)

    def rest(self) -> fx.GraphModule:
        """The module of all other layers: inputs and the results of all tiles -> the results."""
        plan = self._plan
        pieces: dict[int, Sequence[tuple[str, Int64 | None]]] = {
            at: [
                (self._piece(at, part), own[at])
                for part, own in enumerate(self._tiles.own)
                if len(own[at])
            ]
            for at in self._tiles.own[0]
        }
        made, results = _Module(plan, self._state, pieces), tuple[fx.Node, ...]()
        for at, layer in enumerate(plan.graph.layers):
            if at >= self._tiles.fused or layer.kind in (INPUT, PARAMETER):
                results = made.add(at)
        return made.returning(results)

    def results(self, part: int, samples: int) -> dict[str, Tensor]:
        """Empty tensors for the results of a tile, by their names in the rest of the model."""
        empty = {}
        for at, own in self._tiles.own[part].items():
            for index, node in enumerate(self._plan.results[at] if len(own) else ()):
                like, dim = first_tensor(node.meta["val"]), self._plan.graph.layer_rows[at].dim
                sizes = [at_batch(size, samples) for size in like.shape]
                shape = [len(own) if at == dim else size for at, size in enumerate(sizes)]
                name = numbered(self._piece(at, part), index)
                empty[name] = torch.empty(shape, dtype=like.dtype)
        return empty

    def inputs(self, images: Tensor) -> dict[str, Any]:
        """What modules are called with, but for results of tiles."""
        return {self._plan.traced.inputs[0]: images, "batch_size": len(images)}

    def _piece(self, at: int, part: int) -> str:
        return f"{self._plan.names[at]}_from_{part}"


def called(module: fx.GraphModule, values: Mapping[str, Any]) -> list[Tensor]:
    """The results of a module, called with values by name."""
    names = (str(node.target) for node in module.graph.find_nodes(op="placeholder"))
    results: list[Tensor] = module(*map(values.__getitem__, names))
    return results


class TileRunner:
    """A Runner that computes a tile; the first one gets the others' results, and does the rest."""

    def __init__(self, cut: TiledModel, job: Job, connection: Connection) -> None:
        rank, samples = connection.rank, job.batch_size
        self.reads = range(samples)
        self.makes = self.reads if rank == 0 else range(0)
        self._cut, self._connection, self._sent = cut, connection, 0
        self._tile = cut.tile(rank)
        self._rest = cut.rest() if rank == 0 else None
        self._own = [*cut.results(rank, samples)]
        self._others = [cut.results(part, samples) for part in range(1, job.workers)]

    def forward(self, images: Tensor | None) -> list[Tensor]:
        """Compute the tile, and send or gather."""
        assert images is not None
        values = self._cut.inputs(images)
        if self._rest is None:
            for result in called(self._tile, values):
                self._send(result.contiguous())
            return []
        coming = [
            (part, self._begin_to_receive(empty, part))
            for part, results in enumerate(self._others, start=1)
            for empty in results.values()
        ]
        own = dict(zip(self._own, called(self._tile, values), strict=True))
        for part, work in coming:
            self._connection.guard(work.wait, f"got the tile of rank {part}", part)
        return called(self._rest, reduce(or_, self._others, {**values, **own}))

    def _send(self, result: Tensor) -> None:
        self._connection.guard(partial(dist.send, result, 0), "sent its tile to rank 0", 0)
        self._sent += result.nbytes

    def _begin_to_receive(self, empty: Tensor, part: int) -> dist.Work:
        doing = f"began to receive the tile of rank {part}"
        work = self._connection.guard(partial(dist.irecv, empty, part), doing, part)
        assert work is not None
        return work

    def sent_bytes(self) -> int | None:
        """Bytes of this process's results that the first process has got."""
        return self._sent
