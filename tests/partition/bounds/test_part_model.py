"""What a part can hold: nets that the same layers read end at readings, and norms hand maps on."""

from __future__ import annotations

import numpy as np
from partitioned_models import GraphMaker, read

from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import INPUT
from hgpart.partition.bounds.part_model import PartModel, part_model
from hgpart.partition.problem.problem import Problem
from hgpart.work.figures import Work


def modelled(maker: GraphMaker, loads: list[int]) -> PartModel:
    work = Work(np.array(loads, dtype=np.int64), "MAC", 1, "test")
    modelling = Modelling(batch_size=1, output_vertex=False, bytes_per_element=1)
    model = part_model(Problem(maker.graph(), work, modelling, 2, 0.5))
    assert model is not None
    return model


def branches() -> tuple[GraphMaker, list[int]]:
    """Two blocks of four branches, each of a layer that reads all four before."""
    maker = GraphMaker()
    channels = maker.add(INPUT, 1, channels=3)
    for _ in range(2):
        own = [maker.add("dense", 4, (read(channels),), elements=5) for _ in range(4)]
        channels = np.concatenate(own)
    maker.add("dense", 4, (read(channels),))
    return maker, [0, *[7] * 8, 9]


def test_nets_with_the_same_readers_end_at_readings() -> None:
    model = modelled(*branches())
    readings = np.flatnonzero(model.demands == 0)
    assert (model.work[readings] == 0).all()
    assert len(readings) == 8  # one behind each branch
    items = np.repeat(np.arange(len(model.work)), np.diff(model.pointers))
    pins = [items[model.nets == net].tolist() for net in range(len(model.costs))]
    open_at_once = [sum(own[0] <= at < own[-1] for own in pins) for at in range(len(model.work))]
    assert max(open_at_once) == 3  # what is read, and what will be, and of a branch its own
    links = [net for net, own in enumerate(pins) if own[0] in readings]
    credits = {pins[net][0]: model.costs[net] for net in links}
    assert {at: model.credits[at] for at in readings} == credits
    # Links cost nothing but for the credits.
    assert np.isclose(model.costs.sum() - model.credits.sum(), 1)
    # What is read of all four is what they cost.
    of_block = model.costs[[net for net, own in enumerate(pins) if own[-1] in readings[:4]]]
    assert np.isclose(max(credits[at] for at in readings[:4]), 4 * of_block.min())


def test_norms_without_work_hand_their_maps_on() -> None:
    """A layer reads, through a norm of its own, all before it."""
    maker = GraphMaker()
    channels = maker.add("dense", 4, elements=3)
    for _ in range(3):
        norm = maker.add("dense", len(channels), (read(channels, groups=len(channels)),))
        channels = np.concatenate([channels, maker.add("dense", 4, (read(norm),), elements=3)])
    model = modelled(maker, [5, 0, 5, 0, 5, 0, 5])
    assert model.work[model.demands == 1].tolist() == [0.25] * 4
    assert model.demands.tolist() == [1, 0, 1, 0, 1, 0, 1]  # a reading behind each that is read


def test_layers_that_alone_read_have_no_readings() -> None:
    maker = GraphMaker()
    channels = maker.add("dense", 4)
    for _ in range(3):
        channels = maker.add("dense", 4, (read(channels),))
    assert modelled(maker, [3] * 4).demands.tolist() == [1] * 4
