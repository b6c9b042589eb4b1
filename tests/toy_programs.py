"""Small models cut by hand into part programs: independent of hgpart's own placement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.nn import functional

from hgpart.execution.outlines import uses
from hgpart.execution.program import PartProgram, Transfer, TransferredTensor, pack, receive, send
from hgpart.execution.runtime import Placed
from hgpart.execution.threads.crew import Crew
from hgpart.execution.threads.local import LocalRuntime
from hgpart.schedules.schedule import Travel

INPUT_CHANNELS = 3


def maps_of(channels: int) -> TransferredTensor:
    return TransferredTensor((1, 0), (0, channels), torch.float64)


def transfer(number: int, sender: int, receiver: int, **others: Any) -> Transfer:
    tensors = (maps_of(1),)
    facts = {"layer": f"layer{number}", "partial": False, "tensors": tensors}
    facts |= {"differentiable": True} | others
    return Transfer(number=number, sender=sender, receiver=receiver, **facts)


def program(
    part: int,
    build: Callable[[fx.Graph], Any],
    transfers: tuple[Transfer, ...] = (),
    **attributes: nn.Module | Tensor,
) -> PartProgram:
    """A program whose nodes `build` adds; it returns what the output node has."""
    root, graph = nn.Module(), fx.Graph()
    for name, value in attributes.items():
        if isinstance(value, nn.Module):
            root.add_module(name, value)
        else:
            root.register_buffer(name, value)
    graph.output(build(graph))
    own = {each.number: each for each in transfers if part in (each.sender, each.receiver)}
    return PartProgram(part, fx.GraphModule(root, graph), own)


def toy(*programs: PartProgram, output_part: int = 0) -> Placed:
    return Placed(len(programs), dict(enumerate(programs)), (output_part,))


def crew_of(placed: Placed) -> Crew:
    return Crew([torch.device("cpu")] * placed.k)


def local(placed: Placed) -> LocalRuntime:
    return LocalRuntime(placed, crew_of(placed))


@dataclass(frozen=True)
class Dense:
    """A layer: its sources (-1 is the input), which of their channels it reads, its parts."""

    sources: tuple[int, ...]
    every: int  # reads channels 0, every, 2 * every, ... of each source
    parts: tuple[int, ...]  # of each of its channels


class Model(nn.Module):
    """Dense layers with tanh behind; the last one is the result."""

    def __init__(self, layers: tuple[Dense, ...]) -> None:
        super().__init__()
        self.layers = layers
        self.linears = nn.ModuleList(
            nn.Linear(len(self.columns(layer)), len(layer.parts), dtype=torch.float64)
            for layer in layers
        )

    def columns(self, layer: Dense) -> list[tuple[int, int]]:
        """(source, channel) of each column of a layer's weight."""
        return [
            (source, channel)
            for source in layer.sources
            for channel in range(0, self.width(source), layer.every)
        ]

    def width(self, source: int) -> int:
        return INPUT_CHANNELS if source == -1 else len(self.layers[source].parts)

    def forward(self, x: Tensor) -> Tensor:
        maps = {-1: x}
        for at, (layer, linear) in enumerate(zip(self.layers, self.linears, strict=True)):
            read = [maps[source][:, :: layer.every] for source in layer.sources]
            maps[at] = torch.tanh(linear(torch.cat(read, 1)))
        return maps[len(self.layers) - 1]


class Share(nn.Module):
    """Some rows of a layer, from pieces of its sources."""

    def __init__(self, linear: nn.Module, rows: list[int], columns: list[int], picks: list[Any]):
        super().__init__()
        self.rows, self.columns, self.picks = rows, columns, picks
        self.weight = nn.Parameter(linear.weight.detach()[rows][:, columns].clone())
        self.bias = nn.Parameter(linear.bias.detach()[rows].clone())

    def forward(self, *pieces: Tensor) -> Tensor:
        read = [piece[:, pick] for piece, pick in zip(pieces, self.picks, strict=True)]
        return torch.tanh(functional.linear(torch.cat(read, 1), self.weight, self.bias))


class Collect(nn.Module):
    """The results in the order of their channels."""

    def __init__(self, order: list[int]) -> None:
        super().__init__()
        self.order = torch.tensor(order)

    def forward(self, *pieces: Tensor) -> Tensor:
        return torch.cat(pieces, 1)[:, self.order.argsort()]


class Cut:
    """A Model, cut into the programs of k parts."""

    def __init__(self, model: Model, k: int, output_part: int) -> None:
        self.model, self.k, self.output_part = model, k, output_part
        self.last = len(model.layers) - 1
        self.travelling = self._travelling()
        self.transfers = tuple(
            transfer(number, sender, receiver, tensors=(maps_of(len(channels)),))
            for number, ((_, sender, receiver), channels) in enumerate(self.travelling.items())
        )
        programs = [self._program(part) for part in range(k)]
        self.placed = toy(*programs, output_part=output_part)

    def channels(self, source: int, part: int) -> list[int]:
        return [at for at, owner in enumerate(self.model.layers[source].parts) if owner == part]

    def _travelling(self) -> dict[tuple[int, int, int], list[int]]:
        """(layer, sender, receiver) -> channels."""
        found: dict[tuple[int, int, int], set[int]] = {}
        reads = [
            (reader, source, channel)
            for layer in self.model.layers
            for source, channel in self.model.columns(layer)
            for reader in set(layer.parts)
        ]
        width = self.model.width(self.last)
        reads += [(self.output_part, self.last, channel) for channel in range(width)]
        for reader, source, channel in reads:
            if source >= 0 and (owner := self.model.layers[source].parts[channel]) != reader:
                found.setdefault((source, owner, reader), set()).add(channel)
        return {key: sorted(found[key]) for key in sorted(found)}

    def _program(self, part: int) -> PartProgram:
        attributes: dict[str, Any] = {}
        numbers = {key: number for number, key in enumerate(self.travelling)}

        def build(graph: fx.Graph) -> Any:
            own: dict[int, fx.Node] = {-1: graph.placeholder("x")}
            received: dict[tuple[int, int, int], fx.Node] = {}

            def pieces(source: int) -> list[tuple[fx.Node, list[int]]]:
                if source == -1:
                    return [(own[-1], list(range(INPUT_CHANNELS)))]
                found = [(own[source], self.channels(source, part))] if source in own else []
                for key in numbers:
                    if key[0] == source and key[2] == part:
                        if key not in received:
                            received[key] = graph.call_function(receive, (numbers[key],))
                        found.append((received[key], self.travelling[key]))
                return found

            for at, layer in enumerate(self.model.layers):
                rows = self.channels(at, part)
                if not rows:
                    continue
                column = {key: n for n, key in enumerate(self.model.columns(layer))}
                nodes, picks, columns = [], [], []
                for source in layer.sources:
                    for node, channels in pieces(source):
                        read = [n for n, c in enumerate(channels) if (source, c) in column]
                        nodes.append(node)
                        picks.append(read)
                        columns += [column[source, channels[n]] for n in read]
                attributes[f"layer{at}"] = Share(self.model.linears[at], rows, columns, picks)
                own[at] = graph.call_module(f"layer{at}", tuple(nodes))
                for key, number in numbers.items():
                    if key[:2] == (at, part):
                        sent = own[at]
                        if len(self.travelling[key]) < len(rows):
                            index = [rows.index(channel) for channel in self.travelling[key]]
                            attributes[f"index{number}"] = torch.tensor(index)
                            node = graph.get_attr(f"index{number}")
                            sent = graph.call_function(pack, (sent, 1, node))
                        graph.call_function(send, (number, sent))
            if part != self.output_part:
                return ()
            last = pieces(self.last)
            attributes["collect"] = Collect([c for _, channels in last for c in channels])
            return (graph.call_module("collect", tuple(node for node, _ in last)),)

        # GraphModule checks targets, so attributes must be complete before it is made.
        build(fx.Graph())
        return program(part, build, self.transfers, **attributes)

    def expected_bytes(self, batch_size: int) -> Tensor:
        found = torch.zeros((self.k, self.k), dtype=torch.int64)
        for (_, sender, receiver), channels in self.travelling.items():
            found[sender, receiver] += len(channels) * batch_size * 8
        return found

    def shares(self) -> list[tuple[nn.Module, Share]]:
        """(the original's layer, a part's share of it)."""
        return [
            (self.model.linears[int(name.removeprefix("layer"))], module)
            for each in self.placed.programs.values()
            for name, module in each.module.named_children()
            if isinstance(module, Share)
        ]


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    k = draw(st.integers(1, 4))
    layers = []
    for at in range(draw(st.integers(1, 5))):
        sources = draw(st.sets(st.integers(-1, at - 1), min_size=1, max_size=3))
        parts = draw(st.lists(st.integers(0, k - 1), min_size=1, max_size=5))
        layers.append(Dense(tuple(sorted(sources)), draw(st.integers(1, 2)), tuple(parts)))
    torch.manual_seed(draw(st.integers(0, 9)))
    return Cut(Model(tuple(layers)), k, draw(st.integers(0, k - 1)))


@st.composite
def shared(draw: st.DrawFn, cut: Cut) -> tuple[list[Travel], dict[object, list[int]]]:
    """Weights of parts that others have copies of, and the steps of these that read them."""
    travels, of_steps = list[Travel](), dict[object, list[int]]()
    for number in range(draw(st.integers(1, 6))):
        parts = st.integers(0, cut.k - 1)
        travels.append(Travel(draw(parts), draw(parts)))
        steps = [*cut.placed.programs[travels[-1].holder].module.children()]
        for step in draw(st.lists(st.sampled_from(steps), unique=True)) if steps else []:
            of_steps.setdefault(step, []).append(number)
    return travels, of_steps


def of_parts(cut: Cut, of_steps: dict[object, list[int]]):
    return [
        uses(cut.placed.programs[part], lambda step: of_steps.get(step, ()))
        for part in range(cut.k)
    ]
