"""Programs of one form -> those of another: of the other mode, of other inputs or batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from hgpart.errors import PlacementError, TraceError
from hgpart.layers.layering import channel_graph
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.placement.mode_programs import (
    build_programs,
    owners_blueprint,
    share_blueprints,
)
from hgpart.placement.modes import carried_over, check_same_layers
from hgpart.placement.programs import Programs
from hgpart.tracing.batches import at_batch
from hgpart.tracing.forms import Form, said_of
from hgpart.tracing.traced_model import TracedModel, trace_call
from hgpart.tracing.traced_nodes import holds_tensors


def retraced(model: nn.Module, before: TracedModel, form: Form, dtype: torch.dtype) -> TracedModel:
    """Trace a model, which becomes of that float type, in a form, called as it was before.

    The model is in the mode, and has the settings, of the form. For a batch of one sample that is
    for no other batch.

    Raises
    ------
    PlacementError
        If it does not take inputs of these sizes, or such a batch, and took others.
    """
    arguments = before.arguments
    tensors = [
        torch.empty(
            (form.batch_size, *size) if is_batch else (*one.shape[:1], *size),
            dtype=dtype if one.is_floating_point() else one.dtype,
            device="meta",
        )
        for one, size, is_batch in zip(
            arguments.tensors, form.sizes, arguments.batches, strict=True
        )
    ]

    def converted(one: torch.Tensor) -> torch.Tensor:
        return one.to(dtype) if one.is_floating_point() else one

    model._apply(converted)  # type: ignore[no-untyped-call]  # `to` would make complex ones real
    try:
        made = arguments.with_tensors(tensors)
        traced = trace_call(model, made, any_batch=form.batch_size > 1)
        return replace(traced, settings=form.settings)
    except TraceError as error:
        if form.sizes != before.form.sizes:
            received, accepted = f"inputs of {said_of(form.sizes)}", said_of(before.form.sizes)
        elif form.batch_size != before.batch_size:
            received, accepted = f"a batch of {form.batch_size}", str(before.batch_sizes)
        else:
            raise
        raise PlacementError(
            f"{received}: accepted are {accepted}, and others that the model takes: {error}"
        ) from error


def does_the_same(known: TracedModel, traced: TracedModel) -> bool:
    """Whether a model does in one trace, for the batch of another, what it does in that one."""
    batch_size = traced.batch_size
    if known.batch_sizes.fixed is not None:
        return False
    return _calls(known, batch_size) == _calls(traced, batch_size)


def _calls(traced: TracedModel, batch_size: int) -> list[object]:
    """What operators of a graph are given, for a batch, and what it returns; nodes by numbers."""
    numbers: dict[fx.Node, int] = {}
    calls: list[object] = []

    def given(value: object) -> object:
        if isinstance(value, fx.Node) and not holds_tensors(value):
            value = value.meta["val"]
        return (
            f"node {numbers[value]}" if isinstance(value, fx.Node) else at_batch(value, batch_size)
        )

    for node in traced.graph_module.graph.nodes:
        if holds_tensors(node) or node.op == "output":
            numbers[node] = len(numbers)
            what = node.name if node.op == "placeholder" else node.target
            calls.append((what, *pytree.tree_map(given, (list(node.args), dict(node.kwargs)))))
    return calls


def programs_of(traced: TracedModel, base: Programs, held: Sequence[int]) -> Programs:
    """What parts do in the form of a trace: each layer is theirs who have it in another form.

    Raises
    ------
    PlacementError
        If the model has other layers, for inputs of other sizes alone.
    """
    first, graph = base.blueprint, channel_graph(traced)
    form, before = traced.form, first.traced.form
    own = form._replace(sizes=before.sizes, batch_size=before.batch_size)
    if own == before and form.sizes != before.sizes:
        check_same_layers(first.graph, graph, said_of(traced.form.sizes))
    facts, carried = NodeFacts(traced, graph), []
    for one in base.blueprints:
        partition, work = carried_over(one.partition, one.work, one.graph, graph)
        carried.append((one.share, partition))
    blueprints = share_blueprints(facts, carried, work, first.trainable, first.norms)
    owners = None
    if len(blueprints) > 1:
        owners, _ = carried_over(base.owners.partition, first.work, first.graph, graph)
    return build_programs(blueprints, owners_blueprint(blueprints, owners), held, base.dtype)
