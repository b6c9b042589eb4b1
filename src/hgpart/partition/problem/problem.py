"""ChannelGraph + work + what is asked for -> Problem: checked once, and passed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hgpart.arrays import Int64
from hgpart.hypergraph.blocks import Blocks, full_vertices
from hgpart.hypergraph.building import (
    CnnHypergraph,
    check_bands,
    check_bytes,
    check_slices,
    check_work,
    of_blocks,
)
from hgpart.hypergraph.modelling import LayerVertices, Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.problem.balance import capacities
from hgpart.partition.problem.checks import check_request
from hgpart.partition.problem.constraints import NONE, Constraints
from hgpart.partition.problem.layer_constraints import LayerConstraints, combined, effects
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.objectives import VOLUME, Objective
from hgpart.partition.problem.start import Start
from hgpart.work.figures import Work


@dataclass(frozen=True, eq=False)
class Problem:
    """A model, and the demands on a partition of it.

    Attributes
    ----------
    k : int
        Number of parts.
    eps : float
        Imbalance allowed: no part's work exceeds (1 + eps) times its share of the total.
    speeds : sequence of k numbers, or None
        Relative speeds of the devices; None for equal ones. A part's share is in proportion.
    objective : Objective
        Measure that is to be as small as possible.
    memory : MemoryLimits or None
        Bytes that each part may need.
    constraints : Constraints
        Where layers must lie.
    start : Start or None
        Weights that devices have already, where a partition that exists is changed, and the price
        of moving them.
    least_eps : float
        At best effort, the eps below which no part has room for the heaviest task. Capacities are
        by this one where it is larger than eps.

    Raises
    ------
    ArgumentError
        If a field is out of range, or does not fit the graph or the number of parts. If the batch
        is in slices and the model mixes samples, or no map has as many rows as there are bands. If
        a constraint names what there is not.
    """

    graph: ChannelGraph
    work: Work
    modelling: Modelling
    k: int
    eps: float = 0.0
    speeds: Sequence[float] | None = None
    objective: Objective = VOLUME
    memory: MemoryLimits | None = None
    least_eps: float = 0.0
    constraints: Constraints = NONE
    start: Start | None = None

    def __post_init__(self) -> None:
        """Check every field at the door; NumPy's numbers, which no plan file takes, become ours."""
        check_request(self.k, self.eps, self.speeds, self.objective, self.memory)
        check_work(self.graph, self.work, self.modelling)
        check_bytes(self.graph, self.modelling)
        check_slices(self.graph, self.modelling)
        check_bands(self.graph, self.modelling)
        own = None if self.speeds is None else tuple(map(float, self.speeds))
        for name, value in (("k", int(self.k)), ("eps", float(self.eps)), ("speeds", own)):
            object.__setattr__(self, name, value)
        if self.constraints:
            assert self.layer_constraints is not None

    def at_grain(self, grain: str) -> Problem:
        """Return the same problem at another grain."""
        if self.modelling.grain == grain:
            return self
        return replace(self, modelling=replace(self.modelling, grain=grain))

    def in_slices(self, slices: int) -> Problem:
        """Return the same problem with the batch in that many slices."""
        if self.modelling.slices == slices:
            return self
        return replace(self, modelling=replace(self.modelling, slices=slices))

    def in_bands(self, bands: int) -> Problem:
        """Return the same problem with that many bands of rows."""
        if self.modelling.bands == bands:
            return self
        return replace(self, modelling=replace(self.modelling, bands=bands))

    @cached_property
    def coarse(self) -> Problem:
        """The same problem at coarse grain."""
        return self.at_grain("coarse")

    @cached_property
    def views(self) -> tuple[LayerVertices, ...]:
        """The vertices of each layer."""
        return self.modelling.views(self.graph)

    @cached_property
    def free(self) -> Problem:
        """The same problem without constraints or a start."""
        is_free = not self.constraints and self.start is None
        return self if is_free else replace(self, constraints=NONE, start=None)

    @cached_property
    def layer_constraints(self) -> LayerConstraints | None:
        """What constraints and start come to for each layer; None without any."""
        if not self.constraints and self.start is None:
            return None
        of_each = effects(self.constraints, self.views, self.k)
        own = [effect for _, effects_of_one in of_each for effect in effects_of_one]
        rules = combined(own, self.views, self.k)
        return rules if self.start is None else rules.with_start(self.start, self.views)

    @cached_property
    def tasks(self) -> int:
        """Number of vertices of the full hypergraph."""
        return full_vertices(self.views) * self.modelling.slices

    @cached_property
    def total(self) -> int:
        """Work of all vertices."""
        in_all = sum(
            int(self.work.per_task[view.at]) * view.layer.tasks
            for view in self.views
            if view.exists
        )
        return in_all * sum(self.modelling.slice_work)

    @property
    def divides_batch(self) -> bool:
        """Whether the batch can be in slices: no sample influences another."""
        return not self.graph.mixing.of_norms(self.modelling.norms)

    @property
    def rates(self) -> Sequence[float]:
        """Relative speed of each part's device."""
        return self.speeds or [1.0] * self.k

    @cached_property
    def capacities(self) -> Int64:
        """Largest work of each part, shape (k,)."""
        return capacities(self.total, self.rates, max(self.eps, self.least_eps))

    @property
    def copies(self) -> float:
        """Copies of each parameter that a part keeps for a batch in flight; 0 without limits."""
        return 0.0 if self.memory is None else self.memory.each.copies

    def hypergraph(self, blocks: Blocks) -> CnnHypergraph:
        """The hypergraph of blocks of the model."""
        return of_blocks(self.graph, self.work, blocks, self.modelling, self.views)
