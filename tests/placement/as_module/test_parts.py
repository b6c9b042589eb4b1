"""Submodules by part."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hgpart import place
from hgpart.errors import PlacementError


def test_a_part_is_found_by_its_number_and_as_torch_names_it():
    placed = place(nn.Linear(3, 4), k=2, example=torch.zeros(2, 3))
    for part in range(2):
        assert placed.parts[part] is placed.parts[str(part)] is placed.programs.submodule(part)
    with pytest.raises(PlacementError, match=r"^part 2: accepted are 0, 1$"):
        placed.parts[2]
