"""Ways to infer: what passes of their plans are simulated to take, without gradients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from recommended import machine, network, recommended
from toy_times import in_proportion

from hgpart.errors import InfeasibleError
from hgpart.layers.layering import channel_graph
from hgpart.placement import place
from hgpart.prediction.predict import Prediction, predict
from hgpart.recommendation import ways as module
from hgpart.recommendation.ranking import Ranked, Recommendation
from hgpart.recommendation.recommend import recommend
from hgpart.recommendation.trials import trials
from hgpart.report.recommendation import reasons
from hgpart.run.scheduling import schedule
from hgpart.tracing.traced_model import trace


@pytest.fixture(scope="module", autouse=True)
def _few() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        named = ("single", "data-parallel", "layerwise")
        patch.setattr(
            module,
            "trials",
            lambda k, *_, **__: [one for one in trials(k) if one.k in (1, k) and one.name in named],
        )
        yield


@pytest.fixture(scope="module")
def latencies() -> Recommendation:
    return recommended(machine(2), goal="latency", scale=1e3)


def pass_of(ranked: Ranked) -> Prediction:
    """Of the plan, placed anew in evaluation mode."""
    placement = place(network().eval(), ranked.plan, ["meta"] * ranked.trial.k)
    order = ranked.scheduling
    made = schedule(placement, order.rule, order.micro_batches, backward=False, batch_size=8)
    times = in_proportion(placement.programs.blueprint.graph, scale=1e3)
    return predict(placement, made, machine(2), times, 8)


def test_a_latency_is_that_of_a_pass_alone(latencies: Recommendation) -> None:
    assert [one.trial.name for one in latencies.ranked][-1] == "single"
    seconds = [pass_of(one).seconds for one in latencies.ranked]
    assert [one.seconds for one in latencies.ranked] == pytest.approx(seconds)
    assert seconds == sorted(seconds)
    best = latencies.best
    assert best.partition.modelling.training is False
    assert latencies.speed_up(best) == pytest.approx(seconds[-1] / seconds[0])
    assert "batches of 8 samples" in str(latencies.summary())


@pytest.mark.full
@pytest.mark.long
def test_batches_that_follow_each_other_overlap(latencies: Recommendation) -> None:
    found = recommended(machine(2), goal="inference-throughput", scale=1e3)
    for one in found.ranked:
        assert one.seconds == pytest.approx(pass_of(one).period)
        assert one.prediction.update_seconds == 0
    layerwise = {one.trial.name: one for one in found.ranked}["layerwise"]
    alone = {one.trial.name: one for one in latencies.ranked}["layerwise"]
    assert layerwise.seconds < alone.seconds


def test_one_image_is_divided_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the rows take half of the time on each of two devices; words say what that is."""
    names = ("single", "layerwise", "spatial", "spatial-6")
    listed = [one for one in trials(2, (4, 6, 8)) if one.name in names]
    monkeypatch.setattr(
        module, "trials", lambda k, heights, **_: listed if heights == (4, 6, 8) else []
    )
    found = recommended(machine(2), goal="latency", scale=1e5, batch_size=1)
    assert [one.trial.name for one in found.ranked[:2]] == ["spatial", "spatial-6"]
    assert found.best.partition.modelling.bands == 2
    assert 1.5 < (found.speed_up(found.best) or 0.0) < 2
    assert "spatial: rows of the maps in k bands" in next(reasons(found, "MB"))
    placement = place(network().eval(), found.best.plan, ["meta"] * 2)
    times = in_proportion(placement.programs.blueprint.graph, scale=1e5)
    made = schedule(placement, "greedy", 1, backward=False, batch_size=1)
    assert found.best.seconds == pytest.approx(
        predict(placement, made, machine(2), times, 1).seconds
    )


def test_memory_is_without_gradients_and_momentum(latencies: Recommendation) -> None:
    training = recommended(machine(1))
    parameters = 4 * sum(parameter.numel() for parameter in network().parameters())
    infers, learns = latencies.one_device.largest_bytes, training.one_device.largest_bytes
    assert infers is not None and learns is not None
    assert infers > parameters
    assert learns - infers > 2 * parameters
    recommended(machine(1, memory=infers), goal="latency")
    with pytest.raises(InfeasibleError, match="no way to run model fits in memory"):
        recommended(machine(1, memory=100), goal="latency")


@pytest.mark.full
def test_a_model_in_evaluation_mode_is_as_good() -> None:
    model, example = network().eval(), torch.zeros(2, 3, 8, 8)
    times = in_proportion(channel_graph(trace(model, (example,))))
    options = {"machine": machine(2), "times": times, "batch_size": 1}
    found = recommend(model, example, goal="latency", **options)  # type: ignore[arg-type]
    assert found.batch_size == 1
    assert found.best.partition.modelling.batch_size == 1
