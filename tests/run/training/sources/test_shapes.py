"""Drawn shapes: the same in any batch, inside by an independent rule, and of all classes."""

from __future__ import annotations

import math

import pytest
import torch

from hgpart.errors import ArgumentError
from hgpart.run.training.data import load_data
from hgpart.run.training.sources.shapes import CORNERS, DENT, Shapes, inside


def test_a_shape_is_drawn_from_its_number_alone():
    many, few = (Shapes("training", count, 3, 16, 12) for count in (50, 10))
    images = many.images(range(10))
    assert images.shape == (10, 3, 16, 12)
    assert torch.equal(few.images([7, 2]), images[[7, 2]])
    assert not torch.equal(Shapes("test", 10, 3, 16, 12).images([7]), images[[7]])
    assert torch.allclose(Shapes("training", 10, 1, 16, 12).images([7])[0], images[7].mean(0))
    assert set(many.labels(range(50)).tolist()) == set(range(10))


@pytest.mark.parametrize("label", range(10))
def test_a_pixel_is_inside_if_the_outline_goes_around_it(label):
    """The outline winds about a pixel of the shape once, about another not at all."""
    size = 20
    right = torch.linspace(-1, 1, size).expand(size, size)
    down = right.T
    draws = torch.tensor([[0.3, 1.0, 0.5, 0.5, 0.5]])[..., None, None]  # radius 0.9, in the middle
    drawn = inside(draws, torch.tensor([label]), right, down)[0]
    corners = CORNERS[label % 5]
    inner = math.cos(math.pi / corners) * (1 if label < 5 else DENT)
    angles = [math.pi * at / corners - 0.6 * math.pi for at in range(2 * corners)]
    radii = [0.9, 0.9 * inner] * corners
    outline = [(r * math.cos(a), r * math.sin(a)) for r, a in zip(radii, angles, strict=True)]
    for row in range(size):
        for column in range(size):
            x, y = right[row, column].item(), down[row, column].item()
            seen = [math.atan2(b - y, a - x) for a, b in outline]
            steps = [
                after - before for before, after in zip(seen, seen[1:] + seen[:1], strict=True)
            ]
            turned = sum((step + math.pi) % math.tau - math.pi for step in steps)
            assert drawn[row, column].item() == (abs(turned) > math.pi), (x, y)


def test_shapes_are_held_out_and_need_colours_or_grey():
    data = load_data("shapes,fold=2/5", (3, 32, 32), 10, seed=0)
    parts = data.train, data.validation, data.test
    assert len(data.train) + len(data.validation) == 20_000
    assert [round(len(samples), -2) for samples in parts] == [16_000, 4_000, 5_000]
    with pytest.raises(ArgumentError, match="has 2 channels"):
        load_data("shapes", (2, 32, 32), 10, seed=0)
