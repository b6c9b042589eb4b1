"""Problem -> bytes that a row of a layer, or a cell of a split one, keeps; tied layers together."""

from __future__ import annotations

import math

from hgpart.hypergraph.channel_shares import channel_shares
from hgpart.hypergraph.modelling import LayerVertices, by_vertices
from hgpart.hypergraph.parameters import NUMBERS_A_CHANNEL
from hgpart.layers.channel_graph import PARAMETER
from hgpart.partition.problem.problem import Problem


class HeldBytes:
    """Bytes of parameters, maps and statistics.

    Attributes
    ----------
    tied : dict of int to list of LayerVertices
        The layers that share vertices, by the first of them.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.tied = problem, by_vertices(problem.views)

    def row_memory(self, at: int, group: int) -> int:
        """Bytes of a row's vertex: what is not its cells' of its parameters, and its map."""
        bytes_kept = 0
        for view in self.tied[at]:
            kept = self._kept(_held_by_row(view, group))
            bytes_kept += kept + view.tasks_per_row * view.map_bytes
        return bytes_kept

    def row_parameters(self, at: int, group: int) -> int:
        """Bytes of what is not its cells' of a row's parameters, with those of tied layers.

        Without parameters that others read.
        """
        return sum(
            _held_by_row(view, group) for view in self.tied[at] if view.layer.kind != PARAMETER
        )

    def read_parameters(self, at: int) -> dict[int, int]:
        """Bytes of the parameters of a row that others read, by layer, with tied ones."""
        return {
            view.at: view.parameter_bytes for view in self.tied[at] if view.layer.kind == PARAMETER
        }

    def cell_parameters(self, at: int, column: int) -> int:
        """Bytes of the parameters of a cell, with those of tied layers."""
        return sum(_held_by_cell(view, column) for view in self.tied[at])

    def row_statistics(self, at: int) -> int:
        """Bytes of what norms of a row take of the batch, with those of tied layers."""
        return sum(
            NUMBERS_A_CHANNEL
            * (view.layer.batch_statistics * view.tasks_per_row // view.layer.tasks)
            * view.element_bytes
            for view in self.tied[at]
        )

    def cell_memory(self, at: int, column: int) -> int:
        """Bytes of the parameters of a cell that are kept, with those of tied layers."""
        return sum(self._kept(_held_by_cell(view, column)) for view in self.tied[at])

    def _kept(self, parameter_bytes: int) -> int:
        return math.ceil(self.problem.copies * parameter_bytes)


def _held_by_row(view: LayerVertices, group: int) -> int:
    """Bytes of the parameters of a row, less those of its cells."""
    layer = view.layer
    held = sum(
        -(-count * view.tasks_per_row // layer.tasks) * size for count, size in view.parameters
    )
    if (read := view.split) is not None:
        weights = int(channel_shares(read, layer.weights // layer.tasks)[group].sum())
        held -= weights * view.weight_bytes
    return held


def _held_by_cell(view: LayerVertices, column: int) -> int:
    """Bytes of the parameters of a cell: none of a layer that is not split."""
    if (read := view.split) is None:
        return 0
    shares = channel_shares(read, view.layer.weights // view.layer.tasks)
    return int(shares.ravel()[column]) * view.weight_bytes
