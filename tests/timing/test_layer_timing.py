from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from builtin_graphs import UNLIKE, each_model, unlike
from torch import nn

from hgpart.errors import ArgumentError, ModelError
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.timing import layer_timing, step_timing
from hgpart.timing.layer_timing import time_layers
from hgpart.timing.step_timing import StepTimes
from hgpart.tracing.traced_model import TracedModel, example_inputs, trace
from hgpart.work.layer_times import Pass


def prepared(model: nn.Module, *shape: int) -> tuple[nn.Module, TracedModel, ChannelGraph]:
    traced = trace(model, example_inputs(model, shape))
    return model, traced, channel_graph(traced)


def chain() -> nn.Module:
    alike = [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(*alike, nn.Flatten(), nn.Linear(64, 10))


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Each point is run once; what was enough for each."""
    told = []

    def run_once(run: Callable[[], Any], enough: float) -> Any:
        told.append(enough)
        return run()

    monkeypatch.setattr(layer_timing, "steady_seconds", run_once)
    monkeypatch.setattr(step_timing, "MOST", 1)
    monkeypatch.setattr(step_timing, "room_for", lambda device: 0)
    return told


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no memory for a whole model."""
    monkeypatch.setattr(layer_timing, "whole_model", lambda *what: None)


@pytest.mark.long
@pytest.mark.parametrize("name", each_model(names=UNLIKE, quick=("lenet5",)))
def test_every_layer_of_every_model_can_be_measured(name: str, once: list[float]) -> None:
    model, shape = unlike(name)
    _, traced, graph = prepared(model, *shape)
    times = time_layers(model, traced, graph, batch_size=1)
    assert times.samples == (1,)
    assert once
    for at, layer in enumerate(graph.layers):
        seconds = [times.seconds(at, which, 1.0, 1) for which in Pass]
        assert all(0 <= one < math.inf for one in seconds)
        assert (seconds[0] > 0) == bool(layer.operators)
        assert (seconds[-1] > 0) >= (layer.kind not in ("parameter",) and layer.parameters > 0)


def test_equal_layers_are_measured_once(once: list[float]) -> None:
    model, traced, graph = prepared(chain(), 4, 4, 4)
    times = time_layers(model, traced, graph, batch_size=2)
    assert [layer.tasks for layer in graph.layers] == [1, 4, 4, 4, 4, 10, 1]
    _, first, *others, linear, _ = times.layers
    assert first is not None and linear is not None
    assert first.tasks == (1, 2, 3, 4)
    assert linear.tasks == (1, 2, 3, 5, 8, 10)
    assert all(one is not None and one.tasks == (1, 2, 3, 4) for one in others)
    assert times.samples == (1, 2)
    assert len(once) == 4 + 4 + 6  # but for two samples


@pytest.mark.usefixtures("alone")
def test_points_are_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted:
        def __init__(self, share: Any, samples: int, device: torch.device) -> None:
            weights = sum(one.numel() for one in share.step.module.parameters())
            self.samples, self.weights = samples, weights

        def run(self) -> tuple[float, ...]:
            scale = self.weights * self.samples
            return 1.0 * scale, 2.0 * scale, 3.0 * scale, 5.0 * self.weights

    monkeypatch.setattr(layer_timing, "TimedShare", Counted)
    model, traced, graph = prepared(nn.Sequential(nn.Conv2d(3, 16, 3)), 3, 8, 8)
    times = time_layers(model, traced, graph, batch_size=6)
    assert times.samples == (1, 2, 6)
    for share in (1 / 16, 1 / 8, 0.3, 1.0):
        for samples in (1, 2.5, 6):
            found = [times.seconds(1, which, share, samples) for which in Pass]
            scale = 16 * 28 * share
            expected = [scale * samples * one for one in (1, 2 + 3, 2, 3)]
            expected.append(5 * scale)
            assert found == pytest.approx(expected)


@pytest.mark.few(1)
@pytest.mark.parametrize("noise", [0.0, 0.6])
def test_whole_layers_take_what_they_take_in_steps(
    monkeypatch: pytest.MonkeyPatch, noise: float
) -> None:
    """Shares on their own take a quarter of a second for each quarter of the tasks.

    A half that was measured to take longer than all makes nothing of all of it longer: sums of
    layers came out a tenth above their step.
    """
    model, traced, graph = prepared(nn.Sequential(nn.Conv2d(3, 4, 3)), 3, 8, 8)

    class Counted:
        def __init__(self, share: Any, samples: int, device: torch.device) -> None:
            count = len(share.step.module.get_parameter("weight"))
            self.run = lambda: (count / 4 + noise * (count == 2),) * 4

    in_steps = {
        which: np.outer([0.0, 1.0, 0.0], [8.0 + at, 16.0 + at]) for at, which in enumerate(Pass)
    }
    steps = StepTimes((2, 6), in_steps, neighbours=3, beside=1.5)
    monkeypatch.setattr(layer_timing, "TimedShare", Counted)
    monkeypatch.setattr(layer_timing, "steady_seconds", lambda run, enough: run())
    monkeypatch.setattr(layer_timing, "time_steps", lambda *asked, briefly: steps)
    times = time_layers(model, traced, graph, batch_size=6)
    assert (times.samples, times.neighbours, times.beside) == ((2, 6), 3, 1.5)
    for at, which in enumerate(Pass):
        for share in (0.25, 0.5, 1.0) if not noise else (1.0,):
            found = [times.seconds(1, which, share, samples) for samples in (2, 6)]
            several = [8 + at, 16 + at] if which is not Pass.UPDATE else [12 + at] * 2
            assert found == pytest.approx([share * one for one in several])


@pytest.mark.usefixtures("alone")
def test_what_falls_is_made_to_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    durations = iter([[float(at % 3)] * 4 for at in range(100)])
    monkeypatch.setattr(layer_timing, "steady_seconds", lambda run, enough: tuple(next(durations)))
    model, traced, graph = prepared(nn.Sequential(nn.Linear(3, 6)), 3)
    shares = time_layers(model, traced, graph, batch_size=8).layers[1]
    assert shares is not None
    for which, table in shares.seconds.items():
        columns = [*zip(*table, strict=True)]
        assert all(list(row) == sorted(row) for row in (*table, *columns))
        assert len(columns) == (1 if which is Pass.UPDATE else 3)


class FixedBatch(nn.Module):
    """Counts the batch in Python, so torch.export fixes it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.linear(image.reshape(len(range(image.shape[0])), 12))


def test_a_fixed_batch_is_measured_as_it_is(once: list[float]) -> None:
    times = time_layers(*prepared(FixedBatch(), 3, 4), batch_size=32)
    assert times.samples == (2,)
    one, four = (times.seconds(1, Pass.FORWARD, 1.0, samples) for samples in (1, 4))
    assert four == pytest.approx(4 * one)


@pytest.mark.full
def test_the_source_says_where_it_was_measured(once: list[float]) -> None:
    times = time_layers(*prepared(nn.Sequential(nn.Linear(3, 2)), 3), batch_size=5)
    assert re.fullmatch(
        rf"profile cpu \({torch.get_num_threads()} threads\) batches of up to 5, "
        rf"torch {re.escape(torch.__version__)}, .+, \d{{4}}-\d\d-\d\d",
        times.source,
    )


@pytest.mark.full
def test_all_points_together_are_not_repeated_for_longer_than_6_s(
    once: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    what = prepared(nn.Sequential(nn.Linear(3, 2)), 3)
    time_layers(*what, batch_size=2)
    assert once == [layer_timing.ENOUGH] * 2
    monkeypatch.setattr(layer_timing, "REPEATING", 0.05)
    time_layers(*what, batch_size=2)
    assert once[2:] == [0.025] * 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_only(
    once: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    what = prepared(nn.Sequential(nn.Linear(3, 2)), 3)
    time_layers(*what, batch_size=1)
    assert capsys.readouterr() == ("", "")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    time_layers(*what, batch_size=1)
    assert "profile" in terminal.getvalue()


@pytest.mark.full
@pytest.mark.long
def test_ctrl_c_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(run: Any, enough: float) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(layer_timing, "steady_seconds", interrupt)
    with pytest.raises(KeyboardInterrupt):
        time_layers(*prepared(nn.Sequential(nn.Linear(3, 2)), 3))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch size 0: accepted is 1 or more"),
        ({"device": "abacus"}, "device 'abacus': accepted here are cpu"),
        ({"device": "meta"}, "device 'meta': accepted here are cpu"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    what = prepared(nn.Sequential(nn.Linear(3, 2)), 3)
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}"):
        time_layers(*what, **options)


@pytest.mark.full
@pytest.mark.long
def test_a_layer_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(run: Any, enough: float) -> Any:
        raise RuntimeError("can't allocate memory:\nall of it")

    monkeypatch.setattr(layer_timing, "steady_seconds", run_out)
    said = "can't profile layer '0' on cpu in batches of up to 1: can't allocate memory:"
    with pytest.raises(ModelError, match=f"^{re.escape(said)}$"):
        time_layers(*prepared(nn.Sequential(nn.Linear(3, 2)), 3), batch_size=2)


@pytest.mark.usefixtures("alone")
def test_briefly_there_are_fewer_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_timing, "steady_seconds", lambda run, enough: (1.0,) * 4)
    model, traced, graph = prepared(nn.Sequential(nn.Linear(3, 16)), 3)
    usual, brief = (
        time_layers(model, traced, graph, batch_size=32, briefly=briefly).layers[1]
        for briefly in (False, True)
    )
    assert usual is not None
    assert brief is not None
    assert (usual.tasks, brief.tasks) == ((1, 2, 4, 8, 12, 16), (1, 4, 8, 16))
