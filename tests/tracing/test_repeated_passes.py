"""State outside a model's modules shows in further passes; caches and torch's draws do not."""

from __future__ import annotations

import itertools
import os
import random
import re
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import placements
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from hgpart import Modelling, place
from hgpart.errors import PlacementError
from hgpart.tracing.arguments import arguments_of
from hgpart.tracing.repeated_passes import compare_passes
from hgpart.tracing.traced_model import trace

Beside = Callable[[Any, Tensor], Any]


class Inner(nn.Module):
    """Does something beside its convolution, by the state that it has."""

    def __init__(self, beside: Beside) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.table: Tensor | None = None
        self.beside = beside

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) + self.beside(self, x)


def model_of(beside: Beside) -> nn.Module:
    return nn.Sequential(Inner(beside), nn.ReLU(), nn.Conv2d(4, 3, 1)).double()


IMAGES = torch.zeros(2, 3, 6, 6, dtype=torch.float64)
ELSE = ["0 computes something else"]
OUTSIDE: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _nothing_outside() -> None:
    OUTSIDE.clear()


def told(model: nn.Module) -> tuple[list[str], list[str]]:
    """What further passes tell of a model, and what of its gradients."""
    said: dict[str, None] = {}
    lost: dict[str, None] = {}
    compare_passes(
        model, arguments_of(model, IMAGES), lambda _: False, said.setdefault, lost.setdefault
    )
    return [*said], [*lost]


# ------------------------------------------------------------------ what changes


class Counted(torch.autograd.Function):
    """Counts in an attribute of its own class."""

    count = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        Counted.count += 1
        return x * Counted.count

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def counting(module: Any, x: Tensor) -> Any:
    OUTSIDE["count"] = OUTSIDE.get("count", 0) + 1
    return OUTSIDE["count"]


def counting_in_a_tensor(module: Any, x: Tensor) -> Any:
    return OUTSIDE.setdefault("steps", torch.zeros(4, 1, 1)).add_(1)


def counting_in_the_environment(module: Any, x: Tensor) -> Any:
    os.environ["HGPART_STEPS"] = os.environ.get("HGPART_STEPS", "") + "1"
    return len(os.environ["HGPART_STEPS"])


def in_turn(module: Any, x: Tensor) -> Any:
    """Calls the same in each pass, on others of its tensors."""
    return 2 * (x.mean(), x.sum())[counting(module, x) % 2]


def updating_a_buffer(module: Any, x: Tensor) -> Any:
    module.norm.running_mean.mul_(counting(module, x))
    return 0


def recurrent(module: Any, x: Tensor) -> Any:
    found = OUTSIDE.get("last", 0 * x.mean())
    OUTSIDE["last"] = x.mean().detach()
    return found * 2


def remembering(module: Any, x: Tensor) -> Any:
    return OUTSIDE.setdefault("first", x.mean().detach()) * 2


def in_a_cell() -> Beside:
    counts = itertools.count()
    return lambda m, x: next(counts)


own_random = random.Random()

CHANGING: dict[str, Beside] = {
    "count": counting,
    "tensor": counting_in_a_tensor,
    "cell": in_a_cell(),
    "class": lambda m, x: Counted.apply(x.mean()),  # type: ignore[no-untyped-call]
    "environment": counting_in_the_environment,
    "other tensors": in_turn,
    "buffer": updating_a_buffer,
    "recurrent": recurrent,
    "time": lambda m, x: time.time(),
    "time in a tensor": lambda m, x: torch.tensor(time.perf_counter(), dtype=x.dtype),
    "unseeded": lambda m, x: float(np.random.default_rng().random()),
    "own": lambda m, x: own_random.random(),
    "array": lambda m, x: torch.from_numpy(np.random.default_rng().random((4, 1, 1))),
    "size of data": lambda m, x: (x > 0).nonzero().shape[0] * counting(m, x),
    "device": lambda m, x: counting(m, x) if x.device.type == "cpu" else x.tolist(),
}


@pytest.mark.parametrize("name", CHANGING)
def test_state_outside_the_model_shows_in_further_passes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only attributes and known generators were watched: the trace went on with its first value."""
    monkeypatch.setenv("HGPART_STEPS", "")
    assert told(model_of(CHANGING[name])) == (ELSE, [])


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("beside", "said"),
    [
        (counting, ELSE[0]),
        (remembering, "the module 0 stores what it computes in OUTSIDE['first']"),
    ],
)
def test_a_trace_tells_of_it_and_a_placement_is_refused_by_name(beside: Beside, said: str) -> None:
    """What the traced pass itself has left outside is found there, or by the next passes."""
    model = model_of(beside)
    traced, graph = placements.traced_model(model, [IMAGES])
    assert traced.unheld == (said,)
    plan = placements.of_single_tasks(traced, graph, Modelling(), 2, 0)
    with pytest.raises(PlacementError, match=f"^{re.escape(said)} in each forward pass"):
        place(model, plan)


def test_a_tensor_outside_the_model_is_not_written() -> None:
    """torch.export refuses what writes it, without a change."""
    steps = torch.zeros(2, 4, 1, 1)
    assert told(model_of(lambda m, x: x.mean() * steps[0].add_(1))) == (ELSE, [])
    assert not steps.any()


PLAIN = st.one_of(st.floats(), st.integers(-3, 3), st.booleans())


@given(values=st.tuples(PLAIN, PLAIN, PLAIN))
@example(values=(-1, -2, -1))  # equal hashes
@example(values=(1, 1.0, True))  # equal keys
@example(values=(0.0, -0.0, 0.0))
def test_a_number_is_told_if_it_changes_in_two_passes_in_a_row(values: tuple[Any, ...]) -> None:
    first, second, third = map(repr, values)
    coming = iter(values)
    said, _ = told(model_of(lambda m, x: x.mean() * next(coming)))
    assert said == (ELSE if first != second and second != third else [])


# ------------------------------------------------------------------ what does not


def cached_outside(module: Any, x: Tensor) -> Any:
    if "table" not in OUTSIDE:
        OUTSIDE["table"] = torch.zeros_like(x[0, :1]).add_(1)
        OUTSIDE["table"][:, 1:].fill_(2)
    return OUTSIDE["table"].mean()


def cached_weights(module: Any, x: Tensor) -> Any:
    """As TinyViT keeps its biases; the first pass computes more."""
    if module.table is None:
        module.table = module.conv.weight.mean().clone()
        return module.table * 1
    return module.table


@lru_cache
def anchors(height: int, width: int) -> Tensor:
    return torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"))


def stochastic_depth(module: Any, x: Tensor) -> Any:
    kept = torch.empty(x.shape[0], 1, 1, 1, dtype=x.dtype).bernoulli_(0.8).div_(0.8)
    return kept * functional.dropout(x.mean(), 0.5, module.training)


def collecting(module: Any, x: Tensor) -> Any:
    """What is kept and never read is no state."""
    OUTSIDE.setdefault("seen", []).append((x, counting(module, x)))
    return 0


def filled(module: Any, x: Tensor) -> Any:
    """A map that is written in pieces, into a tensor that begins without any data."""
    made = torch.zeros(2, 4, 4, 4, dtype=x.dtype)
    made[:, 0] = x[:, 0, :4, :4]
    return made


ALIKE: dict[str, Beside] = {
    "cache": cached_outside,
    "weights": cached_weights,
    "anchors": lambda m, x: anchors(4, 4).sum().to(x.dtype),
    "draws": stochastic_depth,
    "drawn constant": lambda m, x: torch.rand(1) * torch.rand(4, 1, 1),
    "collected": collecting,
    "pieces": filled,
    "other type": lambda m, x: x.float().mean().double(),
    "seeded": lambda m, x: float(np.random.default_rng(0).random()),
    "constant": lambda m, x: torch.tensor([1.5]).item() * torch.from_numpy(np.ones((4, 1, 1))),
    "new tensor": lambda m, x: x.new_tensor([0.5, 0.25, 1.0, 2.0])[:, None, None],
    "size of data": lambda m, x: (x > 0).nonzero().shape[0],
    "failing": lambda m, x: x.numpy(),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ALIKE)
def test_what_every_pass_computes_alike_is_not_told(name: str) -> None:
    for training in (True, False):
        assert told(model_of(ALIKE[name]).train(training)) == ([], [])


@pytest.mark.full
def test_a_cache_that_the_traced_pass_has_filled_is_not_told() -> None:
    assert trace(model_of(cached_outside), IMAGES).unheld == ()


# ------------------------------------------------------------------ seeds and gradients


@pytest.mark.full
def test_seeds_of_a_fork_are_told() -> None:
    """The generator is as it was after the pass, and was all that was compared."""

    def seeding(module: Any, x: Tensor) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return torch.rand(4, 1, 1)

    assert trace(model_of(seeding), IMAGES).unheld == ("the model seeds torch's generator",)


@pytest.mark.full
def test_a_generator_of_its_own_is_told_and_left_as_it_was() -> None:
    """It was refused where the model is placed, and no command said so before."""
    generator = torch.Generator()
    before = generator.get_state()
    model = model_of(lambda m, x: torch.rand((4, 1, 1), generator=generator))
    assert trace(model, IMAGES).unheld == ("0 draws from a generator of its own",)
    assert torch.equal(generator.get_state(), before)


def by_method(module: Any, x: Tensor) -> Any:
    module.conv.weight.requires_grad_(False)
    return 0


def by_attribute(module: Any, x: Tensor) -> Any:
    module.conv.weight.requires_grad = False
    return x.mean().detach().requires_grad_()


def for_one_call(module: Any, x: Tensor) -> Any:
    module.conv.weight.requires_grad_(False)
    found = module.conv(x)
    module.conv.weight.requires_grad_(True)
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("freezing", [by_method, by_attribute, for_one_call])
def test_a_parameter_that_the_forward_pass_freezes_is_told(freezing: Beside) -> None:
    """It kept its gradient in parts."""
    model = model_of(freezing)
    assert trace(model, IMAGES).lost_gradients == (
        "0.conv.weight, of which the forward pass changes requires_grad",
    )
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_models_and_generators_are_as_before_and_nothing_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def printing(module: Any, x: Tensor) -> Any:
        print("pass")
        return filled(module, x) * torch.rand(4, 1, 1)

    model = model_of(printing)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors = [*map(id, (*model.parameters(), *model.buffers()))]
    drawn = torch.get_rng_state()
    trace(model, IMAGES)
    assert capsys.readouterr().out == "pass\n"
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [*map(id, (*model.parameters(), *model.buffers()))] == tensors
    assert all(torch.equal(model.state_dict()[name], state[name]) for name in state)


def test_attributes_are_as_before() -> None:
    model = model_of(cached_weights)
    assert trace(model, IMAGES).unheld == ()
    assert model[0].table is None
