from __future__ import annotations

import io
import re
import sys
import weakref
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hgpart.errors import ArgumentError, ModelError
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.tracing.traced_model import TracedModel, example_inputs, trace
from hgpart.work import profiling
from hgpart.work.figures import FEMTOSECONDS, Work
from hgpart.work.profiling import profile
from hgpart.zoo import load_model


def prepared(model: nn.Module, *shape: int) -> tuple[nn.Module, TracedModel, ChannelGraph]:
    traced = trace(model, example_inputs(model, shape))
    return model, traced, channel_graph(traced)


@cache
def tiny() -> tuple[nn.Module, TracedModel, ChannelGraph]:
    return prepared(nn.Sequential(nn.Linear(3, 2)), 3)


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 5, 1),
        nn.Flatten(),
        nn.Linear(20, 3),
    )


class FixedBatch(nn.Module):
    """Counts the batch in Python, so torch.export fixes it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.reshape(len(range(x.shape[0])), 12))


class Lookup(nn.Module):
    """Integer input, integer buffer and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 6)
        self.order: torch.Tensor
        self.register_buffer("order", torch.tensor([5, 3, 1]), persistent=False)
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.table(x)[:, self.order]
        return self.linear(torch.where(found > 0, found, 0.5))


class FakeClock:
    """A clock that each forward and backward pass moves on by the next of the durations."""

    def __init__(self, durations: list[float]) -> None:
        self.durations: Iterator[float] = iter(durations)
        self.now = 100.0
        self.running = False

    def __call__(self) -> float:
        if self.running:
            self.now += next(self.durations)
        self.running = not self.running
        return self.now


def timed(
    monkeypatch: pytest.MonkeyPatch, durations: list[float], what: Any, **options: Any
) -> Work:
    clock = FakeClock(durations)
    monkeypatch.setattr(profiling, "clock_of", lambda device: clock)
    work = profile(*what, **options)
    assert next(clock.durations, None) is None, "fewer runs than expected"
    return work


def computing(graph: ChannelGraph) -> list[bool]:
    return [bool(layer.operators) for layer in graph.layers]


# ------------------------------------------------------------------ what is measured


def test_median_of_the_repeats_after_warm_up_divided_among_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    what = prepared(small_cnn(), 3, 6, 6)
    per_layer = [90.0, 80.0, 5.0, 1.0, 3.0], [70.0, 0.0, 7.0, 8.0, 6.0], [9.0, 9.0, 0.5, 0.5, 2.0]
    durations = [duration for layer in per_layer for duration in layer]
    work = timed(monkeypatch, durations, what, batch_size=4, repeats=3, warm_up=2)
    tasks = [layer.tasks for layer in what[2].layers]
    assert tasks == [1, 8, 5, 3, 1]
    seconds = [0.0, 3.0, 7.0, 0.5, 0.0]
    assert work.per_task.tolist() == [
        round(s / t * FEMTOSECONDS) for s, t in zip(seconds, tasks, strict=True)
    ]
    assert work.per_task.dtype == np.int64
    assert (work.unit, work.units) == ("s", FEMTOSECONDS)


def test_an_even_number_of_repeats_takes_the_mean_of_the_middle_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    what = tiny()
    work = timed(monkeypatch, [4.0, 1.0, 2.0, 9.0], what, repeats=4, warm_up=0)
    assert work.per_task.tolist() == [0, round(1.5 * FEMTOSECONDS), 0]


def test_tied_layers_are_measured_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = nn.Linear(4, 4)
    what = prepared(nn.Sequential(linear, nn.ReLU(), linear), 4)
    assert [layer.tied_to for layer in what[2].layers] == [0, 1, 1, 3]
    work = timed(monkeypatch, [4.0, 8.0], what, repeats=1, warm_up=0)
    assert work.per_task.tolist() == [0, FEMTOSECONDS, 2 * FEMTOSECONDS, 0]


@pytest.mark.few(1)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_every_layer_that_computes_takes_time_even_without_weights(device: str) -> None:
    model, shape = load_model("lenet5", device=device)
    assert shape is not None
    _, traced, graph = prepared(model, *shape)
    work = profile(model, traced, graph, batch_size=3, repeats=1, warm_up=0)
    assert (work.per_task > 0).tolist() == computing(graph)


@pytest.mark.full
def test_operands_have_the_batch_asked_for_and_gradients_go_where_training_needs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, traced, graph = prepared(small_cnn(), 3, 6, 6)
    asked: list[list[tuple[int, ...]]] = []
    differentiate = torch.autograd.grad

    def spy(outputs: Any, leaves: Any, upstream: Any, **options: Any) -> Any:
        asked.append([tuple(leaf.shape) for leaf in leaves])
        return differentiate(outputs, leaves, upstream, **options)

    monkeypatch.setattr(torch.autograd, "grad", spy)
    profile(model, traced, graph, batch_size=7, repeats=1, warm_up=0)
    assert asked == [
        [(8, 3, 3, 3), (8,), (8,), (8,)],  # not the model's input
        [(5, 8, 1, 1), (5,), (7, 8, 2, 2)],
        [(3, 20), (3,), (7, 5, 2, 2)],  # flattened by the layer that reads it
    ]


def test_maps_before_the_first_parameter_need_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x * 2)

    calls = 0

    def spy(outputs: Any, leaves: Any, upstream: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        assert [leaf.dim() for leaf in leaves] == [4, 1]

    model, traced, graph = prepared(Scaled(), 3, 4, 4)
    monkeypatch.setattr(torch.autograd, "grad", spy)
    work = profile(model, traced, graph, batch_size=2, repeats=1, warm_up=0)
    assert calls == 1
    assert (work.per_task > 0).tolist() == computing(graph) == [False, True, True, False]


@pytest.mark.full
def test_integer_and_boolean_operands() -> None:
    model = Lookup()
    traced = trace(model, torch.zeros(2, 6, dtype=torch.long)[:, 0])
    graph = channel_graph(traced)
    work = profile(model, traced, graph, batch_size=3, repeats=1, warm_up=0)
    assert (work.per_task > 0).tolist() == computing(graph)


def test_the_model_stays_as_it_was() -> None:
    model, traced, graph = prepared(small_cnn(), 3, 6, 6)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    profile(model, traced, graph, batch_size=2, repeats=1, warm_up=0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_one_layer_is_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        bare = small_cnn()
    model, traced, graph = prepared(bare, 3, 6, 6)
    earlier: list[weakref.ref[torch.Tensor]] = []
    run = profiling._seconds

    def spy(module: Any, inputs: Any, gradients: Any, device: Any) -> float:
        assert all(reference() is None for reference in earlier)
        earlier.extend(weakref.ref(tensor) for tensor in (*inputs, *gradients))
        return run(module, inputs, gradients, device)

    monkeypatch.setattr(profiling, "_seconds", spy)
    profile(model, traced, graph, batch_size=2, repeats=1, warm_up=0)
    assert len(earlier) > 10


# ------------------------------------------------------------------ batch sizes


def test_a_fixed_batch_is_measured_as_it_is_and_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    what = prepared(FixedBatch(), 3, 4)
    work = timed(monkeypatch, [3.0], what, batch_size=32, repeats=1, warm_up=0)
    assert work.per_task.tolist() == [0, 16 * 3 * FEMTOSECONDS // 4, 0]
    assert "batch 32 (scaled from 2, the only batch size that the model allows)" in work.source


def test_a_fixed_batch_needs_no_scaling_at_its_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    what = prepared(FixedBatch(), 3, 4)
    work = timed(monkeypatch, [4.0], what, batch_size=2, repeats=1, warm_up=0)
    assert work.per_task.tolist() == [0, FEMTOSECONDS, 0]
    assert "scaled" not in work.source


def test_the_source_says_where_it_was_measured() -> None:
    work = profile(*tiny(), batch_size=5, repeats=1, warm_up=0)
    assert re.fullmatch(
        rf"profile cpu \({torch.get_num_threads()} threads\) batch 5, "
        rf"torch {re.escape(torch.__version__)}, .+, \d{{4}}-\d\d-\d\d",
        work.source,
    )


# ------------------------------------------------------------------ progress, Ctrl-C, bad input


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    what = tiny()
    profile(*what, batch_size=2, repeats=1, warm_up=0)
    assert capsys.readouterr() == ("", "")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    profile(*what, batch_size=2, repeats=1, warm_up=0)
    assert "profile" in terminal.getvalue()


def test_ctrl_c_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> float:
        raise KeyboardInterrupt

    what = tiny()
    monkeypatch.setattr(profiling, "clock_of", lambda device: interrupt)
    with pytest.raises(KeyboardInterrupt):
        profile(*what)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch size 0: accepted is 1 or more"),
        ({"repeats": 0}, "repeats 0: accepted is 1 or more"),
        ({"warm_up": -1}, "warm-up runs -1: accepted is 0 or more"),
        ({"device": "abacus"}, "device 'abacus': accepted here are cpu"),
        ({"device": "meta"}, "device 'meta': accepted here are cpu"),
        ({"device": "cuda:99"}, "device 'cuda:99': accepted here are cpu"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    what = tiny()
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}"):
        profile(*what, **options)


def test_a_layer_that_does_not_fit_is_named() -> None:
    what = tiny()
    with pytest.raises(
        ModelError, match=r"can't profile layer '0' on cpu with batch \d+: "
    ) as found:
        profile(*what, batch_size=2**56)
    assert "\n" not in str(found.value)


def test_a_batch_norm_that_is_used_twice() -> None:
    """Its second use reads statistics that the first one computed, which take no gradient."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.second(self.norm(self.first(x))))

    model = Twice()
    traced = trace(model, torch.zeros(2, 3, 4, 4))
    graph = channel_graph(traced)
    work = profile(model, traced, graph, batch_size=2, repeats=1, warm_up=0)
    assert all(
        each > 0
        for each, layer in zip(work.per_task, graph.layers, strict=True)
        if layer.kind not in ("input", "parameter", "output")
    )
