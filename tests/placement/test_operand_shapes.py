"""Parameters of every shape that an operator takes: in parts it computes what it computes whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import placements
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from hgpart import place
from hgpart.errors import PlacementError
from hgpart.hypergraph.modelling import Modelling
from hgpart.operators import table
from hgpart.operators.effects import Mix
from hgpart.operators.ids import mix_all
from hgpart.operators.moving import moved
from hgpart.operators.products import Product
from hgpart.operators.table import channel_rule

Shape = tuple[int, ...]

CHANNELS, SIDE = 6, 6  # alike: sizes alone do not tell which dimension counts channels
MAPS, FEATURES = (2, CHANNELS, SIDE, SIDE), (2, CHANNELS)


def broadcast(shape: Shape) -> Iterator[tuple[Shape]]:
    """Every shape that broadcasts to one."""
    for rank in range(len(shape) + 1):
        for sizes in product(*((1, size) for size in shape[len(shape) - rank :])):
            yield (sizes,)


@dataclass(frozen=True, eq=False)
class Operator:
    """What is computed of maps, and the shapes of its parameters, one tuple for each case."""

    compute: Callable[..., Tensor]
    shapes: Sequence[tuple[Shape, ...]]


def features(maps: Tensor) -> Tensor:
    return maps.mean((2, 3))


def last(maps: Tensor) -> Tensor:
    return maps.permute(0, 2, 3, 1)


SQUARE = (CHANNELS, CHANNELS)
BIASES = [(SQUARE, shape) for shape in ((), (1,), (CHANNELS,))]
ONE_EACH = [((CHANNELS,), (CHANNELS,))]
FEW = [(shape,) for shape in ((), (SIDE,), (CHANNELS, 1, 1), (1, 1, SIDE, 1))]
OPERATORS = {
    "mul": Operator(torch.mul, [*broadcast(MAPS[1:]), ((2, 1, 1, 1),), ((2, CHANNELS, 1, 1),)]),
    "where": Operator(lambda x, c: torch.where(x > 0, x, c), FEW),
    "addcmul": Operator(lambda x, c: torch.addcmul(x, x, c), FEW),
    "linear": Operator(lambda x, w, b: functional.linear(last(x), w, b), BIASES),
    "linear of one": Operator(
        lambda x, w, b: functional.linear(features(x), w, b),
        [((1, CHANNELS), shape) for shape in ((), (1,))],
    ),
    "addmm": Operator(
        lambda x, w, b: torch.addmm(b, features(x), w, beta=0.5, alpha=2),
        [(SQUARE, *shape) for shape in broadcast(FEATURES)],
    ),
    "mm": Operator(
        lambda x, w, c: torch.mm(features(x), w) * c,
        [(SQUARE, shape) for shape in ((), (CHANNELS,), (2, 1))],
    ),
    "matmul": Operator(lambda x, w: last(x) @ w, [(SQUARE,), ((CHANNELS,),), ((CHANNELS, 1),)]),
    "convolution": Operator(
        lambda x, w, b: functional.conv2d(x, w, b, groups=CHANNELS // w.shape[1]),
        [((CHANNELS, size, 1, 1), (CHANNELS,)) for size in (1, 3, 6)],
    ),
    "transposed convolution": Operator(
        lambda x, w, b: functional.conv_transpose2d(x, w, b, groups=len(b) // w.shape[1]),
        [((CHANNELS, size, 1, 1), (CHANNELS,)) for size in (1, 3, 6)],
    ),
    "prelu": Operator(functional.prelu, [((1,),), ((CHANNELS,),)]),
    "batch norm": Operator(
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True), ONE_EACH
    ),
    "group norm": Operator(lambda x, w, b: functional.group_norm(x, 2, w, b), ONE_EACH),
    "layer norm": Operator(
        lambda x, *both: functional.layer_norm(x, both[0].shape, *both), [(SQUARE, SQUARE)]
    ),
    "layer norm of channels in front": Operator(
        lambda x, w: functional.layer_norm(x, w.shape, w), [(MAPS[1:],)]
    ),
    "layer norm of channels between": Operator(
        lambda x, w: functional.layer_norm(x.transpose(1, 2), w.shape, w), [(MAPS[1:],)]
    ),
    "layer norm of channels behind": Operator(
        lambda x, w: functional.layer_norm(last(x), w.shape, w), [(SQUARE,), ((CHANNELS,),)]
    ),
    "rms norm of channels behind": Operator(
        lambda x, w: functional.rms_norm(last(x), w.shape, w), [(SQUARE,), ((CHANNELS,),)]
    ),
    # ---- constants that are computed before they are used
    "row by row": Operator(lambda x, w: functional.conv2d(x, w * 2), [((*SQUARE, 1, 1),)]),
    "not row by row": Operator(lambda x, w: torch.mm(features(x), w * 2), [(SQUARE,)]),
    "bias of all weights": Operator(
        lambda x, w: functional.linear(last(x), w, w.sum(0)), [(SQUARE,)]
    ),
    "bias of its own weights": Operator(
        lambda x, w: functional.linear(last(x), w, w.sum(1)), [(SQUARE,)]
    ),
    "bias of all biases": Operator(
        lambda x, w, b: functional.conv2d(x, w, b.softmax(0)), [((*SQUARE, 1, 1), (CHANNELS,))]
    ),
    "computed weight of a norm": Operator(
        lambda x, w: functional.group_norm(x, 2, w + 1), [((CHANNELS,),)]
    ),
    "softmax": Operator(lambda x, c: x * c.softmax(1), [((1, CHANNELS, 1, 1),)]),
    "running sum": Operator(lambda x, c: x * c.cumsum(1), [((1, CHANNELS, 1, 1),)]),
    "norm of a constant": Operator(
        lambda x, c: x * functional.layer_norm(c, c.shape[1:]), [((1, *MAPS[1:]),)]
    ),
    "part of an enlarged one": Operator(
        lambda x, c: torch.cat([x[..., :3] + functional.interpolate(c, size=SIDE)[..., :3], x], 3),
        [((1, 1, 3, 3),), ((1, CHANNELS, 3, 3),)],
    ),
}


# What is wrong with these would be wrong with another one too: they are for the full tests.
ALIKE = (
    *("where", "addcmul", "linear of one", "mm", "transposed convolution", "running sum"),
    *("layer norm of channels in front", "layer norm of channels between"),
    *("rms norm of channels behind", "bias of its own weights", "computed weight of a norm"),
)


class Cases(nn.Module):
    """An operator with parameters of each of its shapes, behind a convolution for each."""

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        self.compute = operator.compute
        self.heads = nn.ModuleList(nn.Conv2d(3, CHANNELS, 1) for _ in operator.shapes)
        self.held = nn.ModuleList(
            nn.ParameterList(torch.randn(shape) for shape in shapes) for shapes in operator.shapes
        )

    def forward(self, image):
        cases = zip(self.heads, self.held, strict=True)
        return tuple(self.compute(head(image), *held) for head, held in cases)


@cache
def traced_model(name: str):
    torch.manual_seed(0)
    model = Cases(OPERATORS[name]).double()
    inputs = [torch.randn(2, 3, SIDE, SIDE, dtype=torch.float64)]
    return model, inputs, *placements.traced_model(model, inputs)


# A bias of one element, or of one for each sample, was cut like one of each filter; a weight whose
# dimensions are alike was cut along the first; and what a parameter is part of by a softmax was
# computed of that part: in parts these did not run, or computed something else.
@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.full] * (n in ALIKE)) for n in OPERATORS]
)
@settings(max_examples=max(2, settings().max_examples // 3))
@given(
    grain=st.sampled_from(["coarse", "fine"]),
    k=st.integers(2, 4),
    single=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_partition_of_operators_with_parameters(name, grain, k, single, seed):
    model, inputs, traced, graph = traced_model(name)
    draw = placements.of_single_tasks if single else placements.of_random_blocks
    plan = draw(traced, graph, Modelling(grain=grain), k, seed)
    placements.check_equal(model, inputs, plan)


@torch.library.custom_op("hgpart_operand_shapes::weigh", mutates_args=())
def weigh(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


weigh.register_fake(lambda x, weight: x.new_empty(*x.shape[:-1], weight.shape[1]))
weigh.register_autograd(
    lambda ctx, grad: (grad @ ctx.saved_tensors[1].t(), ctx.saved_tensors[0].t() @ grad),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class Weighed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(4, CHANNELS)
        self.weight = nn.Parameter(torch.randn(CHANNELS, width))

    def forward(self, x):
        return weigh(self.head(x), self.weight)


@pytest.mark.few(2)
@pytest.mark.parametrize(("width", "slices"), [(CHANNELS, {"weight": 1}), (5, {}), (CHANNELS, {})])
def test_a_rule_of_the_user_says_which_dimension_counts_tasks(monkeypatch, width, slices):
    # The first dimension of as many elements as there are tasks was taken for it, without a word.
    def rule(call):
        return Mix(*mix_all(call.args[0].ids), 1, 1, partial=False, slices=slices)

    monkeypatch.setattr(table, "_users", {})
    channel_rule(weigh._opoverload)(rule)
    torch.manual_seed(0)
    model, inputs = Weighed(width).double(), [torch.randn(3, 4, dtype=torch.float64)]
    traced, graph = placements.traced_model(model, inputs)
    plan = placements.of_single_tasks(traced, graph, Modelling(), 2, 1)
    if width == CHANNELS and not slices:
        with pytest.raises(
            PlacementError, match=r"which dimension of weight \(6, 6\) counts its 6"
        ):
            place(model, plan)
    else:
        placements.check_equal(model, inputs, plan)


@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_a_product_of_the_user_is_cut_as_those_of_torch_are(monkeypatch, grain):
    monkeypatch.setattr(table, "_users", {})
    channel_rule(weigh._opoverload)(Product("x", "weight", "", row_dim=1))
    torch.manual_seed(0)
    model, inputs = Weighed(5).double(), [torch.randn(3, 4, dtype=torch.float64)]
    traced, graph = placements.traced_model(model, inputs)
    layer = graph.layers[-2]
    assert (layer.kind, layer.tasks, layer.macs) == ("linear", 5, CHANNELS)
    plan = placements.of_single_tasks(traced, graph, Modelling(grain=grain), 3, 1)
    placements.check_equal(model, inputs, plan)  # each element of the weight is in one part


@pytest.mark.parametrize("before", [[], [Product("x", "weight", "", row_dim=1)]])
def test_a_sum_of_the_user_that_is_no_product_is_not_split(monkeypatch, before):
    # Nobody knew how to cut its terms: placing a fine-grain partition failed an assertion.
    def rule(call):
        return Mix(*mix_all(call.args[0].ids), 1, 1, partial=True, slices={"weight": 1})

    monkeypatch.setattr(table, "_users", {})
    for each in (*before, rule):
        channel_rule(weigh._opoverload)(each)
    torch.manual_seed(0)
    model, inputs = Weighed(5).double(), [torch.randn(3, 4, dtype=torch.float64)]
    traced, graph = placements.traced_model(model, inputs)
    assert not any(read.partial for read in graph.layers[-2].reads)
    plan = placements.of_single_tasks(traced, graph, Modelling(grain="fine"), 3, 1)
    placements.check_equal(model, inputs, plan)


@torch.library.custom_op("hgpart_operand_shapes::behind", mutates_args=())
def behind(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).clone()


behind.register_fake(lambda x: x.permute(0, 2, 3, 1).clone())
behind.register_autograd(lambda ctx, grad: grad.permute(0, 3, 1, 2))


class Behind(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, CHANNELS, 1), nn.Linear(CHANNELS, 4)

    def forward(self, x):
        return self.head(behind(self.stem(x)))


def test_what_moves_elements_for_the_user_is_cut_as_it_says(monkeypatch):
    monkeypatch.setattr(table, "_users", {})
    channel_rule(behind._opoverload, cut="permutation")(moved)
    torch.manual_seed(0)
    model, inputs = Behind().double(), [torch.randn(2, 3, 5, 5, dtype=torch.float64)]
    traced, graph = placements.traced_model(model, inputs)
    assert [layer.kind for layer in graph.layers] == ["input", "dense", "linear", "output"]
    plan = placements.of_single_tasks(traced, graph, Modelling(grain="fine"), 3, 1)
    placements.check_equal(model, inputs, plan)
