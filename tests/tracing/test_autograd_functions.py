"""Functions with a backward of their own, in parts: gradients are theirs, or they are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import placements
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hgpart import Modelling, place
from hgpart.errors import PlacementError
from hgpart.layers.layering import channel_graph
from hgpart.tracing.traced_model import trace

Function = torch.autograd.Function


class Sign(Function):
    """Straight through, but where it saturates."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, limits: tuple[int, int] = (-1, 1)) -> Tensor:
        ctx.save_for_backward(x)
        ctx.limits = limits
        return x.sign() * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        gradient = gradient.clone()
        gradient[(x < ctx.limits[0]) | (x > ctx.limits[1])] = 0
        return gradient, None, None


class Reversal(Function):
    """Returns its operand, which an operator may not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -2 * gradient


class Ranked(Function):
    """Mixes channels, takes a parameter, and has a result without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, samples: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        best = x.argmax(1)
        ctx.mark_non_differentiable(best)
        return x.softmax(1) * weight[:, None, None] * samples, best

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        return gradient * weight[:, None, None], (3 * gradient * x).sum((0, 2, 3)), None


class Gate(Function):
    """Of two operands, and written the new way."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(x > 0, x, y)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        return 5 * gradient * (x > 0), 7 * gradient


class OfChannels(Function):
    """Computes with the number of channels, as Python has it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x / x.shape[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


class OfList(Function):
    """No gradients go through it: those are of a Function's arguments alone."""

    @staticmethod
    def forward(ctx: Any, tensors: list[Tensor]) -> Tensor:
        return tensors[0] * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> None:
        return None


sign = Sign.apply  # bound before anything is traced


class Net(nn.Module):
    def __init__(self, act: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 1)
        self.norm = nn.BatchNorm2d(6)
        self.weight = nn.Parameter(torch.rand(6))
        self.act = act

    def forward(self, x: Tensor) -> Any:
        return self.second(self.act(self, self.first(x)))


IMAGES = torch.zeros(2, 3, 6, 6, dtype=torch.float64)


def ranked(net: Any, x: Tensor) -> Tensor:
    found: tuple[Tensor, Tensor] = Ranked.apply(x, net.weight, x.shape[0])
    return found[0].tanh()


KEPT: dict[str, Callable[[Any, Tensor], Any]] = {
    "sign": lambda net, x: sign(x, 0.5),
    "its result twice": lambda net, x: sign(x, 0.5) * sign(x, 2.0, (-2, 3)),
    "reversal": lambda net, x: Reversal.apply(x).relu(),
    "ranked": ranked,
    "gate": lambda net, x: Gate.apply(x, net.norm(x)),
    "number of channels": lambda net, x: OfChannels.apply(x),
    "tensors in a list": lambda net, x: x * OfList.apply([x]),
    "without gradients": lambda net, x: x * torch.no_grad()(sign)(x, 0.5),
    "checkpoint": lambda net, x: checkpoint(lambda x: sign(x, 0.5).tanh(), x, use_reentrant=False),
    "reentrant checkpoint": lambda net, x: checkpoint(
        lambda x: sign(x, 0.5).tanh(), x, use_reentrant=True
    ),
}


def of_random_parts(model: nn.Module, images: Tensor) -> Any:
    traced, graph = placements.traced_model(model, [images])
    return placements.of_single_tasks(traced, graph, Modelling(grain="fine"), 3, 0)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("training", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", KEPT)
def test_gradients_are_the_functions_own(name: str, training: bool) -> None:
    """torch.export inlines what the forward calls: the gradients were of that."""
    torch.manual_seed(0)
    model = Net(KEPT[name]).double().train(training)
    images = torch.randn(5, 3, 6, 6, dtype=torch.float64)
    traced, graph = placements.traced_model(model, [IMAGES])
    for seed, grain in enumerate(("coarse", "fine")):
        split = placements.of_single_tasks(traced, graph, Modelling(grain=grain), 3, seed)
        placements.check_equal(model, [images], split)


@pytest.mark.full
def test_second_derivatives_of_one_part_are_the_functions_own() -> None:
    """A gradient penalty's vanished: the operator's backward had no graph itself."""
    torch.manual_seed(0)
    model = Net(KEPT["gate"]).double()
    images = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    found = []
    for one in (model, place(model, k=1, example=IMAGES)):
        x = images.clone().requires_grad_()
        (slope,) = torch.autograd.grad(one(x).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), x)[0])
    assert found[0].any()
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)


def test_pointwise_functions_join_the_layer_in_front() -> None:
    def layers(name: str) -> list[tuple[str, str, int]]:
        graph = channel_graph(trace(Net(KEPT[name]).double(), IMAGES))
        return [(layer.name, layer.kind, layer.tasks) for layer in graph.layers[1:-1]]

    assert layers("sign") == [("first", "dense", 6), ("second", "dense", 4)]
    assert layers("reversal") == layers("sign")
    assert [kind for _, kind, _ in layers("ranked")] == ["dense", "whole", "dense"]


class ByBatch(Function):
    """It scales by a mean over samples, of which it is given a number each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gains: Tensor) -> Tensor:
        return x * gains.mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


class BySample(ByBatch):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gains: Tensor) -> Tensor:
        return x * gains


@pytest.mark.full
def test_functions_that_mix_samples_by_what_these_have_once_are_no_pointwise_ones() -> None:
    """What each sample has once could be made of all of them, and was taken for its own."""
    for kind, keepdim, mixes in (
        (ByBatch, True, True),
        (ByBatch, False, True),
        (BySample, True, False),
    ):

        def of(net: Net, x: Tensor, kind: Any = kind, keepdim: bool = keepdim) -> Tensor:
            made: Tensor = kind.apply(x, x.mean((1, 2, 3), keepdim=keepdim))
            return made

        graph = channel_graph(trace(Net(of), IMAGES.float()))
        assert ("ByBatch" in graph.mixing.operator) == mixes
        assert bool(graph.mixing.operator) == mixes


@pytest.mark.full
def test_the_same_functions_have_the_same_fingerprint() -> None:
    """Operators that are made for Functions are numbered; other runs make other numbers."""

    def made(scale: float) -> tuple[str, list[str]]:
        class Own(Sign):
            pass

        graph = channel_graph(trace(Net(lambda net, x: Own.apply(x, scale)), IMAGES.float()))
        return graph.fingerprint, [layer.name for layer in graph.layers]

    assert made(0.5) == made(0.5)
    assert made(0.5)[0] != made(0.25)[0]


# ------------------------------------------------------------------ what can't be kept


class OfModule(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Module) -> Tensor:
        return module(x) * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class OfOutside(Function):
    table = torch.ones(1, dtype=torch.float64)

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * OfOutside.table

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * gradient


class InPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.clamp_(0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class OneWay(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.relu()


class Shake(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor) -> Tensor:
        return alpha * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        beta = torch.rand(gradient.shape[0], dtype=gradient.dtype).view(-1, 1, 1, 1)
        return beta * gradient, None


def with_hook(net: nn.Module, x: Tensor) -> Tensor:
    if x.requires_grad:
        x.register_hook(lambda gradient: 2 * gradient)
    return x


def with_gradient(net: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(point.square().sum(), point)
    return slope + x


def in_inference(net: nn.Module, x: Tensor) -> Tensor:
    with torch.inference_mode():
        factor = x.mean()
    return x * factor.clone()


LOST: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "module": (lambda net, x: OfModule.apply(x, net.norm), "OfModule.* takes a BatchNorm2d"),
    "outside": (
        lambda net, x: OfOutside.apply(x),
        "OfOutside.* tensors that are not its arguments",
    ),
    "in place": (lambda net, x: InPlace.apply(x * 2), "InPlace.* changes its argument"),
    "one way": (lambda net, x: OneWay.apply(x), "OneWay.* fails without data"),
    "drawing": (
        lambda net, x: Shake.apply(x, torch.ones((), dtype=x.dtype)),
        r"Shake, .* draws random numbers in its backward pass at .*test_autograd_functions.py:\d+",
    ),
    "hook": (with_hook, "a hook on a tensor"),
    "detached": (lambda net, x: x * (x * 2).detach_(), "Tensor.detach_"),
    "gradient": (with_gradient, "torch.autograd.grad"),
    "inference": (in_inference, "torch.inference_mode"),
    "norm": (
        lambda net, x: checkpoint(net.norm, x, use_reentrant=False),
        "a checkpoint that updates running statistics",
    ),
    "norm, reentrant": (
        lambda net, x: checkpoint(net.norm, x, use_reentrant=True),
        "a checkpoint that updates running statistics",
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", LOST)
def test_gradients_that_would_be_lost_are_refused_by_name(name: str) -> None:
    act, said = LOST[name]
    torch.manual_seed(0)
    model = Net(act).double()
    with pytest.raises(PlacementError, match=f"the model's backward pass has .*{said}"):
        place(model, of_random_parts(model, IMAGES))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.full] * (name not in ("module", "hook", "inference")))
        for name in sorted(set(LOST) - {"norm", "norm, reentrant"})
    ],
)
def test_without_gradients_it_is_placed_all_the_same(name: str) -> None:
    torch.manual_seed(0)
    model, images = Net(LOST[name][0]).double().eval(), torch.randn(3, 3, 6, 6).double()
    placed = place(model, of_random_parts(model, IMAGES))
    with pytest.raises(PlacementError, match=LOST[name][1]):
        placed(images)
    with torch.no_grad():
        torch.testing.assert_close(placed(images), model(images))


@pytest.mark.few(2)
@pytest.mark.parametrize("at", ["module", "parameter", "accumulated"])
def test_hooks_of_modules_and_parameters_are_refused_by_name(at: str) -> None:
    model = Net(lambda net, x: x).double()
    if at == "module":
        model.second.register_full_backward_hook(lambda *_: None)
    elif at == "parameter":
        model.first.weight.register_hook(lambda gradient: gradient * 2)
    else:
        model.first.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    said = "module second" if at == "module" else "parameter first.weight"
    with pytest.raises(PlacementError, match=rf"\(a hook on the {said}\)"):
        place(model, of_random_parts(model, IMAGES))


@pytest.mark.full
def test_random_functions_are_refused_by_name_and_divided_all_the_same() -> None:
    class Mixed(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            alpha = torch.rand(x.shape[0], 1, 1, 1, dtype=x.dtype)
            ctx.save_for_backward(alpha)
            return alpha * x + (1 - alpha) * y

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
            (alpha,) = ctx.saved_tensors
            return alpha * gradient, (1 - alpha) * gradient

    model = Net(lambda net, x: Mixed.apply(x, x.relu())).double()
    graph = channel_graph(trace(model, IMAGES))
    assert [layer.tasks for layer in graph.layers[1:-1]] == [6, 6, 4]
    with pytest.raises(PlacementError, match=r"^\S*\.Mixed\(_, _\) of .*draws random numbers"):
        place(model, of_random_parts(model, IMAGES))


class Triangle(Function):
    """The upper triangle of matrices, as covariance pooling takes it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        places = torch.ones(x.shape[1:]).triu().flatten().nonzero().squeeze(1)
        ctx.save_for_backward(x, places)
        return x.flatten(1)[:, places]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x, places = ctx.saved_tensors
        made = torch.zeros_like(x).flatten(1)
        made[:, places] = 2 * gradient
        return made.view(x.shape)


def test_sizes_that_constants_decide_are_known_in_functions() -> None:
    """Their symbols were not in the results, which torch.export took amiss."""

    class Covariance(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 1), nn.Linear(10, 3)

        def forward(self, image: Tensor) -> Tensor:
            maps = self.a(image).flatten(2)
            picked = Triangle.apply(maps @ maps.transpose(1, 2))
            return self.b(picked * torch.arange(picked.shape[1]))

    torch.manual_seed(0)
    model = Covariance().double()
    placements.check_equal(
        model, [torch.randn(3, 3, 6, 6).double()], of_random_parts(model, IMAGES)
    )


def test_a_trace_under_no_grad_is_the_same() -> None:
    """What the model says of gradients was lost where the caller had said it before."""

    def half(net: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            factor = x.mean(1, keepdim=True)
        return x * factor

    torch.manual_seed(0)
    model = Net(half).double()
    with torch.no_grad():
        plan = of_random_parts(model, IMAGES)
    placements.check_equal(model, [torch.randn(3, 3, 6, 6, dtype=torch.float64)], plan)
