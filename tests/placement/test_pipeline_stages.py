"""Parts as stages of torch's pipelines."""

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
from hgpart.placement.pipeline_stages import to_pipeline_stages
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


def test_what_is_no_function_of_tensors_is_refused() -> None:
    training = placed(Forked().double(), (IMAGES,), "layers", 2)
    with pytest.raises(PlacementError, match="random masks"):
        to_pipeline_stages(training)
    model = Past()
    traced = trace(model, IMAGES.float())
    modelling = Modelling(batch_size=4, slices=2)
    sliced = place(model, of_data_parallel(traced, channel_graph(traced), modelling, 2))
    with pytest.raises(PlacementError, match=r"^the plan is over slices or bands"):
        to_pipeline_stages(sliced)
    normed = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    once = place(normed, partition_model(normed, IMAGES.float(), 2), norms="batch")
    with pytest.raises(PlacementError, match=r"^norms of the batch"):
        to_pipeline_stages(once)
