"""Model + Partition -> Placement: submodules for each part, and what travels between them.

One idea a file, in the order in which a placement comes about: `programs` (what parts do in one
form, and what follows from it), `mode_programs` and `other_forms` (how they are made: of training
and evaluation, of sizes of inputs), `held_state` (the tensors), `forms` (the programs of all forms,
and which is the present one), `copies_by_form` (what parts have of each other's state), `passes`
(what a pass begins with), `placement` (the module), `param_groups` (its parameters, for an
optimizer), `pipeline_stages` (its parts as functions of tensors); `expected` is what its passes
should send, `rehearsal` and `accounting` are its report.

In `building`: `shipments` (which channels go where, as `execution.transfers`), `blueprint` (all
that the parts have in common), `order` (of layers, over the shares of a batch), `part_graph`,
`part_builder`, `joined_builder` and `statistics_builder` (what a part does with a share, with
several at once, and between them), `part_program` (all of it), `draws` (random masks).

In `cutting`: `ownership` (who computes what), `cut_graph` (one layer's share as a torch.fx graph;
`node_facts`, `layouts`, `held_constants`, `reindexing`, `same_index`, `products` and `replacements`
say how operators are cut), `steps`, and `slices` (what a part holds of the model's state). In
`state`: `original_state`, `weight_files` and `traced_values` (a state_dict of the whole model),
`batch_statistics` (what norms update once a batch). In `shares`, where the batch is in slices:
`batch_shares` (which are computed as one), `interleaving` (in which order parts go through them),
`joining`, `samples` and `joined_graph` (which of their steps are one, and how that is made),
`owners` (whose the parameters are), `messages` (which of them travel together), `exchanges` and
`copies` (what parts have of each other's state), `statistics` (of norms of all shares).

In `batches`: `micro_batches` (what a batch is divided into), `loss_counts` (what its loss is a mean
over), `streams` (of batches). In `as_module`: `parts` (the submodules), `settings` (what users set
on the model's modules), `original_modules` (what `modules()` lists), `listing_module` (the module
that lists them), `whole_tensors` (who needs them).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from hgpart.errors import ArgumentError, PlacementError, TraceError, first_line
from hgpart.execution.transfers import Transfer
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.partition import Partition
from hgpart.partitioned_model import PartitionedModel, partition_model
from hgpart.placement.as_module.original_modules import skeleton
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.placement.mode_programs import share_blueprints
from hgpart.placement.placement import Placement
from hgpart.placement.shares.batch_shares import in_shares
from hgpart.placement.state.batch_statistics import check_norms
from hgpart.placement.state.traced_values import check_values
from hgpart.plan import Plan, PlanFile, another_model, check_is_for, restore
from hgpart.tracing.arguments import Inputs
from hgpart.tracing.model_outline import outline_of
from hgpart.tracing.traced_model import TracedModel, example_inputs, trace, trace_call

__all__ = ["Placement", "Transfer", "place"]


def place(
    model: nn.Module,
    plan: Plan | PlanFile | PartitionedModel | None = None,
    devices: Sequence[torch.device | str] | torch.device | str | None = None,
    *,
    k: int | None = None,
    example: Inputs | None = None,
    parts: Iterable[int] | None = None,
    norms: str = "micro-batch",
) -> Placement:
    """Turn a partition of a model into submodules on devices.

    Parameters
    ----------
    model : nn.Module
        Its weights are copied; those on the meta device are left to `Placement.load_checkpoint`.
    plan : Plan, PlanFile or PartitionedModel, optional
        From `load_plan` or `partition_model`, in whichever mode: the placement is in the model's.
        Left out, `partition_model` makes it, of `k` parts and by an `example` of the inputs.
    devices : sequence of k devices, or one for all parts, optional
        As in ``["cuda:0", "cuda:1", "cpu"]`` or ``"cuda"``; the CPU for every part when left out.
    k : int, optional
    example : tensor, sequence or mapping, optional
        What the model is called with, as `trace` takes it: the placement is called with tensors in
        the same places, and all else as it is here.
    parts : iterable of int, optional
        The parts that this process holds; all when left out.
    norms : {"micro-batch", "batch"}
        What running statistics are updated by in a step in micro-batches: each of them, one after
        the other, or all of the batch, once. Either way each is normalised by its own statistics.

    Raises
    ------
    ArgumentError
        If norms are to be of something else, or there is not either a plan, or k and an example.
    PlanError
        If the plan is for another model.
    PlacementError
        If there is not one device for each part, or a device is not there. If the model's forward
        pass does what no traced graph holds or, in training, has gradients that a placement loses.
        If norms are to be of the batch, and it is in slices that the plan gives norms of their own,
        or some have running statistics that are no batch norm's. If floating inputs of the example
        are of another type than the model.

    >>> import hgpart
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> images = torch.randn(2, 3, 16, 16)
    >>> placed = hgpart.place(model, hgpart.partition_model(model, images, k=2))
    >>> torch.allclose(placed(images), model(images), atol=1e-5)
    True
    """
    check_norms(norms)
    if plan is None:
        if k is None or example is None:
            raise ArgumentError(
                "place without a plan: accepted are place(model, plan) and "
                "place(model, k=2, example=images)"
            )
        plan = partition_model(model, example, k)
    elif k is not None or example is not None:
        raise ArgumentError("place with a plan and with k or example: accepted is one or the other")
    if not isinstance(plan, Plan | PlanFile | PartitionedModel):
        raise ArgumentError(
            f"the plan is a {type(plan).__name__}: accepted are what partition_model returns, and "
            "hgpart.files.load_plan(path)"
        )
    if isinstance(plan, PartitionedModel):
        (traced, graph), partition = _checked_for(model, plan), plan.partition
    else:
        traced, graph, partition = restored(model, plan)
    work = partition.problem.work
    held = sorted(range(partition.k) if parts is None else set(parts))
    if not held or held[0] < 0 or held[-1] >= partition.k:
        raise PlacementError(f"parts {held}: accepted are some of 0 to {partition.k - 1}")
    trainable = {name for name, value in model.named_parameters() if value.requires_grad}
    blueprints = share_blueprints(
        NodeFacts(traced, graph), in_shares(partition, work), work, frozenset(trainable), norms
    )
    placement = Placement(model, blueprints, held, _checked(devices, partition.k))
    placement.train(model.training)
    if model.training and trainable:
        placement.passes.check_gradients()
    return placement


def restored(
    model: nn.Module, plan: Plan | PlanFile
) -> tuple[TracedModel, ChannelGraph, Partition]:
    """The model in the mode that the plan is for, and the plan's partition of it.

    A plan of the same model in float32 serves for any other float type.
    """
    found = []
    for one in (model, skeleton(model).train(not model.training)):
        traced = _traced_as_planned(one, plan)
        graph = planned = channel_graph(traced)
        if planned.fingerprint != plan.fingerprint:
            bare = skeleton(one).float()
            planned = channel_graph(trace(bare, example_inputs(bare, plan.input_shape)))
        if planned.fingerprint == plan.fingerprint:
            return traced, graph, restore(plan, planned)
        found.append((traced, graph))
    traced, graph = found[0]
    return traced, graph, restore(plan, graph)  # which says that it is another model


def _traced_as_planned(model: nn.Module, plan: Plan | PlanFile) -> TracedModel:
    """Trace a model with the plan's shape of a sample: of another model that is what fails."""
    try:
        return trace(model, example_inputs(model, plan.input_shape))
    except (ArgumentError, TraceError) as error:
        raise another_model(plan.model, [plan.input_shape], error) from error


def _checked_for(model: nn.Module, plan: PartitionedModel) -> tuple[TracedModel, ChannelGraph]:
    """What was traced for a partition of the same model; if need be it is traced once more.

    Raises
    ------
    PlanError
        If it is another one.
    PlacementError
        If its buffers say otherwise who reads which channels.
    """
    traced, graph = plan.traced, plan.graph
    outline, was = outline_of(model), traced.outline
    modes_differ = model.training != traced.training
    if modes_differ:
        outline = outline._replace(modes=was.modes)
    if outline == was and not outline.opaque:
        buffers = {name: one for name, one in model.named_buffers() if not one.is_meta}
        check_values(traced, graph, buffers)
        return traced, graph
    same = skeleton(model).train(traced.training) if modes_differ else model
    try:
        traced = trace_call(same, traced.arguments)
        graph = channel_graph(traced)
    except (ArgumentError, TraceError) as error:
        raise another_model(plan.name, traced.form.sizes, error) from error
    check_is_for(plan.name, plan.graph, graph)
    return traced, graph


def _checked(
    devices: Sequence[torch.device | str] | torch.device | str | None, k: int
) -> tuple[torch.device, ...]:
    """One device for each part, each of which is there."""
    if devices is None:
        return (torch.device("cpu"),) * k
    if isinstance(devices, str | torch.device):
        devices = [devices] * k
    if len(devices) != k:
        raise PlacementError(f"{len(devices)} devices for {k} parts: accepted is one for each part")
    found = []
    for device in devices:
        try:
            one = torch.device(device)
            torch.empty(0, device=one)
        except (RuntimeError, AssertionError) as error:
            reason = first_line(error)
            raise PlacementError(f"device {str(device)!r} is not there: {reason}") from None
        found.append(one)
    return tuple(found)
