"""What stands for operators of complex numbers makes what they make, and has a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hgpart.operators import complex_numbers

aten = torch.ops.aten
PAIRS: list[tuple[Callable[..., Any], Any, tuple[int, ...], tuple[Any, ...]]] = [
    (complex_numbers.slice_written, aten.slice_scatter, (3, 2, 4), (1, 1, 4, 2)),
    (complex_numbers.slice_written, aten.slice_scatter, (2, 5, 4), (0, -2, 9223372036854775807)),
    (complex_numbers.position_written, aten.select_scatter, (3, 5), (2, -1)),
    (complex_numbers.diagonal_written, aten.diagonal_scatter, (5, 3), (1, 0, 2)),
]


@pytest.mark.parametrize("at", range(len(PAIRS)))
def test_what_is_written_is_written_and_its_gradient_goes_there(at: int) -> None:
    """Written into ones, and into nothing: the gradient of a part is what it is multiplied by."""
    own, operator, shape, places = PAIRS[at]
    whole = torch.randn(3, 5, 4, dtype=torch.complex128, requires_grad=True)
    part = torch.randn(shape, dtype=torch.complex128, requires_grad=True)
    made = own(whole, part, *places)
    torch.testing.assert_close(made, operator(whole.detach(), part.detach(), *places))
    weights = torch.randn_like(made)
    (made * weights.conj()).real.sum().backward()
    marks = operator(torch.zeros(3, 5, 4), torch.ones(shape), *places).bool()
    torch.testing.assert_close(whole.grad, weights.masked_fill(marks, 0))
    expected = operator(torch.zeros_like(weights), torch.ones_like(part), *places) * weights
    torch.testing.assert_close(part.grad.sum(), expected.sum())


def test_a_conjugate_is_seen_as_real_numbers() -> None:
    numbers = torch.tensor([1.0 + 2.0j])
    assert complex_numbers.as_real(numbers.conj()).tolist() == [[1.0, -2.0]]
