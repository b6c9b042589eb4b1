"""Random batches have the types and values that a shape says."""

from __future__ import annotations

from inspect import signature

import torch
from torch import Tensor

from hgpart.run.random_batch import random_batch
from hgpart.tracing.input_shape import InputShape


def forward(image: Tensor, mask: Tensor, kind: Tensor, label: Tensor) -> None: ...


def test_values_are_of_their_types_and_ranges() -> None:
    shape = InputShape(["2,3", "mask=4:float:2", "kind=:uint8", "label=5:int64:3"])
    torch.manual_seed(1)
    batch = random_batch(shape, signature(forward), 500, torch.float64)
    assert [*batch] == ["image", "mask", "kind", "label"]
    assert [value.dtype for value in batch.values()] == [
        *(torch.float64, torch.float64, torch.uint8, torch.int64)
    ]
    assert [value.shape for value in batch.values()] == [(500, 2, 3), (500, 4), (500,), (500, 5)]
    assert batch["mask"].unique().tolist() == [0, 1]
    assert batch["label"].unique().tolist() == [0, 1, 2]
    assert batch["kind"].max() > 200
    assert not (batch["image"] == batch["image"].round()).any()


def test_one_image_is_drawn_as_torch_draws_it() -> None:
    """Figures of commands with a seed stay what they were."""
    torch.manual_seed(3)
    (drawn,) = random_batch(InputShape((3, 4, 4)), signature(forward), 2)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.randn(2, 3, 4, 4))
