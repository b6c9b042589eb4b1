"""Model + Partition -> Placement: submodules for each part, and what travels between them.

One idea per file, in the order in which a placement is made: `programs` (what parts do in one
form), `mode_programs` and `other_forms` (how programs are built, for training and evaluation and
for other sizes of inputs), `held_state` (the tensors), `forms` (the programs of all forms, and the
present form), `copies_by_form` (the copies that parts have of each other's state), `passes` (how a
pass begins), `placement` (the module), `param_groups` (its parameters, for an optimizer),
`pipeline_stages` (its parts as functions of tensors). `expected` is what passes should send;
`rehearsal` and `accounting` make its report.

`building` has `channel_transfers` (which channels go where), `borders_first` (which rows of a tile
are computed first), `blueprint` (what all parts have in common), `order` (of layers, over the
shares of a batch), `part_graph`, `part_builder`, `joined_builder` and `statistics_builder` (a
part's work on one share, on several at once, and between them), `held_together` (weights of which
steps hold parts that overlap), `part_program` (all of a part's work) and `draws` (random masks).

`cutting` has `cut_graph` (one layer's tile as a torch.fx graph; `node_facts`, `layouts`,
`held_constants`, `reindexing`, `same_index`, `products`, `row_cuts` and `replacements` say how
operators are cut), `steps`, and `slices` (the state that a part holds).
`state` has `original_state`, `weight_files` and `traced_values` (a state_dict of the whole model)
and `batch_statistics` (what norms update once per batch). `shares` has `ownership` (which part
computes which tile) and, for a batch in slices or maps in bands, `batch_shares` (which slices are
computed as one), `joining` (the order of shares in each part, and which of their steps are joined),
`samples` and `joined_graph` (whether they can be, and how), `owners` (which part owns which
parameters), `messages` (which of them travel together), `exchanges` (the copies that parts have of
each other's state) and `statistics` (of norms over several tiles).

`exporting` has `part_stages` (what a part does between its waits, as modules of tensors) and
`part_files` (files of these, for programs without hgpart).

`ordering` has `ordered` (outlines of the programs, put in order by a rule) and `usual_schedule` (of
steps for which nobody says one).

`batches` has `micro_batches` (how a batch is divided), `loss_counts` (what the mean of a loss
divides by) and `streams` (of batches). `as_module` has `parts` (the submodules), `settings` (what
users set on the model's modules), `original_modules` (what `modules()` lists), `listing_module`
(the module that lists them) and `whole_tensors` (optimizers that need them).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from hgpart.errors import ArgumentError, PlacementError, TraceError, first_line
from hgpart.execution.program import Transfer
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.partition import Partition
from hgpart.partitioned_model import PartitionedModel, partition_model
from hgpart.placement.as_module.original_modules import skeleton
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.placement.mode_programs import share_blueprints
from hgpart.placement.ordering.usual_schedule import UsualSchedules
from hgpart.placement.placement import Placement
from hgpart.placement.shares.batch_shares import in_shares
from hgpart.placement.state.batch_statistics import check_norms
from hgpart.placement.state.traced_values import check_values
from hgpart.plan import Plan, PlanFile, another_model, check_is_for, restore, untraceable
from hgpart.tracing.arguments import Inputs
from hgpart.tracing.forms import said_of
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
        Model whose weights are copied; weights on the meta device wait for
        `Placement.load_checkpoint`.
    plan : Plan, PlanFile or PartitionedModel, optional
        Plan of `load_plan` or `partition_model`, made in either mode: the placement takes the
        model's. Default: `partition_model` makes one of `k` parts, by an `example` of the inputs.
    devices : sequence of k devices, or one for all parts, optional
        Devices such as ``["cuda:0", "cuda:1", "cpu"]`` or ``"cuda"``. Default: the CPU for all
        parts.
    k : int, optional
        Number of parts, without a plan.
    example : tensor, sequence or mapping, optional
        Inputs that the model is called with, as in `trace`. The placement is called with tensors in
        the same places; all other arguments are those of the example.
    parts : iterable of int, optional
        Parts that this process holds. Default: all.
    norms : {"micro-batch", "batch"}
        Whether running statistics are updated per micro-batch or once per batch, in a step in
        micro-batches. Each micro-batch is normalised by its own statistics either way.

    Raises
    ------
    ArgumentError
        If norms are neither of these, or if there is not either a plan, or k and an example.
    PlanError
        If the plan is for another model.
    PlacementError
        If there is not one device per part, or a device does not exist. If the model's forward pass
        does something that a traced graph can't hold or, in training, has gradients that a
        placement would lose. If norms are to be updated per batch and the batch is in slices with
        norms of their own, or running statistics belong to something else than a batch norm. If
        a norm in bands counts rows that no result needs. If floating inputs of the example have
        another type than the model.

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
                "a model without a plan: accepted are place(model, plan) and "
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
    if not partition.modelling.can_run:
        raise PlacementError(
            f"a fine-grain plan over {partition.modelling.bands} bands of rows, which can't be run "
            "yet: accepted is a coarse-grain one, or one band"
        )
    work = partition.problem.work
    held = sorted(range(partition.k) if parts is None else set(parts))
    if not held or held[0] < 0 or held[-1] >= partition.k:
        raise PlacementError(f"parts {held}: accepted are some of 0 to {partition.k - 1}")
    trainable = {name for name, value in model.named_parameters() if value.requires_grad}
    blueprints = share_blueprints(
        NodeFacts(traced, graph), in_shares(partition, work), work, frozenset(trainable), norms
    )
    scheduling = None if isinstance(plan, PartitionedModel) else plan.scheduling
    on = _checked(devices, partition.k)
    placement = Placement(model, blueprints, held, on, UsualSchedules(scheduling))
    placement.train(model.training)
    if model.training and trainable:
        placement.passes.check_gradients()
    return placement


def restored(
    model: nn.Module, plan: Plan | PlanFile
) -> tuple[TracedModel, ChannelGraph, Partition]:
    """The model in the mode that a plan is for, and the plan's partition of it.

    A plan for float32 can be used for the same model in any other float type.
    """
    candidates = []
    for candidate in (model, skeleton(model).train(not model.training)):
        traced = _traced_as_planned(candidate, plan)
        graph = planned = channel_graph(traced)
        if planned.fingerprint != plan.fingerprint:
            bare = skeleton(candidate).float()
            planned = channel_graph(trace(bare, example_inputs(bare, plan.input_shape)))
        if planned.fingerprint == plan.fingerprint:
            return traced, graph, restore(plan, planned)
        candidates.append((traced, graph))
    traced, graph = candidates[0]
    return traced, graph, restore(plan, graph)  # which raises that it is another model


def _traced_as_planned(model: nn.Module, plan: Plan | PlanFile) -> TracedModel:
    """Trace a model with the plan's shape of a sample; another model may not take that shape."""
    try:
        return trace(model, example_inputs(model, plan.input_shape))
    except (ArgumentError, TraceError) as error:
        raise another_model(plan, error) from error


def _checked_for(model: nn.Module, plan: PartitionedModel) -> tuple[TracedModel, ChannelGraph]:
    """The trace and graph of a partition of the same model; it is traced again if need be.

    Raises
    ------
    PlanError
        If it is another model.
    PlacementError
        If its buffers say that other channels are read.
    """
    traced, graph = plan.traced, plan.graph
    outline, was = outline_of(model), traced.outline
    modes_differ = model.training != traced.training
    if modes_differ:
        outline = outline._replace(modes=was.modes)
    if outline == was and not outline.opaque:
        buffers = {name: buffer for name, buffer in model.named_buffers() if not buffer.is_meta}
        check_values(traced, graph, buffers)
        return traced, graph
    same = skeleton(model).train(traced.training) if modes_differ else model
    try:
        traced = trace_call(same, traced.arguments)
        graph = channel_graph(traced)
    except (ArgumentError, TraceError) as error:
        sample = said_of(traced.form.sizes)
        raise untraceable("the plan", plan.name, sample, error) from error
    check_is_for(plan.name, plan.graph, graph)
    return traced, graph


def _checked(
    devices: Sequence[torch.device | str] | torch.device | str | None, k: int
) -> tuple[torch.device, ...]:
    """One device per part, if all of them exist."""
    if devices is None:
        return (torch.device("cpu"),) * k
    if isinstance(devices, str | torch.device):
        devices = [devices] * k
    if len(devices) != k:
        raise PlacementError(f"{len(devices)} devices for {k} parts: accepted is one for each part")
    checked = []
    for device in devices:
        try:
            of_part = torch.device(device)
            torch.empty(0, device=of_part)
        except (RuntimeError, AssertionError) as error:
            reason = first_line(error)
            raise PlacementError(f"device {str(device)!r} is not there: {reason}") from None
        checked.append(of_part)
    return tuple(checked)
