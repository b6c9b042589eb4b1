"""Small models in parts, for tests of what is said of placements."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from partitioned_models import built
from torch import nn

from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.partition import Partition
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.ways.catalogue import way_named
from hgpart.partitioned_model import PartitionedModel
from hgpart.placement import Placement, place
from hgpart.tracing.traced_model import TracedModel, trace
from hgpart.work.figures import Work, flops

TRACES: dict[Hashable, TracedModel] = {}  # by all that is other in the models of these tests


class Forked(nn.Module):
    """Returns a dictionary with a tuple in it; has dropout, a norm, and a layer without use."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.drop = nn.Dropout(0.5)
        self.heads = nn.ModuleList(nn.Conv2d(6, 4, 1) for _ in range(2))
        self.idle = nn.Linear(5, 7)

    def forward(self, image: torch.Tensor) -> dict[str, object]:
        maps = self.drop(torch.relu(self.norm(self.stem(image))))
        return {"maps": maps, "heads": tuple(head(maps) for head in self.heads)}


class Twice(nn.Module):
    """A norm that is called twice: the second call finds what the first has left."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.second, self.head = nn.Conv2d(6, 6, 3), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x)).relu()
        return self.head(self.norm(self.second(x)).relu())


class Counts(nn.Module):
    """A buffer that a later part of the pass reads, and that the next pass finds changed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 3)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.scale.clone()
        x = self.first(x) * before
        x = self.second(x.relu()).tanh() + before
        self.scale += 0.5
        return x


def partition_of_kind(
    kind: str,
    graph: ChannelGraph,
    work: Work,
    k: int,
    eps: float,
    *,
    modelling: Modelling | None = None,
    seed: int = 0,
) -> Partition:
    """A partition to try a placement on: "good", "random", "horizontal" or "layers"."""
    modelling = modelling or Modelling()
    way = way_named({"good": modelling.grain, "layers": "layerwise"}.get(kind, kind))
    return way.partition(Problem(graph, work, modelling, k, eps), Search(seed, 0.1))


def model_of(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A model in float64 and a batch of two for it."""
    torch.manual_seed(1)
    if name == "forked":
        model, inputs = Forked(), (torch.zeros(2, 3, 8, 8),)
    else:
        model, inputs = copy.deepcopy(built(name)[0]), built(name)[1]
    return model.double(), tuple(torch.randn(one.shape, dtype=torch.float64) for one in inputs)


def batch_of(inputs: Sequence[torch.Tensor], samples: int) -> list[torch.Tensor]:
    """As many samples of the same shapes."""
    return [torch.randn(samples, *one.shape[1:], dtype=one.dtype) for one in inputs]


def placed(
    model: nn.Module,
    inputs: Sequence[torch.Tensor],
    kind: str = "random",
    k: int = 3,
    grain: str = "coarse",
    output_vertex: bool = True,
    parts: Sequence[int] | None = None,
    norms: str = "micro-batch",
) -> Placement:
    learned = tuple(one.requires_grad for one in model.parameters())
    key = (str(model), model.training, learned, *((one.shape, one.dtype) for one in inputs))
    if (traced := TRACES.get(key)) is None:
        traced = TRACES[key] = trace(model, inputs)
    graph = channel_graph(traced)
    modelling = Modelling(grain=grain, batch_size=4, output_vertex=output_vertex)
    partition = partition_of_kind(kind, graph, flops(graph), k, 0.1, modelling=modelling)
    split = PartitionedModel(traced, partition, partition.evaluation, {})
    return place(model, split, parts=parts, norms=norms)


class Once(torch.autograd.Function):
    """What inductor makes: it frees as it goes, so it is run backward once."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        assert not torch._C._autograd._get_current_graph_task_keep_graph()
        return gradient


def compiled_once(placement: Placement) -> None:
    """Compile the steps with something that makes such graphs."""

    def backend(module: Any, _: Any) -> Any:
        return lambda *values: tuple(map(Once.apply, module(*values)))

    placement.compile(backend=backend)
