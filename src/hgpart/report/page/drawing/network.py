"""Report -> the network as a graph: boxes of layers, and what travels between them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Int32
from hgpart.files.columns import UNITS
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.report.page.drawing.boxes import LayerBox, box_of_layers
from hgpart.report.partition.looks import hatch_of, ink_on, part_colour
from hgpart.report.partition.record import Report, work_of_layer

MOST_BOXES = 320  # boxes that a picture has room for; neighbours in one module are one
LABEL = 18  # letters of a label that several modules fit in


@dataclass(frozen=True)
class Network:
    """What page.js lays out and draws.

    Attributes
    ----------
    boxes : list of LayerBox
        Layers, in the order of the model.
    labels : list of str
        Short names of the boxes, which differ.
    edges : list of tuple
        From box, to box, share of the largest edge's bytes, bytes as text.
    looks : list of tuple
        Colour and hatching of each part, and a colour of text that can be read on it.
    """

    boxes: list[LayerBox]
    labels: list[str]
    edges: list[tuple[int, int, float, str]]
    looks: list[tuple[str, str, str]]


def network(report: Report, unit: str) -> Network:
    """Draw who computes what of each layer, and which maps travel."""
    shown = [view for view in report.partition.model.views if view.exists]
    groups = grouped([view.layer.name for view in shown])
    box_of = {shown[at].at: box for box, members in enumerate(groups) for at in members}
    work = [np.sum([work_of_layer(report, shown[at]) for at in group], axis=0) for group in groups]
    most_work = max((float(parts.sum()) for parts in work), default=0.0) or 1.0
    sent, between = traffic_of_layers(
        report.partition.model, report.partition.parts, report.partition.k
    )
    edges: Counter[tuple[int, int]] = Counter()
    for at, layer in enumerate(report.partition.problem.graph.layers):
        for source in report.partition.problem.graph.sources(layer):
            if source in box_of and at in box_of and box_of[source] != box_of[at]:
                edges[box_of[source], box_of[at]] += between[source, at]
    most_bytes = max(edges.values(), default=0) or 1
    boxes = []
    for own, members in zip(work, groups, strict=True):
        views = [shown[at] for at in members]
        boxes.append(
            box_of_layers(
                report,
                views,
                name=names_together([view.layer.name for view in views]),
                sends=f"sends {_bytes(sum(sent[view.at] for view in views), unit)}",
                work=own,
                most_work=most_work,
            )
        )
    return Network(
        boxes=boxes,
        labels=labels_of([box.name for box in boxes]),
        edges=[
            (*pair, round(bytes_ / most_bytes, 4), _bytes(bytes_, unit))
            for pair, bytes_ in edges.items()
        ],
        looks=[
            (part_colour(part), hatch_of(part), ink_on(part_colour(part)))
            for part in range(report.partition.k)
        ],
    )


def traffic_of_layers(
    model: CnnHypergraph, parts: Int32, k: int
) -> tuple[Counter[int], Counter[tuple[int, int]]]:
    """Bytes of maps between parts in a forward pass: by the layer that makes them, by who reads.

    A map that several layers read in one part travels there once: it counts for the first of them.
    Partial sums count for their layer alone.
    """
    tags = (model.vertex_layers.astype(np.int64) * k + parts).astype(np.int32)
    tagged = model.map_nets.of_parts(model.weights, tags, len(model.graph.layers) * k)
    sent: Counter[int] = Counter()
    between: Counter[tuple[int, int]] = Counter()
    spans = itertools.pairwise(tagged.pointers.tolist())
    for cost, gathers, (begin, end) in zip(
        tagged.costs.tolist(), tagged.gathers.tolist(), spans, strict=True
    ):
        layers, owners = np.divmod(tagged.pins[begin:end], k)
        away = owners != owners[0]
        sent[int(layers[0])] += cost * len(np.unique(owners[away]))
        if not gathers:  # pins are in the order of layers: the first of each part comes first
            _, firsts = np.unique(owners[away], return_index=True)
            for reader in layers[away][firsts].tolist():
                between[int(layers[0]), reader] += cost
    return sent, between


def grouped(names: Sequence[str]) -> list[range]:
    """Runs of neighbours that are one box: as deep in modules as there is room for.

    >>> grouped(["stem.conv", "stage.0.conv", "stage.1.conv"])
    [range(0, 1), range(1, 2), range(2, 3)]
    """
    runs = [range(at, at + 1) for at in range(len(names))]
    depth = max((name.count(".") for name in names), default=0)
    while len(runs) > MOST_BOXES and depth:
        heads = [".".join(name.split(".")[:depth]) for name in names]
        starts = [at for at in range(len(names)) if not at or heads[at] != heads[at - 1]]
        runs = [range(*pair) for pair in itertools.pairwise([*starts, len(names)])]
        depth -= 1
    size = -(-len(runs) // MOST_BOXES)
    boxes = [runs[at : at + size] for at in range(0, len(runs), max(1, size))]
    return [range(box[0].start, box[-1].stop) for box in boxes]


def names_together(names: Sequence[str]) -> str:
    """What names have in common, and how many they are.

    >>> names_together(["stage.0.conv1", "stage.0.conv2"]), names_together(["stem"])
    ('stage.0 (2 layers)', 'stem')
    """
    if len(names) == 1:
        return names[0]
    levels = zip(*(name.split(".") for name in names), strict=False)
    head = ".".join(
        level[0] for level in itertools.takewhile(lambda level: len({*level}) == 1, levels)
    )
    return f"{head or names[0] + ' ...'} ({len(names)} layers)"


def labels_of(names: Sequence[str]) -> list[str]:
    """Short names of boxes: the last modules, which say most, and more where two would be alike.

    >>> labels_of(["layer1.0.downsample.0", "layer2.0.downsample.0", "features.stage.conv1"])
    ['layer1…downsample.0', 'layer2…downsample.0', 'stage.conv1']
    """
    labels = [*map(_end, names)]
    for lengthened in (_begin_and_end, str):
        counts = Counter(labels)
        labels = [
            label if counts[label] == 1 else lengthened(name)
            for label, name in zip(labels, names, strict=True)
        ]
    return labels


def _end(name: str) -> str:
    modules = name.split(".")
    while len(modules) > 1 and len(".".join(modules)) > LABEL:
        del modules[0]
    end = ".".join(modules)
    return end if len(end) <= LABEL + 6 else f"…{end[-LABEL - 5 :]}"


def _begin_and_end(name: str) -> str:
    first, *others = name.split(".")
    return f"{first}…{'.'.join(others[-2:])}" if len(others) > 2 else name


def _bytes(number: int, unit: str) -> str:
    return f"{number / UNITS[unit]:,.4g} {unit}"
