"""A model whose numbers are rounded in another way: by how much, and what stays as it is."""

from __future__ import annotations

import torch
from torch import nn

from hgpart.run.rounded_anew import rounded_anew


class Picking(nn.Module):
    """Reads places that are computed in floating numbers, and changes maps in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        places = (torch.arange(8, dtype=image.dtype) * 0.5).floor().long()
        maps = self.conv(image.view(image.shape)).relu_()
        return maps[..., places].float()


def test_numbers_move_by_their_types_rounding_and_all_else_stays() -> None:
    torch.manual_seed(0)
    model, image = Picking().double(), torch.randn(2, 3, 8, 8).double()
    weights, given = [one.detach().clone() for one in model.parameters()], image.clone()
    expected = model(image)
    with rounded_anew(model, torch.float64) as rounding:
        results = model(image)
        results.sum().backward()  # type: ignore[no-untyped-call]
    assert rounding.smallest == torch.float32
    gap = (results - expected).detach().abs().max() / expected.detach().abs().max()
    assert 1e-8 < gap < 1e-6
    assert torch.equal(image, given)
    assert all(map(torch.equal, weights, model.parameters()))
    assert torch.equal(model(image), expected)


def test_in_float64_alone_it_is_that_types() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).double()
    image = torch.randn(2, 3, 8, 8).double()
    expected = model(image)
    with rounded_anew(model, torch.float64) as rounding:
        gap = (model(image) - expected).detach().abs().max()
    assert rounding.smallest == torch.float64
    assert 1e-16 < gap < 1e-13
