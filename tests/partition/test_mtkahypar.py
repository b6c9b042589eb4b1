"""Mt-KaHyPar maps parts onto devices whose links differ."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import graph_of

from hgpart.errors import ArgumentError
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.partition import partition_graph
from hgpart.partition.backends import check_backend
from hgpart.partition.external.mtkahypar import mtkahypar, whole_costs
from hgpart.partition.problem.objectives import LARGEST, over_links
from hgpart.work.figures import flops


def nodes_of_pairs(k: int, cheap: float, dear: float) -> np.ndarray:
    """Links of devices of which 0 and k/2, 1 and k/2 + 1, ... are neighbours."""
    pair = np.arange(k) % (k // 2)
    return np.where(pair[:, None] == pair, cheap, dear) * (1 - np.eye(k))


@given(st.integers(2, 8), st.data())
def test_whole_costs_are_the_means_of_both_ways_rounded(k: int, data: st.DataObject) -> None:
    number = st.floats(0, 1000, allow_subnormal=False)
    rows = data.draw(st.lists(st.lists(number, min_size=k, max_size=k), min_size=k, max_size=k))
    links = np.array(rows) * (1 - np.eye(k))
    costs = whole_costs(links)
    means = {
        (first, second): (rows[first][second] + rows[second][first]) / 2
        for first, second in combinations(range(k), 2)
    }
    if not costs:
        assert max(means.values()) - min(means.values()) <= 1e-9 * max(means.values())
        return
    dearest = max(max(row) for row in costs)
    for (first, second), mean in means.items():
        assert costs[first][second] == costs[second][first] >= 1
        # A hundredth of the dearest, or half of it where it is not below the least cost.
        assert abs(costs[first][second] / dearest - mean / max(means.values())) <= 0.0101
    assert all(costs[device][device] == 0 for device in range(k))


@pytest.mark.parametrize("k", [2, 3])
def test_links_that_are_all_alike_are_the_volume(k: int) -> None:
    """Onto a graph of two devices Mt-KaHyPar 1.7 maps without an end."""
    assert whole_costs(3 * (1 - np.eye(k))) == []


def pairs_of_groups(size: int) -> Hypergraph:
    """Four groups, each held together by dear nets; 0 and 1, 2 and 3 are joined by cheaper ones."""
    nets = [(40, [size * group + one for one in range(size)]) for group in range(4)] * 2
    nets += [(8, [one, size + one]) for one in range(size)]
    nets += [(8, [2 * size + one, 3 * size + one]) for one in range(size)]
    nets += [(1, [one, 2 * size + one]) for one in range(size)]
    return Hypergraph(
        weights=np.ones(4 * size, dtype=np.int64),
        costs=np.array([cost for cost, _ in nets]),
        pointers=np.cumsum([0, *(len(pins) for _, pins in nets)]),
        pins=np.array([pin for _, pins in nets for pin in pins], dtype=np.int32),
        gathers=np.zeros(len(nets), dtype=np.bool_),
        net_layers=np.zeros(len(nets), dtype=np.int32),
    )


def test_what_talks_most_is_put_on_cheap_links() -> None:
    size, k = 5, 4
    links, room = nodes_of_pairs(k, 1, 10), np.full(k, size)
    parts = mtkahypar(pairs_of_groups(size), room, links=links)
    of_group = parts.reshape(4, size)
    assert (of_group == of_group[:, :1]).all()
    first, second, third, fourth = of_group[:, 0].tolist()
    assert links[first, second] == links[third, fourth] == 1
    assert mtkahypar(pairs_of_groups(size), room, links=links).tolist() == parts.tolist()


@pytest.mark.full
@pytest.mark.parametrize("speeds", [None, [1, 1, 2, 2]], ids=["equal", "unequal"])
def test_a_model_is_mapped_within_eps(speeds: list[int] | None) -> None:
    graph, k = graph_of("plain"), 4
    objective = over_links(nodes_of_pairs(k, 1, 10))
    found = partition_graph(
        graph, flops(graph), k, 0.2, backend="mtkahypar", objective=objective, speeds=speeds
    )
    assert found.feasible
    shares = np.array(speeds or [1] * k) / sum(speeds or [1] * k)
    loads = found.evaluation.loads
    assert (loads <= 1.2 * loads.sum() * shares + 1e-6).all()
    traffic = found.evaluation.traffic.tolist()
    cost = sum(
        objective.links[sender, receiver] * traffic[sender][receiver]
        for sender in range(k)
        for receiver in range(k)
    )
    assert found.objective_value == pytest.approx(cost)


def test_who_takes_link_costs() -> None:
    objective = over_links(nodes_of_pairs(4, 1, 10))
    for name in ("native", "mtkahypar"):
        check_backend(name, objective, None)
    with pytest.raises(ArgumentError, match="'kahypar' takes no link costs: native and mt"):
        check_backend("kahypar", objective, None)
    with pytest.raises(ArgumentError, match="'mtkahypar' takes no objective 'largest': native d"):
        check_backend("mtkahypar", LARGEST, None)
    with pytest.raises(ArgumentError, match="k is 66, expected at most 64 for backend 'mtkahypar'"):
        check_backend("mtkahypar", over_links(nodes_of_pairs(66, 1, 10)), None)
