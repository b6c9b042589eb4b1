"""A model from a file of torch.export is the model that was exported."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hgpart
from hgpart.errors import ModelError
from hgpart.zoo import is_user_code, load_model


def saved(path: Path, model: nn.Module, *inputs: torch.Tensor, batch: bool = True) -> str:
    dims = tuple({0: torch.export.Dim.AUTO} if batch else None for _ in inputs)
    program = torch.export.export(model.eval(), inputs, dynamic_shapes=dims)
    torch.export.save(program, path)
    return str(path)


def small() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
    )


def test_it_has_the_layers_weights_and_results_of_the_model(tmp_path: Path) -> None:
    model, images = small(), torch.randn(2, 3, 8, 8)
    path = saved(tmp_path / "net.pt2", model, images)
    loaded, shape = load_model(path)
    assert shape == (3, 8, 8)
    assert loaded.training  # and computes what it computed in evaluation
    assert loaded.state_dict().keys() == model.state_dict().keys()
    graph = hgpart.channel_graph(hgpart.trace(loaded, images))
    assert graph.fingerprint == hgpart.channel_graph(hgpart.trace(model, images)).fingerprint
    plan = hgpart.partition_model(load_model(path, device="meta")[0], images.to("meta"), k=2)
    placed = hgpart.place(loaded, plan)
    assert torch.allclose(placed(images), model(images), atol=1e-6)
    placed(images).sum().backward()
    assert all(weight.grad is not None for weight in placed.parameters())


class Labelled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Conv2d(3, 8, 1)

    def forward(self, image: Tensor, mask: Tensor, *, labels: Tensor) -> Tensor:
        scores = self.scores(image) * mask
        return nn.functional.cross_entropy(scores.mean((2, 3)), labels)


def test_several_inputs_have_the_names_sizes_and_types_of_the_file(tmp_path: Path) -> None:
    model, any_size = Labelled(), {0: torch.export.Dim.AUTO}
    labels = torch.tensor([1, 4])
    args, kwargs = (torch.randn(2, 3, 8, 8), torch.ones(2, 1, 8, 8)), {"labels": labels}
    dims = {"image": any_size, "mask": any_size, "labels": any_size}
    path = str(tmp_path / "labelled.pt2")
    torch.export.save(torch.export.export(model, args, kwargs, dynamic_shapes=dims), path)
    loaded, shape = load_model(path)
    assert shape == ("image=3,8,8", "mask=1,8,8", "labels=:int64")
    placed = hgpart.place(loaded, k=2, example=hgpart.example_inputs(loaded, shape))
    assert torch.allclose(placed(*args, **kwargs), model(*args, **kwargs))
    assert torch.allclose(loaded(*args, **kwargs), model(*args, **kwargs))


class Halved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.float())


class Lists(nn.Module):
    def forward(self, images: list[Tensor]) -> Tensor:
        return images[0] * images[1]


def test_other_files_are_refused_by_what_they_take(tmp_path: Path) -> None:
    fixed = saved(tmp_path / "fixed.pt2", small(), torch.zeros(2, 3, 8, 8), batch=False)
    with pytest.raises(ModelError, match=r"takes input of 2 x 3 x 8 x 8: accepted is a batch of"):
        load_model(fixed)
    images = [torch.zeros(2, 3)] * 2
    program = torch.export.export(
        Lists(), (images,), dynamic_shapes=([{0: torch.export.Dim.AUTO}] * 2,)
    )
    torch.export.save(program, tmp_path / "lists.pt2")
    with pytest.raises(ModelError, match="takes images_0, images_1 as images: accepted are tens"):
        load_model(str(tmp_path / "lists.pt2"))
    other = saved(tmp_path / "double.pt2", Halved(), torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(ModelError, match=r"takes x of torch.float64: accepted are the type of it"):
        load_model(other)
    (tmp_path / "text.pt2").write_text("no program")
    with pytest.raises(ModelError, match="can't be read"):
        load_model(str(tmp_path / "text.pt2"))
    with pytest.raises(ModelError, match="there is no file"):
        load_model("nothing.pt2")


def test_a_plan_does_not_open_such_a_file_by_itself() -> None:
    assert is_user_code("net.pt2")
    assert is_user_code("folder:1/net.pt2")
