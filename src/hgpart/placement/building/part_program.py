"""Blueprints of all shares -> the program of one part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from torch import fx

from hgpart.execution.program import PartProgram
from hgpart.placement.building.blueprint import Blueprint
from hgpart.placement.building.joined_builder import JoinedBuilder
from hgpart.placement.building.order import Order, Sums
from hgpart.placement.building.part_builder import PartBuilder
from hgpart.placement.building.part_graph import PartGraph
from hgpart.placement.building.statistics_builder import StatisticsBuilder
from hgpart.placement.cutting.slices import Slice
from hgpart.placement.shares.statistics import SharedStatistics


def build_part(
    blueprints: Sequence[Blueprint], part: int, order: Order, statistics: SharedStatistics
) -> tuple[PartProgram, tuple[Mapping[str, Slice], ...]]:
    """Go through the layers of all shares of the batch in an order of `order_of_layers`.

    Returns
    -------
    PartProgram and tuple of mappings of str to Slice
        What the steps of each share hold of the model's state, by dotted attribute; those of
        several shares are the first one's.
    """
    united: list[dict[str, Slice]] = [{} for _ in blueprints]
    while True:
        made = PartGraph()
        single = [
            PartBuilder(blueprint, part, held, made, statistics)
            for blueprint, held in zip(blueprints, united, strict=True)
        ]
        builders: dict[tuple[int, ...], PartBuilder] = {
            (share,): builder for share, builder in enumerate(single)
        }
        between = StatisticsBuilder(single)
        for builder in single:
            builder.expect()
        between.expect()
        for piece in order:
            if isinstance(piece, Sums):
                between.add(*piece)
                continue
            shares, at, partial, norms = piece
            if shares not in builders:
                builders[shares] = JoinedBuilder.of(shares, [single[share] for share in shares])
            builders[shares].add(at, partial, norms)
        for name in list(made.waiting):  # the table counts them, though no operator wants them
            made.receive(name)
        for held_alike in (single[:1], single[1:]):  # these have copies of the first one's buffers
            if held_alike:
                held_alike[0].carry(held_alike)
        needed = [builder.united_slices() for builder in single]
        if not any(needed):
            break
        united = needed
    made.fx_graph.output(tuple(chain.from_iterable(builder.results for builder in single)))
    module = fx.GraphModule(made.root, made.fx_graph, class_name=f"Part{part}")
    program = PartProgram(part, module, made.used, made.steps)
    return program, tuple(builder.slices for builder in single)
