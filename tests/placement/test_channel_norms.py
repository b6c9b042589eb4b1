"""Norms over channels: the graph proven by perturbation, parts beside the original."""

from __future__ import annotations

import numpy as np
import placements
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from normed_maps import SAMPLES, Norm, images, normed, norms
from perturbation import check_all
from torch import nn

import hgpart
from hgpart.hypergraph.building import evaluate_parts
from hgpart.hypergraph.modelling import Modelling
from hgpart.run.verifying import verify


def check_verified(norm: Norm, training: bool, modelling: Modelling, k: int, draw, seed: int):
    """Outputs, gradients, and the bytes of each message."""
    model, inputs = normed(norm).train(training), [images()]
    traced, graph = placements.traced_model(model, inputs)
    plan = draw(traced, graph, modelling, k, seed)
    verified = verify(model, hgpart.place(model, plan), inputs)
    assert verified.passed, verified.failures


@given(
    norm=norms(),
    training=st.booleans(),
    grain=st.sampled_from(["coarse", "fine"]),
    k=st.integers(2, 4),
    draw=st.sampled_from([placements.of_single_tasks, placements.of_random_blocks]),
    seed=st.integers(0, 2**16),
)
def test_any_norm_in_any_parts(norm, training, grain, k, draw, seed):
    check_verified(norm, training, Modelling(grain=grain, batch_size=SAMPLES), k, draw, seed)


@pytest.mark.full
@pytest.mark.long
@given(
    norm=norms(),
    grain=st.sampled_from(["coarse", "fine"]),
    slices=st.integers(2, SAMPLES),
    k=st.integers(2, 4),
    draw=st.sampled_from(
        [placements.of_single_tasks, placements.of_random_blocks, placements.of_shared_layers]
    ),
    seed=st.integers(0, 2**16),
)
def test_any_norm_in_any_slices(norm, grain, slices, k, draw, seed):
    modelling = Modelling(grain=grain, batch_size=SAMPLES, slices=slices)
    check_verified(norm, True, modelling, k, draw, seed)


@given(norm=norms(), bands=st.integers(2, 4), k=st.integers(2, 3), seed=st.integers(0, 2**16))
def test_any_norm_in_any_bands(norm, bands, k, seed):
    modelling = Modelling(batch_size=SAMPLES, bands=bands)
    check_verified(norm, True, modelling, k, placements.of_random_blocks, seed)


def of_whole_layers(traced, graph, modelling, k, seed, together=False):
    """Each layer in a part at random; a norm and its statistic in one, if they are to be."""
    plan = placements.of_single_tasks(traced, graph, modelling, k, 0)
    built, parts = plan.partition.model, plan.partition.parts.copy()
    drawn = np.random.default_rng(seed).integers(0, k, len(graph.layers))
    for at, layer in enumerate(graph.layers):
        statistic = [one for one in graph.sources(layer) if graph.layers[one].kind == "statistics"]
        if together and statistic:
            drawn[statistic] = drawn[at]
    parts[:] = drawn[built.vertex_layers]
    return placements.partitioned(traced, graph, modelling, k, built, parts)


@pytest.mark.full
@given(
    norm=norms(),
    training=st.booleans(),
    k=st.integers(1, 3),
    seed=st.integers(0, 2**16),
    together=st.booleans(),
)
def test_any_norm_in_one_part(norm, training, k, seed, together):
    def draw(*arguments):
        return of_whole_layers(*arguments, together=together)

    check_verified(norm, training, Modelling(batch_size=SAMPLES), k, draw, seed)


@pytest.mark.parametrize(("kind", "operator"), [
    ("layer", "layer_norm"), ("rms", "rms_norm"), ("group", "group_norm"),
])  # fmt: skip
def test_a_norm_is_torchs_where_its_part_takes_the_statistic(kind, operator):
    """Two operators of our own take several times as long as torch's one."""
    model = normed(Norm(kind, 8)).train()
    traced, graph = placements.traced_model(model, [images()])
    at = [layer.kind for layer in graph.layers].index("statistics")
    for statistic_apart in (False, True):
        plan = placements.of_single_tasks(traced, graph, Modelling(batch_size=SAMPLES), 2, 0)
        built, parts = plan.partition.model, plan.partition.parts.copy()
        parts[:] = 0
        parts[built.task_vertices[at]] = int(statistic_apart)
        modelling = plan.partition.modelling
        plan = placements.partitioned(traced, graph, modelling, 2, built, parts)
        placed = placements.check_equal(model, [images()], plan)
        program = placed.programs.submodule(0)
        steps = [step for step in program.modules() if hasattr(step, "code")]
        assert any(f"aten.{operator}" in step.code for step in steps) is not statistic_apart
        of_statistics = [name for name, _ in program.named_modules() if "statistics" in name]
        assert of_statistics == ["normalise_statistics_partial"] * statistic_apart


@pytest.mark.full
@given(norm=norms())
def test_a_statistic_reads_its_channels_and_a_task_one_of_them(norm):
    traced, graph = placements.traced_model(normed(norm).float().eval(), [images().float()])
    assert [layer.tasks for layer in graph.layers if layer.kind == "statistics"]
    check_all(traced, graph, limit=6)


@pytest.mark.parametrize(("kind", "numbers"), [("layer", 2), ("rms", 1)])
def test_numbers_of_each_place_travel_where_channels_lie_apart(kind, numbers):
    """Each part has its share of the channels; the norm's maps are read where they are made."""
    model = normed(Norm(kind, 12, residual=True)).eval()
    traced, graph = placements.traced_model(model, [images()])
    names = [layer.name for layer in graph.layers]
    plan = placements.of_single_tasks(traced, graph, Modelling(batch_size=SAMPLES), 3, 0)
    built, parts = plan.partition.model, plan.partition.parts.copy()
    for at, layer in enumerate(graph.layers):
        parts[built.task_vertices[at]] = np.arange(layer.tasks) * 3 // max(12, layer.tasks)
    plan = placements.partitioned(traced, graph, Modelling(batch_size=SAMPLES), 3, built, parts)
    placed = placements.check_equal(model, [images()], plan)
    own = [item for item in placed.programs.transfers if item.layer == "normalise.statistics"]
    nbytes = SAMPLES * 4 * 2 * numbers * 8
    assert [item.nbytes(SAMPLES) for item in own] == 4 * [nbytes]
    assert [(item.partial, item.sender, item.receiver) for item in own] == [
        (True, 1, 0), (True, 2, 0), (False, 0, 1), (False, 0, 2),
    ]  # fmt: skip
    assert "normalise" in names
    volume = evaluate_parts(built, parts, 3).volume
    assert sum(item.nbytes(SAMPLES) for item in placed.programs.transfers) == volume


def test_few_channels_are_normalised_whole():
    """Four numbers of each place travel, which is no less than the maps of four channels."""
    for norm in (nn.LayerNorm(4), nn.RMSNorm(4)):
        _, graph = placements.traced_model(
            nn.Sequential(nn.Linear(3, 4), norm), [torch.zeros(2, 3)]
        )
        assert [layer.kind for layer in graph.layers] == ["input", "linear", "dense", "output"]


def test_variances_of_far_means_are_exact():
    """They are put together from means and variances, not from sums of squares."""
    model, inputs = normed(Norm("layer", 8)).float().eval(), images().float()
    nn.init.constant_(model.first.bias, 3e4)
    traced, graph = placements.traced_model(model, [inputs])
    plan = placements.of_single_tasks(traced, graph, Modelling(batch_size=SAMPLES), 3, 1)
    placed = hgpart.place(model, plan)
    exact = model.double()(inputs.double())
    assert float((placed(inputs) - exact).abs().max()) < 1e-2
