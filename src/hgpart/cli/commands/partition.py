"""hgpart partition: Model, k, eps -> a partition, its tables and files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer

import hgpart
from hgpart.cli.forms import keyed, one_value, several
from hgpart.cli.grouping import Options
from hgpart.cli.groups import AnyCounting, Steering
from hgpart.cli.options import Model, NotNegative, Numbers, Seed
from hgpart.cli.outputs import Table, run_of_plan, show_report, unit_of
from hgpart.cli.partition_files import parts_of_file
from hgpart.cli.stages import Stages
from hgpart.cli.timing import TIME, timing_of
from hgpart.errors import ArgumentError, not_one_of
from hgpart.terminal import warn

if TYPE_CHECKING:
    from hgpart.partition.problem.memory import MemoryLimits
    from hgpart.partition.problem.objectives import Objective
    from hgpart.plan import PlanFile

LINKS = "links"
OBJECTIVES = ("volume", "largest", LINKS, TIME)


@dataclass(frozen=True, kw_only=True)
class SearchOptions(Options):
    """How a partition is divided.

    Attributes
    ----------
    backend : native|kahypar|mtkahypar|exact|command:PROGRAM|FILE.py:FUNCTION
        Partitioner: native, kahypar, mtkahypar, exact (optimal, for small models), a program such
        as PaToH or hMETIS, as in 'command:patoh {graph} {k} IB={eps}', or a function of yours that
        gets a hypergraph and capacities, and returns the part of each vertex.
    way : NAME
        Divide in a known way instead, one that 'hgpart compare' lists: layerwise,
        horizontal, data-parallel, ...
    partition : FILE
        Read the partition that another tool made instead: the part of each vertex, in the order of
        'hgpart export' with the same options.
    start : PLAN
        Change this plan as little as needed instead of dividing anew, for another --k or other
        --speeds. Append ,without=D (or D+D) for the devices that have left, if these are not the
        last ones; the others are numbered anew. Native only, for objective volume.
    move_at_most : M
        Weights that may change place with --start, as in 200MB. Default: any.
    objective : volume|largest|links|time
        Quantity to minimise: volume (all bytes), largest (the bytes of the busiest part), links
        (bytes times the cost of their link) or time (seconds of a step, simulated). links and time
        need --machine, time also a file of 'hgpart profile' as --work. All but volume need native;
        links may also be by mtkahypar.
    time_limit : SECONDS
        Time to search; the best partition by then counts. Default: 60 for exact, or else none.
    effort : TIMES
        Length of the search by native, relative to its default.
    best_effort
        Show the best partition even if it exceeds eps.
    """

    panel: ClassVar[str] = "The search"
    backend: str = "native"
    way: str | None = None
    partition: Path | None = None
    start: str | None = None
    move_at_most: str | None = None
    seed: Seed = 0
    objective: str = "volume"
    time_limit: float | None = None
    effort: NotNegative = 1.0
    best_effort: bool = False


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options):
    """The devices and their links.

    Attributes
    ----------
    speeds : S,S,...
        Relative speed of each device. Default: those of --machine, or equal ones.
    machine : NAME|FILE
        Devices and links, for --objective links and time, and where devices differ in speed: a
        named machine such as 10gbe, or a file of 'hgpart calibrate'; for links also a topology.
    micro_batches : M
        Micro-batches per batch, for --objective time. Default: the best of 1, 2, 4 and 8.
    memory : M,M,...
        Memory of each device, or one size for all, as in 2GiB or 512MB (native only). Append
        ,copies=N for the copies that are kept of each parameter: 1 to infer, 2 for gradient
        descent, 3 with momentum, 4 for Adam (default); and ,in-flight=N to make room for N batches
        at a time, for asynchronous training (default 1).
    """

    panel: ClassVar[str] = "The devices"
    speeds: Numbers = None
    machine: str | None = None
    micro_batches: int | None = None
    memory: str | None = None


@dataclass(frozen=True, kw_only=True)
class PartitionResults(Table):
    """Where the results go.

    Attributes
    ----------
    write_partition : FILE
        Write the part of each vertex, in the order of 'hgpart export'.
    output : FILE
        Write the plan.
    """

    write_partition: Path | None = None
    output: Path | None = None


def partition(
    context: typer.Context,
    model: Model,
    counting: AnyCounting,
    search: SearchOptions,
    devices: DeviceOptions,
    steering: Steering,
    results: PartitionResults,
    k: int | None = None,
    eps: float | None = None,
) -> None:
    """Divide a model among k devices, and show what that costs.

    Parameters
    ----------
    k : K
        Number of devices. Required, except with --partition, whose parts are counted, and --start,
        whose devices are.
    eps : E
        Allowed imbalance: a device's work is at most (1 + eps) times its share. Default: 0.1; with
        --start that of the plan; with --objective time 1, which leaves the balance to the search.

    Examples
    --------
    $ hgpart partition vgg16 --k 8 --eps 0.1 -o plan.json
    """
    results.check(work=counting.kept_work)
    output, write_partition = results.output, results.write_partition
    existing, without = _existing(search)
    left: list[int] = []
    if existing is not None:
        from hgpart.partition.problem.start import devices_left

        left = devices_left(existing.k, k, without)
        k = len(left) if k is None else k
    if k is None and search.partition is None:
        raise ArgumentError("no --k given: accepted is a number of devices, as in --k 4")
    with Stages() as stage:
        with stage("import"):
            from hgpart.cli.named_model import NamedModel
            from hgpart.hypergraph.formats import write_partition as write_parts
            from hgpart.hypergraph.partition_files import full_parts
            from hgpart.partition.given_parts import partition_of_parts
            from hgpart.partition.number_of_slices import known_in_slices
            from hgpart.partition.problem.checks import check_request, check_search
            from hgpart.partition.problem.objectives import WIDE
            from hgpart.partition.problem.problem import Problem
            from hgpart.partition.problem.search import Search
            from hgpart.partition.problem.topology import load_speeds
            from hgpart.partition.stages import solve, solve_in_tiles, with_part_bound
            from hgpart.partition.ways.catalogue import way_named
        slices, speeds = counting.slices, devices.speeds
        if speeds is None and devices.machine is not None and k is not None:
            speeds = load_speeds(devices.machine, k)
        if eps is None:
            eps = WIDE if search.objective == TIME else 0.1 if existing is None else existing.eps
        check_request(len(speeds or [1]) if k is None else k, eps, speeds)
        check_search(search.seed, search.effort, search.time_limit)
        modelling = counting.modelling_of(counting.batch_size)
        if search.way is not None:
            from hgpart.zoo import import_user_code

            import_user_code(model)
        _check_together(counting, modelling, search, devices, speeds)
        timing = None
        if search.objective == TIME and k is not None:
            timing = timing_of(devices.machine, devices.micro_batches, counting, k)
        constraints = steering.wanted()
        if existing is not None and not constraints:
            constraints = existing.constraints.on_devices(left)
        elif existing is not None and existing.constraints:
            warn(f"these constraints of the plan hold no longer: {existing.constraints}")
        objective, memory = _wanted(counting, search, devices, k or 1)
        counting.check_work()
        named = NamedModel(stage, model, counting.input_shape)
        shape, graph = named.shape, named.graph
        parts = None
        if search.partition is not None:
            with stage("read"):
                parts = parts_of_file(search.partition, graph, modelling, k)
            k = k or int(parts.max(initial=0)) + 1
            check_request(k, eps, speeds)
        assert k is not None
        work = counting.measured(stage, named)
        chosen = moved = None
        problem = Problem(
            graph, work, modelling, k, eps, speeds, objective, memory, constraints=constraints
        )
        limited = Search(search.seed, search.effort, search.time_limit, stage.search)
        with stage("partition"):
            if parts is not None:
                divided = partition_of_parts(problem, parts)
            elif existing is not None:
                from hgpart.partition.mending import mend
                from hgpart.partition.problem.memory import number_of_bytes

                said = search.move_at_most
                most = None if said is None else number_of_bytes(said, "--move-at-most")
                mended = mend(
                    hgpart.restore(existing, graph),
                    problem,
                    limited,
                    solve,
                    without=without,
                    move_at_most=most,
                )
                divided, moved = mended.partition, mended.moved
            elif timing is not None:
                from hgpart.recommendation.least_time import partition_of

                chosen = timing.choose(named.module, shape, problem, limited, model)
                divided = partition_of(chosen)
            elif search.way is not None:
                divided = way_named(search.way).partition(problem, limited)
            else:
                in_any = slices == "auto", counting.bands == "auto"
                divided = solve_in_tiles(
                    problem, limited, search.backend, search.best_effort, *in_any
                )
        with stage("bound"):
            divided = with_part_bound(divided, limited)
        with stage("import"):  # with torch, which the search does without
            from hgpart.recommendation.of_partition import assumed_step
            from hgpart.report.page.plan import plan_page
            from hgpart.report.partition.record import Report
        with stage("layer-wise"):
            layerwise = hgpart.evaluate_layerwise(graph, work, divided.modelling, k, speeds, eps)
        searched = parts is None and timing is None and search.way is None
        untried = searched and slices == 1 and search.backend == "native" and k > 1
        untried &= modelling.training and modelling.batch_size > 1 and existing is None
        untried &= not graph.mixing.of_norms(modelling.norms)
        known = None
        if untried and memory is None and search.objective == "volume" and not constraints:
            with stage("slices"):
                known = known_in_slices(problem)
        simulated = None
        if timing is None:
            module, traced = named.module, named.traced
            with stage("simulate"):
                simulated = assumed_step(module, traced, divided, devices.machine)
        with stage("write"):
            if write_partition is not None:
                write_parts(full_parts(divided.model, divided.parts), write_partition)
            if output is not None:
                scheduling = None if simulated is None else simulated.scheduling
                if chosen is not None:
                    scheduling = chosen.best.scheduling
                hgpart.files.save_plan(hgpart.Plan(divided, model, shape, scheduling), output)
    report = replace(
        Report(divided, model, shape, layerwise, stage.all_seconds()),
        any_slices=slices == "auto",
        any_bands=counting.bands == "auto",
        untried_slices=untried,
        in_slices=None if known is None else known.volume,
        simulated=simulated,
        moved=moved,
    )
    unit = unit_of(context)
    results.draw(plan_page, report, unit)
    then = run_of_plan(model, output) if divided.modelling.can_run else ""
    show_report(report, unit, results, then)
    if timing is not None and chosen is not None:
        timing.tell(chosen)
    if divided.interrupted:
        raise KeyboardInterrupt("in the search: the partition is the best by then")


def _existing(search: SearchOptions) -> tuple[PlanFile | None, tuple[int, ...]]:
    """The plan of --start, and its devices that have left."""
    if search.start is None or Path(search.start).is_file():
        return (None if search.start is None else hgpart.files.load_plan(Path(search.start))), ()
    values, settings = keyed("--start", search.start, without=several)
    path = one_value("--start", search.start, values)
    if path is None:
        raise ArgumentError(f"--start {search.start}: accepted is PLAN or PLAN,without=D")
    return hgpart.files.load_plan(Path(path)), settings.get("without", ())


def _check_together(
    counting: AnyCounting,
    modelling: hgpart.Modelling,
    search: SearchOptions,
    devices: DeviceOptions,
    speeds: Sequence[float] | None,
) -> None:
    """Refuse options that have no use beside others."""
    from hgpart.partition.ways.catalogue import way_named

    given = {
        "way": search.way is not None and f"--way {search.way}",
        "backend": search.backend != "native" and f"--backend {search.backend}",
        "objective": search.objective != "volume" and f"--objective {search.objective}",
        "slices": counting.slices not in (1, "auto") and f"--slices {counting.slices}",
        "auto": counting.slices == "auto" and "--slices auto",
        "bands": counting.bands != 1 and f"--bands {counting.bands}",
        "any-bands": counting.bands == "auto" and "--bands auto",
        "grain": modelling.grain != "coarse" and f"--modelling grain={modelling.grain}",
        "norms": modelling.norms != "slice" and f"--modelling norms={modelling.norms}",
        "training": not modelling.training and "--modelling training=no",
        "speeds": devices.speeds is not None and "--speeds",
        "memory": devices.memory is not None and "--memory",
        "limit": search.time_limit is not None and "--time-limit",
        "best": search.best_effort and "--best-effort",
        "start": search.start is not None and f"--start {search.start}",
    }
    beside, useless, why = "", "", ""
    if search.partition is not None:
        beside, useless = (
            "--partition FILE",
            "way backend objective memory auto any-bands limit best start",
        )
    elif search.way is not None:
        way_named(search.way)  # raises before the model is traced
        beside = f"--way {search.way}"
        useless = "backend grain slices auto bands objective memory training norms best start"
    elif search.objective == TIME:
        beside, useless = "--objective time", "slices auto bands backend training speeds start"
        why = ", as it tries slices and bands itself, by native, for training on --machine"
    elif search.start is not None:
        beside, useless = "--start PLAN", "backend objective auto any-bands best"
    if search.start is None and search.move_at_most is not None:
        raise ArgumentError(f"--move-at-most {search.move_at_most}: accepted with --start PLAN")
    for option in useless.split():
        if given[option]:
            raise ArgumentError(f"{given[option]} can't be combined with {beside}{why}")
    for option, value in (("machine", devices.machine), ("micro-batches", devices.micro_batches)):
        needing = (LINKS, TIME) if option == "machine" else (TIME,)
        is_used = search.objective in needing or (option == "machine" and speeds is not None)
        if value is not None and not is_used:
            differ = ", or where its devices differ in speed" * (option == "machine")
            raise ArgumentError(
                f"--{option} {value}: accepted with --objective {' and '.join(needing)} alone"
                f"{differ}"
            )


def _wanted(
    counting: AnyCounting,
    search: SearchOptions,
    devices: DeviceOptions,
    k: int,
) -> tuple[Objective, MemoryLimits | None]:
    """The objective of the search and the limits of memory, checked."""
    from hgpart.partition.backends import check_backend
    from hgpart.partition.problem.objectives import objective_named

    name = search.objective
    if name not in OBJECTIVES:
        raise not_one_of("objective", name, OBJECTIVES)
    objective: Objective
    if name == LINKS:
        if devices.machine is None:
            raise ArgumentError(
                "--objective links without --machine: accepted is with --machine FILE"
            )
        objective = hgpart.files.load_topology(devices.machine, k)
    else:
        objective = hgpart.VOLUME if name == TIME else objective_named(name)
    memory = None
    if devices.memory is not None:
        sizes, settings = keyed("--memory", devices.memory, copies=float, in_flight=int)
        memory = hgpart.memory_limits(sizes, k, **settings)
    check_backend(search.backend, objective, memory, counting.slices, counting.bands)
    return objective, memory
