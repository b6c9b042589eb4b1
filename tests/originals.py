"""What a model makes of a batch, and how far from that is what its parts make of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hgpart import PartitionedModel, Placement
from hgpart.execution.records.totals import Traffic
from hgpart.hypergraph.metrics import evaluate
from hgpart.layers.channel_graph import INPUT
from hgpart.placement.cutting.slices import Slice
from hgpart.run.placed_model import held_by_parts
from hgpart.run.reference import accumulated

SEED = 5  # of the random masks
FLOOR = 1e-3  # what is smaller than this share of the largest tensor is measured by that share


class Differences(NamedTuple):
    """The largest relative difference of each kind, and how many parameter elements were seen."""

    outputs: float
    gradients: float
    buffers: float
    held: int


class Tensors:
    """Tensors by name, to compare others with."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = {name: one.detach() for name, one in tensors.items()}
        sizes = {
            name: _size(one)
            for name, one in self.tensors.items()
            if one.is_floating_point() and one.numel()
        }
        floor = max(FLOOR * max(sizes.values(), default=0.0), 1e-300)
        self._sizes = {name: max(size, floor) for name, size in sizes.items()}

    def largest_difference(self, found: Iterable[tuple[str, Slice | None, Tensor | None]]) -> float:
        """Of tensors or slices of them (None is zero), relative to the whole tensor's size."""
        worst = 0.0
        for name, held, tensor in found:
            wanted = self.tensors[name]
            wanted = wanted if held is None else held.take(wanted)
            given = torch.zeros_like(wanted) if tensor is None else tensor.detach()
            if wanted.shape != given.shape or wanted.dtype != given.dtype:
                return math.inf
            if torch.equal(wanted, given):
                continue
            if not wanted.is_floating_point():
                return math.inf
            gap = _size(wanted - given) / self._sizes[name]
            worst = math.inf if math.isnan(gap) else max(worst, gap)
        return worst


@dataclass(frozen=True, eq=False)
class Original:
    """A model as it is before a batch, and what becomes of that batch, forward and backward.

    `heads` is the gradient that each result has, `buffers` the running statistics afterwards.
    """

    model: nn.Module
    inputs: Sequence[Tensor]
    results: Tensors
    heads: Sequence[Tensor]
    gradients: Tensors
    buffers: Tensors

    def run(self, placed: Placement) -> Differences:
        """Let a placement in this process do the same."""
        torch.manual_seed(SEED)
        results = placed(*self.inputs)
        self.loss(results).backward()
        return self.differences(results, placed)

    def loss(self, results: Tensor | Sequence[Tensor]) -> Tensor:
        """A number whose gradient with respect to the results is `heads`."""
        return _loss(_named(results), self.heads)

    def mean_loss(self, results: Tensor | Sequence[Tensor], samples: Tensor) -> Tensor:
        """The same of a micro-batch, as a mean: by its share of the samples, all are the sum."""
        heads = [head[samples] for head in self.heads]
        return _loss(_named(results), heads) * (len(self.inputs[0]) / len(samples))

    def differences(
        self, results: Tensor | Sequence[Tensor] | None, placed: Placement
    ) -> Differences:
        """Compare the results, where they are, and what the parts that are here hold."""
        found = {} if results is None else _named(results)
        assert results is None or found.keys() == self.results.tensors.keys()
        held = [(one.name, one, tensor) for _, one, tensor in held_by_parts(placed)]
        learned = [each for each in held if each[0] in self.gradients.tensors]
        changed = [each for each in held if each[0] in self.buffers.tensors]
        return Differences(
            self.results.largest_difference((name, None, one) for name, one in found.items()),
            self.gradients.largest_difference((name, at, one.grad) for name, at, one in learned),
            self.buffers.largest_difference(changed),
            sum(tensor.numel() for *_, tensor in learned),
        )

    @property
    def elements(self) -> int:
        """Number of the parameters' elements."""
        return sum(one.numel() for one in self.gradients.tensors.values())


def original(model: nn.Module, inputs: Sequence[Tensor]) -> Original:
    """Run a model once; its state is put back."""
    before = [one.clone() for one in model.buffers()]
    torch.manual_seed(SEED)
    results = _named(model(*inputs))
    heads = [torch.randn_like(one) for one in results.values()]
    torch.autograd.backward([*results.values()], heads)
    return _taken(model, inputs, before, results, heads)


def _taken(
    model: nn.Module,
    inputs: Sequence[Tensor],
    before: Sequence[Tensor],
    results: Mapping[str, Tensor],
    heads: Sequence[Tensor],
) -> Original:
    """With what the pass left in the model, which is put back."""
    gradients = {
        name: torch.zeros_like(one) if one.grad is None else one.grad
        for name, one in model.named_parameters()
    }
    buffers = {name: one.clone() for name, one in model.named_buffers()}
    for one, value in zip(model.buffers(), before, strict=True):
        one.copy_(value)
    model.zero_grad()
    return Original(model, inputs, Tensors(results), heads, Tensors(gradients), Tensors(buffers))


def original_in_micro_batches(
    model: nn.Module, inputs: Sequence[Tensor], sizes: Sequence[int]
) -> Original:
    """The same one micro-batch after the other; results are those of all samples."""
    before = [one.clone() for one in model.buffers()]
    results: list[Tensor | Sequence[Tensor]] = []
    heads: list[list[Tensor]] = []

    def loss(made: Tensor | Sequence[Tensor], samples: Tensor) -> Tensor:
        results.append(made)
        heads.append([torch.randn_like(one) for one in _named(made).values()])
        return _loss(_named(made), heads[-1]) * (sum(sizes) / len(samples))

    torch.manual_seed(SEED)
    accumulated(model, inputs, torch.arange(sum(sizes)), loss, sizes)
    return _taken(model, inputs, before, _named(joined(results)), joined(heads))


def joined(results: Sequence[Tensor | Sequence[Tensor]]) -> list[Tensor]:
    """Results of micro-batches, put together to those of the batch."""
    each = zip(*(_named(one).values() for one in results), strict=True)
    return [torch.cat(pieces).detach() for pieces in each]


def expected_traffic(plan: PartitionedModel) -> Traffic:
    """What the partition's hypergraph says, for a batch of the size that it was made for.

    Backward all comes back but what comes from the inputs.
    """
    parts, k = plan.partition.parts, plan.partition.k
    hypergraph = plan.partition.model.hypergraph
    inputs = [at for at, layer in enumerate(plan.graph.layers) if layer.kind == INPUT]
    learned = ~np.isin(hypergraph.net_layers, inputs)
    there = evaluate(hypergraph, parts, k)
    back = evaluate(replace(hypergraph, costs=hypergraph.costs * learned), parts, k)
    nothing = np.zeros_like(there.traffic)
    return Traffic(there.traffic, there.messages, back.traffic.T, back.messages.T, nothing)


def wrong_figures(found: Traffic, expected: Traffic) -> list[str]:
    """Names of the figures that differ."""
    names = [field.name for field in fields(Traffic)]
    return [name for name in names if (getattr(found, name) != getattr(expected, name)).any()]


def _size(tensor: Tensor) -> float:
    """Its largest element by magnitude, without a copy; not a number if one of them is not."""
    low, high = torch.aminmax(tensor)
    return max(-float(low), float(high))


def _loss(results: Mapping[str, Tensor], heads: Sequence[Tensor]) -> Tensor:
    pairs = zip(results.values(), heads, strict=True)
    return torch.stack([(one * head).sum() for one, head in pairs]).sum()


def _named(results: Tensor | Sequence[Tensor]) -> dict[str, Tensor]:
    several = [results] if isinstance(results, Tensor) else results
    return {str(at): one for at, one in enumerate(several)}
