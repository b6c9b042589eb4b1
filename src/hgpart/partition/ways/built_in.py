"""All ways that come with hgpart: each with its name, a line of words, and how it divides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from hgpart.arrays import Int64
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.partition.backends import BACKENDS
from hgpart.partition.baselines.by_slices import (
    data_parallel,
    in_every_slice,
    opposed_replicas,
    slices_for,
)
from hgpart.partition.baselines.horizontal import horizontal
from hgpart.partition.baselines.incremental import incremental
from hgpart.partition.baselines.known_ways import Parts, layer_cut
from hgpart.partition.baselines.layerwise import (
    layerwise,
    layerwise_by_count,
    layerwise_by_parameters,
)
from hgpart.partition.baselines.one_weird_trick import one_weird_trick
from hgpart.partition.baselines.random_parts import random_parts
from hgpart.partition.baselines.spatial import (
    bands_for,
    filters_below,
    rows_and_samples_to_divide,
    rows_as_tall,
    rows_then_filters,
    rows_to_divide,
    slices_beside_bands,
    spatial,
    spatial_down_to,
)
from hgpart.partition.baselines.tensor_parallel import tensor_parallel
from hgpart.partition.baselines.transformed_parts import transformed_parts
from hgpart.partition.improving import rank
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.stages import solve, solve_in_slices, solve_in_tiles
from hgpart.partition.ways.best_of_several import (
    best_hybrid,
    best_stages,
    hybrid_of,
    stages_in_slices,
)
from hgpart.partition.ways.needs import layers_that_compute, least_time_objective
from hgpart.partition.ways.way import Divide, Way

HYBRID = "hybrid-"  # and the number of replicas
SPATIAL = "spatial-"  # and a number of rows
FILTERS = "rows-then-filters-"  # the same
FORMER = {  # what ways were called before each had one name
    "coarse-native": "coarse",
    "fine-native": "fine",
    "sliced-native": "sliced",
    "filterwise-horizontal": "horizontal",
    "halves": "horizontal",
    "filterwise-incremental": "incremental",
    "filterwise": "incremental",
    "channelwise-incremental": "incremental-channels",
    "weird-trick": "one-weird-trick",
    "gems": "opposed-replicas",
    "good": "coarse",
    "layers": "layerwise",
}


def _rule(rule: Callable[[Problem], Parts]) -> Divide:
    """A rule for a whole batch; where the batch is in slices, each is divided alike."""

    def divide(problem: Problem, search: Search) -> Parts:
        if problem.modelling.slices == 1:
            return rule(problem)
        return in_every_slice(problem, *rule(problem.in_slices(1)))

    return divide


def _of_slices(rule: Callable[[Problem], Parts]) -> Divide:
    return lambda problem, search: rule(problem)


def _best_of(several: Callable[[Problem], Iterator[Parts]]) -> Divide:
    """The partition within eps that sends least, or the most balanced one."""

    def divide(problem: Problem, search: Search) -> Parts:
        room = problem.capacities
        return min(several(problem), key=lambda found: rank(found[0], found[1], room))

    return divide


def _between_layers(cut: Callable[[Problem], Int64]) -> Divide:
    def divide(problem: Problem) -> Parts:
        model = problem.hypergraph(layer_blocks(problem.views))
        return model, cut(problem).astype(np.int32)[model.vertex_layers]

    return _rule(divide)


def _weird_trick(problem: Problem, search: Search) -> Parts:
    neurons = replace(problem.modelling, linear="neuron")
    return one_weird_trick(replace(problem, modelling=neurons))


def _for_each_part(problem: Problem) -> int:
    return slices_for(problem, problem.k)


def _single(problem: Problem, search: Search) -> Parts:
    model = problem.hypergraph(layer_blocks(problem.views))
    return model, np.zeros(model.vertices, dtype=np.int32)


def _solve_by(backend: str) -> Divide:
    return lambda problem, search: solve(problem, search, backend)


def hybrid_way(replicas: int) -> Way:
    """The way ``hybrid-R``."""

    def needs(problem: Problem) -> str | None:
        if problem.k % replicas == 0:
            return None
        others = [f"{HYBRID}{count}" for count in range(2, problem.k) if problem.k % count == 0]
        accepted = ", ".join((*others, "data-parallel"))
        return f"{problem.k} devices for {replicas} replicas: accepted are {accepted}"

    return Way(
        f"{HYBRID}{replicas}",
        f"{replicas} replicas on equally many devices, each divided as coarse is (DistBelief, "
        "HyPar-Flow)",
        hybrid_of(replicas),
        needs=needs,
        slices=lambda problem: slices_for(problem, replicas),
        searches=True,
    )


def spatial_way(rows: int) -> Way:
    """The way ``spatial-R``."""
    return Way(
        f"{SPATIAL}{rows}",
        f"maps of {rows} rows or more in k bands of rows, borders travel; all lower ones on one "
        "device",
        lambda problem, search: spatial_down_to(problem, rows),
        bands=bands_for,
        needs=partial(rows_as_tall, rows),
        for_any=False,
    )


def filters_way(rows: int) -> Way:
    """The way ``rows-then-filters-R``."""
    return Way(
        f"{FILTERS}{rows}",
        f"maps of {rows} rows or more in k bands of rows, layers of lower ones by their filters",
        lambda problem, search: filters_below(problem, rows),
        bands=bands_for,
        needs=partial(rows_as_tall, rows),
        for_any=False,
    )


def by_backend(backend: str, grain: str) -> Way:
    """Hypergraph partitioning; by native it is named by its grain alone."""
    chapter = {"coarse": "3.4", "fine": "3.3"}[grain]
    return Way(
        grain if backend == "native" else f"{grain}-{backend}",
        f"{grain}-grain hypergraph partition (thesis {chapter}), by {backend}",
        _solve_by(backend),
        grain=grain,
        searches=True,
    )


def _built_in() -> Iterator[Way]:
    for grain in ("coarse", "fine"):
        yield by_backend("native", grain)
    yield Way(
        "sliced",
        "coarse-grain hypergraph over slices of the batch, by native",
        solve_in_slices,
        in_slices=_solve_by("native"),
        searches=True,
    )
    yield Way(
        "layerwise",
        "the cut between layers of the smallest largest load, whatever it moves (thesis 5.1.1)",
        _between_layers(layerwise),
        needs=layers_that_compute,
        grain=None,
    )
    yield Way(
        "layerwise-uniform",
        "cuts between layers, equal numbers of them",
        _between_layers(layerwise_by_count),
        needs=layers_that_compute,
    )
    yield Way(
        "layerwise-params",
        "cuts between layers, equal parameters",
        _between_layers(layerwise_by_parameters),
        needs=layers_that_compute,
    )
    yield Way(
        "layerwise-volume",
        "the cut between layers that sends least within eps, or else filters in order",
        _rule(layer_cut),
        searches=True,
        for_any=False,
    )
    yield Way(
        "horizontal",
        "every layer's filters in k equal shares (thesis 5.1.2)",
        _rule(horizontal),
        grain=None,
    )
    yield Way(
        "incremental",
        "filters in order, a device after the other (thesis 5.1.3)",
        _rule(incremental),
    )
    yield Way(
        "incremental-channels",
        "filter channels in order, a device after the other (thesis 5.1.4)",
        _rule(incremental),
        grain="fine",
    )
    yield Way(
        "tensor-parallel",
        "dense layers in pairs, by filters and then by channels, heads between (Megatron-LM)",
        _rule(tensor_parallel),
        grain="fine",
        for_any=False,
    )
    yield Way(
        "random",
        "a device for each filter at random",
        lambda problem, search: random_parts(problem, search.seed),
        grain=None,
    )
    yield Way(
        "hybrid",
        "replicas of several devices each, the best number of them (DistBelief, HyPar-Flow)",
        best_hybrid,
        searches=True,
    )
    yield Way(
        "replicated-stages",
        "cuts between layers, each stage on one device or divided by samples (PipeDream)",
        best_stages,
        in_slices=stages_in_slices,
        searches=True,
    )
    yield Way(
        "opposed-replicas",
        "two copies cut between layers, in opposite order on the same devices (GEMS)",
        _of_slices(opposed_replicas),
        slices=lambda problem: 2,
    )
    yield Way(
        "data-parallel",
        "the model on every device, gradients all-reduced in a ring",
        _of_slices(data_parallel),
        slices=_for_each_part,
        ring=True,
    )
    yield Way(
        "parameter-server",
        "the model on every device, gradients to one of them and back (thesis 5.1.8)",
        _of_slices(data_parallel),
        slices=_for_each_part,
    )
    yield Way(
        "one-weird-trick",
        "data-parallel but for the linear layers at the end (Krizhevsky 2014)",
        _weird_trick,
        slices=_for_each_part,
        ring=True,
    )
    yield Way(
        "spatial",
        "rows of the maps in k bands, borders travel; layers that need all rows by their filters "
        "(MoDNN, DistConv)",
        _of_slices(spatial),
        bands=bands_for,
        needs=rows_to_divide,
        for_any=False,
    )
    yield Way(
        "rows-then-filters",
        "tall maps by bands of rows and low ones by filters, the best height between",
        _best_of(rows_then_filters),
        bands=bands_for,
        searches=True,
        needs=rows_to_divide,
        for_any=False,
    )
    yield Way(
        "tiled",
        "coarse-grain hypergraph over slices of the batch and bands of rows, by native",
        lambda problem, search: solve_in_tiles(problem, search, any_slices=True, any_bands=True),
        searches=True,
        needs=rows_to_divide,
        for_any=False,
    )
    yield Way(
        "spatial-data",
        "samples of the batch and bands of rows together (Gholami et al. 2018)",
        _of_slices(spatial),
        slices=slices_beside_bands,
        bands=bands_for,
        needs=rows_and_samples_to_divide,
        for_any=False,
    )
    yield Way(
        "transformed-parts",
        "part p of a transformed model on device p, all else on the first (Brakel 2024, 3.3)",
        _rule(transformed_parts),
        for_any=False,
    )
    yield Way(
        "least-time",
        "filters for the least estimated time of a step, by native",
        _solve_by("native"),
        needs=least_time_objective,
        searches=True,
        for_any=False,
    )
    yield Way(
        "least-time-sliced",
        "slices and filters for the least estimated time of a step, by native",
        _solve_by("native"),
        needs=least_time_objective,
        slices=lambda problem: min(_for_each_part(problem), problem.modelling.batch_size),
        searches=True,
        for_any=False,
    )
    yield Way("single", "the whole model and batch on one device", _single, for_any=False)


BUILT_IN: Mapping[str, Way] = {way.name: way for way in _built_in()}
BY_BACKEND: Mapping[str, Way] = {
    way.name: way
    for way in (by_backend(name, grain) for name in BACKENDS for grain in ("coarse", "fine"))
}
