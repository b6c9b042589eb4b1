"""What a process reads of a batch: its own samples, with the same losses."""

from __future__ import annotations

import json
from types import SimpleNamespace

import data_ranks
import placements
import pytest
import torch
from torch import nn

from hgpart import Modelling, PartSampler, place
from hgpart.errors import ArgumentError, PlacementError
from hgpart.run.processes.launch import launch


@pytest.mark.full
@pytest.mark.long
def test_processes_read_their_own_samples_and_learn_what_one_does(tmp_path):
    file = tmp_path / "found.json"
    launch(data_ranks.__file__, [str(file)], 3)
    assert json.loads(file.read_text()) == {"random": [], "ways": [], "cut": [], "whole": []}


def part(needed):
    programs = SimpleNamespace(samples_needed=lambda rank, sizes: needed(sum(sizes)))
    placement = SimpleNamespace(programs=programs)
    return SimpleNamespace(placement=placement, connection=SimpleNamespace(rank=0))


def test_batches_of_one_size():
    batches, once = [[5, 2, 8, 1], [0, 7, 3, 6]], SimpleNamespace(micro_batches=1)
    halves = PartSampler(batches, part(lambda size: [*range(size // 2, size)]), once)
    assert (len(halves), [*halves], [*halves]) == (2, [[8, 1], [3, 6]], [[8, 1], [3, 6]])
    assert [*PartSampler(batches, part(lambda size: []), once)] == [[5], [0]]
    uneven = PartSampler([*batches, [4]], part(lambda size: []), once)
    with pytest.raises(ArgumentError, match="a batch of 1 samples after one of 4: accepted are"):
        list(uneven)


def test_other_samples_than_a_part_needs_are_refused():
    model, images = nn.Sequential(nn.Flatten(), nn.Linear(4, 5)), torch.randn(9, 1, 2, 2)
    traced, graph = placements.traced_model(model, [images])
    modelling = Modelling(batch_size=9, slices=3)
    placement = place(model, placements.of_data_parallel(traced, graph, modelling, 3))
    assert placement.programs.samples_needed(1, (6, 3)) == [2, 3, 7]
    whole, own = (
        placement.passes.divided([given], (9,), part)[0]
        for given, part in ((images, None), (images[3:6], 1))
    )
    given = {name for name, value in own.items() if isinstance(value, torch.Tensor)}
    assert len(given) == 1
    assert all(torch.equal(own[name], whole[name]) for name in given)
    with pytest.raises(PlacementError, match=r"accepted are 9 or 3 samples$"):
        placement.passes.divided([images[:4]], (9,), 1)
    with pytest.raises(PlacementError, match=r"accepted are 9 samples$"):
        placement.passes.divided([images[:3]], (9,))
    labels, loss_fn = torch.arange(9) % 5, nn.functional.cross_entropy
    placement.programs.score(labels[3:6], loss_fn, (9,), 1, alone=True)
    with pytest.raises(
        ArgumentError, match="accepted are 9 or 3 samples in its first dimension, to"
    ):
        placement.programs.score(labels[:4], loss_fn, (9,), 1, alone=True)
    with pytest.raises(ArgumentError, match="accepted are 9 samples in its first dimension, to"):
        placement.programs.score(labels[3:6], loss_fn, (9,), 1)
