"""Parts as stages of torch's pipelines, and as functions that torch.export takes."""

from __future__ import annotations

import json
from pathlib import Path

import pipeline_ranks
import pytest
import torch
from pipeline_ranks import RULES, Past
from placed_models import Forked, placed
from placements import of_data_parallel
from torch import nn

from hgpart.errors import PlacementError
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.layering import channel_graph
from hgpart.partitioned_model import partition_model
from hgpart.placement import Placement, place
from hgpart.placement.pipeline_stages import part_as_function, to_pipeline_stages
from hgpart.run.processes.launch import launch
from hgpart.tracing.traced_model import trace

IMAGES = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(1)).double()


def in_stages(placement: Placement, images: torch.Tensor) -> torch.Tensor:
    values: object = images
    for stage in to_pipeline_stages(placement):
        values = stage(*values) if isinstance(values, tuple) else stage(values)
    assert isinstance(values, torch.Tensor)
    return values


@pytest.mark.few(2)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_stages_one_after_the_other_are_the_model(k: int) -> None:
    model = Past().double()
    placement = placed(model, (IMAGES,), "layers", k)
    result = in_stages(placement, IMAGES)
    expected = model(IMAGES)
    assert torch.allclose(result, expected, atol=1e-12)
    result.sum().backward()
    expected.sum().backward()
    state = placement.state_dict()
    for name, value in model.state_dict().items():
        assert torch.allclose(state[name].double(), value.double(), atol=1e-12), name
    grads = {name: one.grad for name, one in model.named_parameters()}
    for part in range(k):
        for name, one in placement.original_parameters(part):
            torch.testing.assert_close(one.grad, grads[name])


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("k", [2, 3])
def test_pipelines_of_processes_have_the_models_gradients(k: int, tmp_path: Path) -> None:
    launch(pipeline_ranks.__file__, [str(tmp_path)], k)
    names = {name for name, _ in Past().named_parameters()} | {"loss"}
    for rule in RULES:
        found: dict[str, float] = {}
        for rank in range(k):
            found |= json.loads((tmp_path / f"{rule}-{rank}.json").read_text())
        assert names == found.keys()
        assert max(found.values()) < 1e-12, found


def test_parts_that_send_both_ways_are_no_stages() -> None:
    placement = placed(Past().double(), (IMAGES,), "random", 2)
    with pytest.raises(PlacementError, match=r"^parts 0 and 1 send to each other both ways"):
        to_pipeline_stages(placement)


@pytest.mark.parametrize("kind", ["layers", "random"])
def test_a_part_is_exported(kind: str) -> None:
    """For any batch; what it is given is what others return."""
    placement = placed(Past().double().eval(), (IMAGES,), kind, 2)
    dynamic = torch.export.Dim.DYNAMIC
    sent: dict[int, torch.Tensor] = {}
    for part in range(2):
        function = part_as_function(placement, part)
        arriving = [each for each in placement.programs.transfers if each.receiver == part]
        if any(each.number not in sent for each in arriving):
            continue  # both wait for each other: torch calls neither first
        values = [sent[each.number] for each in arriving]
        given = [IMAGES, *values] if part in readers(placement) else values
        exported = torch.export.export(
            function, tuple(given), dynamic_shapes=tuple({0: dynamic} for _ in given)
        )
        made = exported.module()(*given)
        assert all(map(torch.equal, made, function(*given)))
        assert len(exported.module()(*(one[:3] for one in given))[0]) == 3
        leaving = [each for each in placement.programs.transfers if each.sender == part]
        sent |= {each.number: one for each, one in zip(leaving, made, strict=False)}


def readers(placement: Placement) -> list[int]:
    return [part for part in range(placement.k) if placement.programs.shares_read(part)]


def test_what_is_no_function_of_tensors_is_refused() -> None:
    training = placed(Forked().double(), (IMAGES,), "layers", 2)
    masks = training.programs.draw(4).keys()
    (drawing,) = [
        part
        for part in range(2)
        if any(node.target in masks for node in training.programs.submodule(part).graph.nodes)
    ]
    with pytest.raises(PlacementError, match="random masks"):
        part_as_function(training, drawing)
    with pytest.raises(PlacementError, match=r"^part 7: accepted are 0, 1"):
        part_as_function(training, 7)
    model = Past()
    traced = trace(model, IMAGES.float())
    modelling = Modelling(batch_size=4, slices=2)
    sliced = place(model, of_data_parallel(traced, channel_graph(traced), modelling, 2))
    with pytest.raises(PlacementError, match=r"^the plan is over slices or bands"):
        part_as_function(sliced, 0)
    normed = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    once = place(normed, partition_model(normed, IMAGES.float(), 2), norms="batch")
    with pytest.raises(PlacementError, match=r"^norms of the batch"):
        part_as_function(once, 0)
