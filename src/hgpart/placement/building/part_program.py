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
    blueprints: Sequence[Blueprint],
    part: int,
    order: Order,
    statistics: Sequence[SharedStatistics],
) -> tuple[PartProgram, tuple[Mapping[str, Slice], ...]]:
    """Build a part's program by going through the layers of all shares in an order.

    Returns
    -------
    PartProgram and tuple of mappings of str to Slice
        Slices of the model's state that the steps of each share hold, by dotted attribute: those of
        the first band of rows, and then the others. Those of several shares count for the first.
    """
    graph = PartGraph()
    of_shares = [*statistics] if len(statistics) > 1 else [*statistics] * len(blueprints)
    single = [
        PartBuilder(blueprint, part, graph, own)
        for blueprint, own in zip(blueprints, of_shares, strict=True)
    ]
    builders: dict[tuple[int, ...], PartBuilder] = {
        (share,): builder for share, builder in enumerate(single)
    }
    groups = [[builder] for builder in single] if len(statistics) > 1 else [single]
    between = [StatisticsBuilder(group) for group in groups]
    for builder in single:
        builder.expect()
    for sums in between:
        sums.expect()
    for piece in order:
        if isinstance(piece, Sums):
            between[piece.group].add(piece.norm, piece.whole)
            continue
        shares, at, partial, norms = piece
        if shares not in builders:
            builders[shares] = JoinedBuilder.of(shares, [single[share] for share in shares])
        builders[shares].add(at, partial, norms)
    for name in list(graph.waiting):  # they count in the table, though no operator needs them
        graph.receive(name)
    for with_copies in (single[:1], single[1:]):  # later shares copy the first one's buffers
        if with_copies:
            with_copies[0].carry(with_copies)
    of_statistics = (builder.statistics_steps() for builder in builders.values())
    graph.leave_out_unread({*chain.from_iterable(of_statistics)})
    for builder in single:
        builder.hold_together()
    if any(blueprint.owners.tells_rows for blueprint in blueprints):
        graph.send_early()
    graph.fx_graph.output(tuple(chain.from_iterable(builder.results for builder in single)))
    module = fx.GraphModule(graph.root, graph.fx_graph, class_name=f"Part{part}")
    program = PartProgram(part, module, graph.used, graph.steps)
    by_share = ((builder.slices, builder.later_slices) for builder in single)
    return program, tuple(chain.from_iterable(by_share))
