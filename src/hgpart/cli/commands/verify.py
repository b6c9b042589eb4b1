"""hgpart verify: Model, k or a plan -> whether the model in its parts does what it does whole."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar

import typer

import hgpart
from hgpart.cli.command_lines import typed
from hgpart.cli.groups import StepWithNorms, Vertices
from hgpart.cli.options import Eps, Names, PlannedModel, PositiveOrNone
from hgpart.cli.outputs import Figures, lead_on, of_plan, plain_console, unit_of
from hgpart.cli.processes import device_of_each
from hgpart.cli.stages import Stages, plan_and_model, shape_of, then_of_plan
from hgpart.errors import ArgumentError, PlacementError, RunError, not_both, not_one_of
from hgpart.schedule_wanted import Scheduling

DTYPES = ("float64", "float32")


@dataclass(frozen=True, kw_only=True)
class HowDivided(Vertices):
    """How the model is divided, where no plan says it.

    Attributes
    ----------
    k : K
        Number of parts.
    way : NAME
        How to divide: coarse, fine, random, horizontal, layerwise, or another way that 'hgpart
        compare' lists. Default: by --backend, at the grain of --modelling.
    backend : native|kahypar|mtkahypar|exact|command:PROGRAM|FILE.py:FUNCTION
        Partitioner, as in 'hgpart partition'.
    """

    panel: ClassVar[str] = "How the model is divided"
    k: int | None = None
    way: str | None = None
    eps: Eps = 0.1
    backend: str = "native"


@dataclass(frozen=True, kw_only=True)
class VerifyStep(StepWithNorms):
    """A step of both.

    Attributes
    ----------
    dtype : float64|float32
        Type of weights and batch.
    evaluation
        Run in evaluation mode. Default: training mode.
    devices : D,D,...
        Device of each part, or one for all: cpu, cuda, cuda:1, or auto (the GPUs of this machine in
        turn, or else the CPU).
    """

    dtype: str = DTYPES[0]
    evaluation: bool = False
    devices: Names = "cpu"


def verify(
    context: typer.Context,
    divided: HowDivided,
    step: VerifyStep,
    results: Figures,
    model: PlannedModel = None,
    plan: Path | None = None,
    seed: int = 0,
    batch_size: PositiveOrNone = None,
) -> None:
    """Run a model in its parts beside the original: results, gradients and bytes must agree.

    Parameters
    ----------
    plan : PLAN
        Plan file, written by 'hgpart partition -o', instead of --k and how the model is divided.
    seed : N
        Seed of the weights, the partition, the batch and dropout.
    batch_size : N
        Samples per batch. Default: the plan's if it has a schedule, or else 2, or as many as its
        slices and micro-batches need.

    Examples
    --------
    $ hgpart verify lenet5 --k 4
    """
    results.check()
    k, dtype = divided.k, step.dtype
    if (k is None) == (plan is None):
        given = "neither --k nor --plan" if k is None else "both --k and --plan"
        raise ArgumentError(f"{given} given: accepted is one of them")
    if plan is None and model is None:
        raise ArgumentError("no MODEL given: accepted is one, as in hgpart verify lenet5 --k 4")
    if dtype not in DTYPES:
        raise not_one_of("dtype", dtype, DTYPES)
    with Stages() as stage:
        with stage("import"):
            import torch

            from hgpart.partition.backends import check_backend
            from hgpart.partition.problem.checks import check_request, check_search
            from hgpart.partition.problem.problem import Problem
            from hgpart.partition.problem.search import Search
            from hgpart.partition.stages import solve
            from hgpart.partition.ways.catalogue import way_named
            from hgpart.placement.accounting import disagreements
            from hgpart.placement.state.batch_statistics import check_norms
            from hgpart.report.verifying import (
                print_placement,
                print_verification,
                verification_json,
            )
            from hgpart.run.random_batch import random_batch
            from hgpart.run.verifying import verify as verify_placement
            from hgpart.zoo import import_user_code
        check_norms(step.norms)
        loaded = None
        if plan is not None:
            loaded, model = plan_and_model(plan, model)
        assert model is not None
        scheduling = step.scheduling(loaded.scheduling if loaded is not None else None)
        if divided.way is not None:
            import_user_code(model)
        _check_beside(divided, plan)
        way = None if divided.way is None else way_named(divided.way)
        slices = divided.slices if loaded is None else loaded.modelling.slices
        if way is not None and way.slices is not None and k is not None:
            slices = max(slices, k)  # no way divides the batch into more slices than parts
        count = scheduling.micro_batches
        samples = batch_size or max(2, slices * count)
        if scheduling.is_stream:
            raise ArgumentError(
                f"--schedule {scheduling.name}: accepted in verify, which compares one step with "
                "the model's, are rules of a step; with one batch in flight it is sequential"
            )
        scheduling.sizes(samples)
        called = scheduling == Scheduling()  # like the model, at once
        k = k or (loaded.k if loaded is not None else 0)
        check_request(k, divided.eps)
        check_search(seed)
        of_each = device_of_each(step.devices, k)
        modelling = divided.modelling_of(samples)
        check_backend(divided.backend, hgpart.VOLUME, None, modelling.slices, modelling.bands)
        kind = getattr(torch, dtype)
        with stage("load"):
            module, own_shape = hgpart.load_model(model, seed=seed)
            module = module.to(kind).train(not step.evaluation)
        asked = loaded.input_shape if loaded is not None else divided.input_shape
        shape = shape_of(model, asked or own_shape)
        source: Any = loaded
        if loaded is None:
            with stage("trace"):
                traced = hgpart.trace(module, hgpart.example_inputs(module, shape))
            with stage("graph"):
                graph = hgpart.channel_graph(traced)
            with stage("partition"):
                problem = Problem(graph, hgpart.flops(graph), modelling, k, divided.eps)
                if way is None:
                    partition = solve(problem, Search(seed), divided.backend)
                else:
                    partition = way.partition(problem, Search(seed))
            if partition.interrupted:
                raise KeyboardInterrupt("in the search for a partition")
            # What is verified does not depend on the cut between layers.
            source = hgpart.PartitionedModel(traced, partition, partition.evaluation, {})
        with stage("place"):
            placement = hgpart.place(module, source, of_each, norms=step.norms).to(kind)
        torch.manual_seed(seed)
        batch = random_batch(shape, placement.programs.arguments.signature, samples, kind)
        with stage("verify"):
            verification = verify_placement(
                module, placement, batch, seed, scheduling=None if called else scheduling
            )
    grain = modelling.grain  # and the backend are the name of a way
    by_backend = grain if divided.backend == "native" else f"{grain}-{divided.backend}"
    about = {
        "model": model,
        "grain": placement.programs.partition.modelling.grain,
        "partition": str(plan or divided.way or by_backend),
        "seed": seed,
    }
    unit = unit_of(context)
    if results.want_tables(verification_json(about, verification)):
        print_verification(about, verification, plain_console(), unit)
        plain_console().print()
        try:
            report = placement.report()
        except PlacementError as error:  # an operator that can't be run without memory
            plain_console().print(f"No table of the parts: {error}", soft_wrap=True)
        else:
            print_placement(report, disagreements(report, placement), plain_console(), unit)
        if verification.passed and plan is None:
            same = typed(context, "modelling", "slices", "input_shape", "backend", "eps")
            by = "" if way is None else f" --way {way.name}"
            lead_on(f"hgpart partition {quote(model)}{same} --k {k}{by} -o plan.json")
        elif verification.passed and plan is not None:
            lead_on(then_of_plan(module, shape, of_plan(model, plan)))
    sys.stdout.flush()
    if not verification.passed:
        raise RunError(f"{model} in its parts is not the original: {verification.failures[0]}")


def _check_beside(divided: HowDivided, plan: Path | None) -> None:
    """Refuse options that have no use beside --way or --plan."""
    grain = divided.modelling_of(max(divided.slices, 1)).grain
    given = {
        f"--way {divided.way}": divided.way is not None,
        f"--backend {divided.backend}": divided.backend != "native",
        f"--modelling grain={grain}": grain != "coarse",
        f"--slices {divided.slices}": divided.slices != 1,
    }
    useless = [option for option, is_given in given.items() if is_given]
    if plan is not None and useless:
        raise not_both(useless[0], f"--plan {plan}")
    if divided.way is not None and f"--backend {divided.backend}" in useless:
        raise not_both(f"--backend {divided.backend}", f"--way {divided.way}")
