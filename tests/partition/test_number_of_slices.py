"""What slices save at least, by the known ways, is what a search then finds or betters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from partitioned_models import graph_of

from hgpart.errors import ArgumentError, InfeasibleError
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import Mixing
from hgpart.partition import Partition, partition_graph, stages
from hgpart.partition.number_of_slices import known_in_slices, promising
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.work.figures import flops


@pytest.mark.full
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("name", ["plain", "residual", "tied"])
def test_any_number_of_slices_sends_at_most_what_is_known(name: str, k: int) -> None:
    graph, modelling = graph_of(name), Modelling(batch_size=64)
    known = known_in_slices(Problem(graph, flops(graph), modelling, k, 0.1))
    assert known is not None
    options = {"modelling": modelling, "slices": "auto", "effort": 0.1}
    found = partition_graph(graph, flops(graph), k, 0.1, **options)  # type: ignore[arg-type]
    assert found.feasible
    assert found.evaluation.volume <= known.volume


def test_a_task_too_heavy_for_a_device_is_divided_by_slices() -> None:
    graph = graph_of("heavy")
    work, modelling = flops(graph), Modelling(batch_size=4)
    with pytest.raises(InfeasibleError):
        partition_graph(graph, work, 2, 0.1, modelling=modelling, effort=0)
    found = partition_graph(graph, work, 2, 0.1, modelling=modelling, slices="auto", effort=0)
    assert found.feasible
    assert found.modelling.slices > 1
    with pytest.raises(InfeasibleError, match="the heaviest task"):
        partition_graph(
            graph, work, 2, 0.1, modelling=Modelling(batch_size=1), slices="auto", effort=0
        )


def test_a_model_that_mixes_samples_has_one_slice() -> None:
    """Its slices would each be computed as if they were the batch."""
    modelling = Modelling(batch_size=64)
    graph = replace(graph_of("plain"), mixing=Mixing("cumsum mixes samples of the batch"))
    problem = Problem(graph, flops(graph), modelling, 2, 0.1)
    assert known_in_slices(problem) is None
    assert promising(problem, Search(0, 0.1)) == 1
    found = partition_graph(
        graph, flops(graph), 2, 0.1, modelling=modelling, slices="auto", effort=0.1
    )
    assert found.modelling.slices == 1
    message = "2 slices of the batch: cumsum mixes samples of the batch: accepted is 1"
    with pytest.raises(ArgumentError, match=message):
        partition_graph(graph, flops(graph), 2, 0.1, modelling=modelling, slices=2)


def test_a_norm_of_slices_has_statistics_of_the_batch_in_evaluation() -> None:
    graph = replace(graph_of("plain"), mixing=Mixing(norm="norm takes its statistics of the batch"))
    for norms in ("slice", "batch"):
        problem = Problem(graph, flops(graph), Modelling(norms=norms), 2, 0.1)
        assert problem.divides_batch == (norms == "batch")


def test_a_search_that_is_interrupted_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ended the search for one number of slices, and that for the next began."""
    graph, modelling = graph_of("plain"), Modelling(batch_size=64)
    asked = []

    def interrupted(problem: Problem, *arguments: Any) -> Partition:
        asked.append(problem.modelling.slices)
        return replace(solve(problem, *arguments), interrupted=True)

    solve = stages.solve
    monkeypatch.setattr(stages, "solve", interrupted)
    options = {"modelling": modelling, "slices": "auto", "effort": 0}
    found = partition_graph(graph, flops(graph), 2, 0.1, **options)  # type: ignore[arg-type]
    assert found.interrupted
    assert len(asked) == 1


@pytest.mark.parametrize(
    "modelling", [Modelling(batch_size=1), Modelling(training=False)], ids=["batch", "inference"]
)
def test_nothing_is_known_where_nothing_is_trained_or_divided(modelling: Modelling) -> None:
    graph = graph_of("plain")
    problem = Problem(graph, flops(graph), modelling, 2, 0.1)
    assert known_in_slices(problem) is None
    assert known_in_slices(replace(problem, modelling=Modelling(), k=1)) is None


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "k", "least", "most"), [("tied", 2, 2, 2), ("plain", 3, 8, 32)])
def test_the_number_that_promises_most_is_the_fewest_that_are_as_good(
    name: str, k: int, least: int, most: int
) -> None:
    """Halves of the batch are as good as any, or leave thirds of the work to no one."""
    graph = graph_of(name)
    problem = Problem(graph, flops(graph), Modelling(batch_size=32), k, 0.1)
    assert least <= promising(problem, Search(effort=0.3)) <= most
