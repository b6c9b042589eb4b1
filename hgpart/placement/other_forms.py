"""Programs of one form -> those of another: of the other mode, or for inputs of other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from hgpart.errors import PlacementError, TraceError
from hgpart.layers.layering import channel_graph
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.placement.mode_programs import (
    Programs,
    build_programs,
    owners_blueprint,
    share_blueprints,
)
from hgpart.placement.modes import carried_over, check_same_layers
from hgpart.tracing.arguments import Arguments
from hgpart.tracing.forms import Form, said_of, sizes_of_inputs
from hgpart.tracing.traced_model import TracedModel, trace_call


def retraced(model: nn.Module, arguments: Arguments, form: Form, dtype: torch.dtype) -> TracedModel:
    """Trace a model, which becomes of that float type, in a form, called as it was before.

    The model is in the mode, and has the settings, of the form.

    Raises
    ------
    PlacementError
        If it does not take inputs of these sizes, and took others.
    """
    tensors = [
        torch.empty(
            (*one.shape[:1], *size),
            dtype=dtype if one.is_floating_point() else one.dtype,
            device="meta",
        )
        for one, size in zip(arguments.tensors, form.sizes, strict=True)
    ]

    def converted(one: torch.Tensor) -> torch.Tensor:
        return one.to(dtype) if one.is_floating_point() else one

    model._apply(converted)  # type: ignore[no-untyped-call]  # `to` would make complex ones real
    try:
        traced = trace_call(model, arguments.with_tensors(tensors))
        return replace(traced, settings=form.settings)
    except TraceError as error:
        before = sizes_of_inputs(arguments.tensors)
        if form.sizes == before:
            raise
        raise PlacementError(
            f"inputs of {said_of(form.sizes)}: accepted are {said_of(before)}, and others that the "
            f"model takes: {error}"
        ) from error


def programs_of(traced: TracedModel, base: Programs, held: Sequence[int]) -> Programs:
    """What parts do in the form of a trace: each layer is theirs who have it in another form.

    Raises
    ------
    PlacementError
        If the model has other layers, in the same mode with the same settings.
    """
    first, graph = base.blueprint, channel_graph(traced)
    if traced.form._replace(sizes=()) == first.traced.form._replace(sizes=()):
        check_same_layers(first.graph, graph, said_of(traced.form.sizes))
    facts, carried = NodeFacts(traced, graph), []
    for one in base.blueprints:
        partition, work = carried_over(one.partition, one.work, one.graph, graph)
        carried.append((one.share, partition))
    blueprints = share_blueprints(facts, carried, work, first.trainable, first.norms)
    owners = None
    if len(blueprints) > 1:
        owners, _ = carried_over(base.owners.partition, first.work, first.graph, graph)
    return build_programs(blueprints, owners_blueprint(blueprints, owners), held)
