"""Exported parts compute what the model does, and send what the table says."""

from __future__ import annotations

import copy
import json
import math
from importlib.util import find_spec
from pathlib import Path

import placements
import pytest
import torch
from attention_blocks import OF_WINDOWS
from exported_parts import run_parts
from hypothesis import given
from hypothesis import strategies as st
from normed_maps import Norm, normed
from placed_models import Forked, placed
from tiled_networks import tiled_network
from torch import Tensor, nn
from torch.export.pt2_archive._package import load_pt2

from hgpart import Modelling, Placement, flops, load_model, partition_by, partition_model, place
from hgpart.errors import ArgumentError, MissingPackageError, OutputError, PlacementError
from hgpart.partitioned_model import PartitionedModel
from hgpart.placement.exporting import part_files
from hgpart.placement.exporting.part_files import export_part

IMAGES = torch.randn(4, 3, 14, 14, generator=torch.Generator().manual_seed(1))


def small() -> nn.Module:
    torch.manual_seed(2)
    layers = [nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(6, 8, 3, padding=1), nn.Conv2d(8, 6, 3), nn.Flatten(), nn.Linear(150, 5)]
    return nn.Sequential(*layers).eval()


def in_bands(k: int = 3) -> Placement:
    """Bands of rows, slices of the batch and filters in parts at random."""
    model = small()
    traced, graph = placements.traced_model(model, [IMAGES])
    modelling = Modelling(batch_size=4, bands=3, slices=2)
    return place(model, placements.of_random_blocks(traced, graph, modelling, k, 5))


def check(
    placement: Placement, model: nn.Module, inputs: list[Tensor], folder: Path, ending: str = ".pt2"
) -> None:
    """Run exported parts of a placement beside the model."""
    batch_size, names = len(inputs[0]), placement.programs.arguments.names
    folder.mkdir(exist_ok=True)
    for part in range(placement.k):
        export_part(placement, part, folder / f"part{part}{ending}", batch_size=batch_size)
    passed = run_parts(folder, ending, dict(zip(names, inputs, strict=True)))
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(model(*inputs))
    precise = expected[0].dtype == torch.float64
    for number, value in enumerate(expected):
        close = {"rtol": 1e-10, "atol": 1e-10} if precise else {"rtol": 1e-3, "atol": 1e-4}
        torch.testing.assert_close(passed.results[number], value, **close)
    assert passed.counted == placement.programs.expected(batch_size).volume


@pytest.mark.few(1)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_filters_of_parts_are_exported(grain: str, tmp_path: Path) -> None:
    model = small()
    traced, graph = placements.traced_model(model, [IMAGES])
    plan = placements.of_single_tasks(traced, graph, Modelling(batch_size=4, grain=grain), 3, 1)
    check(place(model, plan), model, [IMAGES], tmp_path)


def test_attention_within_windows_is_exported_as_an_operator_of_torch(tmp_path: Path) -> None:
    """Its windows lie apart from samples, by an operator that only hgpart has."""
    images = torch.randn(4, 3, 16, 16)
    model = OF_WINDOWS["at once"]().eval()
    traced, graph = placements.traced_model(model, [images])
    called = {node.target for node in traced.graph_module.graph.nodes}
    assert torch.ops.hgpart.attention_of_stacks.default in called
    plan = placements.of_whole_tiles(traced, graph, Modelling(batch_size=4, bands=2), 2, 1)
    check(place(model, plan), model, [images], tmp_path)


@pytest.mark.full
def test_norms_over_channels_are_exported_as_operators_of_torch(tmp_path: Path) -> None:
    images = torch.randn(4, 3, 4, 2)
    for kind in ("layer", "rms", "group"):
        model = normed(Norm(kind, 6)).float().eval()
        traced, graph = placements.traced_model(model, [images])
        plan = placements.of_single_tasks(traced, graph, Modelling(batch_size=4), 3, 1)
        check(place(model, plan), model, [images], tmp_path / kind)


@pytest.mark.full
def test_bands_and_slices_of_parts_are_exported(tmp_path: Path) -> None:
    """Each takes its rows of its samples of the input alone.

    Parts have copies of each other's weights, of which a pass would have brought them new ones.
    """
    placement, model = in_bands(), small()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    placement.load_state_dict(model.state_dict())
    check(placement, model, [IMAGES], tmp_path)
    parts = [json.loads((tmp_path / f"part{part}.json").read_text()) for part in range(3)]
    extents = [piece["extent"] for part in parts for piece in part["inputs"]]
    assert all(piece[1] == [0, 3] and piece[3] == [0, 14] for piece in extents)
    assert {tuple(piece[0]) for piece in extents} == {(0, 2), (2, 4)}
    assert any(piece[2] != [0, 14] for piece in extents)


@pytest.mark.long
@given(seed=st.integers(0, 10_000), bands=st.integers(1, 4), slices=st.integers(1, 2))
@pytest.mark.full
def test_random_networks_in_random_tiles(
    seed: int, bands: int, slices: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    drawn = tiled_network(seed, 4)
    if drawn is None:
        return
    model, images = drawn
    traced, graph = placements.traced_model(model.eval(), [images])
    modelling = Modelling(batch_size=4, bands=min(bands, graph.most_rows), slices=slices)
    try:
        plan = placements.of_random_blocks(traced, graph, modelling, 2 + seed % 2, seed)
        placement = place(copy.deepcopy(model), plan)
    except PlacementError:
        return  # other tests say why
    try:
        check(placement, model, [images], tmp_path_factory.mktemp("parts"))
    except PlacementError as error:
        assert "computes nothing" in str(error)


def test_results_in_a_structure_are_numbered(tmp_path: Path) -> None:
    model = Forked().double().eval()
    images = torch.randn(4, 3, 6, 6, dtype=torch.float64)
    placement = placed(model, (images,), "random", 2)
    check(placement, model, [images], tmp_path)


def test_weights_in_a_file_are_those_of_the_part(tmp_path: Path) -> None:
    placement = in_bands()
    export_part(placement, 1, tmp_path / "part1.pt2")
    loaded = load_pt2(str(tmp_path / "part1.pt2")).exported_programs.values()
    found = [
        one for each in loaded for one in (*each.state_dict.values(), *each.constants.values())
    ]
    module = placement.programs.submodule(1)
    held = [*module.parameters(), *module.buffers()]
    assert any(one.dim() == 4 for one in found)
    assert not any(one.requires_grad for one in found)
    assert all(any(torch.equal(one, own) for own in held) for one in found)


def test_another_batch_than_the_plans(tmp_path: Path) -> None:
    model = small()
    placement = placed(model, (IMAGES,), "random", 2)
    check(placement, model, [IMAGES[:1]], tmp_path)


def test_files_are_as_they_are_said_to_be(tmp_path: Path) -> None:
    placement = placed(small(), (IMAGES,), "layers", 2)
    seen: list[tuple[int, int]] = []
    stages = export_part(
        placement, 1, tmp_path / "p.pt2", model="small", on_stage=lambda *done: seen.append(done)
    )
    said = json.loads((tmp_path / "p.json").read_text())
    assert (said["format"], said["model"], said["part"], said["parts"]) == (
        "hgpart part 1",
        "small",
        1,
        2,
    )
    assert said["dtype"] == "float32"
    assert seen == [(at, len(stages.stages)) for at in range(len(stages.stages) + 1)]
    received = [message for stage in said["stages"] for message in stage["receives"]]
    assert sum(message["bytes"] for message in received) == stages.received_bytes
    assert [message["layer"] for message in received] == [
        transfer.layer for transfer in placement.programs.transfers if transfer.receiver == 1
    ]
    for kind in said["tensors"].values():
        size = getattr(torch, kind["dtype"]).itemsize
        assert kind["bytes"] == size * math.prod(kind["shape"])


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("way", ["spatial", "horizontal", "data-parallel"])
@pytest.mark.parametrize("name", ["resnet50", "vgg16", "unet", "mobilenet_v2"])
def test_models_in_three_parts(name: str, way: str, tmp_path: Path) -> None:
    """In bands of rows, by filters, and in slices of the batch."""
    model, shape = load_model(name, seed=0)
    size = shape if name == "vgg16" else (3, 64, 64)
    images = torch.randn(3, *size, dtype=torch.float64)
    model = model.double().eval()
    traced, graph = placements.traced_model(model, [images])
    partition = partition_by(way, graph, flops(graph), 3, modelling=Modelling(batch_size=3))
    placement = place(model, PartitionedModel(traced, partition, partition.evaluation, {}))
    check(placement, model, [images], tmp_path)


@pytest.mark.long
@pytest.mark.full
def test_onnx_computes_the_same(tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install '.[test]'")
    check(placed(small(), (IMAGES,), "random", 2), small(), [IMAGES], tmp_path / "a", ".onnx")
    check(in_bands(2), small(), [IMAGES], tmp_path / "b", ".onnx")


def test_what_writes_onnx_is_looked_for_first(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(part_files, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"needs onnx, .*'\.\[onnx\]'"):
        export_part(placed(small(), (IMAGES,), "layers", 2), 0, tmp_path / "part.onnx")


@torch.library.custom_op("hgpart_part_files::turned", mutates_args=())
def turned(maps: Tensor) -> Tensor:
    return maps.flip(1)


turned.register_fake(lambda maps: maps.flip(1))


class Turns(nn.Sequential):
    def forward(self, maps: Tensor) -> Tensor:
        return turned(super().forward(maps))


class Draws(nn.Sequential):
    def forward(self, maps: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(maps, 0.5, training=True))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, maps: Tensor) -> Tensor:
        self.passes += 1
        return self.first(maps) + self.passes


def test_what_can_not_be_exported_is_refused_by_name(tmp_path: Path) -> None:
    placement = placed(small(), (IMAGES,), "layers", 2)
    file = tmp_path / "part.pt2"
    with pytest.raises(ArgumentError, match=r"^file ending '.pt': accepted are .pt2 and .onnx"):
        export_part(placement, 0, tmp_path / "part.pt")
    with pytest.raises(PlacementError, match=r"^part 2: accepted are 0, 1"):
        export_part(placement, 2, file)
    with pytest.raises(OutputError, match=r"there/part\.pt2"):
        export_part(placement, 0, tmp_path / "there" / "part.pt2")
    with pytest.raises(PlacementError, match=r"^a placement in training: accepted is one in eval"):
        export_part(placement.train(), 0, file)
    for model, said in (
        (
            Draws(nn.Conv2d(3, 6, 3)),
            r"^aten.native_dropout.* draws random numbers in evaluation, too",
        ),
        (Turns(nn.Conv2d(3, 6, 3)), r"^stage 0 of part 0 calls hgpart_part_files.turned.default,"),
        (Counting(), r"^the model changes its buffer passes in evaluation, too"),
    ):
        with pytest.raises(PlacementError, match=said):
            export_part(placed(model.eval(), (IMAGES,), "layers", 1), 0, file)
    some = place(small(), partition_model(small(), IMAGES, 2), parts=[0])
    with pytest.raises(PlacementError, match=r"^this process holds 1 of 2 parts: accepted are all"):
        export_part(some, 0, file)
    assert [*tmp_path.iterdir()] == []
