"""Name -> Strategy: every way of splitting a model, as a partition of its tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec

import numpy as np

from hgpart.arrays import Int64
from hgpart.compare.outcomes import Strategy, Task
from hgpart.compare.sliced import SLICED
from hgpart.errors import ArgumentError, not_one_of
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.backends import BACKENDS
from hgpart.partition.baselines.horizontal import horizontal
from hgpart.partition.baselines.incremental import incremental
from hgpart.partition.baselines.known_ways import Way
from hgpart.partition.baselines.layerwise import (
    layerwise,
    layerwise_by_count,
    layerwise_by_parameters,
)
from hgpart.partition.baselines.random_parts import random_parts
from hgpart.partition.baselines.transformed_parts import transformed_parts
from hgpart.partition.partition import Partition, evaluated, uninterrupted
from hgpart.partition.problem.checks import check_request, check_search
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.stages import solve
from hgpart.work.figures import Work


def _by_layers(cut: Callable[[Problem], Int64]) -> Callable[[Task], Way]:
    def divide(task: Task) -> Way:
        busy = sum(
            layer.tasks > 0 and each > 0
            for layer, each in zip(task.graph.layers, task.work.per_task, strict=True)
        )
        if task.k > busy:
            raise ArgumentError(f"{task.k} devices, but only {busy} layers that compute")
        problem = task.problem("coarse")
        model = problem.hypergraph(layer_blocks(problem.views))
        parts = cut(problem).astype(np.int32)[model.vertex_layers]
        return model, parts

    return divide


def _by_rule(rule: Callable[[Problem], Way], grain: str) -> Callable[[Task], Way]:
    return lambda task: rule(task.problem(grain))


def _random(task: Task) -> Way:
    return random_parts(task.problem("coarse"), task.seed)


def _by_backend(backend: str, grain: str) -> Callable[[Task], Way]:
    def divide(task: Task) -> Way:
        found = uninterrupted(solve(task.problem(grain), Search(task.seed), backend))
        return found.model, found.parts

    return divide


# ------------------------------------------------------------------ the list


def strategies() -> Mapping[str, Strategy]:
    """Strategies of any model by name; hypergraph partitioning with every backend installed."""
    installed = [one for one in BACKENDS if one == "native" or find_spec(one) is not None]
    found = _by_backends(installed)
    found += [
        Strategy(
            "layerwise",
            "the cut between layers of the smallest largest load, whatever it moves (thesis 5.1.1)",
            False,
            _by_layers(layerwise),
        ),
        Strategy(
            "layerwise-uniform",
            "cuts between layers, equal numbers of them",
            False,
            _by_layers(layerwise_by_count),
        ),
        Strategy(
            "layerwise-params",
            "cuts between layers, equal parameters",
            False,
            _by_layers(layerwise_by_parameters),
        ),
        Strategy(
            "filterwise-horizontal",
            "every layer's filters in k equal shares (thesis 5.1.2)",
            False,
            _by_rule(horizontal, "coarse"),
        ),
        Strategy(
            "filterwise-incremental",
            "filters in order, a device after the other (thesis 5.1.3)",
            False,
            _by_rule(incremental, "coarse"),
        ),
        Strategy(
            "channelwise-incremental",
            "filter channels in order, a device after the other (thesis 5.1.4)",
            False,
            _by_rule(incremental, "fine"),
        ),
        Strategy("random", "a device for each filter at random", False, _random),
        *SLICED,
    ]
    return {strategy.name: strategy for strategy in found}


def _by_backends(backends: Iterable[str]) -> list[Strategy]:
    """Without the exact one, which takes its whole time limit on most models."""
    return [
        Strategy(
            f"{grain}-{backend}",
            f"{grain}-grain hypergraph (thesis {chapter}) by {backend}",
            True,
            _by_backend(backend, grain),
        )
        for backend in backends
        if backend != "exact"
        for grain, chapter in (("coarse", "3.4"), ("fine", "3.3"))
    ]


def strategies_by_name() -> Mapping[str, Strategy]:
    """All strategies, used where they are named: also those of some models alone, and of backends.

    A backend that is not installed says so.
    """
    of_some = Strategy(
        "transformed-parts",
        "part p of a transformed model on device p, all else on the first (Brakel 2024, 3.3)",
        False,
        _by_rule(transformed_parts, "coarse"),
    )
    named = {one.name: one for one in _by_backends(BACKENDS)}
    return {**named, **strategies(), of_some.name: of_some}


def strategy_named(name: str) -> Strategy:
    """The strategy of a name.

    Raises
    ------
    ArgumentError
        If there is none; says which are near.
    """
    known = strategies_by_name()
    if name not in known:
        begin = [one for one in known if one.startswith(name)]
        if begin:
            raise ArgumentError(f"strategy {name!r}: did you mean {' or '.join(begin)}?")
        raise not_one_of("strategy", name, known)
    return known[name]


def partition_by(
    strategy: str,
    graph: ChannelGraph,
    work: Work,
    k: int,
    eps: float = 0.1,
    *,
    modelling: Modelling | None = None,
    seed: int = 0,
) -> Partition:
    """Divide by a strategy of `hgpart compare`, as `hgpart partition --strategy` does.

    Parameters
    ----------
    strategy : str
        As in ``hgpart compare MODEL --strategies``: ``layerwise`` cuts between layers.
    graph, work, k, eps, modelling, seed
        As in `partition_graph`; grain and slices are the strategy's. Few strategies go by eps:
        the partition says whether it is within it.

    Raises
    ------
    ArgumentError, InfeasibleError
        If there is no such strategy, or it can't be used; says why.

    >>> import hgpart
    >>> model, shape = hgpart.load_model("lenet5", device="meta")
    >>> graph = hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))
    >>> found = hgpart.partition_by("layerwise", graph, hgpart.flops(graph), k=2)
    >>> found.feasible, round(found.evaluation.imbalance, 2)
    (False, 0.44)
    """
    check_request(k, eps)
    check_search(seed)
    task = Task(graph, work, modelling or Modelling(), k, eps, seed)
    model, parts = strategy_named(strategy).divide(task)
    problem = Problem(graph, work, model.modelling, k, eps)
    return evaluated(problem, model, parts, seed=seed, backend=strategy, start=strategy)
