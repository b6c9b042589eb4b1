"""Report -> AlikeLayers: which part has which filters of which slices and bands, line by line."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, pairwise

from hgpart.files.columns import Column
from hgpart.hypergraph.modelling import LayerVertices
from hgpart.report.partition.record import Report
from hgpart.report.partition.slice_shares import SliceShares, way_divided, who_has


@dataclass(frozen=True)
class AlikeLayers:
    """Neighbouring layers that lie alike on the parts.

    Attributes
    ----------
    layers : str
        The first and the last of them, and how many they are.
    divided : str
        Slices, bands or filters, which each is divided by (`way_divided`).
    parts : int
        Number of parts that have any of them.
    who : str
        The parts that have each, and what of it (`who_has`).
    """

    layers: str
    divided: str
    parts: int
    who: str


def divided_layers(report: Report) -> list[AlikeLayers]:
    """All layers in order, neighbours that lie alike together."""
    samples = report.partition.modelling.samples
    own = [
        (view, groups, way_divided(groups, view.bands), who_has(groups, samples, rows_of(view)))
        for view, groups in zip(report.partition.model.views, report.slices_of_layers, strict=True)
        if groups
    ]

    def lies(layer: tuple[LayerVertices, tuple[SliceShares, ...], str, str]) -> object:
        return layer[2:], [(group.slices, group.parts) for group in layer[1]]

    lines = []
    for _, run in groupby(own, lies):
        (first, groups, divided, who), *others = run
        name = first.layer.name
        if others:
            name += f" to {others[-1][0].layer.name} ({1 + len(others)})"
        parts = {part for group in groups for part in group.parts}
        lines.append(AlikeLayers(name, divided, len(parts), who))
    return lines


def rows_of(view: LayerVertices) -> list[int]:
    """Rows of each band of a layer."""
    return [end - begin for begin, end in pairwise(view.cell_cuts)]


def divided_columns() -> list[Column[AlikeLayers]]:
    """What is said of layers that lie alike."""
    return [
        Column("layers", "layers"),
        Column("divided", "divided", "What the parts divide among them."),
        Column("parts", "parts", "How many have any of it."),
        Column("who", "who has them"),
    ]


def divided_legend(report: Report) -> str:
    """How to read who has what."""
    modelling = report.partition.modelling
    pieces = {"slices": modelling.slices > 1, "bands": modelling.bands > 1}
    named = " or ".join(piece for piece, exist in pieces.items() if exist)
    return (
        f'"0-3: 5" is {named} 0 to 3 on part 5; "5 70%" and "1, 4 15% each" are shares of the '
        "filters"
    )
