"""Step graphs made by hand: a box of what a module makes of maps that come in pieces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from torch import fx, nn

from hgpart.layers.layering import channel_graph
from hgpart.placement.cutting.cut_graph import CutGraph
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.placement.cutting.slices import Slice
from hgpart.placement.cutting.step_graph import Source, SourcePiece
from hgpart.tracing.traced_model import trace

CHANNELS = 12


class Behind(nn.Module):
    """A convolution, and all that is under test behind it."""

    def __init__(self, changes: Mapping[str, Callable[[torch.Tensor], torch.Tensor]]) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, CHANNELS, 1)
        self.changes = list(changes.values())
        self.parts = nn.ModuleList(one for one in self.changes if isinstance(one, nn.Module))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        maps = self.head(image)
        return tuple(change(maps) for change in self.changes)


@dataclass
class Cutter:
    """Computes boxes of what each of several changes makes, with a step of the model's output."""

    changes: Mapping[str, Callable[[torch.Tensor], torch.Tensor]]

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = Behind(self.changes).double().eval()
        for name, buffer in self.model.named_buffers():
            if buffer.is_floating_point():
                buffer.copy_(torch.rand_like(buffer) + (0.5 if "var" in name else 0))
        traced = trace(self.model, torch.randn(2, 3, 4, 4, dtype=torch.float64))
        graph = channel_graph(traced)
        self.facts = NodeFacts(traced, graph)
        # All behind the convolution is computed here, of what is held here, whoever's it is.
        self.facts.makers = {}
        self.facts.sent_parameters = frozenset()
        convolution = torch.ops.aten.conv2d.default
        nodes: Sequence[fx.Node] = list(traced.graph_module.graph.nodes)
        self.head = next(node for node in nodes if node.target is convolution)
        (self.head_layer,) = [
            at for at, layer in enumerate(graph.layers) if self.head.name in layer.operators
        ]
        self.results = dict(zip(self.changes, traced.results, strict=True))

    def fixed(self, name: str) -> dict[int, int]:
        """Sizes of the result's dimensions that do not change with the batch."""
        shape = self.results[name].meta["val"].shape
        return {dim: size for dim, size in enumerate(shape) if isinstance(size, int)}

    def begin(self, pieces: Sequence[np.ndarray]) -> CutGraph:
        layout = self.facts.layout(self.head_layer, self.head)
        source = Source(
            layout, tuple(SourcePiece(f"piece_{at}", one) for at, one in enumerate(pieces))
        )
        last = len(self.facts.graph.layers) - 1
        return CutGraph(self.facts, last, np.arange(1), {self.head: source}, {})

    def program(
        self, name: str, box: Mapping[int, np.ndarray], pieces: Sequence[np.ndarray]
    ) -> tuple[fx.GraphModule, tuple[str, ...]]:
        """The box of a result as a module, and the names of its operands."""
        step = self.begin(pieces)
        step.fx_graph.output(step.value(self.results[name], box))
        return loaded(step, self.model), tuple(step.placeholders)

    def check(self, name: str, box: Mapping[int, np.ndarray], pieces: Sequence[np.ndarray]) -> None:
        """Assert that the box of a result is that of the whole result, at another batch size."""
        module, names = self.program(name, box, pieces)
        maps = torch.randn(3, CHANNELS, 4, 4, dtype=torch.float64)
        given = {f"piece_{at}": maps[:, one] for at, one in enumerate(pieces)}
        found = module(*({**given, "batch_size": 3}[name] for name in names))
        full = self.changes[name](maps)
        axes = [box.get(dim, np.arange(size)) for dim, size in enumerate(full.shape)]
        torch.testing.assert_close(found, full[np.ix_(*axes)])


def loaded(step: CutGraph, model: nn.Module) -> fx.GraphModule:
    """The step's module, with its slices of the model's state."""
    module = fx.GraphModule(step.root, step.fx_graph)
    load(module, step.slices, model)
    return module


def load(module: nn.Module, slices: Mapping[str, Slice], model: nn.Module) -> None:
    state = model.state_dict()
    for attribute, held in slices.items():
        kept = held.take(state[held.name])
        is_parameter = isinstance(getattr(module, attribute), nn.Parameter)
        setattr(module, attribute, nn.Parameter(kept) if is_parameter else kept)


@st.composite
def boxes(draw: st.DrawFn, fixed: Mapping[int, int]) -> dict[int, np.ndarray]:
    """Positions, ascending, along some of the dimensions of fixed size."""
    known = st.sampled_from(sorted(fixed))  # one alone is what operators are cut along
    dims = draw(st.one_of(known.map(lambda dim: {dim}), st.sets(known)))
    some = {dim: st.sets(st.integers(0, fixed[dim] - 1), min_size=1) for dim in dims}
    return {dim: np.array(sorted(draw(numbers))) for dim, numbers in some.items()}


@st.composite
def divided_channels(draw: st.DrawFn) -> list[np.ndarray]:
    """The channels of the maps in up to three pieces, each ascending."""
    owners = np.array(draw(st.lists(st.integers(0, 2), min_size=CHANNELS, max_size=CHANNELS)))
    return [np.flatnonzero(owners == owner) for owner in np.unique(owners)]
