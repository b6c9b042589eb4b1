"""Norms of a batch in several shares: statistics put together, and what goes back through them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import batch_norm

from hgpart.errors import PlacementError, RunError
from hgpart.execution.batch_norms import combined, normalised, statistics_of, update_running
from hgpart.execution.recomputation import without_statistics


def of_shares(maps, sizes):
    """Statistics of a batch, of those of its shares."""
    pieces = [statistics_of(share) for share in maps.split(sizes)]
    members = torch.eye(len(sizes), dtype=torch.int64).flatten()
    return combined(pieces, [None] * len(sizes), members, None, sizes)


@pytest.mark.parametrize("shape", [(3,), (3, 5), (3, 2, 4)])
@pytest.mark.parametrize("affine", [True, False])
def test_shares_together_are_the_whole_batch(shape, affine):
    torch.manual_seed(0)
    maps = (torch.randn(7, *shape).double() * 3 + 50).requires_grad_()
    vectors = [torch.randn(3).double().requires_grad_() for _ in range(2)] if affine else [None] * 2
    sizes, wanted = [1, 2, 4], torch.randn(7, *shape).double()
    learned = [maps, *vectors] if affine else [maps]
    statistics = of_shares(maps, sizes)
    made = torch.cat([normalised(one, statistics, *vectors, 1e-5) for one in maps.split(sizes)])
    expected = batch_norm(maps, None, None, *vectors, training=True)
    torch.testing.assert_close(made, expected, rtol=1e-10, atol=1e-12)
    for found, one in zip(
        torch.autograd.grad(made, learned, wanted),
        torch.autograd.grad(expected, learned, wanted),
        strict=True,
    ):
        torch.testing.assert_close(found, one, rtol=1e-8, atol=1e-10)


def test_without_memory_and_by_gradcheck():
    maps, statistics = torch.randn(3, 2, 2).double(), torch.rand(2, 2).double() + 0.5
    learned = [one.requires_grad_() for one in (maps, statistics, torch.ones(2).double())]
    assert torch.autograd.gradcheck(statistics_of, maps)
    assert torch.autograd.gradcheck(lambda *given: normalised(*given, None, 0.1), learned)
    assert statistics_of(maps.detach().to("meta")).shape == (2, 2)
    with pytest.raises(RunError, match=r"given torch\.bfloat16: accepted are float32 and float64"):
        statistics_of(maps.detach().bfloat16())


def test_one_sample_that_lies_apart_in_memory():
    """As one of several tokens: torch's backward pass took it for laid out as the gradient is."""
    torch.manual_seed(0)
    tokens = torch.randn(1, 10, 4, dtype=torch.float64)[:, 1:].mT.unflatten(2, (3, 3))
    weight, bias = torch.randn(2, 4, dtype=torch.float64)
    found = []
    for operand in (tokens, tokens.contiguous()):
        leaves = [one.detach().requires_grad_() for one in (operand, weight, bias)]
        statistics = statistics_of(leaves[0])
        made = normalised(leaves[0], statistics, *leaves[1:], 1e-5)
        gradient = torch.arange(36.0, dtype=torch.float64).view(1, 4, 3, 3).sin()
        found.append(torch.autograd.grad(made, leaves, gradient))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_second_derivatives_are_refused_by_name():
    """Of a sum of gradients, whose incoming gradient is a constant, torch would say nothing."""
    maps = torch.randn(3, 2, 2).double().requires_grad_()
    statistics, weight = torch.rand(2, 2).double() + 0.5, torch.ones(2).double()
    for made in (statistics_of(maps), normalised(maps, statistics, weight, None, 0.1)):
        with pytest.raises(PlacementError, match="no second derivatives"):
            torch.autograd.grad(made.sum(), maps, create_graph=True)


def test_channels_that_shares_lie_apart_in():
    """Three channels of two shares: the first piece has all of one, the second two of the other."""
    one, other = torch.rand(2, 3), torch.rand(2, 2)
    members = torch.tensor([[[1, 0], [1, 0]], [[0, 1], [0, 0]]])  # pieces, kinds, shares
    places, kinds = [None, torch.tensor([0, 2])], torch.tensor([0, 1, 0])
    found = combined([one, other], places, members.flatten(), kinds, [1, 2])
    torch.testing.assert_close(found[:, 1], one[:, 1])
    torch.testing.assert_close(found[0, [0, 2]], (one[0, [0, 2]] + 2 * other[0]) / 3)


def test_running_statistics_are_batch_norms():
    norm, maps = nn.BatchNorm1d(3, momentum=0.3).double(), torch.randn(7, 3, 5).double() + 9
    running = [one.clone() for one in (norm.running_mean, norm.running_var)]
    norm(maps)
    with without_statistics():
        update_running(*running, statistics_of(maps), [3, 4], 5, 0.3)
    update_running(*running, statistics_of(maps), [3, 4], 5, 0.3)
    for found, expected in zip(running, (norm.running_mean, norm.running_var), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
