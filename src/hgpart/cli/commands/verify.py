"""hgpart verify: Model, k or a plan -> whether the model in its parts does what it does whole."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hgpart.cli.command_lines import typed
from hgpart.cli.options import (
    Eps,
    Grain,
    InputShape,
    JsonFile,
    MicroBatches,
    Partitioner,
    PlannedModel,
    Recompute,
    ScheduleRule,
    StepNorms,
    Unit,
    checked_unit,
    names,
    one_of,
)
from hgpart.cli.outputs import check_outputs, lead_on, of_plan, plain_console, tables_wanted
from hgpart.cli.planned import plan_and_model
from hgpart.cli.processes import device_of_each
from hgpart.cli.stages import Stages, then_of_plan
from hgpart.errors import ArgumentError, PlacementError, RunError, not_one_of
from hgpart.schedule_wanted import Scheduling, scheduling_of

if TYPE_CHECKING:
    from torch import nn

    from hgpart.layers.channel_graph import ChannelGraph
    from hgpart.partition import Partition
    from hgpart.partitioned_model import PartitionedModel
    from hgpart.work.figures import Work

DTYPES = ("float64", "float32")


def verify(
    context: typer.Context,
    model: PlannedModel = None,
    k: Annotated[int | None, typer.Option("--k", "-k", help="Number of parts.")] = None,
    partition: Annotated[
        str,
        typer.Option(
            metavar="WAY",
            help="How the model is divided: coarse, fine, random, horizontal, layerwise, or "
            "another way of 'hgpart compare'. Default: the partitioner, at --grain.",
        ),
    ] = "",
    grain: Grain = "coarse",
    eps: Eps = 0.1,
    backend: Partitioner = "native",
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="PLAN", help="A file of 'hgpart partition -o', instead of the options above."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Of the weights, the partition, the batch and dropout.")
    ] = 0,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Samples of the batch; left out, the plan's where that has a schedule, or else 2 "
            "or as many as its slices and micro-batches need."
        ),
    ] = None,
    micro_batches: MicroBatches = None,
    schedule: ScheduleRule = None,
    norms: StepNorms = "micro-batch",
    recompute: Recompute = False,
    input_shape: InputShape = None,
    dtype: Annotated[str, one_of(words=DTYPES, help="Of weights and batch.")] = "float64",
    evaluation: Annotated[
        bool, typer.Option("--eval", help="In evaluation mode, not in training mode.")
    ] = False,
    devices: Annotated[
        Any,
        typer.Option(
            parser=names,
            metavar="D,D,...",
            help="Of each part, or one for all: cpu, cuda, cuda:0; auto: the GPUs that there are.",
        ),
    ] = "cpu",
    unit: Unit = "MB",
    json: JsonFile = None,
) -> None:
    """Run a model in its parts beside the original: results, gradients and bytes must agree."""
    check_outputs({"--json": json})
    if (k is None) == (plan is None):
        given = "neither --k nor --plan" if k is None else "both --k and --plan"
        raise ArgumentError(f"{given} given: accepted is one of them")
    if plan is None and model is None:
        raise ArgumentError("no MODEL given: accepted is one, as in hgpart verify lenet5 --k 4")
    if dtype not in DTYPES:
        raise not_one_of("dtype", dtype, DTYPES)
    if batch_size is not None and batch_size < 1:
        raise ArgumentError(f"--batch-size {batch_size}: accepted is 1 or more")
    checked_unit(unit)
    if schedule is not None:
        _check_step(scheduling_of(schedule, micro_batches, recompute=recompute), batch_size or 2)
    with Stages() as stage:
        with stage("import"):
            import torch

            from hgpart.hypergraph.modelling import Modelling
            from hgpart.partition.problem.checks import check_request, check_search
            from hgpart.partition.problem.problem import Problem
            from hgpart.partition.problem.search import Search
            from hgpart.partition.ways import way_named
            from hgpart.placement import place
            from hgpart.placement.accounting import disagreements
            from hgpart.placement.state.batch_statistics import check_norms
            from hgpart.report.placement import print_placement
            from hgpart.report.verifying import print_verification, verification_json
            from hgpart.run.verifying import verify as verify_placement
            from hgpart.zoo import load_model
        check_norms(norms)
        loaded = None
        if plan is not None:
            loaded, model = plan_and_model(plan, model)
        assert model is not None
        planned = loaded.scheduling if loaded is not None else None
        scheduling = scheduling_of(schedule, micro_batches, recompute=recompute, planned=planned)
        samples = batch_size or 2
        if loaded is not None:
            least = max(2, loaded.modelling.slices * scheduling.micro_batches)
            samples = loaded.batch_size_of_steps(batch_size, otherwise=least)
        _check_step(scheduling, samples)
        called = scheduling == Scheduling()  # like the model, at once
        k = k or (loaded.k if loaded is not None else 0)
        check_request(k, eps)
        check_search(seed)
        of_each = device_of_each(devices, k)
        modelling = Modelling(grain=grain, batch_size=samples)
        by_backend = "" if backend == "native" else f"-{backend}"
        way = way_named(partition or f"{grain}{by_backend}")

        def divide(graph: ChannelGraph, work: Work) -> Partition:
            return way.partition(Problem(graph, work, modelling, k, eps), Search(seed))

        # What the model's own code prints must not get between the figures of --json -.
        with stage("load"), redirect_stdout(sys.stderr):
            module, own_shape = load_model(model, seed=seed)
            module = module.to(getattr(torch, dtype)).train(not evaluation)
        shape = loaded.input_shape if loaded is not None else input_shape or own_shape
        if shape is None:
            raise ArgumentError(
                f"{model} does not say the shape of its input: give it, as in "
                "--input-shape 3,224,224"
            )
        with redirect_stdout(sys.stderr):
            divided = loaded or _divided(stage, module, shape, divide)
            with stage("place"):
                placement = place(module, divided, of_each, norms=norms).to(getattr(torch, dtype))
            torch.manual_seed(seed)
            batch = torch.randn(samples, *shape, dtype=getattr(torch, dtype))
            with stage("verify"):
                found = verify_placement(
                    module, placement, [batch], seed, scheduling=None if called else scheduling
                )
    about = {
        "model": model,
        "grain": placement.programs.partition.modelling.grain,
        "partition": way.name if plan is None else str(plan),
        "seed": seed,
    }
    if tables_wanted(json, verification_json(about, found)):
        print_verification(about, found, plain_console(), unit)
        plain_console().print()
        try:
            report = placement.report()
        except PlacementError as error:  # an operator that can't be run without memory
            plain_console().print(f"No table of the parts: {error}", soft_wrap=True)
        else:
            print_placement(report, disagreements(report, placement), plain_console(), unit)
        if found.passed and plan is None:
            same = typed(context, "grain", "input_shape")
            lead_on(f"hgpart partition {quote(model)}{same} --k {k} -o plan.json")
        elif found.passed and plan is not None:
            lead_on(then_of_plan(module, shape, of_plan(model, plan)))
    sys.stdout.flush()
    if not found.passed:
        raise RunError(f"{model} in its parts is not the original: {found.failures[0]}")


def _check_step(scheduling: Scheduling, batch_size: int) -> None:
    """Refuse what is no step of such a batch."""
    if scheduling.is_stream:
        raise ArgumentError(
            f"--schedule {scheduling.name}: accepted in verify, which compares one step with the "
            "model's, are rules of a step; with one batch in flight it is sequential"
        )
    scheduling.sizes(batch_size)


def _divided(
    stage: Stages,
    module: nn.Module,
    shape: tuple[int, ...],
    divide: Callable[[ChannelGraph, Work], Partition],
) -> PartitionedModel:
    from hgpart.layers.layering import channel_graph
    from hgpart.partitioned_model import PartitionedModel, evaluate_layerwise
    from hgpart.tracing.traced_model import example_inputs, trace
    from hgpart.work.figures import flops

    with stage("trace"):
        traced = trace(module, example_inputs(module, shape))
    with stage("graph"):
        graph = channel_graph(traced)
    with stage("partition"):
        work = flops(graph)
        found = divide(graph, work)
    if found.interrupted:
        raise KeyboardInterrupt("in the search for a partition")
    with stage("layer-wise"):
        eps = found.problem.eps
        layerwise = evaluate_layerwise(graph, work, found.modelling, found.k, eps=eps)
    return PartitionedModel(traced, found, layerwise, stage.all_seconds())
