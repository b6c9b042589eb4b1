"""The partition driver: eps as defined, the same for a seed, and clear errors where it can't be."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from builtin_graphs import full_size_graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from partitioned_models import (
    MODELS,
    GraphMaker,
    chain,
    channel_graphs,
    graph_of,
    modellings,
    read,
)

from hgpart.errors import ArgumentError, HgpartError, InfeasibleError
from hgpart.hypergraph.blocks import full_vertices, single_blocks
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.partition_files import full_parts
from hgpart.layers.channel_graph import INPUT, ChannelGraph
from hgpart.partition import Partition
from hgpart.partition import partition_graph as at_length
from hgpart.partition.backends import BACKENDS
from hgpart.partitioned_model import evaluate_layerwise
from hgpart.work.figures import Work, flops

partition_graph = partial(at_length, effort=0.1)  # quality is not the subject


def loads_by_task(graph: ChannelGraph, work: Work, found: Partition) -> list[int]:
    """Work of each part, task by task in the full hypergraph."""
    full = cnn_hypergraph(graph, work, single_blocks(graph, found.modelling), found.modelling)
    parts = full_parts(found.model, found.parts)
    loads = [0] * found.k
    for part, weight in zip(parts.tolist(), full.hypergraph.weights.tolist(), strict=True):
        loads[part] += weight
    return loads


def assert_within_eps(
    graph: ChannelGraph,
    work: Work,
    found: Partition,
    eps: float,
    speeds: list[float] | None = None,
) -> None:
    """load <= (1 + eps) x total x speed / sum of speeds, in rational numbers."""
    assert found.feasible
    loads = loads_by_task(graph, work, found)
    total = sum(
        each * layer.tasks for each, layer in zip(work.per_task.tolist(), graph.layers, strict=True)
    )
    assert sum(loads) == total
    assert found.evaluation.loads.tolist() == loads
    exact = [Fraction(str(speed)) for speed in speeds or [1] * found.k]
    for load, speed in zip(loads, exact, strict=True):
        assert load <= (1 + Fraction(str(eps))) * total * speed / sum(exact)


def eps_that_would_do(error: InfeasibleError) -> float:
    found = re.search(r"the smallest eps known to do is ([0-9.e+-]+)(;|$)", str(error))
    assert found is not None, str(error)
    return float(found[1])


# ------------------------------------------------------------------ balance


@pytest.mark.few(2)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize(
    ("name", "k", "eps"),
    [
        ("plain", 2, 0.0),
        ("plain", 3, 0.1),
        ("residual", 2, 0.03),
        ("residual", 4, 0.3),
        ("grouped", 2, 0.1),
        ("tied", 3, 0.1),
        ("depthwise", 4, 0.0),
        ("branches", 2, 0.0),
        ("branches", 3, 0.1),
    ],
)
def test_every_part_is_within_eps(name: str, k: int, eps: float, grain: str) -> None:
    graph = graph_of(name)
    work = flops(graph)
    found = partition_graph(
        graph, work, k, eps, modelling=Modelling(grain=grain), backend="kahypar"
    )
    assert_within_eps(graph, work, found, eps)
    assert found.parts.dtype == np.int32
    assert found.evaluation.imbalance <= eps
    assert (found.k, found.problem.eps, found.seed, found.backend) == (k, eps, 0, "kahypar")


@pytest.mark.few(1)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("speeds", [[1, 1, 2], [0.1, 0.2, 0.4]])
def test_every_part_is_within_its_share_of_the_speeds(speeds: list[float], grain: str) -> None:
    graph = graph_of("residual")
    work = flops(graph)
    found = partition_graph(graph, work, 3, 0.1, modelling=Modelling(grain=grain), speeds=speeds)
    assert_within_eps(graph, work, found, 0.1, speeds)
    assert found.problem.speeds == tuple(speeds)


def test_mtkahypar_keeps_the_same_contract() -> None:
    graph = graph_of("residual")
    found = partition_graph(graph, flops(graph), 2, 0.05, backend="mtkahypar")
    assert_within_eps(graph, flops(graph), found, 0.05)
    assert found.backend == "mtkahypar"


def test_eps_0_is_met_where_single_tasks_allow_it() -> None:
    """Filters divide by k in every layer, but the layers' works divide by nothing in common."""
    graph, work = chain([24, 24, 24], [24 * 7, 24 * 11, 24 * 13], [5, 3, 1])
    for k in (2, 3, 4, 8):
        found = partition_graph(graph, work, k, 0)
        assert_within_eps(graph, work, found, 0)
        assert found.evaluation.imbalance == 0


def test_blocks_are_split_until_eps_is_met() -> None:
    """There are powers of two of blocks, so that three parts need single filters."""
    graph, work = chain([768, 768, 768], [768 * 7, 768 * 11, 768 * 13], [1, 1, 1])
    found = partition_graph(graph, work, 3, 0, backend="kahypar")
    assert_within_eps(graph, work, found, 0)
    assert max(len(rows) - 1 for rows in found.model.blocks.rows) > 64


def test_heaviest_first_is_tried_where_single_moves_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """From all in one part, filters of 4 and 8 do not get to 4 + 8 in each of three parts."""
    monkeypatch.setitem(BACKENDS, "lumped", lumped)
    graph, work = chain([3, 3], [3 * 4, 3 * 8], [1, 1])
    found = partition_graph(graph, work, 3, 0.1, backend="lumped")
    assert found.evaluation.loads.tolist() == [12, 12, 12]


def lumped(
    hypergraph: Hypergraph,
    capacities: np.ndarray,
    *,
    seed: int = 0,
    time_limit: float | None = None,
) -> np.ndarray:
    return np.zeros(hypergraph.vertices, dtype=np.int32)


def test_one_part_holds_everything() -> None:
    graph = graph_of("residual")
    found = partition_graph(graph, flops(graph), 1, 0)
    assert set(found.parts.tolist()) == {0}
    assert found.evaluation.volume == 0


def test_as_many_parts_as_tasks() -> None:
    graph, work = chain([3, 2], [3, 2], [1, 1])
    modelling = Modelling(input_vertex=False, output_vertex=False)
    found = partition_graph(graph, work, 5, 0, modelling=modelling)
    assert sorted(full_parts(found.model, found.parts)) == [0, 1, 2, 3, 4]


@pytest.mark.few(2)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("more", [0.001, 1])
@pytest.mark.parametrize("name", MODELS)
def test_no_cut_between_layers_within_eps_is_better(name: str, more: float, grain: str) -> None:
    """A partitioner alone is worse at times, the more the larger eps is."""
    graph = graph_of(name)
    work = flops(graph)
    modelling = Modelling(grain=grain)
    eps = evaluate_layerwise(graph, work, modelling, 3).imbalance + more
    cut = evaluate_layerwise(graph, work, modelling, 3, eps=eps)
    assert cut.imbalance <= eps
    found = partition_graph(graph, work, 3, eps, modelling=modelling, backend="kahypar")
    assert found.evaluation.volume <= cut.volume
    assert found.start in ("kahypar", "layerwise")


def test_the_same_seed_gives_the_same_partition() -> None:
    graph = graph_of("residual")
    runs = [partition_graph(graph, flops(graph), 3, 0.1, seed=seed) for seed in (5, 5)]
    assert runs[0].parts.tolist() == runs[1].parts.tolist()
    for one, other in zip(runs[0].model.blocks.rows, runs[1].model.blocks.rows, strict=True):
        assert one.tolist() == other.tolist()


def test_the_evaluation_is_that_of_the_full_hypergraph() -> None:
    graph = graph_of("grouped")
    for grain in ("coarse", "fine"):
        modelling = Modelling(grain=grain, batch_size=3)
        found = partition_graph(graph, flops(graph), 2, 0.1, modelling=modelling)
        full = cnn_hypergraph(graph, flops(graph), single_blocks(graph, modelling), modelling)
        parts = full_parts(found.model, found.parts)
        nets = full.hypergraph
        volume = sum(
            int(nets.costs[net]) * (len({int(parts[pin]) for pin in nets.pins[start:end]}) - 1)
            for net, (start, end) in enumerate(
                zip(nets.pointers[:-1].tolist(), nets.pointers[1:].tolist(), strict=True)
            )
        )
        assert found.evaluation.volume == volume


def scrambled(
    hypergraph: Hypergraph,
    capacities: np.ndarray,
    *,
    seed: int = 0,
    time_limit: float | None = None,
) -> np.ndarray:
    """As bad as a backend may be, and quick."""
    random = np.random.default_rng(seed)
    return random.integers(0, len(capacities), hypergraph.vertices).astype(np.int32)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    channel_graphs(max_layers=6, max_tasks=8),
    modellings,
    st.integers(1, 6),
    st.sampled_from([0, 0.01, 0.1, 1]),
    st.one_of(st.none(), st.lists(st.sampled_from([0.3, 1, 2]), min_size=6, max_size=6)),
    st.integers(0, 9),
)
def test_any_graph_is_within_eps_whatever_the_backend_returns_or_it_is_said_why_not(
    monkeypatch: pytest.MonkeyPatch,
    graph_and_work: tuple[ChannelGraph, Work],
    modelling: Modelling,
    k: int,
    eps: float,
    speeds: list[float] | None,
    seed: int,
) -> None:
    graph, work = graph_and_work
    k = max(1, min(k, full_vertices(modelling.views(graph))))
    speeds = speeds and speeds[:k]
    monkeypatch.setitem(BACKENDS, "scrambled", scrambled)
    options: dict[str, Any] = {"modelling": modelling, "backend": "scrambled", "seed": seed}
    try:
        found = partition_graph(graph, work, k, eps, speeds=speeds, **options)
        assert_within_eps(graph, work, found, eps, speeds)
    except InfeasibleError as error:
        assert "\n" not in str(error)
        assert any(f" {layer.name}, is " in str(error) for layer in graph.layers)
        assert eps_that_would_do(error) > eps
        best = partition_graph(graph, work, k, eps, speeds=speeds, best_effort=True, **options)
        assert not best.feasible
        assert best.evaluation.imbalance > eps
        assert loads_by_task(graph, work, best) == best.evaluation.loads.tolist()


# ------------------------------------------------------------------ what can't be met


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "k", "grain", "heaviest"),
    [
        ("single", 3, "coarse", "a filter of 0"),
        ("single", 7, "coarse", "a filter of 0"),
        ("heavy", 2, "coarse", "all of normed"),
        ("heavy", 3, "fine", "all of normed"),
        ("residual", 20, "coarse", "a filter of body.0"),
        ("tied", 7, "coarse", "a filter of shared"),
        ("grouped", 19, "coarse", "a filter of 0"),
        ("grouped", 7, "fine", "a filter channel of 0"),
        ("plain", 31, "coarse", "a filter of 3"),
    ],
)
def test_an_eps_that_cannot_be_met_names_one_that_can(
    name: str, k: int, grain: str, heaviest: str
) -> None:
    graph, modelling = graph_of(name), Modelling(grain=grain)
    work = flops(graph)
    with pytest.raises(
        InfeasibleError, match=re.escape(f"the heaviest task, {heaviest}, is")
    ) as raised:
        partition_graph(graph, work, k, 0.0001, modelling=modelling, effort=0.1)
    assert "\n" not in str(raised.value)
    enough = eps_that_would_do(raised.value)
    found = partition_graph(graph, work, k, enough, modelling=modelling, effort=0.1)
    assert_within_eps(graph, work, found, enough)


def test_an_eps_that_cannot_be_met_on_unequal_devices_names_one_that_can() -> None:
    graph, speeds = graph_of("single"), [1, 1, 3]
    work = flops(graph)
    with pytest.raises(InfeasibleError) as raised:
        partition_graph(graph, work, 3, 0, speeds=speeds)
    enough = eps_that_would_do(raised.value)
    found = partition_graph(graph, work, 3, enough, speeds=speeds)
    assert_within_eps(graph, work, found, enough, speeds)


def test_best_effort_returns_the_best_and_marks_it() -> None:
    """One task is 73 % of all work: no part of two can have less, and the other has the rest."""
    graph = graph_of("heavy")
    work = flops(graph)
    found = partition_graph(graph, work, 2, 0.1, best_effort=True)
    assert not found.feasible
    assert found.evaluation.max_load == work.per_task.max()
    assert found.problem.eps == 0.1
    assert partition_graph(graph, work, 2, 0.5, best_effort=True).feasible


def test_a_task_that_fine_grain_splits_is_no_obstacle() -> None:
    """The second convolution has one filter, three quarters of all work here."""
    graph = graph_of("single")
    work = Work(np.array([0, 54, 972, 0]), "MAC", 1, "test")
    with pytest.raises(InfeasibleError, match=r"all of 2, is 75 % of all work"):
        partition_graph(graph, work, 4, 0.05)
    fine = Modelling(grain="fine")
    assert_within_eps(graph, work, partition_graph(graph, work, 4, 0.05, modelling=fine), 0.05)


def test_what_a_task_can_not_share_among_its_channels_is_its_reductions() -> None:
    """Five units of work over three channels: 1 + 1 + 1, and 2 are left."""
    graph, work = chain([1], [5], [1])
    fine = Modelling(grain="fine")
    message = "a filter channel of layer1, is 40 % of all work"
    with pytest.raises(InfeasibleError, match=re.escape(message)):
        partition_graph(graph, work, 4, 0, modelling=fine)
    found = partition_graph(graph, work, 4, 0.6, modelling=fine)
    assert found.evaluation.max_load == 2


def test_the_work_of_tied_layers_adds_up_in_the_heaviest_task() -> None:
    maker = GraphMaker()
    image = maker.add(INPUT, 1, channels=2)
    one = maker.add("dense", 2, (read(image),))
    two = maker.add("dense", 2, (read(one),), tied_to=1)
    maker.add("dense", 4, (read(two),))
    work = Work(np.array([0, 30, 30, 45]), "MAC", 1, "test")
    # 60 + 60 + 4 x 45 in three parts of 100: 60 + 45 is too much at 4 %, and fits at 5 %.
    with pytest.raises(InfeasibleError, match=r"a filter of layer1, is 20 % of all work"):
        partition_graph(maker.graph(), work, 3, 0.04)
    assert partition_graph(maker.graph(), work, 3, 0.05).feasible


# ------------------------------------------------------------------ unusual models


def test_no_work_at_all() -> None:
    graph = graph_of("pooling")
    found = partition_graph(graph, flops(graph), 2, 0)
    assert found.feasible
    assert found.evaluation.loads.tolist() == [0, 0]
    assert found.evaluation.imbalance == 0
    assert found.evaluation.volume == 0


def test_two_towers_are_parted_for_nothing() -> None:
    graph = graph_of("branches")
    modelling = Modelling(output_vertex=False)
    found = partition_graph(graph, flops(graph), 2, 0, modelling=modelling)
    assert found.evaluation.volume == 0


def test_depthwise_layers_are_parted_for_the_input_only() -> None:
    """Filter j reads map j: what travels is the input, once to each other part."""
    graph = graph_of("depthwise")
    modelling = Modelling(output_vertex=False, batch_size=1)
    found = partition_graph(graph, flops(graph), 4, 0, modelling=modelling)
    assert found.evaluation.volume == 3 * 8 * 8 * 8 * 4


@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_without_vertices_for_input_and_output(grain: str) -> None:
    graph = graph_of("plain")
    modelling = Modelling(grain=grain, input_vertex=False, output_vertex=False)
    found = partition_graph(graph, flops(graph), 2, 0.05, modelling=modelling)
    assert_within_eps(graph, flops(graph), found, 0.05)
    assert set(found.model.vertex_layers.tolist()) == {1, 2, 3}


@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_a_linear_layer_as_one_vertex(grain: str) -> None:
    graph = graph_of("plain")
    modelling = Modelling(grain=grain, linear="layer")
    found = partition_graph(graph, flops(graph), 2, 0.1, modelling=modelling)
    assert_within_eps(graph, flops(graph), found, 0.1)
    assert (found.model.vertex_layers == 3).sum() == 1


def test_layers_without_work_go_where_their_maps_are() -> None:
    """The middle layer weighs nothing, so that no balance keeps it from its readers."""
    graph, work = chain([8, 8, 8], [800, 0, 800], [1, 1, 1])
    found = partition_graph(graph, work, 2, 0, modelling=Modelling(batch_size=1))
    assert_within_eps(graph, work, found, 0)


def test_work_of_an_input_that_is_no_vertex_does_not_count() -> None:
    graph, _ = chain([4], [4], [1])
    work = Work(np.array([100, 1, 0]), "MAC", 1, "test")
    found = partition_graph(graph, work, 2, 0, modelling=Modelling(input_vertex=False))
    assert found.evaluation.loads.tolist() == [2, 2]


def test_work_near_64_bits() -> None:
    graph, _ = chain([4, 4], [4, 4], [1, 1])
    work = Work(np.array([0, 2**60, 2**60 - 1, 0]), "MAC", 1, "test")
    found = partition_graph(graph, work, 4, 0)
    assert found.evaluation.loads.tolist() == [2**61 - 1] * 4


# ------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"k": 0}, "k is 0, expected"),
        ({"k": -1}, "k is -1, expected"),
        ({"k": 2.5}, "k is 2.5, expected"),
        ({"k": True}, "k is True, expected"),
        ({"k": math.nan}, "k is nan, expected"),
        ({"k": "2"}, "k is 2, expected"),
        ({"k": 51}, "k is 51, expected at most 50, the number of tasks"),
        ({"eps": -0.1}, "eps is -0.1, expected"),
        ({"eps": math.nan}, "eps is nan, expected"),
        ({"eps": math.inf}, "eps is inf, expected"),
        ({"eps": True}, "eps is True, expected"),
        ({"eps": "0.1"}, "eps is 0.1, expected"),
        ({"speeds": [1]}, "1 speeds for k=2, expected"),
        ({"speeds": [1, 1, 1]}, "3 speeds for k=2, expected"),
        ({"speeds": [1, 0]}, "speed is 0, expected"),
        ({"speeds": [1, -1]}, "speed is -1, expected"),
        ({"speeds": [1, math.nan]}, "speed is nan, expected"),
        ({"speeds": [1, math.inf]}, "speed is inf, expected"),
        ({"speeds": [1, 1e300]}, r"speed is 1e\+300, expected"),
        ({"speeds": [1, "1"]}, "speed is 1, expected"),
        ({"speeds": [1, True]}, "speed is True, expected"),
        ({"seed": -1}, "seed is -1, expected"),
        ({"seed": 1.5}, "seed is 1.5, expected"),
        ({"seed": 2**63}, "seed is 9223372036854775808, expected"),
        ({"backend": "patoh"}, "backend .patoh.: accepted are"),
        ({"time_limit": 0}, "time limit is 0 s, expected"),
        ({"time_limit": math.nan}, "time limit is nan s, expected"),
        ({"effort": math.inf}, "effort is inf, expected"),
        ({"effort": -1}, "effort is -1, expected"),
    ],
    ids=str,
)
def test_an_argument_out_of_range_is_one_clear_line(arguments: dict[str, Any], words: str) -> None:
    graph = graph_of("plain")
    with pytest.raises(ArgumentError, match=f"^{words}") as raised:
        partition_graph(graph, flops(graph), **{"k": 2, "eps": 0.1, **arguments})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "per_task", [[1, 1], [0, 1, -1, 1, 0], [0, 2**62, 2**62, 1, 0]], ids=["few", "minus", "large"]
)
def test_work_that_is_not_the_graphs_is_refused(per_task: list[int]) -> None:
    graph = graph_of("plain")
    work = Work(np.array(per_task, dtype=np.int64), "MAC", 1, "test")
    with pytest.raises(ArgumentError, match=r"^work of"):
        partition_graph(graph, work, 2, 0.1)


def test_numbers_of_numpy_are_numbers() -> None:
    graph = graph_of("plain")
    found = partition_graph(
        graph, flops(graph), np.int64(2), np.float64(0.1), seed=np.int32(3), speeds=np.ones(2)
    )
    for value, kind in ((found.k, int), (found.problem.eps, float), (found.seed, int)):
        assert type(value) is kind
    assert found.problem.speeds == (1.0, 1.0)


def test_a_very_large_eps_puts_all_together() -> None:
    graph = graph_of("plain")
    for eps in (1.0, 1e300):
        assert partition_graph(graph, flops(graph), 2, eps).evaluation.volume == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MODELS)
def test_every_argument_that_is_accepted_ends_in_a_partition_or_an_error_of_hgpart(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BACKENDS, "scrambled", scrambled)
    graph = graph_of(name)
    for k, eps, grain in product((1, 2, 5, 40), (0, 0.1, 3), ("coarse", "fine")):
        try:
            modelling = Modelling(grain=grain)
            found = partition_graph(
                graph, flops(graph), k, eps, modelling=modelling, backend="scrambled"
            )
        except HgpartError as error:
            assert "\n" not in str(error)
        else:
            assert_within_eps(graph, flops(graph), found, eps)


# ------------------------------------------------------------------ quality


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    ("grain", "k", "most"),
    [
        ("coarse", 8, 160.7),
        *(
            pytest.param(*each, marks=pytest.mark.full)
            for each in [("coarse", 2, 24.5), ("coarse", 16, 393), ("fine", 4, 64)]
        ),
    ],
)
def test_vgg16_is_as_good_as_promised(grain: str, k: int, most: float) -> None:
    """In 2^20 elements at batch 32, as the thesis prints them."""
    graph = full_size_graph("vgg16")
    modelling = Modelling(grain=grain, batch_size=32, bytes_per_element=1)
    found = at_length(graph, flops(graph), k, 0.1, modelling=modelling)
    assert found.feasible
    assert found.evaluation.imbalance <= 0.1
    assert found.evaluation.volume / 2**20 <= most
