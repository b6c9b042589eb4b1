"""A model that was traced before is not traced again; any other is, as its plan says."""

from __future__ import annotations

import json
import os
import pickle

import hgpart
from hgpart.bench.ways import traced_before
from hgpart.bench.ways.traced_before import ASKED, asking, partitioned
from hgpart.partition.ways.catalogue import partition_by
from hgpart.partitioned_model import PartitionedModel
from hgpart.plan import Plan
from hgpart.work.figures import flops

SHAPE = (1, 32, 32)


def plan(model: str, training: bool = True) -> Plan:
    module, _ = hgpart.load_model(model, device="meta")
    found = hgpart.partition_model(
        module.train(training), hgpart.example_inputs(module, SHAPE), k=2, effort=0.0
    )
    return Plan(found.partition, model, SHAPE)


def test_a_plan_of_the_model_has_its_trace(monkeypatch) -> None:
    with asking("lenet5", SHAPE):
        assert json.loads(os.environ[ASKED]) == ["lenet5", True, *SHAPE]
        monkeypatch.setattr(traced_before, "_TRACED", traced_before._traced())
    assert ASKED not in os.environ
    own = plan("lenet5")
    found = partitioned("lenet5", SHAPE, own)
    assert isinstance(found, PartitionedModel)
    assert found.partition.parts is own.partition.parts
    monkeypatch.setattr("hgpart.placement.trace", None)  # it would be called to trace once more
    monkeypatch.setattr("hgpart.placement.trace_call", None)
    hgpart.place(hgpart.load_model("lenet5")[0], found)
    assert partitioned("lenet5", (1, 28, 28), own) is own


def test_a_plan_over_bands_that_was_sent_has_rows(monkeypatch) -> None:
    """Its graph had left its trace behind, and what asked for rows of a changed graph failed."""
    with asking("lenet5", SHAPE):
        monkeypatch.setattr(traced_before, "_TRACED", traced_before._traced())
    _, graph = traced_before.traced_here("lenet5", SHAPE, training=True)
    own = Plan(partition_by("spatial", graph, flops(graph), 2), "lenet5", SHAPE)
    found = partitioned("lenet5", SHAPE, pickle.loads(pickle.dumps(own)))
    placed = hgpart.place(hgpart.load_model("lenet5")[0], found)
    assert placed.programs.owned_elsewhere()


def test_what_cant_be_traced_is_left_to_those_who_need_it(monkeypatch) -> None:
    monkeypatch.setenv(ASKED, json.dumps(["no such model", 1]))
    assert traced_before._traced() == {}
    assert traced_before._traced() == {}  # asked once
