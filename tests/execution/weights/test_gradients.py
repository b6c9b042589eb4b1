"""Gradients of maps, and apart from them those of weights, against autograd's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from hgpart.execution.weights.gradients import WeightGradient, add_products, map_gradients


class Tied(nn.Module):
    """One matrix, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(self.line(x).relu())


class Chain(nn.Module):
    """Two layers with weights in one step, and a weight that no map is before."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 4, bias=False)
        self.scale = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh()) * self.scale.exp()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU()),
    "no bias": lambda: nn.Linear(6, 4, bias=False),
    "three dimensions": lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 4)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.ReLU(), nn.MaxPool1d(2)
    ),
    "tied": Tied,
    "chain": Chain,
    "frozen": lambda: nn.Sequential(nn.Linear(6, 4).requires_grad_(False), nn.Linear(4, 3)),
}


def left_of(
    results: Sequence[Tensor], gradients: Sequence[Tensor], leaf: Tensor
) -> list[WeightGradient]:
    """What is left to do for weights, once the gradient of a map is known."""
    heads = [get_gradient_edge(result) for result in results]
    return map_gradients(heads, gradients, [get_gradient_edge(leaf)])[1]


def twins(name: str) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    one, other = MODELS[name]().double(), MODELS[name]().double()
    other.load_state_dict(one.state_dict())
    return one, other


@pytest.mark.parametrize("needs_map", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_both_halves_are_autograds(name: str, needs_map: bool) -> None:
    model, plain = twins(name)
    x = torch.rand(5, 6, dtype=torch.float64)
    leaf, wanted = (x.clone().requires_grad_(needs_map) for _ in range(2))
    result, expected = model(leaf), plain(wanted)
    gradient = torch.rand_like(expected)
    torch.autograd.backward([expected], [gradient])
    operands = [get_gradient_edge(leaf)] if needs_map else []
    maps, left = map_gradients([get_gradient_edge(result)], [gradient], operands)
    assert len(maps) == needs_map
    if needs_map:
        torch.testing.assert_close(maps[0], wanted.grad, rtol=0, atol=0)
    if needs_map:  # vectors that nothing but maps meets may have theirs
        assert all(one.grad is None for one in model.parameters() if one.dim() > 1)
    for one in left:
        one.add()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-14, atol=1e-14)


class Product(nn.Module):
    """torch.addmm, which a linear layer is one of."""

    def __init__(self, alpha: float = 1, dtype: torch.dtype = torch.float64, rows: int = 0) -> None:
        super().__init__()
        self.alpha = alpha
        self.weight = nn.Parameter(torch.rand(256, 256, dtype=dtype))
        self.bias = nn.Parameter(torch.rand(*(rows,) * bool(rows), 256, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight.t(), alpha=self.alpha)


MATRICES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(256, 256).double(),
    "no bias": lambda: nn.Linear(256, 256, bias=False).double(),
    "three dimensions": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 128)), nn.Linear(128, 512)
    ).double(),
    "by hand": Product,
}
NO_PRODUCTS: dict[str, Callable[[], nn.Module]] = {
    "scaled": lambda: Product(alpha=2),
    "complex": lambda: Product(dtype=torch.complex128),
    "a row as bias": lambda: Product(rows=1),
    "small": lambda: nn.Linear(256, 8).double(),  # beside what it takes
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (64, 4)), nn.Conv1d(64, 64, 1), nn.Flatten()
    ).double(),
    "twice": lambda: nn.Sequential(*2 * [nn.Linear(256, 256)]).double(),
}


def in_three(name: str, models: dict[str, Callable[[], nn.Module]]) -> tuple[nn.Module, nn.Module]:
    """A model that is shown three batches, and what is left of them, if it is put off."""
    torch.manual_seed(0)
    model = models[name]()
    plain = copy.deepcopy(model)
    dtype = next(model.parameters()).dtype
    products: list[object] = []
    for size in (2, 1, 2):
        x = torch.rand(size, 256, dtype=dtype)
        result = model(leaf := x.clone().requires_grad_())
        gradient = torch.rand_like(result)
        torch.autograd.backward([plain(x)], [gradient])
        for one in left_of([result], [gradient], leaf):
            product = one.product()
            if product is None:
                one.add()
            else:
                products.append(product)
    assert (len(products) == 3) == (models is MATRICES)
    if products:
        add_products(products)
    return model, plain


@pytest.mark.parametrize("name", MATRICES)
def test_a_large_matrix_gets_the_gradient_of_several_batches_at_once(name: str) -> None:
    for mine, theirs in zip(*(one.parameters() for one in in_three(name, MATRICES)), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("name", NO_PRODUCTS)
def test_what_is_no_such_product_is_not_taken_for_one(name: str) -> None:
    """Wrong gradients without a word came of alpha, beta and complex numbers."""
    for mine, theirs in zip(
        *(one.parameters() for one in in_three(name, NO_PRODUCTS)), strict=True
    ):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-13, atol=1e-13)


def test_hooks_are_called_once_for_all_batches() -> None:
    matrix, seen = nn.Linear(256, 256), []
    matrix.weight.register_hook(lambda gradient: seen.append(gradient.shape))
    products = []
    for _ in range(2):
        result = matrix(leaf := torch.rand(2, 256, requires_grad=True))
        (left,) = left_of([result], [torch.ones(2, 256)], leaf)
        products.append(left.product())
    add_products(products)
    assert seen == [(256, 256)]


def test_hooks_of_a_norms_vectors_are_called_once() -> None:
    norm, seen = nn.BatchNorm1d(3).double(), []
    norm.weight.register_hook(lambda gradient: seen.append(gradient) or 2 * gradient)
    norm.bias.register_post_accumulate_grad_hook(lambda one: seen.append(one.grad))
    result = norm(leaf := torch.rand(5, 3, dtype=torch.float64).requires_grad_())
    gradient = torch.rand_like(result)
    for one in left_of([result], [gradient], leaf):
        one.add()
    assert len(seen) == 2
    plain = (gradient * ((leaf - leaf.mean(0)) / (leaf.var(0, False) + norm.eps).sqrt())).sum(0)
    torch.testing.assert_close(norm.weight.grad, 2 * plain.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(norm.bias.grad, gradient.sum(0), rtol=1e-14, atol=1e-14)


def test_several_results_one_of_which_is_behind_another() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
    x = torch.rand(3, 4, dtype=torch.float64)
    found = []
    for apart in (True, False):
        for one in (first, second):
            one.zero_grad()
        middle = first(leaf := x.clone().requires_grad_())
        outputs, gradients = [middle, second(middle)], [torch.ones(3, 4).double()] * 2
        if apart:
            edges = [get_gradient_edge(one) for one in outputs]
            (of_map,), left = map_gradients(edges, gradients, [get_gradient_edge(leaf)])
            for one in left:
                one.add()
        else:
            torch.autograd.backward(outputs, gradients)
            of_map = leaf.grad
        found.append([of_map, first.weight.grad, first.bias.grad, second.weight.grad])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-14, atol=1e-14)
