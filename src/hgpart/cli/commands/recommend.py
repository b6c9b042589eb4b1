"""hgpart recommend: Model, devices -> the best way to train it on them, and its plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from shlex import quote
from typing import ClassVar

import typer

import hgpart
from hgpart.cli.command_lines import typed
from hgpart.cli.grouping import Options
from hgpart.cli.groups import Steering, runs_and_timeout
from hgpart.cli.options import InputTexts, Model, Positive, PositiveOrNone, Seed
from hgpart.cli.outputs import Page, lead_on, of_plan, plain_console, unit_of
from hgpart.cli.stages import Stages, check_images, classes_of, then_of_plan
from hgpart.cli.timing import times_of
from hgpart.cores import threads_of_each, usable_cores
from hgpart.errors import ArgumentError, RunError
from hgpart.run.training.data_wanted import check_data
from hgpart.terminal import say, share_done
from hgpart.tracing.input_shape import InputShape


@dataclass(frozen=True, kw_only=True)
class Available(Options):
    """The devices to train on, and how fast they are.

    Attributes
    ----------
    devices : K
        Number of devices. Default: those of --machine.
    machine : NAME|FILE
        Devices and links: a named machine such as 10gbe, or a file of 'hgpart calibrate'. Default:
        this machine, measured now.
    times : FILE
        Layer times, a file of 'hgpart profile', or KIND=FILE,KIND=FILE for each kind of device.
        Default: measured here, now.
    memory : M
        Memory of each device, as in 512MB or 2GiB. Default: what the machine says.
    """

    panel: ClassVar[str] = "The devices"
    devices: PositiveOrNone = None
    machine: str | None = None
    times: str | None = None
    memory: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ranking(Options):
    """How ways are ranked, and for how long.

    Attributes
    ----------
    goal : time|memory|throughput|latency|inference-throughput
        Figure to rank by: time (seconds per training step), memory (bytes per device) or throughput
        (samples per second, asynchronous training included). Of inference: latency (seconds from a
        batch to its result) or inference-throughput (samples per second).
    measure : N
        Run a few steps of the N best ways here, in turns with one device and torch's DDP, and rank
        these by the measured time; 0: none. Append ,timeout=S for the seconds to wait for a silent
        process (default 300). Default: 3 where the devices are this machine's, or else 0.
    micro_batches : M
        Micro-batches of all ways of several devices. Default: several numbers are tried.
    data : synthetic|digits|imagefolder:PATH|FILE.py:FUNCTION
        Training data of the steps that are run, with the seconds of an epoch. Default: one batch of
        random images.
    time_limit : SECONDS
        Time to simulate ways, the most promising first.
    """

    panel: ClassVar[str] = "The search"
    goal: str = "time"
    measure: str | None = None
    micro_batches: PositiveOrNone = None
    data: str = "synthetic"
    time_limit: float = 120.0
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class RecommendResults(Page):
    """Where the results go.

    Attributes
    ----------
    output : FILE
        Write the best plan, with its schedule.
    wide
        Print all columns, however wide the table gets. Default: those that fit.
    """

    output: Path = Path("best.json")
    wide: bool = False


def recommend(
    context: typer.Context,
    model: Model,
    available: Available,
    ranking: Ranking,
    steering: Steering,
    results: RecommendResults,
    batch_size: Positive = 32,
    input_shape: InputTexts = None,
) -> None:
    """Find the fastest way to train a model on some devices, or to run it, and in which order.

    Parameters
    ----------
    batch_size : N
        Samples per step, over all devices together.

    Examples
    --------
    $ hgpart recommend vgg16 --devices 4 --batch-size 16
    """
    results.check()
    output = results.output
    devices, machine, times = available.devices, available.machine, available.times
    if devices is None and machine is None:
        raise ArgumentError("neither --devices nor --machine: accepted is --devices 4, say")
    if not 0 <= ranking.time_limit < inf:
        raise ArgumentError(f"--time-limit {ranking.time_limit}: accepted is 0 s or more")
    check_data(ranking.data)
    has_data = ranking.data != "synthetic"
    if has_data and ranking.goal in ("latency", "inference-throughput"):
        raise ArgumentError(
            f"--data {ranking.data} with --goal {ranking.goal}: accepted with goals of training"
        )
    with Stages() as stage:
        with stage("import"):
            from hgpart.bench.session import start_server
            from hgpart.bench.ways.job import Job
            from hgpart.cli.named_model import NamedModel
            from hgpart.machines.named import named_machine
            from hgpart.partition.problem.checks import check_search
            from hgpart.partition.problem.memory import number_of_bytes
            from hgpart.recommendation.measured_here import machine_here, times_here
            from hgpart.recommendation.measuring import with_measured
            from hgpart.recommendation.memory import limits_of
            from hgpart.recommendation.of_partition import first_answer
            from hgpart.recommendation.ranking import check_goal, trains
            from hgpart.report.page.recommended import recommendation_page
            from hgpart.report.recommendation import (
                answer,
                print_recommendation,
                recommendation_json,
            )
        check_goal(ranking.goal)
        check_search(ranking.seed)
        constraints = steering.wanted()
        k_here = devices if machine is None else None
        asked = _asked_to_run(ranking, k_here)
        best, timeout = runs_and_timeout(asked, least=0)
        inference = not trains(ranking.goal)
        if best and inference and ranking.goal != "latency":
            raise ArgumentError(
                f"--measure {best} with --goal {ranking.goal}: accepted with goals of training and "
                "latency, as one batch at a time is run"
            )
        limit = None if available.memory is None else number_of_bytes(available.memory)
        given = None if machine is None else hgpart.files.load_machine(machine, devices)
        if best and machine is not None and named_machine(machine, devices) is not None:
            raise ArgumentError(
                f"--measure {best} with --machine {machine}: accepted is this machine, or a file"
            )
        k = devices or (given.k if given is not None else 1)
        threads = given.devices[0].threads if given is not None else threads_of_each(k)

        def before(shape: InputShape) -> None:
            if best:  # who runs the ways traces the model at the same time as this process
                start_server(model, shape, threads, training=not inference)

        named = NamedModel(stage, model, input_shape, before)
        shape, graph, module, traced = named.shape, named.graph, named.module, named.traced
        notes, classes = list[str](), 1
        if best or has_data:
            try:
                if inference:  # there is no loss
                    check_images(shape)
                else:
                    classes = classes_of(module, shape)
            except RunError as error:
                if ranking.measure is not None or has_data:
                    raise
                notes.append(f"Nothing was run: {error}")
                best = 0
        seconds = None if times is None else times_of(times, graph)
        of_step = model, shape, classes, batch_size, k, threads
        job = Job(*of_step, ranking.seed, timeout=timeout, data=ranking.data, inference=inference)
        steps = None
        if has_data:
            with stage("data"):
                steps = job.opened_data().steps_per_epoch(batch_size)
    if seconds is None:
        seconds = times_here(module, traced, graph, batch_size, threads)
        notes.append(
            f"Layers were measured now, briefly, with {threads} thread{'s' * (threads > 1)}; to "
            f"measure them well: hgpart profile {quote(model)}{typed(context, 'input_shape')} "
            f"--batch-size {batch_size} --threads {threads} -o times.json"
        )
        if given is None and ranking.goal == "time":
            known = first_answer(module, traced, graph, seconds, k, batch_size)
            if known is not None:
                say(f"First answer: {known}")
    if given is None:
        with share_done() as tell:
            given, note = machine_here(k, threads, "--machine FILE or NAME for others", tell)
        notes.append(note)
    with share_done() as tell:
        ranked = hgpart.rank_ways(
            module,
            traced,
            graph,
            seconds,
            given,
            devices=k,
            batch_size=batch_size,
            goal=ranking.goal,
            memory=limit,
            time_limit=ranking.time_limit,
            seed=ranking.seed,
            micro_batches=ranking.micro_batches,
            constraints=constraints,
            name=model,
            on_progress=tell,
        )
    ranked = replace(ranked, notes=(*notes, *ranked.notes), epoch_steps=steps)
    if best and not ranked.interrupted:
        say(f"By simulation: {answer(ranked, unit_of(context))}")
        with share_done() as tell:
            ranked = with_measured(ranked, job, best, tell)
    # Simulations know the types of inputs, not their values.
    hgpart.files.save_plan(replace(ranked.best.plan, input_shape=shape), output)
    unit = unit_of(context)
    results.draw(recommendation_page, ranked, limits_of(ranked.machine, limit), unit)
    if results.want_tables(recommendation_json(ranked)):
        print_recommendation(ranked, plain_console(), unit, wide=results.wide)
        plain_console().print()
        plain_console().print(f"{output} has the plan and its schedule", soft_wrap=True)
        then = of_plan(model, output)
        lead_on(f"hgpart run {then}" if inference else then_of_plan(module, shape, then))
    if ranked.interrupted:
        raise KeyboardInterrupt(f"in the simulations: {output} is the best by then")


def _asked_to_run(ranking: Ranking, devices_here: int | None) -> str:
    """What --measure says, or should say where it is not given."""
    if ranking.measure is not None:
        return ranking.measure
    from hgpart.recommendation.measuring import BEST

    are_here = devices_here is not None and 1 < devices_here <= usable_cores()
    return str(BEST if are_here and ranking.goal in ("time", "throughput", "latency") else 0)
