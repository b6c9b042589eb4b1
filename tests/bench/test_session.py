"""Every way, in processes, trains as the plain model does.

The command's tests have some of them in the quick set.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from hgpart import channel_graph, flops, load_model, place, trace
from hgpart.bench.plans import Subject, layout_of
from hgpart.bench.results import summed_losses
from hgpart.bench.session import Session
from hgpart.bench.ways.job import Job
from hgpart.bench.ways.tiles import FusedTiles
from hgpart.bench.ways.way import all_ways, chosen_ways, way_of
from hgpart.hypergraph.modelling import Modelling
from hgpart.partition.problem.problem import Problem
from hgpart.plan import Plan
from hgpart.run.training.scores import cross_entropy
from hgpart.tracing.traced_model import example_inputs

STEPS = 3
JOB = Job("lenet5", (1, 32, 32), classes=10, batch_size=8, workers=2, lr=0.1, timeout=60.0)
SCHEDULED = (
    "pipeline-1f1b:2",
    "spatial",
    "rows-then-filters",
    "coarse:1f1b:2",
    "sliced:zero-bubble:2",
    "layerwise:async",
    "ps-async:servers=2:push=2:staleness=1",
)
WAYS = [(text, 2) for text in (*(way.text for way in all_ways(2)), *SCHEDULED)]
WAYS += [("hybrid-2", 4), ("pipeline-1f1b:4", 3)]
FREE = ("apart", "ps-async", "ps-async:distributed", "layerwise:async", SCHEDULED[-1])


@cache
def subject(k: int, inference: bool = False) -> Subject:
    model, shape = load_model("lenet5", device="meta")
    model.train(not inference)
    traced = trace(model, example_inputs(model, shape))
    graph = channel_graph(traced)
    problem = Problem(graph, flops(graph), Modelling(batch_size=8), k, 0.3)
    return Subject("lenet5", shape, traced, problem, seed=0, effort=0.0)


FORWARD = [(way.text, 2) for way in chosen_ways(None, 2, inference=True)]
FORWARD += [("pipeline-gpipe:2", 2), ("layerwise:gpipe:2", 2), ("data-parallel", 2)]
FORWARD += [("spatial-data", 4), ("fused-tiles", 3)]


@cache
def plainly() -> tuple[list[float], dict[str, Tensor]]:
    """What autograd and SGD make of the same batch, in this process."""
    model, batches = JOB.new_model(), JOB.batches()
    images, labels = batches.images(0, range(8)), batches.labels(0, range(8))
    losses = []
    for _ in range(STEPS):
        model.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= JOB.lr * parameter.grad
        losses.append(loss.item())
    return losses, model.state_dict()


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(("text", "workers"), WAYS)
def test_losses_and_weights_are_those_of_the_plain_model(text: str, workers: int) -> None:
    way = way_of(text)
    job = replace(JOB, workers=workers)
    with Session(way, job, layout_of(way, subject(workers))) as session:
        laps = [*session.learn(1), *session.learn(STEPS - 1)]
        state = session.state()
    count = way.processes(workers)
    assert len(laps) == 2 * count
    first, others = laps[:count], laps[count:]
    losses = [*summed_losses(first), *summed_losses(others)]
    wanted, weights = plainly()
    assert losses[0] == pytest.approx(wanted[0], rel=1e-5)
    assert len(losses) == STEPS
    assert state.keys() == weights.keys()
    if text not in FREE:
        assert losses == pytest.approx(wanted, rel=1e-4)
        for name, weight in weights.items():
            torch.testing.assert_close(state[name], weight, rtol=1e-3, atol=1e-5)
    for lap in others:
        assert [*lap.ends] == sorted(lap.ends)
        assert len(lap.ends) == (0 if lap.losses == () and way.name.startswith("ps-") else 2)
        assert lap.peak_bytes > 10**7
        assert (lap.sent_bytes or 0) >= 0
    if text not in ("single", "apart"):
        assert sum(lap.sent_bytes or 0 for lap in others) > 0


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(("text", "workers"), FORWARD)
def test_passes_make_what_the_plain_model_makes(text: str, workers: int) -> None:
    way = way_of(text)
    job = replace(JOB, workers=workers, inference=True)
    layout = layout_of(way, subject(workers, inference=True))
    with Session(way, job, layout) as session:
        session.learn(1)  # parts also get their copies of weights
        laps = session.learn(STEPS)
    with torch.no_grad():
        wanted = job.new_model()(job.batches().images(0, range(8))).mean().item()
    assert summed_losses(laps) == pytest.approx([wanted] * STEPS, rel=1e-5)
    for lap in laps:
        assert len(lap.begins) == len(lap.ends) == STEPS
        assert all(begin < end for begin, end in zip(lap.begins, lap.ends, strict=True))
    sent = sum(lap.sent_bytes or 0 for lap in laps)
    if isinstance(layout, FusedTiles):
        assert sent == STEPS * layout.sent_bytes
    elif isinstance(layout, Plan) and text != "data-parallel":
        placed = place(job.new_model(), layout)
        assert sent == STEPS * placed.programs.expected_traffic([8], False).forward_bytes.sum()
    elif text in ("single", "apart"):
        assert sent == 0


@pytest.mark.full
def test_a_plan_of_a_model_in_training_runs_forward() -> None:
    job = replace(JOB, inference=True)
    with Session(way_of("coarse"), job, layout_of(way_of("coarse"), subject(2))) as session:
        laps = session.learn(STEPS)
    with torch.no_grad():
        wanted = job.new_model()(job.batches().images(0, range(8))).mean().item()
    assert summed_losses(laps) == pytest.approx([wanted] * STEPS, rel=1e-5)
