"""Programs as instructions: steps that follow one another, joined and apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import getitem
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from toy_programs import program, transfer

from hgpart.execution.engine import PartRun
from hgpart.execution.instructions import JOINED_BYTES, Compute, Prepared, prepare
from hgpart.execution.program import PartProgram, receive, send
from hgpart.schedules.schedule import Piece

CPU = torch.device("cpu")


class Ends:
    """Gives messages of ones; keeps what departs."""

    def __init__(self) -> None:
        self.departed: list[Tensor] = []

    def send(self, piece: Piece, receiver: int, tensors: Sequence[Tensor]) -> None:
        self.departed += tensors

    def receive(self, piece: Piece) -> Sequence[Tensor]:
        return [torch.ones(2, 3, dtype=torch.float64)]

    def settle(self) -> bool:
        return False

    def stop(self) -> None:
        pass


class Scaled(nn.Module):
    """All that it is given, times weights."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        made = torch.randn(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.weight = nn.Parameter(made)

    def forward(self, *given: Tensor) -> Tensor:
        return sum(given, torch.zeros((), dtype=torch.float64)) * self.weight


class Same(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Constant(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach() + 1


class Two(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x.cos()


class Matrix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(3, dtype=torch.float64) * 1.5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


MADE = {"same": Same, "constant": Constant, "matrix": Matrix, "two": Two}


@st.composite
def programs(draw: st.DrawFn) -> PartProgram:
    """Steps that read any of what is there, among messages that come and go."""
    kinds = draw(st.lists(st.sampled_from(["scaled", "go", "come", *MADE]), max_size=12))
    there, nodes = 1, list[tuple[str, list[int]]]()
    for kind in kinds:
        reads = {"come": 0, "scaled": 2}.get(kind, 1)
        nodes.append((kind, [draw(st.integers(0, there - 1)) for _ in range(reads)]))
        there += {"go": 0, "two": 2}.get(kind, 1)
    results = draw(st.lists(st.integers(0, there - 1), min_size=1, max_size=3))
    ways = [(0, 1) if kind == "go" else (1, 0) for kind in kinds if kind in ("go", "come")]
    steps = {f"step{at}": MADE[kind]() for at, kind in enumerate(kinds) if kind in MADE}
    scaled = {f"step{at}": Scaled(at) for at, kind in enumerate(kinds) if kind == "scaled"}

    def build(graph: fx.Graph) -> tuple[fx.Node, ...]:
        made, number = [graph.placeholder("x")], 0
        for at, (kind, reads) in enumerate(nodes):
            operands = tuple(made[one] for one in reads)
            if kind == "come":
                made.append(graph.call_function(receive, (number,)))
            elif kind == "go":
                graph.call_function(send, (number, *operands))
            else:
                step = graph.call_module(f"step{at}", operands)
                items = range(2) if kind == "two" else ()
                made += [graph.call_function(getitem, (step, one)) for one in items] or [step]
            number += kind in ("come", "go")
        return tuple(made[one] for one in results)

    transfers = tuple(transfer(at, *way) for at, way in enumerate(ways))
    return program(0, build, transfers, **steps, **scaled)


def outcome(of: PartProgram, joined: bool) -> list[Any]:
    """Results, gradients and what departs."""
    of.module.zero_grad()
    ends = Ends()
    run = PartRun(of, ends, CPU, 2, joined)
    x = torch.full((2, 3), 0.5, dtype=torch.float64, requires_grad=True)
    results = run.forward({"x": x})
    inputs = run.backward([torch.ones_like(one) for one in results])
    weights = {name: one.grad for name, one in of.module.named_parameters()}
    return [results, inputs, weights, ends.departed]


@given(programs())
def test_joined_steps_compute_what_they_compute_apart(of: PartProgram) -> None:
    apart, joined = (outcome(of, each) for each in (False, True))
    torch.testing.assert_close(joined, apart, rtol=1e-12, atol=1e-12)


@given(programs(), st.data())
def test_pieces_of_chunks_do_what_chunks_do(of: PartProgram, data: st.DataObject) -> None:
    """A piece begins where an instruction does, be steps joined or not."""
    joined = data.draw(st.booleans())
    prepared, whole = prepare(of, joined), outcome(of, joined)
    of.module.zero_grad()
    ends = Ends()
    run = PartRun(of, ends, CPU, 2, joined)
    x = torch.full((2, 3), 0.5, dtype=torch.float64, requires_grad=True)
    run.begin({"x": x})
    for chunk, places in enumerate(prepared.forward_places):
        for piece in data.draw(pieces_of(places)):
            run.forward_chunk(chunk, piece=piece)
    results = run.results()
    run.begin_backward([torch.ones_like(one) for one in results])
    for chunk, places in enumerate(prepared.backward_places):
        for piece in data.draw(pieces_of(places)):
            run.backward_chunk(chunk, piece=piece)
    inputs = run.end_backward()
    weights = {name: one.grad for name, one in of.module.named_parameters()}
    found = [results, inputs, weights, ends.departed]
    torch.testing.assert_close(found, whole, rtol=0, atol=0)


@st.composite
def pieces_of(draw: st.DrawFn, places: tuple[int, ...]) -> list[tuple[int, int]]:
    """A chunk in pieces."""
    inner = draw(st.sets(st.sampled_from(places[1:-1]))) if len(places) > 2 else set()
    return [*pairwise(sorted({0, places[-1], *inner}))]


@given(programs())
def test_chunks_do_the_same_whether_steps_are_joined_or_not(of: PartProgram) -> None:
    def chunks(prepared: Prepared, ranges: Sequence[range]) -> list[list[Any]]:
        instructions = [one for one, _ in prepared.instructions]
        return [
            [
                named
                for at in places
                for one in (instructions[at],)
                for named in (one.steps[:: places.step] if isinstance(one, Compute) else [one])
            ]
            for places in ranges
        ]

    apart, joined = prepare(of), prepare(of, joined=True)
    assert chunks(joined, joined.forward) == chunks(apart, apart.forward)
    assert chunks(joined, joined.backward) == chunks(apart, apart.backward)


def test_what_has_many_weights_begins_another_instruction() -> None:
    """Their gradients depart when they are there, and not with all others."""

    class Large(nn.Module):
        def __init__(self, quarters: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(
                torch.zeros(quarters, 1, JOINED_BYTES // 16), requires_grad=False
            )

        def forward(self, x: Tensor) -> Tensor:
            return x

    def build(graph: fx.Graph) -> tuple[fx.Node]:
        value = graph.placeholder("x")
        for name in sizes:
            value = graph.call_module(name, (value,))
        return (value,)

    sizes = {"a": 1, "b": 2, "c": 9, "d": 3, "matrix": 0, "e": 1, "f": 1, "g": 1}
    modules = {name: Large(size) if size else Matrix() for name, size in sizes.items()}
    prepared = prepare(program(0, build, **modules), joined=True)
    computes = [one for one, _ in prepared.instructions if isinstance(one, Compute)]
    names = ["".join(step.name for step in one.steps) for one in computes]
    assert names == ["ab", "c", "d", "matrix", "efg"]
