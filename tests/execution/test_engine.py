"""One part by itself, on a wire whose other end the test holds."""

from __future__ import annotations

from collections.abc import Sequence
from operator import getitem
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, fx, nn
from toy_programs import program, transfer

from hgpart.errors import PlacementError, RunError
from hgpart.execution.engine import PartRun
from hgpart.execution.program import PartProgram, pack, receive, send
from hgpart.execution.records.totals import Timing, Traffic
from hgpart.schedules.schedule import Direction, Piece

CPU = torch.device("cpu")


class Ends:
    """Wires: what will arrive, what has departed, and in which order all came."""

    def __init__(self, maps: dict[int, Any] | None = None, gradients: dict[int, Any] | None = None):
        self.maps, self.gradients = maps or {}, gradients or {}
        self.sent: dict[int, Sequence[Tensor]] = {}
        self.sent_gradients: dict[int, Sequence[Tensor]] = {}
        self.order: list[str] = []

    def send(self, piece: Piece, receiver: int, tensors: Sequence[Tensor]) -> None:
        back = piece.direction is Direction.BACKWARD
        self.order.append(f"send {'gradient ' * back}{piece.number}")
        (self.sent_gradients if back else self.sent)[piece.number] = tensors

    def receive(self, piece: Piece) -> Sequence[Tensor]:
        back = piece.direction is Direction.BACKWARD
        self.order.append(f"receive {'gradient ' * back}{piece.number}")
        found: Sequence[Tensor] = (self.gradients if back else self.maps)[piece.number]
        return found

    def settle(self) -> bool:
        return False

    def stop(self) -> None:
        pass


def run_of(of: PartProgram, ends: Ends) -> PartRun:
    return PartRun(of, ends, CPU, k=2)


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


def test_a_map_read_here_and_sent_whole_and_packed_adds_up_its_gradients() -> None:
    over = transfer(0, 1, 0), transfer(1, 0, 1), transfer(2, 0, 1), transfer(3, 0, 1)

    def build(graph: fx.Graph) -> tuple[fx.Node]:
        there = graph.call_function(receive, (0,))
        square = graph.call_module("square", (there,))
        index = graph.get_attr("index")
        graph.call_function(send, (1, square))
        graph.call_function(send, (2, graph.call_function(pack, (square, 1, index))))
        again = graph.call_module("again", (square,))
        graph.call_function(send, (3, graph.call_function(pack, (square, 1, index))))
        return (again,)

    index = torch.tensor([2, 0])
    part = program(0, build, over, square=Square(), again=Square(), index=index)
    x = torch.tensor([[1.0, 2.0, 3.0]])
    whole, packed = torch.tensor([[10.0, 20.0, 30.0]]), torch.tensor([[100.0, 300.0]])
    sent = [whole.clone(), packed.clone()]
    ends = Ends({0: (x,)}, {1: (sent[0],), 2: (sent[1],), 3: (sent[1],)})
    run = run_of(part, ends)
    (result,) = run.forward({})
    assert result.tolist() == [[1, 16, 81]]
    assert result.requires_grad
    assert ends.sent[1][0].tolist() == [[1, 4, 9]]
    assert ends.sent[2][0].tolist() == ends.sent[3][0].tolist() == [[9, 1]]

    assert run.backward([torch.ones_like(result)]) == {}
    of_square = 2 * x**2 + whole + 2 * torch.tensor([[300.0, 0.0, 100.0]])
    assert ends.sent_gradients[0][0].tolist() == (2 * x * of_square).tolist()
    # What came over the wires is as it was: on a local wire others may hold it.
    assert torch.equal(sent[0], whole)
    assert torch.equal(sent[1], packed)
    assert ends.order == [
        *("receive 0", "send 1", "send 2", "send 3"),
        *("receive gradient 3", "receive gradient 2", "receive gradient 1", "send gradient 0"),
    ]
    assert run.traffic.forward_bytes.tolist() == [[0, 12 + 8 + 8], [0, 0]]
    assert run.traffic.forward_messages.tolist() == [[0, 3], [0, 0]]
    assert run.traffic.backward_bytes.tolist() == [[0, 12], [0, 0]]
    assert run.traffic.backward_messages.tolist() == [[0, 1], [0, 0]]


def test_a_map_whose_only_gradient_is_packed_gets_zeros_elsewhere() -> None:
    def build(graph: fx.Graph) -> tuple[()]:
        index = graph.get_attr("index")
        sent = graph.call_function(pack, (graph.placeholder("x"), 1, index))
        graph.call_function(send, (0, sent))
        return ()

    part = program(0, build, (transfer(0, 0, 1),), index=torch.tensor([1]))
    run = run_of(part, Ends(gradients={0: (torch.tensor([[5.0]]),)}))
    x = torch.ones(1, 3, requires_grad=True)
    run.forward({"x": x})
    gradient = run.backward([])["x"]
    assert gradient is not None
    assert gradient.tolist() == [[0, 5, 0]]
    assert x.grad is None


def test_a_received_map_without_a_gradient_sends_zeros_back() -> None:
    def build(graph: fx.Graph) -> tuple[()]:
        graph.call_function(receive, (0,))
        return ()

    part = program(0, build, (transfer(0, 1, 0),))
    ends = Ends({0: (torch.ones(2, 3),)})
    run = run_of(part, ends)
    assert run.forward({}) == ()
    assert run.backward([]) == {}
    assert torch.equal(ends.sent_gradients[0][0], torch.zeros(2, 3))


@pytest.mark.parametrize("made", ["view", "itself"])
def test_steps_that_compute_nothing_pass_the_gradient_on(made: str) -> None:
    def build(graph: fx.Graph) -> tuple[fx.Node, ...]:
        step = graph.call_module("step", (graph.call_function(receive, (0,)),))
        return graph.call_module("square", (step,)), step

    step = nn.Flatten(1) if made == "view" else nn.Identity()
    ends = Ends({0: (torch.full((1, 2), 3.0),)})
    run = run_of(program(0, build, (transfer(0, 1, 0),), step=step, square=Square()), ends)
    results = run.forward({})
    run.backward([torch.ones_like(result) for result in results])
    assert ends.sent_gradients[0][0].tolist() == [[7, 7]]


def test_several_outputs_of_which_some_have_no_reader() -> None:
    class Split(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return x.argmax(1), x * 2, x * 3, x * 4

    def build(graph: fx.Graph) -> tuple[fx.Node, ...]:
        split = graph.call_module("split", (graph.placeholder("x"),))
        twice = graph.call_function(getitem, (split, 1))
        return (
            twice,
            graph.call_function(getitem, (split, 0)),
            graph.call_function(getitem, (split, 1)),
        )

    run = run_of(program(0, build, split=Split()), Ends())
    x = torch.tensor([[1.0, 2.0]], requires_grad=True)
    twice, largest, again = run.forward({"x": x})
    assert twice.tolist() == again.tolist() == [[2, 4]]
    assert largest.tolist() == [1]
    assert not largest.requires_grad
    gradient = run.backward([torch.ones(1, 2), None, torch.ones(1, 2)])["x"]
    assert gradient is not None
    assert gradient.tolist() == [[4, 4]]


def test_steps_are_looked_up_anew_in_each_run() -> None:
    part = program(
        0, lambda graph: (graph.call_module("step", (graph.placeholder("x"),)),), step=Square()
    )
    x = torch.tensor([2.0])
    assert run_of(part, Ends()).forward({"x": x})[0].tolist() == [4]
    part.module.step = nn.Identity()
    assert run_of(part, Ends()).forward({"x": x})[0].tolist() == [2]


def test_nothing_is_kept_after_backward_or_without_grad_mode() -> None:
    def build(graph: fx.Graph) -> tuple[fx.Node]:
        return (graph.call_module("step", (graph.placeholder("x"),)),)

    part = program(0, build, step=nn.Linear(2, 2))
    run = run_of(part, Ends())
    with torch.no_grad():
        (result,) = run.forward({"x": torch.ones(1, 2)})
    assert not result.requires_grad
    assert not run.saved
    assert not run.values
    run = run_of(part, Ends())
    run.forward({"x": torch.ones(1, 2)})
    assert run.saved
    run.backward([torch.ones(1, 2)])
    assert not run.saved


@pytest.mark.parametrize("joined", [False, True])
def test_values_are_dropped_after_their_last_use(joined: bool) -> None:
    class Look(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            alive.append(sum(one() is not None for one in made))
            made.append(ref(result := x + 1))
            return result

    def build(graph: fx.Graph) -> tuple[fx.Node]:
        value = graph.placeholder("x")
        for at in range(4):
            value = graph.call_module(f"step{at}", (value,))
        return (value,)

    made, alive = list[ref[Tensor]](), list[int]()
    steps = {f"step{at}": Look() for at in range(4)}
    PartRun(program(0, build, **steps), Ends(), CPU, 2, joined).forward({"x": torch.ones(1)})
    assert alive == [0, 1, 1, 1]


def test_a_run_is_one_forward_then_one_backward() -> None:
    part = program(0, lambda graph: (graph.placeholder("x"),))
    run = run_of(part, Ends())
    with pytest.raises(RunError, match="part 0: backward after nothing, accepted is one forward"):
        run.backward([None])
    run.forward({"x": torch.ones(1)})
    with pytest.raises(RunError, match="part 0: forward after forward"):
        run.forward({"x": torch.ones(1)})
    run.backward([None])
    with pytest.raises(RunError, match="part 0: backward after backward"):
        run.backward([None])
    run = run_of(part, Ends())
    with torch.no_grad():
        run.forward({"x": torch.ones(1)})
    with pytest.raises(RunError, match="part 0: backward after forward without grad mode"):
        run.backward([None])


def test_a_value_that_is_missing_is_named() -> None:
    run = run_of(program(0, lambda graph: (graph.placeholder("draw_0"),)), Ends())
    with pytest.raises(RunError, match="part 0 needs a value for draw_0, got x"):
        run.forward({"x": torch.ones(1)})


def test_foreign_nodes_are_refused() -> None:
    foreign = program(0, lambda graph: (graph.call_function(abs, (graph.placeholder("x"),)),))
    with pytest.raises(PlacementError, match=r"abs.* is not accepted in a part's program"):
        run_of(foreign, Ends())
    constant = program(
        0, lambda graph: (graph.call_module("step", (graph.placeholder("x"), 3)),), step=Square()
    )
    with pytest.raises(PlacementError, match=r"step.* reads 3, accepted are placeholders"):
        run_of(constant, Ends())


def test_traffic_and_timing_add_up() -> None:
    first, second = Traffic.none(2), Traffic.none(2)
    first.forward_bytes[0, 1], second.forward_bytes[0, 1] = 1, 2
    second.uncounted_bytes[1, 0] = 5
    total = first + second
    assert total.forward_bytes.tolist() == [[0, 3], [0, 0]]
    assert total.uncounted_bytes.tolist() == [[0, 0], [5, 0]]
    assert first.forward_bytes.sum() == 1
    assert Timing(1, 2, 3, 4) + Timing(1, 1, 1, 1) == Timing(2, 3, 4, 5)
