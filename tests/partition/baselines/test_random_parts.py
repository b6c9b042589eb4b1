"""Parts at random: seeded, uniform, independent of each other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import chain, channel_graphs, modellings

from hgpart.hypergraph.metrics import evaluate
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.partition_files import full_parts, full_vertices
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.baselines.random_parts import random_parts
from hgpart.partition.problem.problem import Problem
from hgpart.work.figures import Work

TASKS = 6000


def drawn(k: int, seed: int) -> np.ndarray:
    graph, work = chain([TASKS], [TASKS], [1])
    model, parts = random_parts(Problem(graph, work, Modelling(), k), seed)
    return full_parts(model, parts)


@given(channel_graphs(), modellings, st.integers(1, 5), st.integers(0, 2**32))
def test_every_task_has_a_part_and_the_seed_decides_which(
    graph_and_work: tuple[ChannelGraph, Work], modelling: Modelling, k: int, seed: int
) -> None:
    graph, work = graph_and_work
    model, parts = random_parts(Problem(graph, work, modelling, k), seed)
    tasks = full_parts(model, parts)
    assert len(tasks) == modelling.slices * full_vertices(modelling.views(graph))
    assert ((tasks >= 0) & (tasks < k)).all()
    loads = evaluate(model.hypergraph, parts, k).loads
    assert loads.sum() == model.hypergraph.weights.sum()
    again, same = random_parts(Problem(graph, work, modelling, k), seed)
    assert full_parts(again, same).tolist() == tasks.tolist()


def test_another_seed_gives_other_parts() -> None:
    assert (drawn(3, 0) == drawn(3, 0)).all()
    assert (drawn(3, 0) != drawn(3, 1)).any()


def test_parts_are_equally_likely() -> None:
    for seed in range(3):
        counts = np.bincount(drawn(8, seed), minlength=8)
        expected = TASKS / 8
        assert len(counts) == 8
        assert (abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_a_task_does_not_follow_the_one_before() -> None:
    parts = drawn(4, 0)
    alike = (parts[1:] == parts[:-1]).mean()
    assert abs(alike - 1 / 4) < 5 * np.sqrt(1 / 4 * 3 / 4 / TASKS)
