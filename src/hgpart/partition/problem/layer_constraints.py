"""Constraints + the layers of a model -> LayerConstraints: what they come to for each layer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import translate
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from hgpart.arrays import Int32, Int64
from hgpart.errors import ArgumentError, did_you_mean
from hgpart.hypergraph.cnn_vertices import CnnVertices
from hgpart.hypergraph.modelling import LayerVertices
from hgpart.partition.problem.constraints import Constraints, Pin
from hgpart.partition.problem.start import Start

Masks = NDArray[np.bool_]
Sides = tuple[tuple[frozenset[int], frozenset[int]], ...]


@dataclass(frozen=True, eq=False)
class LayerConstraints:
    """Where the filters of each layer may lie, which layers lie together, and which apart.

    Layers that share their vertices (tied weights) are the first of these.

    Attributes
    ----------
    cuts : dict of int to int64 array
        For each layer with a pin, the first filter of each run of filters that may lie in the same
        parts, and then the number of filters.
    parts : dict of int to bool array, shape (runs, k)
        For these layers, the parts that each run may lie in.
    groups : int32 array, shape (layers,)
        Layers of the same number lie whole in one part; -1 for others.
    sides : tuple of pairs of frozenset of int
        Layers of the two sets of a pair have no part in common.
    homes : dict of int to bool array, shape (runs, k)
        Parts that have the weights of each run of filters before the search.
    """

    k: int
    cuts: dict[int, Int64]
    parts: dict[int, Masks]
    groups: Int32
    sides: Sides
    homes: dict[int, Masks] = field(default_factory=dict)

    def with_start(self, start: Start, views: Sequence[LayerVertices]) -> LayerConstraints:
        """The same, with the devices that have weights already; runs end where these change."""
        cuts, parts, homes = dict(self.cuts), dict(self.parts), dict[int, Masks]()
        for at, held in start.homes.items():
            per_row = views[at].tasks_per_row
            changes = np.flatnonzero((held[1:] != held[:-1]).any(axis=1)) + 1
            changes = changes[changes % per_row == 0]
            ends = cuts.get(at, np.array([0, len(held)]))
            cuts[at] = np.union1d(ends, changes).astype(np.int64)
            anywhere = np.ones((1, self.k), dtype=np.bool_)
            runs = np.searchsorted(ends, cuts[at][:-1], "right") - 1
            parts[at] = parts.get(at, anywhere)[runs]
            homes[at] = held[cuts[at][:-1]]
        return replace(self, cuts=cuts, parts=parts, homes=homes)

    @property
    def of_group(self) -> dict[int, list[int]]:
        """The layers of each group."""
        layers: dict[int, list[int]] = {}
        for at in np.flatnonzero(self.groups >= 0).tolist():
            layers.setdefault(int(self.groups[at]), []).append(at)
        return layers

    def masks(self) -> tuple[Masks, dict[int, Int64]]:
        """Distinct pairs of masks: where filters may lie, and where their weights are.

        Returns
        -------
        bool array, shape (pairs, 2, k)
        dict of int to int64 array
            For each layer with runs, the number of the pair of each.
        """
        numbers: dict[bytes, int] = {}
        distinct: list[Masks] = []
        of_layers: dict[int, Int64] = {}
        for at, runs in self.parts.items():
            pairs = np.stack([runs, self.homes.get(at, np.zeros_like(runs))], axis=1)
            for pair in pairs:
                if numbers.setdefault(pair.tobytes(), len(numbers)) == len(distinct):
                    distinct.append(pair)
            of_layers[at] = np.array([numbers[pair.tobytes()] for pair in pairs], dtype=np.int64)
        return np.array(distinct, dtype=np.bool_).reshape(-1, 2, self.k), of_layers

    def of_vertices(self, model: CnnVertices) -> Masks:
        """Whether each vertex of a model's blocks may lie in each part, shape (vertices, k).

        The blocks are cut where runs end.
        """
        allowed = np.ones((model.vertices, self.k), dtype=np.bool_)
        for at, cuts in self.cuts.items():
            own = np.flatnonzero(model.vertex_layers == at)
            firsts = model.blocks.rows[at][model.vertex_rows[own]]
            allowed[own] = self.parts[at][np.searchsorted(cuts, firsts, "right") - 1]
        return allowed


@dataclass(frozen=True)
class Effect:
    """What a single constraint comes to.

    Attributes
    ----------
    runs : tuple of (int, int, int)
        Layers, and the filters of each that may lie in `parts` only: the first, and the one behind
        the last.
    together : frozenset of int
        Layers that lie whole in one part.
    """

    runs: tuple[tuple[int, int, int], ...] = ()
    parts: tuple[int, ...] = ()
    together: frozenset[int] = frozenset()
    sides: Sides = ()


def effects(
    constraints: Constraints, views: Sequence[LayerVertices], k: int
) -> list[tuple[str, list[Effect]]]:
    """What each constraint comes to, by its name.

    Raises
    ------
    ArgumentError
        If there is no such layer, filter or device, or a layer has to be apart from itself.
    """
    by_name: list[tuple[str, list[Effect]]] = []
    for name, single in constraints.each():
        own: list[Effect] = []
        for pin in single.pins:
            if pin.devices[-1] >= k:
                raise ArgumentError(f"{name} for k={k}: accepted are devices 0 to {k - 1}")
            layers = layers_named(views, pin.layers, name)
            own.append(Effect(tuple(_run(views[at], pin, name) for at in layers), pin.devices))
        for several in single.together:
            layers = [at for word in several for at in layers_named(views, word, name)]
            own.append(Effect(together=frozenset(layers)))
        for several in single.apart:
            sets = [frozenset(layers_named(views, word, name)) for word in several]
            for side, other in combinations(sets, 2):
                if shared := side & other:
                    layer = views[min(shared)].layer.name
                    raise ArgumentError(
                        f"{name}: {layer} would be apart from itself, accepted are layers that "
                        "share no weights"
                    )
            own.append(Effect(sides=tuple(combinations(sets, 2))))
        for word in single.no_split:
            own += [Effect(together=frozenset([at])) for at in layers_named(views, word, name)]
        by_name.append((name, own))
    return by_name


def layers_named(views: Sequence[LayerVertices], word: str, constraint: str) -> list[int]:
    """The layers that a name, module or pattern means; of those with shared vertices the first.

    Raises
    ------
    ArgumentError
        If there is none, or none with vertices; names the constraint.
    """
    chosen = [view for view in views if view.layer.name == word]
    if not chosen:
        pattern = re.compile(translate(word))
        chosen = [
            view
            for view in views
            if view.layer.name.startswith(f"{word}.") or pattern.fullmatch(view.layer.name)
        ]
    if not chosen:
        near = did_you_mean(word, [view.layer.name for view in views])
        raise ArgumentError(
            f"{constraint}: there is no layer {word!r}; accepted are the layers that hgpart trace "
            f"lists, modules and patterns such as features.*{near}"
        )
    if not any(view.exists for view in chosen):
        raise ArgumentError(
            f"{constraint}: {word!r} has no vertex, as what it sends is not counted; accepted are "
            "layers that have, see --modelling"
        )
    return list(dict.fromkeys(view.first for view in chosen if view.exists))


def _run(view: LayerVertices, pin: Pin, name: str) -> tuple[int, int, int]:
    tasks = view.layer.tasks
    end = tasks if pin.end is None else pin.end
    if end > tasks or pin.first >= end:
        raise ArgumentError(
            f"{name}: {view.layer.name} has {tasks} filters, accepted are ranges up to [0:{tasks}]"
        )
    if view.is_solid and (pin.first, end) != (0, tasks):
        raise ArgumentError(
            f"{name}: {view.layer.name} is one vertex, accepted is a pin of all of it"
        )
    return view.at, pin.first, end


def combined(chosen: Iterable[Effect], views: Sequence[LayerVertices], k: int) -> LayerConstraints:
    """What several constraints come to when all of them hold."""
    runs: dict[int, list[tuple[int, int, tuple[int, ...]]]] = {}
    first = np.arange(len(views))  # of the layers that lie together

    def root(at: int) -> int:
        while first[at] != at:
            at = int(first[at])
        return at

    is_whole = np.zeros(len(views), dtype=np.bool_)
    sides: dict[tuple[frozenset[int], frozenset[int]], None] = {}
    for effect in chosen:
        for at, begin, end in effect.runs:
            runs.setdefault(at, []).append((begin, end, effect.parts))
        for at in effect.together:
            is_whole[at] = True
            low, high = sorted((root(min(effect.together)), root(at)))
            first[high] = low
        sides.update(dict.fromkeys(effect.sides))
    cuts: dict[int, Int64] = {}
    parts: dict[int, Masks] = {}
    for at, own in runs.items():
        ends = [end for begin, end, _ in own] + [begin for begin, _, _ in own]
        cuts[at] = np.unique([0, views[at].layer.tasks, *ends]).astype(np.int64)
        parts[at] = np.ones((len(cuts[at]) - 1, k), dtype=np.bool_)
        for begin, end, devices in own:
            within = (cuts[at][:-1] >= begin) & (cuts[at][1:] <= end)
            parts[at][within] &= np.isin(np.arange(k), devices)
    groups = np.full(len(views), -1, dtype=np.int32)
    numbers: dict[int, int] = {}
    for at in np.flatnonzero(is_whole).tolist():
        groups[at] = numbers.setdefault(root(at), len(numbers))
    result = LayerConstraints(k, cuts, parts, groups, tuple(sides))
    for layers in result.of_group.values():
        pinned = [at for at in layers if at in parts]
        if not pinned:
            continue
        mask = np.all(np.concatenate([parts[at] for at in pinned]), axis=0)
        for at in layers:
            cuts[at] = np.array([0, views[at].layer.tasks], dtype=np.int64)
            parts[at] = mask[None]
    return result
