"""Who has a layer in one mode has it in the other; the copy to trace it with has no weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import placements
import pytest
import torch
from hypothesis import given
from partitioned_graphs import partitioned_graphs
from torch import nn

from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.layering import channel_graph
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.objectives import LARGEST
from hgpart.placement.as_module.original_modules import skeleton
from hgpart.placement.other_forms import carried_over
from hgpart.placement.shares.ownership import ownership
from hgpart.tracing.traced_model import trace
from hgpart.work.figures import Work


@given(partitioned_graphs())
def test_the_same_graph_has_the_same_partition(case):
    graph, partition = case
    work = Work(np.arange(len(graph.layers)), "MAC", 1, "test")
    found, carried = carried_over(partition, work, graph, graph)
    np.testing.assert_array_equal(found.parts, partition.parts)
    for one, other in zip(found.model.blocks.rows, partition.model.blocks.rows, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(found.model.blocks.columns, partition.model.blocks.columns, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(found.evaluation.traffic, partition.evaluation.traffic)
    assert carried.per_task.tolist() == work.per_task.tolist()


@pytest.mark.parametrize("room", [0, 2**40])
@given(case=partitioned_graphs())
def test_what_was_asked_for_is_carried_over(case, room):
    """The other mode's said volume, and no memory limit, which then had no say in `feasible`."""
    graph, partition = case
    memory = MemoryLimits((room,) * partition.k)
    problem = replace(partition.problem, eps=1e6, objective=LARGEST, memory=memory)
    asked = replace(partition, problem=problem)
    work = Work(np.arange(len(graph.layers)), "MAC", 1, "test")
    found, _ = carried_over(asked, work, graph, graph)
    assert (found.problem.objective, found.problem.memory) == (LARGEST, memory)
    assert found.feasible == (found.memory_bytes <= room).all()


class Auxiliary(nn.Module):
    """In training it has a second head, a norm of statistics of its own, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.gain = nn.Conv2d(6, 6, 1, groups=6)
        self.aside = nn.Linear(6, 5)
        self.head = nn.Linear(6, 4)

    def forward(self, image):
        maps = self.norm(self.stem(image)).relu()
        if not self.training:
            return self.head(maps.mean((2, 3)))
        other = self.aside(self.gain(maps).mean((2, 3)))
        return self.head(nn.functional.dropout(maps.mean((2, 3)))), other


@pytest.mark.few(1)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_layers_of_one_mode_alone_are_where_their_parameters_are(grain):
    model, image = Auxiliary(), torch.zeros(2, 3, 6, 6)
    traced = trace(model.eval(), image)
    graph, other = channel_graph(traced), channel_graph(trace(model.train(), image))
    plan = placements.of_single_tasks(traced, graph, Modelling(grain=grain), 3, seed=1)
    partition, work = carried_over(plan.partition, plan.work, graph, other)
    owners, found = ownership(plan.partition), ownership(partition)
    finish = {layer.name: parts for layer, parts in zip(graph.layers, owners.finish, strict=True)}
    known = dict(zip((layer.name for layer in other.layers), found.finish, strict=True))
    assert {"gain", "aside"} <= known.keys() - finish.keys()
    for name in finish.keys() & known.keys():
        assert known[name].tolist() == finish[name].tolist(), name
    for name in ("gain", "aside"):  # part 0 has the parameters that nothing uses
        assert not known[name].any()
    for layer, cells, finishing in zip(other.layers, found.cells, found.finish, strict=True):
        if layer.name not in finish and cells is not None:  # nothing of a task is elsewhere
            for part, rectangles in enumerate(cells):
                tasks = [task for one in rectangles for task in one.tasks.tolist()]
                assert sorted(tasks) == np.flatnonzero(finishing == part).tolist()
    assert work.per_task.tolist() == [
        layer.macs if layer.name in finish else 0 for layer in other.layers
    ]


def test_a_skeleton_has_no_weights_and_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    model[2].bias.requires_grad_(False)
    model.eval()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    bare = skeleton(model)
    assert bare[2].weight is bare[0].weight
    assert not bare.training
    assert not bare[2].bias.requires_grad
    assert bare.state_dict().keys() == before.keys()
    for name, one in bare.state_dict().items():
        assert (one.shape, one.dtype) == (before[name].shape, before[name].dtype)
        assert one.is_meta == one.is_floating_point()
    for name, one in model.state_dict().items():
        assert not one.is_meta
        assert torch.equal(one, before[name])
    bare.train()
    assert not model.training


class Caching(nn.Module):
    """Keeps what it makes of a weight for later passes, with its history, as TinyViT does."""

    def __init__(self):
        super().__init__()
        self.a, self.bias, self.kept = nn.Conv2d(3, 6, 1), nn.Parameter(torch.randn(12)), {}

    def forward(self, image):
        if "bias" not in self.kept:
            self.kept["bias"] = self.bias[:6].view(1, 6, 1, 1)
        return self.a(image) + self.kept["bias"]


def test_what_a_model_has_made_of_its_weights_is_copied_without_its_history():
    """torch refuses to copy it: a model that had run once could not be placed."""
    model, images = Caching().eval(), torch.randn(2, 3, 4, 4)
    model(images)
    kept = skeleton(model).kept["bias"]
    assert kept.is_leaf
    assert torch.equal(kept, model.kept["bias"])
