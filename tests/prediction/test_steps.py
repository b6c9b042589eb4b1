"""What the steps of parts compute, and what parts own."""

from __future__ import annotations

from collections import Counter

import placements
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from placed_models import model_of, placed
from sliced_placements import sliced
from torch import nn

from hgpart import Modelling, flops, place
from hgpart.execution import step_run
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.ways.catalogue import way_named
from hgpart.partitioned_model import PartitionedModel
from hgpart.prediction.steps import part_steps
from hgpart.run.scheduling import schedule


@pytest.mark.full
@given(
    st.sampled_from(["residual", "grouped", "branches"]),
    *(st.integers(1, 3), st.integers(1, 3), st.integers(0, 99)),
    st.sampled_from(["coarse", "fine"]),
)
def test_parts_have_each_layer_once_for_each_sample_and_own_each_parameter_once(
    name: str, slices: int, k: int, seed: int, grain: str
) -> None:
    placement = sliced(name, slices, k, seed, grain)
    computed, owned = Counter[int](), Counter[int]()
    for steps in part_steps(placement).values():
        for step in (one for chunk in steps.forward for one in chunk.names):
            if step in steps.shares:
                share = steps.shares[step]
                computed[share.layer] += share.share * share.of_batch
        owned.update(steps.owned)
    layers = placement.programs.blueprint.graph.layers
    working = {at for at, layer in enumerate(layers) if layer.operators}
    assert {at: computed[at] for at in working} == pytest.approx(dict.fromkeys(working, 1.0))
    learning = {at for at in working if layers[at].parameter_names and layers[at].tied_to == at}
    assert dict(owned) == pytest.approx(dict.fromkeys(learning, 1.0))


def test_a_tile_takes_its_share_of_the_rows_with_those_that_several_compute() -> None:
    """A maximum over 3 of 8 rows at stride 2 for 4 rows: two bands both compute the one between."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(3, 2, 1), nn.Conv2d(4, 2, 1))
    images = torch.zeros(2, 3, 8, 6)
    traced, graph = placements.traced_model(model, [images])
    modelling = Modelling(batch_size=2, bands=2)
    problem = Problem(graph, flops(graph), modelling, 2, 0.1)
    partition = way_named("spatial").partition(problem, Search())
    plan = PartitionedModel(traced, partition, partition.evaluation, {})
    shares = [
        {share.layer: share.of_batch for share in steps.shares.values() if share.multiplies}
        for steps in part_steps(place(model, plan)).values()
    ]
    assert shares == [{1: 4 / 8, 2: 1 / 2}, {1: 5 / 8, 2: 1 / 2}]


def test_chunks_move_what_travels() -> None:
    """Each transfer is packed by one part and taken apart by another, forward and backward."""
    placement = placed(*model_of("residual")).train()
    steps = part_steps(placement)
    forward = sum(one.nbytes for part in steps.values() for one in part.forward)
    backward = sum(one.nbytes for part in steps.values() for one in part.backward)
    assert forward == 2 * placement.programs.expected(1).traffic.sum()
    assert backward == 2 * placement.programs.expected_gradients(1).traffic.sum()
    count = sum(one.transfers for part in steps.values() for one in part.forward)
    assert count == 2 * placement.programs.expected(1).messages.sum()


def test_what_is_frozen_is_neither_trained_nor_owned() -> None:
    model, inputs = model_of("residual")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for steps in part_steps(placed(model, inputs).train()).values():
        assert not steps.owned
        assert not any(one.trains or one.returns for one in steps.shares.values())


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["random", "layers"])
@pytest.mark.parametrize("micro_batches", [2, 4])
def test_products_are_those_of_the_runtime(
    kind: str, micro_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrices whose gradients wait for the end of a step are told by what they are in it."""
    model = nn.Sequential(nn.Linear(8, 96), nn.ReLU(), nn.Linear(96, 160), nn.Linear(160, 6))
    placement = placed(model, [torch.zeros(4, 8)], kind=kind, k=2).train()
    made = schedule(placement, "gpipe", micro_batches, batch_size=4)
    added = []
    monkeypatch.setattr(step_run, "add_products", added.append)
    placement.step([torch.rand(4, 8)], None, lambda made, _: made.mean(), made)
    wanted = 0
    for steps in part_steps(placement).values():
        shares = [steps.shares[name] for chunk in steps.backward for name in chunk.names]
        wanted += sum(one.is_product(4 // micro_batches) for one in shares if one.trains)
    assert len(added) == wanted > 0
