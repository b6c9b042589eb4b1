"""Predictions of placed models, by times and links for which there is another way to know."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from placed_models import batch_of, model_of, placed
from placements import of_single_tasks, traced_model
from sliced_placements import sliced
from torch import Tensor, nn
from toy_times import UNIT, in_proportion

from hgpart import Placement, peak_bytes, place
from hgpart.errors import ArgumentError, PlanError, RunError
from hgpart.execution.offloading import graphs
from hgpart.execution.offloading.stores import InFile, StoredBytes
from hgpart.execution.outlines import chunk_steps
from hgpart.hypergraph.modelling import Modelling
from hgpart.machines.machine import Device, Link, Machine, SlowerMemory
from hgpart.placement.accounting import known_step_bytes
from hgpart.placement.ordering.ordered import outlines_here
from hgpart.prediction.actions import Planned
from hgpart.prediction.jobs import Sharing, TimedJob, TimedMessage
from hgpart.prediction.measured_costs import Overheads
from hgpart.prediction.predict import period, predict
from hgpart.prediction.simulation import simulate
from hgpart.run.scheduling import schedule
from hgpart.schedules.costs import Costs
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes
from hgpart.schedules.outline import Stretch
from hgpart.schedules.schedule import Direction
from hgpart.schedules.simulation import times
from hgpart.work.layer_times import LayerTimes

NO_OVERHEADS = Overheads(0.0, 0.0, 0.0)
NAMES = ["residual", "grouped", "branches", "forked"]


def machine_of(k: int, link: Link, **shared: object) -> Machine:
    """Devices of one node."""
    devices = (Device("cpu", None, 1),) * k
    return Machine("toy", devices, (k,), link, **shared)


FAST = Link.of(0.0, 1e18)


@pytest.mark.few(1)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("name", NAMES)
def test_forward_passes_by_work_alone_are_those_of_outlines(name: str, grain: str) -> None:
    placement = placed(*model_of(name), grain=grain)
    made = schedule(placement, "gpipe", 3, backward=False)
    link = Link.of(1e-6, 1e9)
    found = predict(
        *(placement, made, machine_of(3, link), in_proportion(placement.programs.blueprint.graph)),
        batch_size=6,
        overheads=NO_OVERHEADS,
    )
    costs = Costs(samples=2, work=UNIT, byte=1e-9, message=1e-6, step=0.0)
    wanted = times([*outlines_here(placement)], made.order, costs)
    # Where a link carries one message at a time, some wait.
    assert found.seconds >= max(end for _, end in wanted) * (1 - 1e-9)
    busy = np.zeros(3)
    for action, (begin, end) in zip(made.order, wanted, strict=True):
        busy[action.part] += end - begin
    assert found.busy == pytest.approx(busy)
    assert found.busy + found.idle == pytest.approx(np.full(3, found.seconds))
    assert found.sent_bytes.tolist() == (3 * placement.programs.expected(2).traffic).tolist()


def one_device(placement: Placement, samples: int) -> float:
    """Forward, and backward where there are gradients, of all layers in proportion."""
    graph = placement.programs.blueprint.graph
    learns = placement.programs.blueprint.learns(inputs=False)
    total = 0.0
    for layer in graph.layers:
        returns = any(learns[source] for source in graph.sources(layer))
        total += (
            layer.macs * layer.tasks * UNIT * samples * (1 + returns + bool(layer.parameter_names))
        )
    return total


@pytest.mark.full
@pytest.mark.long
@given(
    st.sampled_from(["residual", "grouped", "branches"]),
    *(st.integers(1, 3), st.integers(1, 3), st.integers(0, 99)),
    *(st.sampled_from(["gpipe", "greedy", "zero-bubble"]), st.sampled_from(["coarse", "fine"])),
)
def test_parts_compute_as_much_together_as_one_device(
    name: str, slices: int, k: int, seed: int, rule: str, grain: str
) -> None:
    """However layers, and the batch, are divided, where a share takes its share of the time."""
    placement = sliced(name, slices, k, seed, grain)
    made = schedule(placement, rule, 2, batch_size=12)
    arguments = (
        placement,
        made,
        machine_of(k, FAST),
        in_proportion(placement.programs.blueprint.graph),
    )
    found = predict(*arguments, batch_size=12, overheads=NO_OVERHEADS)
    assert found.busy.sum() == pytest.approx(one_device(placement, 12))
    planned = placement.programs.expected_traffic(micro_batch_sizes(12, 2), backward=True)
    assert found.sent_bytes.tolist() == (planned.forward_bytes + planned.backward_bytes).tolist()
    assert found.peak_bytes == peak_bytes(placement, made, 12)
    together = predict(
        *(placement, made, machine_of(k, FAST, together=(1.0, 2.0, 3.0)), arguments[-1]),
        batch_size=12,
        overheads=NO_OVERHEADS,
    )
    assert found.seconds <= together.seconds * (1 + 1e-9)
    assert together.seconds <= one_device(placement, 12) * (1 + 1e-9) + 1e-9


@pytest.mark.full
@given(st.integers(0, 99), st.integers(2, 3))
def test_what_only_travels_takes_as_long_as_the_busiest_link_at_least(seed: int, k: int) -> None:
    """Weights, their gradients and maps over slow links, where computing takes no time."""
    placement = sliced("residual", 2, k, seed)
    made = schedule(placement, "greedy", 2, batch_size=4)
    nothing = LayerTimes((1,), (None,) * len(placement.programs.blueprint.graph.layers), "by hand")
    found = predict(
        *(placement, made, machine_of(k, Link.of(0.0, 1000.0)), nothing),
        batch_size=4,
        overheads=NO_OVERHEADS,
    )
    assert found.sent_bytes.max() / 1000 <= found.seconds * (1 + 1e-9)
    assert found.seconds <= found.sent_bytes.sum() / 1000 * (1 + 1e-9)
    assert found.busy.tolist() == [0.0] * k


def test_what_is_computed_again_takes_its_forward_time_again() -> None:
    placement = placed(*model_of("residual")).train()
    made = schedule(placement, "gpipe", 2, batch_size=4, recompute=True)
    options = (
        machine_of(3, FAST),
        in_proportion(placement.programs.blueprint.graph),
        4,
        NO_OVERHEADS,
    )
    again = predict(placement, made, *options)
    plain = predict(placement, made.keeping(range(3)), *options)
    more = [
        4 * UNIT * sum(chunk.recomputed for chunk in outline.backward) for outline in made.outlines
    ]
    assert max(more) > 0
    assert again.busy - plain.busy == pytest.approx(more)


def offloading_all(model: str = "residual") -> tuple[Placement, tuple[tuple[Stretch, ...], ...]]:
    """A placement, and all of each part's steps in one stretch."""
    placement = placed(*model_of(model)).train()
    chunks = [chunk_steps(placement.programs.parts[part]) for part in range(placement.k)]
    return placement, tuple((Stretch(tuple(chain(*own)), offloaded=True),) for own in chunks)


@pytest.mark.parametrize("rule", ["gpipe", "zero-bubble", "1f1b"])
def test_what_is_offloaded_takes_the_time_to_write_and_read_what_a_step_really_does(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "LEAST", 1)
    moved = Counter[int]()

    class Counting(InFile):
        def write(self, data: Tensor) -> StoredBytes:
            moved[self.part] += data.nbytes
            return super().write(data)

        def read(self, file: object, begin: int, nbytes: int) -> Tensor:
            moved[self.part] += nbytes
            return super().read(file, begin, nbytes)

    placement, stretches = offloading_all()
    options = in_proportion(placement.programs.blueprint.graph), 4, NO_OVERHEADS
    made = schedule(placement, rule, 2, batch_size=4, recompute=stretches)
    plain = schedule(placement, rule, 2, batch_size=4)
    toy = machine_of(3, FAST)
    disks = tuple(
        replace(own, slower=SlowerMemory(1e6 * (1 + at))) for at, own in enumerate(toy.devices)
    )
    found = predict(placement, made, replace(toy, devices=disks), *options)
    busy = found.busy - predict(placement, plain, toy, *options).busy
    assert found.offloaded_bytes.min() > 0
    assert busy == pytest.approx(found.offloaded_bytes / [1e6, 2e6, 3e6])

    for part in range(placement.k):
        placement.runtime._slower[part] = Counting()
        placement.runtime._slower[part].part = part
    placement.step(batch_of(model_of("residual")[1], 4), None, mean, made)
    assert [moved[part] for part in range(3)] == found.offloaded_bytes.tolist()


def mean(result: Tensor, targets: object) -> Tensor:
    return result.mean()


def test_a_device_without_slower_memory_is_named() -> None:
    placement, stretches = offloading_all()
    made = schedule(placement, "gpipe", 2, batch_size=4, recompute=stretches)
    times = in_proportion(placement.programs.blueprint.graph)
    with pytest.raises(ArgumentError, match=r"part 0 offloads, and device 0 of machine toy has no"):
        predict(placement, made, machine_of(3, FAST), times, 4)


def test_a_device_without_room_in_slower_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "LEAST", 1)
    placement, stretches = offloading_all()
    made = schedule(placement, "gpipe", 2, batch_size=4, recompute=stretches)
    times = in_proportion(placement.programs.blueprint.graph)
    needed = [known.elsewhere for known in known_step_bytes(placement, made, 4)]
    toy = machine_of(3, FAST)

    def with_room(room: int) -> Machine:
        disk = SlowerMemory(1e9, room)
        return replace(toy, devices=tuple(replace(own, slower=disk) for own in toy.devices))

    predict(placement, made, with_room(max(needed)), times, 4)
    with pytest.raises(ArgumentError, match=f"offloads {max(needed)} bytes, and device"):
        predict(placement, made, with_room(max(needed) - 1), times, 4)


def test_a_stream_is_of_several_batches_with_their_updates() -> None:
    placement = placed(*model_of("residual"), kind="layers").train()
    made = schedule(placement, "async", 5, batch_size=4)
    layer_times = in_proportion(placement.programs.blueprint.graph, update=UNIT)
    options = machine_of(3, FAST), layer_times, 4, NO_OVERHEADS
    found = predict(placement, made, *options)
    step = predict(placement, schedule(placement, "gpipe", 1, batch_size=4), *options)
    updates = sum(bool(one.parameter_names) for one in placement.programs.blueprint.graph.layers)
    assert found.busy.sum() == pytest.approx(5 * (step.busy.sum() + updates * UNIT))
    middle = [
        [
            span.end
            for action, span in zip(found.schedule.order, found.spans, strict=True)
            if action[:2] == (part, Direction.UPDATE) and 1 <= action.micro_batch <= 3
        ]
        for part in range(3)
    ]
    assert found.period == pytest.approx(5 * max(last - first for first, _, last in middle) / 2)
    assert found.samples_per_second == pytest.approx(20 / found.period)
    assert (found.update_seconds, step.update_seconds > 0) == (0.0, True)


def test_wrong_machines_times_and_schedules_are_errors_of_one_line() -> None:
    placement = placed(*model_of("residual")).train()
    made, layer_times = (
        schedule(placement, "gpipe", 2),
        in_proportion(placement.programs.blueprint.graph),
    )
    with pytest.raises(ArgumentError, match="of 2 devices for k=3"):
        predict(placement, made, machine_of(2, FAST), layer_times)
    fewer = replace(layer_times, layers=layer_times.layers[1:])
    with pytest.raises(PlanError, match="layers: accepted are those of the model's"):
        predict(placement, made, machine_of(3, FAST), fewer)
    other = schedule(placed(*model_of("residual"), k=2), "gpipe", 2)
    with pytest.raises(PlanError, match="schedule of 2 parts is for other chunks"):
        predict(placement, other, machine_of(3, FAST), layer_times)
    sizes = placement.forms.present.sizes
    placement.forms.for_sizes(tuple((channels, 16, 12) for channels, *_ in sizes))
    with pytest.raises(
        PlanError, match=r"^a placement for inputs of \dx16x12( in a batch of \d)?: "
    ):
        predict(placement, made, machine_of(3, FAST), layer_times)
    placement.forms.for_sizes(sizes)
    assert predict(placement, made, machine_of(3, FAST), layer_times).seconds > 0
    some = placed(*model_of("residual"), parts=[0]).train()
    with pytest.raises(RunError, match="holds 1 of 3 parts"):
        predict(some, made, machine_of(3, FAST), layer_times)


class ClassToken(nn.Module):
    """Of one sample, its graph is another: the token is not copied."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of a sample, from its class token."""
        token = self.token.expand(len(tokens), -1, -1)
        scores: Tensor = self.head(torch.cat([token, self.embed(tokens)], 1)[:, 0])
        return scores


def test_a_batch_of_another_graph_with_the_same_layers_is_predicted() -> None:
    """recommend dropped one device for vit_base at a batch of 1, "as times were measured" for 2."""
    model, tokens = ClassToken(), torch.zeros(2, 5, 4)
    traced, graph = traced_model(model, [tokens])
    placement = place(
        model, of_single_tasks(traced, graph, Modelling("coarse", batch_size=1), 2, seed=0)
    )
    placement.for_batch(1)
    assert placement.forms.present.batch_size == 1
    made, layer_times = schedule(placement, "gpipe", 1), in_proportion(graph)
    assert predict(placement, made, machine_of(2, FAST), layer_times).seconds > 0


def test_turns_send_what_a_run_sends_and_compute_each_batch_whole() -> None:
    """Of a run all is counted; the first weights are there when a simulation begins."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).double()
    inputs = [torch.randn(4, 3, 8, 8).double()]
    modelling = Modelling(batch_size=4, slices=3)
    plan = of_single_tasks(*traced_model(model, inputs), modelling, 3, seed=2)
    placement = place(model, plan).train()
    made = schedule(placement, "turns", 7, in_flight=2, batch_size=4)
    layer_times = in_proportion(placement.programs.blueprint.graph)
    found = predict(placement, made, machine_of(3, FAST), layer_times, 4, NO_OVERHEADS)
    placement.stream([(inputs, None)] * 7, lambda result, _: result.sum(), id, made)
    sent = placement.runtime.last.traffic
    first = np.zeros_like(sent.forward_bytes)
    copies = placement.copies.in_turns(lambda here: [here])
    for exchange in copies.weights:
        if exchange.owner != exchange.holder:
            first[exchange.owner, exchange.holder] += copies.nbytes(exchange)
    assert (found.sent_bytes == sent.forward_bytes + sent.backward_bytes - first).all()
    whole = placed(model, inputs, "random", 1).train()
    step = predict(
        *(whole, schedule(whole, "sequential", 1), machine_of(1, FAST), layer_times),
        *(4, NO_OVERHEADS),
    )
    assert found.busy.sum() == pytest.approx(7 * step.busy.sum())


@pytest.mark.full
@pytest.mark.long
@given(st.sampled_from(NAMES), *(st.integers(2, 3), st.integers(2, 3), st.integers(0, 99)))
def test_a_stream_over_slices_sends_weights_once_a_batch_and_back(
    name: str, slices: int, k: int, seed: int
) -> None:
    """All that its messages come to is the table's; but the first weights are there."""
    placement = sliced(name, slices, k, seed)
    made = schedule(placement, "async", 4, batch_size=6)
    found = predict(
        *(placement, made, machine_of(k, FAST), in_proportion(placement.programs.blueprint.graph)),
        batch_size=6,
    )
    assert found.period > 0
    journeys = [
        (piece.direction, action.part, receiver, piece.number)
        for action in found.schedule.order
        for receiver, pieces in found.schedule.sends(action).items()
        for piece in pieces
        if action.is_of_weights
    ]
    copies = placement.copies.present.weights
    wanted = Counter[tuple[Direction, int, int, int]]()
    for number, one in enumerate(copies):
        if one.owner != one.holder:
            wanted[Direction.SPREAD, one.owner, one.holder, number] = 3
            wanted[Direction.REDUCE, one.holder, one.owner, number] = 4
    assert Counter(journeys) == wanted
    assert found.sent_bytes.sum() > 0


def test_parts_with_nothing_to_do_take_no_time() -> None:
    """Their programs have no step, so that their chunks end nowhere."""
    model, inputs = model_of("residual")
    placement = placed(model, inputs, "random", k=24).train()
    idle = [part for part in range(24) if not list(placement.programs.submodule(part).children())]
    assert idle
    made = schedule(placement, "greedy", 2, batch_size=4)
    found = predict(
        *(placement, made, machine_of(24, FAST), in_proportion(placement.programs.blueprint.graph)),
        batch_size=4,
        overheads=NO_OVERHEADS,
    )
    assert found.seconds > 0
    assert all(found.busy[part] == 0 for part in idle)


def test_a_period_is_what_one_more_step_takes() -> None:
    """By steps in a row, where one part is done long before the other and goes ahead."""
    work = [[TimedJob(1.0, sends=(0,)), TimedJob(1.0)], [TimedJob(5.0, awaits=(0,))]]
    journeys = [TimedMessage(0, 1, 1.0, 1.0)]
    planned = Planned(work, journeys, (), ())
    assert simulate(work, journeys, Sharing((0, 1))).end == 7.0
    assert period(planned, Sharing((0, 1))) == 5.0
    back = [
        [TimedJob(1.0, sends=(0,)), TimedJob(1.0, awaits=(1,))],
        [TimedJob(5.0, awaits=(0,), sends=(1,))],
    ]
    planned = Planned(back, [*journeys, TimedMessage(1, 0, 1.0, 1.0)], (), ())
    assert period(planned, Sharing((0, 1))) == 9.0


@pytest.mark.full
@given(st.sampled_from(NAMES), st.integers(1, 3), st.integers(1, 2))
def test_a_period_is_no_longer_than_a_step(name: str, count: int, slices: int) -> None:
    placement = sliced(name, slices, 2, 0)
    made = schedule(placement, "greedy", count)
    link = Link.of(1e-3, 1e6)
    times_of = in_proportion(placement.programs.blueprint.graph)
    found = predict(placement, made, machine_of(2, link), times_of)
    assert found.busy.max() * (1 - 1e-9) <= found.period <= found.seconds * (1 + 1e-9)
