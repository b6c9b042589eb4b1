"""A model's name, in the environment -> its trace, made once where all ways are forked from.

`multiprocessing`'s forkserver imports this module before it forks: tracing takes seconds, which
each process of each way would spend anew, while all other processes wait for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path

from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.partitioned_model import PartitionedModel
from hgpart.plan import Plan, PlanFile, restore
from hgpart.tracing.input_shape import InputShape
from hgpart.tracing.traced_model import TracedModel, example_inputs, trace
from hgpart.zoo import load_model

ASKED = "HGPART_TRACED_BEFORE"


@contextmanager
def asking(model: str, input_shape: InputShape, training: bool = True) -> Iterator[None]:
    """Let a server that starts inside the block trace a model, in training mode or evaluation."""
    os.environ[ASKED] = json.dumps([model, training, *input_shape])
    try:
        yield
    finally:
        os.environ.pop(ASKED, None)


def partitioned(
    model: str, input_shape: InputShape, plan: Plan | PlanFile, training: bool = True
) -> Plan | PlanFile | PartitionedModel:
    """The plan with the model's trace where that was made before, or else the plan alone."""
    known = _TRACED.get((model, training, input_shape))
    if known is None or known[1].fingerprint != plan.fingerprint:
        return plan
    traced, graph = known
    if isinstance(plan, PlanFile):
        partition = restore(plan, graph)
    else:  # the graph that came with it has left its trace behind, which tells rows
        problem = replace(plan.partition.problem, graph=graph)
        partition = replace(plan.partition, problem=problem)
    return PartitionedModel(traced, partition, partition.evaluation, {}, model)


def traced_here(
    model: str, input_shape: InputShape, training: bool
) -> tuple[TracedModel, ChannelGraph]:
    """A model's trace in a mode: the one that was made before, or a new one."""
    known = _TRACED.get((model, training, input_shape))
    return _trace(model, input_shape, training) if known is None else known


def _trace(model: str, shape: InputShape, training: bool) -> tuple[TracedModel, ChannelGraph]:
    module = load_model(model, device="meta")[0].train(training)
    traced = trace(module, example_inputs(module, shape))
    return traced, channel_graph(traced)


def _traced() -> dict[tuple[object, ...], tuple[TracedModel, ChannelGraph]]:
    asked = os.environ.pop(ASKED, None)
    if asked is None:
        return {}
    model, training, *written = json.loads(asked)
    # Whatever goes wrong goes wrong once more, in a process that can say so.
    with (
        suppress(BaseException),
        Path(os.devnull).open("w") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        shape = InputShape(written)
        return {(model, training, shape): _trace(model, shape, training)}
    return {}


_TRACED = _traced()
