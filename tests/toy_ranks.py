"""A program for the processes of tests: a small placement made by hand, run over torch.distributed.

    python toy_ranks.py MODE [ARGUMENT ...]

The placement is of a chain of linear layers whose rows are dealt to the parts in runs; every part
needs all of the layer before, so that the parts depend on each other in cycles.
"""

from __future__ import annotations

import importlib
import os
import random
import signal
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch
from stale_training import ended, stale_training
from torch import fx, nn
from traces import assert_covers, assert_sent_before_received

from hgpart.errors import HgpartError
from hgpart.execution.outlines import outline
from hgpart.execution.program import WHOLE, PartProgram, Transfer, TransferredTensor, receive, send
from hgpart.execution.records.totals import Timing, Traffic
from hgpart.execution.runtime import Placed
from hgpart.placement.batches.micro_batches import score_of
from hgpart.placement.programs import Programs
from hgpart.run.distributed import DistributedModel
from hgpart.run.elsewhere import Elsewhere
from hgpart.run.processes.connection import connect
from hgpart.run.processes.map_types import MapTypes
from hgpart.run.processes.rank_messages import MessageSizes, RankMessages
from hgpart.schedules import make_schedule
from hgpart.schedules.checking import problems
from hgpart.schedules.costs import Costs
from hgpart.schedules.mail import mail
from hgpart.schedules.outline import Chunk, Outline, Sent
from hgpart.schedules.rules import RULES, STREAMS
from hgpart.schedules.schedule import Direction, Piece
from hgpart.tracing.arguments import arguments_of

WIDTHS = (5, 8, 6, 7, 4)
RESULT = len(WIDTHS) - 1


class Share(nn.Module):
    """Some rows of a linear layer, with a random mask before it."""

    def __init__(self, linear, rows):
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach()[rows])
        self.bias = nn.Parameter(linear.bias.detach()[rows])

    def forward(self, mask, *pieces):
        read = torch.cat(pieces, 1) * mask
        return torch.tanh(nn.functional.linear(read, self.weight, self.bias))


class Plain(nn.Module):
    """The model that is placed."""

    def __init__(self):
        super().__init__()
        pairs = pairwise(WIDTHS)
        self.layers = nn.ModuleList(nn.Linear(*pair).double() for pair in pairs)

    def forward(self, x, masks):
        for at, layer in enumerate(self.layers):
            x = torch.tanh(layer(x * masks[f"draw_{at}"]))
        return x


class Toy(nn.Module):
    """What `DistributedModel` needs of a placement and its programs, for one part."""

    inputs = ("x",)
    arguments = arguments_of(nn.Identity(), torch.zeros(2, WIDTHS[0]))
    norms, are_set_anew = "micro-batch", False
    has_norms_of_batch = shares_statistics = has_copies = False
    check_stream = Programs.check_stream
    blueprint = SimpleNamespace(carriers={})  # no buffer is computed from parameters
    output_part = 0
    output_parts, operands, shares = (0,), {"x"}, (WHOLE,)

    def __init__(self, model, k, part, seed):
        super().__init__()
        deal = random.Random(seed)
        self.k, self.part = k, part
        self.rows = [[list(range(WIDTHS[0])), *([] for _ in range(k - 1))]]  # x is read by part 0
        for width in WIDTHS[1:]:
            cuts = sorted(deal.randrange(width + 1) for _ in range(k - 1))
            cuts = [0, *cuts, width]
            self.rows.append([list(range(cuts[p], cuts[p + 1])) for p in range(k)])
        self.transfers = self._transfers()
        self.parts = {part: self._program(model)}
        self.module = self.parts[part].module

    @property
    def programs(self):
        return self

    forms = passes = copies = held_state = programs

    @cached_property
    def placed(self):
        return Placed(self.k, self.parts, self.output_parts)

    def placed_with(self, input_gradients):
        return self.placed

    def check_types(self, inputs):
        pass

    def reads(self, part, at):
        return part == 0

    def results_without_data(self, part, batch_size):
        return [torch.empty(batch_size, WIDTHS[-1], dtype=torch.float64, device="meta")]

    def in_flight(self, parameters, *, in_turns=False):
        return nullcontext()  # there are none

    def takes(self, batch_size):
        return True

    def held(self, part):
        """No state of a model that belongs to parts."""
        return ()

    def check_coverage(self, slices):
        """Nothing is to be covered."""

    def readers(self, layer):
        """Parts that need all of a layer."""
        if layer == RESULT:
            return [self.output_part]
        return [p for p in range(self.k) if self.rows[layer + 1][p]]

    def _transfers(self):
        found = []
        for layer in range(RESULT + 1):
            for sender in range(self.k):
                for receiver in self.readers(layer):
                    size = len(self.rows[layer][sender])
                    if size and sender != receiver:
                        tensor = TransferredTensor((1, 0), (0, size), torch.float64)
                        back = layer > 0
                        found.append(
                            Transfer(
                                len(found), f"l{layer}", False, sender, receiver, (tensor,), back
                            )
                        )
        return found

    def _program(self, model):
        graph, part = fx.Graph(), self.part
        root = {}
        masks = [graph.placeholder(f"draw_{at}") for at in range(RESULT)]
        mine = graph.placeholder("x") if part == 0 else None
        pieces = []
        for layer in range(RESULT + 1):
            rows = self.rows[layer][part]
            if layer > 0 and rows:
                root[f"share_{layer}"] = Share(model.layers[layer - 1], rows)
                arguments = (masks[layer - 1], *pieces)
                mine = graph.call_module(f"share_{layer}", arguments)
            pieces = []
            for transfer in self.transfers:
                if transfer.layer == f"l{layer}" and transfer.sender == part:
                    graph.call_function(send, (transfer.number, mine))
            if part in self.readers(layer):
                for sender in range(self.k):
                    if sender == part and rows:
                        pieces.append(mine)
                    for transfer in self.transfers:
                        ends = (transfer.layer, transfer.sender, transfer.receiver)
                        if ends == (f"l{layer}", sender, part):
                            pieces.append(graph.call_function(receive, (transfer.number,)))
        graph.output(tuple(pieces) if part == self.output_part else ())
        transfers = {t.number: t for t in self.transfers if part in (t.sender, t.receiver)}
        return PartProgram(part, fx.GraphModule(root, graph), transfers)

    def draw(self, batch_size):
        return {
            f"draw_{at}": torch.rand(batch_size, WIDTHS[at], dtype=torch.float64)
            for at in range(RESULT)
        }

    def check_alike(self, sizes):
        pass

    def usual_schedule(self, placement, whole_batch, *_):
        return whole_batch

    def divided(self, inputs, sizes, part=None, programs=None):
        values = {"x": inputs[0], **self.draw(sum(sizes))}
        split = {
            name: [None] * len(sizes) if value is None else value.split(sizes)
            for name, value in values.items()
        }
        return [
            {name: pieces[at] for name, pieces in split.items()} | {"batch_size": size}
            for at, size in enumerate(sizes)
        ]

    batches = divided

    def score(self, targets, loss_fn, sizes, part, alone, total):
        return score_of(self.build_results, targets, loss_fn, [(size,) for size in sizes])

    def shares_of_result(self, part):
        return (0,) if part == self.output_part else ()

    def whole_result(self, by_share):
        return self.build_results(*by_share)

    def batch(self):
        return nullcontext()  # it has no norms

    def build_results(self, results):
        return torch.cat(results, 1)


def toy(connection, seed=0):
    torch.manual_seed(seed)
    model = Plain()
    return model, DistributedModel(Toy(model, connection.k, connection.rank, seed), connection)


def agree(connection, seed):
    """A placed model does what the model does, and the bytes are those of its transfers."""
    model, placed = toy(connection, seed)
    batch = 3 + seed
    x = torch.randn(batch, WIDTHS[0], dtype=torch.float64)
    state = torch.get_rng_state()
    masks = placed.placement.programs.draw(batch)
    expected = model(x, masks)
    expected.square().sum().backward()
    torch.set_rng_state(state)
    result = placed(x) if placed.reads_inputs else placed(None, batch_size=batch)
    traffic = placed.runtime.last.traffic
    with torch.no_grad():  # which is a pass of its own
        placed(x)
    loss = result.square().sum()
    if connection.rank == 0:
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
    else:
        assert isinstance(result, Elsewhere)
        loss = loss if seed % 2 else None
    loss.backward() if seed % 2 else placed.backward(loss)
    assert placed.runtime.last.traffic is traffic
    held = 0
    for name, share in placed.placement.module.named_children():
        layer = int(name.removeprefix("share_"))
        rows = placed.placement.rows[layer][connection.rank]
        for kind in ("weight", "bias"):
            whole = getattr(model.layers[layer - 1], kind).grad
            torch.testing.assert_close(getattr(share, kind).grad, whole[rows], rtol=1e-12, atol=0)
            held += getattr(share, kind).numel()
    assert sum(connection.gather(held)) == sum(p.numel() for p in model.parameters())

    traffic = sum(connection.gather(placed.runtime.last.traffic), Traffic.none(connection.k))
    forward = torch.zeros(connection.k, connection.k, dtype=torch.int64)
    backward = torch.zeros_like(forward)
    for transfer in placed.placement.programs.transfers:
        size = len(placed.placement.rows[int(transfer.layer[1:])][transfer.sender]) * 8 * batch
        forward[transfer.sender, transfer.receiver] += size
        if transfer.layer != "l0":  # the inputs' gradient does not travel
            backward[transfer.receiver, transfer.sender] += size
    assert traffic.forward_bytes.tolist() == forward.tolist()
    assert traffic.backward_bytes.tolist() == backward.tolist()
    timings = connection.gather(placed.runtime.last.timing[0])
    assert len(timings) == connection.k
    assert all(isinstance(timing, Timing) and timing.forward_busy > 0 for timing in timings)

    with torch.no_grad():  # again, without gradients
        torch.set_rng_state(state)
        again = placed(torch.empty(x.shape, device="meta") if connection.rank else x)
    torch.testing.assert_close(placed.value(again), expected, rtol=1e-12, atol=1e-12)


def agree_on_many(connection, seeds):
    for seed in range(seeds):
        agree(connection, seed)
    assert connection.gather(str(connection.rank)) == [str(p) for p in range(connection.k)]
    known = 0.1 if connection.rank == 1 else None
    assert connection.share_later(known, source=1)() == 0.1


def agree_in_micro_batches(connection, seed, rule, micro_batches):
    """Gradients are those of the model whose micro-batches add up, by whatever rule."""
    model, placed = toy(connection, seed)
    batch = 3 + seed
    outlines = connection.gather(outline(placed.program, {}))
    schedule = make_schedule(outlines, rule, micro_batches, Costs(message=1.0))
    x = torch.randn(batch, WIDTHS[0], dtype=torch.float64)
    target = torch.randn(batch, WIDTHS[-1], dtype=torch.float64)
    state = torch.get_rng_state()
    masks = placed.placement.programs.draw(batch)
    expected = (model(x, masks) - target).square().mean()
    expected.backward()
    torch.set_rng_state(state)
    loss = placed.step(
        [x if placed.reads_inputs else None],
        target if placed.makes_result else None,
        lambda result, wanted: (result - wanted).square().mean(),
        schedule,
        batch_size=batch,
    )
    assert_covers(placed.runtime.last.events, schedule, connection.rank, waits_last=True)
    assert_sent_before_received([*chain(*connection.gather(placed.runtime.last.events))], schedule)
    assert (loss is None) == (connection.rank > 0)
    if loss is not None:
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)
    for name, share in placed.placement.module.named_children():
        layer = int(name.removeprefix("share_"))
        rows = placed.placement.rows[layer][connection.rank]
        for kind in ("weight", "bias"):
            whole = getattr(model.layers[layer - 1], kind).grad
            torch.testing.assert_close(getattr(share, kind).grad, whole[rows], rtol=1e-11, atol=0)
    with torch.no_grad():
        torch.set_rng_state(state)
        results = placed.step([x], schedule=schedule)
    if results is not None:
        assert len(results) == micro_batches
        torch.testing.assert_close(torch.cat(results), model(x, masks), rtol=1e-12, atol=0)


class Rows(NamedTuple):
    """What a part has of a layer's weight or bias."""

    name: str
    rows: list[int]

    def take(self, full):
        return full[self.rows]

    def put(self, full, local):
        full[self.rows] = local


def agree_in_stream(connection, seed, in_flight, rule):
    """Batches in flight: losses and weights are those of plain training of the same staleness."""
    model, placed = toy(connection, seed)
    outlines = connection.gather(outline(placed.program, {}))
    count, costs = 9, Costs(message=1.0)
    schedule = make_schedule(outlines, rule, count, costs, in_flight=in_flight)
    names = [f"layers.{at}.{kind}" for at in range(RESULT) for kind in ("weight", "bias")]
    rows = placed.placement.rows
    pieces = {
        part: [Rows(name, rows[1 + int(name.split(".")[1])][part]) for name in names]
        for part in range(connection.k)
    }
    batches = [
        (
            torch.randn(3, WIDTHS[0], dtype=torch.float64),
            torch.randn(3, WIDTHS[-1], dtype=torch.float64),
        )
        for _ in range(count)
    ]
    state = torch.get_rng_state()
    drawn = [((x, placed.placement.programs.draw(3)), target) for x, target in batches]
    after = torch.get_rng_state()

    torch.set_rng_state(state)

    def loss_of(result, wanted):
        return (result - wanted).square().mean()

    def momentum(parameters):
        return torch.optim.SGD([{"params": parameters}], lr=0.1, momentum=0.9)

    optimizer = momentum([*placed.placement.module.parameters()])
    told = []
    losses = placed.stream(
        (([x if placed.reads_inputs else None], target) for x, target in batches),
        *(loss_of, lambda part: optimizer.step(), schedule, 3),
        on_loss=told.append,
    )
    assert torch.equal(torch.get_rng_state(), after)
    assert len(told) == count
    if schedule.is_dynamic:  # what was done, by the one clock of this machine
        events = chain.from_iterable(connection.gather(placed.runtime.last.events))
        schedule = replace(schedule, order=ended(events))
        assert problems(schedule) == []
    expected, weights = stale_training(model, pieces, schedule, drawn, loss_of, momentum)
    if connection.rank == 0:
        torch.testing.assert_close(losses, expected, rtol=1e-10, atol=1e-10)
    else:
        assert (losses, told) == (None, [None] * count)
    for piece, wanted in zip(pieces[connection.rank], weights[connection.rank], strict=True):
        if piece.rows:
            _, at, kind = piece.name.split(".")
            share = placed.placement.module.get_submodule(f"share_{1 + int(at)}")
            torch.testing.assert_close(getattr(share, kind).data, wanted, rtol=1e-10, atol=1e-10)
    stale = max(map(max, schedule.staleness))
    assert stale < in_flight
    return stale


def message_of_several_tensors(connection):
    """Tensors of several types and sizes travel as one message, in both directions."""
    tensors = (
        TransferredTensor((1,), (0,), torch.bool),
        TransferredTensor((1, 0), (0, 2), torch.float64),
        TransferredTensor((0,), (1,), torch.float32),
        TransferredTensor((0, 1), (0, 0), torch.float32),  # nothing in it
    )
    values = (
        torch.tensor([True, False, True]),
        torch.arange(6.0, dtype=torch.float64).reshape(2, 3).t(),  # not contiguous
        torch.tensor([0.5]),
        torch.zeros(0, 3),
    )
    # Many, two a message, which are received and whose gradients are sent in another order than
    # they are sent in.
    transfers = [Transfer(n, f"l{n}", False, 0, 1, tensors, True) for n in range(20)]
    back = random.Random(0).sample(range(20), 20)
    sends = [Chunk((), (Sent(n, 1, 1), Sent(n + 1, 1, 1))) for n in range(0, 20, 2)]
    returns = [Chunk((), tuple(Sent(n, 0, 1) for n in back[at : at + 2])) for at in range(0, 20, 2)]
    everything = Chunk((*range(20),), ())
    nothing = Outline((Chunk((), ()),), (Chunk((), ()),))
    outlines = [Outline((*sends,), (everything,)), Outline((everything,), (*returns,))]
    outlines += [nothing] * (connection.k - 2)
    schedule = make_schedule(outlines, "sequential", 1, Costs())
    types, own = MapTypes(dict(enumerate(transfers))), mail(schedule, connection.rank)
    sizes = MessageSizes.of(own, types, [3], None, connection.lanes)
    post = RankMessages(connection, types, own, [3], sizes)
    there, there_and_back = (
        [Piece(direction, 0, transfer.number) for transfer in transfers]
        for direction in (Direction.FORWARD, Direction.BACKWARD)
    )
    received = []
    if connection.rank == 0:
        for piece in there:
            post.send(piece, 1, values)
        received = [post.receive(piece) for piece in there_and_back]
    elif connection.rank == 1:
        received = [post.receive(piece) for piece in reversed(there)]
        for number in back:
            post.send(there_and_back[number], 0, values)
    post.settle()
    for message in received:
        for tensor, value in zip(message, values, strict=True):
            assert tensor.dtype == value.dtype
            assert torch.equal(tensor, value)


def main(mode, *arguments):
    k = int(os.environ["WORLD_SIZE"])
    rank = int(os.environ["RANK"])
    timeout = 60.0
    if mode in ("silent", "stopped"):
        timeout = 3.0
        wait_for_imports(Path(arguments[0]), rank, k)
    with connect(k, timeout=timeout) as connection:
        if mode == "agree":
            importlib.import_module("torch.distributed.nn.functional")  # as tracing a model does
            seeds, *sizes = map(int, arguments)
            agree_on_many(connection, seeds)
            for seed, rule in enumerate(RULES):
                for micro_batches in sizes:
                    agree_in_micro_batches(connection, seed, rule, micro_batches)
            message_of_several_tensors(connection)
            for stream in STREAMS:
                stale = [agree_in_stream(connection, seed, seed, stream) for seed in (1, 2, 4)]
                assert stale[0] == 0 < max(stale)
        elif mode in ("forever", "stopped"):  # until one is killed; says when it is at work
            folder, rule, *victim = arguments
            _, placed = toy(connection)
            outlines = connection.gather(outline(placed.program, {}))
            schedule = None if rule == "called" else make_schedule(outlines, rule, 3, Costs())
            x = torch.zeros(3, WIDTHS[0], dtype=torch.float64)
            for step in range(1_000_000):
                if rule in STREAMS:
                    placed.stream(
                        [([x], None)] * 3, lambda result, _: result.sum(), id, schedule, 3
                    )
                elif schedule is not None:
                    placed.step([x], None, lambda result, _: result.sum(), schedule)
                else:
                    placed(x).sum().backward()
                if mode == "stopped" and step == 2 and rank == int(victim[0]):
                    os.kill(os.getpid(), signal.SIGSTOP)
                if step == 2:
                    Path(folder, f"{rank}.pid").write_text(str(os.getpid()))
        elif mode == "elastic":  # rank 1 is killed in the first attempt
            attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
            agree_in_micro_batches(connection, int(attempt), arguments[0], 3)
            if rank == 1 and attempt == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            agree(connection, seed=5)
            agree_in_micro_batches(connection, 5, arguments[0], 3)
            if rank == 0:
                print("agreed in attempt", attempt)
        elif mode == "silent":
            if rank == 1:
                time.sleep(30)
            connection.gather(0)
        elif mode == "refused":
            refused(connection, Path(arguments[0]), arguments[1])
        elif mode == "memory":
            if rank == 1:
                torch.empty(2**60)
            connection.gather(0)
    if mode == "agree":
        assert_no_thread_of_gloo()
        print("all agree")


def refused(connection, folder, way):
    """Rank 0 is refused what it does, and stays, as all do until all have said what they heard."""
    _, placed = toy(connection)
    outlines = connection.gather(outline(placed.program, {}))
    x = torch.zeros(3, WIDTHS[0], dtype=torch.float64)
    if way == "inputs" and connection.rank == 0:
        x = x[:, 1:]

    def broken(*_):
        raise ValueError("no such target")

    said = []
    for _ in range(2):
        try:
            if way == "called":
                result = placed(x)
                placed.backward(None)
                del result
            elif way == "order":
                results = [placed(x), placed(x)]
                results[connection.rank > 0].sum().backward()
            elif way == "alone":
                placed(x) if connection.rank == 0 else placed.gathered_state_dict()
            elif way == "stream":
                schedule = make_schedule(outlines, "async", 3, Costs(), in_flight=2)
                placed.stream([([x], None)] * 3, broken, id, schedule, 3)
            else:
                placed.step([x], None, broken)
        except (HgpartError, ValueError) as error:
            said.append(str(error))
    Path(folder, f"{connection.rank}.said").write_text("\n".join(said))
    while len(list(folder.glob("*.said"))) < connection.k:
        time.sleep(0.05)


def wait_for_imports(folder, rank, k):
    """Meet when all have imported torch: that may take longer than they wait for each other."""
    Path(folder, f"{rank}.imported").write_text("")
    while len(list(folder.glob("*.imported"))) < k:
        time.sleep(0.05)


def assert_no_thread_of_gloo():
    """One that is left when Python comes to its end may abort the process."""
    if sys.platform == "linux":
        threads = [file.read_text() for file in Path("/proc/self/task").glob("*/comm")]
        assert not [name for name in threads if "gloo" in name], threads


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except HgpartError as error:
        print(f"hgpart: error: {error}", file=sys.stderr)
        os._exit(error.exit_status)  # as the hgpart command does in a rank
