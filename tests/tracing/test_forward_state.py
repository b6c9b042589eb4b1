"""What a forward pass does in Python: said by name, and refused where a placement can't do it."""

from __future__ import annotations

import copy
import inspect
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import placements
import pytest
import torch
from torch import Tensor, nn

from hgpart import Modelling, place
from hgpart.errors import PlacementError, TraceError
from hgpart.tracing.traced_model import trace


class Inner(nn.Module):
    """Does something beside its convolution, by the state that it has."""

    def __init__(self, beside: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.register_buffer("steps", torch.zeros(4, 1, 1))
        self.count, self.height, self.table, self.last = 0, 0, None, None
        self.seen: list[Any] = []
        self.cache: dict[Any, Any] = {}
        self.rng = np.random.default_rng(0)
        self.generator = torch.Generator()
        self.beside = beside

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + self.beside(self, x)


def model_of(beside: Callable[[Any, Tensor], Any]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Inner(beside), nn.ReLU(), nn.Conv2d(4, 3, 1)).double()


IMAGES = torch.zeros(2, 3, 6, 6, dtype=torch.float64)


def counting(module: Any, x: Tensor) -> Any:
    module.count += 1
    return module.count


def counting_from_nothing(module: Any, x: Tensor) -> Any:
    module.late = getattr(module, "late", 0) + 1
    return module.late


def appending(module: Any, x: Tensor) -> Any:
    module.seen.append(1)
    return len(module.seen)


def recurrent(module: Any, x: Tensor) -> Any:
    found = x.mean() if module.last is None else module.last
    module.last = x.mean().detach()
    return found


def remembering(module: Any, x: Tensor) -> Any:
    if "first" not in module.cache:
        module.cache["first"] = x.mean().detach()
    return module.cache["first"]


def remembering_the_batch(module: Any, x: Tensor) -> Any:
    if module.last is None:
        module.last = x.shape[0]
    return module.last


def leaving(module: Any, x: Tensor) -> Any:
    module.last = module.conv(x).mean((2, 3), keepdim=True)
    return module.last


def switching(module: Any, x: Tensor) -> Any:
    module.training = not module.training
    return float(module.training)


def rescaling(module: Any, x: Tensor) -> Any:
    with torch.no_grad():
        module.conv.weight.mul_(0.5)
    return 0


def replacing(module: Any, x: Tensor) -> Any:
    module.conv.bias = nn.Parameter(module.conv.bias * 2)
    return 0


def growing(module: Any, x: Tensor) -> Any:
    module.more = nn.Identity()
    return 0


def seeding(module: Any, x: Tensor) -> Any:
    torch.manual_seed(3)
    return torch.rand(4, 1, 1)


def drawing(module: Any, x: Tensor) -> Any:
    return float(np.random.rand())  # noqa: NPY002 (what models draw from)


UNHELD: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "numpy": (drawing, "0 draws from NumPy's generator"),
    "python": (lambda m, x: random.random(), "0 draws from Python's generator"),
    "own generator": (
        lambda m, x: float(m.rng.random()),
        "the attribute 0.rng changes",
    ),
    "seed": (seeding, "the model seeds torch's generator"),
    "count": (counting, "the attribute 0.count changes"),
    "late count": (counting_from_nothing, "the attribute 0.late changes"),
    "list": (appending, "the attribute 0.seen changes"),
    "recurrent": (recurrent, "the attribute 0.last changes"),
    "remembered": (remembering, "the attribute 0.cache changes"),
    "batch": (remembering_the_batch, "the attribute 0.last changes"),
    "left": (leaving, "the module 0 stores what it computes in the attribute 0.last"),
    "mode": (switching, "the attribute 0.training changes"),
    "in place": (rescaling, "0.conv.weight is changed in place"),
    "replaced": (replacing, "0.conv.bias is replaced"),
    "module": (growing, "0.more is made anew"),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", UNHELD)
def test_what_no_trace_holds_is_refused_by_name_when_placed(name: str) -> None:
    """The traced graph does in each pass what the model did in one: wrong, without a word."""
    beside, said = UNHELD[name]
    model = model_of(beside)
    traced, graph = placements.traced_model(model, [IMAGES])
    (fact,) = traced.unheld
    assert re.sub(r" \(read at .*test_forward_state.py:\d+\)$", "", fact) == said
    plan = placements.of_single_tasks(traced, graph, Modelling(), 2, 0)
    with pytest.raises(PlacementError, match=f"^{re.escape(fact)} in each forward pass"):
        place(model, plan)


def drawing_for_training(module: Any, x: Tensor) -> Any:
    drawn = np.random.randint(0, 3, size=(2,)), random.random()  # noqa: NPY002 (as models draw)
    return float(drawn[0].sum() + drawn[1]) if module.training else 1.0


@pytest.mark.few(1)
def test_a_draw_that_nothing_reads_is_no_obstacle() -> None:
    """It was refused, though only training has a use for it."""
    model = model_of(drawing_for_training)
    line = inspect.getsourcelines(drawing_for_training)[1] + 2
    drawn = [f"0 draws from {name}'s generator" for name in ("Python", "NumPy")]
    assert trace(model, IMAGES).unheld == tuple(f"{d} (read at {__file__}:{line})" for d in drawn)
    before = random.getstate()
    traced, graph = placements.traced_model(model.eval(), [IMAGES])
    assert random.getstate() == before
    assert traced.unheld == ()
    plan = placements.of_single_tasks(traced, graph, Modelling(), 2, 0)
    placements.check_equal(model, [torch.randn(5, 3, 6, 6, dtype=torch.float64)], plan)


def drawing_by_another_name(module: Any, x: Tensor) -> Any:
    return DRAW()


DRAW = random.random


def test_a_draw_that_can_not_be_followed_counts_as_read() -> None:
    drawn = model_of(drawing_by_another_name)
    assert trace(drawn, IMAGES).unheld == ("0 draws from Python's generator",)


def cached(module: Any, x: Tensor) -> Any:
    if module.table is None:
        module.table = torch.arange(4.0).view(4, 1, 1)
    if x.shape[2:] not in module.cache:
        module.cache[x.shape[2:]] = torch.ones(4, 1, 1)
    return module.table * module.cache[x.shape[2:]]


def noting(module: Any, x: Tensor) -> Any:
    module.height, module.last, module.seen = x.shape[2], x, [x]
    module.seen.append(module.last)
    module.last, module.seen = None, []
    return module.height


def frozen(module: Any, x: Tensor) -> Any:
    module.conv.eval()
    return 0


@pytest.mark.few(1)
@pytest.mark.parametrize("beside", [cached, noting, frozen])
def test_what_every_pass_does_alike_is_placed(beside: Callable[[Any, Tensor], Any]) -> None:
    model = model_of(beside)
    traced, graph = placements.traced_model(model, [IMAGES])
    assert traced.unheld == ()
    plan = placements.of_single_tasks(traced, graph, Modelling(grain="fine"), 3, 1)
    placements.check_equal(model, [torch.randn(5, 3, 6, 6, dtype=torch.float64)], plan)


LAST: list[Any] = [None]


class Extractor:
    """Keeps maps, as those who want a loss of them do."""

    def __init__(self) -> None:
        self.maps: dict[str, Any] = {}
        self.last: Any = None

    def hook(self, module: nn.Module, given: Any, made: Tensor) -> None:
        self.maps["conv"] = made.detach()

    def assign(self, module: nn.Module, given: Any, made: Tensor) -> None:
        self.last = made.mean()


def into_a_list(kept: list[Any]) -> Callable[..., None]:
    return lambda module, given, made: kept.append(made)


def into_a_variable() -> tuple[Callable[..., None], Callable[[], Any]]:
    last = None

    def hook(module: nn.Module, given: Any, made: Tensor) -> None:
        nonlocal last
        last = made

    return hook, lambda: last


def into_a_global(module: nn.Module, given: Any, made: Tensor) -> None:
    global LAST
    LAST = [made]


def of_weights(kept: list[Any]) -> Callable[..., None]:
    return lambda module, given, made: kept.append(module.weight.square().sum())


def hooks() -> dict[str, tuple[Any, Callable[[], Any], str]]:
    """Hooks, what they keep, and what a message calls it."""
    kept, weights, tuples, extractor = [1], [], [], Extractor()
    variable, of_variable = into_a_variable()
    return {
        "list": (into_a_list(kept), lambda: kept[1:], "kept"),
        "method": (extractor.hook, lambda: list(extractor.maps), "maps['conv']"),
        "object": (extractor.assign, lambda: extractor.last, "last"),
        "variable": (variable, of_variable, "last"),
        "global": (into_a_global, lambda: LAST[0], "LAST"),
        "default": (
            lambda module, given, made, into=(found := []): into.append(made),
            lambda: found,
            "<lambda>",
        ),
        "tuple": (
            lambda module, given, made: tuples.append((module, made)),
            lambda: tuples,
            "tuples",
        ),
        "weights": (of_weights(weights), lambda: weights, "kept"),
    }


@pytest.mark.few(1)
@pytest.mark.parametrize("name", hooks())
def test_what_hooks_keep_is_refused_by_name_and_nothing_of_a_trace_stays(name: str) -> None:
    """Maps in lists were those of the trace, without data, and no step of a placement changed them.

    A hook of a part could not have them: its map may be on another device, or a part of one.
    """
    hook, kept, said = hooks()[name]
    model = model_of(lambda module, x: 0)
    model[0].conv.register_forward_hook(hook)
    traced, graph = placements.traced_model(model, [IMAGES])
    assert not kept()
    plan = placements.of_single_tasks(traced, graph, Modelling(), 2, 0)
    with pytest.raises(
        PlacementError, match=f"^a hook of 0.conv stores what it computes in {re.escape(said)}"
    ):
        place(model, plan)
    assert not kept()


def test_hooks_that_keep_no_map_are_placed() -> None:
    """Sizes and counts are of no use to a loss; they are as they were before the trace."""
    seen: list[Any] = []
    model = model_of(lambda module, x: 0)
    model[0].conv.register_forward_hook(lambda module, given, made: seen.append(made.shape[1:]))
    traced = trace(model, IMAGES)
    assert (traced.unheld, seen) == ((), [])


def assigning(module: Any, x: Tensor) -> Any:
    found = module.conv(x).mean((2, 3), keepdim=True) * module.steps
    module.steps = module.steps + 1
    module.steps = module.steps * module.factor
    module.factor.mul_(1.5)
    return found * module.steps


def exchanging(module: Any, x: Tensor) -> Any:
    """The pass reads but one of the two."""
    module.steps, module.factor = module.factor + 1, module.steps * 2
    return module.steps


def assigning_beside_a_cache(module: Any, x: Tensor) -> Any:
    """The second pass that a cache is watched in was one that torch.export failed in."""
    return assigning(module, x) * cached(module, x)


@pytest.mark.few(1)
@pytest.mark.parametrize("beside", [assigning, exchanging, assigning_beside_a_cache])
@pytest.mark.parametrize("nested", [True, False])
def test_buffers_of_each_pass_are_those_of_the_model(nested: bool, beside: Any) -> None:
    """Parts that read a buffer had its first value in every pass, but for the one that changed it.

    Those that are assigned to, and not changed in place, were lost in modules of the model. One
    that another gets its next value of had it before or after its own update, as it happened.
    """
    model = model_of(beside) if nested else Inner(beside).double()
    inner = model[0] if nested else model
    inner.register_buffer("factor", torch.rand(4, 1, 1, dtype=torch.float64))
    traced, graph = placements.traced_model(model, [IMAGES])
    for seed in range(3):
        plan = placements.of_single_tasks(traced, graph, Modelling(grain="fine"), 3, seed)
        images = torch.randn(5, 3, 6, 6, dtype=torch.float64)
        placed, whole = placements.check_equal(model, [images], plan), copy.deepcopy(model)
        whole(images)
        for _ in range(2):
            torch.testing.assert_close(placed(images), whole(images))
            for name, buffer in whole.named_buffers():
                torch.testing.assert_close(placed.state_dict()[name], buffer)


@pytest.mark.few(1)
@pytest.mark.parametrize("at", ["before", "behind", "reset"])
def test_statistics_that_are_read_beside_their_norm_are_refused_by_name(at: str) -> None:
    """Parts had them after the norm, whenever they were read, and what set them was lost."""

    def beside(module: Any, x: Tensor) -> Any:
        norm = module.norm
        before = norm.running_mean.clone() if at == "before" else 0.0
        if at == "reset":
            norm.reset_running_stats()
        found = norm(module.conv(x)).mean((2, 3), keepdim=True)
        behind = norm.running_mean if at == "behind" else torch.zeros(4, dtype=x.dtype)
        return found + (before + behind).view(4, 1, 1)

    model = Inner(beside).double()
    model.norm = nn.BatchNorm2d(4).double()
    traced, graph = placements.traced_model(model, [IMAGES])
    with pytest.raises(PlacementError, match=r"reads or sets norm.running_\w+ apart from the norm"):
        place(model, placements.of_single_tasks(traced, graph, Modelling(), 2, 0))


def test_a_generator_of_its_own_is_refused_by_name() -> None:
    """Masks were drawn from torch's generator instead."""
    model = model_of(lambda m, x: torch.rand((4, 1, 1), generator=m.generator))
    traced, graph = placements.traced_model(model, [IMAGES])
    with pytest.raises(PlacementError, match="generator"):
        place(model, placements.of_single_tasks(traced, graph, Modelling(), 2, 0))


def test_a_buffer_that_the_forward_pass_makes_is_refused_by_name() -> None:
    """torch.export took it for a change of the input."""
    model = Inner(lambda m, x: m.register_buffer("late", torch.ones(4, 1, 1)) or m.late).double()
    with pytest.raises(TraceError, match="it makes late a buffer as it runs"):
        trace(model, IMAGES)


@pytest.mark.few(1)
@pytest.mark.parametrize("beside", [one for one, _ in UNHELD.values()] + [cached, noting, frozen])
def test_models_and_generators_are_as_before(beside: Callable[[Any, Tensor], Any]) -> None:
    model = model_of(beside)
    attributes = {name: dict(vars(one)) for name, one in model.named_modules()}
    tensors = [*map(id, model.parameters()), *map(id, model.buffers())]

    def states() -> tuple[Any, ...]:
        keys = np.random.get_state(legacy=False)["state"]  # noqa: NPY002 (models draw from it)
        return random.getstate(), keys["pos"], keys["key"].tolist(), torch.get_rng_state().tolist()

    before = states()
    trace(model, IMAGES)
    assert states() == before
    assert [*map(id, model.parameters()), *map(id, model.buffers())] == tensors
    for name, one in model.named_modules():
        assert vars(one).keys() == attributes[name].keys()
        assert (one.training, getattr(one, "count", 0)) == (True, 0)
    assert not model[0].cache
    assert model[0].table is None


def test_a_parameter_whose_data_is_assigned_is_refused_by_name_and_line() -> None:
    """As of momentum encoders; torch asked for an issue on a constant that is fake."""

    def beside(module: Any, x: Tensor) -> Any:
        module.conv.weight.data = module.conv.weight.data * 0.9
        return 0

    with pytest.raises(TraceError, match=r"state.py:\d+: it assigns to 0.conv.weight.data: "):
        trace(model_of(beside), IMAGES)
